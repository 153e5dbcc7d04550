"""Shared groups at one shard of this node: what this node says there, what it owes, and its backlog.

Until the entry that begins this run is applied in a shard (`is_begun`), nothing of a group is delivered from
it: what an earlier run had given out is not known here, and that entry hands it out again.

A group is here while a session of it is. The log learns a little later that the last one left, or that none
came back with a new run; what is committed or given back in between is known to nobody here. So an account is
that of one group in memory (`is_kept`): when another has come in its place, nothing is told for it, and the
node gives up what it owes before it takes part again.
"""

import logging
from collections import deque
from collections.abc import Sequence

from millrace.broker.entries.shard import BeginWork, Introduce, Members, Progress, WorkDone
from millrace.broker.groups.group_work import GroupWork
from millrace.broker.groups.share_group import ShareGroup
from millrace.broker.groups.work_division import Counts, Holders, News, Range, WorkDivision
from millrace.broker.machine import Broker
from millrace.broker.shards.shard_state import WorkChanged
from millrace.node.shards.shard_log import ShardLog
from millrace.node.shards.tokens import Token

log = logging.getLogger("millrace.work")

# Ranges in one word on how far a node is; more are told coarsely, which repeats more after a crash.
_RANGES_TOLD_MAX = 500


class _Beginning(Token):
    """Of the entry that begins this run of the node in a shard."""

    def __init__(self, work: "ShardWorkDivision") -> None:
        self._work = work

    def lost(self) -> None:
        self._work.beginning = None


class _Introduction(Token):
    """Of the entry that names the groups of older logs."""

    def __init__(self, work: "ShardWorkDivision") -> None:
        self._work = work

    def lost(self) -> None:
        self._work.is_introduced = False


class ShardWorkDivision:
    """The shared groups of one shard at this node."""

    def __init__(self, shard: ShardLog, broker: Broker) -> None:
        self._shard = shard
        self._broker = broker
        self.pending = GroupWork(shard.state)
        self.beginning: Token | None = None
        """Of the entry that begins this run here, while it is under way."""
        self.is_introduced = False
        """The log was told of the groups that other logs know."""
        self.proposed: dict[str, Counts] = {}
        """What this node proposed about its members and has not seen applied."""
        self._told: dict[str, Progress] = {}
        self._kept_by: dict[str, ShareGroup | None] = {}
        """The group in memory that knows all that this node owes in the log, None where there was none."""

    @property
    def is_begun(self) -> bool:
        return self.pending.is_begun

    @property
    def backlog(self) -> dict[str, deque[Range]]:
        return self.pending.backlog

    @property
    def _work_division(self) -> WorkDivision:
        return self._shard.state.work_division

    # ------------------------------------------------------------------------------------- entries

    def begin(self) -> None:
        if self.beginning is None:
            token = _Beginning(self)
            if self._shard.propose_entries([BeginWork(self._broker.node)], token):
                self.beginning = token

    def introduce(self) -> None:
        """Called before messages are proposed from here: name the groups that other logs know and this one
        does not. Entries of one node keep their order, so the groups are there before its messages; a group
        that is made later is not acknowledged before this log knows it."""
        if self.is_introduced:
            return
        work_division = self._work_division
        found: dict[str, Holders] = {}
        for _, other in sorted(self._shard.others.items()):
            for group in other.work_division.groups():
                if not work_division.knows(group):
                    found.setdefault(group, {}).update(other.work_division.holders(group))
        entry = Introduce(sorted(found.items()))
        self.is_introduced = not found or self._shard.propose_entries([entry], _Introduction(self))

    def applied(self, effect: WorkChanged, token: Token | None) -> None:
        if effect.begins and token is not None and token is self.beginning:
            self.pending.is_begun = True
            self.beginning = None
            for news in effect.news:
                self._open(news.group)
        for news in effect.news:
            if self._broker.node in news.joined:
                self._open(news.group)
        self._apply_changes(effect.news)
        for news in effect.news:
            if not self._work_division.knows(news.group):
                self._forget(news.group)

    def _forget(self, group: str) -> None:
        """The log does not know it any more: what was said about it is settled."""
        self.proposed.pop(group, None)
        self._told.pop(group, None)
        self._kept_by.pop(group, None)

    def _open(self, group: str) -> None:
        """What this node owes of a group begins anew, with the members that are here now."""
        if self._work_division.mark(group, self._broker.node) is None:
            self._kept_by.pop(group, None)
        else:
            self._kept_by[group] = self._broker.groups.get(group)

    def is_kept(self, group: str) -> bool:
        """Whether the group that is here has been here for all that this node owes."""
        here = self._broker.groups.get(group)
        return here is not None and self._kept_by.get(group) is here

    def _apply_changes(self, all_news: Sequence[News]) -> None:
        if not self.is_begun:
            return
        node = self._broker.node
        for news in all_news:
            if node in news.released:
                self.backlog.pop(news.group, None)
                group = self._broker.groups.get(news.group)
                if group is not None:
                    group.forget(self._shard.number)
                self._open(news.group)
            granted = news.granted.get(node)
            if granted:
                count = sum(end - first for first, end, _ in granted)
                number = self._shard.number
                log.info("shard %d: %s has up to %d messages to give again", number, news.group, count)
                self.backlog.setdefault(news.group, deque()).extend(granted)

    def lost(self) -> None:
        """Something that was proposed here may not have got there: say it again."""
        self.proposed.clear()
        self._told.clear()

    def restored(self) -> None:
        """The state came from a snapshot: what passed meanwhile was not delivered from here."""
        self.pending.is_begun, self.beginning = False, None
        self.backlog.clear()
        self.lost()

    def progress(self, open_pieces: dict[str, list[tuple[int, int]]]) -> list[Progress]:
        """How far the groups are here, where that changed since it was told."""
        node, work_division, position = self._broker.node, self._work_division, self._shard.next_offset
        rows = []
        for group in work_division.groups():
            mark = work_division.mark(group, node)
            if mark is None or not self.is_kept(group):
                continue
            ranges = work_division.ranges(group, open_pieces.get(group, ()), node)
            owed = _coarse([*ranges, *self.backlog.get(group, ())])
            row = Progress(group, mark.version, position, owed)
            if (mark.position, mark.owed) != (position, owed) and self._told.get(group) != row:
                rows.append(row)
        return rows

    def tell(self, members: Sequence[Members], progress: Sequence[Progress]) -> None:
        """Propose in one block what this node knows of members and of its progress [rule 13]."""
        entries: list[Members | WorkDone] = [*members]
        if progress:
            entries.append(WorkDone(self._broker.node, list(progress)))
        if entries and self._shard.propose_entries(entries):
            own = [one for one in members if one.node == self._broker.node]
            self.proposed.update((one.group, (one.connected, one.holds)) for one in own)
            self._told.update((row.group, row) for row in progress)


def _coarse(ranges: list[Range]) -> list[Range]:
    """No more than the bound, by joining neighbours."""
    while len(ranges) > _RANGES_TOLD_MAX:
        by_node: dict[str, list[Range]] = {}
        for one in sorted(ranges):
            by_node.setdefault(one[2], []).append(one)
        ranges = []
        for by, rows in by_node.items():
            for at in range(0, len(rows), 2):
                pair = rows[at : at + 2]
                ranges.append((pair[0][0], max(end for _, end, _ in pair), by))
        if len(by_node) >= _RANGES_TOLD_MAX:
            break
    return ranges
