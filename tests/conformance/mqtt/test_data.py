"""Chapters 1 and 2: strings, numbers, header flags, packet identifiers, properties."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import MALFORMED, PROTOCOL_ERROR, TOPIC_INVALID

ILL_FORMED = {"surrogate": b"\xed\xa0\x80", "overlong": b"\xc0\xaf", "cut": b"\xe2\x82", "stray": b"\xff"}


@both
@pytest.mark.parametrize("bad", ILL_FORMED.values(), ids=ILL_FORMED)
@covers("MQTT-1.5.4-1", "MQTT-3.3.2-1")
@covers311("MQTT-1.5.3-1", "MQTT-3.3.2-1")
async def test_ill_formed_utf8_in_a_topic_closes(lab: Lab, version: int, bad: bytes) -> None:
    client = await lab.connect(version)
    await client.send(wire.publish(b"a/" + bad, b"x", version=version))
    await client.expect_closed(MALFORMED, TOPIC_INVALID)


@both
@covers("MQTT-1.5.4-2", "MQTT-4.7.3-2")
@covers311("MQTT-1.5.3-2", "MQTT-4.7.3-2")
async def test_null_character_in_a_topic_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.publish(b"a\0b", b"x", version=version))
    await client.expect_closed(MALFORMED, TOPIC_INVALID)


@both
@covers("MQTT-4.7.3-2")
@covers311("MQTT-4.7.3-2")
async def test_null_character_in_a_filter_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, (b"a\0b", 0), version=version))
    await client.expect_closed(MALFORMED, wire.FILTER_INVALID)


@both
@covers("MQTT-1.5.4-3")
@covers311("MQTT-1.5.3-3")
async def test_byte_order_mark_is_an_ordinary_character(lab: Lab, version: int) -> None:
    plain = lab.topic()
    marked = "\ufeff" + plain + "/\ufeff"
    client = await lab.connect(version)
    await client.subscribe((marked, 0))
    await client.publish(plain, b"no")
    await client.publish(plain + "/", b"no")
    await client.publish(marked, b"yes")
    await client.expect_message(marked, b"yes")


@both
@pytest.mark.parametrize("remaining", [127, 128, 16_383, 16_384])
@covers("MQTT-1.5.5-1")
@covers311("MQTT-7.0.0-2")
async def test_lengths_around_each_boundary_come_through(lab: Lab, version: int, remaining: int) -> None:
    """The decoder refuses a length that is not in its shortest form."""
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic, 0))
    payload = b"p" * (remaining - len(wire.string(topic)) - (1 if version == 5 else 0))
    await client.publish(topic, payload)
    seen = await client.expect_message(topic, payload)
    assert len(seen.body) == remaining


@pytest.mark.parametrize("identifier", [1, 127, 128, 16_383, 16_384, 2_097_152, 268_435_455])
@covers("MQTT-1.5.5-1")
async def test_subscription_identifiers_are_sent_in_their_shortest_form(lab: Lab, identifier: int) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic, 0), props={"subscription_id": identifier})
    await client.publish(topic, b"x")
    seen = await client.expect_message(topic, b"x")
    assert seen.props["subscription_id"] == [identifier]


@both
@covers("MQTT-1.5.5-1", "MQTT-4.13.1-1")
@covers311("MQTT-4.8.0-1")
async def test_a_length_of_five_bytes_is_malformed(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(b"\x30\x80\x80\x80\x80\x01")
    await client.expect_closed(MALFORMED, wire.TOO_LARGE)


@pytest.mark.parametrize("pair", [(b"\xed\xa0\x80", b"v"), (b"n", b"\xff"), (b"n", b"a\0")])
@covers("MQTT-1.5.7-1")
async def test_both_strings_of_a_pair_are_checked(lab: Lab, pair: tuple[bytes, bytes]) -> None:
    client = await lab.connect()
    await client.send(wire.publish(lab.topic(), b"x", props={"user": pair}))
    await client.expect_closed(MALFORMED)


WRONG_FLAGS = {
    "PUBACK": b"\x41\x02\x00\x01",
    "PUBREC": b"\x52\x02\x00\x01",
    "PUBREL": b"\x60\x02\x00\x01",
    "PUBCOMP": b"\x78\x02\x00\x01",
    "PINGREQ": b"\xc1\x00",
    "DISCONNECT": b"\xe2\x00",
}


@both
@pytest.mark.parametrize("packet", WRONG_FLAGS.values(), ids=WRONG_FLAGS)
@covers("MQTT-2.1.3-1")
@covers311("MQTT-2.2.2-1", "MQTT-2.2.2-2")
async def test_reserved_flags_are_checked(lab: Lab, version: int, packet: bytes) -> None:
    client = await lab.connect(version)
    await client.send(packet)
    await client.expect_closed(MALFORMED)


@both
@covers("MQTT-2.1.3-1")
@covers311("MQTT-2.2.2-1", "MQTT-2.2.2-2")
async def test_reserved_flags_of_connect_are_checked(lab: Lab, version: int) -> None:
    client = await lab.open(version)
    await client.send(b"\x11" + wire.connect(lab.name(), version=version)[1:])
    await client.expect_refused(*([MALFORMED] if version == 5 else []))


def _with_id_zero(version: int) -> dict[str, bytes]:
    return {
        "SUBSCRIBE": wire.subscribe(0, ("a", 0), version=version),
        "UNSUBSCRIBE": wire.unsubscribe(0, "a", version=version),
        "PUBLISH 1": wire.publish("a", qos=1, packet_id=0, version=version),
        "PUBLISH 2": wire.publish("a", qos=2, packet_id=0, version=version),
    }


@both
@pytest.mark.parametrize("kind", _with_id_zero(5))
@covers("MQTT-2.2.1-3")
@covers311("MQTT-2.3.1-1")
async def test_packet_id_zero_closes(lab: Lab, version: int, kind: str) -> None:
    client = await lab.connect(version)
    await client.send(_with_id_zero(version)[kind])
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@both
@covers("MQTT-2.2.1-2", "MQTT-4.3.1-1")
@covers311("MQTT-2.3.1-5", "MQTT-4.3.1-1")
async def test_qos_0_has_no_packet_id_either_way(lab: Lab, version: int) -> None:
    """What would be the id of a QoS 1 packet is read, and sent, as payload."""
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic, 1))
    await client.publish(topic, b"\x00\x07after")
    seen = await client.expect_message(topic, b"\x00\x07after", qos=0, dup=False)
    assert seen.body == wire.string(topic) + (b"\x00" if version == 5 else b"") + b"\x00\x07after"


@both
@pytest.mark.parametrize("qos", [1, 2])
@covers("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
@covers311("MQTT-2.3.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1")
async def test_open_messages_have_different_packet_ids(lab: Lab, version: int, qos: int) -> None:
    topic = lab.topic()
    subscriber = await lab.connect(version)
    await subscriber.subscribe((topic, qos))
    publisher = await lab.connect(version)
    for number in range(15):
        await publisher.publish(topic, b"%d" % number, qos=qos)
    ids = {(await subscriber.expect_message(topic, qos=qos)).packet_id for _ in range(15)}
    assert len(ids) == 15
    assert 0 not in ids


@both
@pytest.mark.parametrize("packet_id", [1, 300, 65_535])
@covers("MQTT-2.2.1-5", "MQTT-2.2.1-6", "MQTT-3.8.4-2", "MQTT-3.10.4-5")
@covers311("MQTT-2.3.1-6", "MQTT-2.3.1-7", "MQTT-3.8.4-2", "MQTT-3.10.4-4")
async def test_answers_repeat_the_packet_id(lab: Lab, version: int, packet_id: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.send(wire.publish(topic, qos=1, packet_id=packet_id, version=version))
    await client.expect(wire.PUBACK, packet_id=packet_id)
    await client.send(wire.publish(topic, qos=2, packet_id=packet_id, version=version))
    await client.expect(wire.PUBREC, packet_id=packet_id)
    await client.send(wire.ack(wire.PUBREL, packet_id))
    await client.expect(wire.PUBCOMP, packet_id=packet_id)
    await client.send(wire.subscribe(packet_id, (topic, 0), version=version))
    await client.expect(wire.SUBACK, packet_id=packet_id)
    await client.send(wire.unsubscribe(packet_id, topic, version=version))
    await client.expect(wire.UNSUBACK, packet_id=packet_id)


@covers("MQTT-2.2.2-1")
async def test_no_properties_is_length_zero(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic, 1))
    await client.send(wire.publish(topic, b"x", qos=1, packet_id=9))
    await client.take(wire.PUBACK)
    seen = await client.expect_message(topic, b"x")
    assert seen.body == wire.string(topic) + wire.u16(seen.packet_id or 0) + b"\x00" + b"x"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retained", [False, True], ids=["live", "retained"])
@covers("MQTT-2.2.2-1", "MQTT-3.3.2-17")
@covers311("MQTT-7.0.0-2", "MQTT-4.5.0-1")
async def test_clients_of_both_versions_understand_each_other(lab: Lab, qos: int, retained: bool) -> None:
    """Properties reach only clients that know them; the decoder checks the framing of each version."""
    topic = lab.topic()
    new, old = await lab.connect(), await lab.connect(wire.V311)
    for publisher in (new, old):
        props = {"user": [("name", "value")]} if publisher is new else {}
        if not retained:
            for client in (new, old):
                await client.subscribe((topic, 2))
        await publisher.publish(topic, b"payload", qos=qos, retain=retained, props=props)
        for client in (new, old):
            if retained:
                await client.subscribe((topic, 2))
            seen = await client.expect_message(topic, b"payload", qos=qos, retain=retained)
            assert seen.props == (props if client is new else {})
            if qos:
                await client.acknowledge(seen)
        for client in (new, old):
            await client.unsubscribe(topic)
    await new.publish(topic, b"", retain=True)


@covers("MQTT-2.2.2-1", "MQTT-4.13.1-1")
async def test_a_property_that_does_not_belong_there_closes(lab: Lab) -> None:
    client = await lab.connect()
    await client.send(wire.publish(lab.topic(), b"x", props={"server_keep_alive": 5}))
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@covers("MQTT-2.2.2-1", "MQTT-4.13.1-1")
async def test_a_property_that_stands_twice_closes(lab: Lab) -> None:
    client = await lab.connect()
    await client.send(wire.publish(lab.topic(), b"x", props={"content_type": ["a", "b"]}))
    await client.expect_closed(PROTOCOL_ERROR)
