"""The steps of a durable publish, each by the function that begins it, and what is counted in them.

What a function does itself belongs to its step; what it calls that begins another step belongs to that one.
So the steps of a message add up to all that its node does for it, but for the event loop.
"""

import importlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from types import FrameType
from typing import Any

STEPS = (
    ("read", "millrace.node.doors.socket_transport", "SocketPoll._serve"),
    ("scan", "millrace.node.doors.mqtt_connection", "MqttConnection.data_received"),
    ("route, acknowledgement prepared", "millrace.broker.messages.inbound", "Inbound.publish_runs"),
    ("end of the turn", "millrace.node.turn", "Turn.end"),
    ("what arrived is cut", "millrace.node.engine", "Engine.cut"),
    ("arrivals of a shard", "millrace.node.shards.shard", "Shard.cut"),
    ("block made", "millrace.node.shards.shard", "data_blocks"),
    ("proposal", "millrace.node.replicas.replication_group", "ReplicationGroup.propose"),
    ("admission: number and time", "millrace.node.replicas.admission", "Admission.take"),
    ("machine", "millrace.replication.raft.machine", "Raft.step"),
    ("effects", "millrace.driver.effects", "EffectDriver.step"),
    ("effects behind the disk", "millrace.driver.effects", "EffectDriver.persisted"),
    ("entry stamped", "millrace.node.replicas.group_log", "GroupLog.write"),
    ("sync begins", "millrace.node.logs.syncer", "Syncer.start"),
    ("log: append", "millrace.storage.log", "Log.append"),
    ("log: sync", "millrace.storage.log", "Log.sync"),
    ("end of the log remembered", "millrace.storage.synced_end", "SyncedEnd.note"),
    ("system: write", "millrace.storage.disk", "SystemFile.write_at"),
    ("system: sync", "millrace.storage.disk", "SystemFile.sync"),
    ("committed entries", "millrace.driver.replica", "ReplicaDriver.apply_to"),
    ("applied", "millrace.node.shards.shard", "Shard.apply"),
    ("delivered to clients of others", "millrace.node.shards.shard", "fan_out"),
    ("batch answered", "millrace.node.shards.shard", "Shard.commit"),
    ("arrivals answered", "millrace.broker.messages.inbound", "Inbound.committed"),
    ("output of clients", "millrace.node.doors.mqtt_door", "MqttDoor.flush"),
    ("system: write to a client", "millrace.node.doors.socket_transport", "SocketTransport.write"),
    ("read of a link", "millrace.node.peers.links", "Link.data_received"),
    ("frame decoded, handed on", "millrace.node.peers.messenger", "Messenger.receive"),
    ("message to a node", "millrace.node.peers.messenger", "Messenger.send"),
    ("links flushed", "millrace.node.peers.links", "Links.flush"),
    ("write to a link", "millrace.node.peers.links", "Link._write"),
)
"""In the order in which a message meets them at the node that takes it."""

Found = dict[str, dict[str, float]]


class Tracer:
    """Measures times, or counts calls: one of the two, as counting takes time. Nothing before `begin`."""

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self._is_on = False
        self._threads = _OfThread()
        self._times_ns: dict[str, list[int]] = defaultdict(list)
        self._calls: dict[str, int] = defaultdict(int)
        self._builtins: dict[str, int] = defaultdict(int)
        self._own_code = {Tracer._enter.__code__, Tracer._leave.__code__}

    def install(self) -> None:
        """Put this around the functions of all steps. Before anything else holds on to them."""
        for step, module, path in STEPS:
            owner: Any = importlib.import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            setattr(owner, name, self._around(step, getattr(owner, name)))

    def _around(self, step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any, **named: Any) -> Any:
            if not self._is_on:
                return call(*args, **named)
            self._enter(step)
            try:
                return call(*args, **named)
            finally:
                self._leave()

        self._own_code.add(traced.__code__)
        return traced

    def begin(self) -> None:
        self._is_on = True

    def end(self) -> Found:
        """Of each step: how often it came, microseconds of one (the median), calls of Python functions and
        of built-in ones in all."""
        self._is_on = False
        sys.setprofile(None)
        return {
            step: {
                "times": len(times),
                "us": median(times) / 1000,
                "calls": self._calls[step],
                "builtins": self._builtins[step],
            }
            for step, times in self._times_ns.items()
        }

    def _enter(self, step: str) -> None:
        own = self._threads
        now_ns = time.perf_counter_ns()
        if own.stack:
            own.spent_ns[-1] += now_ns - own.since_ns
        elif self._counts:
            # Each thread has a profile function of its own.
            sys.setprofile(self._on_call)
        own.stack.append(step)
        own.spent_ns.append(0)
        own.since_ns = time.perf_counter_ns()

    def _leave(self) -> None:
        own = self._threads
        now_ns = time.perf_counter_ns()
        spent_ns = own.spent_ns.pop() + now_ns - own.since_ns
        self._times_ns[own.stack.pop()].append(spent_ns)
        own.since_ns = time.perf_counter_ns()

    def _on_call(self, frame: FrameType, event: str, argument: object) -> None:
        stack = self._threads.stack
        if not stack or not self._is_on or frame.f_code in self._own_code:
            return
        if event == "call":
            self._calls[stack[-1]] += 1
        elif event == "c_call":
            self._builtins[stack[-1]] += 1


class _OfThread(threading.local):
    def __init__(self) -> None:
        # The steps that are under way, one in the other, with the time that each took so far.
        self.stack: list[str] = []
        self.spent_ns: list[int] = []
        self.since_ns = 0
