"""Byte vectors written by hand from the standard: each decodes to its packet, however the bytes arrive, and
the packet encodes to exactly those bytes."""

import pytest

from millrace.errors import RemoteError
from millrace.reasons import Reason
from millrace.types import Message, Properties, RetainHandling, Subscription, Version, Will
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
from unit.wire.mqtt_feeding import feed

WILL_MESSAGE = Message(topic="w", payload=b"bye", qos=2, retain=True)
PUBLISH_PROPERTIES = Properties(
    payload_format=1,
    message_expiry_s=10,
    topic_alias=3,
    response_topic="r",
    correlation_data=b"\xff",
    content_type="t",
    subscription_ids=(1, 128),
    user=(("a", "b"), ("a", "c")),
)
PUBLISH_BLOCK = (
    b"\x29\x01\x01\x02\x00\x00\x00\x0a\x03\x00\x01t\x08\x00\x01r\x09\x00\x01\xff\x0b\x01\x0b\x80\x01"
    b"\x23\x00\x03\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x01c"
)

# Both directions.
VECTORS: dict[str, tuple[int, bytes, Packet]] = {
    "connect 3.1": (
        3,
        b"\x10\x13\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x05meter",
        Connect(version=Version.MQTT_3_1, client_id="meter", keep_alive_s=60),
    ),
    "connect 3.1 with a client id over 23 characters": (
        3,
        b"\x10\x26\x00\x06MQIsdp\x03\x00\x00\x00\x00\x18abcdefghijklmnopqrstuvwx",
        Connect(version=Version.MQTT_3_1, client_id="abcdefghijklmnopqrstuvwx", clean_start=False),
    ),
    "connect 3.1.1 smallest": (
        4,
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        Connect(version=Version.MQTT_3_1_1, client_id=""),
    ),
    "connect 3.1.1 full": (
        4,
        b"\x10\x1c\x00\x04MQTT\x04\xf6\x00\x3c\x00\x01c\x00\x01w\x00\x03bye\x00\x01u\x00\x02pw",
        Connect(
            version=Version.MQTT_3_1_1,
            client_id="c",
            keep_alive_s=60,
            will=Will(message=WILL_MESSAGE),
            username="u",
            password=b"pw",
        ),
    ),
    "connect 5 smallest": (
        5,
        b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00",
        Connect(version=Version.MQTT_5, client_id=""),
    ),
    "connect 5 with a password alone": (
        5,
        b"\x10\x11\x00\x04MQTT\x05\x40\x00\x00\x00\x00\x00\x00\x02pw",
        Connect(version=Version.MQTT_5, client_id="", clean_start=False, password=b"pw"),
    ),
    "connect 5 full": (
        5,
        (
            b"\x10\x61\x00\x04MQTT\x05\xf6\x00\x3c"
            b"\x24\x11\x00\x00\x0e\x10\x15\x00\x01m\x16\x00\x02\x01\x02\x17\x00\x19\x01\x21\x00\x14\x22\x00\x0a"
            b"\x26\x00\x01a\x00\x01b\x27\x00\x01\x00\x00"
            b"\x00\x01c"
            b"\x1f\x18\x00\x00\x00\x05\x01\x01\x02\x00\x00\x00\x0a\x03\x00\x01t\x08\x00\x01r\x09\x00\x01\xff"
            b"\x26\x00\x01k\x00\x01v"
            b"\x00\x01w\x00\x03bye\x00\x01u\x00\x02pw"
        ),
        Connect(
            version=Version.MQTT_5,
            client_id="c",
            keep_alive_s=60,
            username="u",
            password=b"pw",
            will=Will(
                message=Message(
                    topic="w",
                    payload=b"bye",
                    qos=2,
                    retain=True,
                    properties=Properties(
                        payload_format=1,
                        message_expiry_s=10,
                        content_type="t",
                        response_topic="r",
                        correlation_data=b"\xff",
                        user=(("k", "v"),),
                    ),
                ),
                delay_s=5,
            ),
            session_expiry_s=3600,
            receive_maximum=20,
            packet_bytes_max=65_536,
            topic_alias_max=10,
            request_response_information=True,
            request_problem_information=False,
            authentication_method="m",
            authentication_data=b"\x01\x02",
            user=(("a", "b"),),
        ),
    ),
    "connack 3.1": (3, b"\x20\x02\x00\x00", Connack(reason=Reason.SUCCESS)),
    "connack 3.1.1 session present": (
        4,
        b"\x20\x02\x01\x00",
        Connack(reason=Reason.SUCCESS, session_present=True),
    ),
    "connack 3.1.1 version": (4, b"\x20\x02\x00\x01", Connack(reason=Reason.UNSUPPORTED_VERSION)),
    "connack 3.1.1 identifier": (4, b"\x20\x02\x00\x02", Connack(reason=Reason.CLIENT_ID_NOT_VALID)),
    "connack 3.1.1 unavailable": (4, b"\x20\x02\x00\x03", Connack(reason=Reason.SERVER_UNAVAILABLE)),
    "connack 3.1.1 password": (4, b"\x20\x02\x00\x04", Connack(reason=Reason.BAD_USER_OR_PASSWORD)),
    "connack 3.1.1 not authorized": (4, b"\x20\x02\x00\x05", Connack(reason=Reason.NOT_AUTHORIZED)),
    "connack 5 smallest": (5, b"\x20\x03\x00\x00\x00", Connack(reason=Reason.SUCCESS)),
    "connack 5 full": (
        5,
        (
            b"\x20\x40\x01\x00\x3d\x11\x00\x00\x00\x3c\x12\x00\x02id\x13\x00\x1e\x15\x00\x01m\x16\x00\x01\x01"
            b"\x1a\x00\x01i\x1c\x00\x01s\x1f\x00\x02ok\x21\x00\x64\x22\x00\x05\x24\x01\x25\x00\x26\x00\x01a\x00\x00"
            b"\x27\x00\x00\x10\x00\x28\x01\x29\x00\x2a\x01"
        ),
        Connack(
            reason=Reason.SUCCESS,
            session_present=True,
            session_expiry_s=60,
            receive_maximum=100,
            maximum_qos=1,
            retain_available=False,
            packet_bytes_max=4096,
            assigned_client_id="id",
            topic_alias_max=5,
            reason_string="ok",
            wildcard_available=True,
            subscription_ids_available=False,
            shared_available=True,
            server_keep_alive_s=30,
            response_information="i",
            server_reference="s",
            authentication_method="m",
            authentication_data=b"\x01",
            user=(("a", ""),),
        ),
    ),
    "publish 3.1.1 QoS 0": (
        4,
        b"\x30\x07\x00\x03a/bhi",
        Publish(message=Message(topic="a/b", payload=b"hi")),
    ),
    "publish 3.1.1 empty payload, retained": (
        4,
        b"\x31\x03\x00\x01a",
        Publish(message=Message(topic="a", retain=True)),
    ),
    "publish 3.1.1 QoS 1 repeated": (
        4,
        b"\x3a\x07\x00\x01a\x01\x02hi",
        Publish(message=Message(topic="a", payload=b"hi", qos=1), packet_id=0x102, dup=True),
    ),
    "publish 3.1 QoS 2": (
        3,
        b"\x34\x05\x00\x01a\x00\x07",
        Publish(message=Message(topic="a", qos=2), packet_id=7),
    ),
    "publish keeps a byte order mark": (
        4,
        b"\x30\x06\x00\x04\xef\xbb\xbfa",
        Publish(message=Message(topic="\ufeffa")),
    ),
    "publish 5 QoS 0": (5, b"\x30\x06\x00\x01a\x00hi", Publish(message=Message(topic="a", payload=b"hi"))),
    "publish 5 by alias alone": (
        5,
        b"\x30\x06\x00\x00\x03\x23\x00\x09",
        Publish(message=Message(topic="", properties=Properties(topic_alias=9))),
    ),
    "publish 5 full": (
        5,
        b"\x3d\x31\x00\x01a\x00\x07" + PUBLISH_BLOCK + b"hi",
        Publish(
            message=Message(topic="a", payload=b"hi", qos=2, retain=True, properties=PUBLISH_PROPERTIES),
            packet_id=7,
            dup=True,
        ),
    ),
    "puback 3.1.1": (4, b"\x40\x02\x00\x07", Puback(packet_id=7)),
    "pubrec 3.1.1": (4, b"\x50\x02\x00\x07", Pubrec(packet_id=7)),
    "pubrel 3.1.1": (4, b"\x62\x02\x00\x07", Pubrel(packet_id=7)),
    "pubcomp 3.1.1": (4, b"\x70\x02\x00\x07", Pubcomp(packet_id=7)),
    "puback 5 success": (5, b"\x40\x02\x00\x07", Puback(packet_id=7)),
    "pubrec 5 success": (5, b"\x50\x02\xff\xff", Pubrec(packet_id=65_535)),
    "pubrel 5 success": (5, b"\x62\x02\x00\x07", Pubrel(packet_id=7)),
    "pubcomp 5 success": (5, b"\x70\x02\x00\x07", Pubcomp(packet_id=7)),
    "puback 5 with a reason": (
        5,
        b"\x40\x03\x00\x07\x10",
        Puback(packet_id=7, reason=Reason.NO_MATCHING_SUBSCRIBERS),
    ),
    "pubrec 5 full": (
        5,
        b"\x50\x0f\x00\x07\x97\x0b\x1f\x00\x01r\x26\x00\x01a\x00\x01b",
        Pubrec(packet_id=7, reason=Reason.QUOTA_EXCEEDED, reason_string="r", user=(("a", "b"),)),
    ),
    "pubrel 5 with a reason": (
        5,
        b"\x62\x03\x00\x07\x92",
        Pubrel(packet_id=7, reason=Reason.PACKET_ID_NOT_FOUND),
    ),
    "pubcomp 5 success with properties": (
        5,
        b"\x70\x08\x00\x07\x00\x04\x1f\x00\x01r",
        Pubcomp(packet_id=7, reason_string="r"),
    ),
    "subscribe 3.1.1": (
        4,
        b"\x82\x0e\x00\x07\x00\x03a/+\x01\x00\x03b/#\x02",
        Subscribe(
            packet_id=7, subscriptions=(Subscription(filter="a/+", qos=1), Subscription(filter="b/#", qos=2))
        ),
    ),
    "subscribe 5 full": (
        5,
        b"\x82\x22\x00\x07\x0a\x0b\x80\x01\x26\x00\x01a\x00\x01b\x00\x03a/#\x2d\x00\x0c$share/g/a/b\x1a",
        Subscribe(
            packet_id=7,
            subscriptions=(
                Subscription(
                    filter="a/#",
                    qos=1,
                    no_local=True,
                    retain_as_published=True,
                    retain_handling=RetainHandling.DO_NOT_SEND,
                    identifier=128,
                ),
                Subscription(
                    filter="$share/g/a/b",
                    qos=2,
                    retain_as_published=True,
                    retain_handling=RetainHandling.SEND_IF_NEW,
                    identifier=128,
                ),
            ),
            user=(("a", "b"),),
        ),
    ),
    "suback 3.1.1": (
        4,
        b"\x90\x06\x00\x07\x00\x01\x02\x80",
        Suback(
            packet_id=7,
            reasons=(Reason.SUCCESS, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2, Reason.UNSPECIFIED),
        ),
    ),
    "suback 5": (
        5,
        b"\x90\x09\x00\x07\x04\x1f\x00\x01r\x02\xa2",
        Suback(packet_id=7, reasons=(Reason.GRANTED_QOS_2, Reason.WILDCARD_NOT_SUPPORTED), reason_string="r"),
    ),
    "unsubscribe 3.1.1": (
        4,
        b"\xa2\x08\x00\x07\x00\x01a\x00\x01+",
        Unsubscribe(packet_id=7, filters=("a", "+")),
    ),
    "unsubscribe 5": (
        5,
        b"\xa2\x0d\x00\x07\x07\x26\x00\x01a\x00\x01b\x00\x01#",
        Unsubscribe(packet_id=7, filters=("#",), user=(("a", "b"),)),
    ),
    "unsuback 3.1.1": (4, b"\xb0\x02\x00\x07", Unsuback(packet_id=7)),
    "unsuback 5": (
        5,
        b"\xb0\x05\x00\x07\x00\x00\x11",
        Unsuback(packet_id=7, reasons=(Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)),
    ),
    "pingreq 3.1.1": (4, b"\xc0\x00", Pingreq()),
    "pingreq 5": (5, b"\xc0\x00", Pingreq()),
    "pingresp 3.1.1": (4, b"\xd0\x00", Pingresp()),
    "pingresp 5": (5, b"\xd0\x00", Pingresp()),
    "disconnect 3.1.1": (4, b"\xe0\x00", Disconnect()),
    "disconnect 5 normal": (5, b"\xe0\x00", Disconnect()),
    "disconnect 5 with a reason": (5, b"\xe0\x01\x04", Disconnect(reason=Reason.DISCONNECT_WITH_WILL)),
    "disconnect 5 full": (
        5,
        b"\xe0\x16\x9d\x14\x11\x00\x00\x00\x0a\x1c\x00\x01s\x1f\x00\x01r\x26\x00\x01a\x00\x01b",
        Disconnect(
            reason=Reason.SERVER_MOVED,
            session_expiry_s=10,
            server_reference="s",
            reason_string="r",
            user=(("a", "b"),),
        ),
    ),
    "auth success": (5, b"\xf0\x00", Auth(reason=Reason.SUCCESS)),
    "auth full": (
        5,
        b"\xf0\x15\x18\x13\x15\x00\x01m\x16\x00\x01\xff\x1f\x00\x01r\x26\x00\x01a\x00\x01b",
        Auth(
            reason=Reason.CONTINUE_AUTHENTICATION,
            authentication_method="m",
            authentication_data=b"\xff",
            reason_string="r",
            user=(("a", "b"),),
        ),
    ),
}

