"""A second MQTT codec, so that the judge does not share the defendant's mistakes.

The encoder writes whatever it is told, legal or not: every field of a packet can be replaced, so that a test
can say "a SUBSCRIBE with reserved flags" in one line. The decoder is the opposite: it is as strict about what
a server sends as the standard is, and raises `Broken` with the id of the statement where a server breaks one.
Every packet that any test receives passes through it, so the rules checked here hold over the whole suite.
"""

from dataclasses import dataclass, field
from typing import Any

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)
NAMES = ["type 0", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"]
NAMES += ["SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"]

V5, V311 = 5, 4
# Reason codes the tests name (MQTT 5, 2.4).
MALFORMED, PROTOCOL_ERROR, UNSUPPORTED_VERSION = 0x81, 0x82, 0x84
CLIENT_ID_NOT_VALID, NOT_AUTHORIZED, BAD_AUTHENTICATION_METHOD = 0x85, 0x87, 0x8C
KEEP_ALIVE_TIMEOUT, TAKEN_OVER, FILTER_INVALID, TOPIC_INVALID = 0x8D, 0x8E, 0x8F, 0x90
RECEIVE_MAXIMUM_EXCEEDED, ALIAS_INVALID, TOO_LARGE = 0x93, 0x94, 0x95
PING = b"\xc0\x00"

# name: (identifier, type), MQTT 5 table 2-4.
PROPERTIES: dict[str, tuple[int, str]] = {
    "payload_format": (0x01, "byte"),
    "message_expiry": (0x02, "u32"),
    "content_type": (0x03, "string"),
    "response_topic": (0x08, "string"),
    "correlation_data": (0x09, "binary"),
    "subscription_id": (0x0B, "varint"),
    "session_expiry": (0x11, "u32"),
    "assigned_client_id": (0x12, "string"),
    "server_keep_alive": (0x13, "u16"),
    "auth_method": (0x15, "string"),
    "auth_data": (0x16, "binary"),
    "request_problem": (0x17, "byte"),
    "will_delay": (0x18, "u32"),
    "request_response": (0x19, "byte"),
    "response_information": (0x1A, "string"),
    "server_reference": (0x1C, "string"),
    "reason_string": (0x1F, "string"),
    "receive_maximum": (0x21, "u16"),
    "topic_alias_maximum": (0x22, "u16"),
    "topic_alias": (0x23, "u16"),
    "maximum_qos": (0x24, "byte"),
    "retain_available": (0x25, "byte"),
    "user": (0x26, "pair"),
    "maximum_packet_size": (0x27, "u32"),
    "wildcard_available": (0x28, "byte"),
    "subscription_ids_available": (0x29, "byte"),
    "shared_available": (0x2A, "byte"),
}
BY_IDENTIFIER = {identifier: (name, kind) for name, (identifier, kind) in PROPERTIES.items()}
REPEATABLE = {"user", "subscription_id"}

# What a server may send in which packet (table 2-4; 3.14.2-2 takes session_expiry out of DISCONNECT).
_DIAGNOSIS = {"reason_string", "user"}
ALLOWED: dict[int, set[str]] = {
    CONNACK: {
        "session_expiry",
        "receive_maximum",
        "maximum_qos",
        "retain_available",
        "maximum_packet_size",
        "assigned_client_id",
        "topic_alias_maximum",
        "wildcard_available",
        "subscription_ids_available",
        "shared_available",
        "server_keep_alive",
        "response_information",
        "server_reference",
        "auth_method",
        "auth_data",
    }
    | _DIAGNOSIS,
    PUBLISH: {
        "payload_format",
        "message_expiry",
        "topic_alias",
        "response_topic",
        "correlation_data",
        "user",
        "subscription_id",
        "content_type",
    },
    PUBACK: _DIAGNOSIS,
    PUBREC: _DIAGNOSIS,
    PUBREL: _DIAGNOSIS,
    PUBCOMP: _DIAGNOSIS,
    SUBACK: _DIAGNOSIS,
    UNSUBACK: _DIAGNOSIS,
    DISCONNECT: _DIAGNOSIS | {"server_reference"},
    AUTH: _DIAGNOSIS | {"auth_method", "auth_data"},
}

# (statement, reason codes a server may use), MQTT 5 section 2.4 and the tables of chapter 3.
REASONS: dict[int, tuple[str, bytes]] = {
    CONNACK: ("3.2.2-8", bytes.fromhex("00808182838485868788898a8c9095979a9b9c9d9f99")),
    PUBACK: ("3.4.2-1", bytes.fromhex("001080838790919799")),
    PUBREC: ("3.5.2-1", bytes.fromhex("001080838790919799")),
    PUBREL: ("3.6.2-1", bytes.fromhex("0092")),
    PUBCOMP: ("3.7.2-1", bytes.fromhex("0092")),
    SUBACK: ("3.9.3-2", bytes.fromhex("000102808387" + "8f91979ea1a2")),
    UNSUBACK: ("3.11.3-2", bytes.fromhex("00118083878f91")),
    DISCONNECT: (
        "3.14.2-1",
        bytes.fromhex("00808182838789" + "8b8d8e8f9093949596979899" + "9a9b9c9d9e9fa0a1a2"),
    ),
    AUTH: ("3.15.2-1", bytes.fromhex("0018")),
}
REASONS_311: dict[int, tuple[str, bytes]] = {
    CONNACK: ("3.2.2-6", bytes(range(6))),
    SUBACK: ("3.9.3-2", bytes.fromhex("00010280")),
}


class Broken(AssertionError):
    """The server sent what the standard forbids."""


def need(condition: object, statement: str, detail: str) -> None:
    if not condition:
        raise Broken(f"[MQTT-{statement}] {detail}")


# Encoding: no checks at all.


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def varint(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def string(text: str | bytes) -> bytes:
    """A length-prefixed string; bytes go in as they are, well formed or not."""
    data = text.encode() if isinstance(text, str) else text
    return u16(len(data)) + data


def one_property(name: str, value: Any) -> bytes:
    identifier, kind = PROPERTIES[name]
    if kind == "byte":
        data = bytes([value])
    elif kind == "u16":
        data = u16(value)
    elif kind == "u32":
        data = u32(value)
    elif kind == "varint":
        data = varint(value)
    elif kind == "pair":
        data = string(value[0]) + string(value[1])
    else:
        data = string(value)
    return bytes([identifier]) + data


def properties(values: dict[str, Any] | bytes | None) -> bytes:
    """Property length and properties. A list repeats its property; bytes stand for themselves."""
    if isinstance(values, bytes):
        return values
    out = b""
    for name, value in (values or {}).items():
        for single in value if isinstance(value, list) else [value]:
            out += one_property(name, single)
    return varint(len(out)) + out


def packet(kind: int, flags: int, body: bytes = b"") -> bytes:
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


@dataclass(kw_only=True)
class Will:
    topic: str | bytes
    payload: bytes = b"will"
    qos: int = 0
    retain: bool = False
    props: dict[str, Any] = field(default_factory=dict)


def connect(
    client_id: str | bytes,
    *,
    version: int = V5,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: str | bytes | None = None,
    props: dict[str, Any] | bytes | None = None,
    name: str | bytes = "MQTT",
    level: int | None = None,
    flags: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """CONNECT. `flags`, `level`, `name` and `payload` replace what would be computed."""
    bits = 0x02 if clean else 0
    body = string(client_id)
    if will is not None:
        bits |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        body += properties(will.props) if version == V5 else b""
        body += string(will.topic) + string(will.payload)
    if username is not None:
        bits |= 0x80
        body += string(username)
    if password is not None:
        bits |= 0x40
        body += string(password)
    head = string(name) + bytes([version if level is None else level, bits if flags is None else flags])
    head += u16(keep_alive) + (properties(props) if version == V5 else b"")
    return packet(CONNECT, 0, head + (body if payload is None else payload))


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    props: dict[str, Any] | bytes | None = None,
    version: int = V5,
) -> bytes:
    head = string(topic) + (b"" if packet_id is None else u16(packet_id))
    head += properties(props) if version == V5 else b""
    return packet(PUBLISH, dup << 3 | qos << 1 | retain, head + payload)


def ack(kind: int, packet_id: int, reason: int | None = None, props: dict[str, Any] | None = None) -> bytes:
    body = u16(packet_id)
    if reason is not None:
        body += bytes([reason])
    if props is not None:
        body += properties(props)
    return packet(kind, 2 if kind == PUBREL else 0, body)


def subscribe(
    packet_id: int,
    *filters: tuple[str | bytes, int],
    version: int = V5,
    props: dict[str, Any] | bytes | None = None,
    flags: int = 2,
) -> bytes:
    body = u16(packet_id) + (properties(props) if version == V5 else b"")
    body += b"".join(string(name) + bytes([options]) for name, options in filters)
    return packet(SUBSCRIBE, flags, body)


def unsubscribe(
    packet_id: int,
    *filters: str | bytes,
    version: int = V5,
    props: dict[str, Any] | None = None,
    flags: int = 2,
) -> bytes:
    body = u16(packet_id) + (properties(props) if version == V5 else b"")
    return packet(UNSUBSCRIBE, flags, body + b"".join(string(name) for name in filters))


def disconnect(reason: int | None = None, props: dict[str, Any] | None = None) -> bytes:
    body = b"" if reason is None else bytes([reason])
    return packet(DISCONNECT, 0, body + (b"" if props is None else properties(props)))


def auth(reason: int, props: dict[str, Any] | None = None, flags: int = 0) -> bytes:
    return packet(AUTH, flags, bytes([reason]) + properties(props))


def options(qos: int, *, no_local: bool = False, as_published: bool = False, handling: int = 0) -> int:
    """The subscription options byte of MQTT 5, 3.8.3.1."""
    return qos | no_local << 2 | as_published << 3 | handling << 4


# Decoding: every rule that binds a server.


@dataclass(kw_only=True)
class Packet:
    """One packet from the server."""

    kind: int
    size: int
    body: bytes
    qos: int = 0
    dup: bool = False
    retain: bool = False
    session_present: bool = False
    packet_id: int | None = None
    topic: str = ""
    payload: bytes = b""
    reason: int = 0
    reasons: tuple[int, ...] = ()
    props: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [NAMES[self.kind]]
        if self.packet_id is not None:
            parts.append(f"id={self.packet_id}")
        if self.kind == PUBLISH:
            parts.append(f"{self.topic[:60]!r} qos={self.qos} dup={self.dup} retain={self.retain}")
            parts.append(repr(self.payload[:40]))
        if self.kind in (SUBACK, UNSUBACK):
            parts.append("reasons=" + " ".join(f"0x{reason:02x}" for reason in self.reasons))
        elif self.kind in REASONS:
            parts.append(f"reason=0x{self.reason:02x}")
        return " ".join(parts + ([f"{self.props}"] if self.props else []))


class Reader:
    """Reads fields off the front of a packet body."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        chunk = self.data[self.at : self.at + count]
        need(len(chunk) == count, "4.13.1-1", f"packet ends inside a field: {self.data.hex()}")
        self.at += count
        return chunk

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def string(self) -> str:
        data = self.take(self.number(2))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise Broken(f"[MQTT-1.5.4-1] ill-formed UTF-8 from the server: {data!r}") from None
        need("\0" not in text, "1.5.4-2", "U+0000 in a string from the server")
        return text

    def varint(self) -> int:
        value, start = 0, self.at
        for shift in range(0, 28, 7):
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                shortest = varint(value) == self.data[start : self.at]
                need(shortest, "1.5.5-1", "a number not in its shortest form")
                return value
        raise Broken("[MQTT-1.5.5-1] variable byte integer longer than four bytes")

    def value(self, kind: str) -> Any:
        if kind == "pair":
            return (self.string(), self.string())
        if kind == "string":
            return self.string()
        if kind == "binary":
            return self.take(self.number(2))
        return self.varint() if kind == "varint" else self.number({"byte": 1, "u16": 2, "u32": 4}[kind])

    def properties(self, packet_kind: int) -> dict[str, Any]:
        end = self.varint()
        end += self.at
        found: dict[str, Any] = {}
        while self.at < end:
            identifier = self.varint()
            need(identifier in BY_IDENTIFIER, "2.2.2-1", f"unknown property 0x{identifier:02x}")
            name, kind = BY_IDENTIFIER[identifier]
            need(name in ALLOWED[packet_kind], "2.2.2-1", f"{name} in {NAMES[packet_kind]}")
            value = self.value(kind)
            if name in REPEATABLE:
                found.setdefault(name, []).append(value)
            else:
                need(name not in found, "2.2.2-1", f"{name} twice")
                found[name] = value
        need(self.at == end, "2.2.2-1", "property length disagrees with the properties")
        return found

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)


FLAGS = {PUBREL: 2}


def decode(first: int, body: bytes, size: int, version: int) -> Packet:
    """One whole packet from a server. Raises `Broken` where it is not one that a server may send."""
    kind, flags = first >> 4, first & 15
    seen = Packet(kind=kind, size=size, body=body)
    reader = Reader(body)
    need(kind not in (0, CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ), "2.1.2", f"{NAMES[kind]} from a server")
    if version != V5:
        need(kind not in (DISCONNECT, AUTH), "3.14 (3.1.1)", f"{NAMES[kind]} to a 3.1.1 client")
    if kind == PUBLISH:
        return _decode_publish(seen, reader, flags, version)
    need(flags == FLAGS.get(kind, 0), "2.1.3-1", f"flags {flags:04b} on {NAMES[kind]}")
    if kind == CONNACK:
        acknowledge = reader.number(1)
        need(acknowledge < 2, "3.2.2-1", f"CONNACK flags {acknowledge:08b}")
        seen.session_present = bool(acknowledge)
        seen.reason = reader.number(1)
        if version == V5:
            seen.props = reader.properties(kind)
    elif kind in (SUBACK, UNSUBACK):
        seen.packet_id = reader.number(2)
        if version == V5:
            seen.props = reader.properties(kind)
        seen.reasons = tuple(reader.rest())
    elif kind != PINGRESP:
        if kind not in (DISCONNECT, AUTH):
            seen.packet_id = reader.number(2)
        if version == V5 and reader.at < len(body):
            seen.reason = reader.number(1)
            if reader.at < len(body):
                seen.props = reader.properties(kind)
    need(reader.at == len(body), "2.1.4", f"bytes left over at the end of {NAMES[kind]}: {body.hex()}")
    _check_reasons(seen, version)
    return seen


def _check_reasons(seen: Packet, version: int) -> None:
    table = REASONS if version == V5 else REASONS_311
    if seen.kind not in table:
        return
    statement, legal = table[seen.kind]
    for reason in seen.reasons or (seen.reason,):
        need(reason in legal, statement, f"reason 0x{reason:02x} in {NAMES[seen.kind]}")


def _decode_publish(seen: Packet, reader: Reader, flags: int, version: int) -> Packet:
    seen.dup, seen.qos, seen.retain = bool(flags & 8), flags >> 1 & 3, bool(flags & 1)
    need(seen.qos != 3, "3.3.1-4", "QoS 3 from the server")
    need(seen.qos or not seen.dup, "3.3.1-2", "DUP on a QoS 0 message")
    seen.topic = reader.string()
    need("+" not in seen.topic and "#" not in seen.topic, "3.3.2-2", f"wildcard in topic {seen.topic!r}")
    if seen.qos:
        seen.packet_id = reader.number(2)
        need(seen.packet_id, "2.2.1-4", "packet id 0 from the server")
    if version == V5:
        seen.props = reader.properties(PUBLISH)
    need(seen.topic or "topic_alias" in seen.props, "4.7.3-1", "empty topic without an alias")
    seen.payload = reader.rest()
    return seen
