"""The disk of one replica as its machine sees it: entries, hard state and snapshots, with a crash inside.

Two images are kept. `written` is what the driver wrote; `durable` is what a sync has covered. A `Persist`
changes `written` at once and waits in `_unsynced`; `sync` brings it to `durable` in order. A crash keeps
`durable` and a random prefix of what waits, in the order the contract fixes (hard state, snapshot,
truncation, entries one by one), and forgets the rest: a torn write is a prefix, because the storage layer
cuts a torn tail. Bytes below that level belong to the storage layer's own simulated disk.

`damage` models bad sectors found at a restart: the log is cut before the first bad entry and the replica is
told, durably, what it once held.

The view given to the machine is, by choice of the seed, either image: the contract allows a view to show
what is not yet synced. With `cold_rate` a read sometimes answers "not in memory now".
"""

import random
from collections import deque
from collections.abc import Sequence

from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    NO_INDEX,
    NO_TERM,
    ConfigAt,
    Damage,
    Entry,
    HardState,
    InitialState,
    LogView,
    Persist,
    Snapshot,
    checksum,
)
from millrace.types import Index, Term

SNAPSHOTS_KEPT = 2


class Image:
    """One consistent content of the disk. `first` is the index of entries[0]."""

    __slots__ = ("edge_term", "entries", "first", "hard_state", "snapshot")

    def __init__(self) -> None:
        self.hard_state = HardState(term=NO_TERM)
        self.snapshot: Snapshot | None = None
        self.first = 1
        self.edge_term = NO_TERM
        self.entries: list[Entry] = []

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    def term(self, index: int) -> Term | None:
        position = index - self.first
        if 0 <= position < len(self.entries):
            return self.entries[position].term
        if position == -1:
            return self.edge_term
        if self.snapshot is not None and self.snapshot.index == index:
            return self.snapshot.term
        return None

    def entry(self, index: int) -> Entry | None:
        position = index - self.first
        return self.entries[position] if 0 <= position < len(self.entries) else None

    def reset_to(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.first = snapshot.index + 1
        self.edge_term = snapshot.term
        self.entries = []

    def truncate(self, index: int) -> None:
        if index < self.first:
            raise Violation("storage", f"truncation from {index}, below the first index {self.first}")
        del self.entries[index - self.first :]

    def append(self, entries: Sequence[Entry]) -> None:
        expected = self.last + 1
        if entries[0].index != expected or entries[-1].index != expected + len(entries) - 1:
            raise Violation(
                "storage",
                f"entries {entries[0].index}..{entries[-1].index} appended to a log that ends at {self.last}",
            )
        self.entries.extend(entries)

    def apply(self, persist: Persist, parts: int | None = None) -> None:
        """Take the first `parts` parts of a Persist, all by default; each entry is a part."""
        budget = 1 << 60 if parts is None else parts
        if persist.hard_state is not None and budget > 0:
            self.hard_state = persist.hard_state
            budget -= 1
        if persist.snapshot is not None and budget > 0:
            self.reset_to(persist.snapshot)
            budget -= 1
        if persist.truncate_from is not None and budget > 0:
            self.truncate(persist.truncate_from)
            budget -= 1
        if persist.entries and budget > 0:
            self.append(persist.entries[:budget])

    def compact(self, last_dropped: int) -> None:
        count = min(last_dropped, self.last) - self.first + 1
        if count > 0:
            self.edge_term = self.entries[count - 1].term
            del self.entries[:count]
            self.first += count

    def copy(self) -> "Image":
        twin = Image()
        twin.hard_state = self.hard_state
        twin.snapshot = self.snapshot
        twin.first = self.first
        twin.edge_term = self.edge_term
        twin.entries = self.entries.copy()
        return twin


def parts_of(persist: Persist) -> int:
    return (
        (persist.hard_state is not None)
        + (persist.snapshot is not None)
        + (persist.truncate_from is not None)
        + len(persist.entries)
    )


class LogDisk(LogView):
    """What survives a process, and the `LogView` of the process that uses it."""

    def __init__(
        self, *, first_config: ConfigAt, rng: random.Random, shows_written: bool, cold_rate: float
    ) -> None:
        self.written = Image()
        self.durable = Image()
        self.damage: Damage | None = None
        self.was_damaged = False
        self.cold_rate = cold_rate
        self._first_config = first_config
        self._rng = rng
        self._shows_written = shows_written
        self._view = self.written if shows_written else self.durable
        self._unsynced: deque[Persist] = deque()
        self._staged_for: Snapshot | None = None
        self._staged = bytearray()
        self._bytes: dict[Snapshot, bytes] = {}
        self._lost_from: int | None = None

    # -------------------------------------------------------------------------------------- LogView

    def first_index(self) -> Index:
        return Index(self._view.first)

    def last_index(self) -> Index:
        return Index(self._view.last)

    def term(self, index: Index) -> Term | None:
        return self._view.term(index)

    def entries(self, first: Index, last: Index, bytes_max: int) -> Sequence[Entry]:
        view = self._view
        if first < view.first or (self.cold_rate and self._rng.random() < self.cold_rate):
            return ()
        found = view.entries[first - view.first : last - view.first + 1]
        total_bytes = 0
        for count, entry in enumerate(found):
            total_bytes += len(entry.payload)
            if total_bytes > bytes_max:
                return found[: max(count, 1)]
        return found

    def snapshot(self) -> Snapshot | None:
        return self._view.snapshot

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        if self.cold_rate and self._rng.random() < self.cold_rate:
            return b""
        return self._bytes.get(snapshot, b"")[position : position + bytes_max]

    # --------------------------------------------------------------------------------------- driver

    def initial_state(self) -> InitialState:
        image = self.durable
        config, base = self._first_config, NO_INDEX
        if image.snapshot is not None:
            base = image.snapshot.index
            config = ConfigAt(index=base, config=image.snapshot.config)
        return InitialState(
            hard_state=image.hard_state, config=config, commit=base, applied=base, damage=self.damage
        )

    def write(self, persist: Persist) -> None:
        if persist.snapshot is not None:
            self._adopt_staged(persist.snapshot)
        self.written.apply(persist)
        self._unsynced.append(persist)

    @property
    def is_unsynced(self) -> bool:
        return bool(self._unsynced)

    @property
    def last_unsynced(self) -> int:
        """The number of the last write."""
        return self._unsynced[-1].number

    def sync(self, number: int) -> list[Persist]:
        """Everything written up to that Persist is durable now, and so is a barrier that follows; returns
        what became so."""
        synced = []
        while self._unsynced and (self._unsynced[0].number <= number or self._unsynced[0].is_barrier):
            persist = self._unsynced.popleft()
            self.durable.apply(persist)
            synced.append(persist)
        return synced

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        if position == 0:
            self._staged_for, self._staged = snapshot, bytearray()
        if snapshot != self._staged_for or position > len(self._staged):
            raise Violation("snapshot", f"a piece at {position} does not continue what is staged")
        self._staged[position:] = data

    def latest_bytes(self) -> bytes:
        snapshot = self.durable.snapshot
        assert snapshot is not None
        return self._bytes[snapshot]

    def put_snapshot(self, snapshot: Snapshot, data: bytes) -> None:
        """A snapshot of the replica's own state, already durable."""
        self._keep(snapshot, data)
        for image in (self.written, self.durable):
            if image.snapshot is None or image.snapshot.index < snapshot.index:
                image.snapshot = snapshot

    def compact(self, last_dropped: int) -> None:
        covered = self.durable.snapshot
        if covered is not None and covered == self.written.snapshot:
            for image in (self.written, self.durable):
                image.compact(min(last_dropped, covered.index))

    # --------------------------------------------------------------------------------------- faults

    def crash(self) -> None:
        """Keep a random prefix of what was written and not synced, part by part."""
        waiting = sum(map(parts_of, self._unsynced))
        kept = self._rng.choice((0, waiting, self._rng.randint(0, waiting))) if waiting else 0
        for persist in self._unsynced:
            self.durable.apply(persist, kept)
            kept -= min(kept, parts_of(persist))
        if self._lost_from is not None and self._lost_from <= self.durable.last:
            self.durable.truncate(max(self._lost_from, self.durable.first))
        self._lost_from = None
        self.forget_unsynced()

    def drop_pages(self, number: int) -> None:
        """A failed sync lost the entries of these writes. The page cache shows them until the next start;
        a driver that goes on finds out then."""
        lost = [
            persist.entries[0].index
            for persist in self._unsynced
            if persist.number <= number and persist.entries
        ]
        if lost:
            self._lost_from = min(lost)

    def forget_unsynced(self) -> None:
        self._unsynced.clear()
        self.written = self.durable.copy()
        self._view = self.written if self._shows_written else self.durable
        self._staged_for, self._staged = None, bytearray()

    def lose_range(self) -> bool:
        """Bad sectors, noticed while the process is down. False if there is nothing to damage."""
        image = self.durable
        if not image.entries:
            return False
        cut = self._rng.randint(image.first, image.last)
        old, self.was_damaged = self.damage, True
        # The term of the last entry can be told if its header is readable, and of one loss only.
        last_term = image.term(image.last) if old is None and self._rng.random() < 0.5 else None
        self.damage = Damage(
            last_index=Index(max(image.last, old.last_index if old else 0)),
            term=Term(max(image.hard_state.term, old.term if old else 0)),
            last_term=last_term,
        )
        if image.snapshot is not None and cut <= image.snapshot.index:
            image.reset_to(image.snapshot)
        else:
            image.truncate(cut)
        self.forget_unsynced()
        return True

    # -------------------------------------------------------------------------------------- helpers

    def _adopt_staged(self, snapshot: Snapshot) -> None:
        data = bytes(self._staged)
        if snapshot != self._staged_for or len(data) != snapshot.size_bytes:
            raise Violation("snapshot", f"installed at {snapshot.index} without all of its bytes")
        if checksum(data) != snapshot.checksum:
            raise Violation("snapshot", f"installed at {snapshot.index} with wrong bytes")
        self._keep(snapshot, data)
        self._staged_for, self._staged = None, bytearray()

    def _keep(self, snapshot: Snapshot, data: bytes) -> None:
        self._bytes[snapshot] = data
        needed = {self.durable.snapshot, self.written.snapshot, snapshot}
        for old in sorted(self._bytes, key=lambda kept: kept.index)[:-SNAPSHOTS_KEPT]:
            if old not in needed:
                del self._bytes[old]
