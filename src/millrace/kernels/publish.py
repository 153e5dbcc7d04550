"""Where the parts of a packet stand, for packets that a scan has found whole and well formed.

These look at a few bytes of one packet and copy nothing. What came from a socket and was not scanned goes
through the codec of `wire/mqtt` instead, which checks every length.
"""

from collections.abc import Iterator
from typing import Any

from millrace.kernels import skip
from millrace.kernels.pure import varint


def head(first_byte: int, length: int) -> bytes:
    """The fixed header of a packet whose rest has this length."""
    return bytes((first_byte,)) + varint(length)


def after_varint(data: bytes, pos: int) -> tuple[int, int]:
    """The variable byte integer at `pos`, and the position after it."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
        shift += 7


def body_start(data: bytes, pos: int = 0) -> int:
    """Where the variable header of the packet at `pos` begins."""
    body = pos + 1
    while data[body] > 127:
        body += 1
    return body + 1


def topic_end(data: bytes, body: int) -> int:
    """Where the topic of a PUBLISH ends whose variable header begins at `body`."""
    return body + 2 + (data[body] << 8 | data[body + 1])


def topic_of(data: bytes, pos: int = 0) -> bytes:
    """The topic of the PUBLISH at `pos`, as it is written there."""
    body = body_start(data, pos)
    return data[body + 2 : topic_end(data, body)]


def after_packet_id(data: bytes, pos: int = 0) -> int:
    """Where the properties of the PUBLISH at `pos` begin in MQTT 5, and its payload in earlier versions."""
    end = topic_end(data, body_start(data, pos))
    return end + 2 if data[pos] & 6 else end


def payload_start(packet: bytes, is_v5: bool) -> int:
    """Where the payload of one PUBLISH begins."""
    at = after_packet_id(packet)
    if is_v5:
        length, at = after_varint(packet, at)
        at += length
    return at


def packet_bounds(run: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each packet of a run."""
    end = 0
    while end < len(run):
        start, end = end, skip(run, 1, end)
        yield start, end


def join_spans(spans: list[Any], more: list[Any]) -> None:
    """Append what a scan found that went on where another stopped."""
    if spans and more and more[0] < 0x40 and spans[-5] == more[0] and spans[-4] is more[1]:
        spans[-2] = more[3]
        spans[-1] += more[4]
        more = more[5:]
    spans += more
