"""What a stream asks of primary-backup replication: how its nodes watch each other, and in which order they
work.

`x` of the frame formulas is `failover_ms`: three missed checks, the last judged after half an interval, and
what publishers need to notice. It cannot be less than three intervals.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from millrace.broker.settings import Settings
from millrace.broker.topics.filters import is_valid
from millrace.errors import LocalError

CLASSES_MAX = 1_000
CHECK_MS_MIN = 8
_CHECK_MS_MAX = 60_000
_DAY_MS = 24 * 60 * 60 * 1000
_MISSES = 3


class Schedule(StrEnum):
    """In which order the nodes of a pair work: first come, first served, or by the deadlines of FRAME."""

    FCFS = "fcfs"
    FRAME = "frame"


class TopicClass(Settings, frozen=True, kw_only=True):
    """Topics of one filter and what they need; the first class whose filter takes a topic counts."""

    NOUN: ClassVar[str] = "topic class"

    filter: str
    period_ms: int
    deadline_ms: int
    loss_tolerance: int | None = None
    """Messages in a row that may be lost; None for any number."""
    retention: int = 0
    """Messages that the publisher keeps and sends again."""

    def __post_init__(self) -> None:
        if not is_valid(self.filter):
            raise LocalError(f"{self.filter!r} is not a topic filter")


class PairSpec(Settings, frozen=True, kw_only=True):
    NOUN: ClassVar[str] = "primary-backup stream"

    schedule: Annotated[Schedule, Meta(description="Primary-backup: in which order work is done.")] = (
        Schedule.FCFS
    )
    check_interval_ms: Annotated[
        int, Meta(ge=CHECK_MS_MIN, le=_CHECK_MS_MAX, description="Primary-backup: health checks.")
    ] = 1000
    failover_ms: Annotated[int, Meta(ge=0)] = 0
    """0: three and a half intervals and 50 ms."""
    publisher_ms: Annotated[float, Meta(ge=0, le=_DAY_MS)] = 5.0
    subscriber_ms: Annotated[float, Meta(ge=0, le=_DAY_MS)] = 5.0
    backup_ms: Annotated[float, Meta(ge=0, le=_DAY_MS)] = 5.0
    topics: tuple[TopicClass, ...] = ()

    def __post_init__(self) -> None:
        least_ms = _MISSES * self.check_interval_ms
        if self.failover_ms and self.failover_ms < least_ms:
            raise LocalError(f"failover_ms = {self.failover_ms} is less than three checks, {least_ms} ms")
        if self.schedule is Schedule.FRAME and not self.topics:
            raise LocalError(
                "the schedule frame needs the classes of its topics: period, deadline, tolerance"
            )
        if len(self.topics) > CLASSES_MAX:
            raise LocalError(f"at most {CLASSES_MAX} topic classes")

    @property
    def x_ms(self) -> int:
        return self.failover_ms or _MISSES * self.check_interval_ms + self.check_interval_ms // 2 + 50
