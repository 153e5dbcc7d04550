"""Sections 3.4 to 3.7, 4.3, 4.4 and 4.6: the handshakes of QoS 1 and 2, repeats, and order."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import MALFORMED


@both
@covers("MQTT-4.3.2-5")
@covers311("MQTT-4.3.2-2")
async def test_after_puback_the_same_id_is_a_new_message(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version)
    for dup in (False, True, True):
        await client.send(wire.publish(topic, b"x", qos=1, packet_id=7, dup=dup, version=version))
        await client.expect(wire.PUBACK, packet_id=7)
        await watcher.expect_message(topic, b"x")


@both
@pytest.mark.parametrize("marked", [True, False], ids=["DUP", "no DUP"])
@covers("MQTT-4.3.3-8", "MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12")
@covers311("MQTT-4.3.3-2", "MQTT-2.3.1-3")
async def test_a_qos_2_message_is_forwarded_once_until_its_id_is_free(
    lab: Lab, version: int, marked: bool
) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version)
    for round_ in (b"first", b"second"):
        for dup in (False, marked, marked):
            await client.send(wire.publish(topic, round_, qos=2, packet_id=7, dup=dup, version=version))
            await client.expect(wire.PUBREC, packet_id=7)
        for _ in range(2):
            await client.send(wire.ack(wire.PUBREL, 7))
            await client.expect(wire.PUBCOMP, packet_id=7)
        await watcher.expect_message(topic, round_)
        await watcher.quiet()


@both
@covers("MQTT-4.3.3-10", "MQTT-4.6.0-5")
@covers311("MQTT-4.3.3-2", "MQTT-4.6.0-6")
async def test_repeats_between_new_messages_in_one_segment(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version)
    ids = [1, 2, 2, 3, 1, 4, 4]
    await client.send(
        *(wire.publish(topic, b"%d" % number, qos=2, packet_id=number, version=version) for number in ids)
    )
    for number in ids:
        await client.expect(wire.PUBREC, packet_id=number)
    await client.send(*(wire.ack(wire.PUBREL, number) for number in (1, 2, 3, 4)))
    for number in (1, 2, 3, 4):
        await client.expect(wire.PUBCOMP, packet_id=number)
        await watcher.expect_message(topic, b"%d" % number)
    await watcher.quiet()


@both
@covers("MQTT-4.3.3-10", "MQTT-4.4.0-1")
@covers311("MQTT-4.3.3-2", "MQTT-4.4.0-1")
async def test_an_open_qos_2_publish_survives_a_return(lab: Lab, version: int) -> None:
    """The client sends it again on the next connection: acknowledged, forwarded once in all."""
    name, topic = lab.name(), lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version, client_id=name, resume=True)
    await client.send(wire.publish(topic, b"x", qos=2, packet_id=9, version=version))
    await client.expect(wire.PUBREC, packet_id=9)
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.send(wire.publish(topic, b"x", qos=2, packet_id=9, dup=True, version=version))
    await client.expect(wire.PUBREC, packet_id=9)
    await client.send(wire.ack(wire.PUBREL, 9))
    await client.expect(wire.PUBCOMP, packet_id=9, reason=0)
    await watcher.expect_message(topic, b"x")
    await watcher.quiet()


@covers("MQTT-3.7.2-1", "MQTT-4.3.3-11")
async def test_pubrel_of_an_unknown_id_is_answered(lab: Lab) -> None:
    """The decoder checks that the code is 0x00 or 0x92."""
    client = await lab.connect()
    await client.send(wire.ack(wire.PUBREL, 55))
    await client.expect(wire.PUBCOMP, packet_id=55)


@both
@covers("MQTT-4.3.2-3", "MQTT-4.4.0-1", "MQTT-3.3.1-1")
@covers311("MQTT-4.3.2-1", "MQTT-4.4.0-1", "MQTT-3.3.1-1", "MQTT-4.1.0-1")
async def test_qos_1_is_sent_again_on_return_until_acknowledged(lab: Lab, version: int) -> None:
    """And at no other time: the connection that does not acknowledge hears it once."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 1))
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"x", qos=1)
    first = await client.expect_message(topic, b"x", qos=1, dup=False)
    await client.quiet()
    for _ in range(2):
        await client.drop()
        client = await lab.connect(version, client_id=name, resume=True)
        again = await client.expect_message(topic, b"x", qos=1, dup=True, packet_id=first.packet_id)
        await client.quiet()
    await client.puback(again)
    await client.quiet()
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.quiet()


