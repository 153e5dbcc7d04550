"""Which broker speaks for a primary-backup stream: what brokers say of themselves, and who is behind.

Two nodes that cannot hear each other may both be primary; the higher epoch wins [rule 23], and the
other one does not know it yet. A client that reaches both can know. Every node says, on `$SYS/pairs`,
retained and anew with every change, of which shards it is primary and under which epoch. `Epochs` remembers
the highest one seen for each shard, across connections and brokers; a `Standing` is what one connection said.
A broker that says it is primary under a lower epoch than the highest is *behind*: what it delivers and
acknowledges for the topics of that shard does not count. One that does not say it is primary passes on what
the primary gave it and is never behind.

The word of a change and the messages that follow it come over the same connection in that order, so it must
be heard where packets are taken from the connection, before anything that waits in a queue.
"""

import logging
from collections.abc import Callable, Hashable

import msgspec

from millrace.broker.meta.pairs import PAIRS_TOPIC
from millrace.broker.streams.stream import specificity
from millrace.broker.topics.filters import levels_match
from millrace.kernels.checksum import crc32c

log = logging.getLogger("millrace.client")

_TOPICS_MAX = 10_000
_SHARDS_MAX = 100_000


class Stream(msgspec.Struct, frozen=True):
    """Filters and open shards of one stream; no shards: it is of another kind and takes topics away."""

    filters: list[str]
    shards: list[int]


class Word(msgspec.Struct, frozen=True):
    """What a node says on `$SYS/pairs`."""

    cluster: str
    primary: list[tuple[int, int]]
    """Shard and epoch."""
    streams: list[Stream]


_DECODER = msgspec.json.Decoder(Word)
Shard = tuple[str, int]
"""Cluster and number: numbers are never used again within a cluster."""


class Epochs:
    """What is known of all brokers; shared by the clients of one application."""

    def __init__(self) -> None:
        self._highest: dict[Shard, int] = {}
        self._listeners: dict[Hashable, Callable[[], None]] = {}
        self.refused_messages = 0
        """Messages that came from a broker that is behind."""
        self.refused_publishes = 0
        """Acknowledgements that did not count because they came from such a broker."""

    def highest(self, shard: Shard) -> int:
        return self._highest.get(shard, 0)

    def raise_to(self, claims: dict[Shard, int]) -> None:
        is_higher = False
        for shard, epoch in claims.items():
            if epoch > self._highest.get(shard, 0):
                # The oldest goes first: a client that meets so many clusters has long left that one.
                if len(self._highest) >= _SHARDS_MAX and shard not in self._highest:
                    del self._highest[next(iter(self._highest))]
                self._highest[shard] = epoch
                is_higher = True
        if is_higher:
            for call in list(self._listeners.values()):
                call()

    def listen(self, owner: Hashable, call: Callable[[], None]) -> None:
        """Call back whenever a higher epoch was heard of."""
        self._listeners[owner] = call

    def unlisten(self, owner: Hashable) -> None:
        self._listeners.pop(owner, None)


class Standing:
    """What the broker of one connection said last. A new connection begins with nothing."""

    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs
        self._claims: dict[Shard, int] = {}
        self._patterns: list[tuple[list[str], Stream]] = []
        self._cluster = ""
        self._by_topic: dict[str, Shard | None] = {}

    def hear(self, payload: bytes) -> None:
        """A word on `$SYS/pairs`; one that cannot be read is as good as none."""
        try:
            word = _DECODER.decode(payload)
        except msgspec.DecodeError as error:
            log.info("%s: %s", PAIRS_TOPIC, error)
            return
        self._cluster = word.cluster
        self._claims = {(word.cluster, shard): epoch for shard, epoch in word.primary}
        pairs = [(filter, stream) for stream in word.streams for filter in stream.filters]
        pairs.sort(key=lambda pair: specificity(pair[0]))
        self._patterns = [(filter.split("/"), stream) for filter, stream in pairs]
        self._by_topic.clear()
        self.epochs.raise_to(self._claims)

    def lost(self) -> None:
        """The connection is gone; the next one may reach a broker that thinks otherwise."""
        self._claims = {}

    def is_behind(self, topic: str) -> bool:
        """Whether the broker acts for this topic under an epoch that is over."""
        if not self._claims:
            return False
        if topic not in self._by_topic:
            if len(self._by_topic) >= _TOPICS_MAX:
                self._by_topic.clear()
            self._by_topic[topic] = self._find(topic)
        shard = self._by_topic[topic]
        claimed = None if shard is None else self._claims.get(shard)
        return claimed is not None and shard is not None and claimed < self.epochs.highest(shard)

    def _find(self, topic: str) -> Shard | None:
        """The shard of a topic: the most specific filter decides, then the hash [rule 15]."""
        levels = topic.split("/")
        for pattern, stream in self._patterns:
            if levels_match(pattern, levels):
                if not stream.shards:
                    return None
                return self._cluster, stream.shards[crc32c(topic.encode()) % len(stream.shards)]
        return None
