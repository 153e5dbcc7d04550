"""What control entries say, folded: groups, their clients, and which messages each group is done with.

Every operation is an entry of its maker's log, so operations of one node arrive everywhere in their order
and operations of several nodes in any. The state is the same whatever that order was:

- A group has *lives*. Removing it begins another life, in which it is absent until somebody makes it again;
  operations of an earlier life do nothing, and of two lives the later stamp wins. So a removal is never
  undone by something late, and a group made again does not inherit marks.
- Inside one life marks are a union of ranges, and a client is in or out by the latest stamp.
- Nodes that make the same group at once agree on the earlier start in each log.
- Of groups that are gone, and of clients that left, only so many names are remembered, those that went last.
  A group that is made again after its name was forgotten begins in a life that is not before any forgotten
  one, so that nodes which still remember the name take it for new. What somebody wrote before, and that comes
  later than so many removals, may bring a group back without members: it holds messages up to the retention
  of its stream, and removing it ends that.

A stamp is a hybrid logical clock [rule 17] with the node's name as tie-break: a client that leaves at
one node what it joined at another is out everywhere, although the two nodes may not have talked meanwhile.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from millrace.errors import ProtocolError
from millrace.limits import LEADERLESS_CLIENTS_MAX, LEADERLESS_GONE_MAX, LEADERLESS_GROUPS_MAX
from millrace.replication.leaderless.messages import NOWHERE, Origin, Position, Positions


class Stamp(NamedTuple):
    counter: int
    node: str


FIRST_LIFE = Stamp(0, "")
# As a group that is gone: its life is the latest that was forgotten. No group has this name.
_FORGOTTEN = ""
# So many more than are remembered come together before any are forgotten.
_SLACK = 1_000


class Ranges:
    """A set of offsets as ranges that neither overlap nor touch."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._starts == other._starts and self._ends == other._ends

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def discard(self, start: int, end: int) -> None:
        if start >= end:
            return
        first, last = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if first >= last:
            return
        left, right = self._starts[first], self._ends[last - 1]
        kept = [(a, b) for a, b in ((left, start), (end, right)) if a < b]
        self._starts[first:last] = [a for a, _ in kept]
        self._ends[first:last] = [b for _, b in kept]

    def after(self, offset: int) -> int:
        """The first offset not below this one that is not in the set."""
        place = bisect_right(self._starts, offset) - 1
        return self._ends[place] if place >= 0 and offset < self._ends[place] else offset

    def next_start(self, offset: int) -> int:
        """Where the first range above this offset begins; a number beyond all where there is none."""
        place = bisect_left(self._starts, offset + 1)
        return self._starts[place] if place < len(self._starts) else 1 << 62

    def total(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def to_list(self) -> list[list[int]]:
        return [[start, end] for start, end in self]


class LeaderlessGroup:
    """One life of a group."""

    __slots__ = ("clients", "filters", "is_present", "life", "marks", "starts")

    def __init__(self, life: Stamp) -> None:
        self.life = life
        self.is_present = False
        self.filters: tuple[str, ...] = ()
        self.starts: dict[Origin, int] = {}
        """Where it begins in each log; at 0 in those that are not named."""
        self.clients: dict[str, tuple[Stamp, bool]] = {}
        self.marks: dict[Origin, Ranges] = {}

    def done(self, origin: Origin) -> Ranges:
        found = self.marks.get(origin)
        if found is None:
            found = self.marks[origin] = Ranges()
        return found

    def low(self, origin: Origin) -> int:
        """The group is done with everything below."""
        start = self.starts.get(origin, 0)
        marks = self.marks.get(origin)
        return start if marks is None else marks.after(start)

    def saved_position(self) -> bytes:
        """What another life of the group would have to know to go on where this one is."""
        origins = sorted(self.starts.keys() | self.marks.keys())
        rows = [[*origin, self.low(origin), self.done(origin).to_list()] for origin in origins]
        return json.dumps(rows, separators=(",", ":")).encode()

    @property
    def is_gone(self) -> bool:
        """Nobody is in, and nothing waits for whoever makes it again."""
        return not self.is_present and not self.marks and not any(is_in for _, is_in in self.clients.values())

    @property
    def last_word(self) -> Stamp:
        return max(self.life, max((stamp for stamp, _ in self.clients.values()), default=FIRST_LIFE))

    def forget_left(self) -> None:
        """Clients that left first, where many did."""
        left = sorted((stamp, name) for name, (stamp, is_in) in self.clients.items() if not is_in)
        for _, name in left[: max(0, len(left) - LEADERLESS_GONE_MAX)]:
            del self.clients[name]

    def client_names(self) -> list[str]:
        return sorted(name for name, (_, is_in) in self.clients.items() if is_in)

    def to_json(self) -> list[Any]:
        return [
            list(self.life),
            self.is_present,
            list(self.filters),
            sorted([*origin, start] for origin, start in self.starts.items()),
            sorted([name, list(stamp), is_in] for name, (stamp, is_in) in self.clients.items()),
            sorted([*origin, marks.to_list()] for origin, marks in self.marks.items() if marks),
        ]


class ControlState:
    """`clock` is the highest counter seen in any stamp."""

    def __init__(self) -> None:
        self.groups: dict[str, LeaderlessGroup] = {}
        self.ended: dict[str, LeaderlessGroup] = {}
        """Lives of groups that were there and are over, until somebody has looked."""
        self.learnt: list[bytes] = []
        """Operations that are known here from a state instead of a log, until the own log has them."""
        self.clock = 0

    def present(self) -> Iterator[tuple[str, LeaderlessGroup]]:
        return ((key, group) for key, group in self.groups.items() if group.is_present)

    def has_room(self, key: str, client: str) -> bool:
        """Whether this client may become a member of this group."""
        group = self.find(key)
        if group is None:
            return (
                len(self.groups) < LEADERLESS_GROUPS_MAX
                or sum(1 for _ in self.present()) < LEADERLESS_GROUPS_MAX
            )
        if len(group.clients) < LEADERLESS_CLIENTS_MAX:
            return True
        names = group.client_names()
        return client in names or len(names) < LEADERLESS_CLIENTS_MAX

    def find(self, key: str) -> LeaderlessGroup | None:
        group = self.groups.get(key)
        return group if group is not None and group.is_present else None

    def life_of(self, key: str) -> Stamp:
        """In which life whoever makes or joins this group now does it."""
        group = self.groups.get(key) or self.groups.get(_FORGOTTEN)
        return FIRST_LIFE if group is None else group.life

    def _forget_gone(self) -> None:
        """Groups that went first, where many did."""
        if len(self.groups) <= LEADERLESS_GROUPS_MAX + LEADERLESS_GONE_MAX + _SLACK:
            return
        gone = sorted(
            (group.last_word, key)
            for key, group in self.groups.items()
            if group.is_gone and key != _FORGOTTEN
        )
        for _, key in gone[: max(0, len(gone) - LEADERLESS_GONE_MAX)]:
            self._life(_FORGOTTEN, self.groups.pop(key).life)

    def next_stamp(self, node: str, wall_us: int) -> Stamp:
        """Later than everything seen here, and than everything anywhere as far as clocks agree."""
        self.clock = max(self.clock + 1, wall_us)
        return Stamp(self.clock, node)

    # --------------------------------------------------------------------------------- operations

    def apply(self, payload: bytes) -> str | None:
        """One control entry; the key of the group it was about. `RemoteError` for what nobody writes."""
        try:
            operation = json.loads(payload)
            return self._apply(operation)
        except (ValueError, TypeError, IndexError) as error:
            raise ProtocolError(f"a control entry that cannot be read: {error}") from None

    def _apply(self, operation: list[Any]) -> str | None:
        match operation:
            case ["group", str(key), life, list(filters), list(starts)]:
                self._make(key, _stamp(life), tuple(filters), _starts(starts))
            case ["client", str(key), life, str(client), bool(is_in), stamp]:
                self._put_client(key, _stamp(life), client, is_in, _stamp(stamp))
            case ["mark", str(key), life, list(rows)]:
                self._mark(key, _stamp(life), rows)
            case ["remove", str(key), life]:
                self._life(key, _stamp(life))
                self._forget_gone()
            case _:
                # Of a later version: it was in the log, everywhere alike.
                return None
        return str(operation[1])

    def _life(self, key: str, life: Stamp) -> LeaderlessGroup | None:
        """The group in this life; None where a later one is known."""
        self.clock = max(self.clock, life.counter)
        group = self.groups.get(key)
        if group is None or life > group.life:
            if group is not None and group.is_present:
                self.ended.setdefault(key, group)
            group = self.groups[key] = LeaderlessGroup(life)
        return group if life == group.life else None

    def _make(self, key: str, life: Stamp, filters: tuple[str, ...], starts: dict[Origin, int]) -> None:
        group = self._life(key, life)
        if group is None:
            return
        if not group.is_present:
            group.is_present, group.filters, group.starts = True, filters, starts
            return
        # Made at several nodes at once.
        group.filters = max(group.filters, filters)
        common = group.starts.keys() & starts.keys()
        group.starts = {origin: min(group.starts[origin], starts[origin]) for origin in sorted(common)}

    def _put_client(self, key: str, life: Stamp, client: str, is_in: bool, stamp: Stamp) -> None:
        self.clock = max(self.clock, stamp.counter)
        group = self._life(key, life)
        if group is None:
            return
        known = group.clients.get(client)
        if known is None or stamp > known[0]:
            group.clients[client] = (stamp, is_in)
        if len(group.clients) > LEADERLESS_CLIENTS_MAX + LEADERLESS_GONE_MAX + _SLACK:
            group.forget_left()

    def _mark(self, key: str, life: Stamp, rows: list[Any]) -> None:
        group = self._life(key, life)
        if group is None:
            return
        for node, incarnation, ranges in rows:
            done = group.done(Origin(node, incarnation))
            for start, end in ranges:
                done.add(start, end)

    # ---------------------------------------------------------------------------------- snapshots

    def to_bytes(self, positions: Positions, learnt: Sequence[bytes] = ()) -> bytes:
        """Everything that control entries up to these positions said. `learnt` is for the own disk."""
        rows = [[key, group.to_json()] for key, group in sorted(self.groups.items())]
        places = sorted([*origin, *position] for origin, position in positions.items())
        more = [[payload.decode() for payload in learnt]] if learnt else []
        return json.dumps([self.clock, places, rows, *more], separators=(",", ":")).encode()

    def restore(self, data: bytes, ends: Positions) -> Positions:
        """Begin with what the own disk says; what it covers. Where the logs there end before that, nobody
        else may have had the rest of them: then all of it counts as learnt."""
        covered, learnt = self._merge(data)
        if all(ends.get(origin, NOWHERE).entry >= position.entry for origin, position in covered.items()):
            self.learnt = learnt
        return covered

    def merge(self, data: bytes) -> None:
        """Take in another's state."""
        self._merge(data)

    def _merge(self, data: bytes) -> tuple[Positions, list[bytes]]:
        try:
            clock, places, rows, *more = json.loads(data)
            for key, row in rows:
                self._merge_group(key, row)
            self._forget_gone()
            self.clock = max(self.clock, clock)
            covered = {Origin(place[0], place[1]): Position(place[2], place[3]) for place in places}
            return covered, [payload.encode() for payloads in more for payload in payloads]
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise ProtocolError(f"a state that cannot be read: {error}") from None

    def _merge_group(self, key: str, row: list[Any]) -> None:
        life, is_present, filters, starts, clients, marks = row
        stamp, known = _stamp(life), self.groups.get(key)
        group = self._life(key, stamp)
        if group is None:
            return
        if group is not known and not is_present:
            self.learnt.append(remove_group(key, stamp))
        if is_present:
            before = (group.is_present, group.filters, group.starts)
            self._make(key, stamp, tuple(filters), _starts(starts))
            if before != (group.is_present, group.filters, group.starts):
                self.learnt.append(_encoded("group", key, stamp, filters, starts))
        for client, when, is_in in clients:
            was = group.clients.get(client)
            self._put_client(key, stamp, client, is_in, _stamp(when))
            if group.clients.get(client, was) != was:
                self.learnt.append(put_client(key, stamp, client, is_in, _stamp(when)))
        self._merge_marks(key, stamp, group, marks)

    def _merge_marks(self, key: str, stamp: Stamp, group: LeaderlessGroup, marks: list[Any]) -> None:
        totals = {origin: done.total() for origin, done in group.marks.items()}
        self._mark(key, stamp, marks)
        fresh = {
            origin: done for origin, done in group.marks.items() if done.total() != totals.get(origin, 0)
        }
        if fresh:
            self.learnt.append(mark(key, stamp, fresh))

    def digest(self) -> str:
        """Equal where states are equal; for checkers and people."""
        return json.dumps([[key, group.to_json()] for key, group in sorted(self.groups.items())])


# ------------------------------------------------------------------------------- operations as bytes


def _encoded(*fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def make_group(key: str, life: Stamp, filters: tuple[str, ...], starts: Positions) -> bytes:
    rows = sorted([*origin, position.offset] for origin, position in starts.items())
    return _encoded("group", key, life, filters, rows)


def inherit(key: str, life: Stamp, filters: tuple[str, ...], saved_position: bytes) -> list[bytes]:
    """Make a group that goes on where another life of it was."""
    rows = json.loads(saved_position)
    starts = {Origin(node, incarnation): Position(0, low) for node, incarnation, low, _ in rows}
    marks = {Origin(node, incarnation): Ranges(done) for node, incarnation, _, done in rows}
    return [make_group(key, life, filters, starts), mark(key, life, marks)]


def put_client(key: str, life: Stamp, client: str, is_in: bool, stamp: Stamp) -> bytes:
    return _encoded("client", key, life, client, is_in, stamp)


def mark(key: str, life: Stamp, done: dict[Origin, Ranges]) -> bytes:
    rows = sorted([*origin, ranges.to_list()] for origin, ranges in done.items() if ranges)
    return _encoded("mark", key, life, rows)


def remove_group(key: str, life: Stamp) -> bytes:
    """`life` is the one that begins, without the group."""
    return _encoded("remove", key, life)


def _stamp(value: Any) -> Stamp:
    counter, node = value
    return Stamp(int(counter), str(node))


def _starts(rows: Any) -> dict[Origin, int]:
    return {Origin(node, incarnation): offset for node, incarnation, offset in rows}
