"""One replica's log: what the disk holds, seen through `LogView`, and the tail that is on its way there.

The tail begins right after `durable`. Entries enter it when the machine appends them and leave it when
`Persisted` says that they are on disk; every read at or above the tail's first index is served from memory,
so a view that already shows half-written entries cannot mislead.

A truncation that is on its way bounds what earlier writes can make durable: when `Persisted(1)` arrives for
entries 5..10 while write 2 has already cut from 7 on, only 5 and 6 are safe, and the entries 7..10 that the
disk holds for a moment are not the ones of this log.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from millrace.replication.contract import (
    NO_TERM,
    Entry,
    EntryKind,
    HardState,
    LogView,
    Persist,
    Snapshot,
)
from millrace.types import Index, Term


class PendingWrite(NamedTuple):
    """One `Persist` that was handed out and not reported yet."""

    number: int
    issued_tick: int
    last_index: Index
    """Where the log ends once this is on disk."""
    truncate_from: Index | None
    snapshot: Snapshot | None
    has_hard_state: bool


class MachineLog:
    """Writes collect during a step and leave together by `take_writes`."""

    __slots__ = (
        "_entries_new",
        "_snapshot_new",
        "_snapshot_pending",
        "_tail",
        "_tail_first",
        "_truncate_new",
        "_view",
        "cuts",
        "durable",
        "last_index",
        "last_term",
        "pending",
    )

    def __init__(self, view: LogView) -> None:
        self._view = view
        self.last_index = view.last_index()
        self.durable = self.last_index
        """Up to here this log, as it is now, is on disk."""
        self._tail: list[Entry] = []
        self._tail_first = Index(self.last_index + 1)
        self._snapshot_pending: Snapshot | None = None
        self._snapshot_new: Snapshot | None = None
        self._truncate_new: Index | None = None
        self._entries_new: list[Entry] = []
        self.cuts = 0
        """How often entries went, other than by a snapshot of what they made."""
        self.pending: deque[PendingWrite] = deque()
        self.last_term = self._find_last_term()

    # -------------------------------------------------------------------------------------- reading

    @property
    def first_index(self) -> Index:
        if self._snapshot_pending is not None:
            return Index(self._snapshot_pending.index + 1)
        return self._view.first_index()

    @property
    def is_installing(self) -> bool:
        return self._snapshot_pending is not None

    def term(self, index: Index) -> Term | None:
        # What is asked most; the disk may have it already.
        return self.last_term if index == self.last_index else self._find_term(index)

    def _find_term(self, index: Index) -> Term | None:
        position = index - self._tail_first
        if position >= 0:
            return self._tail[position].term if position < len(self._tail) else None
        if index == 0:
            return NO_TERM
        snapshot = self._snapshot_pending
        if snapshot is not None:
            return snapshot.term if index == snapshot.index else None
        return self._view.term(index) if index > 0 else None

    def matches(self, index: Index, term: Term) -> bool:
        return self.term(index) == term

    def entries(self, first: Index, last: Index, bytes_max: int) -> Sequence[Entry]:
        """As in `LogView`; a range that crosses from the disk into the tail is cut there."""
        if first < self._tail_first:
            if self._snapshot_pending is not None:
                return ()
            return self._view.entries(first, Index(min(last, self._tail_first - 1)), bytes_max)
        chosen = self._tail[first - self._tail_first : last - self._tail_first + 1]
        bytes_count = 0
        for position, entry in enumerate(chosen):
            bytes_count += len(entry.payload)
            if bytes_count > bytes_max and position > 0:
                return chosen[:position]
        return chosen

    def snapshot(self) -> Snapshot | None:
        return None if self._snapshot_pending is not None else self._view.snapshot()

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        return self._view.snapshot_bytes(snapshot, position, bytes_max)

    def last_index_not_above(self, index: Index, term: Term) -> Index:
        """The highest index up to `index` whose term is at most `term`, or the edge of the log. Terms never
        fall along a log, so this halves."""
        low, high = Index(self.first_index - 1), Index(min(index, self.last_index))
        while low < high:
            middle = Index((low + high + 1) // 2)
            found = self.term(middle)
            if found is not None and found <= term:
                low = middle
            else:
                high = Index(middle - 1)
        return low

    # -------------------------------------------------------------------------------------- writing

    def append(self, term: Term, kind: EntryKind, payloads: Sequence[bytes]) -> list[Entry]:
        """A leader's own entries."""
        first = self.last_index + 1
        fresh = [
            Entry(term=term, index=Index(first + position), kind=kind, payload=payload)
            for position, payload in enumerate(payloads)
        ]
        self._extend(fresh)
        return fresh

    def _extend(self, fresh: Sequence[Entry]) -> None:
        if fresh:
            self._tail += fresh
            self._entries_new += fresh
            self.last_index = fresh[-1].index
            self.last_term = fresh[-1].term

    def merge(self, entries: Sequence[Entry]) -> tuple[Index | None, Sequence[Entry]]:
        """A leader's entries that follow on something this log has: keep what is equal, cut from the first
        that differs, take the rest. Returns where it cut (if it did) and what was taken.

        An append that says nothing new changes nothing: an old one that arrives late must not shorten the
        log, because what follows may have been acknowledged meanwhile."""
        last = self.last_index
        position = 0
        while position < len(entries) and entries[position].index <= last:
            if self.term(entries[position].index) != entries[position].term:
                break
            position += 1
        fresh = entries[position:]
        cut = self._conflict(entries, fresh)
        if cut is not None:
            self._truncate_from(cut)
        self._extend(fresh)
        return cut, fresh

    def _conflict(self, entries: Sequence[Entry], fresh: Sequence[Entry]) -> Index | None:
        """The first index at which this log has another entry than the leader's; `fresh` is what it lacks of
        `entries`."""
        return fresh[0].index if fresh and fresh[0].index <= self.last_index else None

    def _truncate_from(self, index: Index) -> None:
        self.cuts += 1
        # Entries of this very step never reached a Persist, so they are simply dropped.
        self._entries_new = [entry for entry in self._entries_new if entry.index < index]
        if self._truncate_new is None or index < self._truncate_new:
            self._truncate_new = index
        if index < self._tail_first:
            self._tail = []
            self._tail_first = index
            self.durable = Index(index - 1)
        else:
            del self._tail[index - self._tail_first :]
        self.last_index = Index(index - 1)
        self.last_term = self._find_last_term()

    def _find_last_term(self) -> Term:
        term = self._find_term(self.last_index)
        assert term is not None
        return term

    def install(self, snapshot: Snapshot, commit: Index) -> None:
        """Replace the whole log. Up to `commit` the old entries are certainly right, so they stay durable
        until the snapshot is."""
        assert self._snapshot_pending is None
        self.cuts += 1
        self._snapshot_pending = self._snapshot_new = snapshot
        self._truncate_new = None
        self._tail = []
        self._entries_new = []
        self._tail_first = Index(snapshot.index + 1)
        self.last_index = snapshot.index
        self.last_term = snapshot.term
        self.durable = min(self.durable, commit)

    def take_writes(self, number: int, tick: int, hard_state: HardState | None) -> Persist | None:
        """What this step wrote, together with the hard state, as one effect; None if there is nothing."""
        if hard_state is None and not (
            self._entries_new or self._snapshot_new is not None or self._truncate_new is not None
        ):
            return None
        effect = Persist(
            number=number,
            hard_state=hard_state,
            snapshot=self._snapshot_new,
            truncate_from=self._truncate_new,
            entries=tuple(self._entries_new),
        )
        self.note_pending(effect, tick)
        self._snapshot_new = None
        self._truncate_new = None
        self._entries_new = []
        return effect

    def note_pending(self, effect: Persist, tick: int) -> None:
        self.pending.append(
            PendingWrite(
                number=effect.number,
                issued_tick=tick,
                last_index=self.last_index,
                truncate_from=effect.truncate_from,
                snapshot=effect.snapshot,
                has_hard_state=effect.hard_state is not None,
            )
        )

    def _below_truncations(self, index: Index) -> Index:
        """How far of `index` is safe from the truncations that are still on their way."""
        for write in self.pending:
            if write.truncate_from is not None:
                index = min(index, Index(write.truncate_from - 1))
        return index

    def persisted(self, number: int) -> Snapshot | None:
        """Everything up to this write is on disk. Returns the snapshot that thereby became this disk's."""
        installed: Snapshot | None = None
        last_index: Index | None = None
        while self.pending and self.pending[0].number <= number:
            write = self.pending.popleft()
            last_index = write.last_index
            if write.snapshot is not None:
                installed = write.snapshot
                self._snapshot_pending = None
        if last_index is None or self._snapshot_pending is not None:
            return installed
        last_index = min(self._below_truncations(last_index), self.last_index)
        if last_index > self.durable or installed is not None:
            self.durable = last_index
            del self._tail[: last_index + 1 - self._tail_first]
            self._tail_first = Index(last_index + 1)
        return installed
