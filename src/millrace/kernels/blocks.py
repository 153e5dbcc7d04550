"""The byte loops of the block: build columns from packet runs, split them again, select rows.

A data body has two parts. The *plain* part is never compressed: six numbers and the topic dictionary, so that
a reader learns which topics a block holds without touching the rest. The *coded* part holds the columns and,
last, the received PUBLISH packets laid end to end; positions in the columns count from the first packet byte.
`docs/understand/format.md` draws both. All numbers are little endian and every section starts at a multiple
of 8, so a column is a cast view and never a loop.

`scan_rows`, `first_bytes` and `join_body` have twins in C, which serve where they are built; those here are
the reference.

No policy here: bytes in, bytes and tuples out, `ValueError` for input that is not what it claims to be. The
packets were checked by the codec at the door; these loops check the lengths they walk on and nothing else.
"""

import re
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from operator import add
from typing import NamedTuple

from millrace.kernels import ACCELERATED

assert sys.byteorder == "little", "columns are cast views of little-endian bytes"
assert array("I").itemsize == 4 and array("Q").itemsize == 8

# topic bytes, name count, name bytes, packet bytes, columns present, key bytes
_PLAIN = struct.Struct("<6I")
# The offsets of a dictionary of one word.
_OF_ONE_WORD = struct.Struct("<2I")
PLAIN_HEAD_BYTES = _PLAIN.size

COLUMN_ATTRIBUTES = 1
"""Bit of "columns present": publisher, producer and sequence columns and the name dictionary follow."""

NO_NAME = 0xFFFF_FFFF
"""Name id of a message without publisher or producer."""

_NO_NAMES = NO_NAME.to_bytes(4, "little")

FLAG_QOS = 0x03
FLAG_RETAIN = 0x04
_RETAINED_FLAGS = bytes(flags for flags in range(256) if flags & FLAG_RETAIN)
FLAG_VERSION_SHIFT = 4

_U32_MAX = 0xFFFF_FFFF
_U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")
_SELECTED = re.compile(rb"\x01+")
_IS_BROKEN = "a run is not whole PUBLISH packets laid end to end"


class Run(NamedTuple):
    """Whole PUBLISH packets of one connection, end to end, that arrived together.

    `topic` is given where the packets do not carry it (a topic alias) or the caller knows that all share it.
    `sequences` is empty or has one number for each packet and needs `producer`.
    """

    packets: bytes
    version: int
    delta_us: int = 0
    topic: bytes | None = None
    publisher: bytes | None = None
    producer: bytes | None = None
    sequences: Sequence[int] = ()


Body = tuple[bytes, int, int, int, int]
"""A whole body with its padding, and how many bytes of it are the plain part and the coded part; number of
messages, number of topics."""


class Columns(NamedTuple):
    """The columns of a body as views, one element a message; the last four are empty without attributes."""

    topic_ids: memoryview
    deltas_us: memoryview
    packet_positions: memoryview
    packet_sizes: memoryview
    payload_positions: memoryview
    payload_sizes: memoryview
    flags: memoryview
    packets: memoryview
    publisher_ids: memoryview
    producer_ids: memoryview
    sequences: memoryview
    names: tuple[bytes, ...]
    key: bytes = b""
    """Names the whole block for those who must not take it twice; empty for most blocks."""


def _padding(size: int) -> bytes:
    return _PADDING[size & 7]


