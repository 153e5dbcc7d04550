"""One MQTT control packet from its bytes: every check that a packet can answer for itself.

Flags, lengths, UTF-8, topics, properties and reason codes are checked here. What depends on the state of a
connection, or on who sent the packet, is for the caller: packet order, a subscription identifier from a
client, an empty client id, limits that were agreed on.

Errors follow the definitions in section 1.2: bytes that cannot be parsed, and flags and names that break
their syntax, are malformed (0x81); values that parse and are not allowed are protocol errors (0x82), unless a
clause says otherwise. Where MQTT 3.1.1 has no codes, those of MQTT 5 name the error all the same. Clauses are
those of MQTT 5 unless a version is named.
"""

from collections.abc import Callable, Sequence
from typing import Any

from millrace.errors import MalformedPacket, ProtocolError
from millrace.kernels import read_filters
from millrace.limits import FILTERS_PER_PACKET_MAX
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Message, Properties, RetainHandling, Subscription, Version, Will
from millrace.wire.mqtt import properties as blocks
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
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
from millrace.wire.mqtt.primitives import (
    check_filter,
    check_topic,
    read_binary,
    read_byte,
    read_packet_id,
    read_string,
    read_u16,
)

Decoder = Callable[[int, bytes, int], Packet]

# Member look-ups on an enumeration cost more than the comparison they serve.
_MQTT_3_1 = Version.MQTT_3_1
_MQTT_3_1_1 = Version.MQTT_3_1_1
_MQTT_5 = Version.MQTT_5

_DUP = 0x08
_RETAIN_HANDLINGS = tuple(RetainHandling)
# How most CONNECT packets begin: MQTT 3.1.1 and, behind flags and keep alive, the client id.
_HEAD_3_1_1, _CLIENT_ID_3_1_1 = b"\0\x04MQTT\x04", 10
_PROTOCOLS = {("MQIsdp", 3): Version.MQTT_3_1, ("MQTT", 4): Version.MQTT_3_1_1, ("MQTT", 5): Version.MQTT_5}

# 3.1.1, table 3.1, by return code.
_RETURN_CODES = (
    Reason.SUCCESS,
    Reason.UNSUPPORTED_VERSION,
    Reason.CLIENT_ID_NOT_VALID,
    Reason.SERVER_UNAVAILABLE,
    Reason.BAD_USER_OR_PASSWORD,
    Reason.NOT_AUTHORIZED,
)


def _reasons(*codes: int) -> dict[int, Reason]:
    return {code: Reason(code) for code in codes}


