"""`format("millrace")`: the data source, its batch reader and its stream reader.

The driver plans in one Python process, executors read in others, and Spark carries the reader and the spans
between them as pickles. So what is in a pickle is options and nothing else: connections are opened where they
are used and kept there, and no secret is in a pickle (see `options`). The process that plans lives as long as
a streaming query, a worker of an executor for many tasks; what only a task or only a sink needs is imported
there.

The offsets of a batch are fixed when it is planned. Blocks below the end of a log never change, so a task
that runs again reads the same rows, and so does a batch that is repeated after a restart from a checkpoint.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millrace.broker.topics.filters import levels_match
from millrace.client.http import NobodyAnswers
from millrace.client.http_node import AnswerBody
from millrace.errors import ConfigError
from millrace.spark import offsets, options, pushdown
from millrace.spark.offsets import EARLIEST, LATEST, At, Extent, Span, Start
from millrace.spark.options import Options
from millrace.spark.pushdown import EVERYTHING, Conditions
from millrace.spark.reading import ClusterReader, Expired
from millrace.spark.schema import SCHEMA, check

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.spark.arrow import Takes
    from millrace.spark.traces import ReadTraces

log = logging.getLogger("millrace.spark")

_TOPICS_KEPT_MAX = 100_000
_LOOKUPS_MAX = 8
_ROOM_BYTES = 18 << 20
"""An answer of the node (about 16 MiB and the rest of a block) fits; one with a huge message has its own."""
_ROOMLESS_ROWS = offsets.TASK_ROWS_LEAST
"""A task with fewer offsets takes no room: to touch its memory would cost more than to read the task."""


class MillraceSource(DataSource):
    """Reads a stream, and writes to whichever streams the topics of the rows belong to."""

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        options.parse(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        check(schema)
        parsed = options.parse(self.options)
        # Spark refuses a reader with `pushFilters` unless its own switch is on, so the user says which.
        return PushingReader(parsed, schema) if parsed.is_pushing else BatchReader(parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check(schema)
        return StreamReader(options.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from millrace.spark import sink

        parsed = options.parse_sink(self.options, is_view=sink.is_insert(schema))
        sink.check(schema, parsed, overwrite=overwrite)
        return sink.BatchWriter(parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from millrace.spark import sink

        parsed = options.parse_sink(self.options)
        # Spark calls the output mode "complete" an overwrite: every batch would hold all rows again.
        sink.check(schema, parsed, overwrite=overwrite, is_stream=True)
        return sink.StreamWriter(parsed)


@dataclass(frozen=True, kw_only=True)
class Task(InputPartition):
    """What one task reads, one span after another."""

    spans: tuple[Span, ...]
    conditions: Conditions = EVERYTHING
    node: str = ""
    """The address of a node that answers, to be asked first."""


class BatchReader(DataSourceReader):
    def __init__(self, given: Options, schema: StructType) -> None:
        self._options = given
        self._schema = schema
        self._conditions = EVERYTHING
        self._begin = options.batch_start(given)

    def partitions(self) -> Sequence[InputPartition]:
        given = self._options
        with _open(given) as cluster:
            extents = _extents(cluster, given)
            start = _position(cluster, "startingOffsets", self._begin, extents, EARLIEST)
            ending = LATEST if given.end is None else given.end
            end = _position(cluster, "endingOffsets", ending, extents, LATEST)
            node = cluster.http.urls[0]
        streams = {shard: extent.stream for shard, extent in extents.items()}
        wanted = self._conditions.narrowed(offsets.spans(start, end, streams))
        return _tasks(wanted, given, node, self._conditions)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, self._schema, partition)


class PushingReader(BatchReader):
    """A batch reader that takes conditions of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left = []
        for filter in filters:
            conditions = pushdown.push(self._conditions, filter)
            if conditions is None:
                left.append(filter)
            else:
                self._conditions = conditions
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query. Everything that Spark asks for a micro-batch is answered from one
    question to the nodes, over connections that are kept."""

    def __init__(self, given: Options, schema: StructType) -> None:
        self._options = given
        self._schema = schema
        self._begin = options.stream_start(given)
        # Where a run with Trigger.AvailableNow ends.
        self._target: dict[int, int] | None = None
        self._cluster: ClusterReader | None = None
        self._streams: dict[int, str] = {}
        self._latest: dict[int, int] = {}
        self._told: dict[int, int] | None = None
        self._batch_at_s = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    def initialOffset(self) -> dict[str, int]:
        extents = self._extents()
        start = _position(self._opened(), "startingOffsets", self._begin, extents, EARLIEST)
        return offsets.to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the next micro-batch ends. Spark plans one only after it has written down that the one before
        is done, so everything below `start` is finished."""
        given = self._options
        position = offsets.from_json(start)
        self._tell(position)
        extents = self._extents()
        if self._target is not None:
            # What came after the run had begun is for the next run.
            ends = offsets.capped({n: extent.next for n, extent in extents.items()}, self._target, position)
            extents = {n: replace(extents[n], next=end) for n, end in ends.items()}
        is_all = isinstance(limit, ReadAllAvailable)
        # A query has one limit for Spark; where the options give two, both hold.
        end = offsets.advance(
            position,
            extents,
            rows_max=None if is_all else given.rows_max,
            bytes_max=None if is_all else given.bytes_max,
        )
        return offsets.to_json(position if self._is_early(position, end) else end)

    def _is_early(self, position: dict[int, int], end: dict[int, int]) -> bool:
        """Whether a batch to `end` waits for more offsets (`minOffsetsPerTrigger`)."""
        given, now_s = self._options, time.monotonic()
        waiting = sum(span.count for span in offsets.spans(position, end))
        wanted = min(given.rows_min or 0, given.rows_max or given.rows_min or 0)
        if waiting == 0 or self._target is not None:
            return False
        if waiting < wanted and now_s - self._batch_at_s < given.delay_s_max:
            return True
        self._batch_at_s = now_s
        return False

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {shard: extent.next for shard, extent in self._extents().items()}

    def reportLatestOffset(self) -> dict[str, int]:
        """The ends of the logs as they were when the micro-batch was planned."""
        if not self._latest:
            self._extents()
        return offsets.to_json(self._latest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first, after = offsets.from_json(start), offsets.from_json(end)
        names = self._options.streams
        if len(names) != 1 and not set(after) <= set(self._streams):
            # A batch that is repeated after a restart is planned before anything else.
            self._extents()
        known = dict.fromkeys(after, names[0]) if len(names) == 1 else self._streams
        node = self._opened().http.urls[0]
        return _tasks(offsets.spans(first, after, known), self._options, node, EVERYTHING)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Spark has written down that it is done with everything below `end`."""
        self._tell(offsets.from_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.http.close()

    def _tell(self, position: dict[int, int]) -> None:
        """The group shows what is finished and lets it go. A cluster that does not answer just now holds the
        log a little longer, which costs the query nothing; a refusal ends it."""
        given = self._options
        if given.group is None or position == self._told:
            return
        try:
            cluster = self._opened()
            if given.pattern is not None and not self._streams:
                self._extents()
            streams = given.streams or sorted(set(self._streams.values()))
            cluster.advance(given.group, given.topics, streams, position)
            self._told = position
        except NobodyAnswers as error:
            log.warning("the group %r does not show the progress of this query: %s", given.group, error)

    def _extents(self) -> dict[int, Extent]:
        extents = _extents(self._opened(), self._options)
        self._streams.update((shard, extent.stream) for shard, extent in extents.items())
        self._latest = {shard: extent.next for shard, extent in extents.items()}
        return extents

    def _opened(self) -> ClusterReader:
        self._cluster = _kept(self._options)
        return self._cluster


def _open(given: Options) -> ClusterReader:
    return ClusterReader(
        *options.access(given),
        connect_s=given.connect_s,
        request_s=given.request_s,
        ca_file=given.ca_file,
    )


_KEPT: dict[Any, ClusterReader] = {}


def _kept(given: Options) -> ClusterReader:
    """The client of this process for these nodes and this user; its connections stay open from task to task
    and from trigger to trigger. A secret that has changed makes another client."""
    key = (options.access(given), given.connect_s, given.request_s)
    if key not in _KEPT:
        while _KEPT:
            _KEPT.popitem()[1].http.close()
        _KEPT[key] = _open(given)
    return _KEPT[key]


def _extents(cluster: ClusterReader, given: Options) -> dict[int, Extent]:
    """The shards that the options name."""
    if given.pattern is not None:
        extents = cluster.extents_matching(given.pattern)
    else:
        extents = cluster.extents(*given.streams)
    if given.shards is None:
        return extents
    unknown = sorted(given.shards - set(extents))
    if unknown:
        there = ", ".join(map(str, sorted(extents)))
        raise ConfigError(f"assign names shard {unknown[0]}; the stream has {there}")
    return {shard: extents[shard] for shard in sorted(given.shards)}


def _tasks(
    spans: Iterable[Span], given: Options, node: str, conditions: Conditions
) -> Sequence[InputPartition]:
    bundles = offsets.plan(spans, given.partitions_min, given.partition_rows_max)
    return [Task(spans=bundle, conditions=conditions, node=node) for bundle in bundles]


def _position(
    cluster: ClusterReader, option: str, value: Start, extents: dict[int, Extent], rest: str
) -> dict[int, int]:
    """Offsets for what an option says; a time is looked up in its shard."""
    places = offsets.resolve(option, value, extents, rest)
    times = {shard: place.time_us for shard, place in places.items() if isinstance(place, At)}
    found = {shard: place for shard, place in places.items() if not isinstance(place, At)}
    if times:
        with ThreadPoolExecutor(min(len(times), _LOOKUPS_MAX), "millrace-time") as pool:
            looked_up = pool.map(
                lambda shard: cluster.offset_at(extents[shard].stream, shard, extents[shard], times[shard]),
                times,
            )
            found.update(zip(times, looked_up, strict=True))
    return found


# ------------------------------------------------------------------------------------ in the executor


def _read(given: Options, schema: StructType, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The rows of a task. Spark hands out an empty partition where there is no task at all."""
    if not isinstance(partition, Task):
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    from millrace.spark.arrow import Choice, batches

    arrow_schema: Any = to_arrow_schema(schema, timezone="UTC")
    conditions = partition.conditions
    takes = _takes(given.topics, conditions)
    cluster = _kept(given)
    cluster.http.prefer(partition.node)
    traces = _traces(given)
    rooms = _Rooms(is_small=sum(span.count for span in partition.spans) <= _ROOMLESS_ROWS)
    try:
        with ThreadPoolExecutor(1, "millrace-fetch") as pool:
            for span, data in _answers(cluster, given, partition.spans, pool, rooms):
                choice = Choice(
                    span=span, takes=takes, from_us=conditions.from_us, until_us=conditions.until_us
                )
                if traces is not None:
                    traces.look(data, choice)
                yield from batches(data, choice, arrow_schema)
    finally:
        rooms.give_back()
    if traces is not None:
        traces.send()


def _traces(given: Options) -> "ReadTraces | None":
    """None where nobody wants any, which is the rule: OpenTelemetry is not loaded then."""
    if given.trace_endpoint is None:
        return None
    from millrace.spark.traces import ReadTraces

    return ReadTraces(given.trace_endpoint, given.trace_one_in, given.group)


class _Rooms:
    """Memory for two answers in turn. It stays with the process from task to task, because the first touch of
    memory costs more than what is then done with it."""

    _SPARE: ClassVar[list[bytearray]] = []

    def __init__(self, *, is_small: bool) -> None:
        self._is_small = is_small
        self._mine: list[bytearray] = []

    def next(self) -> bytearray | None:
        """The one that was not taken last; None for a small task, whose answers have memory of their own."""
        if self._is_small:
            return None
        if len(self._mine) == 2:
            self._mine.reverse()
        else:
            self._mine.append(self._SPARE.pop() if self._SPARE else bytearray(_ROOM_BYTES))
        return self._mine[-1]

    def give_back(self) -> None:
        """Nothing is fetched any more, and no batch needs what is in them."""
        self._SPARE.extend(self._mine[: 2 - len(self._SPARE)])
        self._mine = []


def _answers(
    cluster: ClusterReader, given: Options, spans: Sequence[Span], pool: ThreadPoolExecutor, rooms: _Rooms
) -> Iterator[tuple[Span, AnswerBody]]:
    """The blocks of these spans in order, each answer with the span that begins with its rows. One answer is
    on its way while the one before is turned into batches."""
    left = list(reversed(spans))
    rest = left.pop()
    coming = pool.submit(_fetch, cluster, given, rest, rooms.next())
    try:
        while True:
            begin, data, at = coming.result()
            read, rest = replace(rest, start=begin), replace(rest, start=at)
            if rest.count <= 0 and left:
                rest = left.pop()
            is_more = rest.count > 0
            if is_more:
                coming = pool.submit(_fetch, cluster, given, rest, rooms.next())
            yield read, data
            if not is_more:
                return
    finally:
        coming.cancel()


def _fetch(
    cluster: ClusterReader, given: Options, span: Span, room: bytearray | None
) -> tuple[int, AnswerBody, int]:
    """Where the rows begin, their blocks, and where to go on. Passes over what is gone if the query may: a
    block may still hold messages below the earliest offset, and they are gone all the same."""
    at = span.start
    while at < span.end:
        try:
            return at, *cluster.blocks(span.stream, span.shard, at, span.end, room)
        except Expired as error:
            if given.is_loss_fatal:
                raise
            after = span.end if error.earliest is None else min(span.end, max(at + 1, error.earliest))
            log.warning(
                "stream %r, shard %d: %d offsets from %d on are gone and were skipped",
                span.stream,
                span.shard,
                after - at,
                at,
            )
            at = after
    return at, b"", at


def _takes(filters: tuple[str, ...], conditions: Conditions) -> "Takes | None":
    """Whether a topic of a dictionary is wanted; None where every topic is."""
    if not filters and not conditions.has_topics:
        return None
    levels = [filter.split("/") for filter in filters]

    @lru_cache(_TOPICS_KEPT_MAX)
    def takes(topic: bytes) -> bool:
        text = topic.decode()
        parts = text.split("/")
        return (not levels or any(levels_match(one, parts) for one in levels)) and conditions.takes(text)

    return takes
