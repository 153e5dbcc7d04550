"""The two sides of a frame schedule: what the primary does next, and what the backup keeps of it.

`FramePrimary` numbers what arrives, in runs of messages of one class, and gives out jobs. A dispatched run
cancels its pending copy; if the copy has left, the backup is told to discard it. A discard is said only after
the dispatch: said before, it would lose the messages with the primary.

`FrameBackup` keeps copies until they are discarded. A run is known by the number of its first message. Copies
and discards may overtake each other. On promotion it hands out what was not discarded, in the order of
arrival. Both are bounded by messages; what does not fit is counted.
"""

from collections import OrderedDict
from enum import Enum

from millrace.replication.frame.schedule import Deadlines, Job, JobKind, JobQueue, Schedule


class CopyState(Enum):
    """Of a run that is not dispatched yet."""

    UNWANTED = "no copy is needed"
    QUEUED = "a copy is queued"
    LEFT = "the copy has left"


TRANSITIONS: dict[CopyState, frozenset[CopyState]] = {
    CopyState.UNWANTED: frozenset(),
    CopyState.QUEUED: frozenset({CopyState.LEFT}),
    CopyState.LEFT: frozenset(),
}
"""The dispatch of the run ends each of them."""


class FramePrimary:
    """One shard's queue. The caller takes jobs one after the other and says when each is done."""

    __slots__ = ("_next", "_queue", "_runs", "_schedule", "_waiting", "copies", "overloaded")

    def __init__(self, *, schedule: Schedule, jobs_max: int) -> None:
        self._schedule = schedule
        self._queue = JobQueue(jobs_max)
        self._runs: dict[int, CopyState] = {}
        self._waiting = 0
        self._next = 1
        self.overloaded = 0
        self.copies = 0

    def __len__(self) -> int:
        """Messages that are not dispatched yet."""
        return self._waiting

    def has_room(self, jobs: int) -> bool:
        return self._queue.has_room(jobs)

    def arrived(
        self, wanted: Deadlines, now_us: int, *, has_backup: bool = True, count: int = 1
    ) -> int | None:
        """The number of the first of `count` messages of this class; None if they cannot be taken: refuse
        them, they are counted."""
        is_copied = has_backup and self._is_copy_needed(wanted)
        if not self._queue.has_room((1 + is_copied) * count):
            return self._refuse(count)
        number = self._next
        self._next += count
        self._runs[number] = CopyState.QUEUED if is_copied else CopyState.UNWANTED
        self._waiting += count
        if is_copied:
            due_us = self._due_us(now_us, wanted.replicate_ms or 0.0)
            self._queue.push(Job(JobKind.REPLICATE, number, due_us, count))
        self._queue.push(Job(JobKind.DISPATCH, number, self._due_us(now_us, wanted.dispatch_ms), count))
        return number

    def _is_copy_needed(self, wanted: Deadlines) -> bool:
        """Could the messages be lost with the primary before their dispatch is due? FCFS does not ask."""
        return wanted.is_replicated or self._schedule is Schedule.FCFS

    def _refuse(self, count: int) -> int | None:
        self.overloaded += count
        return None

    def _due_us(self, now_us: int, within_ms: float) -> int:
        return now_us if self._schedule is Schedule.FCFS else now_us + int(within_ms * 1000)

    def take(self) -> Job | None:
        """What is due next. A copy that was cancelled meanwhile is passed over."""
        return self._queue.pop()

    def replicated(self, number: int, count: int = 1) -> None:
        """The copy has left, perhaps after the dispatch."""
        self.copies += count
        state = self._runs.get(number)
        if state is not None:
            assert CopyState.LEFT in TRANSITIONS[state], f"run {number} is copied: {state.value}"
            self._runs[number] = CopyState.LEFT

    def dispatched(self, number: int, count: int = 1) -> bool:
        """The messages are with their subscribers. Returns whether the backup must be told."""
        state = self._runs.pop(number)
        self._waiting -= count
        if state is CopyState.QUEUED:
            self._queue.cancel(JobKind.REPLICATE, number, count)
        return state is CopyState.LEFT


class FrameBackup:
    """Copies of one primary's epoch, by number; a copy of a later epoch begins anew."""

    __slots__ = ("_copies", "_copies_max", "_discarded", "_messages", "dropped", "epoch")

    def __init__(self, *, copies_max: int) -> None:
        self._copies_max = copies_max
        # Number of a run -> how many messages it has, and what the primary wrote; the earliest copy first.
        self._copies: dict[int, tuple[int, bytes]] = {}
        self._messages = 0
        # Discards that came before their copies; the oldest are forgotten first.
        self._discarded: OrderedDict[int, None] = OrderedDict()
        self.epoch = 0
        self.dropped = 0

    def __len__(self) -> int:
        """Messages of which there is a copy."""
        return self._messages

    def copied(self, epoch: int, number: int, messages: bytes, count: int = 1) -> None:
        if not self._is_current(epoch):
            return
        if number in self._discarded:
            del self._discarded[number]
            return
        self._forget(number)
        while self._copies and self._messages + count > self._copies_max:
            self.dropped += self._forget(next(iter(self._copies)))
        self._copies[number] = count, messages
        self._messages += count

    def _forget(self, number: int) -> int:
        """How many messages were held under this number."""
        count, _ = self._copies.pop(number, (0, b""))
        self._messages -= count
        return count

    def discarded(self, epoch: int, number: int) -> None:
        if not self._is_current(epoch):
            return
        if not self._forget(number):
            self._discarded[number] = None
            if len(self._discarded) > self._copies_max:
                self._discarded.popitem(last=False)

    def _is_current(self, epoch: int) -> bool:
        if epoch > self.epoch:
            self.epoch = epoch
            self._clear()
        return epoch == self.epoch

    def _clear(self) -> None:
        self._copies.clear()
        self._discarded.clear()
        self._messages = 0

    def recovered(self) -> tuple[bytes, ...]:
        """What was stored and not delivered, in order, run by run; nothing is stored then."""
        stored = tuple(self._copies[number][1] for number in self._order_of_arrival())
        self._clear()
        return stored

    def _order_of_arrival(self) -> list[int]:
        """Numbers grow with the order in which runs came to the primary."""
        return sorted(self._copies)
