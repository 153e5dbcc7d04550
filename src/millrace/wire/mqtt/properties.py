"""MQTT 5 property blocks (section 2.2.2): one table says what each property is, another where it may stand.

A block is read into keyword arguments for the packet's class, so a property has the name of its field. The
same names drive encoding: a field that holds its default is not sent, because absent means just that.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import msgspec

from millrace.errors import LocalError, MalformedPacket, ProtocolError
from millrace.limits import USER_PROPERTIES_MAX
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Properties
from millrace.wire.mqtt import packets
from millrace.wire.mqtt.primitives import (
    check_topic,
    put_binary,
    put_string,
    put_u16,
    put_u32,
    read_binary,
    read_byte,
    read_string,
    read_u16,
    read_u32,
    read_varint,
    varint,
)

Reader = Callable[[bytes, int, int], tuple[Any, int]]


class _Property(NamedTuple):
    name: str
    read: Reader
    put: Callable[[Any], bytes]
    repeats: bool = False


class _Field(NamedTuple):
    """How one property of a class is encoded."""

    identifier: bytes
    name: str
    put: Callable[[Any], bytes]
    repeats: bool
    default: object


def _read_bit(data: bytes, pos: int, end: int) -> tuple[int, int]:
    value, pos = read_byte(data, pos, end)
    if value > 1:
        raise ProtocolError("a property that may be 0 or 1 has another value")
    return value, pos


def _read_bool(data: bytes, pos: int, end: int) -> tuple[bool, int]:
    value, pos = _read_bit(data, pos, end)
    return value == 1, pos


def _read_positive(read: Callable[[bytes, int, int], tuple[int, int]]) -> Reader:
    def read_positive(data: bytes, pos: int, end: int) -> tuple[int, int]:
        value, pos = read(data, pos, end)
        if value == 0:
            raise ProtocolError("a property that must not be 0 is 0")
        return value, pos

    return read_positive


def _read_topic_alias(data: bytes, pos: int, end: int) -> tuple[int, int]:
    value, pos = read_u16(data, pos, end)
    if value == 0:
        raise ProtocolError("topic alias 0", Reason.TOPIC_ALIAS_INVALID)  # [MQTT-3.3.2-8]
    return value, pos


def _read_response_topic(data: bytes, pos: int, end: int) -> tuple[str, int]:
    topic, pos = read_string(data, pos, end)
    check_topic(topic)  # [MQTT-3.3.2-14]
    return topic, pos


def _read_pair(data: bytes, pos: int, end: int) -> tuple[tuple[str, str], int]:
    name, pos = read_string(data, pos, end)
    value, pos = read_string(data, pos, end)
    return (name, value), pos


def _put_positive(put: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def put_positive(value: int) -> bytes:
        if value == 0:
            raise LocalError("0 given for a property that must not be 0")
        return put(value)

    return put_positive


def _put_bit(value: int) -> bytes:
    if value not in (0, 1):
        raise LocalError(f"{value} given for a property that may be 0 or 1")
    return bytes((value,))


def _put_pair(pair: tuple[str, str]) -> bytes:
    return put_string(pair[0]) + put_string(pair[1])


# Table 2-4 of the standard; names are those of the fields in `packets` and `types.Properties`.
_PROPERTIES: Mapping[int, _Property] = {
    0x01: _Property("payload_format", _read_bit, _put_bit),
    0x02: _Property("message_expiry_s", read_u32, put_u32),
    0x03: _Property("content_type", read_string, put_string),
    0x08: _Property("response_topic", _read_response_topic, put_string),
    0x09: _Property("correlation_data", read_binary, put_binary),
    0x0B: _Property("subscription_ids", _read_positive(read_varint), _put_positive(varint), repeats=True),
    0x11: _Property("session_expiry_s", read_u32, put_u32),
    0x12: _Property("assigned_client_id", read_string, put_string),
    0x13: _Property("server_keep_alive_s", read_u16, put_u16),
    0x15: _Property("authentication_method", read_string, put_string),
    0x16: _Property("authentication_data", read_binary, put_binary),
    0x17: _Property("request_problem_information", _read_bool, _put_bit),
    0x18: _Property("delay_s", read_u32, put_u32),
    0x19: _Property("request_response_information", _read_bool, _put_bit),
    0x1A: _Property("response_information", read_string, put_string),
    0x1C: _Property("server_reference", read_string, put_string),
    0x1F: _Property("reason_string", read_string, put_string),
    0x21: _Property("receive_maximum", _read_positive(read_u16), _put_positive(put_u16)),
    0x22: _Property("topic_alias_max", read_u16, put_u16),
    0x23: _Property("topic_alias", _read_topic_alias, _put_positive(put_u16)),
    0x24: _Property("maximum_qos", _read_bit, _put_bit),
    0x25: _Property("retain_available", _read_bool, _put_bit),
    0x26: _Property("user", _read_pair, _put_pair, repeats=True),
    0x27: _Property("packet_bytes_max", _read_positive(read_u32), _put_positive(put_u32)),
    0x28: _Property("wildcard_available", _read_bool, _put_bit),
    0x29: _Property("subscription_ids_available", _read_bool, _put_bit),
    0x2A: _Property("shared_available", _read_bool, _put_bit),
}


def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """The fields of a packet or of `Properties`."""
    known = msgspec.structs.fields(kind) if issubclass(kind, msgspec.Struct) else fields(kind)
    return [(field.name, field.default) for field in known]


class Block:
    """The property block of one packet type: which properties it takes and how they are written."""

    __slots__ = ("_fields", "_known")

    def __init__(self, kind: type, *extra: int, without: tuple[str, ...] = ()) -> None:
        """Takes the properties that `kind` has a field for, plus those of `extra` by identifier."""
        defaults = {name: default for name, default in _defaults(kind) if name not in without}
        self._known: Mapping[int, _Property] = {
            identifier: known
            for identifier, known in _PROPERTIES.items()
            if known.name in defaults or identifier in extra
        }
        self._fields = tuple(
            _Field(bytes((identifier,)), known.name, known.put, known.repeats, defaults[known.name])
            for identifier, known in self._known.items()
            if known.name in defaults
        )
        assert all(field.default not in (MISSING, msgspec.NODEFAULT) for field in self._fields)

    def read(self, data: bytes, pos: int, end: int) -> tuple[dict[str, Any], int]:
        """The properties of the block at `pos` by field name, and the position after the block."""
        length, pos = read_varint(data, pos, end)
        stop = pos + length
        if stop > end:
            raise MalformedPacket("the property length runs past the packet")
        values: dict[str, Any] = {}
        while pos < stop:
            # An identifier is a variable byte integer, but every one that exists fits one byte.
            known = self._known.get(data[pos])
            if known is None:
                # 2.2.2.2: unknown, or not valid for this packet type, is malformed.
                raise MalformedPacket(f"property 0x{data[pos]:02x} is unknown or not allowed in this packet")
            value, pos = known.read(data, pos + 1, stop)
            if known.repeats:
                several = values.setdefault(known.name, [])
                several.append(value)
                if len(several) > USER_PROPERTIES_MAX:
                    detail = f"more than {USER_PROPERTIES_MAX} user properties"
                    raise ProtocolError(detail, Reason.QUOTA_EXCEEDED)
            elif known.name in values:
                raise ProtocolError(f"property {known.name} is given twice")
            else:
                values[known.name] = value
        for name in ("user", "subscription_ids"):
            if name in values:
                values[name] = tuple(values[name])
        if "authentication_data" in values and "authentication_method" not in values:
            raise ProtocolError("authentication data without authentication method")
        return values, pos

    def put(self, source: object, head: bytes = b"") -> bytes:
        """The block with its length: `head` (properties encoded by the caller), then those of `source`."""
        parts = [head]
        for identifier, name, put, repeats, default in self._fields:
            value = getattr(source, name)
            if value == default:
                continue
            for item in value if repeats else (value,):
                parts.append(identifier)
                parts.append(put(item))
        body = b"".join(parts)
        return varint(len(body)) + body


_SUBSCRIPTION_ID = 0x0B
_WILL_DELAY = 0x18

CONNECT = Block(packets.Connect)
CONNACK = Block(packets.Connack)
PUBLISH = Block(Properties)
WILL = Block(Properties, _WILL_DELAY, without=("topic_alias", "subscription_ids"))
# PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK take the same two: reason string and user.
ACKNOWLEDGEMENT = Block(packets.Puback)
SUBSCRIBE = Block(packets.Subscribe, _SUBSCRIPTION_ID)
UNSUBSCRIBE = Block(packets.Unsubscribe)
DISCONNECT = Block(packets.Disconnect)
AUTH = Block(packets.Auth)


def decode_properties(data: bytes, pos: int, end: int) -> tuple[Properties, int]:
    """The properties of the PUBLISH whose property length stands at `pos`, and the position after them."""
    if pos < end and data[pos] == 0:
        return NO_PROPERTIES, pos + 1
    values, pos = PUBLISH.read(data, pos, end)
    return Properties(**values), pos


def encode_properties(properties: Properties) -> bytes:
    """The property block of a PUBLISH, with its length."""
    if properties is NO_PROPERTIES:
        return b"\x00"
    return PUBLISH.put(properties)


def put_will_delay(delay_s: int) -> bytes:
    """The one will property that is not a property of its message; absent means 0."""
    return bytes((_WILL_DELAY,)) + put_u32(delay_s) if delay_s else b""


def put_subscription_id(identifier: int | None) -> bytes:
    """The property of SUBSCRIBE that each of its subscriptions carries."""
    if identifier is None:
        return b""
    return bytes((_SUBSCRIPTION_ID,)) + _PROPERTIES[_SUBSCRIPTION_ID].put(identifier)
