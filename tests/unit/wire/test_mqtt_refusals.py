"""What the standard forbids is refused, with the reason code it names: the peer's faults in decoding, ours in
encoding."""

import pytest

from millrace.errors import LocalError, MalformedPacket, ProtocolError, RemoteError
from millrace.reasons import Reason
from millrace.types import Message, Properties, Subscription, Version, Will
from millrace.wire.mqtt.codec import (
    decode,
    decode_properties,
    encode,
    encode_properties,
    encode_publish,
    read_varint,
    split,
    varint,
)
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
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
from unit.wire.mqtt_feeding import feed
from unit.wire.mqtt_tables import AROUND, PACKETS_BY_REASON, PROPERTIES, around

MALFORMED = Reason.MALFORMED_PACKET
PROTOCOL = Reason.PROTOCOL_ERROR


def refusal(first_byte: int, body: bytes, version: int) -> Reason:
    """The reason for which a packet is refused; its class must agree with it."""
    with pytest.raises(RemoteError) as caught:
        decode(first_byte, body, version)
    assert isinstance(caught.value, MalformedPacket if caught.value.reason == MALFORMED else ProtocolError)
    return caught.value.reason


# ---- the fixed header


@pytest.mark.parametrize("version", [3, 4, 5])
def test_reserved_flags_of_each_type(version: int) -> None:
    """[MQTT-2.1.3-1]. 3.1 uses only the two bits in the middle, and of some types none."""
    required = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}
    # Nothing follows what decides: only the flags can make this malformed before anything else is read.
    begun = {
        PacketType.CONNECT: b"\x00\x06MQIsdp\x03" if version == 3 else b"\x00\x04MQTT" + bytes((version,))
    }
    for kind in PacketType:
        if kind == PacketType.PUBLISH:
            continue
        for flags in range(16):
            is_good = flags == required.get(kind, 0)
            if version == 3:
                is_good = kind not in required or flags & 0x06 == required[kind]
            if not is_good:
                with pytest.raises(MalformedPacket, match="flags"):
                    decode(kind << 4 | flags, begun.get(kind, b""), version)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packet_type_0(version: int) -> None:
    assert refusal(0x00, b"", version) == MALFORMED


def test_auth_before_mqtt_5() -> None:
    assert refusal(0xF0, b"", 4) == MALFORMED
    assert refusal(0xF0, b"\x18\x04\x15\x00\x01m", 3) == MALFORMED


def test_remaining_length_of_five_bytes() -> None:
    """Known after the fourth, whether or not the fifth is there."""
    for data in (b"\x30\x80\x80\x80\x80", b"\x30\xff\xff\xff\xff\x00"):
        with pytest.raises(MalformedPacket):
            split(data)
    assert split(b"\x30\x80\x80\x80") is None


def test_variable_byte_integer_beyond_its_bounds() -> None:
    for data, end in ((b"\x80\x80\x80\x80\x00", 5), (b"\x80\x80", 2), (b"\x80\x01", 1), (b"", 0)):
        with pytest.raises(MalformedPacket):
            read_varint(data, 0, end)


# ---- single packets: version, bytes, reason

CONNECT_4 = b"\x00\x04MQTT\x04"
CONNECT_5 = b"\x00\x04MQTT\x05"

