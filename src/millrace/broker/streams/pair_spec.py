"""What a stream asks of primary-backup replication: how its nodes watch each other, and in which order they
work.

`x` of the frame formulas is `failover_ms`: three missed checks, the last judged after half an interval, and
what publishers need to notice. It cannot be less than three intervals.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from millrace.broker.topics.filters import is_valid
from millrace.errors import LocalError

SCHEDULES = ("fcfs", "frame")
CLASSES_MAX = 1_000
CHECK_MS_MIN = 8
_MISSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClass:
    """Topics of one filter and what they need; the first class whose filter takes a topic counts."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSpec:
    schedule: str = "fcfs"
    check_interval_ms: int = 1000
    failover_ms: int = 0
    """0: three and a half intervals and 50 ms."""
    publisher_ms: float = 5.0
    subscriber_ms: float = 5.0
    backup_ms: float = 5.0
    topics: tuple[TopicClass, ...] = ()

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise LocalError(f"schedule is one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if not CHECK_MS_MIN <= self.check_interval_ms <= 60_000:
            raise LocalError(f"check_interval_ms is {CHECK_MS_MIN} to 60000, not {self.check_interval_ms}")
        least_ms = _MISSES * self.check_interval_ms
        if self.failover_ms and self.failover_ms < least_ms:
            raise LocalError(f"failover_ms = {self.failover_ms} is less than three checks, {least_ms} ms")
        if self.schedule == "frame" and not self.topics:
            raise LocalError(
                "the schedule frame needs the classes of its topics: period, deadline, tolerance"
            )
        if len(self.topics) > CLASSES_MAX:
            raise LocalError(f"at most {CLASSES_MAX} topic classes")

    @property
    def x_ms(self) -> int:
        return self.failover_ms or _MISSES * self.check_interval_ms + self.check_interval_ms // 2 + 50


def pair_to_dict(spec: PairSpec) -> dict[str, Any]:
    return {**asdict(spec), "topics": [asdict(one) for one in spec.topics]}


def pair_from_dict(given: Any, base: PairSpec) -> PairSpec:
    """LocalError says what is wrong; what is absent is as in `base`."""
    if not isinstance(given, Mapping):
        raise LocalError(f"primary_backup = {given!r}: expected a table of settings")
    merged: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(PairSpec)}
    for name, value in given.items():
        if name not in merged:
            raise LocalError(f"primary_backup has no setting {name!r}; there are: {', '.join(merged)}")
        merged[name] = _classes(value) if name == "topics" else _checked(name, value, merged[name])
    return PairSpec(**merged)


def _checked(name: str, value: Any, example: Any) -> Any:
    kinds = (int, float) if isinstance(example, float) else (type(example),)
    is_number = not isinstance(value, float) or math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, kinds) or not is_number:
        raise LocalError(f"{name} = {value!r}: expected {kinds[-1].__name__}")
    return type(example)(value)


def _classes(given: Any) -> tuple[TopicClass, ...]:
    if not isinstance(given, list | tuple):
        raise LocalError(f"topics = {given!r}: expected a list of topic classes")
    return tuple(map(_class, given))


def _class(given: Any) -> TopicClass:
    names = {field.name for field in fields(TopicClass)}
    if not isinstance(given, Mapping) or not {"filter", "period_ms", "deadline_ms"} <= given.keys():
        raise LocalError("a topic class has a filter, a period_ms and a deadline_ms")
    unknown = sorted(given.keys() - names)
    if unknown:
        raise LocalError(
            f"a topic class has no setting {unknown[0]!r}; there are: {', '.join(sorted(names))}"
        )
    for name, value in given.items():
        is_text = name == "filter"
        if value is None and name == "loss_tolerance":
            continue
        if isinstance(value, bool) or not isinstance(value, str if is_text else int):
            raise LocalError(f"{name} = {value!r}: expected {'a filter' if is_text else 'a whole number'}")
    return TopicClass(**given)