@both
@covers("MQTT-4.3.3-3", "MQTT-4.3.3-4", "MQTT-4.3.3-5", "MQTT-4.3.3-6", "MQTT-4.4.0-1", "MQTT-3.6.2-1")
@covers311("MQTT-4.3.3-1", "MQTT-4.4.0-1")
async def test_each_step_of_qos_2_is_sent_again_on_return(lab: Lab, version: int) -> None:
    """PUBLISH until PUBREC, then only PUBREL until PUBCOMP, then nothing."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 2))
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"x", qos=2)
    first = await client.expect_message(topic, b"x", qos=2, dup=False)
    number = first.packet_id or 0
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.expect_message(topic, b"x", qos=2, dup=True, packet_id=number)
    await client.send(wire.ack(wire.PUBREC, number))
    await client.expect(wire.PUBREL, packet_id=number, reason=0)
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.expect(wire.PUBREL, packet_id=number, reason=0)
    await client.quiet()
    await client.send(wire.ack(wire.PUBCOMP, number))
    await client.quiet()
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.quiet()


@both
@covers("MQTT-4.4.0-1")
@covers311("MQTT-4.4.0-1")
async def test_nothing_is_sent_again_to_a_new_session(lab: Lab, version: int) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 1))
    await client.publish(topic, b"x", qos=1)
    await client.expect_message(topic, b"x")
    await client.drop()
    client = await lab.connect(version, client_id=name, clean=True)
    await client.quiet()


@pytest.mark.parametrize("qos", [1, 2])
@covers("MQTT-4.4.0-2", "MQTT-4.3.3-4")
async def test_a_refused_message_is_not_sent_again(lab: Lab, qos: int) -> None:
    """PUBACK or PUBREC with an error ends it: no PUBREL, no repeat on return."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(client_id=name, resume=True)
    await client.subscribe((topic, qos))
    publisher = await lab.connect()
    await publisher.publish(topic, b"x", qos=qos)
    message = await client.expect_message(topic, b"x", qos=qos)
    await client.send(wire.ack(wire.PUBACK if qos == 1 else wire.PUBREC, message.packet_id or 0, 0x83))
    await client.quiet()
    await client.drop()
    client = await lab.connect(client_id=name, resume=True)
    await client.quiet()


@both
@pytest.mark.parametrize("flags", [0, 1, 3, 6])
@covers("MQTT-3.6.1-1")
@covers311("MQTT-3.6.1-1")
async def test_pubrel_flags_are_checked(lab: Lab, version: int, flags: int) -> None:
    client = await lab.connect(version)
    await client.send(wire.publish(lab.topic(), b"x", qos=2, packet_id=3, version=version))
    await client.expect(wire.PUBREC)
    await client.send(wire.packet(wire.PUBREL, flags, b"\x00\x03"))
    await client.expect_closed(MALFORMED)


async def _collect(client: Client, topic: str, count: int) -> list[bytes]:
    payloads = []
    for _ in range(count):
        message = await client.expect_message(topic)
        payloads.append(message.payload)
        if message.qos:
            await client.acknowledge(message)
    return payloads


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("MQTT-4.6.0-5", "MQTT-4.6.0-6")
@covers311("MQTT-4.6.0-5", "MQTT-4.6.0-6")
async def test_one_publishers_messages_stay_in_order(lab: Lab, version: int, qos: int) -> None:
    """Two publishers at once: each one's messages arrive in its order, live and from a queue."""
    name, topic = lab.name(), lab.topic()
    queued = await lab.connect(version, client_id=name, resume=True)
    live = await lab.connect(version)
    for client in (queued, live):
        await client.subscribe((topic, qos))
    await queued.disconnect()
    publishers = [await lab.connect(version) for _ in range(2)]
    for number in range(1, 51):
        for which, publisher in enumerate(publishers):
            packet_id = number if qos else None
            payload = b"%d %d" % (which, number)
            await publisher.send(
                wire.publish(topic, payload, qos=qos, packet_id=packet_id, version=version),
                wire.ack(wire.PUBREL, number) if qos == 2 else b"",
            )
    seen = await _collect(live, topic, 100)
    queued = await lab.connect(version, client_id=name, resume=True)
    waited = await _collect(queued, topic, 100) if qos else []
    for payloads in [seen] + ([waited] if qos else []):
        for origin in (b"0", b"1"):
            mine = [int(payload.split()[1]) for payload in payloads if payload.startswith(origin)]
            assert mine == list(range(1, 51))


@both
@covers("MQTT-4.6.0-5")
@covers311("MQTT-4.6.0-6")
async def test_messages_are_sent_again_in_their_order(lab: Lab, version: int) -> None:
    """Both QoS, some acknowledged in between: the repeat keeps the first order, and PUBREL follows PUBREC."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 2))
    publisher = await lab.connect(version)
    for number in range(8):
        await publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
    first = [await client.expect_message(topic) for _ in range(8)]
    await client.puback(first[2])
    await client.drop()
    client = await lab.connect(version, client_id=name, resume=True)
    again = [await client.expect_message(topic, dup=True) for _ in range(7)]
    for qos in (1, 2):
        wanted = [m.payload for m in first if m.qos == qos and m is not first[2]]
        assert [m.payload for m in again if m.qos == qos] == wanted
    second = [message for message in again if message.qos == 2]
    await client.send(*(wire.ack(wire.PUBREC, message.packet_id or 0) for message in second))
    for message in second:
        await client.expect(wire.PUBREL, packet_id=message.packet_id)


@both
@covers("MQTT-4.6.0-5", "MQTT-4.3.2-4", "MQTT-4.3.3-8")
@covers311("MQTT-4.6.0-6", "MQTT-4.3.2-2", "MQTT-4.3.3-2")
async def test_answers_to_publishes_come_in_their_order(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    ids = [5, 3, 9, 1, 200, 100]
    for qos, answer in ((1, wire.PUBACK), (2, wire.PUBREC)):
        await client.send(
            *(wire.publish(topic, b"x", qos=qos, packet_id=number, version=version) for number in ids)
        )
        for number in ids:
            await client.expect(answer, packet_id=number)
    await client.send(*(wire.ack(wire.PUBREL, number) for number in ids))
    for number in ids:
        await client.expect(wire.PUBCOMP, packet_id=number)
