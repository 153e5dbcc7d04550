"""FRAME: a primary that dispatches by deadlines and copies to its backup only what could be lost otherwise.

It implements "FRAME: Fault Tolerant and Real-Time Messaging for Edge Computing" (Wang, Gill and Lu, ICDCS
2019): the timing bounds and the selective replication that follows from them (`schedule.py`), and the
coordination of primary and backup, which prunes copies of what is dispatched (`sides.py`). It departs from
the paper in this:

- The paper's broker works on single messages; here the unit is a run of messages of one class.
- The paper's backup finds out that the primary died by itself. Here the pair machine decides who is primary,
  under an epoch and a lease, and the driver steps `Promoted`.
- Both queues are bounded. What does not fit is refused or dropped, and counted.

One machine serves one shard on one node. It has both sides, and no role of its own: a node that was primary
works off what it accepted while it already keeps the copies of its successor. What has states is the copy of
a run (`TRANSITIONS` in `sides.py`). There is nothing to persist: duties 3 to 6 of the contract are void.
"""

from typing import assert_never

from millrace.replication.frame.messages import (
    Arrived,
    Copied,
    Discard,
    Discarded,
    Dispatch,
    Dispatched,
    FrameEffect,
    FrameEvent,
    Overloaded,
    Promoted,
    Queued,
    Ready,
    Recover,
    Replicate,
    Replicated,
)
from millrace.replication.frame.schedule import JobKind, Schedule
from millrace.replication.frame.sides import FrameBackup, FramePrimary


class Frame:
    __slots__ = ("_backup", "_primary")

    def __init__(self, *, schedule: Schedule, jobs_max: int, copies_max: int) -> None:
        self._primary = FramePrimary(schedule=schedule, jobs_max=jobs_max)
        self._backup = FrameBackup(copies_max=copies_max)

    def step(self, event: FrameEvent) -> list[FrameEffect]:
        match event:
            case Ready():
                return self._next_job()
            case Arrived():
                return [self._arrive(event)]
            case Replicated():
                self._primary.replicated(event.number, event.count)
                return []
            case Dispatched():
                is_copied = self._primary.dispatched(event.number, event.count)
                return [Discard(number=event.number)] if is_copied else []
            case Copied():
                self._backup.copied(event.epoch, event.number, event.messages, event.count)
                return []
            case Discarded():
                self._backup.discarded(event.epoch, event.number)
                return []
            case Promoted():
                return [Recover(runs=self._backup.recovered())]
            case _:
                assert_never(event)

    def _arrive(self, event: Arrived) -> FrameEffect:
        number = self._primary.arrived(
            event.wanted, event.now_us, has_backup=event.has_backup, count=event.count
        )
        return Overloaded(count=event.count) if number is None else Queued(number=number)

    def _next_job(self) -> list[FrameEffect]:
        job = self._primary.take()
        if job is None:
            return []
        if job.kind is JobKind.REPLICATE:
            return [Replicate(number=job.number, count=job.messages, due_us=job.due_us)]
        return [Dispatch(number=job.number, count=job.messages, due_us=job.due_us)]

    # ------------------------------------------------------------------------------------------ views

    def has_room(self, jobs: int) -> bool:
        """Whether `Arrived` will be taken that makes so many jobs: one or two for each message."""
        return self._primary.has_room(jobs)

    @property
    def queued(self) -> int:
        """Messages that are not dispatched yet."""
        return len(self._primary)

    @property
    def overloaded(self) -> int:
        """Messages that were refused because the queue was full."""
        return self._primary.overloaded

    @property
    def copies(self) -> int:
        """Messages that were copied to the backup."""
        return self._primary.copies

    @property
    def stored(self) -> int:
        """Messages of which there is a copy here."""
        return len(self._backup)

    @property
    def dropped(self) -> int:
        """Messages whose copies did not fit here."""
        return self._backup.dropped
