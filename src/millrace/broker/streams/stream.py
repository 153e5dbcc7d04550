"""Streams: which log keeps the messages of a topic, and what is promised about them.

A stream is a named set of topic filters with one policy. Every topic belongs to exactly one stream: the one
with the most specific matching filter, compared level by level, a literal before `+` before `#`
[rule 15]; the built-in stream `default` takes the rest. Topics that begin with `$` belong to none.

A stream has shards; a topic's shard follows from CRC-32C of its name, so order holds per topic everywhere.
Shard ids are numbers that are never used again: changing shards, filters or replication seals the old shards
and opens new ones under the next routing generation [rule 16].
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

import msgspec

from millrace.broker.filter_settings import wrong_filters
from millrace.broker.streams.pair_spec import PairSpec
from millrace.broker.topics.filters import levels_cover, levels_overlap, overlaps
from millrace.errors import LocalError
from millrace.kernels.checksum import crc32c
from millrace.limits import SHARDS_MAX, STREAM_FILTERS_MAX
from millrace.settings import Settings, says

DEFAULT_STREAM = "default"
_DAY_S = 24 * 60 * 60
_GIB = 1024 * 1024 * 1024


class Capture(StrEnum):
    """What of a stream is logged."""

    ACKNOWLEDGED = "acknowledged"
    """QoS 1, QoS 2 and HTTP."""
    ALL = "all"
    """QoS 0 too."""
    NONE = "none"
    """Nothing: memory only."""


class Replication(StrEnum):
    QUORUM = "quorum"
    PRIMARY_BACKUP = "primary-backup"
    LEADERLESS = "leaderless"
    ROUTED = "routed"


class Compression(StrEnum):
    NONE = "none"
    ZLIB = "zlib"


class AckLevel(StrEnum):
    """How many nodes of a leaderless stream have a message on disk before its publisher is answered."""

    LOCAL = "local"
    ONE = "one"
    MAJORITY = "majority"
    ALL = "all"


class Storage(StrEnum):
    """Where a leaderless stream is kept: memory is for one that a restart may forget."""

    DISK = "disk"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """When the log may forget, whole segments at a time; 0 means without this bound. What a durable group has
    not read yet stays longer, up to the hard limit [rule 18]."""

    age_s: int
    bytes_max: int
    hold_age_s: int = 0
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


_NOT_ROUTED = {"replication": (Replication.QUORUM, Replication.PRIMARY_BACKUP, Replication.LEADERLESS)}
_SHARDED = {"replication": (Replication.QUORUM, Replication.PRIMARY_BACKUP)}


class StreamSpec(Settings, frozen=True, kw_only=True):
    """What somebody asked for. Raises LocalError where it makes no sense."""

    NOUN: ClassVar[str] = "stream"

    name: Annotated[
        str,
        says(
            "The name of the stream.",
            pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z",
            expected="a name of letters, digits, dot, dash, underscore",
        ),
    ]
    filters: Annotated[
        tuple[str, ...],
        says("Topic filters: the stream takes the messages of their topics.", option="--filter"),
    ] = ()
    replication: Annotated[Replication, says("How the log is replicated.")] = Replication.QUORUM
    shards: Annotated[
        int, says("Number of logs; the hash of a topic decides which log has it.", 1, SHARDS_MAX, **_SHARDED)
    ] = 1
    replicas: Annotated[
        int, says("Number of nodes that keep each log.", 1, replication=(Replication.QUORUM,))
    ] = 3
    capture: Annotated[
        Capture,
        says(
            "Which messages the log keeps. acknowledged: QoS 1 and 2, and HTTP; all: QoS 0 as "
            "well; none: no messages.",
            **_NOT_ROUTED,
        ),
    ] = Capture.ALL
    retention_age_s: Annotated[int, says("How long messages are kept; 0: for ever.", 0, **_NOT_ROUTED)] = (
        7 * _DAY_S
    )
    retention_bytes: Annotated[
        int, says("How many bytes each log keeps; 0: any number.", 0, **_NOT_ROUTED)
    ] = 0
    hold_age_s: Annotated[
        int,
        says("How long messages are kept beyond that for a group that has not read them.", 0, **_NOT_ROUTED),
    ] = 7 * _DAY_S
    hold_bytes: Annotated[
        int,
        says(
            "How many bytes of each log are kept for such a group; 0: as many as the retention keeps.",
            0,
            **_NOT_ROUTED,
        ),
    ] = 0
    compression: Annotated[Compression, says("Whether blocks are compressed on disk.", **_NOT_ROUTED)] = (
        Compression.NONE
    )
    edge: Annotated[
        str,
        says(
            "Edge function: subscribers get what it returns instead of what was published.",
            pattern=r"\A([A-Za-z_][\w.]*:[A-Za-z_]\w*)?\Z",
            metavar="MODULE:FUNCTION",
            expected="module:function",
            **_SHARDED,
        ),
    ] = ""
    ack: Annotated[
        AckLevel,
        says(
            "How many nodes have a message on disk before it is acknowledged.",
            replication=(Replication.LEADERLESS,),
        ),
    ] = AckLevel.MAJORITY
    storage: Annotated[
        Storage,
        says(
            "Where the logs are kept; with memory, a node forgets them when it stops.",
            replication=(Replication.LEADERLESS,),
        ),
    ] = Storage.DISK
    primary_backup: Annotated[
        PairSpec,
        says("Schedule, health checks, bounds and topic classes.", replication=(Replication.PRIMARY_BACKUP,)),
    ] = PairSpec()

    @classmethod
    def read(cls, given: Any, base: "StreamSpec | None" = None) -> "StreamSpec":
        """What is absent of the stream `default` is as in `DEFAULT_SPEC`. A setting of another replication is
        refused, unless it says the default."""
        name = given.get("name") if isinstance(given, Mapping) else None
        if base is None and name == DEFAULT_STREAM:
            base = DEFAULT_SPEC
        spec = super().read(given, base)
        shown = spec.plain()
        for field in map(cls.field, given):
            if field.name not in shown and getattr(spec, field.name) != field.default:
                kinds = " and ".join(field.kinds)
                raise LocalError(
                    f"{cls.label(spec.name)}{field.name} is a setting of {kinds} streams, and this one is "
                    f"{spec.replication}"
                )
        return spec

    def plain(self) -> dict[str, Any]:
        """Without the settings of other ways to replicate."""
        shown = super().plain()
        if self.replication is not Replication.PRIMARY_BACKUP:
            del shown["primary_backup"]
        if self.replication is not Replication.LEADERLESS:
            del shown["ack"], shown["storage"]
        return shown

    def refusals(self) -> Iterator[str]:
        if not self.filters and self.name != DEFAULT_STREAM:
            yield "it needs at least one topic filter"
        yield from wrong_filters(self.filters, STREAM_FILTERS_MAX)
        if self.edge and (not self.is_stored or self.name == DEFAULT_STREAM):
            yield "an edge function needs a stream of its own with a log"
        is_leaderless = self.replication is Replication.LEADERLESS
        if is_leaderless and (
            self.shards > 1 or self.edge or not self.filters or self.capture is Capture.NONE
        ):
            yield (
                "a leaderless stream has filters, a log for each node in place of shards, and no edge "
                "function"
            )
        if not is_leaderless and self.storage is not Storage.DISK:
            yield "storage = memory is for leaderless streams"
        if self.is_framed and (self.edge or self.shards > 1):
            yield "the schedule frame has one shard and no edge function"

    @property
    def retention(self) -> Retention:
        return Retention(
            age_s=self.retention_age_s,
            bytes_max=self.retention_bytes,
            hold_age_s=self.hold_age_s,
            hold_bytes=self.hold_bytes,
        )

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
    retention_age_s=_DAY_S,
    retention_bytes=10 * _GIB,
    hold_age_s=_DAY_S,
)


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as it stands: its policy, its open shards in order of their numbers, and sealed ones."""

    spec: StreamSpec
    generation: int
    shards: tuple[int, ...]
    """Ids of the open shards; a topic's is `shards[crc32c(topic) % len(shards)]`. None of a routed stream."""
    sealed: tuple[int, ...] = ()
    """Ids of earlier generations, oldest first: readers finish these before the open ones."""
    edges: dict[int, str] = {}
    """Shard -> the edge function of what is in it, for the shards that have one."""
    leaderless: tuple[int, ...] = ()
    """Those of all these numbers that stand for a log of each node, not for one log."""

    def is_leaderless(self, number: int) -> bool:
        return number in self.leaderless


