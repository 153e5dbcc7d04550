"""Which messages of a block are traced, and under which ids.

A message is traced if its publisher asks for it, by the user property `traceparent` of W3C Trace Context with
the flag "sampled", or if its offset is a multiple of `one_in`. Both can be seen in the block alone. So every
node that delivers the block and every task of Spark that reads it finds the same messages and the same ids,
and nothing has to be told or written into a message: a broker hands user properties on as they are
([MQTT-3.3.2-17]).
"""

import re
import struct
from bisect import bisect_right
from hashlib import blake2b
from typing import NamedTuple

from millrace.kernels.blocks import FLAG_QOS, FLAG_VERSION_SHIFT, NO_NAME, Columns
from millrace.storage.block import Block, Codec

TRACEPARENT = "traceparent"

_NAME = TRACEPARENT.encode()
_FORM = rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]"
_VALUE = re.compile(_FORM + rb"[0-9a-f]")
# A user property (MQTT 5, 3.3.2.3.7): its identifier, then name and value with their lengths.
_HEAD = rb"\x26\x00\x0b" + _NAME + rb"\x00\x37"
_ANY = re.compile(_HEAD + _FORM + rb"([0-9a-f])")
_SAMPLED = re.compile(_HEAD + _FORM + rb"[13579bdf]")
_PLACE = struct.Struct("<IQq")


class TracedMessage(NamedTuple):
    """A message that is traced. `receive_id` is the span of the node that took it in."""

    offset: int
    topic: str
    publisher: str
    qos: int
    payload_bytes: int
    trace_id: int
    parent_id: int
    """The publisher's span; 0 where the trace begins at the broker."""
    receive_id: int


def is_traceparent(text: str) -> bool:
    """Whether this is a value that tells a trace and a span."""
    return text.isascii() and _VALUE.fullmatch(text.encode()) is not None


def traced_messages(block: Block, number: int, one_in: int, most: int) -> list[TracedMessage]:
    """The first of the traced messages of a data block in the log with this number; `one_in` 0 is none by
    offset. Batches that Spark wrote are left out: no publisher waits for them."""
    header = block.header
    chosen = range(-header.base_offset % one_in, header.count, one_in) if one_in else range(0)
    # A body that is compressed has to be expanded before anybody can look into it.
    is_asked = header.codec is not Codec.NONE or _NAME in block.body
    if not chosen and not is_asked:
        return []
    columns = block.columns()
    if columns.key:
        return []
    found = _asked(columns, most) if is_asked else {}
    for row in chosen[:most]:
        own = _ANY.search(columns.packets, columns.packet_positions[row], columns.payload_positions[row])
        if own is None or not _is_v5(columns, row):
            found.setdefault(row, (0, 0))
    topics = block.topics()
    return [_message(block, columns, topics, number, row, found[row]) for row in sorted(found)[:most]]


def _asked(columns: Columns, most: int) -> dict[int, tuple[int, int]]:
    """The rows whose publishers ask for it, with the ids that they name. The same bytes in a payload say
    nothing."""
    found: dict[int, tuple[int, int]] = {}
    for match in _SAMPLED.finditer(columns.packets):
        row = bisect_right(columns.packet_positions, match.start()) - 1
        if row not in found and match.end() <= columns.payload_positions[row] and _is_v5(columns, row):
            found[row] = int(match[1], 16), int(match[2], 16)
            if len(found) == most:
                break
    return found


def _is_v5(columns: Columns, row: int) -> bool:
    return columns.flags[row] >> FLAG_VERSION_SHIFT == 5


def _message(
    block: Block,
    columns: Columns,
    topics: tuple[bytes, ...],
    number: int,
    row: int,
    asked: tuple[int, int],
) -> TracedMessage:
    offset = block.header.base_offset + row
    # With its time in it, the place is not that of a message in another cluster.
    place = _PLACE.pack(number, offset, block.header.base_time_us + columns.deltas_us[row])
    trace_id, parent_id = asked
    publisher = columns.publisher_ids[row] if columns.names else NO_NAME
    return TracedMessage(
        offset=offset,
        topic=topics[columns.topic_ids[row]].decode(),
        publisher="" if publisher == NO_NAME else columns.names[publisher].decode(),
        qos=columns.flags[row] & FLAG_QOS,
        payload_bytes=columns.payload_sizes[row],
        trace_id=trace_id or _hash(place, b"millrace-trace", 16),
        parent_id=parent_id,
        receive_id=_hash(place, b"millrace-receive", 8),
    )


def _hash(place: bytes, what: bytes, size: int) -> int:
    """Never 0, which is no id."""
    return int.from_bytes(blake2b(place, digest_size=size, person=what).digest(), "big") or 1
