"""FRAME: what a topic's numbers ask of the primary, whether that can be met, and in which order it is done.

A topic has a period T, a deadline D from publisher to subscriber, a loss tolerance L (how many messages in a
row may be missing) and a retention N (how many of its last messages the publisher sends again after a
failover). With x the time a failover takes and the latencies of the links publisher to broker (PB), broker to
subscriber (BS) and broker to backup (BB), counted from the arrival at the primary [B7]:

    replicate within  (N + L) T - PB - BB - x      or more than L in a row may be lost with the primary
    dispatch within   D - PB - BS                  or the subscriber has it too late

Where the dispatch deadline is not later than the replication deadline, a message is dispatched before it
would have to be replicated, so it is not. x and the latencies are configured bounds [rule 24]: they
decide before a message exists. A topic whose deadline would be negative is refused, with the number.

The queue holds jobs of all topics and gives out the one with the earliest deadline. A job is for a run:
messages of one class that arrived together have the same deadlines and are one entry. The queue is bounded by
messages; what does not fit is refused and counted, never dropped in silence.
"""

import heapq
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from millrace.errors import LocalError


class Schedule(Enum):
    FCFS = "fcfs"
    """Replicate, then dispatch, in the order of arrival."""
    FRAME = "frame"
    """Earliest deadline first; replicate only where it is needed in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTerms:
    """What is asked for the topics of one class."""

    period_ms: int
    deadline_ms: int
    loss_tolerance: int | None
    """Messages in a row that may be lost; None for any number."""
    retention: int = 0
    """Messages that the publisher keeps and sends again after a failover."""

    def __post_init__(self) -> None:
        if self.period_ms < 1 or self.deadline_ms < 1:
            raise LocalError("period_ms and deadline_ms are at least 1")
        if self.retention < 0 or (self.loss_tolerance is not None and self.loss_tolerance < 0):
            raise LocalError("loss_tolerance and retention cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBounds:
    """The worst that is allowed for; what is measured is compared with it."""

    failover_ms: float
    """x: from the death of the primary until publishers reach the new one."""
    publisher_ms: float
    subscriber_ms: float
    backup_ms: float

    def __post_init__(self) -> None:
        if min(self.failover_ms, self.publisher_ms, self.subscriber_ms, self.backup_ms) < 0:
            raise LocalError("bounds of latencies cannot be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Of one class, from the arrival at the primary."""

    dispatch_ms: float
    replicate_ms: float | None
    """None where nothing needs to be replicated whatever happens."""
    is_replicated: bool
    why: str


def deadlines(terms: TopicTerms, bounds: LinkBounds) -> Deadlines:
    """What the formulas give; LocalError names the number that cannot be met."""
    dispatch_ms = terms.deadline_ms - bounds.publisher_ms - bounds.subscriber_ms
    if dispatch_ms < 0:
        raise LocalError(
            f"the dispatch deadline would be {dispatch_ms:g} ms: {terms.deadline_ms} - "
            f"{bounds.publisher_ms:g} (publisher) - {bounds.subscriber_ms:g} (subscriber)"
        )
    if terms.loss_tolerance is None:
        why = "any number of messages may be lost"
        return Deadlines(dispatch_ms=dispatch_ms, replicate_ms=None, is_replicated=False, why=why)
    kept = terms.retention + terms.loss_tolerance
    replicate_ms = kept * terms.period_ms - bounds.publisher_ms - bounds.backup_ms - bounds.failover_ms
    if replicate_ms < 0:
        raise LocalError(
            f"the replication deadline would be {replicate_ms:g} ms: "
            f"({terms.retention} + {terms.loss_tolerance}) x {terms.period_ms} - "
            f"{bounds.publisher_ms:g} (publisher) - {bounds.backup_ms:g} (backup) - "
            f"{bounds.failover_ms:g} (failover)"
        )
    if dispatch_ms <= replicate_ms:
        why = f"dispatched within {dispatch_ms:g} ms, before {replicate_ms:g} ms"
        return Deadlines(dispatch_ms=dispatch_ms, replicate_ms=replicate_ms, is_replicated=False, why=why)
    why = f"needed after {replicate_ms:g} ms, dispatched as late as {dispatch_ms:g} ms"
    return Deadlines(dispatch_ms=dispatch_ms, replicate_ms=replicate_ms, is_replicated=True, why=why)


class JobKind(Enum):
    REPLICATE = "replicate"
    DISPATCH = "dispatch"


class Job(NamedTuple):
    """A tuple: two are made for every run."""

    kind: JobKind
    number: int
    """Of the first message, in the order of arrival."""
    due_us: int
    messages: int = 1
    """Of the run, numbered one after the other."""


class JobQueue:
    """Jobs by deadline; of equal ones the earlier message first, and its copy before its dispatch. A run
    counts as the messages it has."""

    __slots__ = ("_cancelled", "_heap", "_jobs", "_jobs_cancelled", "_jobs_max")

    def __init__(self, jobs_max: int) -> None:
        self._jobs_max = jobs_max
        self._heap: list[tuple[int, int, int, Job]] = []
        self._jobs = 0
        self._cancelled: dict[tuple[JobKind, int], int] = {}
        self._jobs_cancelled = 0

    def __len__(self) -> int:
        return self._jobs - self._jobs_cancelled

    def has_room(self, jobs: int) -> bool:
        """What is cancelled still takes its place until its turn comes."""
        return self._jobs + jobs <= self._jobs_max

    def push(self, job: Job) -> None:
        if not self.has_room(job.messages):
            raise LocalError(f"the queue holds {self._jobs_max} jobs, the most; ask `has_room` before")
        rank = 0 if job.kind is JobKind.REPLICATE else 1
        heapq.heappush(self._heap, (job.due_us, job.number, rank, job))
        self._jobs += job.messages

    def cancel(self, kind: JobKind, number: int, count: int = 1) -> None:
        """The caller knows that this job is queued, and of how many messages it is."""
        self._cancelled[kind, number] = count
        self._jobs_cancelled += count

    def pop(self) -> Job | None:
        while self._heap:
            job = heapq.heappop(self._heap)[3]
            self._jobs -= job.messages
            cancelled = self._cancelled.pop((job.kind, job.number), 0)
            if not cancelled:
                return job
            self._jobs_cancelled -= cancelled
        return None