REFUSED: dict[str, tuple[int, int, bytes, Reason]] = {
    "connect: unknown level": (4, 0x10, b"\x00\x04MQTT\x06\x02\x00\x00\x00\x00", Reason.UNSUPPORTED_VERSION),
    "connect: level 3 with the name of 3.1.1": (
        4,
        0x10,
        b"\x00\x04MQTT\x03\x02\x00\x00\x00\x00",
        Reason.UNSUPPORTED_VERSION,
    ),
    "connect: level 4 with the name of 3.1": (
        4,
        0x10,
        b"\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00",
        Reason.UNSUPPORTED_VERSION,
    ),
    "connect: unknown name": (4, 0x10, b"\x00\x04mqtt\x04\x02\x00\x00\x00\x00", Reason.UNSUPPORTED_VERSION),
    "connect: empty": (4, 0x10, b"", MALFORMED),
    "connect: ends after the level": (4, 0x10, CONNECT_4, MALFORMED),
    "connect: ends in keep alive": (4, 0x10, CONNECT_4 + b"\x02\x00", MALFORMED),
    "connect: no client id": (4, 0x10, CONNECT_4 + b"\x02\x00\x00", MALFORMED),
    "connect: reserved flag": (4, 0x10, CONNECT_4 + b"\x03\x00\x00\x00\x00", MALFORMED),
    "connect 5: reserved flag": (5, 0x10, CONNECT_5 + b"\x03\x00\x00\x00\x00\x00", MALFORMED),
    "connect: will QoS 3": (4, 0x10, CONNECT_4 + b"\x1e\x00\x00\x00\x00\x00\x01w\x00\x00", MALFORMED),
    "connect: will QoS without a will": (4, 0x10, CONNECT_4 + b"\x0a\x00\x00\x00\x00", MALFORMED),
    "connect: will retain without a will": (4, 0x10, CONNECT_4 + b"\x22\x00\x00\x00\x00", MALFORMED),
    "connect 5: will retain without a will": (5, 0x10, CONNECT_5 + b"\x22\x00\x00\x00\x00\x00", MALFORMED),
    "connect: password without user name": (4, 0x10, CONNECT_4 + b"\x42\x00\x00\x00\x00\x00\x01p", MALFORMED),
    "connect 3.1: password without user name": (
        3,
        0x10,
        b"\x00\x06MQIsdp\x03\x42\x00\x00\x00\x01c\x00\x01p",
        MALFORMED,
    ),
    "connect: user name flag without a user name": (4, 0x10, CONNECT_4 + b"\x82\x00\x00\x00\x00", MALFORMED),
    "connect: password flag without a password": (
        4,
        0x10,
        CONNECT_4 + b"\xc2\x00\x00\x00\x00\x00\x01u",
        MALFORMED,
    ),
    "connect: will flag without a will": (4, 0x10, CONNECT_4 + b"\x06\x00\x00\x00\x00", MALFORMED),
    "connect: will topic empty": (4, 0x10, CONNECT_4 + b"\x06\x00\x00\x00\x00\x00\x00\x00\x00", MALFORMED),
    "connect: will topic with a wildcard": (
        4,
        0x10,
        CONNECT_4 + b"\x06\x00\x00\x00\x00\x00\x03a/+\x00\x00",
        MALFORMED,
    ),
    "connect 5: will topic with a wildcard": (
        5,
        0x10,
        CONNECT_5 + b"\x06\x00\x00\x00\x00\x00\x00\x00\x01#\x00\x00",
        MALFORMED,
    ),
    "connect: will payload runs past the packet": (
        4,
        0x10,
        CONNECT_4 + b"\x06\x00\x00\x00\x00\x00\x01w\x00\x02x",
        MALFORMED,
    ),
    "connect: trailing byte": (4, 0x10, CONNECT_4 + b"\x02\x00\x00\x00\x00\x00", MALFORMED),
    "connect 5: trailing byte": (5, 0x10, CONNECT_5 + b"\x02\x00\x00\x00\x00\x00\x00", MALFORMED),
    "connect 5: authentication data without method": (
        5,
        0x10,
        CONNECT_5 + b"\x02\x00\x00\x04\x16\x00\x01\xff\x00\x00",
        PROTOCOL,
    ),
    "connack: empty": (4, 0x20, b"", MALFORMED),
    "connack: one byte": (4, 0x20, b"\x00", MALFORMED),
    "connack: reserved flag": (4, 0x20, b"\x02\x00", MALFORMED),
    "connack 5: reserved flag": (5, 0x20, b"\x80\x00\x00", MALFORMED),
    "connack: reserved return code": (4, 0x20, b"\x00\x06", PROTOCOL),
    "connack: session present in a refusal": (4, 0x20, b"\x01\x05", PROTOCOL),
    "connack 5: session present in a refusal": (5, 0x20, b"\x01\x87\x00", PROTOCOL),
    "connack: trailing byte": (4, 0x20, b"\x00\x00\x00", MALFORMED),
    "connack 5: no property length": (5, 0x20, b"\x00\x00", MALFORMED),
    "connack 5: trailing byte": (5, 0x20, b"\x00\x00\x00\x00", MALFORMED),
    "publish: QoS 3": (4, 0x36, b"\x00\x01a\x00\x07", MALFORMED),
    "publish 5: QoS 3": (5, 0x36, b"\x00\x01a\x00\x07\x00", MALFORMED),
    "publish: repeated with QoS 0": (4, 0x38, b"\x00\x01a", MALFORMED),
    "publish 5: repeated with QoS 0": (5, 0x38, b"\x00\x01a\x00", MALFORMED),
    "publish: empty": (4, 0x30, b"", MALFORMED),
    "publish: topic runs past the packet": (4, 0x30, b"\x00\x05a/b", MALFORMED),
    "publish: topic empty": (4, 0x30, b"\x00\x00hi", MALFORMED),
    "publish 5: topic empty, no alias": (5, 0x30, b"\x00\x00\x00hi", PROTOCOL),
    "publish: topic with +": (4, 0x30, b"\x00\x03a/+", MALFORMED),
    "publish: topic with #": (4, 0x30, b"\x00\x03a/#", MALFORMED),
    "publish 5: topic with a wildcard inside a level": (5, 0x30, b"\x00\x03a+b\x00", MALFORMED),
    "publish: topic with U+0000": (4, 0x30, b"\x00\x03a\x00b", MALFORMED),
    "publish: topic not UTF-8": (4, 0x30, b"\x00\x02\xff\xfe", MALFORMED),
    "publish: topic cut inside a character": (4, 0x30, b"\x00\x02\xe2\x82\xac", MALFORMED),
    "publish: topic with an encoded surrogate": (4, 0x30, b"\x00\x03\xed\xa0\x80", MALFORMED),
    "publish: topic with an overlong form": (4, 0x30, b"\x00\x02\xc0\xaf", MALFORMED),
    "publish: packet identifier 0": (4, 0x32, b"\x00\x01a\x00\x00", PROTOCOL),
    "publish 5: packet identifier 0": (5, 0x34, b"\x00\x01a\x00\x00\x00", PROTOCOL),
    "publish: packet identifier cut": (4, 0x32, b"\x00\x01a\x00", MALFORMED),
    "publish 5: no property length": (5, 0x30, b"\x00\x01a", MALFORMED),
    "puback: empty": (4, 0x40, b"", MALFORMED),
    "puback: one byte": (5, 0x40, b"\x00", MALFORMED),
    "puback: packet identifier 0": (4, 0x40, b"\x00\x00", PROTOCOL),
    "pubrec 5: packet identifier 0": (5, 0x50, b"\x00\x00", PROTOCOL),
    "pubrel: packet identifier 0": (4, 0x62, b"\x00\x00", PROTOCOL),
    "pubcomp: packet identifier 0": (4, 0x70, b"\x00\x00", PROTOCOL),
    "puback: reason code before MQTT 5": (4, 0x40, b"\x00\x07\x00", MALFORMED),
    "puback 5: trailing byte": (5, 0x40, b"\x00\x07\x00\x00\x00", MALFORMED),
    "subscribe: packet identifier 0": (4, 0x82, b"\x00\x00\x00\x01a\x00", PROTOCOL),
    "subscribe: no filter": (4, 0x82, b"\x00\x07", PROTOCOL),
    "subscribe 5: no filter": (5, 0x82, b"\x00\x07\x00", PROTOCOL),
    "subscribe 5: no property length": (5, 0x82, b"\x00\x07", MALFORMED),
    "subscribe: no options": (4, 0x82, b"\x00\x07\x00\x01a", MALFORMED),
    "subscribe: second filter cut": (4, 0x82, b"\x00\x07\x00\x01a\x00\x00", MALFORMED),
    "subscribe: QoS 3": (4, 0x82, b"\x00\x07\x00\x01a\x03", MALFORMED),
    "subscribe 5: QoS 3": (5, 0x82, b"\x00\x07\x00\x00\x01a\x03", PROTOCOL),
    "subscribe: reserved option": (4, 0x82, b"\x00\x07\x00\x01a\x04", MALFORMED),
    "subscribe 5: reserved option 6": (5, 0x82, b"\x00\x07\x00\x00\x01a\x40", MALFORMED),
    "subscribe 5: reserved option 7": (5, 0x82, b"\x00\x07\x00\x00\x01a\x80", MALFORMED),
    "subscribe 5: retain handling 3": (5, 0x82, b"\x00\x07\x00\x00\x01a\x30", PROTOCOL),
    "subscribe 5: no local on a shared filter": (5, 0x82, b"\x00\x07\x00\x00\x0a$share/g/a\x04", PROTOCOL),
    "subscribe 5: two identifiers": (5, 0x82, b"\x00\x07\x04\x0b\x01\x0b\x02\x00\x01a\x00", PROTOCOL),
    "suback: no return code": (4, 0x90, b"\x00\x07", PROTOCOL),
    "suback 5: no reason code": (5, 0x90, b"\x00\x07\x00", PROTOCOL),
    "suback: return code of MQTT 5": (4, 0x90, b"\x00\x07\x87", PROTOCOL),
    "suback: packet identifier 0": (4, 0x90, b"\x00\x00\x00", PROTOCOL),
    "unsubscribe: packet identifier 0": (4, 0xA2, b"\x00\x00\x00\x01a", PROTOCOL),
    "unsubscribe: no filter": (4, 0xA2, b"\x00\x07", PROTOCOL),
    "unsubscribe 5: no filter": (5, 0xA2, b"\x00\x07\x00", PROTOCOL),
    "unsuback: trailing byte": (4, 0xB0, b"\x00\x07\x00", MALFORMED),
    "unsuback 5: no reason code": (5, 0xB0, b"\x00\x07\x00", PROTOCOL),
    "unsuback: packet identifier 0": (4, 0xB0, b"\x00\x00", PROTOCOL),
    "pingreq: trailing byte": (4, 0xC0, b"\x00", MALFORMED),
    "pingresp: trailing byte": (5, 0xD0, b"\x00", MALFORMED),
    "disconnect: trailing byte": (4, 0xE0, b"\x00", MALFORMED),
    "disconnect 5: trailing byte": (5, 0xE0, b"\x00\x00\x00", MALFORMED),
    "auth: no property length": (5, 0xF0, b"\x18", MALFORMED),
    "auth: no method": (5, 0xF0, b"\x18\x00", PROTOCOL),
    "auth: data without method": (5, 0xF0, b"\x18\x04\x16\x00\x01\xff", PROTOCOL),
    "auth: trailing byte": (5, 0xF0, b"\x18\x04\x15\x00\x01m\x00", MALFORMED),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    version, first_byte, body, reason = REFUSED[name]
    assert refusal(first_byte, body, version) == reason
    # The same through a buffer: the refusal comes with the whole packet, not before and not after it.
    with pytest.raises(RemoteError):
        feed(bytes((first_byte,)) + varint(len(body)) + body, version)


# ---- topic filters


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("#", True),
        ("+", True),
        ("/", True),
        ("//", True),
        ("/+", True),
        ("+/#", True),
        ("a/#", True),
        ("a/+/b", True),
        ("+/+", True),
        ("$SYS/#", True),
        (" ", True),
        ("", False),
        ("a#", False),
        ("a/b#", False),
        ("#/a", False),
        ("a/#/b", False),
        ("##", False),
        ("/##", False),
        ("#/#", False),
        ("+#", False),
        ("a+", False),
        ("+a", False),
        ("a/b+/c", False),
        ("++", False),
        ("$share", True),
        ("$shared/a", True),
        ("$share/g/a", True),
        ("$share/g//", True),
        ("$share/g/#", True),
        ("$share/g/+/a", True),
        ("$share/g/$share/h", True),
        ("$share/", False),
        ("$share//a", False),
        ("$share/g", False),
        ("$share/g/", False),
        ("$share/+/a", False),
        ("$share/g+/a", False),
        ("$share/#", False),
        ("$share/#/a", False),
        ("$share/g/a#", False),
        ("$share/g/a+", False),
    ],
)
def test_topic_filters(text: str, legal: bool, version: int) -> None:
    """Sections 4.7.1 and 4.8.2, for SUBSCRIBE and UNSUBSCRIBE alike."""
    block = b"\x00" if version == 5 else b""
    field = len(text).to_bytes(2, "big") + text.encode()
    subscribe = b"\x00\x07" + block + field + b"\x01"
    unsubscribe = b"\x00\x07" + block + field
    if legal:
        subscription = Subscription(filter=text, qos=1)
        assert decode(0x82, subscribe, version) == Subscribe(packet_id=7, subscriptions=(subscription,))
        assert decode(0xA2, unsubscribe, version) == Unsubscribe(packet_id=7, filters=(text,))
    else:
        assert refusal(0x82, subscribe, version) == MALFORMED
        assert refusal(0xA2, unsubscribe, version) == MALFORMED


