"""Retained messages that no log keeps: every node has them all, and the newest wins everywhere.

A write is stamped with a hybrid logical clock: never below its node's wall clock, always above every
stamp the node has seen, so that what was written after something was seen also counts as later, however the
clocks differ. Ties are broken by the writer: the node's id, and when it first wrote in this life. For a node
that starts again has forgotten what it wrote, and where other clocks are ahead of its own it would write
something else under a stamp that it gave before. A deletion is a write too: its stamp stays as
a tombstone, or an older value would come back from a node that was away. Tombstones are bounded in number
and age; a node that is away for longer can bring a deleted message back.

A write goes to every linked node at once. What got lost, or happened across a partition, is found by
comparing: topics fall into buckets, each bucket has a checksum over the stamps in it. Of two nodes the one
with the smaller id says its checksums (`Summary`), the other lists the stamps of the buckets that differ
(`Stamps`), and the first sends what it has newer and asks (`Want`) for what it has not. Tombstones are in
the lists but not in the checksums, so that forgetting one makes no difference to look for.

The values themselves are the driver's: read through `RetainedView`, stored by `Keep`.
"""

from collections import deque
from hashlib import blake2b
from typing import Protocol
from zlib import crc32

from msgspec import Struct

from millrace.errors import ProtocolError
from millrace.replication.contract import ReplicaId, Send
from millrace.replication.routed.messages import Stamp, Stamps, Summary, Value, Want

BUCKETS = 1024
_COUNTER_BITS = 16
INHERITED: Stamp = (0, "")
"""Of a value that a log kept before its stream was switched: older than any write, the same everywhere."""


class Keep(Struct, frozen=True, kw_only=True):
    """The newest retained message of this topic; None: there is none any more."""

    topic: str
    value: bytes | None


class Deliver(Struct, frozen=True, kw_only=True):
    """A retained message just published at another node: for the clients of this one and nobody else."""

    topic: str
    value: bytes | None


class RetainedView(Protocol):
    """The machine's sight of the retained messages that the driver stores."""

    def value(self, topic: str) -> bytes | None:
        """The message as `Keep` brought it, with what is left of its time; None where it is gone."""


class RetainedOptions(Struct, frozen=True, kw_only=True):
    tombstones_max: int = 100_000
    tombstone_age_ms_max: int = 24 * 3600 * 1000
    entries_per_message_max: int = 2_000
    entries_per_step_max: int = 10_000
    """Of lists of stamps; the rest follows with the next ticks."""
    value_bytes_per_step_max: int = 1 << 20