# Section 2.4 and the tables of chapter 3, both directions together.
_CONNACK_REASONS = _reasons(
    *(0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C),
    *(0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F),
)
_PUBLISH_REASONS = _reasons(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASE_REASONS = _reasons(0x00, 0x92)
_SUBACK_REASONS = _reasons(0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)
_SUBACK_REASONS_3 = _reasons(0x00, 0x01, 0x02, 0x80)
_UNSUBACK_REASONS = _reasons(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)
# 0x8C is in the table of section 2.4 for DISCONNECT, though not in that of 3.14.2.1.
_DISCONNECT_REASONS = _reasons(
    *(0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F),
    *(0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F),
    *(0xA0, 0xA1, 0xA2),
)
_AUTH_REASONS = _reasons(0x00, 0x18, 0x19)


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """The packet with this first byte and these remaining-length bytes.

    `version` is the level agreed on by CONNECT, and ignored for CONNECT itself. Raises `RemoteError` only.
    """
    return _DECODERS[first_byte >> 4](first_byte, body, version)


def _require_flags(first_byte: int, flags: int, version: int) -> None:
    """2.1.3: any other value of the low four bits is malformed."""
    found = first_byte & 0x0F
    if version == _MQTT_3_1:
        # 3.1 marks a repeated SUBSCRIBE, UNSUBSCRIBE or PUBREL, as it does a PUBLISH. The other bits are
        # "not used" there, which is no promise that they are 0.
        found = found & 0x06 if flags else 0
    if found != flags:
        raise MalformedPacket(f"{PacketType(first_byte >> 4).name} with flags {first_byte & 0x0F:#06b}")


def _require_end(pos: int, end: int) -> None:
    if pos != end:
        raise MalformedPacket(f"{end - pos} bytes follow the end of the packet")


def _require_few(filters: Sequence[object]) -> None:
    if len(filters) > FILTERS_PER_PACKET_MAX:
        detail = f"more than {FILTERS_PER_PACKET_MAX} topic filters in one packet"
        raise ProtocolError(detail, Reason.QUOTA_EXCEEDED)


def _reason(code: int, allowed: dict[int, Reason]) -> Reason:
    reason = allowed.get(code)
    if reason is None:
        raise ProtocolError(f"reason code 0x{code:02x} is not allowed in this packet")
    return reason


def _decode_reserved(first_byte: int, body: bytes, version: int) -> Packet:
    raise MalformedPacket("packet type 0 is reserved")


def _decode_connect(first_byte: int, body: bytes, version: int) -> Connect:
    end = len(body)
    if first_byte == 0x10 and body.startswith(_HEAD_3_1_1) and end > _CLIENT_ID_3_1_1 and body[7] in (0, 2):
        # Neither a will nor a user name: nothing is behind the client id.
        client_id, pos = read_string(body, _CLIENT_ID_3_1_1, end)
        _require_end(pos, end)
        keep_alive_s = body[8] << 8 | body[9]
        clean_start = body[7] == 2
        return Connect(
            version=_MQTT_3_1_1, client_id=client_id, clean_start=clean_start, keep_alive_s=keep_alive_s
        )
    name, pos = read_string(body, 0, end)
    level, pos = read_byte(body, pos, end)
    protocol = _PROTOCOLS.get((name, level))
    _require_flags(first_byte, 0, protocol or _MQTT_5)
    if protocol is None:
        raise ProtocolError("unknown protocol name or level", Reason.UNSUPPORTED_VERSION)
    flags, pos = read_byte(body, pos, end)
    _check_connect_flags(flags, protocol)
    keep_alive_s, pos = read_u16(body, pos, end)
    values: dict[str, Any] = {}
    if protocol == _MQTT_5:
        values, pos = blocks.CONNECT.read(body, pos, end)
    client_id, pos = read_string(body, pos, end)
    will = None
    if flags & 0x04:
        will, pos = _read_will(flags, body, pos, end, protocol)
    username = password = None
    # 3.1: the remaining length takes precedence over these two flags; what is missing is absent.
    lenient = protocol == _MQTT_3_1
    if flags & 0x80 and not (lenient and pos == end):
        username, pos = read_string(body, pos, end)
    if flags & 0x40 and not (lenient and pos == end):
        password, pos = read_binary(body, pos, end)
    _require_end(pos, end)
    return Connect(
        version=protocol,
        client_id=client_id,
        clean_start=flags & 0x02 != 0,
        keep_alive_s=keep_alive_s,
        username=username,
        password=password,
        will=will,
        **values,
    )


def _check_connect_flags(flags: int, protocol: Version) -> None:
    if protocol == _MQTT_3_1:
        # 3.1: "not used" are bit 0, and the bits of the will where there is none.
        flags &= 0xFE if flags & 0x04 else 0xC6
    if flags & 0x01:
        raise MalformedPacket("the reserved CONNECT flag is set")  # [MQTT-3.1.2-3]
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise MalformedPacket("will QoS 3")  # [MQTT-3.1.2-14]
    elif flags & 0x38:
        raise MalformedPacket("will QoS or will retain without a will")  # [MQTT-3.1.2-11]
    if flags & 0xC0 == 0x40 and protocol != _MQTT_5:
        raise MalformedPacket("a password without a user name")  # 3.1.1 [MQTT-3.1.2-22]; MQTT 5 allows it


def _read_will(flags: int, body: bytes, pos: int, end: int, protocol: Version) -> tuple[Will, int]:
    delay_s = 0
    properties = NO_PROPERTIES
    if protocol == _MQTT_5:
        values, pos = blocks.WILL.read(body, pos, end)
        delay_s = values.pop("delay_s", 0)
        if values:
            properties = Properties(**values)
    topic, pos = read_string(body, pos, end)
    check_topic(topic)
    payload, pos = read_binary(body, pos, end)
    message = Message(
        topic=topic,
        payload=payload,
        qos=flags >> 3 & 0x03,
        retain=flags & 0x20 != 0,
        properties=properties,
    )
    return Will(message=message, delay_s=delay_s), pos


def _decode_connack(first_byte: int, body: bytes, version: int) -> Connack:
    _require_flags(first_byte, 0, version)
    end = len(body)
    flags, pos = read_byte(body, 0, end)
    code, pos = read_byte(body, pos, end)
    if version == _MQTT_3_1:
        flags = 0  # 3.1: the byte is reserved and not used
    if flags > 1:
        raise MalformedPacket("a reserved CONNACK flag is set")  # [MQTT-3.2.2-1]
    values: dict[str, Any] = {}
    if version == _MQTT_5:
        reason = _reason(code, _CONNACK_REASONS)
        values, pos = blocks.CONNACK.read(body, pos, end)
    elif code < len(_RETURN_CODES):
        reason = _RETURN_CODES[code]
    else:
        raise ProtocolError(f"return code {code} is reserved")
    _require_end(pos, end)
    if flags and reason != Reason.SUCCESS:
        raise ProtocolError("session present in a refusal")  # [MQTT-3.2.2-6]
    return Connack(reason=reason, session_present=flags == 1, **values)


def _decode_publish(first_byte: int, body: bytes, version: int) -> Publish:
    qos = first_byte >> 1 & 0x03
    if qos == 3:
        raise MalformedPacket("PUBLISH with QoS 3")  # [MQTT-3.3.1-4]
    dup = first_byte & _DUP != 0
    if dup and qos == 0:
        raise MalformedPacket("PUBLISH with DUP and QoS 0")  # [MQTT-3.3.1-2]; 2.1.3: invalid flags
    end = len(body)
    topic, pos = read_string(body, 0, end)
    packet_id = None
    if qos:
        packet_id, pos = read_packet_id(body, pos, end)
    properties = NO_PROPERTIES
    if version == _MQTT_5:
        properties, pos = blocks.decode_properties(body, pos, end)
        if not topic and properties.topic_alias is None:
            raise ProtocolError("PUBLISH with neither topic nor topic alias")  # 3.3.2.1
    elif not topic:
        raise MalformedPacket("a topic name is empty")  # [MQTT-4.7.3-1]
    if "+" in topic or "#" in topic:
        raise MalformedPacket("a topic name contains a wildcard")  # [MQTT-3.3.2-2]
    message = Message(
        topic=topic, payload=body[pos:], qos=qos, retain=first_byte & 0x01 != 0, properties=properties
    )
    return Publish(message=message, packet_id=packet_id, dup=dup)


_Acknowledgement = Puback | Pubrec | Pubrel | Pubcomp


def _acknowledgement_decoder(
    kind: Callable[..., _Acknowledgement], flags: int, allowed: dict[int, Reason]
) -> Decoder:
    def decode_acknowledgement(first_byte: int, body: bytes, version: int) -> Packet:
        _require_flags(first_byte, flags, version)
        end = len(body)
        packet_id, pos = read_packet_id(body, 0, end)
        if version != _MQTT_5:
            _require_end(pos, end)
        if pos == end:
            return kind(packet_id=packet_id)
        code, pos = read_byte(body, pos, end)
        reason = _reason(code, allowed)
        values: dict[str, Any] = {}
        if pos < end:  # 3.4.2.2.1: a remaining length below 4 means no properties
            values, pos = blocks.ACKNOWLEDGEMENT.read(body, pos, end)
            _require_end(pos, end)
        return kind(packet_id=packet_id, reason=reason, **values)

    return decode_acknowledgement


def _decode_subscribe(first_byte: int, body: bytes, version: int) -> Subscribe:
    _require_flags(first_byte, 0x02, version)
    end = len(body)
    packet_id, pos = read_packet_id(body, 0, end)
    values: dict[str, Any] = {}
    identifier = None
    if version == _MQTT_5:
        values, pos = blocks.SUBSCRIBE.read(body, pos, end)
        identifiers = values.pop("subscription_ids", (None,))
        if len(identifiers) > 1:
            raise ProtocolError("SUBSCRIBE with two subscription identifiers")  # 3.8.2.1.2
        identifier = identifiers[0]
    pos, found = read_filters(body, pos, True, FILTERS_PER_PACKET_MAX)
    plain = zip(found[::2], found[1::2], strict=True)
    if version == _MQTT_3_1_1 and (not found or max(found[1::2]) <= 2):
        subscriptions = [Subscription(filter=text, qos=qos) for text, qos in plain]
    else:
        subscriptions = [_subscription(text, options, identifier, version) for text, options in plain]
    while pos < end:
        text, pos = read_string(body, pos, end)
        options, pos = read_byte(body, pos, end)
        is_shared = check_filter(text)
        subscriptions.append(_subscription(text, options, identifier, version, is_shared=is_shared))
        _require_few(subscriptions)
    if not subscriptions:
        raise ProtocolError("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id=packet_id, subscriptions=tuple(subscriptions), **values)


def _subscription(
    text: str, options: int, identifier: int | None, version: int, *, is_shared: bool = False
) -> Subscription:
    """Of a filter that is in form."""
    qos = options & 0x03
    if version == _MQTT_3_1:
        options &= 0x03  # 3.1: the upper six bits of this byte are not used
    if version != _MQTT_5:
        if options > 2:
            raise MalformedPacket("a reserved subscription option or QoS 3")  # 3.1.1 [MQTT-3-8.3-4]
        return Subscription(filter=text, qos=qos)
    if options & 0xC0:
        raise MalformedPacket("a reserved subscription option is set")  # [MQTT-3.8.3-5]
    if qos == 3:
        raise ProtocolError("a subscription with QoS 3")  # 3.8.3.1
    retain_handling = options >> 4
    if retain_handling == 3:
        raise ProtocolError("retain handling 3")  # 3.8.3.1
    no_local = options & 0x04 != 0
    if no_local and is_shared:
        raise ProtocolError("no local on a shared subscription")  # [MQTT-3.8.3-4]
    return Subscription(
        filter=text,
        qos=qos,
        no_local=no_local,
        retain_as_published=options & 0x08 != 0,
        retain_handling=_RETAIN_HANDLINGS[retain_handling],
        identifier=identifier,
    )


def _decode_suback(first_byte: int, body: bytes, version: int) -> Suback:
    _require_flags(first_byte, 0, version)
    end = len(body)
    packet_id, pos = read_packet_id(body, 0, end)
    values: dict[str, Any] = {}
    allowed = _SUBACK_REASONS_3
    if version == _MQTT_5:
        values, pos = blocks.ACKNOWLEDGEMENT.read(body, pos, end)
        allowed = _SUBACK_REASONS
    return Suback(packet_id=packet_id, reasons=_read_reasons(body, pos, allowed), **values)


def _read_reasons(body: bytes, pos: int, allowed: dict[int, Reason]) -> tuple[Reason, ...]:
    if pos == len(body):
        raise ProtocolError("no reason code, though one is due for each topic filter")  # [MQTT-3.8.4-6]
    return tuple(_reason(code, allowed) for code in body[pos:])


def _decode_unsubscribe(first_byte: int, body: bytes, version: int) -> Unsubscribe:
    _require_flags(first_byte, 0x02, version)
    end = len(body)
    packet_id, pos = read_packet_id(body, 0, end)
    values: dict[str, Any] = {}
    if version == _MQTT_5:
        values, pos = blocks.UNSUBSCRIBE.read(body, pos, end)
    pos, filters = read_filters(body, pos, False, FILTERS_PER_PACKET_MAX)
    while pos < end:
        text, pos = read_string(body, pos, end)
        check_filter(text)
        filters.append(text)
        _require_few(filters)
    if not filters:
        raise ProtocolError("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id=packet_id, filters=tuple(filters), **values)


def _decode_unsuback(first_byte: int, body: bytes, version: int) -> Unsuback:
    _require_flags(first_byte, 0, version)
    end = len(body)
    packet_id, pos = read_packet_id(body, 0, end)
    if version != _MQTT_5:
        _require_end(pos, end)
        return Unsuback(packet_id=packet_id)
    values, pos = blocks.ACKNOWLEDGEMENT.read(body, pos, end)
    return Unsuback(packet_id=packet_id, reasons=_read_reasons(body, pos, _UNSUBACK_REASONS), **values)


def _decode_pingreq(first_byte: int, body: bytes, version: int) -> Pingreq:
    _require_flags(first_byte, 0, version)
    _require_end(0, len(body))
    return Pingreq()


def _decode_pingresp(first_byte: int, body: bytes, version: int) -> Pingresp:
    _require_flags(first_byte, 0, version)
    _require_end(0, len(body))
    return Pingresp()


def _decode_disconnect(first_byte: int, body: bytes, version: int) -> Disconnect:
    _require_flags(first_byte, 0, version)
    if version != _MQTT_5:
        _require_end(0, len(body))
    if not body:
        return Disconnect()
    reason = _reason(body[0], _DISCONNECT_REASONS)
    if len(body) == 1:  # 3.14.2.2.1: a remaining length below 2 means no properties
        return Disconnect(reason=reason)
    values, pos = blocks.DISCONNECT.read(body, 1, len(body))
    _require_end(pos, len(body))
    return Disconnect(reason=reason, **values)


def _decode_auth(first_byte: int, body: bytes, version: int) -> Auth:
    _require_flags(first_byte, 0, version)
    if version != _MQTT_5:
        raise MalformedPacket("packet type 15 is reserved before MQTT 5")
    if not body:  # 3.15.2.1: success without properties may be left out as a whole
        return Auth(reason=Reason.SUCCESS)
    reason = _reason(body[0], _AUTH_REASONS)
    values, pos = blocks.AUTH.read(body, 1, len(body))
    _require_end(pos, len(body))
    if "authentication_method" not in values:
        raise ProtocolError("AUTH without authentication method")  # 3.15.2.2.2
    return Auth(reason=reason, **values)


_DECODERS: tuple[Decoder, ...] = (
    _decode_reserved,
    _decode_connect,
    _decode_connack,
    _decode_publish,
    _acknowledgement_decoder(Puback, 0x00, _PUBLISH_REASONS),
    _acknowledgement_decoder(Pubrec, 0x00, _PUBLISH_REASONS),
    _acknowledgement_decoder(Pubrel, 0x02, _RELEASE_REASONS),
    _acknowledgement_decoder(Pubcomp, 0x00, _RELEASE_REASONS),
    _decode_subscribe,
    _decode_suback,
    _decode_unsubscribe,
    _decode_unsuback,
    _decode_pingreq,
    _decode_pingresp,
    _decode_disconnect,
    _decode_auth,
)