# ---- reason codes

WITH_REASON: dict[type, tuple[int, bytes, bytes]] = {
    Connack: (0x20, b"\x00", b"\x00"),
    Puback: (0x40, b"\x00\x07", b""),
    Pubrec: (0x50, b"\x00\x07", b""),
    Pubrel: (0x62, b"\x00\x07", b""),
    Pubcomp: (0x70, b"\x00\x07", b""),
    Suback: (0x90, b"\x00\x07\x00", b""),
    Unsuback: (0xB0, b"\x00\x07\x00", b""),
    Disconnect: (0xE0, b"", b""),
    Auth: (0xF0, b"", b"\x04\x15\x00\x01m"),
}


@pytest.mark.parametrize("kind", WITH_REASON, ids=lambda kind: kind.__name__)
def test_reason_codes_are_those_of_section_2_4(kind: type) -> None:
    """All 256, in each packet that has one: what is not listed for it is a protocol error."""
    first_byte, before, after = WITH_REASON[kind]
    for code in range(256):
        body = before + bytes((code,)) + after
        if kind in PACKETS_BY_REASON.get(code, ()):
            packet = decode(first_byte, body, 5)
            assert isinstance(packet, kind)
            found = packet.reasons if isinstance(packet, Suback | Unsuback) else (packet.reason,)
            assert found == (code,)
        else:
            assert refusal(first_byte, body, 5) == PROTOCOL


