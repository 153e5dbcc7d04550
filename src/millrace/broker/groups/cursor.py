"""A durable group's cursor over one shard: which messages are done, which are out, which come again.

Everything below `position` is done, except what `items` holds: leased to somebody, given back and ready, put
off until a time, or dead (delivered too often, to be republished elsewhere). That is the same as a next
offset with the set of acknowledged offsets above it, and it is bounded by what may be in flight.

The state is replicated: it changes only by operations in the shard's log, and time is in the entry, never
read here. What the log holds is not read here either: whoever proposes a `take` looks ahead in the log and
says in the entry what was found (`Scan`), so applying it costs the messages taken and nothing else. A scan
that another operation overtook does no harm: what is below the position is passed over, and a scan that
begins above the position is not believed.

A request that names itself gets the same answer when it is repeated, as long as it is remembered. Whoever
answers it from elsewhere, or with nothing, first makes void what is still under way for it here: each `take`
says how often the request had been made void when it set out.
"""

from bisect import bisect_left
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from millrace.limits import ACKNOWLEDGED_MAX, ANSWERED_MAX, GROUP_IN_FLIGHT_MAX, TAKEN_BYTES_MAX, VOIDED_MAX

Delivery = tuple[int, int]
"""Offset, and how often it was delivered with this time."""


class State(IntEnum):
    READY = 0
    LEASED = 1
    DELAYED = 2
    DEAD = 3


class Item:
    """A message below the position that is not done."""

    __slots__ = ("deliveries", "due_us", "expires_us", "size_bytes", "state")

    def __init__(
        self, state: State, deliveries: int, due_us: int, expires_us: int = 0, size_bytes: int = 0
    ) -> None:
        self.state = state
        self.deliveries = deliveries
        # When the lease or the delay ends.
        self.due_us = due_us
        self.expires_us = expires_us
        self.size_bytes = size_bytes

    def is_expired(self, now_us: int) -> bool:
        return 0 < self.expires_us <= now_us


