"""Sections 3.8 to 3.12: SUBSCRIBE, UNSUBSCRIBE and PINGREQ, and what they are answered."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import FILTER_INVALID, MALFORMED, PROTOCOL_ERROR, options


@both
@pytest.mark.parametrize("flags", [0, 1, 3, 15])
@covers("MQTT-3.8.1-1")
@covers311("MQTT-3.8.1-1")
async def test_subscribe_flags_are_checked(lab: Lab, version: int, flags: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, (lab.topic(), 0), version=version, flags=flags))
    await client.expect_closed(MALFORMED)


@both
@pytest.mark.parametrize("flags", [0, 1, 3, 15])
@covers("MQTT-3.10.1-1")
@covers311("MQTT-3.10.1-1")
async def test_unsubscribe_flags_are_checked(lab: Lab, version: int, flags: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.unsubscribe(1, lab.topic(), version=version, flags=flags))
    await client.expect_closed(MALFORMED)


@both
@covers("MQTT-3.8.3-1")
@covers311("MQTT-3.8.3-1")
async def test_an_ill_formed_filter_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, (b"a/\xff", 0), version=version))
    await client.expect_closed(MALFORMED, FILTER_INVALID)


@both
@covers("MQTT-3.10.3-1")
@covers311("MQTT-3.10.3-1")
async def test_an_ill_formed_filter_in_unsubscribe_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.unsubscribe(1, b"a/\xed\xa0\x80", version=version))
    await client.expect_closed(MALFORMED, FILTER_INVALID)


@both
@covers("MQTT-3.8.3-2")
@covers311("MQTT-3.8.3-3")
async def test_a_subscribe_without_filters_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, version=version))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@both
@covers("MQTT-3.10.3-2")
@covers311("MQTT-3.10.3-2")
async def test_an_unsubscribe_without_filters_closes(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.unsubscribe(1, version=version))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@both
@pytest.mark.parametrize("bits", [0x40, 0x80, 0xC0, 0x03, 0x30])
@covers("MQTT-3.8.3-5")
@covers311("MQTT-3.8.3-4")
async def test_illegal_subscription_options_close(lab: Lab, version: int, bits: int) -> None:
    """Reserved bits, QoS 3, retain handling 3."""
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, (lab.topic(), bits), version=version))
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("bits", [0x04, 0x08, 0x10])
@covers311("MQTT-3.8.3-4")
async def test_options_of_version_5_are_reserved_in_311(lab: Lab, bits: int) -> None:
    client = await lab.connect(wire.V311)
    await client.send(wire.subscribe(1, (lab.topic(), bits), version=wire.V311))
    await client.expect_closed()


@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("MQTT-3.8.3-3")
async def test_no_local(lab: Lab, qos: int) -> None:
    """Nothing back from the own client id, everything from others."""
    topic = lab.topic()
    client, other = await lab.connect(), await lab.connect()
    await client.subscribe((topic, options(2, no_local=True)))
    await other.subscribe((topic, 2))
    await client.publish(topic, b"own", qos=qos)
    await other.expect_message(topic, b"own")
    await other.publish(topic, b"other", qos=qos)
    await client.expect_message(topic, b"other")


@covers("MQTT-3.8.3-4")
async def test_no_local_on_a_shared_subscription_closes(lab: Lab) -> None:
    client = await lab.connect()
    shared = f"$share/{lab.name()}/{lab.topic()}"
    await client.send(wire.subscribe(1, (shared, options(0, no_local=True))))
    await client.expect_closed(PROTOCOL_ERROR)


@both
@covers("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1")
@covers("MQTT-3.9.3-2", "MQTT-3.2.2-10")
@covers311("MQTT-3.8.4-1", "MQTT-3.8.4-2", "MQTT-3.8.4-4", "MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
async def test_one_answer_with_one_code_per_filter_in_order(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    wanted = (2, 0, 1, 2, 1, 0)
    filters = [(f"{topic}/{number}", qos) for number, qos in enumerate(wanted)]
    await client.send(wire.subscribe(444, *filters, version=version))
    await client.expect(wire.SUBACK, packet_id=444, reasons=wanted)
    for number, qos in enumerate(wanted):
        await client.publish(f"{topic}/{number}", b"x", qos=2)
        message = await client.expect_message(f"{topic}/{number}", b"x", qos=qos)
        if qos:
            await client.acknowledge(message)


@both
@covers("MQTT-3.8.4-5", "MQTT-3.8.4-6", "MQTT-3.9.3-1")
@covers311("MQTT-3.8.4-4", "MQTT-3.8.4-5", "MQTT-3.9.3-1")
async def test_the_same_filter_twice_in_one_packet(lab: Lab, version: int) -> None:
    """As if it were two packets: two codes, and the second holds."""
    topic = lab.topic()
    client = await lab.connect(version)
    await client.send(wire.subscribe(1, (topic, 2), (topic, 0), version=version))
    await client.expect(wire.SUBACK, reasons=(2, 0))
    await client.publish(topic, b"x", qos=2)
    await client.expect_message(topic, b"x", qos=0)
    await client.quiet()


@both
@covers("MQTT-3.8.4-3")
@covers311("MQTT-3.8.4-3")
async def test_the_same_filter_again_replaces_the_subscription(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    for qos in (2, 0, 1):
        await client.subscribe((topic, qos))
        await client.publish(topic, b"x", qos=2)
        message = await client.expect_message(topic, b"x", qos=qos)
        if qos:
            await client.acknowledge(message)
        await client.quiet()


@covers("MQTT-3.8.4-3", "MQTT-3.3.4-3")
async def test_replacing_replaces_options_and_identifier(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic, options(1, no_local=True)), props={"subscription_id": 1})
    await client.subscribe((topic, options(1, as_published=True)), props={"subscription_id": 2})
    await client.publish(topic, b"x", qos=1, retain=True)
    seen = await client.expect_message(topic, b"x", retain=True)
    assert seen.props["subscription_id"] == [2]
    await client.subscribe((topic, options(1, handling=2)))
    await client.publish(topic, b"y", qos=1)
    seen = await client.expect_message(topic, b"y")
    assert "subscription_id" not in seen.props
    await client.publish(topic, b"", retain=True)


@both
@covers("MQTT-3.8.4-4")
@covers311("MQTT-3.8.4-3")
async def test_replacing_sends_retained_messages_again_and_loses_nothing(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.publish(topic + "/r", b"kept", qos=1, retain=True)
    await client.subscribe((topic + "/#", 1))
    await client.acknowledge(await client.expect_message(topic + "/r", b"kept", retain=True))
    publisher = await lab.connect(version)
    for number in range(20):
        first, second = 2 * number + 1, 2 * number + 2
        message = wire.publish(topic + "/l", b"%d" % number, qos=1, packet_id=first, version=version)
        await publisher.send(message)
        await client.send(wire.subscribe(second, (topic + "/#", 1), version=version))
    live: list[bytes] = []
    again = 0
    while len(live) < 20 or again < 20:
        seen = await client.receive()
        if seen.kind != wire.PUBLISH:
            continue
        if seen.topic == topic + "/r":
            again += 1
        else:
            live.append(seen.payload)
        await client.acknowledge(seen)
    assert live == [b"%d" % number for number in range(20)]
    await publisher.publish(topic + "/r", b"", retain=True)


@both
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
@covers("MQTT-3.8.4-8")
@covers311("MQTT-3.8.4-6")
async def test_delivery_qos_is_the_lower_one(lab: Lab, version: int, granted: int, published: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic, granted))
    await client.publish(topic, b"x", qos=published)
    await client.expect_message(topic, b"x", qos=min(granted, published))


@covers("MQTT-3.8.3-5", "MQTT-4.13.1-1")
async def test_subscription_identifier_0_closes(lab: Lab) -> None:
    client = await lab.connect()
    await client.send(wire.subscribe(1, (lab.topic(), 0), props={"subscription_id": 0}))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@both
@covers("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-4", "MQTT-3.11.3-2")
@covers311("MQTT-3.10.4-1", "MQTT-3.10.4-2", "MQTT-3.10.4-4")
async def test_unsubscribe_removes_the_exact_filter(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic + "/+", 1))
    for other in (topic + "/a", topic + "/#", topic + "/", topic + "/+/"):
        await client.unsubscribe(other)
    await client.publish(topic + "/a", b"still", qos=1)
    await client.acknowledge(await client.expect_message(topic + "/a", b"still"))
    await client.unsubscribe(topic + "/+")
    await client.publish(topic + "/a", b"gone", qos=1)
    await client.quiet()


@both
@covers("MQTT-3.10.4-4", "MQTT-3.10.4-5")
@covers311("MQTT-3.10.4-4", "MQTT-3.10.4-5")
async def test_unsubscribe_is_answered_even_if_nothing_is_removed(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    answer = await client.unsubscribe(lab.topic())
    assert answer.reasons == ((0x11,) if version == 5 else ())


@both
@covers("MQTT-3.10.4-6", "MQTT-3.11.3-1", "MQTT-3.11.3-2")
@covers311("MQTT-3.10.4-6")
async def test_several_filters_in_one_unsubscribe(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic + "/a", 0), (topic + "/c", 0), (topic + "/d", 0))
    answer = await client.unsubscribe(topic + "/a", topic + "/b", topic + "/c", topic + "/a")
    assert answer.reasons == ((0, 0x11, 0, 0x11) if version == 5 else ())
    for tail in ("/a", "/c", "/d"):
        await client.publish(topic + tail, b"x")
    await client.expect_message(topic + "/d", b"x")
    await client.quiet()


@both
@pytest.mark.parametrize("qos", [1, 2])
@covers("MQTT-3.10.4-3")
@covers311("MQTT-3.10.4-3")
async def test_a_delivery_under_way_is_completed_after_unsubscribe(lab: Lab, version: int, qos: int) -> None:
    """It is sent again on a return, and its handshake is served."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, qos))
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"x", qos=qos)
    first = await client.expect_message(topic, b"x", qos=qos)
    await client.unsubscribe(topic)
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    again = await client.expect_message(topic, b"x", qos=qos, dup=True, packet_id=first.packet_id)
    await client.acknowledge(again)
    await client.quiet()


@both
@covers("MQTT-3.12.4-1")
@covers311("MQTT-3.12.4-1")
async def test_every_ping_is_answered(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.PING * 3)
    for _ in range(3):
        await client.expect(wire.PINGRESP)
    await client.quiet()