# Forms a peer may send and we do not.
LONGER_FORMS: dict[str, tuple[int, bytes, Packet]] = {
    "puback 5 with an explicit success": (5, b"\x40\x03\x00\x07\x00", Puback(packet_id=7)),
    "puback 5 with an empty property block": (5, b"\x40\x04\x00\x07\x00\x00", Puback(packet_id=7)),
    "disconnect 5 with an explicit success": (5, b"\xe0\x01\x00", Disconnect()),
    "disconnect 5 with an empty property block": (5, b"\xe0\x02\x00\x00", Disconnect()),
    "publish 5 with a two-byte property length of 0": (
        5,
        b"\x30\x07\x00\x01a\x80\x00hi",
        Publish(message=Message(topic="a", payload=b"hi")),
    ),
    "remaining length in four bytes": (4, b"\x40\x82\x80\x80\x00\x00\x07", Puback(packet_id=7)),
    "connect 5 with the defaults spelled out": (
        5,
        b"\x10\x14\x00\x04MQTT\x05\x02\x00\x00\x07\x17\x01\x19\x00\x22\x00\x00\x00\x00",
        Connect(version=Version.MQTT_5, client_id=""),
    ),
    "connect 5 with properties in another order": (
        5,
        b"\x10\x15\x00\x04MQTT\x05\x02\x00\x00\x08\x21\x00\x05\x11\x00\x00\x00\x01\x00\x00",
        Connect(version=Version.MQTT_5, client_id="", receive_maximum=5, session_expiry_s=1),
    ),
    "connect 3.1 with flags for a user name and password that are missing": (
        3,
        b"\x10\x0f\x00\x06MQIsdp\x03\xc2\x00\x3c\x00\x01c",
        Connect(version=Version.MQTT_3_1, client_id="c", keep_alive_s=60),
    ),
    "pubrel 3.1 repeated": (3, b"\x6a\x02\x00\x07", Pubrel(packet_id=7)),
    "subscribe 3.1 repeated": (
        3,
        b"\x8a\x06\x00\x07\x00\x01a\x01",
        Subscribe(packet_id=7, subscriptions=(Subscription(filter="a", qos=1),)),
    ),
    "unsubscribe 3.1 repeated": (3, b"\xaa\x05\x00\x07\x00\x01a", Unsubscribe(packet_id=7, filters=("a",))),
    "connack 3.1 with its unused byte set": (3, b"\x20\x02\x01\x00", Connack(reason=Reason.SUCCESS)),
}