class Settings(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    deliveries_max: int = 0
    """After so many deliveries without an acknowledgement a message is dead; 0 is never."""
    in_flight_max: int = GROUP_IN_FLIGHT_MAX


class Found(NamedTuple):
    """A message in the log ahead."""

    offset: int
    not_before_us: int = 0
    """It is put off until then."""
    expires_us: int = 0
    """From then on nobody is given it [rule 11]; 0 is never."""
    size_bytes: int = 0

    def is_expired(self, now_us: int) -> bool:
        return 0 < self.expires_us <= now_us


class Scan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the shard holds for the group in [start, end), without what has expired."""

    start: int
    end: int
    found: tuple[Found, ...]


NO_SETTINGS = Settings()


class Cursor:
    __slots__ = (
        "_acknowledged",
        "_answered",
        "_answers",
        "_due",
        "_ready",
        "_voided",
        "dead",
        "epoch",
        "items",
        "missed",
        "position",
        "settings",
        "used_us",
    )

    def __init__(self, position: int, settings: Settings = NO_SETTINGS, used_us: int = 0) -> None:
        self.position = position
        self.settings = settings
        self.epoch = 0
        """Raised by a reset: a receipt from before it means nothing any more."""
        self.items: dict[int, Item] = {}
        self.dead: dict[int, None] = {}
        self.missed = 0
        """Messages that retention removed before the group was done with them, others' topics included."""
        self.used_us = used_us
        """When somebody last asked for messages, give or take an hour."""
        # Heaps with entries that may be out of date; `items` decides.
        self._due: list[tuple[int, int]] = []
        self._ready: list[int] = []
        self._answers: dict[str, list[Delivery]] = {}
        self._answered = 0
        self._voided: dict[str, int] = {}
        # The last that were acknowledged, in that order, with the delivery that was.
        self._acknowledged: dict[int, int] = {}

    @property
    def low(self) -> int:
        """The first offset that is not done with."""
        return min(self.items, default=self.position)

    # -------------------------------------------------------------------------------------- taking

    def take(
        self,
        request: str,
        count: int,
        lease_us: int,
        now_us: int,
        scan: Scan | None,
        voided: int | None = None,
    ) -> list[Delivery]:
        """The next messages, what comes again first, unless it has expired. Without a lease they are done
        with this. Nothing, where the request was made void more often than it knew."""
        known = self.answer(request)
        if known is not None:
            return known
        if voided is not None and voided < self.voided(request):
            return []
        self.used_us = now_us
        self.advance(now_us)
        taken: list[Delivery] = []
        room_bytes = TAKEN_BYTES_MAX
        while len(taken) < count and (offset := self._next_ready()) is not None:
            item = self.items[offset]
            if item.is_expired(now_us):
                del self.items[offset]
                continue
            room_bytes -= item.size_bytes
            if taken and room_bytes < 0:
                break
            heappop(self._ready)
            item.deliveries += 1
            taken.append((offset, item.deliveries))
            if lease_us:
                self._wait(offset, item, State.LEASED, now_us + lease_us)
            else:
                del self.items[offset]
        if scan is not None and scan.start <= self.position:
            self._take_fresh(taken, count, room_bytes, lease_us, now_us, scan)
        if request and taken:
            self._remember(request, taken)
        return taken

    def _take_fresh(
        self, taken: list[Delivery], count: int, room_bytes: int, lease_us: int, now_us: int, scan: Scan
    ) -> None:
        room = self.settings.in_flight_max - len(self.items)
        for found in scan.found[bisect_left(scan.found, Found(self.position)) :]:
            offset, not_before_us, expires_us, size_bytes = found
            is_late = not_before_us > now_us
            is_enough = len(taken) >= count or (bool(taken) and size_bytes > room_bytes)
            if is_enough or (room <= 0 and (is_late or lease_us)):
                self.position = offset
                return
            if is_late:
                room -= 1
                item = Item(State.DELAYED, 0, 0, expires_us, size_bytes)
                self._wait(offset, item, State.DELAYED, not_before_us)
                continue
            room_bytes -= size_bytes
            taken.append((offset, 1))
            if lease_us:
                room -= 1
                item = Item(State.LEASED, 1, 0, expires_us, size_bytes)
                self._wait(offset, item, State.LEASED, now_us + lease_us)
        self.position = max(self.position, scan.end)

    def answer(self, request: str) -> list[Delivery] | None:
        """What this request was given, if it is remembered."""
        return self._answers.get(request) if request else None

    def void(self, request: str) -> list[Delivery]:
        """What this request was given; if nothing, then takes for it that are under way get nothing."""
        known = self.answer(request)
        if known is not None:
            return known
        self._voided[request] = self._voided.pop(request, 0) + 1
        if len(self._voided) > VOIDED_MAX:
            del self._voided[next(iter(self._voided))]
        return []

    def voided(self, request: str) -> int:
        """How often."""
        return self._voided.get(request, 0)

    def _remember(self, request: str, taken: list[Delivery]) -> None:
        self._answers[request] = taken
        self._answered += len(taken)
        while self._answered > ANSWERED_MAX:
            self._answered -= len(self._answers.pop(next(iter(self._answers))))

    # ------------------------------------------------------------------------------------- answers

    def ack(self, offset: int, delivery: int) -> bool:
        """Done. Also after the lease ended, as long as nobody else was given the message since."""
        item = self.items.get(offset)
        if item is None:
            # Its answer may have been lost on the way, and whoever asks again did nothing wrong.
            return self._acknowledged.get(offset) == delivery
        if item.deliveries != delivery or item.state not in (State.LEASED, State.READY):
            return False
        del self.items[offset]
        self._acknowledged[offset] = delivery
        if len(self._acknowledged) > ACKNOWLEDGED_MAX:
            del self._acknowledged[next(iter(self._acknowledged))]
        return True

    def nack(self, offset: int, delivery: int, delay_us: int, now_us: int) -> bool:
        """Not done: it comes again, after the delay, or is dead."""
        item = self._leased(offset, delivery)
        if item is None:
            return False
        self._give_back(offset, item, now_us + delay_us if delay_us else 0)
        return True

    def extend(self, offset: int, delivery: int, lease_us: int, now_us: int) -> bool:
        """The lease ends so much after now."""
        item = self._leased(offset, delivery)
        if item is None:
            return False
        self._wait(offset, item, State.LEASED, now_us + lease_us)
        return True

    def bury(self, offset: int) -> bool:
        """A dead message was republished."""
        if offset not in self.dead:
            return False
        del self.dead[offset]
        del self.items[offset]
        return True

    def _leased(self, offset: int, delivery: int) -> Item | None:
        item = self.items.get(offset)
        if item is None or item.state is not State.LEASED or item.deliveries != delivery:
            return None
        return item

    # ---------------------------------------------------------------------------------------- time

    def advance(self, now_us: int) -> None:
        """End the leases and delays that are due."""
        while self._due and self._due[0][0] <= now_us:
            due_us, offset = heappop(self._due)
            item = self.items.get(offset)
            if item is None or item.due_us != due_us:
                continue
            if item.state is State.LEASED:
                self._give_back(offset, item, 0)
            elif item.state is State.DELAYED:
                item.state = State.READY
                heappush(self._ready, offset)

    def expire(self, now_us: int) -> None:
        """Let go of what would come again and has expired."""
        for offset in self._ready:
            item = self.items.get(offset)
            if item is not None and item.state is State.READY and item.is_expired(now_us):
                del self.items[offset]

    def has_expired(self, now_us: int) -> bool:
        """Whether the message that would come again first has expired."""
        offset = self._next_ready()
        if offset is None and self.has_ready(now_us):
            offset = self._due[0][1]
        return offset is not None and self.items[offset].is_expired(now_us)

    def next_due_us(self) -> int | None:
        """When the next lease or delay ends."""
        while self._due:
            due_us, offset = self._due[0]
            item = self.items.get(offset)
            if item is not None and item.due_us == due_us and item.state in (State.LEASED, State.DELAYED):
                return due_us
            heappop(self._due)
        return None

    def has_ready(self, now_us: int) -> bool:
        """Whether a message below the position could be taken at this time."""
        if self._next_ready() is not None:
            return True
        due_us = self.next_due_us()
        return due_us is not None and due_us <= now_us

    def _next_ready(self) -> int | None:
        while self._ready:
            item = self.items.get(self._ready[0])
            if item is not None and item.state is State.READY:
                return self._ready[0]
            heappop(self._ready)
        return None

    def _give_back(self, offset: int, item: Item, due_us: int) -> None:
        deliveries_max = self.settings.deliveries_max
        if deliveries_max and item.deliveries >= deliveries_max:
            item.state = State.DEAD
            self.dead[offset] = None
        elif due_us:
            self._wait(offset, item, State.DELAYED, due_us)
        else:
            item.state = State.READY
            heappush(self._ready, offset)

    def _wait(self, offset: int, item: Item, state: State, due_us: int) -> None:
        item.state, item.due_us = state, due_us
        self.items[offset] = item
        heappush(self._due, (due_us, offset))
        if len(self._due) > 2 * len(self.items) + 64:
            # Acknowledged leases leave entries behind until they would have ended.
            self._index()

    def _index(self) -> None:
        """Make the heaps anew from the items."""
        waiting = (State.LEASED, State.DELAYED)
        self._due = [(item.due_us, offset) for offset, item in self.items.items() if item.state in waiting]
        self._ready = [offset for offset, item in self.items.items() if item.state is State.READY]
        self.dead = {o: None for o, item in sorted(self.items.items()) if item.state is State.DEAD}
        heapify(self._due)
        heapify(self._ready)

    # ------------------------------------------------------------------------------------ the rest

    def set(self, settings: Settings) -> None:
        """Other settings. Without a bound on deliveries nothing is dead: it comes again."""
        self.settings = settings
        if self.dead and not settings.deliveries_max:
            for offset in self.dead:
                self.items[offset].state = State.READY
            self._index()

    def reset(self, position: int) -> None:
        """Begin again here; what is out is forgotten."""
        self.position = position
        self.epoch += 1
        self.items = {}
        self._answers = {}
        self._answered = 0
        self._acknowledged = {}
        self._index()

    def trim(self, first_offset: int) -> None:
        """The log begins here now."""
        gone = [offset for offset in self.items if offset < first_offset]
        self.missed += len(gone) + max(0, first_offset - self.position)
        for offset in gone:
            del self.items[offset]
        self.position = max(self.position, first_offset)
        if gone:
            self._index()

    def save(self) -> "SavedCursor":
        return SavedCursor(
            position=self.position,
            epoch=self.epoch,
            missed=self.missed,
            used_us=self.used_us,
            settings=self.settings,
            items=[
                SavedItem(offset, item.state, item.deliveries, item.due_us, item.expires_us, item.size_bytes)
                for offset, item in sorted(self.items.items())
            ],
            answers=list(self._answers.items()),
            voided=list(self._voided.items()),
            acknowledged=list(self._acknowledged.items()),
        )

    @staticmethod
    def restored(saved: "SavedCursor") -> "Cursor":
        cursor = Cursor(saved.position, saved.settings, saved.used_us)
        cursor.epoch, cursor.missed = saved.epoch, saved.missed
        cursor.items = {row[0]: Item(*row[1:]) for row in saved.items}
        cursor._answers = dict(saved.answers)
        cursor._answered = sum(map(len, cursor._answers.values()))
        cursor._voided = dict(saved.voided)
        cursor._acknowledged = dict(saved.acknowledged)
        cursor._index()
        return cursor


class SavedItem(NamedTuple):
    offset: int
    state: State
    deliveries: int
    due_us: int
    expires_us: int
    size_bytes: int


class SavedCursor(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A cursor in a snapshot."""

    position: int
    epoch: int
    missed: int
    used_us: int
    settings: Settings
    items: list[SavedItem]
    answers: list[tuple[str, list[Delivery]]]
    """In the order in which they were given, the oldest first."""
    voided: list[tuple[str, int]]
    acknowledged: list[Delivery] = []
    """The last ones, the oldest first. Snapshots of 0.1 have none."""
