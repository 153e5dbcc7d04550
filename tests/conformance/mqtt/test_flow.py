"""Section 4.9 and the receive maximum of 3.3.4: how many QoS 1 and 2 messages may be open, either way."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import covers, covers311
from conformance.mqtt.wire import RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("maximum", [1, 3])
@pytest.mark.parametrize("qos", [1, 2])
@covers("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2", "MQTT-3.3.4-10", "MQTT-4.9.0-3")
async def test_no_more_open_messages_than_the_client_allows(lab: Lab, maximum: int, qos: int) -> None:
    """A full window holds back PUBLISH at QoS 1 and 2 and nothing else; each end opens it by one."""
    topic, other = lab.topic(), lab.topic()
    client = await lab.connect(props={"receive_maximum": maximum})
    await client.subscribe((topic, qos), (other, 0))
    publisher = await lab.connect()
    for number in range(maximum + 4):
        await publisher.publish(topic, b"%d" % number, qos=qos)
    opened = [await client.expect_message(topic, b"%d" % number) for number in range(maximum)]
    await client.quiet()
    await client.subscribe((lab.topic(), 1))
    await client.publish(lab.topic(), b"own", qos=2)
    await publisher.publish(other, b"not counted")
    await client.expect_message(other, b"not counted", qos=0)
    for number in range(maximum, maximum + 4):
        await client.acknowledge(opened.pop(0))
        opened.append(await client.expect_message(topic, b"%d" % number))
        await client.quiet()


@covers("MQTT-4.9.0-2", "MQTT-3.3.4-9")
async def test_pubrec_with_an_error_opens_the_window(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect(props={"receive_maximum": 1})
    await client.subscribe((topic, 2))
    publisher = await lab.connect()
    for payload in (b"refused", b"next"):
        await publisher.publish(topic, payload, qos=2)
    message = await client.expect_message(topic, b"refused")
    client.open_ids.discard(message.packet_id or 0)
    await client.send(wire.ack(wire.PUBREC, message.packet_id or 0, 0x83))
    await client.expect_message(topic, b"next")


@covers("MQTT-4.9.0-2")
async def test_pubrec_alone_does_not_open_the_window(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect(props={"receive_maximum": 1})
    await client.subscribe((topic, 2))
    publisher = await lab.connect()
    for payload in (b"one", b"two"):
        await publisher.publish(topic, payload, qos=2)
    message = await client.expect_message(topic, b"one")
    await client.send(wire.ack(wire.PUBREC, message.packet_id or 0))
    await client.expect(wire.PUBREL, packet_id=message.packet_id)
    await client.quiet()
    await client.pubcomp(message)
    await client.expect_message(topic, b"two")


@covers("MQTT-4.9.0-1", "MQTT-3.3.4-9")
async def test_the_window_holds_after_a_return(lab: Lab) -> None:
    """What is sent again counts, and the new connection's maximum holds."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(client_id=name, resume=True, props={"receive_maximum": 4})
    await client.subscribe((topic, 1))
    publisher = await lab.connect()
    for number in range(6):
        await publisher.publish(topic, b"%d" % number, qos=1)
    for number in range(4):
        await client.expect_message(topic, b"%d" % number)
    await client.drop()
    client = await lab.connect(client_id=name, resume=True, props={"receive_maximum": 2})
    for number in range(0, 6, 2):
        opened = [await client.expect_message(topic, b"%d" % (number + step)) for step in range(2)]
        await client.quiet()
        for message in opened:
            await client.puback(message)
    await client.quiet()


@covers("MQTT-3.3.4-7", "MQTT-4.13.1-1")
async def test_more_than_the_servers_receive_maximum_closes(lab: Lab) -> None:
    """QoS 2 publishes stay open until PUBREL, so their number is the client's to decide."""
    topic = lab.topic()
    client = await lab.connect()
    assert client.connack is not None
    maximum = client.connack.props.get("receive_maximum", 65_535)
    packets = [wire.publish(topic, b"", qos=2, packet_id=number) for number in range(1, maximum + 1)]
    await client.send(*packets)
    for number in range(1, maximum + 1):
        await client.expect(wire.PUBREC, packet_id=number)
    if maximum < 65_535:
        await client.send(wire.publish(topic, b"", qos=2, packet_id=maximum + 1))
        seen = await client.receive()
        if seen.kind == wire.PUBREC:  # no rule forbids to answer what is then punished
            seen = await client.receive()
        client.pending.append(seen)
        await client.expect_closed(RECEIVE_MAXIMUM_EXCEEDED)


@covers("MQTT-3.3.4-7")
async def test_finished_publishes_do_not_count(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    assert client.connack is not None
    maximum = min(client.connack.props.get("receive_maximum", 65_535), 2_000)
    for start in (1, maximum + 1):
        ids = range(start, start + maximum)
        await client.send(*(wire.publish(topic, b"", qos=1, packet_id=number) for number in ids))
        for number in ids:
            await client.expect(wire.PUBACK, packet_id=number)
    await client.quiet()


@covers311("MQTT-4.8.0-2")
async def test_a_flood_is_served_or_ends_its_own_connection(lab: Lab) -> None:
    """MQTT 3.1.1 knows no window: 20,000 open publishes are answered in order, or that connection ends."""
    topic = lab.topic()
    other = await lab.connect(wire.V311)
    client = await lab.connect(wire.V311)
    count = 20_000
    await client.send(
        *(wire.publish(topic, b"", qos=2, packet_id=number, version=4) for number in range(1, count + 1))
    )
    try:
        for number in range(1, count + 1):
            await client.expect(wire.PUBREC, packet_id=number)
    except AssertionError:
        await client.expect_closed()
    await other.quiet()