@pytest.mark.parametrize("name", VECTORS)
def test_decode_vector(name: str) -> None:
    version, data, packet = VECTORS[name]
    assert feed(data, version) == packet


@pytest.mark.parametrize("name", VECTORS)
def test_encode_vector(name: str) -> None:
    version, data, packet = VECTORS[name]
    assert encode(packet, version) == data


@pytest.mark.parametrize("name", LONGER_FORMS)
def test_longer_form_means_the_same_packet(name: str) -> None:
    version, data, packet = LONGER_FORMS[name]
    assert feed(data, version) == packet
    assert encode(packet, version) != data


def test_every_packet_type_has_a_vector_in_both_families() -> None:
    seen = {(type(packet), version == 5) for version, _, packet in VECTORS.values()}
    assert seen == {(kind, five) for kind in Packet.__args__ for five in (False, True)} - {(Auth, False)}


def test_connect_says_its_own_version() -> None:
    """The version argument must not matter: at CONNECT nobody knows it yet."""
    for version, data, packet in VECTORS.values():
        if isinstance(packet, Connect):
            for argument in (3, 4, 5):
                assert feed(data, argument) == packet, version
                assert encode(packet, argument) == data


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.UNSUPPORTED_VERSION, 1),
        (Reason.CLIENT_ID_NOT_VALID, 2),
        (Reason.SERVER_UNAVAILABLE, 3),
        (Reason.SERVER_BUSY, 3),
        (Reason.BAD_USER_OR_PASSWORD, 4),
        (Reason.NOT_AUTHORIZED, 5),
        (Reason.BANNED, 5),
        (Reason.UNSPECIFIED, 3),
        (Reason.QUOTA_EXCEEDED, 3),
    ],
)
def test_connack_reasons_become_return_codes_before_mqtt_5(reason: Reason, code: int) -> None:
    for version in (3, 4):
        assert encode(Connack(reason=reason, reason_string="x"), version) == bytes((0x20, 2, 0, code))


