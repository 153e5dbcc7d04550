"""Streams: which log keeps the messages of a topic, and what is promised about them.

A stream is a named set of topic filters with one policy. Every topic belongs to exactly one stream: the one
with the most specific matching filter, compared level by level, a literal before `+` before `#`
[rule 15]; the built-in stream `default` takes the rest. Topics that begin with `$` belong to none.

A stream has shards; a topic's shard follows from CRC-32C of its name, so order holds per topic everywhere.
Shard ids are numbers that are never used again: changing shards, filters or replication seals the old shards
and opens new ones under the next routing generation [rule 16].
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from millrace.broker.streams.pair_spec import PairSpec
from millrace.broker.topics.filters import is_valid, levels_cover, levels_match, levels_overlap, overlaps
from millrace.errors import LocalError
from millrace.kernels.checksum import crc32c

DEFAULT_STREAM = "default"
SHARDS_MAX = 256
FILTERS_MAX = 1_000
STREAMS_MAX = 1_000
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DAY_S = 24 * 60 * 60
_GIB = 1024 * 1024 * 1024


class Capture(Enum):
    """What of a stream is logged."""

    ACKNOWLEDGED = "acknowledged"
    """QoS 1, QoS 2 and HTTP."""
    ALL = "all"
    """QoS 0 too."""
    NONE = "none"
    """Nothing: memory only."""


class Replication(Enum):
    QUORUM = "quorum"
    PRIMARY_BACKUP = "primary-backup"
    LEADERLESS = "leaderless"
    ROUTED = "routed"


ACK_LEVELS = ("local", "one", "majority", "all")
"""How many nodes of a leaderless stream have a message on disk before its publisher is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """When the log may forget, whole segments at a time; 0 means without this bound. What a durable group has
    not read yet stays longer, up to the hard limit [rule 18]."""

    age_s: int = 7 * _DAY_S
    bytes_max: int = 0
    hold_age_s: int = 7 * _DAY_S
    hold_bytes: int = 0
    """Up to this age and these bytes of a log a group holds it; less than `age_s` and `bytes_max` is as they
    are. So bytes are a hard limit unless somebody says otherwise, because they are about the disk."""

    @property
    def hard(self) -> "Retention":
        """What goes whoever holds it."""
        return Retention(
            age_s=self.age_s and max(self.age_s, self.hold_age_s),
            bytes_max=self.bytes_max and max(self.bytes_max, self.hold_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """What somebody asked for. Raises LocalError where it makes no sense."""

    name: str
    filters: tuple[str, ...]
    replication: Replication = Replication.QUORUM
    shards: int = 1
    replicas: int = 3
    capture: Capture = Capture.ALL
    retention: Retention = field(default_factory=Retention)
    compression: str = "none"
    edge: str = ""
    """`module:function` that makes what is delivered out of what was published; empty: as published."""
    primary_backup: PairSpec = field(default_factory=PairSpec)
    """Of primary-backup streams only."""
    ack: str = "majority"
    """Of leaderless streams only, and so is `storage`: disk, or memory for one that a restart forgets."""
    storage: str = "disk"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LocalError(f"{self.name!r} is not a stream name: letters, digits, dot, dash, underscore")
        if not self.filters and self.name != DEFAULT_STREAM:
            raise LocalError(f"stream {self.name!r} needs at least one topic filter")
        if len(self.filters) > FILTERS_MAX or len(set(self.filters)) != len(self.filters):
            raise LocalError(f"stream {self.name!r}: at most {FILTERS_MAX} filters, each once")
        for filter in self.filters:
            if not is_valid(filter) or filter.startswith("$"):
                raise LocalError(f"stream {self.name!r}: {filter!r} is not a filter of ordinary topics")
        if not 1 <= self.shards <= SHARDS_MAX:
            raise LocalError(f"stream {self.name!r}: 1 to {SHARDS_MAX} shards, not {self.shards}")
        kept = self.retention
        if self.replicas < 1 or min(kept.age_s, kept.bytes_max, kept.hold_age_s, kept.hold_bytes) < 0:
            raise LocalError(f"stream {self.name!r}: replicas and retention cannot be negative")
        if self.ack not in ACK_LEVELS or self.storage not in ("disk", "memory"):
            levels = ", ".join(ACK_LEVELS)
            raise LocalError(f"stream {self.name!r}: ack is one of {levels}; storage is disk or memory")
        if self.replication is Replication.LEADERLESS and (
            self.shards > 1 or self.edge or not self.filters or self.capture is Capture.NONE
        ):
            raise LocalError(
                f"stream {self.name!r}: a leaderless stream has filters, a log for each node in place of "
                "shards, and no edge function"
            )
        if self.replication is not Replication.LEADERLESS and self.storage != "disk":
            raise LocalError(f"stream {self.name!r}: storage = memory is for leaderless streams")
        if self.compression not in ("none", "zlib"):
            raise LocalError(f"stream {self.name!r}: compression is none or zlib")
        if self.edge and not _FUNCTION.fullmatch(self.edge):
            raise LocalError(f"stream {self.name!r}: {self.edge!r} is not module:function")
        if self.edge and (not self.is_stored or self.name == DEFAULT_STREAM):
            raise LocalError(f"stream {self.name!r}: an edge function needs a stream of its own with a log")
        if self.is_framed and (self.edge or self.shards > 1):
            raise LocalError(f"stream {self.name!r}: the schedule frame has one shard and no edge function")

    @property
    def is_framed(self) -> bool:
        """Whether its messages go by deadlines, past the log."""
        return self.replication is Replication.PRIMARY_BACKUP and self.primary_backup.schedule == "frame"

    @property
    def is_stored(self) -> bool:
        """Whether its messages go into logs: those of a routed stream, or of one without capture, do not."""
        return self.replication is not Replication.ROUTED and self.capture is not Capture.NONE


DEFAULT_SPEC = StreamSpec(
    name=DEFAULT_STREAM,
    filters=(),
    capture=Capture.ACKNOWLEDGED,
    retention=Retention(age_s=_DAY_S, bytes_max=10 * _GIB, hold_age_s=_DAY_S),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream as it stands: its policy, its open shards in order of their numbers, and sealed ones."""

    spec: StreamSpec
    generation: int
    shards: tuple[int, ...]
    """Ids of the open shards; a topic's is `shards[crc32c(topic) % len(shards)]`. None of a routed stream."""
    sealed: tuple[int, ...] = ()
    """Ids of earlier generations, oldest first: readers finish these before the open ones."""
    edges: Mapping[int, str] = field(default_factory=dict)
    """Shard -> the edge function of what is in it, for the shards that have one."""
    leaderless: tuple[int, ...] = ()
    """Those of all these numbers that stand for a log of each node, not for one log."""

    def is_leaderless(self, number: int) -> bool:
        return number in self.leaderless


def specificity(filter: str) -> tuple[int, ...]:
    """Sorts before another that takes the same topic where it is the more specific one."""
    return tuple(2 if level == "#" else 1 if level == "+" else 0 for level in filter.split("/"))


class StreamTable:
    """All streams of one routing generation. Immutable; a change makes another table."""

    __slots__ = ("_literal", "_patterns", "default", "streams")

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams = dict(streams)
        self.default = self.streams[DEFAULT_STREAM]
        self._literal: dict[str, Stream] = {}
        patterns: list[tuple[tuple[int, ...], tuple[str, ...], Stream]] = []
        for stream in self.streams.values():
            for filter in stream.spec.filters:
                if "+" in filter or "#" in filter:
                    patterns.append((specificity(filter), tuple(filter.split("/")), stream))
                else:
                    self._literal[filter] = stream
        self._patterns = sorted(patterns, key=lambda pattern: pattern[0])

    def find(self, topic: str) -> Stream | None:
        """The stream of a topic; None for `$` topics. Asked once per route, never per message."""
        if topic.startswith("$"):
            return None
        stream = self._literal.get(topic)
        if stream is not None:
            return stream
        levels = topic.split("/")
        for _, pattern, candidate in self._patterns:
            if levels_match(pattern, levels):
                return candidate
        return self.default

    def shard(self, stream: Stream, topic: bytes) -> int:
        """The open shard that keeps this topic."""
        shards = stream.shards
        return shards[crc32c(topic) % len(shards)]

    def shards_for(self, stream: Stream, filter: str) -> set[int]:
        """Shards of a stream that may hold a topic of this filter, as far as this table knows."""
        if "+" in filter or "#" in filter:
            is_concerned = stream is self.default or any(overlaps(filter, own) for own in stream.spec.filters)
            return {*stream.sealed, *stream.shards} if is_concerned else set()
        if self.find(filter) is not stream:
            return set()
        return {*stream.sealed, *((self.shard(stream, filter.encode()),) if stream.shards else ())}

    def open_shards_for(self, filter: str) -> set[int]:
        """Shards that messages of this filter may go to from now on."""
        only = self.find(filter)
        if only is None:
            return set()
        if "+" not in filter and "#" not in filter:
            return {self.shard(only, filter.encode())} if only.spec.is_stored else set()
        levels = filter.split("/")
        takers = [stream for topic, stream in self._literal.items() if overlaps(filter, topic)]
        for _, pattern, stream in self._patterns:
            if levels_overlap(pattern, levels):
                takers.append(stream)
            if levels_cover(pattern, levels):
                # It leaves nothing to those that are less specific.
                break
        else:
            takers.append(self.default)
        return {number for stream in takers if stream.spec.is_stored for number in stream.shards}


def check_filters(specs: Iterable[StreamSpec]) -> None:
    """Equal filters in two streams are an error: neither would be the more specific one."""
    owner: dict[str, str] = {}
    for spec in specs:
        for filter in spec.filters:
            other = owner.setdefault(filter, spec.name)
            if other != spec.name:
                raise LocalError(f"filter {filter!r} belongs to stream {other!r} already")


def needs_new_shards(old: StreamSpec, new: StreamSpec) -> bool:
    """Whether the change moves topics or changes how they are replicated [rule 16]."""
    return (
        old.shards != new.shards
        or set(old.filters) != set(new.filters)
        or old.replication is not new.replication
        or old.edge != new.edge
        or old.primary_backup != new.primary_backup
        or old.storage != new.storage
    )


def with_spec(stream: Stream, spec: StreamSpec) -> Stream:
    """The same shards under another policy."""
    return replace(stream, spec=spec)
