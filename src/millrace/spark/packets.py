"""From Arrow record batches to PUBLISH packets, shard by shard, without a Python step for a message.

The log keeps packets (`docs/format.md`), so packets are what is staged. A packet is a head (type, flags and
length), the topic with its length, a packet id above QoS 0, properties in MQTT 5, and the payload. Heads
depend on few lengths and topics are few: both are made once for each distinct value and taken by index; one
join of the columns then lays all packets of a batch end to end.

Rows are sorted to the shards of their topics and keep their order there. A section is what becomes one block
at the node, so it is cut by the bounds of a block. Rows with properties cost a Python step each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import LocalError
from millrace.storage.block import BLOCK_BYTES_AIM, BLOCK_MESSAGES_MAX
from millrace.types import Properties
from millrace.wire.mqtt.properties import encode_properties

# Head, columns, dictionaries and key of a block take their part of its bounds.
_ROW_BYTES = 32
_SECTION_BYTES = BLOCK_BYTES_AIM - 64 * 1024
_LENGTH_TOP = 268_435_455
_EMPTY = pa.scalar(b"", pa.binary())

Route = tuple[str, int]
"""Stream and shard of a topic."""


@dataclass(frozen=True, slots=True)
class Section:
    """Packets for one block of a shard."""

    route: Route
    version: int
    pieces: tuple[memoryview, ...]
    """Views of Arrow's memory: the bytes are copied next when they are sent."""
    rows: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def packets(self) -> bytes:
        return b"".join(self.pieces)


@dataclass(slots=True)
class _Gathering:
    """What a shard gets next."""

    version: int
    pieces: list[memoryview]
    rows: int = 0
    size_bytes: int = 0


class Packer:
    """Takes batches and gives sections. `find_route` is asked once for each distinct topic of a task."""

    def __init__(
        self, *, topic: str | None, qos: int, retain: bool, find_route: Callable[[str], Route]
    ) -> None:
        self._topic, self._qos, self._retain = topic, qos, retain
        self._find_route = find_route
        self._routes: dict[str, int] = {}
        # Distinct routes, in the order in which they were met; rows are sorted by their number.
        self._known: list[Route] = []
        self._gathering: dict[Route, _Gathering] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[Section]:
        """Sections that are full with this batch."""
        if not batch.num_rows:
            return
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        payload = _binary("payload", columns["payload"])
        topics, topic_ids = self._topics(columns.get("topic"), batch.num_rows)
        qos = _numbers("qos", columns.get("qos"), self._qos, batch.num_rows)
        retain = _numbers("retain", columns.get("retain"), int(self._retain), batch.num_rows)
        properties = _properties(columns, batch.num_rows)
        row_routes = np.fromiter(map(self._route, topics), np.int64, len(topics))[topic_ids]
        for number in np.unique(row_routes):
            rows = np.flatnonzero(row_routes == number)
            index = None if len(rows) == batch.num_rows else pa.array(rows)
            packets = _join(
                topics,
                topic_ids if index is None else topic_ids[rows],
                qos if index is None else qos[rows],
                retain if index is None else retain[rows],
                properties if properties is None or index is None else properties.take(index),
                payload if index is None else payload.take(index),
            )
            yield from self._gather(self._known[number], 4 if properties is None else 5, packets)

    def finish(self) -> Iterator[Section]:
        """What is left."""
        for route, gathering in self._gathering.items():
            if gathering.rows:
                yield _section(route, gathering)
        self._gathering.clear()

    def _topics(self, column: Any, rows: int) -> tuple[list[str], Any]:
        """The distinct topics of a batch, and for each row which one it has."""
        if column is None:
            assert self._topic is not None, "the options were checked"
            return [self._topic], np.zeros(rows, np.int64)
        if column.null_count:
            raise LocalError(f"{column.null_count} rows have no topic")
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)

    def _route(self, topic: str) -> int:
        number = self._routes.get(topic)
        if number is None:
            route = self._find_route(topic)
            if route not in self._known:
                self._known.append(route)
            number = self._routes[topic] = self._known.index(route)
        return number

    def _gather(self, route: Route, version: int, packets: Any) -> Iterator[Section]:
        """Add packets (a binary array) to what waits for a shard; give what is full."""
        edges = np.frombuffer(packets.buffers()[1], np.int32)[packets.offset :][: len(packets) + 1]
        data = memoryview(packets.buffers()[2])
        weights = edges.astype(np.int64) + _ROW_BYTES * np.arange(len(edges))
        gathering = self._gathering.setdefault(route, _Gathering(version, []))
        if gathering.version != version and gathering.rows:
            yield _section(route, gathering)
            gathering = self._gathering[route] = _Gathering(version, [])
        gathering.version = version
        start = 0
        while start < len(packets):
            room = _SECTION_BYTES - gathering.size_bytes
            end = int(np.searchsorted(weights, weights[start] + room, "right")) - 1
            end = min(end, start + BLOCK_MESSAGES_MAX - gathering.rows)
            if end <= start and not gathering.rows:
                # A message that is larger than a block has one of its own.
                end = start + 1
            if end > start:
                gathering.pieces.append(data[edges[start] : edges[end]])
                gathering.rows += end - start
                gathering.size_bytes += int(weights[end] - weights[start])
            if end < len(packets):
                yield _section(route, gathering)
                gathering = self._gathering[route] = _Gathering(version, [])
            start = max(start, end)


