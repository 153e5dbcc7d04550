"""A simulated cluster of whole nodes with MQTT clients, its faults, and the story of a run.

The code under test is the node itself, from the MQTT door to the disk, on simulated loops (`loop`), sockets
and disks; the HTTP server, TLS and the password workers are left out. One seed decides everything. A run:

1. the nodes form a cluster, in some runs while they are killed and cut off; the clients connect, the
   subscribers subscribe;
2. publishers publish while nodes crash, lose power, stop, pause, and are cut off from each other and from
   clients, disks are slow and connections break;
3. everything heals; within a bounded time every publish is answered, every durable subscriber has what it
   should have, and every group has a leader;
4. in some runs the whole cluster loses its power, and comes back with everything.
"""

import asyncio
import gc
import logging
import random
from collections.abc import Callable
from typing import Literal

from millrace.sim.clock import US_PER_S, Clock
from millrace.sim.cluster_checks import (
    check_groups,
    check_logs,
    check_once_and_in_order,
    check_received,
    missing,
)
from millrace.sim.cluster_faults import ClusterNemesis
from millrace.sim.host import Host
from millrace.sim.loop import SimLoop
from millrace.sim.mqtt_clients import Client, History, Publisher, Subscriber
from millrace.sim.sockets import Sockets
from millrace.sim.trace import Trace
from millrace.sim.violation import Violation
from millrace.sim.world import RunResult
from millrace.types import Version

_CALLS_MAX = 20_000_000
_FORM_S = 60
_SUBSCRIBE_S = 60
_HEAL_S = 180
_SETTLE_S = 60
_IDLE_S = 2
_GAP_S = 2.0
_FORMING_GAP_S = 0.3


