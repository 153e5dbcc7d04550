"""Leaderless streams seen from a group made by command: who may take what, and how much is left.

Such a group has a cursor in every shard, from which HTTP takes in one order. A leaderless stream has a log
for each node and no order between them, so its part of the group is shared out among MQTT members instead
(see `leaderless_groups`). Whoever asks for it in the other way is told so, instead of "nothing there".
"""

from collections.abc import Iterator
from typing import Any

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.streams.stream import Replication, Stream, StreamTable
from millrace.broker.topics.filters import covers
from millrace.errors import LocalError
from millrace.node.groups.leaderless_groups import COMMAND_PREFIX
from millrace.node.leaderless.streams import LeaderlessStreams


class OrderNeeded(LocalError):
    """The messages are in a stream without an order to take from."""

    def __init__(self, spec: DurableGroupSpec, stream: str) -> None:
        what = f"the queue of {spec.filters[0]!r}" if spec.is_queue else f"group {spec.name!r}"
        name = "NAME" if spec.is_queue else spec.name
        super().__init__(
            f"{what} lies in stream {stream!r}, which is leaderless and has no single order to take from."
            f" Subscribe by MQTT to $share/{name}/{spec.filters[0]}, or:"
            f" millrace stream alter {stream} --replication quorum"
        )


def check_order(table: StreamTable, spec: DurableGroupSpec) -> None:
    """Raise `OrderNeeded` where every message of these filters goes to a leaderless stream."""
    found = [_leaderless_over(table, filter) for filter in spec.filters]
    if found[0] is not None and None not in found:
        raise OrderNeeded(spec, found[0].spec.name)


def _leaderless_over(table: StreamTable, filter: str) -> Stream | None:
    """The leaderless stream that takes what this filter names, unless another may take some of it."""
    if "+" not in filter and "#" not in filter:
        stream = table.find(filter)
        return stream if stream is not None and _is_leaderless(stream) else None
    over: Stream | None = None
    for stream in table.streams.values():
        if not _is_leaderless(stream):
            if any(covers(filter, own) for own in stream.spec.filters):
                return None
        elif any(covers(own, filter) for own in stream.spec.filters):
            over = stream
    return over


def _is_leaderless(stream: Stream) -> bool:
    return stream.spec.replication is Replication.LEADERLESS


def shares(leaderless: LeaderlessStreams, table: StreamTable, name: str) -> Iterator[dict[str, Any]]:
    """What a group has to do in each leaderless stream, as far as this node knows."""
    for stream in table.streams.values():
        row = leaderless.groups(stream).get(COMMAND_PREFIX + name)
        if row is not None:
            yield {"stream": stream.spec.name, "lag": row["lag"], "deliver": row["deliver"]}
