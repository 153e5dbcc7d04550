"""What MQTT 5 says in its tables, written the way the standard has them: by code and by identifier.

The codec holds the same facts by packet type, so a slip in one of the two shows.
"""

from millrace.reasons import Reason
from millrace.types import Will
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

# Section 2.4: which packets carry a reason code.
PACKETS_BY_REASON: dict[int, set[type]] = {
    0x00: {Connack, Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback, Disconnect, Auth},
    0x01: {Suback},
    0x02: {Suback},
    0x04: {Disconnect},
    0x10: {Puback, Pubrec},
    0x11: {Unsuback},
    0x18: {Auth},
    0x19: {Auth},
    0x80: {Connack, Puback, Pubrec, Suback, Unsuback, Disconnect},
    0x81: {Connack, Disconnect},
    0x82: {Connack, Disconnect},
    0x83: {Connack, Puback, Pubrec, Suback, Unsuback, Disconnect},
    0x84: {Connack},
    0x85: {Connack},
    0x86: {Connack},
    0x87: {Connack, Puback, Pubrec, Suback, Unsuback, Disconnect},
    0x88: {Connack},
    0x89: {Connack, Disconnect},
    0x8A: {Connack},
    0x8B: {Disconnect},
    0x8C: {Connack, Disconnect},
    0x8D: {Disconnect},
    0x8E: {Disconnect},
    0x8F: {Suback, Unsuback, Disconnect},
    0x90: {Connack, Puback, Pubrec, Disconnect},
    0x91: {Puback, Pubrec, Suback, Unsuback},
    0x92: {Pubrel, Pubcomp},
    0x93: {Disconnect},
    0x94: {Disconnect},
    0x95: {Connack, Disconnect},
    0x96: {Disconnect},
    0x97: {Connack, Puback, Pubrec, Suback, Disconnect},
    0x98: {Disconnect},
    0x99: {Connack, Puback, Pubrec, Disconnect},
    0x9A: {Connack, Disconnect},
    0x9B: {Connack, Disconnect},
    0x9C: {Connack, Disconnect},
    0x9D: {Connack, Disconnect},
    0x9E: {Suback, Disconnect},
    0x9F: {Connack, Disconnect},
    0xA0: {Disconnect},
    0xA1: {Suback, Disconnect},
    0xA2: {Suback, Disconnect},
}


def reasons_of(kind: type) -> list[Reason]:
    return [Reason(code) for code, kinds in PACKETS_BY_REASON.items() if kind in kinds]


_ANSWERS = {Puback, Pubrec, Pubrel, Pubcomp, Suback, Unsuback}
_EVERY = {*_ANSWERS, Connect, Will, Connack, Publish, Subscribe, Unsubscribe, Disconnect, Auth}

# Table 2-4: identifier, a legal value in bytes, and where it may stand.
PROPERTIES: dict[int, tuple[bytes, set[type]]] = {
    0x01: (b"\x01", {Publish, Will}),
    0x02: (b"\x00\x00\x00\x0a", {Publish, Will}),
    0x03: (b"\x00\x01t", {Publish, Will}),
    0x08: (b"\x00\x01r", {Publish, Will}),
    0x09: (b"\x00\x02\x00\xff", {Publish, Will}),
    0x0B: (b"\x80\x01", {Publish, Subscribe}),
    0x11: (b"\x00\x00\x00\x0a", {Connect, Connack, Disconnect}),
    0x12: (b"\x00\x01c", {Connack}),
    0x13: (b"\x00\x0a", {Connack}),
    0x15: (b"\x00\x01m", {Connect, Connack, Auth}),
    0x16: (b"\x00\x01\xff", {Connect, Connack, Auth}),
    0x17: (b"\x01", {Connect}),
    0x18: (b"\x00\x00\x00\x0a", {Will}),
    0x19: (b"\x01", {Connect}),
    0x1A: (b"\x00\x01i", {Connack}),
    0x1C: (b"\x00\x01s", {Connack, Disconnect}),
    0x1F: (b"\x00\x01r", {*_ANSWERS, Connack, Disconnect, Auth}),
    0x21: (b"\x00\x0a", {Connect, Connack}),
    0x22: (b"\x00\x0a", {Connect, Connack}),
    0x23: (b"\x00\x0a", {Publish}),
    0x24: (b"\x01", {Connack}),
    0x25: (b"\x01", {Connack}),
    0x26: (b"\x00\x01k\x00\x01v", _EVERY),
    0x27: (b"\x00\x00\x10\x00", {Connect, Connack}),
    0x28: (b"\x01", {Connack}),
    0x29: (b"\x01", {Connack}),
    0x2A: (b"\x01", {Connack}),
}

# A packet of each kind around a property block: first byte, bytes before the block, bytes after it.
AROUND: dict[type, tuple[int, bytes, bytes]] = {
    Connect: (0x10, b"\x00\x04MQTT\x05\x02\x00\x3c", b"\x00\x01c"),
    Will: (0x10, b"\x00\x04MQTT\x05\x06\x00\x3c\x00\x00\x01c", b"\x00\x01w\x00\x03bye"),
    Connack: (0x20, b"\x00\x00", b""),
    Publish: (0x32, b"\x00\x01t\x00\x07", b"payload"),
    Puback: (0x40, b"\x00\x07\x00", b""),
    Pubrec: (0x50, b"\x00\x07\x00", b""),
    Pubrel: (0x62, b"\x00\x07\x00", b""),
    Pubcomp: (0x70, b"\x00\x07\x00", b""),
    Subscribe: (0x82, b"\x00\x07", b"\x00\x01f\x01"),
    Suback: (0x90, b"\x00\x07", b"\x01"),
    Unsubscribe: (0xA2, b"\x00\x07", b"\x00\x01f"),
    Unsuback: (0xB0, b"\x00\x07", b"\x00"),
    Disconnect: (0xE0, b"\x00", b""),
    Auth: (0xF0, b"\x18", b""),
}


def around(kind: type, properties: bytes) -> tuple[int, bytes]:
    """First byte and body of a packet of this kind with these properties (under 128 bytes)."""
    assert len(properties) < 0x80
    first_byte, before, after = AROUND[kind]
    return first_byte, before + bytes((len(properties),)) + properties + after
