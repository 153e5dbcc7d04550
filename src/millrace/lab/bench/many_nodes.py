"""`python -m millrace.lab.bench.many_nodes`: what clusters of many nodes cost each node, by the real machine.

A node of a routed cluster is one real machine (`replication/routed`). The other nodes are real machines too,
made one after the other: each has its share of the subscriptions, tells them to the first over a link of
memory, and is gone. What went over the link is counted as the bytes of its frames. Nothing here waits, or has
sockets.

It shows what grows with the number of nodes and of subscriptions: memory for what others want, the bytes of a
join, the traffic of an idle cluster, and the time to find out who wants a topic that is new.
"""

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from millrace.node.peers.registry import encode
from millrace.replication.contract import LinkOpened, PeerMessage, ReplicaId, Send, Tick
from millrace.replication.routed.machine import Noted, Routed

NODES = (10, 50, 100)
_TICKS_A_SECOND = 20
_IDLE_S = 10
_OPENING_TICKS_MAX = 200
_NOTED_AT_ONCE = 1_000
_TOPICS = 2_000
_HERE = ReplicaId("here")


def _resident_bytes() -> int:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class _NothingRetained:
    def value(self, topic: str) -> bytes | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    nodes: int
    subscriptions: int
    """In the whole cluster."""
    memory_mib: float
    """At one node, for what all others want."""
    join_mib: float
    """To a node that comes, from all others."""
    join_cpu_s: float
    """At the node that comes, to learn what all others want."""
    idle_bytes_a_second: float
    """From one node to all others, while nothing happens."""
    new_topic_us: float
    """To find out which nodes want a topic that nobody published to before."""


class _Pair:
    """Two machines and the link between them."""

    def __init__(self, first: Routed, second: tuple[ReplicaId, Routed]) -> None:
        self._machines = {_HERE: first, second[0]: second[1]}
        self._names = (_HERE, second[0])
        self.bytes_to_first = 0
        self.bytes_to_second = 0
        self.first_cpu_s = 0.0

    def step(self, name: ReplicaId, event: Any) -> None:
        """One event, and all that follows from it."""
        waiting = [(name, event)]
        while waiting:
            at, what = waiting.pop(0)
            begun_s = time.process_time()
            effects = self._machines[at].step(what)
            if at == _HERE:
                self.first_cpu_s += time.process_time() - begun_s
            for effect in effects:
                if isinstance(effect, Send) and effect.to in self._machines:
                    size = len(encode(effect.body))
                    if effect.to == _HERE:
                        self.bytes_to_first += size
                    else:
                        self.bytes_to_second += size
                    waiting.append((effect.to, PeerMessage(sender=at, body=effect.body)))

    def open(self) -> None:
        """Until the first knows all that the second wants: what one asks before the other's link is open is
        asked again."""
        self.step(self._names[0], LinkOpened(peer=self._names[1]))
        self.step(self._names[1], LinkOpened(peer=self._names[0]))
        here = self._machines[_HERE]
        for _ in range(_OPENING_TICKS_MAX):
            if here.known_of(self._names[1]) is not None:
                return
            self.tick()
        raise AssertionError(f"{self._names[1]} is not known")

    def tick(self) -> None:
        for name in self._names:
            self.step(name, Tick())


def _machine(name: ReplicaId, seed: int) -> Routed:
    return Routed(name, rng=Random(seed), view=_NothingRetained())


def _filters(node: int, count: int) -> Iterator[str]:
    """One filter for each device of that node, as a device asks for its own commands."""
    return (f"site/{node}/device/{number}/commands/#" for number in range(count))


def _note(machine: Routed, filters: Iterator[str]) -> None:
    rows = [(filter, True) for filter in filters]
    for first in range(0, len(rows), _NOTED_AT_ONCE):
        machine.step(Noted(changes=tuple(rows[first : first + _NOTED_AT_ONCE])))


def measure(nodes: int, subscriptions: int) -> Row:
    """A node among so many that have so many subscriptions in all."""
    share = subscriptions // nodes
    here = _machine(_HERE, 0)
    _note(here, _filters(0, share))
    gc.collect()
    before_bytes = _resident_bytes()
    join_bytes, join_cpu_s, idle_bytes = 0, 0.0, 0
    for number in range(1, nodes):
        name = ReplicaId(f"node-{number}")
        other = _machine(name, number)
        _note(other, _filters(number, share))
        pair = _Pair(here, (name, other))
        pair.open()
        join_bytes += pair.bytes_to_first
        join_cpu_s += pair.first_cpu_s
        if number == 1:
            idle_bytes = _idle(pair)
        del other, pair
    gc.collect()
    memory = _resident_bytes() - before_bytes
    return Row(
        nodes=nodes,
        subscriptions=subscriptions,
        memory_mib=round(memory / 2**20, 1),
        join_mib=round(join_bytes / 2**20, 2),
        join_cpu_s=round(join_cpu_s, 2),
        idle_bytes_a_second=round(idle_bytes / _IDLE_S * (nodes - 1)),
        new_topic_us=round(_lookup_us(here, nodes, share), 1),
    )


def _idle(pair: _Pair) -> int:
    before = pair.bytes_to_second
    for _ in range(_IDLE_S * _TICKS_A_SECOND):
        pair.tick()
    return pair.bytes_to_second - before


def _lookup_us(here: Routed, nodes: int, share: int) -> float:
    random = Random(1)
    topics = [
        f"site/{random.randrange(1, nodes)}/device/{random.randrange(share)}/commands/go"
        for _ in range(_TOPICS)
    ]
    begun_s = time.process_time()
    found = sum(len(here.wanted_by(topic)[0]) for topic in topics)
    taken_s = time.process_time() - begun_s
    assert found == _TOPICS, "each topic is wanted by one node"
    return taken_s / _TOPICS * 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m millrace.lab.bench.many_nodes", description=__doc__)
    parser.add_argument("--subscriptions", type=int, default=1_000_000, help="in the whole cluster")
    parser.add_argument("--nodes", type=int, nargs="*", default=list(NODES))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    # A process for each row: memory that was freed would hide what the next one takes.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        rows = list(processes.map(measure, given.nodes, [given.subscriptions] * len(given.nodes)))
    if given.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        return 0
    names = list(asdict(rows[0]))
    sys.stdout.write("  ".join(names) + "\n")
    for row in rows:
        values = asdict(row)
        sys.stdout.write("  ".join(f"{values[name]:>{len(name)}}" for name in names) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