def _aligned(size: int) -> int:
    return size + 7 & ~7


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Value of the variable byte integer at `position` and the position after it (MQTT 5, 1.5.5)."""
    value = shift = 0
    while shift < 28:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError(_IS_BROKEN)


def _scan(run: Run, base: int, topics: dict[bytes, int], rows: list[int]) -> int:
    """Add the packets of a run that starts at `base` of the packet bytes; return how many there are.

    `rows` takes six numbers a message: topic id, packet position and size, payload position and size, flags.
    One flat list and one loop, because look-ups and calls are what a message costs here.
    """
    data, version, _, given_topic, *_ = run
    size = len(data)
    before = len(rows)
    is_v5, version_flag = version == 5, version << FLAG_VERSION_SHIFT
    position = 0
    try:
        while position < size:
            first, length, body = data[position], data[position + 1], position + 2
            if length > 127:
                length, body = _varint(data, position + 1)
            end = body + length
            payload = topic_end = body + 2 + (data[body] << 8 | data[body + 1])
            if first & 6:
                payload += 2
            properties = payload
            if is_v5:
                skip = data[payload]
                payload += 1 + skip
                if skip > 127:
                    skip, payload = _varint(data, properties)
                    payload += skip
            if first & 0xF0 != 0x30 or end > size or payload > end:
                raise ValueError(_IS_BROKEN)
            topic = given_topic or data[body + 2 : topic_end]
            topic_id = topics.get(topic)
            if topic_id is None:
                if not topic:
                    raise ValueError("a packet without a topic needs it given")
                topic_id = topics[topic] = len(topics)
            total, flags = end - position, first >> 1 & 3 | (first & 1) << 2 | version_flag
            packet, payload_size = base + position, end - payload
            payload += base
            rows += (topic_id, packet, total, payload, payload_size, flags)
            # An equal neighbour is found by one comparison of the bytes up to the end of the topic (and,
            # in MQTT 5, of a one-byte property length) instead of a parse.
            position = end
            if end + total > size or data[end + 1] != data[end + 1 - total]:
                continue
            prefix, at = data[end - total : topic_end], properties - (end - total)
            value = data[properties] if is_v5 else 0
            if value > 127:
                continue
            while (
                position + total <= size
                and data.startswith(prefix, position)
                and (not is_v5 or data[position + at] == value)
            ):
                packet += total
                payload += total
                position += total
                rows += (topic_id, packet, total, payload, payload_size, flags)
    except IndexError:
        raise ValueError(_IS_BROKEN) from None
    return (len(rows) - before) // 6


def scan_rows(runs: Sequence[Run], topics: dict[bytes, int]) -> tuple[list[int], tuple[bytes, ...]]:
    """Number of messages of each run, and seven columns of all: topic id, time delta, packet position and
    size, payload position and size, and flags, a byte each. `topics` takes the topics it does not hold."""
    rows: list[int] = []
    counts: list[int] = []
    deltas = array("I")
    base = 0
    for run in runs:
        if not 0 <= run.delta_us <= _U32_MAX:
            raise ValueError(f"a time delta of {run.delta_us} us does not fit its column")
        count = _scan(run, base, topics, rows)
        counts.append(count)
        deltas.extend(array("I", (run.delta_us,)) * count)
        base += len(run.packets)
        if base > _U32_MAX:
            raise ValueError(f"{base} bytes of packets do not fit one block")
    numbers = [array("I", rows[n::6]).tobytes() for n in range(5)]
    return counts, (numbers[0], deltas.tobytes(), *numbers[1:], bytes(rows[5::6]))


def first_bytes(packets: bytes, positions: memoryview) -> bytes:
    """The bytes at these places of the packets, each once and in rising order."""
    return bytes(sorted(set(map(packets.__getitem__, positions))))


_scan_rows = scan_rows
_first_bytes = first_bytes
_join_body: Callable[[Sequence[Run], bytes], Body | None] | None = None
if ACCELERATED:
    from millrace.kernels import _kernels

    _scan_rows = _kernels.scan_rows
    _first_bytes = _kernels.first_bytes
    _join_body = _kernels.join_body


def _dictionary(words: Sequence[bytes]) -> list[bytes]:
    """Offsets (one more than words) and text, each padded."""
    if len(words) == 1:
        word = words[0]
        return [_OF_ONE_WORD.pack(0, len(word)), word, _PADDING[len(word) & 7]]
    offsets = array("I", (0,))
    at = 0
    for word in words:
        at += len(word)
        offsets.append(at)
    return [offsets.tobytes(), _padding(4 * len(offsets)), *words, _padding(at)]


def _attributes(runs: Sequence[Run], counts: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    """The three attribute columns and the words they name."""
    names: dict[bytes, int] = {}
    publishers: list[bytes] = []
    producers: list[bytes] = []
    sequences: list[bytes] = []
    for (_, _, _, _, publisher, producer, numbers), count in zip(runs, counts, strict=True):
        name_id = NO_NAME if publisher is None else names.setdefault(publisher, len(names))
        publishers.append(name_id.to_bytes(4, "little") * count)
        if producer is None:
            producers.append(_NO_NAMES * count)
            sequences.append(bytes(8 * count))
            continue
        producers.append(names.setdefault(producer, len(names)).to_bytes(4, "little") * count)
        if len(numbers) != count or not all(0 <= number <= _U64_MAX for number in numbers):
            raise ValueError(f"{len(numbers)} sequences for {count} packets, or one beyond 64 bits")
        sequences.append(array("Q", numbers).tobytes())
    pad = _padding(4 * sum(counts))
    return [*publishers, pad, *producers, pad, *sequences], list(names)


def build_body(runs: Sequence[Run], key: bytes = b"") -> tuple[bytes, tuple[bytes, ...], int, int]:
    """Plain part, pieces of the coded part (join them), number of messages, number of topics."""
    topic_ids: dict[bytes, int] = {}
    counts, made = _scan_rows(runs, topic_ids)
    count = sum(counts)
    pad = _padding(4 * count)
    coded: list[bytes] = []
    for column in made[:-1]:
        coded += (column, pad)
    coded += (made[-1], _padding(count), key, _padding(len(key)))
    names: list[bytes] = []
    present = 0
    if any(run.publisher is not None or run.producer is not None for run in runs):
        present = COLUMN_ATTRIBUTES
        columns, names = _attributes(runs, counts)
        coded += columns
        coded += _dictionary(names)
    packets = [run.packets for run in runs]
    coded += packets
    topics = list(topic_ids)
    sizes = (sum(map(len, topics)), len(names), sum(map(len, names)), sum(map(len, packets)))
    head = _PLAIN.pack(*sizes, present, len(key))
    return b"".join((head, *_dictionary(topics))), tuple(coded), count, len(topics)


def join_body(runs: Sequence[Run], key: bytes = b"") -> Body:
    """The body whose coded part is stored as it is. The twin in C leaves runs with a producer to this one."""
    plain, coded, count, topics = build_body(runs, key)
    raw_bytes = sum(map(len, coded))
    body = b"".join((plain, *coded, _padding(len(plain) + raw_bytes)))
    return body, len(plain), raw_bytes, count, topics


def make_body(runs: Sequence[Run], key: bytes = b"") -> Body:
    """By whichever twin serves."""
    made = _join_body(runs, key) if _join_body is not None else None
    return join_body(runs, key) if made is None else made


def _words(
    data: bytes | memoryview, position: int, count: int, text_bytes: int
) -> tuple[tuple[bytes, ...], int]:
    """The words of the dictionary at `position` and the position after it."""
    text = position + _aligned(4 * (count + 1))
    after = text + _aligned(text_bytes)
    if after > len(data):
        raise ValueError("a dictionary is longer than its part")
    offsets = memoryview(data)[position : position + 4 * (count + 1)].cast("I").tolist()
    if offsets[0] != 0 or offsets[-1] != text_bytes or offsets != sorted(offsets):
        raise ValueError("the offsets of a dictionary do not fit its text")
    words = bytes(data[text : text + text_bytes])
    return tuple(map(words.__getitem__, map(slice, offsets, offsets[1:]))), after


def read_topics(plain: bytes | memoryview, topic_count: int) -> tuple[bytes, ...]:
    """The topic dictionary; topic id n is element n."""
    if len(plain) < PLAIN_HEAD_BYTES:
        raise ValueError("the plain part is shorter than its head")
    topics, after = _words(plain, PLAIN_HEAD_BYTES, topic_count, _PLAIN.unpack_from(plain)[0])
    if after != len(plain):
        raise ValueError("the plain part is longer than its dictionary")
    return topics


def split_columns(plain: bytes | memoryview, coded: bytes | memoryview, count: int) -> Columns:
    """Views of the coded part; a section that does not fit raises, the elements are not looked at."""
    if len(plain) < PLAIN_HEAD_BYTES:
        raise ValueError("the plain part is shorter than its head")
    _, name_count, name_bytes, packet_bytes, present, key_bytes = _PLAIN.unpack_from(plain)
    view = memoryview(coded)
    wide, narrow = _aligned(4 * count), 4 * count
    position = 6 * wide + _aligned(count)
    key = bytes(view[position : position + key_bytes]) if key_bytes else b""
    position += _aligned(key_bytes)
    names: tuple[bytes, ...] = ()
    attributes = [view[:0].cast("I"), view[:0].cast("I"), view[:0].cast("Q")]
    if present & COLUMN_ATTRIBUTES:
        sequences = position + 2 * wide
        names, after = _words(coded, sequences + 8 * count, name_count, name_bytes)
        attributes = [
            view[position : position + narrow].cast("I"),
            view[position + wide : position + wide + narrow].cast("I"),
            view[sequences : sequences + 8 * count].cast("Q"),
        ]
        position = after
    if position + packet_bytes != len(view):
        raise ValueError(f"the columns and packets are {len(view)} bytes, not {position + packet_bytes}")
    columns = [view[n * wide : n * wide + narrow].cast("I") for n in range(6)]
    return Columns(
        topic_ids=columns[0],
        deltas_us=columns[1],
        packet_positions=columns[2],
        packet_sizes=columns[3],
        payload_positions=columns[4],
        payload_sizes=columns[5],
        flags=view[6 * wide : 6 * wide + count],
        packets=view[position:],
        publisher_ids=attributes[0],
        producer_ids=attributes[1],
        sequences=attributes[2],
        names=names,
        key=key,
    )


def is_plain(body: bytes, plain_bytes: int, count: int) -> bool:
    """Whether the messages of this body, which is not compressed, have no keys and are not retained, nor has
    the body a key. Told by three looks at it; False also where the parts do not fit."""
    if plain_bytes < PLAIN_HEAD_BYTES:
        return False
    _, _, _, _, present, key_bytes = _PLAIN.unpack_from(body)
    wide = _aligned(4 * count)
    flags_at = plain_bytes + 6 * wide
    flags = body[flags_at : flags_at + count]
    if key_bytes or len(flags.translate(None, _RETAINED_FLAGS)) != count:
        return False
    if not present & COLUMN_ATTRIBUTES:
        return True
    producers_at = flags_at + _aligned(count) + wide
    return body[producers_at : producers_at + 4 * count] == _NO_NAMES * count


def check_columns(columns: Columns, topic_count: int) -> None:
    """Every element points where it may: for a body that another process made, before views of it are used
    without a bound (an Arrow gather)."""
    rows = len(columns.flags)
    if not rows:
        raise ValueError("no messages")
    if max(columns.topic_ids) >= topic_count:
        raise ValueError("a topic id is not in the dictionary")
    ends = list(map(add, columns.packet_positions, columns.packet_sizes))
    if columns.packet_positions.tolist() != [0, *ends[:-1]] or ends[-1] != len(columns.packets):
        raise ValueError("the packets are not laid end to end")
    payload_ends = list(map(add, columns.payload_positions, columns.payload_sizes))
    starts_inside = all(map(int.__le__, columns.packet_positions, columns.payload_positions))
    if payload_ends != ends or not starts_inside:
        raise ValueError("a payload is not the end of its packet")
    for ids in (columns.publisher_ids, columns.producer_ids):
        if any(len(columns.names) <= name_id != NO_NAME for name_id in ids):
            raise ValueError("a name id is not in the dictionary")


def packet_types(packets: bytes, columns: Columns) -> bytes:
    """The first bytes that packets of these columns have, each once: type, QoS and marks."""
    return _first_bytes(packets, columns.packet_positions)


def rows_between(base_offset: int, count: int, first_offset: int, end_offset: int) -> tuple[int, int]:
    """Rows [first, end) of a block with offsets in [first_offset, end_offset); equal if there are none."""
    first = min(max(first_offset - base_offset, 0), count)
    return first, max(first, min(end_offset - base_offset, count))


def select_rows(topic_ids: memoryview, wanted: bytes, first: int, end: int) -> list[tuple[int, int]]:
    """Spans of rows in [first, end) whose topic is wanted; `wanted` has one byte, 0 or 1, for each topic."""
    if len(wanted) <= 256:
        # One byte tells the topics apart, so a translation of every fourth byte makes the mask.
        mask = bytes(topic_ids[first:end].cast("B")[::4]).translate(wanted.ljust(256, b"\0"))
    else:
        mask = bytes(map(wanted.__getitem__, topic_ids[first:end]))
    return [(match.start() + first, match.end() + first) for match in _SELECTED.finditer(mask)]


def packet_spans(columns: Columns, rows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """For each span of rows the byte span of its packets, which lie end to end."""
    starts, sizes = columns.packet_positions, columns.packet_sizes
    return [(starts[first], starts[end - 1] + sizes[end - 1]) for first, end in rows]