# ---- properties

KINDS = pytest.mark.parametrize("kind", AROUND, ids=lambda kind: kind.__name__)


def method_first(kind: type, identifier: int) -> bytes:
    """The authentication method, where the packet would be wrong for the lack of it."""
    return b"\x15\x00\x01m" if identifier == 0x16 or (kind is Auth and identifier != 0x15) else b""


@KINDS
def test_properties_stand_where_table_2_4_says(kind: type) -> None:
    for identifier in range(256):
        value, allowed = PROPERTIES.get(identifier, (b"\x01", set()))
        block = bytes((identifier,)) + value
        if kind in allowed:
            assert decode(*around(kind, method_first(kind, identifier) + block), 5)
        else:
            assert refusal(*around(kind, block), 5) == MALFORMED


@KINDS
def test_properties_given_twice(kind: type) -> None:
    """Only user properties repeat, and subscription identifiers in PUBLISH."""
    for identifier, (value, allowed) in PROPERTIES.items():
        if kind not in allowed:
            continue
        block = method_first(kind, identifier) + (bytes((identifier,)) + value) * 2
        if identifier == 0x26 or (identifier == 0x0B and kind is Publish):
            assert decode(*around(kind, block), 5)
        else:
            assert refusal(*around(kind, block), 5) == PROTOCOL