def specificity(filter: str) -> tuple[int, ...]:
    """Sorts before another that takes the same topic where it is the more specific one."""
    return tuple(2 if level == "#" else 1 if level == "+" else 0 for level in filter.split("/"))


class _Level:
    """A level of the filters with wildcards: what follows it, and the stream of the filter that ends here."""

    __slots__ = ("below", "stream")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.stream: Stream | None = None

    def find(self, topic: list[str], depth: int) -> Stream | None:
        """The stream of the most specific filter: level by level, a name before `+` before `#` [rule 15]."""
        below = self.below
        if depth < len(topic):
            for name in (topic[depth], "+"):
                level = below.get(name)
                found = None if level is None else level.find(topic, depth + 1)
                if found is not None:
                    return found
        elif self.stream is not None:
            return self.stream
        # "sport/#" takes "sport" too (4.7.1.2).
        rest = below.get("#")
        return None if rest is None else rest.stream


class StreamTable:
    """All streams of one routing generation. Immutable; a change makes another table."""

    __slots__ = ("_literal", "_patterns", "_root", "default", "streams")

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
        # The patterns as paths, because a thousand streams are looked through for every new topic.
        self._root = _Level()
        for _, levels, stream in self._patterns:
            level = self._root
            for name in levels:
                level = level.below.setdefault(name, _Level())
            level.stream = stream

    def find(self, topic: str) -> Stream | None:
        """The stream of a topic; None for `$` topics. Asked once per route, never per message."""
        if topic.startswith("$"):
            return None
        stream = self._literal.get(topic)
        if stream is not None:
            return stream
        if not self._root.below:
            return self.default
        return self._root.find(topic.split("/"), 0) or self.default

    def shard(self, stream: Stream, topic: bytes) -> int:
        """The open shard that keeps this topic."""
        shards = stream.shards
        return shards[crc32c(topic) % len(shards)] if len(shards) > 1 else shards[0]

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
    return msgspec.structs.replace(stream, spec=spec)
