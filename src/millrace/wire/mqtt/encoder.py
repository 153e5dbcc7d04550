"""One MQTT control packet to bytes, as short as the standard allows.

The caller answers for what it sends: topics and filters are not checked again here. A value that has no
encoding, or one that a peer would have to refuse for its form, raises `LocalError`.
"""

from collections.abc import Callable
from typing import Any

from millrace.errors import LocalError
from millrace.limits import STRING_BYTES_TOP
from millrace.reasons import Reason
from millrace.types import Version
from millrace.wire.mqtt import properties as blocks
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
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
from millrace.wire.mqtt.primitives import put_binary, put_packet_id, put_string, put_u16, varint

_PROTOCOL_HEADS = {
    Version.MQTT_3_1: put_string("MQIsdp") + b"\x03",
    Version.MQTT_3_1_1: put_string("MQTT") + b"\x04",
    Version.MQTT_5: put_string("MQTT") + b"\x05",
}

# 3.1.1, table 3.1. Codes that it lacks become the nearest it has; any other failure is "unavailable".
_RETURN_CODES = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.CLIENT_ID_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.BAD_USER_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
    Reason.BANNED: 5,
}
_RETURN_CODE_OTHER = 3
# SUBACK before MQTT 5 knows one failure (3.1.1, 3.9.3).
_REASONS_3 = bytes(min(code, 0x80) for code in range(256))

_Acknowledgement = Puback | Pubrec | Pubrel | Pubcomp


def encode(packet: Packet, version: int) -> bytes:
    """The whole packet with its fixed header; a `Connect` is written in its own version."""
    return _ENCODERS[type(packet)](packet, version)


def encode_publish(topic: bytes, payload: bytes, first_byte: int, packet_id: int, properties: bytes) -> bytes:
    """A PUBLISH from parts.

    `packet_id` 0 means none. `properties` is the block with its length, b"" before MQTT 5.
    """
    if len(topic) > STRING_BYTES_TOP:
        raise LocalError(f"a topic of {len(topic)} bytes is longer than {STRING_BYTES_TOP}")
    head = len(topic).to_bytes(2, "big")
    identifier = put_packet_id(packet_id) if packet_id else b""
    length = 2 + len(topic) + len(identifier) + len(properties) + len(payload)
    return b"".join((bytes((first_byte,)), varint(length), head, topic, identifier, properties, payload))


