"""What one turn of the loop relays to other nodes, in as few messages as keep its order.

Devices send one message at a time, each on its own connection: the runs of a turn are then many and short,
and a message between nodes costs more than what is in it. So neighbours of one form go together. A run for a
shared subscription stays alone, because its whole message goes to one member.
"""

from collections.abc import Iterable, Iterator

from millrace.broker.messages.inbound import Relay
from millrace.broker.messages.message import Run
from millrace.node.peers.messages import RelayedRun

# Runs that are longer leave as they are: to copy them costs more than a message of their own.
_JOINED_RUN_BYTES = 16 * 1024
_JOINED_BYTES = 128 * 1024


class _Gathered:
    """Neighbours of one form for one node."""

    __slots__ = ("runs", "size_bytes")

    def __init__(self, run: Run) -> None:
        self.runs = [run]
        self.size_bytes = len(run.data)

    def has_room(self, run: Run) -> bool:
        first, size_bytes = self.runs[0], len(run.data)
        return (
            first.qos == run.qos
            and first.v5 == run.v5
            and first.retain == run.retain
            and size_bytes <= _JOINED_RUN_BYTES
            and len(first.data) <= _JOINED_RUN_BYTES
            and self.size_bytes + size_bytes <= _JOINED_BYTES
        )

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self.size_bytes += len(run.data)


def joined_runs(relays: Iterable[Relay]) -> Iterator[tuple[str, RelayedRun, int]]:
    """To whom, what, and how many messages it has; in order for each node. Nodes that get the same runs get
    the same object, so that it is encoded once."""
    gathered: dict[str, _Gathered] = {}
    last: tuple[list[Run], RelayedRun] | None = None
    for peer, run, group in relays:
        found = gathered.get(peer)
        if found is not None and not group and found.has_room(run):
            found.add(run)
            continue
        if found is not None:
            last = _joined(gathered.pop(peer).runs, last)
            yield peer, last[1], _count(last[0])
        if group:
            yield peer, RelayedRun(run.qos, run.v5, run.retain, group, run.data), run.count
        else:
            gathered[peer] = _Gathered(run)
    for peer, found in gathered.items():
        last = _joined(found.runs, last)
        yield peer, last[1], _count(last[0])


def _joined(runs: list[Run], last: tuple[list[Run], RelayedRun] | None) -> tuple[list[Run], RelayedRun]:
    if last is not None and last[0] == runs:
        return last
    first = runs[0]
    packets = first.data if len(runs) == 1 else b"".join([run.data for run in runs])
    return runs, RelayedRun(first.qos, first.v5, first.retain, "", packets)


def _count(runs: list[Run]) -> int:
    return sum([run.count for run in runs])
