"""Single faults of a running cluster, each of which begins and ends: what chance or a list may choose."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from millrace.errors import LocalError
from millrace.lab.campaign.disks.node import gate
from millrace.lab.campaign.networks import Networks
from millrace.lab.campaign.partitions import cut
from millrace.lab.campaign.stage import Stage
from millrace.local_cluster import NodeProcess

_STARTS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one node, or of links around it."""

    kind: str
    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]
    """Safe to call where the fault is over already."""
    hit: frozenset[str] = field(default_factory=frozenset)
    """The nodes whose clients may wait; those of all others must not."""


def kinds(networks: Networks | None) -> tuple[str, ...]:
    """What can be done here."""
    cuts = ("symmetric", "leader-mute", "leader-deaf", "bridge", "follower")
    return ("kill", "stop", "stall", *(cuts if networks is not None else ()))


async def start_again(node: NodeProcess) -> None:
    """Start a node whose start others may interrupt by killing it again."""
    for left in reversed(range(_STARTS_MAX)):
        try:
            await node.start()
        except LocalError:
            if not left:
                raise
        else:
            return


def make_fault(kind: str, stage: Stage, victim: NodeProcess, networks: Networks | None) -> Fault:
    """A fault of this kind around this node."""
    hit = frozenset((victim.name,))
    match kind:
        case "kill":
            return Fault(kind=kind, begin=victim.kill, end=lambda: _started(victim), hit=hit)
        case "stop":
            return Fault(
                kind=kind,
                begin=lambda: _signalled(victim, signal.SIGSTOP),
                end=lambda: _signalled(victim, signal.SIGCONT),
                hit=hit,
            )
        case "stall":
            return Fault(
                kind=kind, begin=lambda: _gate(victim, True), end=lambda: _gate(victim, False), hit=hit
            )
    assert networks is not None
    return _cut(kind, stage, victim, networks)


async def _started(node: NodeProcess) -> None:
    if not node.is_running:
        await start_again(node)


async def _signalled(node: NodeProcess, number: signal.Signals) -> None:
    node.signal(number)


async def _gate(node: NodeProcess, is_shut: bool) -> None:
    path = gate(node.data)
    if is_shut:
        path.touch()
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def _cut(kind: str, stage: Stage, victim: NodeProcess, networks: Networks) -> Fault:
    others = [node.number for node in stage.nodes if node is not victim]
    pairs = cut(kind, victim.number, others)
    hit = {"bridge": frozenset[str](), "follower": frozenset((stage.nodes[others[0]].name,))}

    async def begin() -> None:
        for sender, receiver in pairs:
            await asyncio.to_thread(networks.drop, sender, receiver)

    async def end() -> None:
        await asyncio.to_thread(networks.heal)

    return Fault(kind=kind, begin=begin, end=end, hit=hit.get(kind, frozenset((victim.name,))))