def _packet(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes((first_byte,)) + varint(len(body)) + body


def _require_qos(qos: int) -> None:
    if not 0 <= qos <= 2:
        raise LocalError(f"QoS {qos} does not exist")


def _encode_connect(packet: Connect, version: int) -> bytes:
    five = packet.version == Version.MQTT_5
    if packet.password is not None and packet.username is None and not five:
        raise LocalError("a password without a user name needs MQTT 5")
    will = packet.will
    if will is not None:
        _require_qos(will.message.qos)
    flags = (
        packet.clean_start << 1
        | (packet.password is not None) << 6
        | (packet.username is not None) << 7
        | (0 if will is None else 0x04 | will.message.qos << 3 | will.message.retain << 5)
    )
    parts = [_PROTOCOL_HEADS[packet.version], bytes((flags,)), put_u16(packet.keep_alive_s)]
    if five:
        parts.append(blocks.CONNECT.put(packet))
    parts.append(put_string(packet.client_id))
    if will is not None:
        if five:
            delay = blocks.put_will_delay(will.delay_s)
            parts.append(blocks.WILL.put(will.message.properties, delay))
        parts.append(put_string(will.message.topic))
        parts.append(put_binary(will.message.payload))
    if packet.username is not None:
        parts.append(put_string(packet.username))
    if packet.password is not None:
        parts.append(put_binary(packet.password))
    return _packet(0x10, *parts)


def _encode_connack(packet: Connack, version: int) -> bytes:
    if packet.session_present and packet.reason != Reason.SUCCESS:
        raise LocalError("session present in a refusal")  # [MQTT-3.2.2-6]
    if version == Version.MQTT_5:
        return _packet(0x20, bytes((packet.session_present, packet.reason)), blocks.CONNACK.put(packet))
    present = packet.session_present and version != Version.MQTT_3_1
    return bytes((0x20, 2, present, _RETURN_CODES.get(packet.reason, _RETURN_CODE_OTHER)))


def _encode_publish(packet: Publish, version: int) -> bytes:
    message = packet.message
    _require_qos(message.qos)
    if (packet.packet_id is None) != (message.qos == 0):
        raise LocalError("a PUBLISH has a packet identifier with QoS 1 and 2, and only then")
    if packet.dup and message.qos == 0:
        raise LocalError("a PUBLISH with QoS 0 is never a duplicate")  # [MQTT-3.3.1-2]
    identifier = b"" if packet.packet_id is None else put_packet_id(packet.packet_id)
    first_byte = 0x30 | packet.dup << 3 | message.qos << 1 | message.retain
    properties = blocks.encode_properties(message.properties) if version == Version.MQTT_5 else b""
    return _packet(first_byte, put_string(message.topic), identifier, properties, message.payload)


def _acknowledgement_encoder(first_byte: int) -> Callable[[_Acknowledgement, int], bytes]:
    def encode_acknowledgement(packet: _Acknowledgement, version: int) -> bytes:
        identifier = put_packet_id(packet.packet_id)
        if version != Version.MQTT_5:
            return _packet(first_byte, identifier)
        return _packet(
            first_byte, identifier, _put_outcome(packet.reason, blocks.ACKNOWLEDGEMENT.put(packet))
        )

    return encode_acknowledgement


def _put_outcome(reason: Reason, block: bytes) -> bytes:
    """Reason code and properties, as short as 3.4.2.1 and 3.14.2.1 allow."""
    if block != b"\x00":
        return bytes((reason,)) + block
    return bytes((reason,)) if reason != Reason.SUCCESS else b""


def _encode_subscribe(packet: Subscribe, version: int) -> bytes:
    if not packet.subscriptions:
        raise LocalError("SUBSCRIBE without a topic filter")
    parts = [put_packet_id(packet.packet_id)]
    five = version == Version.MQTT_5
    if five:
        identifiers = {subscription.identifier for subscription in packet.subscriptions}
        if len(identifiers) > 1:
            raise LocalError("one SUBSCRIBE carries one subscription identifier for all its filters")
        identifier = identifiers.pop()
        parts.append(blocks.SUBSCRIBE.put(packet, blocks.put_subscription_id(identifier)))
    for subscription in packet.subscriptions:
        _require_qos(subscription.qos)
        options = subscription.qos
        if five:
            options |= (
                subscription.no_local << 2
                | subscription.retain_as_published << 3
                | subscription.retain_handling << 4
            )
        parts.append(put_string(subscription.filter))
        parts.append(bytes((options,)))
    return _packet(0x82, *parts)


def _encode_suback(packet: Suback, version: int) -> bytes:
    identifier = put_packet_id(packet.packet_id)
    if version == Version.MQTT_5:
        return _packet(0x90, identifier, blocks.ACKNOWLEDGEMENT.put(packet), bytes(packet.reasons))
    return _packet(0x90, identifier, bytes(packet.reasons).translate(_REASONS_3))


def _encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    if not packet.filters:
        raise LocalError("UNSUBSCRIBE without a topic filter")
    block = blocks.UNSUBSCRIBE.put(packet) if version == Version.MQTT_5 else b""
    return _packet(0xA2, put_packet_id(packet.packet_id), block, *map(put_string, packet.filters))


def _encode_unsuback(packet: Unsuback, version: int) -> bytes:
    identifier = put_packet_id(packet.packet_id)
    if version != Version.MQTT_5:
        return _packet(0xB0, identifier)
    return _packet(0xB0, identifier, blocks.ACKNOWLEDGEMENT.put(packet), bytes(packet.reasons))


def _encode_pingreq(packet: Pingreq, version: int) -> bytes:
    return b"\xc0\x00"


def _encode_pingresp(packet: Pingresp, version: int) -> bytes:
    return b"\xd0\x00"


def _encode_disconnect(packet: Disconnect, version: int) -> bytes:
    if version != Version.MQTT_5:
        return b"\xe0\x00"
    return _packet(0xE0, _put_outcome(packet.reason, blocks.DISCONNECT.put(packet)))


def _encode_auth(packet: Auth, version: int) -> bytes:
    if version != Version.MQTT_5:
        raise LocalError("AUTH needs MQTT 5")
    block = blocks.AUTH.put(packet)
    if packet.reason == Reason.SUCCESS and block == b"\x00":
        return b"\xf0\x00"
    return _packet(0xF0, bytes((packet.reason,)), block)


_ENCODERS: dict[type, Callable[[Any, int], bytes]] = {
    Connect: _encode_connect,
    Connack: _encode_connack,
    Publish: _encode_publish,
    Puback: _acknowledgement_encoder(0x40),
    Pubrec: _acknowledgement_encoder(0x50),
    Pubrel: _acknowledgement_encoder(0x62),
    Pubcomp: _acknowledgement_encoder(0x70),
    Subscribe: _encode_subscribe,
    Suback: _encode_suback,
    Unsubscribe: _encode_unsubscribe,
    Unsuback: _encode_unsuback,
    Pingreq: _encode_pingreq,
    Pingresp: _encode_pingresp,
    Disconnect: _encode_disconnect,
    Auth: _encode_auth,
}
