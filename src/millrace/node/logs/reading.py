"""Reading a shard's log by offset: blocks for those who take blocks, messages for those who do not.

What was committed a moment ago is in memory; the rest comes from disk, in a worker thread. `Trimmed` names
the earliest offset where retention has removed what was asked for, `RangeDamaged`, where no other replica
could repair it in time, the next one that can be read.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from millrace.kernels.blocks import FLAG_QOS, FLAG_RETAIN, FLAG_VERSION_SHIFT, Columns, select_rows
from millrace.kernels.publish import body_start
from millrace.node.logs.replica_log import ReplicaLog
from millrace.storage.block import Block, Kind
from millrace.storage.log import Trimmed
from millrace.storage.scan import RangeDamaged
from millrace.storage.summary import filter_keys
from millrace.types import NO_PROPERTIES, Index, Offset, Properties, Version
from millrace.wire.mqtt.codec import decode
from millrace.wire.mqtt.packets import Publish

READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One message of a log."""

    shard: int
    offset: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    time_us: int
    publisher: str | None
    producer: bytes
    """Who keyed it, as the log knows them: a client's name has a prefix there. Empty without a key."""
    properties: Properties


class AppliedLog(Protocol):
    """A log on disk, and how far it may be read."""

    @property
    def replica_log(self) -> ReplicaLog: ...

    @property
    def applied(self) -> int: ...


class ReadableLog(Protocol):
    """The log of a shard, or of an origin of a leaderless stream, as readers see it."""

    @property
    def number(self) -> int: ...

    @property
    def group(self) -> AppliedLog: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def recent(self, offset: int) -> list[Block] | None: ...


class Reading:
    """The readers of a node."""

    def __init__(self, pool: Executor, repaired: Callable[[int], Awaitable[bool]]) -> None:
        """`repaired`: wait until the damage in a shard is repaired; False where it cannot be."""
        self._pool = pool
        self._repaired = repaired

    async def blocks(
        self, shard: ReadableLog, offset: int, keys: tuple[int, ...] | None = None
    ) -> list[Block]:
        """Committed blocks from the one that holds `offset` on, at most about 1 MiB; none at the end.

        With `keys` (see `keys_of`) segments without such a topic are passed over: the first block may then
        begin behind `offset`, and no block at all means that there is nothing up to the end.
        """
        if offset < shard.first_offset:
            directory = f"shard {shard.number}"
            raise Trimmed(directory, shard.group.replica_log.log.first_index, Offset(shard.first_offset))
        if offset >= shard.next_offset:
            return []
        recent = shard.recent(offset)
        if recent is not None:
            return _bounded(recent)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, read_blocks, shard, offset, keys)
        except RangeDamaged:
            if not await self._repaired(shard.number):
                raise
        return await loop.run_in_executor(self._pool, read_blocks, shard, offset, keys)

    async def messages(self, shard: ReadableLog, offsets: list[int]) -> dict[int, Stored]:
        """The messages at these offsets, in rising order; StorageError where one cannot be had."""
        found: dict[int, Stored] = {}
        at = 0
        while at < len(offsets):
            wanted = offsets[at]
            blocks = await self.blocks(shard, wanted)
            if not blocks:
                raise Trimmed(f"shard {shard.number}", Index(0), Offset(shard.first_offset))
            for block in blocks:
                header = block.header
                rows = []
                while at < len(offsets) and offsets[at] < header.next_offset:
                    rows.append(offsets[at] - header.base_offset)
                    at += 1
                if rows:
                    found.update((m.offset, m) for m in stored_rows(shard.number, block, rows))
        return found


def read_blocks(shard: ReadableLog, offset: int, keys: tuple[int, ...] | None = None) -> list[Block]:
    """In a worker thread: committed blocks from the one that holds `offset`."""
    replica_log = shard.group.replica_log
    index = replica_log.block_at_offset(offset)
    last = Index(shard.group.applied)
    if keys is not None and index <= last:
        index = replica_log.log.skip_to(index, keys)
    if index > last:
        return []
    return replica_log.blocks(index, last, READ_BYTES)


def keys_of(filters: tuple[str, ...]) -> tuple[int, ...] | None:
    """What to look for in the summaries of segments; None where every segment may hold a match."""
    keys: list[int] = []
    for filter in filters:
        found = filter_keys(filter.encode())
        if found is None:
            return None
        keys += found
    return tuple(keys)


def _bounded(blocks: list[Block]) -> list[Block]:
    total = 0
    for position, block in enumerate(blocks):
        total += block.header.block_bytes
        if total > READ_BYTES:
            return blocks[: position + 1]
    return blocks


def matching_rows(block: Block, offset: int, takes: Callable[[bytes], bool]) -> list[tuple[int, int]]:
    """Spans of rows at or above `offset` whose topics are taken, by the block's dictionary."""
    if block.header.kind is not Kind.DATA:
        return []
    wanted = bytes(map(takes, block.topics()))
    if 1 not in wanted:
        return []
    first = max(0, offset - block.header.base_offset)
    return select_rows(block.columns().topic_ids, wanted, first, block.header.count)


def stored_rows(shard: int, block: Block, rows: "list[int] | range") -> list[Stored]:
    """These rows of a block as messages."""
    columns, topics = block.columns(), block.topics()
    return [_stored(shard, block, columns, topics, row) for row in rows]


def _stored(shard: int, block: Block, columns: Columns, topics: tuple[bytes, ...], row: int) -> Stored:
    start, size = columns.payload_positions[row], columns.payload_sizes[row]
    publisher = None
    if columns.publisher_ids and columns.publisher_ids[row] < len(columns.names):
        publisher = columns.names[columns.publisher_ids[row]].decode()
    producer = b""
    if columns.producer_ids and columns.producer_ids[row] < len(columns.names):
        producer = bytes(columns.names[columns.producer_ids[row]])
    flag = columns.flags[row]
    return Stored(
        shard=shard,
        offset=block.header.base_offset + row,
        topic=topics[columns.topic_ids[row]].decode(),
        payload=bytes(columns.packets[start : start + size]),
        qos=flag & FLAG_QOS,
        retain=bool(flag & FLAG_RETAIN),
        time_us=block.header.base_time_us + columns.deltas_us[row],
        publisher=publisher,
        producer=producer,
        properties=properties_of(packet_of(columns, row)) if is_v5(columns, row) else NO_PROPERTIES,
    )


def is_v5(columns: Columns, row: int) -> bool:
    return bool(columns.flags[row] >> FLAG_VERSION_SHIFT == Version.MQTT_5)


def packet_of(columns: Columns, row: int) -> bytes:
    start = columns.packet_positions[row]
    return bytes(columns.packets[start : start + columns.packet_sizes[row]])


def properties_of(packet: bytes) -> Properties:
    """The properties of one MQTT 5 PUBLISH."""
    decoded = decode(packet[0], packet[body_start(packet) :], Version.MQTT_5)
    assert isinstance(decoded, Publish)
    return decoded.message.properties
