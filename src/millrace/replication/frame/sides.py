"""The two sides of a frame schedule: what the primary does next, and what the backup keeps of it.

`FramePrimary` numbers what arrives, in runs of messages of one class, and gives out jobs. A dispatched run
cancels its pending copy; if the copy has left, the backup is told to discard it. A discard is said only after
the dispatch: said before, it would lose the messages with the primary.

`FrameBackup` keeps copies until they are discarded. A run is known by the number of its first message. Copies
and discards may overtake each other. On promotion it hands out what was not discarded, in the order of
arrival. Both are bounded by messages; what does not fit is counted.
"""

from collections import OrderedDict
from dataclasses import dataclass

from millrace.errors import LocalError
from millrace.replication.frame.schedule import Deadlines, Job, JobKind, JobQueue, Schedule

FRAME_MUTATIONS: dict[str, str] = {
    "frame_skips_wrong_way": "messages are replicated exactly where they need not be",
    "frame_discards_first": "the backup is told to discard before the message is dispatched",
    "frame_arrival_order": "jobs run in the order of arrival, whatever their deadlines",
    "frame_discard_ignored": "the new primary dispatches what was discarded",
    "frame_recovers_backwards": "the new primary dispatches what was stored in the wrong order",
    "frame_overload_silent": "a message that finds the queue full is acknowledged and forgotten",
}


@dataclass(slots=True)
class _Run:
    copy_pending: bool
    is_copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Tell the backup that this run is dispatched."""

    number: int
    """Of its first message."""


class FramePrimary:
    """One epoch of one shard. The caller takes jobs one after the other and says when each is done."""

    __slots__ = ("_mutations", "_next", "_queue", "_runs", "_schedule", "_waiting", "copies", "overloaded")

    def __init__(self, *, schedule: Schedule, jobs_max: int, mutations: frozenset[str] = frozenset()) -> None:
        if not mutations <= FRAME_MUTATIONS.keys():
            raise LocalError(f"unknown mutations: {sorted(mutations - FRAME_MUTATIONS.keys())}")
        self._schedule = schedule
        self._mutations = mutations
        self._queue = JobQueue(jobs_max)
        self._runs: dict[int, _Run] = {}
        self._waiting = 0
        self._next = 1
        self.overloaded = 0
        """Messages that were refused because the queue was full."""
        self.copies = 0
        """Copies that were asked for."""

    def __len__(self) -> int:
        """Messages that are not dispatched yet."""
        return self._waiting

    def has_room(self, jobs: int) -> bool:
        """Whether `arrive` will take what makes so many jobs: one or two for each message."""
        return self._queue.has_room(jobs)

    def arrive(
        self, wanted: Deadlines, now_us: int, *, has_backup: bool = True, count: int = 1
    ) -> int | None:
        """The number of the first of `count` messages of this class; None if they cannot be taken: refuse
        them, they are counted."""
        is_copied = wanted.is_replicated
        if "frame_skips_wrong_way" in self._mutations:
            is_copied = not is_copied
        if self._schedule is Schedule.FCFS:
            is_copied = True
        is_copied = is_copied and has_backup
        if not self._queue.has_room((1 + is_copied) * count):
            if "frame_overload_silent" in self._mutations:
                self._next += count
                return self._next - count
            self.overloaded += count
            return None
        number = self._next
        self._next += count
        self._runs[number] = _Run(is_copied)
        self._waiting += count
        is_by_arrival = self._schedule is Schedule.FCFS or "frame_arrival_order" in self._mutations
        if is_copied:
            copy_ms = 0.0 if wanted.replicate_ms is None else wanted.replicate_ms
            due_us = now_us if is_by_arrival else now_us + int(copy_ms * 1000)
            self._queue.push(Job(JobKind.REPLICATE, number, due_us, count))
        due_us = now_us if is_by_arrival else now_us + int(wanted.dispatch_ms * 1000)
        self._queue.push(Job(JobKind.DISPATCH, number, due_us, count))
        return number

    def take(self) -> Job | None:
        """What is due next. A copy that was cancelled meanwhile is passed over."""
        return self._queue.pop()

    def begun(self, job: Job) -> Discard | None:
        """Before a job is run: nothing, as long as no bug is planted."""
        if "frame_discards_first" in self._mutations and job.kind is JobKind.DISPATCH:
            return self._discard(self._runs[job.number], job.number)
        return None

    def done(self, job: Job) -> Discard | None:
        """A job has been run: the copy has left, or the messages are with their subscribers."""
        if job.kind is JobKind.REPLICATE:
            self.copies += job.messages
            run = self._runs.get(job.number)
            if run is not None:
                run.copy_pending = False
                run.is_copied = True
            return None
        run = self._runs.pop(job.number)
        self._waiting -= job.messages
        if run.copy_pending:
            self._queue.cancel(JobKind.REPLICATE, job.number, job.messages)
            return None
        return self._discard(run, job.number)

    def _discard(self, run: _Run, number: int) -> Discard | None:
        return Discard(number=number) if run.is_copied else None


class FrameBackup:
    """Copies of one primary's epoch, by number; a copy of a later epoch begins anew."""

    __slots__ = ("_copies", "_copies_max", "_discarded", "_messages", "_mutations", "dropped", "epoch")

    def __init__(self, *, copies_max: int, mutations: frozenset[str] = frozenset()) -> None:
        self._copies_max = copies_max
        self._mutations = mutations
        # Number of a run -> how many messages it has, and what the primary wrote; the earliest copy first.
        self._copies: dict[int, tuple[int, bytes]] = {}
        self._messages = 0
        # Discards that came before their copies; the oldest are forgotten first.
        self._discarded: OrderedDict[int, None] = OrderedDict()
        self.epoch = 0
        self.dropped = 0
        """Messages whose copies did not fit."""

    def __len__(self) -> int:
        """Messages of which there is a copy."""
        return self._messages

    def on_copy(self, epoch: int, number: int, messages: bytes, count: int = 1) -> None:
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

    def on_discard(self, epoch: int, number: int) -> None:
        if not self._is_current(epoch) or "frame_discard_ignored" in self._mutations:
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

    def promote(self) -> list[bytes]:
        """This side is primary from now on: what was stored and not delivered, in order, run by run."""
        is_backwards = "frame_recovers_backwards" in self._mutations
        stored = [self._copies[number][1] for number in sorted(self._copies, reverse=is_backwards)]
        self._clear()
        return stored