@KINDS
def test_properties_cut_short(kind: type) -> None:
    """A value must end inside its block, even where the packet goes on."""
    for identifier, (value, allowed) in PROPERTIES.items():
        if kind not in allowed:
            continue
        whole = bytes((identifier,)) + value
        for size in range(1, len(whole)):
            block = method_first(kind, identifier) + whole[:size]
            assert refusal(*around(kind, block), 5) == MALFORMED


@KINDS
def test_property_length_runs_past_the_packet(kind: type) -> None:
    first_byte, before, after = AROUND[kind]
    assert refusal(first_byte, before + bytes((len(after) + 1,)) + after, 5) == MALFORMED
    assert refusal(first_byte, before + b"\xff\xff\xff\xff\x01" + after, 5) == MALFORMED


@pytest.mark.parametrize(
    ("kind", "block", "reason"),
    [
        (Publish, b"\x01\x02", PROTOCOL),
        (Will, b"\x01\x02", PROTOCOL),
        (Connect, b"\x17\x02", PROTOCOL),
        (Connect, b"\x19\x02", PROTOCOL),
        (Connack, b"\x24\x02", PROTOCOL),
        (Connack, b"\x25\x02", PROTOCOL),
        (Connack, b"\x28\x02", PROTOCOL),
        (Connack, b"\x29\xff", PROTOCOL),
        (Connack, b"\x2a\x02", PROTOCOL),
        (Connect, b"\x21\x00\x00", PROTOCOL),
        (Connack, b"\x21\x00\x00", PROTOCOL),
        (Connect, b"\x27\x00\x00\x00\x00", PROTOCOL),
        (Connack, b"\x27\x00\x00\x00\x00", PROTOCOL),
        (Publish, b"\x23\x00\x00", Reason.TOPIC_ALIAS_INVALID),
        (Publish, b"\x0b\x00", PROTOCOL),
        (Subscribe, b"\x0b\x00", PROTOCOL),
        (Publish, b"\x0b\x80\x80\x80\x80\x01", MALFORMED),
        (Publish, b"\x08\x00\x03a/+", MALFORMED),
        (Publish, b"\x08\x00\x01#", MALFORMED),
        (Publish, b"\x08\x00\x00", MALFORMED),
        (Will, b"\x08\x00\x01+", MALFORMED),
        (Connack, b"\x16\x00\x01\xff", PROTOCOL),
        (Publish, b"\x03\x00\x01\xff", MALFORMED),
        (Publish, b"\x03\x00\x01\x00", MALFORMED),
        (Puback, b"\x1f\x00\x01\x00", MALFORMED),
        (Disconnect, b"\x26\x00\x01\x00\x00\x01v", MALFORMED),
        (Disconnect, b"\x26\x00\x01k\x00\x03\xed\xb0\x80", MALFORMED),
        (Publish, b"\x81\x00\x01", MALFORMED),
    ],
)
def test_property_values_out_of_range(kind: type, block: bytes, reason: Reason) -> None:
    assert refusal(*around(kind, block), 5) == reason


