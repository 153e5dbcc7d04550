"""A packet reaches a decoder in pieces; this feeds it in every way a socket can, and wants one answer."""

from millrace.wire.mqtt.codec import decode, split
from millrace.wire.mqtt.packets import Packet

TAIL = b"\xc0\x00\x30"


def cut(data: bytes) -> tuple[int, bytes]:
    """First byte and body of the one packet in `data`, found whole, byte by byte, and between others."""
    found = split(data)
    assert found is not None, "a whole packet is not found"
    first_byte, start, end = found
    assert end == len(data)
    for size in range(len(data)):
        assert split(data[:size]) is None, f"{size} of {len(data)} bytes are taken for a packet"
    assert split(data + TAIL) == found
    shift = len(TAIL)
    assert split(TAIL + data + TAIL, shift) == (first_byte, start + shift, end + shift)
    return first_byte, data[start:end]


def feed(data: bytes, version: int) -> Packet:
    """The packet in `data`."""
    first_byte, body = cut(data)
    return decode(first_byte, body, version)
