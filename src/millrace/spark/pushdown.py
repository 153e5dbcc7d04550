"""Conditions of a query that the source applies itself: on topic, shard, offset and timestamp.

Spark does not look again at a condition that was taken, so one is taken only where it is applied exactly;
every other one is given back. Offsets and shards narrow what is asked of the node; topics are looked up in
the dictionary of each block; times choose rows, and blocks that begin too late are passed over unread.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from millrace.spark.offsets import TIME_US_MIN, TIME_US_TOP, Span, to_us

OFFSET_TOP = (1 << 63) - 1
_NEVER_NULL = frozenset(("topic", "shard", "offset", "timestamp", "payload", "qos", "retain"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All of them hold for a row that is wanted."""

    topics: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    shards: frozenset[int] | None = None
    offset_least: int = 0
    offset_most: int = OFFSET_TOP
    from_us: int = TIME_US_MIN
    until_us: int = TIME_US_TOP

    def takes(self, topic: str) -> bool:
        return (self.topics is None or topic in self.topics) and all(map(topic.startswith, self.prefixes))

    @property
    def has_topics(self) -> bool:
        return self.topics is not None or bool(self.prefixes)

    def narrowed(self, spans: Iterable[Span]) -> list[Span]:
        """What of these can hold wanted rows."""
        cut = (
            replace(span, start=max(span.start, self.offset_least), end=min(span.end, self.offset_most + 1))
            for span in spans
            if self.shards is None or span.shard in self.shards
        )
        return [span for span in cut if span.count > 0]


EVERYTHING = Conditions()


def push(conditions: Conditions, filter: Filter) -> Conditions | None:
    """With this filter as well, or None if it has to be applied by Spark."""
    match filter:
        case IsNotNull(attribute=(name,)) if name in _NEVER_NULL:
            return conditions
        case StringStartsWith(attribute=("topic",), value=str(prefix)):
            return replace(conditions, prefixes=(*conditions.prefixes, prefix))
        case EqualTo(attribute=(name,), value=value):
            return _one_of(conditions, name, [value])
        case In(attribute=(name,), value=values):
            return _one_of(conditions, name, list(values))
        case (
            GreaterThan(attribute=(name,), value=value)
            | GreaterThanOrEqual(attribute=(name,), value=value)
            | LessThan(attribute=(name,), value=value)
            | LessThanOrEqual(attribute=(name,), value=value)
        ):
            return _compared(conditions, filter, name, value)
    return None


def _one_of(conditions: Conditions, name: str, values: list[Any]) -> Conditions | None:
    if name == "topic" and all(isinstance(value, str) for value in values):
        given = frozenset(values)
        return replace(conditions, topics=given if conditions.topics is None else given & conditions.topics)
    if name == "shard" and all(isinstance(value, int) for value in values):
        numbers = frozenset(values)
        return replace(
            conditions, shards=numbers if conditions.shards is None else numbers & conditions.shards
        )
    bounds = _BOUNDS.get(name)
    if bounds is None or len(values) != 1 or not isinstance(values[0], bounds.kind):
        return None
    value = bounds.to_number(values[0])
    return bounds.within(conditions, value, value)


def _compared(conditions: Conditions, filter: Filter, name: str, value: Any) -> Conditions | None:
    bounds = _BOUNDS.get(name)
    if bounds is None or not isinstance(value, bounds.kind):
        return None
    number = bounds.to_number(value)
    match filter:
        case GreaterThan():
            return bounds.within(conditions, number + 1, None)
        case GreaterThanOrEqual():
            return bounds.within(conditions, number, None)
        case LessThan():
            return bounds.within(conditions, None, number - 1)
    return bounds.within(conditions, None, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """A column with an order: the type of its values and the fields that hold the two ends."""

    kind: type
    to_number: Callable[[Any], int]
    least: str
    most: str

    def within(self, conditions: Conditions, least: int | None, most: int | None) -> Conditions:
        changes = {}
        if least is not None:
            changes[self.least] = max(getattr(conditions, self.least), least)
        if most is not None:
            changes[self.most] = min(getattr(conditions, self.most), most)
        return replace(conditions, **changes)


_BOUNDS = {
    "offset": _Bounds(kind=int, to_number=int, least="offset_least", most="offset_most"),
    "timestamp": _Bounds(kind=datetime, to_number=to_us, least="from_us", most="until_us"),
}