def test_publish_properties_alone_are_held_to_their_end() -> None:
    data = b"\x03\x23\x00\x09"
    for end in range(len(data)):
        with pytest.raises(MalformedPacket):
            decode_properties(data, 0, end)


# ---- our own faults

LONG = "x" * 65_536
SUBSCRIPTION = Subscription(filter="a")

UNSENDABLE: dict[str, tuple[int, Packet]] = {
    "a topic over 65,535 bytes": (4, Publish(message=Message(topic=LONG))),
    "a topic over 65,535 bytes only in UTF-8": (4, Publish(message=Message(topic="\u20ac" * 21_846))),
    "a topic with U+0000": (4, Publish(message=Message(topic="a\0"))),
    "a topic with a surrogate": (4, Publish(message=Message(topic="\ud800"))),
    "QoS 3": (4, Publish(message=Message(topic="a", qos=3), packet_id=7)),
    "QoS 1 without a packet identifier": (4, Publish(message=Message(topic="a", qos=1))),
    "QoS 0 with a packet identifier": (4, Publish(message=Message(topic="a"), packet_id=7)),
    "QoS 0 repeated": (4, Publish(message=Message(topic="a"), dup=True)),
    "packet identifier 0": (4, Puback(packet_id=0)),
    "packet identifier 65,536": (5, Pubrel(packet_id=65_536)),
    "no filter in SUBSCRIBE": (4, Subscribe(packet_id=7, subscriptions=())),
    "no filter in UNSUBSCRIBE": (5, Unsubscribe(packet_id=7, filters=())),
    "subscription QoS 3": (4, Subscribe(packet_id=7, subscriptions=(Subscription(filter="a", qos=3),))),
    "two identifiers in one SUBSCRIBE": (
        5,
        Subscribe(packet_id=7, subscriptions=(SUBSCRIPTION, Subscription(filter="b", identifier=1))),
    ),
    "subscription identifier 0": (
        5,
        Subscribe(packet_id=7, subscriptions=(Subscription(filter="a", identifier=0),)),
    ),
    "subscription identifier over its bound": (
        5,
        Subscribe(packet_id=7, subscriptions=(Subscription(filter="a", identifier=268_435_456),)),
    ),
    "session present in a refusal": (5, Connack(reason=Reason.BANNED, session_present=True)),
    "receive maximum 0": (5, Connack(reason=Reason.SUCCESS, receive_maximum=0)),
    "maximum QoS 2": (5, Connack(reason=Reason.SUCCESS, maximum_qos=2)),
    "server keep alive over two bytes": (5, Connack(reason=Reason.SUCCESS, server_keep_alive_s=65_536)),
    "session expiry over four bytes": (5, Disconnect(session_expiry_s=1 << 32)),
    "negative session expiry": (5, Disconnect(session_expiry_s=-1)),
    "keep alive over two bytes": (
        4,
        Connect(version=Version.MQTT_3_1_1, client_id="", keep_alive_s=65_536),
    ),
    "password without user name": (4, Connect(version=Version.MQTT_3_1_1, client_id="", password=b"p")),
    "will QoS 3": (
        4,
        Connect(version=Version.MQTT_5, client_id="", will=Will(message=Message(topic="a", qos=3))),
    ),
    "will payload over 65,535 bytes": (
        4,
        Connect(
            version=Version.MQTT_5,
            client_id="",
            will=Will(message=Message(topic="a", payload=bytes(65_536))),
        ),
    ),
    "AUTH before MQTT 5": (4, Auth(reason=Reason.SUCCESS)),
}


@pytest.mark.parametrize("name", UNSENDABLE)
def test_what_has_no_legal_encoding_is_our_fault(name: str) -> None:
    version, packet = UNSENDABLE[name]
    with pytest.raises(LocalError):
        encode(packet, version)


def test_parts_that_have_no_legal_encoding_are_our_fault() -> None:
    for value in (-1, 268_435_456):
        with pytest.raises(LocalError):
            varint(value)
    with pytest.raises(LocalError):
        encode_publish(LONG.encode(), b"", 0x30, 0, b"")
    with pytest.raises(LocalError):
        encode_publish(b"a", b"", 0x32, 65_536, b"")
    with pytest.raises(LocalError):
        encode_properties(Properties(topic_alias=0))
    with pytest.raises(LocalError):
        encode_properties(Properties(payload_format=2))
