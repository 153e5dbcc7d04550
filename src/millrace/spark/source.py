"""`format("millrace")`: the data source, its batch reader and its stream reader.

The driver plans in one Python process, executors read in others, and Spark carries the reader and the spans
between them as pickles. So a reader holds options and nothing else: connections are opened where they are
used, and no secret is in a pickle (see `options`). Each of these processes is a new one for every query, so
what only a task or only a sink needs is imported there.

The offsets of a batch are fixed when it is planned. Blocks below the end of a log never change, so a task
that runs again reads the same rows, and so does a batch that is repeated after a restart from a checkpoint.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

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
from millrace.spark import offsets, options, pushdown
from millrace.spark.offsets import EARLIEST, LATEST, Extent, Span, Start
from millrace.spark.options import Options
from millrace.spark.pushdown import EVERYTHING, Conditions
from millrace.spark.reading import ClusterReader, Expired
from millrace.spark.schema import SCHEMA, check

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.spark.arrow import Takes

log = logging.getLogger("millrace.spark")

_TOPICS_KEPT_MAX = 100_000
_ROOM_BYTES = 18 << 20
"""An answer of the node (about 16 MiB and the rest of a block) fits; one with a huge message has its own."""


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

        parsed = options.parse_sink(self.options)
        sink.check(schema, parsed, overwrite=overwrite)
        return sink.BatchWriter(parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from millrace.spark import sink

        parsed = options.parse_sink(self.options)
        # Spark calls the output mode "complete" an overwrite: every batch would hold all rows again.
        sink.check(schema, parsed, overwrite=overwrite)
        return sink.StreamWriter(parsed)


@dataclass(frozen=True, kw_only=True)
class Task(InputPartition):
    """What one task reads."""

    span: Span
    conditions: Conditions = EVERYTHING


class BatchReader(DataSourceReader):
    def __init__(self, given: Options, schema: StructType) -> None:
        self._options = given
        self._schema = schema
        self._conditions = EVERYTHING
        self._begin = options.batch_start(given)

    def partitions(self) -> Sequence[InputPartition]:
        given = self._options
        with ClusterReader(*options.access(given)) as cluster:
            extents = cluster.extents(given.stream)
            start = _position(cluster, given.stream, "startingOffsets", self._begin, extents, EARLIEST)
            ending = LATEST if given.end is None else given.end
            end = _position(cluster, given.stream, "endingOffsets", ending, extents, LATEST)
        wanted = self._conditions.narrowed(offsets.spans(start, end))
        pieces = offsets.split(wanted, given.partitions_min)
        return [Task(span=span, conditions=self._conditions) for span in pieces]

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
    def __init__(self, given: Options, schema: StructType) -> None:
        self._options = given
        self._schema = schema
        self._begin = options.stream_start(given)
        # Where a run with Trigger.AvailableNow ends.
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        given = self._options
        with ClusterReader(*options.access(given)) as cluster:
            extents = cluster.extents(given.stream)
            start = _position(cluster, given.stream, "startingOffsets", self._begin, extents, EARLIEST)
        return offsets.to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        position = offsets.from_json(start)
        extents = self._extents()
        if self._target is not None:
            # What came after the run had begun is for the next run.
            ends = offsets.capped({n: extent.next for n, extent in extents.items()}, self._target, position)
            extents = {
                n: Extent(first=extents[n].first, next=end, size_bytes=extents[n].size_bytes)
                for n, end in ends.items()
            }
        if isinstance(limit, ReadAllAvailable):
            return offsets.to_json(offsets.advance(position, extents))
        # A query has one limit for Spark; where the options give two, both hold.
        end = offsets.advance(
            position, extents, rows_max=self._options.rows_max, bytes_max=self._options.bytes_max
        )
        return offsets.to_json(end)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {shard: extent.next for shard, extent in self._extents().items()}

    def reportLatestOffset(self) -> dict[str, int]:
        return offsets.to_json({shard: extent.next for shard, extent in self._extents().items()})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        whole = offsets.spans(offsets.from_json(start), offsets.from_json(end))
        return [Task(span=span) for span in offsets.split(whole, self._options.partitions_min)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Spark has written down that it is done with everything below `end`: the group shows it and lets it
        go. A cluster that does not answer just now holds the log a little longer, which costs the query
        nothing; a refusal ends it."""
        given = self._options
        if given.group is None:
            return
        with ClusterReader(*options.access(given)) as cluster:
            try:
                cluster.advance(given.group, given.topics, given.stream, offsets.from_json(end))
            except NobodyAnswers as error:
                log.warning("the group %r does not show the progress of this query: %s", given.group, error)

    def _extents(self) -> dict[int, Extent]:
        with ClusterReader(*options.access(self._options)) as cluster:
            return cluster.extents(self._options.stream)


def _position(
    cluster: ClusterReader, stream: str, option: str, value: Start, extents: dict[int, Extent], rest: str
) -> dict[int, int]:
    """Offsets for what an option says; a time is looked up in every shard."""
    if isinstance(value, int):
        return {n: cluster.offset_at(stream, n, extent, value) for n, extent in extents.items()}
    return offsets.resolve(option, value, extents, rest)


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
    # One answer is on its way while the one before is turned into batches: two rooms, in turn.
    room, next_room = bytearray(_ROOM_BYTES), bytearray(_ROOM_BYTES)
    reader = ClusterReader(*options.access(given))
    with reader as cluster, ThreadPoolExecutor(1, "millrace-fetch") as pool:
        at = partition.span.start
        coming = pool.submit(_fetch, cluster, given, partition.span, at, room)
        try:
            while at < partition.span.end:
                begin, data, at = coming.result()
                room, next_room = next_room, room
                if at < partition.span.end:
                    coming = pool.submit(_fetch, cluster, given, partition.span, at, room)
                choice = Choice(
                    span=replace(partition.span, start=begin),
                    takes=takes,
                    from_us=conditions.from_us,
                    until_us=conditions.until_us,
                )
                yield from batches(data, choice, arrow_schema)
        finally:
            coming.cancel()


def _fetch(
    cluster: ClusterReader, given: Options, span: Span, at: int, room: bytearray
) -> tuple[int, AnswerBody, int]:
    """Where the rows begin, their blocks, and where to go on. Passes over what is gone if the query may: a
    block may still hold messages below the earliest offset, and they are gone all the same."""
    while at < span.end:
        try:
            return at, *cluster.blocks(given.stream, span.shard, at, span.end, room)
        except Expired as error:
            if given.is_loss_fatal:
                raise
            after = span.end if error.earliest is None else min(span.end, max(at + 1, error.earliest))
            log.warning(
                "stream %r, shard %d: %d offsets from %d on are gone and were skipped",
                given.stream,
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
