"""The data types of MQTT (section 1.5) and the rules for topic names and filters (section 4.7).

Readers take `(data, pos, end)` and return `(value, next position)`: they never look at or past `end`, so a
packet, or a property block inside one, is read in place. What a reader refuses is the peer's fault
(`RemoteError`); what a `put_*` function refuses is ours (`LocalError`).
"""

from millrace.errors import LocalError, MalformedPacket, ProtocolError
from millrace.limits import REMAINING_LENGTH_TOP, STRING_BYTES_TOP

SHARE_PREFIX = "$share/"


def varint(value: int) -> bytes:
    """Variable byte integer in as few bytes as possible [MQTT-1.5.5-1]."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 0 <= value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if 0 <= value <= REMAINING_LENGTH_TOP:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    raise LocalError(f"{value} does not fit a variable byte integer (0 to {REMAINING_LENGTH_TOP})")


def read_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A variable byte integer of one to four bytes.

    Minimal length is the sender's duty [MQTT-1.5.5-1]. A longer form is accepted: no clause calls it
    malformed, and the decoding algorithm of section 1.5.5 refuses only a fifth byte.
    """
    value = 0
    for shift in (0, 7, 14, 21):
        if pos >= end:
            raise MalformedPacket("a variable byte integer runs past its end")
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise MalformedPacket("a variable byte integer has more than four bytes")


def split(data: bytes, pos: int = 0) -> tuple[int, int, int] | None:
    """First byte, body start and body end of the packet at `pos`; None while it is incomplete."""
    available = len(data)
    length = 0
    at = pos + 1
    for shift in (0, 7, 14, 21):
        if at >= available:
            return None
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            end = at + length
            return (data[pos], at, end) if end <= available else None
    raise MalformedPacket("the remaining length has more than four bytes")


def read_byte(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos >= end:
        raise MalformedPacket("a byte is missing")
    return data[pos], pos + 1


def read_u16(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos + 2 > end:
        raise MalformedPacket("a two byte integer runs past its end")
    return data[pos] << 8 | data[pos + 1], pos + 2


def read_u32(data: bytes, pos: int, end: int) -> tuple[int, int]:
    if pos + 4 > end:
        raise MalformedPacket("a four byte integer runs past its end")
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def read_binary(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    start = pos + 2
    if start > end:
        raise MalformedPacket("a length runs past its end")
    stop = start + (data[pos] << 8 | data[pos + 1])
    if stop > end:
        raise MalformedPacket("a string or binary field runs past its end")
    return data[start:stop], stop


def read_string(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """A UTF-8 string. U+FEFF stays, also in front [MQTT-1.5.4-3]."""
    raw, pos = read_binary(data, pos, end)
    try:
        # Strict UTF-8 in Python refuses surrogates and overlong forms, as [MQTT-1.5.4-1] asks.
        text = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("a string is not well-formed UTF-8") from None
    if "\0" in text:
        raise MalformedPacket("a string contains U+0000")  # [MQTT-1.5.4-2]
    return text, pos


def read_packet_id(data: bytes, pos: int, end: int) -> tuple[int, int]:
    packet_id, pos = read_u16(data, pos, end)
    if packet_id == 0:
        raise ProtocolError("the packet identifier is 0")  # [MQTT-2.2.1-3]: it parses, but is not allowed
    return packet_id, pos


def put_u16(value: int) -> bytes:
    if not 0 <= value <= 0xFFFF:
        raise LocalError(f"{value} does not fit two bytes")
    return value.to_bytes(2, "big")


def put_u32(value: int) -> bytes:
    if not 0 <= value <= 0xFFFF_FFFF:
        raise LocalError(f"{value} does not fit four bytes")
    return value.to_bytes(4, "big")


def put_binary(value: bytes) -> bytes:
    if len(value) > STRING_BYTES_TOP:
        raise LocalError(f"a string or binary field of {len(value)} bytes is longer than {STRING_BYTES_TOP}")
    return len(value).to_bytes(2, "big") + value


def put_string(value: str) -> bytes:
    if "\0" in value:
        raise LocalError("a string to be sent contains U+0000")
    try:
        return put_binary(value.encode())
    except UnicodeEncodeError:
        raise LocalError("a string to be sent contains a surrogate") from None


def put_packet_id(value: int) -> bytes:
    if not 0 < value <= 0xFFFF:
        raise LocalError(f"{value} is not a packet identifier (1 to 65535)")
    return value.to_bytes(2, "big")


# A topic name or filter that breaks section 4.7 or 4.8.2 is a malformed packet: the codes 0x8F and 0x90 are
# worded for a filter or name that "is correctly formed but is not accepted", so they are not meant for it.


def check_topic(topic: str) -> None:
    """A topic name: at least one character [MQTT-4.7.3-1], no wildcard [MQTT-4.7.0-1]."""
    if not topic:
        raise MalformedPacket("a topic name is empty")
    if "+" in topic or "#" in topic:
        raise MalformedPacket("a topic name contains a wildcard")


def check_filter(text: str) -> bool:
    """A topic filter; true if it is a shared one.

    `$share/` has the same meaning in every version: a 3.1.1 client joins a group by the same name, so the
    rules of MQTT 5, 4.8.2 hold for it too.
    """
    shared = text.startswith(SHARE_PREFIX)
    levels = text
    if shared:
        name, _, levels = text[len(SHARE_PREFIX) :].partition("/")
        if not name or "+" in name or "#" in name:
            raise MalformedPacket("a share name is empty or contains a wildcard")  # [MQTT-4.8.2-1, -2]
    if not levels:
        raise MalformedPacket("a topic filter is empty")  # [MQTT-4.7.3-1]
    if "#" in levels:
        if levels.index("#") != len(levels) - 1 or not (levels == "#" or levels.endswith("/#")):
            raise MalformedPacket("# is not the last level of a topic filter")  # [MQTT-4.7.1-1]
    if "+" in levels:
        if any("+" in level and level != "+" for level in levels.split("/")):
            raise MalformedPacket("+ does not fill a level of a topic filter")  # [MQTT-4.7.1-2]
    return shared
