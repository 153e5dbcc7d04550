"""From raw blocks to Arrow record batches, without a Python step for a message.

An answer of the node is whole blocks end to end. Each block is proved by its checksums, then rows are chosen:
by offset, because the first and the last block reach over the range; by topic, on the block's dictionary, so
that a block without a wanted topic is never expanded; by time. Blocks are views of the answer, and columns
views of the block; blocks are gathered until a batch is worth its overhead, because a quiet stream has blocks
of one message. A batch shares no memory with the answer, whose room may be filled again.

Payloads lie between the other bytes of the answer: a kernel gathers them, which is the only copy. Arrays are
made of buffers: Arrow's own functions, and arrays made of NumPy's, import half a second of modules first.

MQTT 5 properties differ little from message to message: the distinct ones of a batch are decoded, once each.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from millrace.kernels.blocks import (
    FLAG_QOS,
    FLAG_RETAIN,
    FLAG_VERSION_SHIFT,
    NO_NAME,
    PLAIN_HEAD_BYTES,
    Columns,
)
from millrace.kernels.packing import collect
from millrace.spark.offsets import TIME_US_MIN, TIME_US_TOP, Span
from millrace.storage.block import HEAD_BYTES, Block, BlockDamaged, Kind, attach_body, parse_header
from millrace.types import Properties, Version
from millrace.wire.mqtt.properties import decode_properties

BATCH_ROWS_AIM = 60_000
BATCH_BYTES_AIM = 4 << 20
"""A batch is closed once it has passed one of these; a block goes into one batch whole. They are large, as
each batch costs Spark and the worker something."""

Takes = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which rows are wanted. `takes` is asked once for each topic of a block; None takes every topic."""

    span: Span
    takes: Takes | None = None
    from_us: int = TIME_US_MIN
    until_us: int = TIME_US_TOP
    """Both ends are in."""

    @property
    def is_timed(self) -> bool:
        return self.from_us > TIME_US_MIN or self.until_us < TIME_US_TOP


@dataclass(frozen=True, slots=True)
class _Part:
    """The chosen rows of one block; `rows` is None for all of them."""

    block: Block
    columns: Columns
    topics: tuple[bytes, ...]
    rows: Any
    count: int

    @property
    def size_bytes(self) -> int:
        """What its columns take at most, without the numbers. Words are in a block once and in a batch once
        for each row: a batch that did not count them could pass the 31 bits of Arrow's edges."""
        words_bytes = max(map(len, self.topics)) + max(map(len, self.columns.names), default=0)
        return len(self.columns.packets) + self.count * words_bytes


