"""What a stream asks of primary-backup replication: how its nodes watch each other, and in which order they
work.

`x` of the frame formulas is `failover_ms`: three missed checks, the last judged after half an interval, and
what publishers need to notice. It cannot be less than three intervals.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from millrace.broker.topics.filters import is_valid
from millrace.errors import LocalError
from millrace.limits import CHECK_MS_MAX, TOPIC_CLASSES_MAX
from millrace.settings import Settings, says

CHECK_MS_MIN = 8
_DAY_MS = 24 * 60 * 60 * 1000
_MISSES = 3


class Schedule(StrEnum):
    """In which order the nodes of a pair work: first come, first served, or by the deadlines of FRAME."""

    FCFS = "fcfs"
    FRAME = "frame"


class TopicClass(Settings, frozen=True, kw_only=True):
    """Topics of one filter and what they need; the first class whose filter takes a topic counts."""

    NOUN: ClassVar[str] = "topic class"

    filter: Annotated[str, says("Topic filter of the class.")]
    period_ms: Annotated[int, says("Shortest time between two messages of a topic.")]
    deadline_ms: Annotated[int, says("Longest time from the publisher to a subscriber.")]
    loss_tolerance: Annotated[
        int | None, says("How many messages in a row may be lost; no value: any number.")
    ] = None
    retention: Annotated[int, says("Messages that the publisher keeps and sends again.")] = 0

    @classmethod
    def from_text(cls, text: str) -> dict[str, Any]:
        """The plain values of `FILTER=T,D,L,N`: period, deadline, tolerance (inf for any), retention."""
        filter, _, numbers = text.rpartition("=")
        words = [word.strip() for word in numbers.split(",")]
        names = ("period_ms", "deadline_ms", "loss_tolerance", "retention")
        if not filter or len(words) != len(names):
            raise LocalError(f"topic class {text!r}: expected FILTER=T,D,L,N, for example 'a/#=50,50,0,2'")
        values = {name: cls.field(name).from_text(word) for name, word in zip(names, words, strict=True)}
        return {"filter": filter, **values, **({"loss_tolerance": None} if words[2] == "inf" else {})}

    def refusals(self) -> Iterator[str]:
        if not is_valid(self.filter):
            yield f"{self.filter!r} is not a topic filter"


class PairSpec(Settings, frozen=True, kw_only=True):
    NOUN: ClassVar[str] = "primary-backup stream"

    schedule: Annotated[
        Schedule,
        says(
            "In which order messages are replicated and delivered. fcfs: as they come, "
            "replicated first; frame: by deadlines."
        ),
    ] = Schedule.FCFS
    check_interval_ms: Annotated[
        int, says("Time between two checks whether the primary is well.", CHECK_MS_MIN, CHECK_MS_MAX)
    ] = 1000
    failover_ms: Annotated[
        int,
        says(
            "Longest time until publishers reach the new primary; 0: 3.5 check intervals and 50 ms.",
            0,
            option="--failover-bound",
        ),
    ] = 0
    publisher_ms: Annotated[
        float, says("Longest time from a publisher to the primary.", 0, _DAY_MS, option="--publisher-bound")
    ] = 5.0
    subscriber_ms: Annotated[
        float,
        says("Longest time from the primary to a subscriber.", 0, _DAY_MS, option="--subscriber-bound"),
    ] = 5.0
    backup_ms: Annotated[
        float, says("Longest time from the primary to the backup.", 0, _DAY_MS, option="--backup-bound")
    ] = 5.0
    topics: Annotated[
        tuple[TopicClass, ...],
        says(
            "Topic classes: period and deadline, messages in a row that may be lost (inf: any), "
            "messages the publisher keeps.",
            option="--topic-class",
            metavar="FILTER=T,D,L,N",
        ),
    ] = ()

    def refusals(self) -> Iterator[str]:
        least_ms = _MISSES * self.check_interval_ms
        if self.failover_ms and self.failover_ms < least_ms:
            yield f"failover_ms = {self.failover_ms} is less than three checks, {least_ms} ms"
        if self.schedule is Schedule.FRAME and not self.topics:
            yield "the schedule frame needs the classes of its topics: period, deadline, tolerance"
        if len(self.topics) > TOPIC_CLASSES_MAX:
            yield f"at most {TOPIC_CLASSES_MAX} topic classes"

    @property
    def x_ms(self) -> int:
        return self.failover_ms or _MISSES * self.check_interval_ms + self.check_interval_ms // 2 + 50