def test_suback_failures_become_0x80_before_mqtt_5() -> None:
    packet = Suback(packet_id=7, reasons=(Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED, Reason.QUOTA_EXCEEDED))
    assert encode(packet, 4) == b"\x90\x05\x00\x07\x01\x80\x80"


@pytest.mark.parametrize("bits", range(16))
def test_bits_that_3_1_does_not_use_may_have_any_value(bits: int) -> None:
    """The specification of 3.1 calls them "not used", and old clients leave what was there."""
    head = b"\x00\x06MQIsdp\x03"
    connect = Connect(version=Version.MQTT_3_1, client_id="c")
    assert decode(0x10 | bits, head + b"\x03\x00\x00\x00\x01c", 0) == connect
    assert (
        decode(0x10, head + bytes((0x02 | (bits & 0x0E) << 2 & 0x38,)) + b"\x00\x00\x00\x01c", 0) == connect
    )
    assert decode(0x40 | bits, b"\x00\x07", Version.MQTT_3_1) == Puback(packet_id=7)
    assert decode(0xC0 | bits, b"", Version.MQTT_3_1) == Pingreq()
    assert decode(0xE0 | bits, b"", Version.MQTT_3_1) == Disconnect()
    subscribe = decode(0x82 | bits & 0x09, b"\x00\x07\x00\x01t" + bytes((bits << 4 | 1,)), Version.MQTT_3_1)
    assert subscribe == Subscribe(packet_id=7, subscriptions=(Subscription(filter="t", qos=1),))
    for version in (Version.MQTT_3_1_1, Version.MQTT_5):
        if bits:
            with pytest.raises(RemoteError):
                decode(0x40 | bits, b"\x00\x07", version)


