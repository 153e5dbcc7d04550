"""What one log says about retained topics, as this node sees it beside its other logs.

Every entry with a retained message sets the value of its topic, at its index, in the routing generation that
the log itself names: before a node proposes the first retained message after streams changed, it proposes an
entry with the generation. So all replicas give the same value the same stamp, and the newest wins whichever
log is applied first [rule 17]. Which topics the log has set is part of the shard's state; the values are the
broker's, one for each topic.
"""

from collections.abc import Callable, Iterator

from millrace.broker.entries.shard import Generation, Retain
from millrace.broker.freezing import Frozen
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run, expiry_of
from millrace.broker.shards.block_facts import RetainedValue
from millrace.broker.shards.retained_topics import Place, RetainedTopics, SavedRetained
from millrace.broker.shards.shard_state import RetainedChanged, RetainedRestored
from millrace.broker.shards.stamps import Stamps
from millrace.limits import RETAINED_DELETED_MAX


class ShardRetained:
    def __init__(
        self,
        number: int,
        broker: Broker,
        topics: RetainedTopics,
        *,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
    ) -> None:
        self._number = number
        self._broker = broker
        self._topics = topics
        self._now_ms = now_ms
        self._wall_us = wall_us
        self.stamps = Stamps()
        """Shared by all logs of a node."""
        self.routing_generation: Callable[[], int] = lambda: 0
        # The generation that was proposed and may not be applied yet.
        self._announced = 0
        # As long as a snapshot is made of them.
        self._frozen: Frozen[str, Place] | None = None

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    # ------------------------------------------------------------------------------------- entries

    def announcement(self, arrivals: list[Arrival]) -> Generation | None:
        """What the log must know before these: the routing generation, if one of them is retained."""
        generation = self.routing_generation()
        if generation <= max(self._topics.generation, self._announced):
            return None
        for arrival in arrivals:
            if arrival.run is not None and arrival.run.retain:
                self._announced = generation
                return Generation(generation)
        return None

    def entry(self, topic: str, run: Run, wall_us: int, carried_over: int = 0) -> Retain:
        """The entry that keeps this value."""
        if run.expires_ms is None:
            return Retain(topic, run.data, run.qos, run.v5, wall_us, carried_over)
        return Retain(topic, *_value(run, self._now_ms(), self._wall_us()), carried_over)

    def lost(self) -> None:
        """What was announced may not have got there."""
        self._announced = 0

    # ----------------------------------------------------------------------------------- committed

    def changed(self, effect: RetainedChanged) -> None:
        if self._frozen is not None:
            self._frozen.keep(effect.topic)
        if self.stamps.admit(effect.topic, effect.stamp):
            value = effect.value
            if value.v5:
                run = value.run(self._now_ms(), self._wall_us())
            else:
                # Nothing in it expires.
                run = Run(value.packet, 1, value.qos, False, True)
            self._broker.retained.keep(effect.topic, run, is_empty=effect.is_empty)

    def forgotten(self, topic: str) -> None:
        if self._frozen is not None:
            self._frozen.keep(topic)
        if self.stamps.is_last_of(topic, self._number):
            self.stamps.forget(topic)

    # ----------------------------------------------------------------------------------- snapshots

    def freeze(self) -> Iterator[SavedRetained]:
        """The topics on which this log has the last word, with their values of now, however long it takes to
        ask for them all; those that were deleted last."""
        self._frozen = frozen = _FrozenTopics(self)
        return self._rows(frozen)

    def saved(self, topic: str, place: Place, now_ms: int, wall_us: int) -> SavedRetained | None:
        """The topic in a snapshot; None where another log has the last word."""
        if not self.stamps.is_last_of(topic, self._number):
            return None
        found = self._broker.retained.logged(topic)
        return SavedRetained(topic, *place, None if found is None else _value(found, now_ms, wall_us))

    def _rows(self, frozen: "Frozen[str, Place]") -> Iterator[SavedRetained]:
        deleted: list[SavedRetained] = []
        for row in frozen.rows():
            if row.value is None:
                deleted.append(row)
            else:
                yield row
        for old in deleted[:-RETAINED_DELETED_MAX]:
            # Unless somebody has spoken of it meanwhile.
            if self._topics.places.get(old.topic) == old.place:
                self._topics.forget(old.topic)
                self.forgotten(old.topic)
        yield from deleted[-RETAINED_DELETED_MAX:]

    def end_freeze(self) -> None:
        self._frozen = None

    def restored(self, effect: RetainedRestored) -> None:
        """From a snapshot, in place of everything this log said before."""
        now_ms, wall_us = self._now_ms(), self._wall_us()
        for row in effect.rows:
            if self.stamps.admit(row.topic, (row.generation, self._number, row.index)):
                if row.value is not None:
                    self._broker.retained.keep(row.topic, row.value.run(now_ms, wall_us), is_empty=False)
                else:
                    self._broker.retained.drop(row.topic)
        for topic in effect.gone:
            if self.stamps.is_last_of(topic, self._number):
                self.stamps.forget(topic)
                self._broker.retained.drop(topic)


class _FrozenTopics(Frozen[str, Place]):
    def __init__(self, retained: ShardRetained) -> None:
        super().__init__(retained._topics.places)
        self._retained = retained
        # The clocks once: there may be many topics.
        self._now_ms, self._wall_us = retained._now_ms(), retained._wall_us()

    def row(self, key: str, value: Place) -> SavedRetained | None:
        return self._retained.saved(key, value, self._now_ms, self._wall_us)


def _value(run: Run, now_ms: int, wall_us: int) -> RetainedValue:
    if run.expires_ms is not None:
        # As if published now with what is left of its time.
        expiry_s = expiry_of(run.data) or 0
        wall_us += (run.expires_ms - now_ms - expiry_s * 1000) * 1000
    return RetainedValue(run.data, run.qos, run.v5, wall_us)