class Clock:
    """The hybrid logical clock of one node."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self, wall_ms: int) -> int:
        self.last = max(self.last + 1, wall_ms << _COUNTER_BITS)
        return self.last

    def saw(self, time: int) -> None:
        self.last = max(self.last, time)


class _Exchange:
    """What is still to be sent to one peer, names only."""

    __slots__ = ("buckets", "topics")

    def __init__(self) -> None:
        # A bucket with the topic after which to go on.
        self.buckets: deque[tuple[int, str]] = deque()
        self.topics: dict[str, None] = {}


class RetainedStamps:
    """The stamps of one node, and its part in comparing them with others."""

    def __init__(
        self,
        replica: ReplicaId,
        life: int,
        view: RetainedView,
        options: RetainedOptions,
    ) -> None:
        self._replica = replica
        # Random, where clocks do not tell two lives apart.
        self._life = life
        self._writer = ""
        self._view = view
        self._options = options
        self.clock = Clock()
        self._live: list[dict[str, Stamp]] = [{} for _ in range(BUCKETS)]
        # In the order of their deletion here, so that the oldest is forgotten first.
        self._dead: dict[str, Stamp] = {}
        self._dead_in: list[set[str]] = [set() for _ in range(BUCKETS)]
        self._checksums = [0] * BUCKETS
        self._exchanges: dict[ReplicaId, _Exchange] = {}
        self.checksum = 0
        """Over all buckets."""
        self.count = 0

    # ------------------------------------------------------------------------------------- writes

    def write(self, topic: str, value: bytes | None, wall_ms: int) -> Value:
        """A client of this node published: stamp it; what all linked nodes are to be told."""
        time = self.clock.next(wall_ms)
        if not self._writer:
            self._writer = f"{self._replica}.{wall_ms:012x}.{self._life:012x}"
        self._put(topic, (time, self._writer), is_deletion=value is None)
        return Value(topic=topic, time=time, node=self._writer, value=value, is_live=True)

    def inherit(self, topics: tuple[str, ...]) -> None:
        """Values that a log brought, which this machine looks after from now on."""
        for topic in topics:
            if self.stamp(topic) is None:
                self._put(topic, INHERITED, is_deletion=False)

    def forget(self, topics: tuple[str, ...]) -> None:
        """These are gone without having been deleted: expired, or a log keeps them now."""
        for topic in topics:
            self._drop(topic)
            self._unbury(topic)

    def on_value(self, body: Value) -> list[Keep | Deliver]:
        effects: list[Keep | Deliver] = []
        stamp = (body.time, body.node)
        self.clock.saw(body.time)
        if self._wins(stamp, self.stamp(body.topic)):
            self._put(body.topic, stamp, is_deletion=body.value is None)
            effects.append(Keep(topic=body.topic, value=body.value))
        if body.is_live:
            effects.append(Deliver(topic=body.topic, value=body.value))
        return effects

    def _wins(self, stamp: Stamp, known: Stamp | None) -> bool:
        return known is None or stamp > known

    def stamp(self, topic: str) -> Stamp | None:
        """Of the newest write known, a deletion included."""
        return self._live[_bucket(topic)].get(topic) or self._dead.get(topic)

    def _put(self, topic: str, stamp: Stamp, *, is_deletion: bool) -> None:
        self._drop(topic)
        self._unbury(topic)
        bucket = _bucket(topic)
        if not is_deletion:
            self._live[bucket][topic] = stamp
            self.count += 1
            self._mix(bucket, topic, stamp)
        else:
            self._bury(bucket, topic, stamp)

    def _bury(self, bucket: int, topic: str, stamp: Stamp) -> None:
        """A deletion keeps its stamp, or an older value would come back."""
        self._dead[topic] = stamp
        self._dead_in[bucket].add(topic)
        self._prune()

    def _unbury(self, topic: str) -> None:
        if self._dead.pop(topic, None) is not None:
            self._dead_in[_bucket(topic)].discard(topic)

    def _drop(self, topic: str) -> None:
        bucket = _bucket(topic)
        stamp = self._live[bucket].pop(topic, None)
        if stamp is not None:
            self.count -= 1
            self._mix(bucket, topic, stamp)

    def _mix(self, bucket: int, topic: str, stamp: Stamp) -> None:
        entry = f"{topic}\0{stamp[0]}\0{stamp[1]}".encode()
        mark = int.from_bytes(blake2b(entry, digest_size=8).digest(), "big")
        self._checksums[bucket] ^= mark
        self.checksum ^= mark

    def _prune(self) -> None:
        horizon = self.clock.last - (self._options.tombstone_age_ms_max << _COUNTER_BITS)
        while self._dead:
            topic = next(iter(self._dead))
            if len(self._dead) <= self._options.tombstones_max and self._dead[topic][0] >= horizon:
                return
            self._unbury(topic)

    @property
    def tombstones(self) -> int:
        return len(self._dead)

    # ---------------------------------------------------------------------------------- comparing

    def opened(self, peer: ReplicaId) -> list[Send]:
        self._exchanges[peer] = _Exchange()
        return self.compare(peer)

    def closed(self, peer: ReplicaId) -> None:
        self._exchanges.pop(peer, None)

    def compare(self, peer: ReplicaId) -> list[Send]:
        """Begin to look for differences, where that is this side's to do."""
        if peer < self._replica or peer not in self._exchanges:
            return []
        return [Send(to=peer, body=Summary(buckets=tuple(self._checksums)))]

    def on_summary(self, peer: ReplicaId, body: Summary) -> list[Send]:
        if len(body.buckets) != BUCKETS:
            raise ProtocolError(f"{len(body.buckets)} buckets of retained messages instead of {BUCKETS}")
        exchange = self._exchanges.get(peer)
        if exchange is None:
            return []
        pairs = enumerate(zip(self._checksums, body.buckets, strict=True))
        exchange.buckets = deque((bucket, "") for bucket, (ours, theirs) in pairs if ours != theirs)
        return self._go_on_with(peer, exchange)

    def on_stamps(self, peer: ReplicaId, body: Stamps) -> list[Send]:
        """The peer's stamps of a stretch of a bucket: send what is newer here, want what is newer there."""
        if not 0 <= body.bucket < BUCKETS:
            raise ProtocolError(f"there is no bucket {body.bucket} of retained messages")
        exchange = self._exchanges.get(peer)
        if exchange is None:
            return []
        wanted: list[str] = []
        theirs: dict[str, Stamp] = {topic: (time, node) for topic, time, node in body.entries}
        for topic, stamp in theirs.items():
            ours = self.stamp(topic)
            if ours is None or stamp > ours:
                wanted.append(topic)
            elif stamp < ours:
                exchange.topics[topic] = None
        for topic in self._stretch(body.bucket, body.after, body.upto):
            if topic not in theirs:
                exchange.topics[topic] = None
        asked = [Send(to=peer, body=Want(topics=tuple(wanted)))] if wanted else []
        return asked + self._go_on_with(peer, exchange)

    def on_want(self, peer: ReplicaId, body: Want) -> list[Send]:
        exchange = self._exchanges.get(peer)
        if exchange is None:
            return []
        known = (topic for topic in body.topics if self.stamp(topic) is not None)
        exchange.topics.update(dict.fromkeys(known))
        return self._go_on_with(peer, exchange)

    def tick(self) -> list[Send]:
        """The next piece of what did not fit into one step."""
        sends: list[Send] = []
        for peer, exchange in self._exchanges.items():
            if exchange.buckets or exchange.topics:
                sends += self._go_on_with(peer, exchange)
        return sends

    def _go_on_with(self, peer: ReplicaId, exchange: _Exchange) -> list[Send]:
        sends: list[Send] = []
        left = self._options.entries_per_step_max
        while exchange.buckets and left > 0:
            bucket, after = exchange.buckets.popleft()
            topics = self._stretch(bucket, after, None)
            entries_max = self._options.entries_per_message_max
            upto = topics[entries_max - 1] if len(topics) > entries_max else None
            if upto is not None:
                exchange.buckets.appendleft((bucket, upto))
            entries = tuple((topic, *self._known(topic)) for topic in topics[:entries_max])
            left -= len(entries) + 1
            sends.append(Send(to=peer, body=Stamps(bucket=bucket, after=after, upto=upto, entries=entries)))
        room = self._options.value_bytes_per_step_max
        while exchange.topics and room > 0:
            topic = next(iter(exchange.topics))
            del exchange.topics[topic]
            body = self._current(topic)
            if body is not None:
                room -= len(topic) + len(body.value or b"")
                sends.append(Send(to=peer, body=body))
        return sends

    def _current(self, topic: str) -> Value | None:
        stamp = self._live[_bucket(topic)].get(topic)
        if stamp is None:
            dead = self._dead.get(topic)
            return None if dead is None else Value(topic=topic, time=dead[0], node=dead[1], value=None)
        value = self._view.value(topic)
        if value is None:
            self._drop(topic)
            return None
        return Value(topic=topic, time=stamp[0], node=stamp[1], value=value)

    def _known(self, topic: str) -> Stamp:
        stamp = self.stamp(topic)
        assert stamp is not None
        return stamp

    def _stretch(self, bucket: int, after: str, upto: str | None) -> list[str]:
        """Topics of a bucket, the deleted ones too, in order."""
        topics = [*self._live[bucket], *self._dead_in[bucket]]
        return sorted(topic for topic in topics if topic > after and (upto is None or topic <= upto))

    def stamps(self) -> dict[str, Stamp]:
        """Of everything that is not deleted."""
        return {topic: stamp for bucket in self._live for topic, stamp in bucket.items()}


def _bucket(topic: str) -> int:
    return crc32(topic.encode()) % BUCKETS
