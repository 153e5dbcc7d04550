"""How old the oldest message is that a durable group is not done with.

The place of that message is known from the group's cursor; its time is in the log. A place that was looked up
is remembered until the cursor moves on, and one answer looks up a bounded number of places: an answer must
not read whole logs. A group whose turn has not come is left out of that answer.
"""

from collections.abc import Callable, Iterable

from millrace.broker.groups.definitions import DurableGroup
from millrace.errors import StorageError
from millrace.node.logs.reading import Reading, keys_of, matching_rows
from millrace.node.shards.shard import Shard

# Reads of about 1 MiB for one answer.
_READS_MAX = 20
# Places that are remembered; beyond, all are looked up again.
_PLACES_MAX = 10_000


class _Place:
    """From where on a log was looked through for a group, to where, and what was found there."""

    __slots__ = ("end", "low", "time_us")

    def __init__(self, low: int) -> None:
        self.low = self.end = low
        self.time_us: int | None = None


class GroupAges:
    """`begin` before each answer."""

    def __init__(self, reading: Reading, wall_us: Callable[[], int]) -> None:
        self._reading = reading
        self._wall_us = wall_us
        self._places: dict[tuple[int, int], _Place] = {}
        self._reads_left = 0

    def begin(self) -> None:
        """Another answer may read again."""
        self._reads_left = _READS_MAX
        if len(self._places) > _PLACES_MAX:
            self._places.clear()

    async def oldest_s(self, group: DurableGroup, shards: Iterable[Shard]) -> float | None:
        """The age in seconds; 0 where nothing waits in these shards, None where that is not known yet."""
        oldest_us: int | None = None
        for shard in shards:
            place = self._place(group, shard)
            while place.time_us is None and place.end < shard.next_offset:
                if self._reads_left <= 0:
                    return None
                self._reads_left -= 1
                try:
                    await self._read_on(place, group, shard)
                except StorageError:
                    # Trimmed or damaged meanwhile: the cursor moves past it, and then it is looked up again.
                    return None
            if place.time_us is not None and (oldest_us is None or place.time_us < oldest_us):
                oldest_us = place.time_us
        return 0.0 if oldest_us is None else max(0.0, (self._wall_us() - oldest_us) / 1_000_000)

    def _place(self, group: DurableGroup, shard: Shard) -> _Place:
        cursor = shard.consumers.state.cursors.get(group.number)
        low = max(group.start(shard.number) if cursor is None else cursor.low, shard.first_offset)
        key = group.number, shard.number
        place = self._places.get(key)
        if place is None or low < place.low or (place.time_us is not None and low != place.low):
            place = self._places[key] = _Place(low)
        elif place.time_us is None:
            # Nothing of this group is below `end`: it was looked through.
            place.low, place.end = low, max(place.end, low)
        return place

    async def _read_on(self, place: _Place, group: DurableGroup, shard: Shard) -> None:
        known: dict[bytes, bool] = {}

        def takes(topic: bytes) -> bool:
            if topic not in known:
                known[topic] = group.spec.takes(topic.decode())
            return known[topic]

        end = shard.next_offset
        blocks = await self._reading.blocks(shard, place.end, keys_of(group.spec.filters))
        for block in blocks:
            rows = matching_rows(block, place.end, takes)
            if rows:
                first, _ = rows[0]
                place.time_us = block.header.base_time_us + block.columns().deltas_us[first]
                return
            place.end = max(place.end, block.header.next_offset)
        if not blocks:
            place.end = max(place.end, end)