def batches(
    data: bytes | bytearray | memoryview, choice: Choice, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The chosen rows of these blocks in the order of their offsets; BlockDamaged for what is no block. The
    data must not change before the last batch is made."""
    answer = pa.py_buffer(data)
    parts: list[_Part] = []
    rows = size_bytes = 0
    topics = _Topics(choice.takes)
    for block in _blocks(answer, choice):
        part = _choose(block, choice, topics)
        if part is None:
            continue
        parts.append(part)
        rows += part.count
        size_bytes += part.size_bytes
        if rows >= BATCH_ROWS_AIM or size_bytes >= BATCH_BYTES_AIM:
            yield _batch(answer, parts, schema)
            parts, rows, size_bytes = [], 0, 0
    if parts:
        yield _batch(answer, parts, schema)


def _blocks(answer: pa.Buffer, choice: Choice) -> Iterator[Block]:
    """The data blocks that reach into the span; the bodies of others are passed over."""
    position = 0
    while position < answer.size:
        header = parse_header(answer[position : position + HEAD_BYTES].to_pybytes())
        after = position + header.block_bytes
        is_inside = header.base_offset < choice.span.end and header.next_offset > choice.span.start
        if header.kind is Kind.DATA and is_inside and header.base_time_us <= choice.until_us:
            # An Arrow buffer is sliced and read as bytes are, but a slice of it is no copy.
            yield attach_body(header, cast(bytes, answer[position + HEAD_BYTES : after]))
        position = after


class _Topics:
    """The topics of one block after the other, and which are wanted. Devices that publish in turn make blocks
    with one dictionary, which is looked at once."""

    def __init__(self, takes: Takes | None) -> None:
        self._takes = takes
        self._text: bytes | None = None
        self._found: tuple[tuple[bytes, ...], Any] = ((), None)

    def of(self, block: Block) -> tuple[tuple[bytes, ...], Any]:
        """The dictionary, and for each topic whether it is wanted; None where all are."""
        text = bytes(block.dictionary()[PLAIN_HEAD_BYTES:])
        # Where the text begins follows from the number of topics, so that is a part of what must be equal.
        if text != self._text or block.header.topics != len(self._found[0]):
            topics = block.topics()
            wanted = None
            if self._takes is not None:
                wanted = np.fromiter(map(self._takes, topics), dtype=bool, count=len(topics))
            self._text = text
            self._found = (topics, None if wanted is None or wanted.all() else wanted)
        return self._found


def _choose(block: Block, choice: Choice, dictionary: _Topics) -> _Part | None:
    header = block.header
    topics, wanted = dictionary.of(block)
    if wanted is not None and not wanted.any():
        return None
    columns = block.columns()
    first = max(0, choice.span.start - header.base_offset)
    after = min(header.count, choice.span.end - header.base_offset)
    if wanted is None and not choice.is_timed:
        if (first, after) == (0, header.count):
            return _Part(block, columns, topics, None, header.count)
        return _Part(block, columns, topics, np.arange(first, after), after - first)
    mask = np.zeros(header.count, dtype=bool)
    mask[first:after] = True
    if wanted is not None:
        mask &= wanted[np.asarray(columns.topic_ids)]
    if choice.is_timed:
        times_us = np.asarray(columns.deltas_us).astype(np.int64) + header.base_time_us
        mask &= (times_us >= choice.from_us) & (times_us <= choice.until_us)
    rows = np.flatnonzero(mask)
    return _Part(block, columns, topics, rows, len(rows)) if len(rows) else None


# ------------------------------------------------------------------------------------------- columns


@dataclass(slots=True)
class _Gathered:
    """The parts of a batch as one: each column is made when a query asks for it."""

    answer: pa.Buffer
    parts: list[_Part]
    count: int = 0
    pool: Any = None
    """Memory that holds the packets of all parts in order: the answer, or what was expanded end to end."""
    bases: list[int] = field(default_factory=list)
    """Where in the pool the packets of each part begin."""

    def __post_init__(self) -> None:
        self.count = sum(part.count for part in self.parts)
        packets = [pa.py_buffer(part.columns.packets) for part in self.parts]
        first = self.answer.address
        after = first + self.answer.size
        self.pool = self.answer
        if not all(first <= piece.address <= after - piece.size for piece in packets):
            self.pool = pa.py_buffer(b"".join(packets))
            first = self.pool.address
            packets = list(_end_to_end(self.pool, packets))
        self.bases = [piece.address - first for piece in packets]

    def column(self, name: str, kind: Any = np.int64, shifts: Sequence[int] | None = None) -> Any:
        """A numeric column of the chosen rows, shifted by a number for each part; memory of its own."""
        column = np.empty(self.count, dtype=kind)
        at = 0
        for position, part in enumerate(self.parts):
            values = np.asarray(getattr(part.columns, name))
            piece = column[at : at + part.count]
            piece[:] = values if part.rows is None else values[part.rows]
            if shifts is not None and shifts[position]:
                piece += shifts[position]
            at += part.count
        return column


def _end_to_end(pool: pa.Buffer, packets: Iterable[pa.Buffer]) -> Iterator[pa.Buffer]:
    position = 0
    for piece in packets:
        yield pool[position : position + piece.size]
        position += piece.size


def _batch(answer: pa.Buffer, parts: list[_Part], schema: pa.Schema) -> pa.RecordBatch:
    gathered = _Gathered(answer, parts)
    is_described = any(name in _DESCRIBED for name in schema.names)
    described = _described(gathered, schema) if is_described else {}
    arrays = [
        described[field.name] if field.name in described else _MAKERS[field.name](gathered, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fixed(values: Any, kind: pa.DataType) -> pa.Array:
    """An array over the memory of these numbers."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _words(words: Sequence[bytes], ids: Any, is_missing: Any = None) -> pa.Array:
    """For each id its word; nothing where it is missing."""
    try:
        # The door took only UTF-8 (MQTT 5, 1.5.4); proved once more for a whole dictionary. No character
        # reaches over a zero.
        b"\0".join(words).decode()
    except UnicodeDecodeError as error:
        raise BlockDamaged(f"a word of a block is not UTF-8: {error}") from None
    edges = np.zeros(len(words) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=edges[1:])
    if len(ids) and int(ids.max()) >= len(words):
        raise BlockDamaged("a word of a block is not in its dictionary")
    if len(words) == 1 and is_missing is None:
        return _repeated(words[0], len(ids))
    known = ids if is_missing is None else np.where(is_missing, 0, ids)
    # `take` is twice as fast as an index.
    starts, ends = edges.take(known), edges[1:].take(known)
    validity = None
    if is_missing is not None:
        ends = np.where(is_missing, starts, ends)
        validity = pa.py_buffer(np.packbits(~is_missing, bitorder="little"))
    places, data = collect(memoryview(b"".join(words)), starts.data, ends.data)
    return pa.Array.from_buffers(pa.string(), len(ids), [validity, pa.py_buffer(places), pa.py_buffer(data)])


def _repeated(word: bytes, count: int) -> pa.Array:
    """One word in every row: a gateway or a bridge publishes for all."""
    edges = np.arange(count + 1, dtype=np.int32) * np.int32(len(word))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(edges), pa.py_buffer(word * count)])