def test_session_present_does_not_exist_in_3_1() -> None:
    assert encode(Connack(reason=Reason.SUCCESS, session_present=True), 3) == b"\x20\x02\x00\x00"


def test_mqtt_5_fields_are_not_written_before_mqtt_5() -> None:
    assert (
        encode(Puback(packet_id=7, reason=Reason.QUOTA_EXCEEDED, reason_string="x"), 4) == b"\x40\x02\x00\x07"
    )
    assert encode(Disconnect(reason=Reason.SERVER_BUSY, reason_string="x"), 4) == b"\xe0\x00"
    assert encode(Unsuback(packet_id=7, reasons=(Reason.SUCCESS,)), 4) == b"\xb0\x02\x00\x07"
    message = Message(topic="a", properties=PUBLISH_PROPERTIES)
    assert encode(Publish(message=message), 4) == b"\x30\x03\x00\x01a"
    subscription = Subscription(filter="a", qos=1, no_local=True, retain_as_published=True, identifier=5)
    assert (
        encode(Subscribe(packet_id=7, subscriptions=(subscription,)), 4) == b"\x82\x06\x00\x07\x00\x01a\x01"
    )


def test_encode_publish_from_parts() -> None:
    assert encode_publish(b"a/b", b"hi", 0x31, 0, b"") == b"\x31\x07\x00\x03a/bhi"
    assert encode_publish(b"a", b"hi", 0x32, 0x102, b"") == b"\x32\x07\x00\x01a\x01\x02hi"
    assert encode_publish(b"a", b"hi", 0x32, 7, b"\x00") == b"\x32\x08\x00\x01a\x00\x07\x00hi"
    assert encode_publish(b"a", b"", 0x30, 0, b"\x03\x23\x00\x09") == b"\x30\x07\x00\x01a\x03\x23\x00\x09"


