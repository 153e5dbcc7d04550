"""`df.write.format("millrace")` and `writeStream`: each row once in the log, whoever dies.

A task stages its rows under an attempt of its own: replicated, on disk, visible to nobody. The driver then
commits the batch with the attempts of the tasks that Spark counts; the cluster records that decision once and
makes the rows visible by itself [rules 27, 28]. What a failed, repeated or speculative task staged is
never named in a decision and is dropped.

Spark pickles the writer, runs `write` in the executors and `commit` in another process, with another object
for every call: no state lives here. A stream's writer is named by Spark's query id, which a checkpoint keeps;
the task reads it, and the number of the batch, from its own context and puts them into its message. A batch
write has a name of its own, made once on the driver, unless the options `writer` and `batch` name it: then
it is the streaming sink's commit under another name, and of all writes with that name one is carried out
[rule 40].

Spark commits in a process that is new for every batch, so what only a task needs is imported there.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from millrace.errors import ConfigError, LocalError
from millrace.spark.options import UPDATE_MODE, SinkOptions, access
from millrace.spark.schema import PROPERTIES
from millrace.spark.writing import PATIENCE_S, ClusterWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.spark.routes import Route

log = logging.getLogger("millrace.spark")

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "payload": (BinaryType, StringType),
    "qos": _WHOLE,
    "retain": (BooleanType,),
    "content_type": (StringType,),
    "properties": (StructType,),
}
_GIVEN_BY_THE_NODE = ("shard", "offset", "timestamp", "publisher")
"""Columns of the source that a row to be written cannot have. INSERT INTO a view sets those that it does not
name to null."""


def is_insert(schema: StructType) -> bool:
    """Whether the frame has columns of the source, as it has for INSERT INTO a view over a stream."""
    return any(name in _GIVEN_BY_THE_NODE for name in schema.names)


def check(schema: StructType, options: SinkOptions, *, overwrite: bool, is_stream: bool = False) -> None:
    """ConfigError unless the frame can be written: its columns are known, and topic and payload are there."""
    if overwrite:
        appended = 'a log is only ever appended to: write with mode("append")'
        raise ConfigError(UPDATE_MODE if is_stream else appended)
    if is_stream and options.writer is not None:
        raise ConfigError("writer and batch name a batch write; a streaming query has both in its checkpoint")
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if field.name in _GIVEN_BY_THE_NODE:
            continue
        if kinds is None:
            raise ConfigError(_no_column(field.name))
        if not isinstance(field.dataType, kinds):
            wanted = " or ".join(kind().simpleString() for kind in kinds if kind is not StructType)
            raise ConfigError(
                f"column {field.name!r} is {field.dataType.simpleString()}, not "
                f"{wanted or PROPERTIES.simpleString()}"
            )
    names = set(schema.names)
    if "payload" not in names:
        raise ConfigError("there is no column 'payload'")
    if "topic" not in names and options.topic is None:
        raise ConfigError("there is no column 'topic', and no option topic for all rows")
    if "topic" in names and options.topic is not None:
        raise ConfigError("give the column 'topic' or the option topic, not both")
    if "properties" in names:
        _check_properties(schema["properties"].dataType)


def _no_column(name: str) -> str:
    return (
        f"there is no column {name!r} to write; there are {', '.join(_COLUMNS)}: "
        "select those, or put the others into the payload, for example with to_json(struct(...))"
    )


def _check_properties(given: Any) -> None:
    known = {field.name: field.dataType for field in PROPERTIES.fields}
    for field in given.fields:
        if field.name not in known or field.dataType.simpleString() != known[field.name].simpleString():
            raise ConfigError(
                f"column 'properties' has a field {field.name!r} of {field.dataType.simpleString()}; "
                f"its fields are those of {PROPERTIES.simpleString()}"
            )


@dataclass(frozen=True, kw_only=True)
class Staged(WriterCommitMessage):
    """What one task staged: plain data, carried to the driver."""

    writer: str
    batch: int
    attempt: str
    blocks: dict[int, int]
    """At each shard how many."""
    rows: int
    node: str = ""
    """The address of the node that took them, to be asked first."""


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = options.writer or f"batch-{uuid.uuid4()}"
        self._batch = options.batch or 0

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        return _stage(self._options, self._writer, self._batch, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, self._batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.writer is None:
            _void(self._options, self._writer)
        else:
            # A batch that is to be tried again must not be decided here.
            _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Staged:
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise LocalError("this task belongs to no streaming query: Spark named neither query nor batch")
        return _stage(self._options, query, int(batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, messages)


# -------------------------------------------------------------------------------------- in the executor


def _stage(options: SinkOptions, writer: str, batch: int, iterator: "Iterator[pa.RecordBatch]") -> Staged:
    """Bring all rows of a task to the nodes under an attempt that nobody used before."""
    from millrace.spark.packets import Packer
    from millrace.spark.routes import Routes
    from millrace.spark.staging import Stager

    routes: list[Routes] = []

    def find_route(topic: str) -> "Route":
        # A task without rows asks nobody.
        if not routes:
            routes.append(Routes(cluster.streams(), options.stream))
        return routes[0].find(topic)

    packer = Packer(topic=options.topic, qos=options.qos, retain=options.retain, find_route=find_route)
    with _open(options) as cluster, ThreadPoolExecutor(1, "millrace-stage") as pool:
        stager = Stager(cluster, writer, batch, pool)
        try:
            for record_batch in iterator:
                for section in packer.add(_to_write(record_batch)):
                    stager.add(section)
            for section in packer.finish():
                stager.add(section)
            stager.send()
            stager.wait()
        except Exception:
            # Nobody hears of this attempt: what it staged would lie there until its batch is decided.
            pool.shutdown(cancel_futures=True)
            _give_up(options, {(writer, batch): [stager.attempt]} if stager.blocks else {})
            raise
    return Staged(
        writer=writer,
        batch=batch,
        attempt=stager.attempt,
        blocks=stager.blocks,
        rows=stager.rows,
        node=cluster.http.urls[0],
    )


def _to_write(rows: "pa.RecordBatch") -> "pa.RecordBatch":
    """The rows without the columns that a node gives them; LocalError where one of these has a value."""
    given = [name for name in rows.schema.names if name in _GIVEN_BY_THE_NODE]
    for name in given:
        if rows.column(name).null_count < rows.num_rows:
            raise LocalError(_no_column(name))
    return rows.drop_columns(given) if given else rows


def _open(options: SinkOptions, patience_s: float = PATIENCE_S) -> ClusterWriter:
    return ClusterWriter(
        *access(options),
        patience_s,
        connect_s=options.connect_s,
        request_s=options.request_s,
        ca_file=options.ca_file,
    )


# ---------------------------------------------------------------------------------------- on the driver


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Decide the batch: the attempts of these messages, and no others."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    if len(staged) != len(messages) or {(one.writer, one.batch) for one in staged} != {
        (staged[0].writer, batch)
    }:
        raise LocalError(f"the messages of batch {batch} do not belong together; nothing was committed")
    attempts = {one.attempt: one.blocks for one in staged if one.blocks}
    with _open(options) as cluster:
        cluster.http.prefer(next((one.node for one in staged if one.blocks), ""))
        answer = cluster.commit(staged[0].writer, batch, attempts)
        if not answer["visible"]:
            # The batch is decided: asking again changes nothing and only waits.
            answer = cluster.commit(staged[0].writer, batch, attempts)
    if not answer["visible"]:
        log.warning("batch %d is decided and will be visible; the nodes are still at it", batch)


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give up what the tasks staged."""
    wanted: dict[tuple[str, int], list[str]] = {}
    for message in messages:
        if isinstance(message, Staged) and message.blocks:
            wanted.setdefault((message.writer, message.batch), []).append(message.attempt)
    _give_up(options, wanted)


def _void(options: SinkOptions, writer: str) -> None:
    """Decide the only batch of a writer without winners. Tasks that were killed have told nobody what they
    staged, and may still be at it: so it is given up with its batch, not attempt by attempt. Where the batch
    was decided before, this changes nothing."""
    with _open(options, 5.0) as cluster:
        try:
            cluster.commit(writer, 0, {})
        except LocalError as error:
            log.warning("what was staged stays for a day: %s", error)


def _give_up(options: SinkOptions, wanted: dict[tuple[str, int], list[str]]) -> None:
    """What cannot be given up now goes with the next batch of the writer, or after a day."""
    with _open(options, 5.0) as cluster:
        try:
            for (writer, batch), attempts in wanted.items():
                cluster.abort(writer, batch, attempts)
        except LocalError as error:
            log.warning("what was staged stays for now: %s", error)