def _section(route: Route, gathering: _Gathering) -> Section:
    return Section(route, gathering.version, tuple(gathering.pieces), gathering.rows)


# ------------------------------------------------------------------------------------------- columns


def _binary(name: str, column: Any) -> Any:
    if column.null_count:
        raise LocalError(f"{column.null_count} rows have no {name}; an empty one is written as X''")
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _numbers(name: str, column: Any, default: int, rows: int) -> Any:
    """A column of small numbers; where it is null, or not there at all, the option says."""
    if column is None:
        return np.full(rows, default, np.int64)
    values = pc.fill_null(column.cast(pa.int64()), default).to_numpy(zero_copy_only=False)
    highest = 1 if name == "retain" else 2
    if len(values) and not 0 <= values.min() <= values.max() <= highest:
        raise LocalError(f"{name} is 0 to {highest}, not {values.min()} to {values.max()}")
    return values


def _properties(columns: dict[str, Any], rows: int) -> Any:
    """The properties of each row, encoded; None where no row has any."""
    given, kinds = columns.get("properties"), columns.get("content_type")
    if (given is None or given.null_count == rows) and (kinds is None or kinds.null_count == rows):
        return None
    empty = [None] * rows
    pairs = zip(
        empty if given is None else given.to_pylist(),
        empty if kinds is None else kinds.to_pylist(),
        strict=True,
    )
    return pa.array([_encoded(one or {}, kind) for one, kind in pairs], pa.binary())


def _encoded(fields: dict[str, Any], content_type: str | None) -> bytes:
    user = tuple((pair["name"], pair["value"]) for pair in fields.get("user") or ())
    return encode_properties(
        Properties(
            payload_format=fields.get("payload_format"),
            message_expiry_s=fields.get("message_expiry_s"),
            response_topic=fields.get("response_topic"),
            correlation_data=fields.get("correlation_data"),
            content_type=content_type,
            user=user,
        )
    )


# ------------------------------------------------------------------------------------------- packets


def _join(topics: list[str], topic_ids: Any, qos: Any, retain: Any, properties: Any, payload: Any) -> Any:
    """The packets of these rows as one binary array, end to end in its data."""
    texts = [topic.encode() for topic in topics]
    if max(map(len, texts)) > 65_535:
        raise LocalError("a topic has more than 65535 bytes")
    # Each topic as it stands in a packet, without and with a packet id behind it (MQTT 5, 3.3.2).
    words = [len(text).to_bytes(2, "big") + text for text in texts]
    middles = pa.array([word + tail for word in words for tail in (b"", b"\0\1")], pa.binary())
    has_id = qos > 0
    middle_ids = 2 * topic_ids.astype(np.int64) + has_id
    sizes = np.fromiter(map(len, words), np.int64, len(words))[topic_ids] + 2 * has_id
    lengths = sizes + _lengths(payload)
    if properties is not None:
        lengths = lengths + _lengths(properties)
    if lengths.max() > _LENGTH_TOP:
        raise LocalError(f"a message of {lengths.max()} bytes is larger than any MQTT packet")
    heads = _heads(0x30 | qos << 1 | retain, lengths)
    middle = middles.take(pa.array(middle_ids))
    parts = [heads, middle, payload] if properties is None else [heads, middle, properties, payload]
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _lengths(column: Any) -> Any:
    return pc.binary_length(column).to_numpy(zero_copy_only=False).astype(np.int64)


def _heads(first: Any, lengths: Any) -> Any:
    """First byte and remaining length (1 to 4 bytes, MQTT 5, 1.5.5) of each row."""
    encoded = pa.array(first << 32 | lengths).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    length = distinct & 0xFFFF_FFFF
    count = 2 + (length > 127) + (length > 16_383) + (length > 2_097_151)
    matrix = np.empty((len(distinct), 5), np.uint8)
    matrix[:, 0] = distinct >> 32
    for position in range(4):
        goes_on = count > position + 2
        matrix[:, position + 1] = length >> 7 * position & 127 | np.where(goes_on, 128, 0)
    offsets = np.zeros(len(distinct) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    data = matrix[np.arange(5) < count[:, None]]
    heads = pa.Array.from_buffers(
        pa.binary(), len(distinct), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return heads.take(encoded.indices)
