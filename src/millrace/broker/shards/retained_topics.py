"""The topics on which one log has said something that is retained, and where it said so last.

A place is the routing generation of which the log speaks at that point, and the index of the entry: with the
log's number it is the stamp by which all nodes agree which log's value is the newest (`stamps.py`).
A deletion is a place like any other. The values are not here: a node keeps one for each topic, over all its
logs."""

from collections.abc import Iterable

import msgspec

from millrace.broker.shards.block_facts import RetainedValue
from millrace.limits import RETAINED_DELETED_MAX

Place = tuple[int, int]
"""Routing generation and index."""


class SavedRetained(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A topic in a snapshot; without a value it was deleted."""

    topic: str
    generation: int
    index: int
    value: RetainedValue | None = None

    @property
    def place(self) -> Place:
        return self.generation, self.index


class RetainedTopics:
    __slots__ = ("_deleted", "generation", "places")

    def __init__(self) -> None:
        self.generation = 0
        self.places: dict[str, Place] = {}
        # Those that were deletions, the oldest first.
        self._deleted: dict[str, None] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self.places

    def generation_of(self, topic: str) -> int:
        """In which this log last spoke of the topic; -1 where it has not."""
        place = self.places.get(topic)
        return -1 if place is None else place[0]

    def announced(self, generation: int) -> None:
        """What follows is of this routing generation."""
        self.generation = max(self.generation, generation)

    def keep(self, topic: str, index: int, *, is_empty: bool) -> str | None:
        """The entry at `index` speaks of this topic. Returns a topic that is forgotten for it."""
        self.places.pop(topic, None)
        self.places[topic] = (self.generation, index)
        self._deleted.pop(topic, None)
        if is_empty:
            self._deleted[topic] = None
            if len(self._deleted) > RETAINED_DELETED_MAX:
                oldest = next(iter(self._deleted))
                self.forget(oldest)
                return oldest
        return None

    def forget(self, topic: str) -> None:
        """That a message was deleted, or has expired, long ago."""
        self._deleted.pop(topic, None)
        del self.places[topic]

    def take_in(self, rows: Iterable[SavedRetained]) -> None:
        """Some of a snapshot."""
        for row in rows:
            self.places[row.topic] = row.place
            if row.value is None:
                self._deleted[row.topic] = None

    def become(self, other: "RetainedTopics") -> None:
        """A snapshot takes the place of what was known."""
        self.generation, self.places, self._deleted = other.generation, other.places, other._deleted
