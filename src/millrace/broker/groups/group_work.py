"""What this node has to deliver of one log to the members of shared groups.

`WorkDivision` is the replicated part: whose turn each message of the log is. Here is what only this node
knows: whether it takes part already (`is_begun`), and its backlog, the ranges of the log that are its own to
deliver and were not. While a group has a backlog, what is committed joins its end, so that order holds.
"""

from collections import deque
from typing import Protocol

from millrace.broker.groups.work_division import Range
from millrace.broker.shards.shard_state import ShardState

_BACKLOG_RANGES_MAX = 10_000


class GroupWork:
    """The shared groups of one log at this node."""

    __slots__ = ("_state", "backlog", "is_begun")

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.is_begun = False
        """The entry that begins this run of the node is applied: before that nothing of a group is delivered,
        as it is not known what an earlier run had given out."""
        self.backlog: dict[str, deque[Range]] = {}

    def turns(self, group: str, node: str, first: int, end: int) -> list[tuple[int, int]]:
        """Which of these offsets `node` gives to its members of the group, as spans (first, end)."""
        spans = self._state.work_division.turns(group, node, first, end)
        if spans is None:
            # Where nobody has spoken of the group yet, those who have members deliver.
            return [(first, end)]
        return spans if self.is_begun else []

    def put_off(self, group: str, node: str, first: int, end: int) -> None:
        """Members cannot take these now, or others wait before them: only where they stand is kept."""
        work_division = self._state.work_division
        backlog = self.backlog.setdefault(group, deque())
        ((first, end, by),) = work_division.ranges(group, [(first, end)], node)
        at = len(backlog) - 1
        is_full = len(backlog) >= _BACKLOG_RANGES_MAX
        if is_full:
            # Joined all the same, but never to turns of another node: it would be passed over there.
            while at >= 0 and backlog[at][2] != by:
                at -= 1
        if at >= 0 and backlog[at][2] == by:
            low, high, _ = backlog[at]
            if is_full or len(work_division.ranges(group, [(high - 1, high), (first, end)], node)) == 1:
                backlog[at] = (min(low, first), max(high, end), by)
                return
        backlog.append((first, end, by))


class GroupWorkTable(Protocol):
    """The open logs of a node, as `Outbound` asks for them."""

    @property
    def node(self) -> str:
        """The name of this node in the division of work."""
        ...

    def find(self, shard: int) -> GroupWork | None:
        """None where the log of this shard is not open here."""
        ...