def test_publish_properties_stand_alone() -> None:
    assert encode_properties(Properties()) == b"\x00"
    assert encode_properties(PUBLISH_PROPERTIES) == PUBLISH_BLOCK
    data = b"??" + PUBLISH_BLOCK + b"payload"
    assert decode_properties(data, 2, len(data)) == (PUBLISH_PROPERTIES, 2 + len(PUBLISH_BLOCK))
    assert decode_properties(b"?\x00payload", 1, 9) == (Properties(), 2)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (2_097_151, b"\xff\xff\x7f"),
        (2_097_152, b"\x80\x80\x80\x01"),
        (268_435_455, b"\xff\xff\xff\x7f"),
    ],
)
def test_variable_byte_integers_of_table_1_1(value: int, data: bytes) -> None:
    assert varint(value) == data
    assert read_varint(b"?" + data + b"?", 1, 1 + len(data)) == (value, 1 + len(data))


def test_split_at_the_bounds_of_the_remaining_length() -> None:
    """One byte short is incomplete, exact is a packet, for each number of length bytes that memory allows."""
    for length in (0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152):
        head = b"\x30" + varint(length)
        assert split(head + bytes(length)) == (0x30, len(head), len(head) + length)
        assert split(head + bytes(max(length - 1, 0))) == ((0x30, 2, 2) if length == 0 else None)
    assert split(b"\x30\xff\xff\xff\x7f") is None
    assert split(b"") is None
    assert split(b"\xc0\x00", 2) is None
