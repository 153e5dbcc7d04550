"""One durable QoS 1 publish after the other, from the read of its packet to its PUBACK: what each step takes.

The nodes are real processes at their defaults, first one alone and then three. They run twice: once to take
the time of the steps, and once to count calls. Nobody subscribes. One client publishes and waits for each
answer, at the node that leads the log.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from millrace.errors import LocalError
from millrace.lab.bench import clusters, peers
from millrace.lab.bench.trace.steps import STEPS, Found
from millrace.types import Message, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect, Publish

CASES = ("alone", "three nodes")
_NODES = ("takes it", "followers")
_WARM_UP = 100
_PAYLOAD = bytes(256)
_VERSION = Version.MQTT_3_1_1
_ANSWER_S_MAX = 10.0
_PLAIN = ["-m", "millrace.cli.main"]
_TICKS_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Of one message at one node; for followers the mean of both."""

    case: str
    node: str
    step: str
    function: str
    times: float
    us: float
    calls: float
    builtins: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Of one message in one case: what its client waits, and the CPU of all nodes, from a run that is not
    traced."""

    case: str
    p50_us: float
    cpu_us: float


def measure(case: str, kernels: str, messages: int) -> tuple[list[Step], Whole]:
    with _running(case, kernels, None) as (running, _):
        before_s = _cpu_s(running.pids())
        waits_us = _publish(running.port, messages, lambda: None)
        # The warm-up included, as it is in the time.
        cpu_us = (_cpu_s(running.pids()) - before_s) * 1e6 / (messages + _WARM_UP)
    timed, counted = (_traced(case, kernels, kind, messages) for kind in ("time", "calls"))
    steps = []
    for node, (times, counts) in zip(
        ("takes it", "followers"), zip(timed, counted, strict=True), strict=False
    ):
        steps += _steps(case, node, times, counts, messages)
    return steps, Whole(case=case, p50_us=median(waits_us), cpu_us=cpu_us)


def _traced(case: str, kernels: str, kind: str, messages: int) -> list[list[Found]]:
    """What the node found that takes the messages, and what the others found."""
    with _running(case, kernels, kind) as (running, directory):
        pids = [running.process.pid, *(other.pid for other in running.others)]

        def tell(number: int) -> None:
            for pid in pids:
                os.kill(pid, number)

        _publish(running.port, messages, lambda: tell(signal.SIGUSR1))
        tell(signal.SIGUSR2)
        found = [_read(directory / f"{pid}.json") for pid in pids]
        return [found[:1], found[1:]] if found[1:] else [found]


def _read(file: Path) -> Found:
    deadline_s = time.monotonic() + _ANSWER_S_MAX
    while not file.exists():
        if time.monotonic() > deadline_s:
            raise LocalError("a node did not tell what it found")
        time.sleep(0.01)
    found: Found = json.loads(file.read_text())
    return found


def _steps(case: str, node: str, timed: list[Found], counted: list[Found], messages: int) -> list[Step]:
    made = []
    for step, module, name in STEPS:
        times = [found[step] for found in timed if step in found]
        counts = [found[step] for found in counted if step in found]
        if not times or not counts:
            continue
        share = messages * len(timed)
        often = sum(one["times"] for one in times) / share
        if often < 0.05:
            # A timer's, not the message's.
            continue
        made.append(
            Step(
                case=case,
                node=node,
                step=step,
                function=f"{module.rpartition('.')[2]}.{name}",
                times=often,
                us=sum(one["times"] * one["us"] for one in times) / share,
                calls=sum(one["calls"] for one in counts) / share,
                builtins=sum(one["builtins"] for one in counts) / share,
            )
        )
    return made


@contextmanager
def _running(case: str, kernels: str, kind: str | None) -> Iterator[tuple[peers.Running, Path]]:
    """The nodes, with the directory to which they write what they find."""
    with tempfile.TemporaryDirectory(prefix="millrace-trace-") as name:
        program = _PLAIN if kind is None else ["-m", "millrace.lab.bench.trace.node", kind, name]
        if case == CASES[1]:
            with clusters.running(clusters.this_cluster(kernels, program)) as running:
                yield running, Path(name)
            return
        ours = peers.this_broker(kernels)
        plain = ours.command

        def command(ports: peers.Ports, data: Path) -> list[str]:
            return [sys.executable, *program, *plain(ports, data)[1 + len(_PLAIN) :]]

        with peers.running(replace(ours, command=command), durable=True) as running:
            yield running, Path(name)


def _publish(port: int, messages: int, begin: Callable[[], None]) -> list[float]:
    """Publish one at a time; the times to each PUBACK. `begin` is called after the warm-up."""
    waits_us = []
    with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S_MAX) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(encode(Connect(version=_VERSION, client_id="trace"), _VERSION))
        _answer(client, 0x20)
        message = Message(topic="bench/0", payload=_PAYLOAD, qos=1)
        packet = encode(Publish(message=message, packet_id=1), _VERSION)
        for number in range(_WARM_UP + messages):
            if number == _WARM_UP:
                begin()
            began_s = time.perf_counter()
            client.sendall(packet)
            _answer(client, 0x40)
            if number >= _WARM_UP:
                waits_us.append((time.perf_counter() - began_s) * 1e6)
    return waits_us


def _answer(client: socket.socket, kind: int) -> None:
    data = client.recv(4096)
    if not data or data[0] != kind:
        raise LocalError(f"the node answered {data[:8].hex() or 'nothing'}")


def _cpu_s(pids: Sequence[int]) -> float:
    fields = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(one[11]) + int(one[12]) for one in fields) * _TICKS_S


def rows(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """With a line of sums below each node."""
    made: list[dict[str, Any]] = []
    for case, node in dict.fromkeys((step.case, step.node) for step in steps):
        chosen = [step for step in steps if (step.case, step.node) == (case, node)]
        made += [_row(step.step, step.function, (step,), step) for step in chosen]
        made.append(_row("all", "", chosen, chosen[0]))
    return made


def _row(name: str, function: str, steps: Sequence[Step], of: Step) -> dict[str, Any]:
    return {
        "nodes": of.case,
        "node": of.node,
        "step": name,
        "function": function,
        "times": f"{of.times:.1f}" if function else "",
        "us": f"{sum(step.us for step in steps):.1f}",
        "calls": f"{sum(step.calls for step in steps):.0f}",
        "built-in": f"{sum(step.builtins for step in steps):.0f}",
    }
