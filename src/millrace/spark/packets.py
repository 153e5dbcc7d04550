"""From Arrow record batches to PUBLISH packets, shard by shard, without a Python step for a message.

The log keeps packets (`docs/understand/format.md`), so packets are what is staged. A packet is a head (type,
flags and length), the topic with its length, a packet id above QoS 0, properties in MQTT 5, and the payload.
A kernel lays the packets of a batch end to end, out of the columns as Arrow has them.

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
from millrace.kernels.packing import pack
from millrace.limits import BLOCK_MESSAGES_MAX
from millrace.spark.routes import Route
from millrace.spark.staging import Section
from millrace.storage.block import BLOCK_BYTES_AIM
from millrace.types import Properties
from millrace.wire.mqtt.properties import encode_properties

# Head, columns, dictionaries and key of a block take their part of its bounds.
_ROW_BYTES = 32
_SECTION_BYTES = BLOCK_BYTES_AIM - 64 * 1024


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
        words = _words(topics)
        firsts = (0x30 | qos << 1 | retain).astype(np.uint8).data
        values = _values(payload)
        more: tuple[memoryview | None, memoryview | None] = (None, None)
        if properties is not None:
            more = _values(properties)
        routes = [self._route(topic) for topic in topics]
        row_routes = np.array(routes, np.int64).take(topic_ids)
        for number in sorted(set(routes)):
            rows = np.flatnonzero(row_routes == number)
            if not len(rows):
                # A dictionary may hold topics that no row has.
                continue
            try:
                packets, edges = pack(words, topic_ids.data, firsts, *values, *more, rows.data)
            except ValueError as error:
                raise LocalError(str(error)) from None
            yield from self._gather(
                self._known[number],
                4 if properties is None else 5,
                memoryview(packets),
                np.frombuffer(edges, np.int64),
            )

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
            return [self._topic], np.zeros(rows, np.int32)
        if column.null_count:
            raise LocalError(f"{column.null_count} rows have no topic")
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        ids = encoded.indices.to_numpy(zero_copy_only=False)
        return encoded.dictionary.to_pylist(), ids.astype(np.int32, copy=False)

    def _route(self, topic: str) -> int:
        number = self._routes.get(topic)
        if number is None:
            route = self._find_route(topic)
            if route not in self._known:
                self._known.append(route)
            number = self._routes[topic] = self._known.index(route)
        return number

    def _gather(self, route: Route, version: int, data: memoryview, edges: Any) -> Iterator[Section]:
        """Add packets, with the places where they begin and end, to what waits for a shard; give what is
        full."""
        count = len(edges) - 1
        weights = edges + _ROW_BYTES * np.arange(len(edges))
        gathering = self._gathering.setdefault(route, _Gathering(version, []))
        if gathering.version != version and gathering.rows:
            yield _section(route, gathering)
            gathering = self._gathering[route] = _Gathering(version, [])
        gathering.version = version
        start = 0
        while start < count:
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
            if end < count:
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


def _words(topics: list[str]) -> tuple[bytes, ...]:
    """Each topic as it stands in a packet (MQTT 5, 3.3.2)."""
    texts = [topic.encode() for topic in topics]
    if max(map(len, texts)) > 65_535:
        raise LocalError("a topic has more than 65535 bytes")
    return tuple(len(text).to_bytes(2, "big") + text for text in texts)


def _values(column: Any) -> tuple[memoryview, memoryview]:
    """Edges and bytes of a binary array."""
    _, edges, data = column.buffers()
    first, end = column.offset, column.offset + len(column) + 1
    return memoryview(edges).cast("B").cast("i")[first:end], memoryview(data or b"").cast("B")
