"""The byte loops in Python: the reference for the C twin and the path where there is no compiler.

A *run* is a sequence of whole PUBLISH packets laid end to end that share the first byte (no DUP, no RETAIN)
and the protocol version. All functions are stateless: bytes in, spans or bytes out. They check every length
before they read, and leave anything unusual to the caller, who decodes that one packet with the codec.
"""

from collections.abc import Mapping
from typing import Any

from millrace.limits import USER_PROPERTIES_MAX

PACKET_ID_MAX = 65_535

# Acknowledgements are slices of one table: type byte, length 2, big-endian packet id.
_ACKS: dict[int, bytes] = {}

# First bytes that `scan` handles: PUBLISH without DUP and RETAIN, and the four acknowledgements.
_PUBLISHES = frozenset((0x30, 0x32, 0x34))
_ACK_TYPES = frozenset((0x40, 0x50, 0x62, 0x70))
# How names of user properties begin that the broker itself reads.
_OWN_PROPERTY = b"millrace-"


def _length(data: bytes, pos: int, size: int) -> tuple[int, int]:
    """Body start and end of the packet at `pos`; end is -1 when the length is incomplete or malformed.

    A length written longer than it has to be counts as malformed: bytes that are forwarded as they came must
    be such as we may send ([MQTT-1.5.5-1]). The codec is more patient and writes it anew.
    """
    body = pos + 1
    value = shift = 0
    while body < size and shift < 28:
        byte = data[body]
        body += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return body, body + value if byte or not shift else -1
        shift += 7
    return body, -1


def _forwardable(data: bytes, pos: int, end: int) -> int:
    """Position after a property block that may be forwarded untouched, or -1.

    Properties the broker must act on (expiry, alias, subscription identifier, user properties of its own),
    repeated ones, broken ones and too many all give -1: the codec then decides.
    """
    pos, stop = _length(data, pos - 1, end)
    if stop < 0 or stop > end:
        return -1
    seen = user = 0
    while pos < stop:
        kind = data[pos]
        pos += 1
        if kind == 0x26:
            user += 1
            if user > USER_PROPERTIES_MAX:
                return -1
        else:
            if kind not in (0x01, 0x03, 0x08, 0x09) or seen & (1 << kind):
                return -1
            seen |= 1 << kind
        if kind == 0x01:
            if pos >= stop or data[pos] > 1:
                return -1
            pos += 1
            continue
        for left in range(2 if kind == 0x26 else 1, 0, -1):
            if pos + 2 > stop:
                return -1
            after = pos + 2 + (data[pos] << 8 | data[pos + 1])
            if after > stop:
                return -1
            if kind != 0x09:
                text = data[pos + 2 : after]
                if left == 2 and text.startswith(_OWN_PROPERTY):
                    return -1
                if b"\0" in text or (kind == 0x08 and (b"+" in text or b"#" in text or not text)):
                    return -1
                if not text.isascii():
                    try:
                        text.decode()
                    except UnicodeDecodeError:
                        return -1
            pos = after
    return pos


def scan(
    data: bytes, pos: int, routes: Mapping[bytes, Any], v5: bool, packet_bytes_max: int
) -> tuple[int, list[Any]]:
    """Parse packets from `pos` until the first that needs the codec; return its position and the spans.

    Spans come flat, five values each: first byte, route (acknowledgements: first packet id), start, end,
    count. Neighbouring PUBLISH packets join while first byte and route object are the same,
    acknowledgements while their ids are consecutive.
    """
    size = len(data)
    if not 0 <= pos <= size:
        raise ValueError("position outside the data")
    spans: list[Any] = []
    kind = start = count = 0
    subject: Any = None
    while size - pos >= 2:
        first = data[pos]
        if first in _PUBLISHES:
            body, end = _length(data, pos, size)
            if end < 0 or end > size or end - pos > packet_bytes_max or body + 2 > end:
                break
            after = body + 2 + (data[body] << 8 | data[body + 1])
            if after > end:
                break
            route = routes.get(data[body + 2 : after])
            if route is None:
                break
            if first != 0x30:
                if after + 2 > end or not (data[after] or data[after + 1]):
                    break
                after += 2
            if v5:
                if after >= end or (data[after] and _forwardable(data, after, end) < 0):
                    break
            if count and (first != kind or route is not subject):
                spans += (kind, subject, start, pos, count)
                count = 0
            if not count:
                kind, subject, start = first, route, pos
            count += 1
            begin, pos = pos, end
            # Equal neighbours: one comparison of the bytes up to the topic's end finds each.
            total = end - begin
            if not v5 and pos + total <= size and data[pos + 1] == data[begin + 1]:
                stop = after if first == 0x30 else after - 2
                prefix = data[begin:stop]
                stop -= begin
                while pos + total <= size and data.startswith(prefix, pos):
                    if first != 0x30 and not (data[pos + stop] or data[pos + stop + 1]):
                        break
                    pos += total
                    count += 1
        elif first in _ACK_TYPES:
            if size - pos < 4 or data[pos + 1] != 2:
                break
            packet_id = data[pos + 2] << 8 | data[pos + 3]
            if not packet_id:
                break
            if count and (first != kind or packet_id != subject + count):
                spans += (kind, subject, start, pos, count)
                count = 0
            if not count:
                kind, subject, start = first, packet_id, pos
            count += 1
            pos += 4
        else:
            break
    if count:
        spans += (kind, subject, start, pos, count)
    return pos, spans


