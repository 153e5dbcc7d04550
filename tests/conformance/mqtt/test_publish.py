"""Section 3.3: PUBLISH as received and as forwarded: DUP, topic, answers, overlap, properties, expiry."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab, let_time_pass
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import MALFORMED, PROTOCOL_ERROR, TOPIC_INVALID


@both
@pytest.mark.parametrize("qos", [1, 2])
@covers("MQTT-3.3.1-1", "MQTT-3.3.1-3", "MQTT-4.3.2-2", "MQTT-4.3.3-2", "MQTT-4.4.0-1")
@covers311("MQTT-3.3.1-1", "MQTT-3.3.1-3", "MQTT-4.3.2-1", "MQTT-4.3.3-1", "MQTT-4.4.0-1", "MQTT-2.3.1-4")
async def test_dup_marks_a_redelivery_and_nothing_else(lab: Lab, version: int, qos: int) -> None:
    """The publisher sets DUP: the first delivery does not have it, the second one, after a return, has."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, qos))
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"x", qos=qos, dup=True)
    first = await client.expect_message(topic, b"x", qos=qos, dup=False)
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    again = await client.expect_message(topic, b"x", qos=qos, dup=True)
    assert again.packet_id == first.packet_id


@both
@covers("MQTT-4.4.0-1")
@covers311("MQTT-4.4.0-1")
@pytest.mark.parametrize("qos", [(1, 2, 1, 2), (2, 1, 2, 1)], ids=["1 first", "2 first"])
async def test_what_comes_again_comes_in_its_first_order(
    lab: Lab, version: int, qos: tuple[int, ...]
) -> None:
    """4.6, for messages of both QoS between each other, with DUP and under their ids."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 2))
    publisher = await lab.connect(version)
    for one in qos:
        await publisher.publish(topic, b"x", qos=one)
    # What comes at QoS 2 waits for its id to be written, and may be overtaken.
    first = [await client.expect_message(topic, dup=False) for _ in qos]
    for _ in range(2):
        await client.drop()
        client = await lab.connect(version, client_id=name, resume=True)
        again = [await client.expect_message(topic, dup=True) for _ in qos]
        assert [one.packet_id for one in again] == [one.packet_id for one in first]


@both
@covers("MQTT-3.3.1-2", "MQTT-4.3.1-1")
@covers311("MQTT-3.3.1-2", "MQTT-4.3.1-1")
async def test_qos_0_is_forwarded_without_dup(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic, 0))
    await client.publish(topic, b"x", qos=1, dup=True)
    await client.expect_message(topic, b"x", qos=0, dup=False)


@both
@covers("MQTT-3.3.1-2")
@covers311("MQTT-3.3.1-2")
async def test_dup_on_a_qos_0_publish_goes_no_further(lab: Lab, version: int) -> None:
    """The sender broke a rule; whether the broker overlooks it or closes, DUP is not forwarded."""
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 1))
    client = await lab.connect(version)
    await client.send(wire.publish(topic, b"x", dup=True, version=version), wire.PING)
    try:
        await client.expect(wire.PINGRESP)
    except AssertionError:
        await watcher.quiet()
    else:
        await watcher.expect_message(topic, b"x", qos=0, dup=False)


@both
@covers("MQTT-3.3.1-4", "MQTT-4.13.1-1")
@covers311("MQTT-3.3.1-4", "MQTT-4.8.0-1")
async def test_qos_3_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.publish(lab.topic(), b"x", qos=3, packet_id=1, version=version))
    await client.expect_closed(MALFORMED)


@both
@pytest.mark.parametrize("topic", ["a/+", "#", "a/#", "a+b", "+"])
@covers("MQTT-3.3.2-2", "MQTT-4.7.0-1")
@covers311("MQTT-3.3.2-2", "MQTT-4.7.1-1")
async def test_a_wildcard_in_a_topic_closes(lab: Lab, version: int, topic: str) -> None:
    client = await lab.connect(version)
    await client.send(wire.publish(topic, b"x", version=version))
    await client.expect_closed(TOPIC_INVALID, MALFORMED, PROTOCOL_ERROR)


@both
@covers("MQTT-4.7.3-1")
@covers311("MQTT-4.7.3-1")
async def test_an_empty_topic_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.publish("", b"x", version=version))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED, TOPIC_INVALID)


@both
@covers("MQTT-3.3.2-1")
@covers311("MQTT-3.3.2-1")
async def test_a_publish_without_a_topic_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(b"\x30\x00")
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@both
@covers("MQTT-3.3.4-1", "MQTT-4.3.2-4", "MQTT-4.3.3-8", "MQTT-4.3.3-11", "MQTT-3.4.2-1", "MQTT-3.5.2-1")
@covers("MQTT-3.7.2-1")
@covers311("MQTT-3.3.4-1", "MQTT-4.3.2-2", "MQTT-4.3.3-2")
async def test_each_qos_is_answered_its_own_way(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.send(wire.publish(topic, b"0", version=version))
    await client.quiet()
    await client.send(wire.publish(topic, b"1", qos=1, packet_id=5, version=version))
    await client.expect(wire.PUBACK, packet_id=5)
    await client.send(wire.publish(topic, b"2", qos=2, packet_id=6, version=version))
    await client.expect(wire.PUBREC, packet_id=6)
    await client.send(wire.ack(wire.PUBREL, 6))
    await client.expect(wire.PUBCOMP, packet_id=6, reason=0)
    await client.quiet()


@both
@pytest.mark.parametrize("published", [0, 1, 2])
@covers("MQTT-3.3.4-2", "MQTT-3.8.4-8")
@covers311("MQTT-3.3.5-1", "MQTT-3.8.4-6")
async def test_overlap_is_delivered_at_the_highest_qos(lab: Lab, version: int, published: int) -> None:
    """Once or several times, but the best copy has the lower of published QoS and the highest granted one."""
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic + "/#", 0), (topic + "/+", 2), (topic + "/a", 1))
    publisher = await lab.connect(version)
    await publisher.publish(topic + "/a", b"x", qos=published)
    await publisher.publish(topic + "/a", b"end", qos=published)
    copies = []
    while (message := await client.expect_message(topic + "/a")).payload != b"end":
        copies.append(message.qos)
        if message.qos:
            await client.acknowledge(message)
    assert max(copies) == published


@covers("MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.3.4-5")
async def test_all_identifiers_of_overlapping_subscriptions_are_sent(lab: Lab) -> None:
    """In one copy all of them, in several each its own; the subscription without one adds nothing."""
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic + "/#", 1), props={"subscription_id": 7})
    await client.subscribe((topic + "/+", 1), props={"subscription_id": 4_000})
    await client.subscribe((topic + "/a", 1))
    publisher = await lab.connect()
    await publisher.publish(topic + "/a", b"x", qos=1)
    await publisher.publish(topic + "/a", b"end", qos=1)
    seen: list[list[int]] = []
    while (message := await client.expect_message(topic + "/a")).payload != b"end":
        seen.append(sorted(message.props.get("subscription_id", [])))
        await client.acknowledge(message)
    if len(seen) == 1:
        assert seen == [[7, 4_000]]
    else:
        assert sorted(seen) == [[], [7], [4_000]]


@covers("MQTT-3.3.4-6")
async def test_a_client_may_not_send_a_subscription_identifier(lab: Lab) -> None:
    client = await lab.connect()
    await client.send(wire.publish(lab.topic(), b"x", props={"subscription_id": 1}))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@both
@covers("MQTT-3.3.2-3")
@covers311("MQTT-3.3.2-3")
async def test_the_topic_is_forwarded_as_published(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic + "/+/x/#", 0))
    for tail in ("/one/x", "/two/x/deep/er", "//x/"):
        await client.publish(topic + tail, b"x")
        await client.expect_message(topic + tail, b"x")


PROPS = {
    "payload_format": 1,
    "content_type": "text/\u00fcber",
    "response_topic": "answers/here",
    "correlation_data": b"\x00\x01\xff",
    "user": [("z", "1"), ("a", "2"), ("z", "1"), ("", ""), ("a", "0")],
}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retained", [False, True], ids=["live", "retained"])
@covers("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20")
async def test_properties_are_forwarded_unaltered(lab: Lab, qos: int, retained: bool) -> None:
    topic = lab.topic()
    client = await lab.connect()
    if not retained:
        await client.subscribe((topic, 2))
    await client.publish(topic, b"text", qos=qos, retain=retained, props=PROPS)
    if retained:
        await client.subscribe((topic, 2))
    seen = await client.expect_message(topic, b"text")
    assert seen.props == PROPS
    if retained:
        await client.publish(topic, b"", retain=True)


@pytest.mark.parametrize("value", [0, 1])
@covers("MQTT-3.3.2-4")
async def test_the_payload_format_is_forwarded(lab: Lab, value: int) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic, 0))
    await client.publish(topic, b"text", props={"payload_format": value})
    seen = await client.expect_message(topic, b"text")
    assert seen.props == {"payload_format": value}


ILLEGAL_PROPS: dict[str, dict[str, str | bytes]] = {
    "response topic not UTF-8": {"response_topic": b"\xff"},
    "content type not UTF-8": {"content_type": b"\xed\xa0\x80"},
    "response topic with +": {"response_topic": "a/+"},
    "response topic with #": {"response_topic": "#"},
}


@pytest.mark.parametrize("case", ILLEGAL_PROPS)
@covers("MQTT-3.3.2-13", "MQTT-3.3.2-14", "MQTT-3.3.2-19")
async def test_illegal_publish_properties_close(lab: Lab, case: str) -> None:
    client = await lab.connect()
    await client.send(wire.publish(lab.topic(), b"x", props=ILLEGAL_PROPS[case]))
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR, TOPIC_INVALID)


@covers("MQTT-3.3.2-5", "MQTT-3.3.2-6", "MQTT-4.3.3-13")
async def test_expiry_counts_down_and_ends_while_waiting(lab: Lab) -> None:
    """Of three messages that waited a good second, one has expired and one has less time left."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(client_id=name, resume=True)
    await client.subscribe((topic + "/+", 2))
    await client.disconnect()
    publisher = await lab.connect()
    # The handshakes are finished although the first message is due to expire.
    await publisher.publish(topic + "/1", b"short", qos=2, props={"message_expiry": 1})
    await publisher.publish(topic + "/2", b"long", qos=1, props={"message_expiry": 60})
    await publisher.publish(topic + "/3", b"ever", qos=1)
    await publisher.publish(topic + "/4", b"kept", retain=True, props={"message_expiry": 1})
    await let_time_pass(2.1)
    client = await lab.connect(client_id=name, resume=True)
    seen = {}
    while b"long" not in seen or b"ever" not in seen:
        message = await client.expect(wire.PUBLISH)
        seen[message.payload] = message.props
    await client.quiet()
    assert b"short" not in seen
    assert 50 <= seen[b"long"]["message_expiry"] <= 58, seen
    assert "message_expiry" not in seen[b"ever"]
    await client.subscribe((topic + "/4", 0))
    await client.quiet()


@covers("MQTT-3.3.2-6")
async def test_expiry_of_a_message_that_did_not_wait_is_forwarded(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic, 1))
    await client.publish(topic, b"x", qos=1, props={"message_expiry": 100})
    seen = await client.expect_message(topic, b"x")
    assert 90 <= seen.props["message_expiry"] <= 100


@covers("MQTT-4.3.3-7")
async def test_a_qos_2_message_that_was_sent_does_not_expire(lab: Lab) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(client_id=name, resume=True)
    await client.subscribe((topic, 2))
    publisher = await lab.connect()
    await publisher.publish(topic, b"x", qos=2, props={"message_expiry": 3})
    first = await client.expect_message(topic, b"x", qos=2)
    await client.drop()
    await let_time_pass(3.6)
    client = await lab.connect(client_id=name, resume=True)
    await client.expect_message(topic, b"x", qos=2, dup=True, packet_id=first.packet_id)