class ClusterWorld:
    def __init__(self, seed: int, trace: Trace | None, sync: Literal["always", "never"] = "always") -> None:
        self.seed = seed
        self.sync = sync
        """With `never` nodes acknowledge before anything is on disk: a planted bug."""
        self.clock = Clock(calls_max=_CALLS_MAX)
        self._trace = trace
        self._violation: Violation | None = None
        self._loops: list[SimLoop] = []
        self.history = History()
        note = None if trace is None else self._note_bytes
        self.sockets = Sockets(clock=self.clock, rng=self.chance("network"), note=note)
        rng = self.chance("plan")
        self.hosts = [Host(self, i, self.chance(f"host {i}")) for i in range(rng.choice((1, 3, 3, 3)))]
        self.is_power_lost_at_end = rng.random() < 0.4
        self._fault_s = rng.randint(10, 40)
        self._forming_fault_s = rng.choice((0, 0, 0, 2, 8))
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.nemesis = ClusterNemesis(self, self.chance("nemesis"))
        self._choose_clients(rng)

    def chance(self, name: str) -> random.Random:
        """Each actor has its own stream of chance, so that a change in one does not reshuffle the others."""
        return random.Random(f"{self.seed} {name}")

    def _choose_clients(self, rng: random.Random) -> None:
        count = rng.choice((20, 60, 150))
        for i in range(rng.randint(1, 3)):
            for qos in (1, 2):
                self._add_publisher(f"p{qos}{i}", qos, count, rng)
        self._add_subscriber("d1", "q1/#", 1, True, rng)
        self._add_subscriber("d2", "q2/#", 2, True, rng)
        if rng.random() < 0.5:
            self._add_subscriber("d3", "#", 2, True, rng)
            self._add_subscriber("c1", "#", rng.randint(0, 2), False, rng)

    def _add_publisher(self, name: str, qos: int, count: int, rng: random.Random) -> None:
        more = self._more(name, rng)
        self.publishers.append(Publisher(name, self._client_loop(), qos=qos, count=count, **more))

    def _add_subscriber(self, name: str, filter: str, qos: int, is_durable: bool, rng: random.Random) -> None:
        more = self._more(name, rng)
        loop = self._client_loop()
        one = Subscriber(name, loop, filter=filter, qos=qos, is_durable=is_durable, **more)
        self.subscribers.append(one)

    def _more(self, name: str, rng: random.Random) -> dict[str, object]:
        return {
            "rng": self.chance(f"client {name}"),
            "nodes": [host.address for host in self.hosts],
            "history": self.history,
            "note": self.note,
            "version": rng.choice((Version.MQTT_3_1_1, Version.MQTT_5)),
        }

    def _client_loop(self) -> SimLoop:
        number = len(self.publishers) + len(self.subscribers)
        return self.make_loop(f"10.0.1.{number}", self.chance(f"client loop {number}"))

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.subscribers]

    def make_loop(self, address: str, rng: random.Random) -> SimLoop:
        # Abstract: what no node calls (files, processes, datagrams) is not there.
        loop = SimLoop(  # type: ignore[abstract]
            address, clock=self.clock, sockets=self.sockets, rng=rng, trouble=self._on_trouble
        )
        self._loops.append(loop)
        return loop

    # ------------------------------------------------------------------------------------------ notes

    def note(self, who: str, text: str) -> None:
        if self._trace is not None:
            self._trace.note(self.clock.now_us, who, text)

    def _note_bytes(self, sender: str, receiver: str, text: str) -> None:
        self.note(receiver.removeprefix("10.0."), f"<{sender.removeprefix('10.0.')} {text}")

    def _on_trouble(self, loop: SimLoop, error: BaseException) -> None:
        if self._violation is None:
            if isinstance(error, Violation):
                self._violation = error
            else:
                self._violation = Violation("exception", f"{loop.address}: {error!r} {_where(error)}")
                self._violation.__cause__ = error

    # -------------------------------------------------------------------------------------------- run

    def run(self) -> None:
        """Raises Violation."""
        if self._forming_fault_s:
            self._form_under_faults()
        for host in self.hosts:
            host.start()
        self._until(_FORM_S, lambda: all(map(_is_settled, self.hosts)), "forming", self._describe)
        subscribers = self.subscribers
        self._until(_SUBSCRIBE_S, lambda: all(s.is_subscribed for s in subscribers), "subscribing", str)
        for publisher in self.publishers:
            publisher.may_publish = True
        self.nemesis.start(_GAP_S)
        self._until(self._fault_s, None, "", str)
        self.nemesis.stop()
        self.heal()
        for client in self.clients:
            client.is_wandering = False
        self._until(_HEAL_S, lambda: all(p.is_done for p in self.publishers), "publishing", self._describe)
        self._until(_HEAL_S, self._is_received, "delivery", self._describe_missing)
        self._settle()
        if self.is_power_lost_at_end:
            self.note("all", "power loss of everything")
            for host in self.hosts:
                host.crash(is_power_loss=True)
            self.heal()
            self._until(_HEAL_S, lambda: all(host.is_up for host in self.hosts), "starting", self._describe)
            self._settle()

    def _form_under_faults(self) -> None:
        """Nodes come one after the other, and fall while they join."""
        rng = self.chance("forming")
        for host in self.hosts:
            self.clock.after(rng.randint(0, self._forming_fault_s * US_PER_S), host.start)
        self.nemesis.start(_FORMING_GAP_S)
        self._until(self._forming_fault_s, None, "", str)
        self.nemesis.stop()
        self.heal()

    def end(self) -> None:
        for loop in self._loops:
            loop.bury()

    def heal(self) -> None:
        self.note("all", "everything heals")
        self.sockets.heal()
        for host in self.hosts:
            host.disk.cut_power_at(None)
            host.slow_disk = 1
            if host.loop is not None and host.loop.is_paused:
                host.loop.resume()
            host.start()

    def _settle(self) -> None:
        self._until(_IDLE_S, None, "", str)
        self._until(
            _SETTLE_S, lambda: not check_groups(self.hosts), "groups", lambda: check_groups(self.hosts)
        )
        check_logs(self.history, self.hosts)
        for subscriber in self.durable:
            check_received(self.history, subscriber.name, subscriber.filter, subscriber.qos)

    @property
    def durable(self) -> list[Subscriber]:
        return [s for s in self.subscribers if s.name in self.history.received]

    def _is_received(self) -> bool:
        return not any(missing(self.history, s.name, s.filter) for s in self.durable)

    def _describe_missing(self) -> str:
        """Who lacks what; raises the Violation that explains it, where there is one."""
        check_logs(self.history, self.hosts)
        for subscriber in self.durable:
            check_once_and_in_order(self.history, subscriber.name, subscriber.qos)
        return "; ".join(
            f"{s.name} ({s.protocol.state.value}) lacks {len(found)}, first {found[0].decode()}"
            for s in self.durable
            if (found := missing(self.history, s.name, s.filter))
        )

    def _describe(self) -> str:
        hosts = [f"{host.name} {'serves' if host.is_up else 'does not serve'}" for host in self.hosts]
        publishers = [f"{p.name}: {p.describe()}" for p in self.publishers if not p.is_done]
        return ", ".join([*hosts, *publishers, check_groups(self.hosts)])

    def _until(
        self, seconds: int, done: Callable[[], bool] | None, what: str, describe: Callable[[], str]
    ) -> None:
        """Let time pass until `done`; after so many seconds it is a violation."""
        end_us = self.clock.now_us + seconds * US_PER_S
        while self.clock.now_us < end_us:
            step_us = min(end_us, self.clock.now_us + US_PER_S // 20)
            self.clock.run(step_us, lambda: self._violation is not None)
            if self._violation is not None:
                raise self._violation
            if done is not None and done():
                return
        if done is not None:
            raise Violation("progress", f"{what} did not end within {seconds} s: {describe()}")


def _is_settled(host: Host) -> bool:
    if host.loop is None or host.server is None or not host.is_up:
        return False
    return bool(host.loop.inside(host.server.streams.cluster.status)["is_settled"])


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}" if trace else ""


class _LogLines(logging.Handler):
    """What the nodes write to their logs becomes part of the trace."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        address = loop.address if isinstance(loop, SimLoop) else "?"
        self._world.note(address.removeprefix("10.0."), f"{record.levelname}: {record.getMessage()}")


def run_cluster_seed(
    seed: int, trace: Trace | None = None, *, sync: Literal["always", "never"] = "always"
) -> RunResult:
    """One whole run."""
    world = ClusterWorld(seed, trace, sync)
    logger = logging.getLogger("millrace")
    before = (logger.handlers, logger.propagate, logger.level)
    logger.handlers, logger.propagate = [_LogLines(world)], False
    logger.setLevel(logging.INFO if trace is not None else logging.CRITICAL + 1)
    # A collector would run what dead tasks left behind at moments that no seed decides.
    had_collector = gc.isenabled()
    gc.disable()
    found: Violation | None = None
    try:
        world.run()
    except Violation as violation:
        found = violation
        world.note("all", f"VIOLATION {violation}")
    finally:
        world.end()
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])
        if had_collector:
            gc.enable()
    return RunResult(
        seed=seed,
        operations=len(world.history.acknowledged()),
        reads=sum(map(len, world.history.received.values())),
        entries=len(world.history.sent),
        faults=world.nemesis.faults,
        messages=world.sockets.delivered,
        leaders=0,
        simulated_s=world.clock.now_us / US_PER_S,
        rule=found.rule if found is not None else None,
        detail=found.detail if found is not None else "",
        trace_hash=trace.hexdigest() if trace is not None else "",
        tail=tuple(trace.tail) if trace is not None else (),
    )