def ack_run(first_byte: int, packet_id: int, count: int) -> bytes:
    """`count` acknowledgements of one type with consecutive ids; wraps from 65,535 to 1."""
    if not (1 <= packet_id <= PACKET_ID_MAX and 0 <= count <= PACKET_ID_MAX):
        raise ValueError("packet id or count out of range")
    table = _ACKS.get(first_byte)
    if table is None:
        head = bytes((first_byte, 2))
        table = b"".join(head + n.to_bytes(2, "big") for n in range(1, PACKET_ID_MAX + 1))
        _ACKS[first_byte] = table
    start = (packet_id - 1) * 4
    run = table[start : start + count * 4]
    missing = count - len(run) // 4
    return run + table[: missing * 4] if missing else run


def _id_position(data: bytes, pos: int, size: int) -> tuple[int, int]:
    """Where the packet id of the QoS > 0 PUBLISH at `pos` stands, and the end of the packet."""
    body, end = _length(data, pos, size)
    if end < 0 or end > size or body + 2 > end:
        raise ValueError("not a run of whole packets")
    at = body + 2 + (data[body] << 8 | data[body + 1])
    if at + 2 > end:
        raise ValueError("not a run of whole packets")
    return at, end


def packet_ids(run: bytes) -> list[int]:
    """The packet ids of a run of QoS 1 or QoS 2 packets, in order."""
    ids: list[int] = []
    pos, size = 0, len(run)
    while pos < size:
        at, pos = _id_position(run, pos, size)
        ids.append(run[at] << 8 | run[at + 1])
    return ids


def acks(run: bytes, first_byte: int) -> bytes:
    """The acknowledgements for a run of QoS 1 or QoS 2 packets, in order."""
    head = bytes((first_byte, 2))
    out: list[bytes] = []
    pos, size = 0, len(run)
    while pos < size:
        at, pos = _id_position(run, pos, size)
        out.append(head)
        out.append(run[at : at + 2])
    return b"".join(out)


def skip(run: bytes, count: int, pos: int = 0) -> int:
    """Position after the `count` packets of a run that begin at `pos`."""
    size = len(run)
    if not 0 <= pos <= size:
        raise ValueError("position outside the data")
    for _ in range(count):
        _, pos = _length(run, pos, size)
        if pos < 0 or pos > size:
            raise ValueError("not a run of whole packets")
    return pos


def varint(value: int) -> bytes:
    """A variable byte integer (MQTT 5, 1.5.5)."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _patched(run: bytes, first_byte: int, packet_id: int) -> bytes:
    """A copy with another first byte and consecutive packet ids: the layout stays, so only those change."""
    copy = bytearray(run)
    pos, size = 0, len(run)
    while pos < size:
        copy[pos] = first_byte
        at, pos = _id_position(run, pos, size)
        copy[at] = packet_id >> 8
        copy[at + 1] = packet_id & 255
        packet_id = packet_id % PACKET_ID_MAX + 1
    return bytes(copy)


def reframe(run: bytes, from_v5: bool, to_v5: bool, first_byte: int, packet_id: int, extra: bytes) -> bytes:
    """Rewrite a run for receivers of another version, QoS, flags or identifiers.

    `first_byte` is that of the output; ids count up from `packet_id` (wrapping) where its QoS is above 0.
    `extra` is appended to each property block and must be empty unless `to_v5`.
    """
    if not run:
        return b""
    had_id = bool(run[0] & 6)
    has_id = bool(first_byte & 6)
    if has_id and not 1 <= packet_id <= PACKET_ID_MAX:
        raise ValueError("packet id out of range")
    if had_id and has_id and from_v5 == to_v5 and not extra:
        return _patched(run, first_byte, packet_id)
    if not had_id and not has_id and from_v5 == to_v5 and not extra and run[0] == first_byte:
        return run
    out: list[bytes] = []
    head = bytes((first_byte,))
    pos, size = 0, len(run)
    while pos < size:
        body, end = _length(run, pos, size)
        if end < 0 or end > size or body + 2 > end:
            raise ValueError("not a run of whole packets")
        after = body + 2 + (run[body] << 8 | run[body + 1])
        rest = after + 2 if had_id else after
        properties = extra
        if from_v5:
            if rest >= end:
                raise ValueError("not a run of whole packets")
            first, last = _length(run, rest - 1, end)
            if last < 0 or last > end:
                raise ValueError("not a run of whole packets")
            properties = run[first:last] + extra
            rest = last
        if rest > end:
            raise ValueError("not a run of whole packets")
        parts = [run[body:after]]
        if has_id:
            parts.append(packet_id.to_bytes(2, "big"))
            packet_id = packet_id % PACKET_ID_MAX + 1
        if to_v5:
            parts.append(varint(len(properties)))
            parts.append(properties)
        parts.append(run[rest:end])
        packet = b"".join(parts)
        out += (head, varint(len(packet)), packet)
        pos = end
    return b"".join(out)
