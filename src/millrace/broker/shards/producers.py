"""Which (producer, sequence) pairs were stored already [rule 3].

A producer's sequences are remembered as a window of ranges, not as a high-water mark: pipelined publishes may
arrive over another connection in another order, and a gap must stay open. What falls below the window is
refused, never silently acknowledged. Producers are bounded; the one unused longest is forgotten, and
`forgotten` counts it.
"""

from bisect import bisect_right
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import msgspec

from millrace.limits import PRODUCER_RANGES_MAX, PRODUCERS_MAX

PRODUCER = "millrace-producer"
SEQUENCE = "millrace-sequence"
"""User properties of a PUBLISH that carry the key."""


class Verdict(Enum):
    NEW = "new"
    REPEATED = "repeated"
    TOO_OLD = "too old"


class SavedProducer(NamedTuple):
    name: bytes
    floor: int
    ranges: list[int]


class SavedProducers(msgspec.Struct, frozen=True, array_like=True):
    """In a snapshot: the producers in the order of their last use."""

    forgotten: int
    producers: list[SavedProducer]


class Producers:
    """Deterministic: the same sequence of `store` gives the same state everywhere."""

    __slots__ = ("_floors", "_ranges", "forgotten")

    def __init__(self) -> None:
        # Sorted, disjoint, non-touching [first, last] pairs, flat: first0, last0, first1, last1, ...
        self._ranges: dict[bytes, list[int]] = {}
        self._floors: dict[bytes, int] = {}
        self.forgotten = 0

    def judge(self, producer: bytes, sequence: int) -> Verdict:
        ranges = self._ranges.get(producer)
        if ranges is None:
            return Verdict.NEW
        at = bisect_right(ranges, sequence)
        if at % 2 or (at and ranges[at - 1] == sequence):
            return Verdict.REPEATED
        if sequence < self._floors.get(producer, 0):
            return Verdict.TOO_OLD
        return Verdict.NEW

    def store(self, producer: bytes, sequence: int) -> None:
        """The message was stored. Makes this producer the one used last."""
        ranges = self._ranges.pop(producer, None)
        if ranges is None:
            ranges = []
            if len(self._ranges) >= PRODUCERS_MAX:
                oldest = next(iter(self._ranges))
                del self._ranges[oldest]
                self._floors.pop(oldest, None)
                self.forgotten += 1
        self._ranges[producer] = ranges
        if ranges and ranges[-1] == sequence - 1:
            ranges[-1] = sequence
            return
        at = bisect_right(ranges, sequence)
        if at % 2 or (at and ranges[at - 1] == sequence):
            return
        joins_left = at and ranges[at - 1] == sequence - 1
        joins_right = at < len(ranges) and ranges[at] == sequence + 1
        if joins_left and joins_right:
            del ranges[at - 1 : at + 1]
        elif joins_left:
            ranges[at - 1] = sequence
        elif joins_right:
            ranges[at] = sequence
        else:
            ranges[at:at] = [sequence, sequence]
        if len(ranges) > 2 * PRODUCER_RANGES_MAX:
            self._floors[producer] = ranges[2]
            del ranges[:2]

    def rows(self) -> list[SavedProducer]:
        """As they are now, whatever becomes of them: they are bounded, and so is this."""
        floors = self._floors
        return [SavedProducer(name, floors.get(name, 0), r.copy()) for name, r in self._ranges.items()]

    def save(self) -> SavedProducers:
        return SavedProducers(self.forgotten, self.rows())

    @staticmethod
    def restored(saved: SavedProducers) -> "Producers":
        producers = Producers()
        producers.forgotten = saved.forgotten
        producers.take_in(saved.producers)
        return producers

    def take_in(self, rows: Iterable[SavedProducer]) -> None:
        """Further ones of a snapshot."""
        for name, floor, ranges in rows:
            self._ranges[name] = list(ranges)
            if floor:
                self._floors[name] = floor