def _topic(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    words: list[bytes] = []
    shifts: list[int] = []
    known: tuple[bytes, ...] | None = None
    for part in gathered.parts:
        # Devices that publish in turn make blocks with one dictionary.
        if part.topics != known:
            known = part.topics
            base = len(words)
            words += known
        shifts.append(base)
    return _words(words, gathered.column("topic_ids", np.int64, shifts))


def _publisher(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    words: list[bytes] = []
    ids = np.full(gathered.count, -1, dtype=np.int64)
    known: tuple[bytes, ...] | None = None
    at = base = 0
    for part in gathered.parts:
        own = np.asarray(part.columns.publisher_ids)
        if len(own):
            own = own if part.rows is None else own[part.rows]
            if part.columns.names != known:
                known = part.columns.names
                base = len(words)
                words += known
            ids[at : at + part.count] = np.where(own == NO_NAME, -1, own.astype(np.int64) + base)
        at += part.count
    is_missing = ids < 0
    if is_missing.all():
        return pa.nulls(gathered.count, kind)
    return _words(words, ids, is_missing if is_missing.any() else None)


def _offset(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    column = np.empty(gathered.count, dtype=np.int64)
    at = 0
    for part in gathered.parts:
        base = part.block.header.base_offset
        rows = np.arange(base, base + part.count) if part.rows is None else part.rows + base
        column[at : at + part.count] = rows
        at += part.count
    return _fixed(column, kind)


def _shard(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    # Numbers of the logs of leaderless streams do not fit 32 bits with a sign; files have room for them.
    dtype = np.int64 if kind == pa.int64() else np.int32
    return _fixed(np.full(gathered.count, gathered.parts[0].block.header.shard, dtype=dtype), kind)


def _timestamp(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    bases_us = [part.block.header.base_time_us for part in gathered.parts]
    return _fixed(gathered.column("deltas_us", np.int64, bases_us), kind)


def _payload(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    starts = gathered.column("payload_positions", np.int64, gathered.bases)
    return _slices(gathered.pool, starts, starts + gathered.column("payload_sizes"), kind)


def _qos(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    return _fixed(gathered.column("flags", np.int32) & FLAG_QOS, kind)


def _retain(gathered: _Gathered, kind: pa.DataType) -> pa.Array:
    bits = np.packbits((gathered.column("flags", np.uint8) & FLAG_RETAIN) != 0, bitorder="little")
    return pa.Array.from_buffers(kind, gathered.count, [None, pa.py_buffer(bits)])


_MAKERS: dict[str, Callable[[_Gathered, pa.DataType], pa.Array]] = {
    "topic": _topic,
    "shard": _shard,
    "offset": _offset,
    "timestamp": _timestamp,
    "payload": _payload,
    "qos": _qos,
    "retain": _retain,
    "publisher": _publisher,
}


def _slices(pool: Any, starts: Any, ends: Any, kind: pa.DataType) -> pa.Array:
    """The bytes from each start to its end."""
    try:
        edges, data = collect(memoryview(pool).cast("B"), starts.data, ends.data)
    except ValueError:
        # The columns came over the network.
        raise BlockDamaged("the columns of a block do not fit its packets") from None
    return pa.Array.from_buffers(kind, len(starts), [None, pa.py_buffer(edges), pa.py_buffer(data)])


# ---------------------------------------------------------------------------------------- properties


def _described(gathered: _Gathered, schema: pa.Schema) -> dict[str, pa.Array]:
    """The columns that come from MQTT 5 properties: null where a message has none."""
    kinds = {name: schema.field(name).type for name in _DESCRIBED if name in schema.names}
    rows, starts, ends = _property_sections(gathered)
    if not len(rows):
        return {name: pa.nulls(gathered.count, kind) for name, kind in kinds.items()}
    encoded = _slices(gathered.pool, starts, ends, pa.binary()).dictionary_encode()
    ids = np.full(gathered.count, -1, dtype=np.int64)
    ids[rows] = encoded.indices.to_numpy()
    sections = encoded.dictionary.to_pylist()
    distinct = [decode_properties(section, 0, len(section))[0] for section in sections]
    index = pa.array(ids, mask=ids < 0)
    return {name: pa.array(map(_DESCRIBED[name], distinct), kind).take(index) for name, kind in kinds.items()}


def _property_sections(gathered: _Gathered) -> tuple[Any, Any, Any]:
    """Rows that have properties, and where these stand in the pool, their length included."""
    flags = gathered.column("flags", np.uint8)
    rows = np.flatnonzero(flags >> FLAG_VERSION_SHIFT == int(Version.MQTT_5))
    if not len(rows):
        return rows, rows, rows
    pool = np.frombuffer(gathered.pool, dtype=np.uint8)
    last = len(pool) - 1

    def at(places: Any) -> Any:
        return pool[np.minimum(places, last)].astype(np.int64)

    # PUBLISH: type and flags, remaining length (1 to 4 bytes), topic, packet id above QoS 0 (MQTT 5, 3.3).
    body = gathered.column("packet_positions", np.int64, gathered.bases)[rows] + 1
    goes_on = np.ones(len(rows), dtype=bool)
    for _ in range(4):
        goes_on &= at(body) > 127
        body += goes_on
        if not goes_on.any():
            break
    body += 1
    starts = body + 2 + (at(body) << 8 | at(body + 1)) + np.where(flags[rows] & FLAG_QOS, 2, 0)
    ends = gathered.column("payload_positions", np.int64, gathered.bases)[rows]
    has = ends - starts > 1
    return rows[has], starts[has], ends[has]


def _fields(properties: Properties) -> dict[str, Any] | None:
    """Null for a message that has nothing but a content type, which has its own column."""
    shown = {
        "payload_format": properties.payload_format,
        "message_expiry_s": properties.message_expiry_s,
        "response_topic": properties.response_topic,
        "correlation_data": properties.correlation_data,
        "user": [{"name": name, "value": value} for name, value in properties.user] or None,
    }
    return shown if any(value is not None for value in shown.values()) else None


_DESCRIBED: dict[str, Callable[[Properties], Any]] = {
    "content_type": lambda properties: properties.content_type,
    "properties": _fields,
}
"""The columns that are read from properties."""
