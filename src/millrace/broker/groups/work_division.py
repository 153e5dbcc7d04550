"""Division of work: which node gives a message of a shared group to one of its members, and what it owes.

A part of each shard's replicated state [rule 13]. An entry says how many members of a group are
connected at a node; it governs the offsets from its own position on, and as every node applies the same
entries before the same messages, all come to the same answer for every offset without asking each other.
Nodes take turns in proportion to their members. While nobody is connected anywhere, one node that holds the
group for an absent member keeps what comes.

What a node had to deliver stays its own until an entry releases it. Each node tells now and then how far it
is (`done`): everything of its turns below a position is acknowledged, but for the ranges it names. When a
node has no member any more, is declared gone, or begins a new run, what it owed goes to those who have
members; so a crash repeats what was not acknowledged, and what was acknowledged since the node last told.
Where nobody holds the group then, all of that waits for whoever takes it over, and so does what comes
meanwhile. It waits as long as some session has the group in its record, however late that session is back.
Where none has, and nobody takes the group over within a minute, the next word of a node without members ends
it.

A log that is newer than a group begins with who holds the group in the others (`inherit`): its first messages
may come before any node has spoken there, and would be nobody's.

A range is (first, end, by): the offsets of `by`'s turns in it. The turns of the past are kept as *eras* as
long as some range reaches back to them.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from millrace.broker.freezing import Frozen

Counts = tuple[int, bool]
"""Members connected at a node, and whether a session there holds the group at all."""
Range = tuple[int, int, str]
"""First offset, the one after the last, and whose turns are meant."""
Holders = dict[str, Counts]
"""Node -> what it has of a group."""
_GONE: Counts = (0, False)

# Beyond so many the oldest are forgotten, and its offsets count as anybody's: repeated rather than lost.
_ERAS_MAX = 1_000
# How long what a lost node owed waits for somebody to take the group over, where no session has it in its
# record. This is by the time of the log, which leaps with a leader that started with a wrong clock, and
# while the whole cluster is down.
_ORPHANED_US_MAX = 60_000_000
# A range at least this long is split among those who take it over.
_SPLIT_OFFSETS_MIN = 64
# Looking for the next turn of a node gives up after so many offsets.
_STEPS_MAX = 64


@dataclass(slots=True)
class Mark:
    """How far a node is with a group: its turns below `position` are done, but for what is `owed`."""

    position: int
    owed: list[Range] = field(default_factory=list)
    version: int = 0
    """Raised when the state changes this mark: what the node told before it knew is not believed."""


@dataclass(slots=True)
class News:
    """What an entry changed for the nodes of one group."""

    group: str
    released: set[str] = field(default_factory=set)
    """These owe nothing any more."""
    granted: dict[str, list[Range]] = field(default_factory=dict)
    """These owe more than before."""
    joined: set[str] = field(default_factory=set)
    """These take part from now on."""


@dataclass(slots=True)
class _Era:
    start: int
    names: list[str]
    sums: list[int]

    def owner(self, offset: int) -> str:
        return self.names[bisect_right(self.sums, offset % self.sums[-1])]


class _DividedGroup:
    __slots__ = ("eras", "marks", "nodes", "orphaned_us", "orphans")

    def __init__(self) -> None:
        self.nodes: dict[str, Counts] = {}
        self.eras: list[_Era] = []
        self.marks: dict[str, Mark] = {}
        # What nodes owed that are gone, while nobody else holds the group yet. The last range is open: what
        # comes meanwhile belongs to it.
        self.orphans: list[Range] = []
        self.orphaned_us = 0

    def turn(self, offset: int) -> None:
        """The counts changed: from this offset on the turns are others."""
        names = sorted(self.nodes)
        sums = list(accumulate(self.nodes[name][0] for name in names))
        if not sums[-1]:
            names, sums = names[:1], [1]
        if self.eras and self.eras[-1].names == names and self.eras[-1].sums == sums:
            return
        if self.eras and self.eras[-1].start == offset:
            self.eras.pop()
        self.eras.append(_Era(offset, names, sums))

    def natural(self, offset: int) -> str | None:
        """Whose turn an offset was; None where that is forgotten."""
        at = bisect_right(self.eras, offset, key=lambda era: era.start) - 1
        return self.eras[at].owner(offset) if at >= 0 else None

    def receivers(self) -> list[str]:
        """Who takes over: nodes with a member, or else one that holds the group."""
        connected = [name for name in sorted(self.nodes) if self.nodes[name][0]]
        return connected or sorted(self.nodes)[:1]

    def grant(self, ranges: Iterable[Range], news: News) -> None:
        receivers = self.receivers()
        turn = 0
        for first, end, by in ranges:
            parts = len(receivers) if end - first >= _SPLIT_OFFSETS_MIN else 1
            for part in range(parts):
                low = first + (end - first) * part // parts
                high = first + (end - first) * (part + 1) // parts
                name = receivers[turn % len(receivers)]
                turn += 1
                mark = self.marks[name]
                mark.owed.append((low, high, by))
                mark.version += 1
                news.granted.setdefault(name, []).append((low, high, by))

    def surrender(self, node: str, offset: int) -> list[Range]:
        """Everything that the node owes as of `offset`; afterwards it owes nothing."""
        mark = self.marks[node]
        ranges = list(mark.owed)
        if mark.position < offset:
            ranges.append((mark.position, offset, node))
        mark.owed = []
        mark.position = offset
        mark.version += 1
        return ranges

    def adopt(self, offset: int) -> list[Range]:
        """What was left behind, and what came since: the last era is still that of the node that is gone."""
        *ranges, (first, _, by) = self.orphans
        self.orphans = []
        return [*ranges, (first, offset, by)] if first < offset else ranges

    def prune(self) -> None:
        floors = [mark.position for mark in self.marks.values()]
        floors += [first for mark in self.marks.values() for first, _, _ in mark.owed]
        floors += [first for first, _, _ in self.orphans]
        floor = min(floors, default=0)
        while len(self.eras) > 1 and (self.eras[1].start <= floor or len(self.eras) > _ERAS_MAX):
            del self.eras[0]


class WorkDivision:
    __slots__ = ("_groups", "frozen")

    def __init__(self) -> None:
        self._groups: dict[str, _DividedGroup] = {}
        self.frozen: Frozen[str, _DividedGroup] | None = None
        """As long as a snapshot is made of them."""

    # ------------------------------------------------------------------------------------- entries

    def put(
        self,
        group: str,
        node: str,
        connected: int,
        holds: bool,
        *,
        offset: int,
        time_us: int = 0,
        is_gone: bool = False,
        is_held: bool = False,
    ) -> News:
        """What one node has of one group, as of the log position `offset`. `is_gone`: its members are not,
        they are elsewhere or will be: then what it owed waits for whoever takes them over. `is_held`: what
        waits is for this node however long it waited."""
        news = News(group)
        if not (connected or holds) and group not in self._groups:
            return news
        self._keep(group)
        state = self._groups.setdefault(group, _DividedGroup())
        if connected or holds:
            state.nodes[node] = (connected, holds)
            if node not in state.marks:
                state.marks[node] = Mark(offset)
                news.joined.add(node)
        elif state.nodes.pop(node, None) is None:
            if not is_gone and self.is_over(group, time_us):
                del self._groups[group]
            return news
        if not state.nodes:
            self._end(group, state, node, offset, time_us, news, is_gone=is_gone)
            return news
        state.turn(offset)
        self._release(state, offset, news)
        if state.orphans:
            ranges = state.adopt(offset)
            if is_held or time_us - state.orphaned_us <= _ORPHANED_US_MAX:
                state.grant(ranges, news)
        state.prune()
        return news

    def _end(
        self,
        group: str,
        state: _DividedGroup,
        node: str,
        offset: int,
        time_us: int,
        news: News,
        *,
        is_gone: bool,
    ) -> None:
        """Nobody holds the group any more."""
        news.released.add(node)
        if not is_gone:
            del self._groups[group]
            return
        state.orphans = [*state.surrender(node, offset), (offset, offset, node)]
        state.orphaned_us = time_us
        del state.marks[node]

    def _release(self, state: _DividedGroup, offset: int, news: News) -> None:
        is_anybody_there = any(connected for connected, _ in state.nodes.values())
        for name in sorted(state.marks):
            connected = state.nodes[name][0] if name in state.nodes else 0
            if name in state.nodes and (connected or not is_anybody_there):
                continue
            ranges = state.surrender(name, offset)
            if name not in state.nodes:
                del state.marks[name]
            news.released.add(name)
            state.grant(ranges, news)

    def begin(self, node: str, *, offset: int) -> list[News]:
        """A new run of this node: whatever it had given to members is forgotten there, and owed."""
        all_news = []
        # In an order that a snapshot does not change.
        for group in sorted(self._groups):
            state = self._groups[group]
            if node not in state.nodes:
                continue
            self._keep(group)
            news = News(group)
            state.nodes[node] = (0, state.nodes[node][1])
            state.turn(offset)
            self._release(state, offset, news)
            if node not in news.released:
                ranges = state.surrender(node, offset)
                state.marks[node].owed = ranges
                news.granted[node] = list(ranges)
            state.prune()
            all_news.append(news)
        return all_news

    def inherit(self, group: str, holders: Holders, *, offset: int, time_us: int) -> News:
        """What other logs say of a group; nothing new to a log that has heard of it. Where all are gone that
        held it, what comes waits for whoever takes it over."""
        news = News(group)
        if group in self._groups or not holders:
            return news
        state = self._groups[group] = _DividedGroup()
        there = {node: counts for node, counts in holders.items() if counts != _GONE}
        state.nodes = there or {min(holders): _GONE}
        state.turn(offset)
        if there:
            state.marks = {node: Mark(offset) for node in there}
            news.joined.update(there)
        else:
            state.orphans, state.orphaned_us = [(offset, offset, min(holders))], time_us
            state.nodes = {}
        return news

    def done(self, group: str, node: str, version: int, position: int, owed: Iterable[Range]) -> None:
        """A node tells how far it is."""
        state = self._groups.get(group)
        mark = None if state is None else state.marks.get(node)
        if state is None or mark is None or mark.version != version or position < mark.position:
            return
        self._keep(group)
        mark.position = position
        mark.owed = list(owed)
        state.prune()

    def _keep(self, group: str) -> None:
        """Called before the group changes."""
        if self.frozen is not None:
            self.frozen.keep(group)

    # ------------------------------------------------------------------------------------- answers

    def known(self, group: str, node: str) -> Counts:
        state = self._groups.get(group)
        return (0, False) if state is None else state.nodes.get(node, (0, False))

    def knows(self, group: str) -> bool:
        return group in self._groups

    def is_waiting(self, group: str) -> bool:
        """Whether nobody holds the group, and something waits for whoever takes it over."""
        state = self._groups.get(group)
        return state is not None and bool(state.orphans)

    def is_over(self, group: str, time_us: int) -> bool:
        """Whether no node holds the group, nor has taken it over in time."""
        state = self._groups[group]
        return not state.nodes and time_us - state.orphaned_us > _ORPHANED_US_MAX

    def groups(self) -> list[str]:
        return list(self._groups)

    def holders(self, group: str) -> Holders:
        """Who holds it; where nobody does any more, who did."""
        state = self._groups[group]
        return dict(state.nodes) or {by: _GONE for _, _, by in state.orphans[-1:]}

    def nodes(self) -> set[str]:
        """Every node that takes part in some group."""
        return {node for state in self._groups.values() for node in state.nodes}

    def turns(self, group: str, node: str, first: int, end: int) -> list[tuple[int, int]] | None:
        """The offsets of [first, end) that are the node's by the last entry, as spans; None where no entry
        speaks of the group."""
        state = self._groups.get(group)
        if state is None:
            return None
        if not state.nodes:
            return []
        era = state.eras[-1]
        if len(era.names) == 1:
            return [(first, end)] if era.names[0] == node else []
        spans: list[tuple[int, int]] = []
        for offset in range(first, end):
            if era.owner(offset) == node:
                start = spans.pop()[0] if spans and spans[-1][1] == offset else offset
                spans.append((start, offset + 1))
        return spans

    def is_owed(self, group: str, end: int) -> bool:
        """Whether something below `end` is not known to be done, whoever has it to do."""
        state = self._groups.get(group)
        if state is None:
            return False
        if any(first < end for first, _, _ in state.orphans):
            return True
        return any(m.owed or m.position < end for m in state.marks.values())

    def is_of(self, group: str, offset: int, by: str) -> bool:
        """Whether the offset was `by`'s turn, as far as that is remembered."""
        state = self._groups.get(group)
        natural = None if state is None else state.natural(offset)
        return natural is None or natural == by

    def mark(self, group: str, node: str) -> Mark | None:
        state = self._groups.get(group)
        return None if state is None else state.marks.get(node)

    def ranges(self, group: str, pieces: Iterable[tuple[int, int]], node: str) -> list[Range]:
        """Offsets as ranges, joined where no turn of the same node lies between; pieces are (first, end)."""
        state = self._groups.get(group)
        joined: dict[str, list[list[int]]] = {}
        for first, end in sorted(pieces):
            by = (None if state is None else state.natural(first)) or node
            rows = joined.setdefault(by, [])
            if rows and (first <= rows[-1][1] or self._is_next(state, by, rows[-1][1], first)):
                rows[-1][1] = max(rows[-1][1], end)
            else:
                rows.append([first, end])
        return [(first, end, by) for by, rows in sorted(joined.items()) for first, end in rows]

    @staticmethod
    def _is_next(state: _DividedGroup | None, by: str, start: int, offset: int) -> bool:
        if state is None or offset - start > _STEPS_MAX:
            return False
        return all(state.natural(between) != by for between in range(start, offset))

    # ----------------------------------------------------------------------------------- snapshots

    def freeze(self) -> "Frozen[str, _DividedGroup]":
        self.frozen = _FrozenGroups(dict(sorted(self._groups.items())))
        return self.frozen

    @staticmethod
    def restored(saved: Iterable["SavedGroup"]) -> "WorkDivision":
        work_division = WorkDivision()
        work_division.take_in(saved)
        return work_division

    def take_in(self, saved: Iterable["SavedGroup"]) -> None:
        """Those of a snapshot, or some of them."""
        for row in saved:
            state = self._groups[row.group] = _DividedGroup()
            state.nodes = dict(row.nodes)
            state.eras = [_Era(start, list(names), list(sums)) for start, names, sums in row.eras]
            state.orphaned_us, state.orphans = row.orphaned_us, list(row.orphans)
            for node, position, owed, version in row.marks:
                state.marks[node] = Mark(position, list(owed), version)


class SavedGroup(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A group in a snapshot."""

    group: str
    nodes: list[tuple[str, Counts]]
    eras: list[tuple[int, list[str], list[int]]]
    marks: list[tuple[str, int, list[Range], int]]
    """Node, position, what is owed, version."""
    orphaned_us: int
    orphans: list[Range]


class _FrozenGroups(Frozen[str, _DividedGroup]):
    def row(self, key: str, value: _DividedGroup) -> SavedGroup:
        return SavedGroup(
            group=key,
            nodes=sorted(value.nodes.items()),
            eras=[(era.start, era.names, era.sums) for era in value.eras],
            marks=sorted((node, m.position, list(m.owed), m.version) for node, m in value.marks.items()),
            orphaned_us=value.orphaned_us,
            orphans=value.orphans,
        )
