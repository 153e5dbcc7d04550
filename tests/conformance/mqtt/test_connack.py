"""Section 3.2 and the properties of CONNECT: what is told and agreed, and that it holds afterwards."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import ALIAS_INVALID, PROTOCOL_ERROR, TOO_LARGE


def told(client: Client, name: str, default: int = 0) -> int:
    assert client.connack is not None
    value: int = client.connack.props.get(name, default)
    return value


@both
@covers("MQTT-3.2.2-1", "MQTT-3.2.2-2", "MQTT-3.2.2-8", "MQTT-3.1.4-5")
@covers311("MQTT-3.2.2-1", "MQTT-3.1.4-4")
async def test_connack_is_well_formed(lab: Lab, version: int) -> None:
    client = await lab.connect(version)
    assert client.connack is not None
    assert client.connack.body[:2] == b"\x00\x00"
    if version == 4:
        assert len(client.connack.body) == 2


@covers("MQTT-3.2.2-6", "MQTT-3.2.2-7", "MQTT-3.2.2-8", "MQTT-3.1.4-2", "MQTT-4.13.2-1")
async def test_a_refusal_says_no_session_even_where_there_is_one(lab: Lab) -> None:
    name = lab.name()
    client = await lab.connect(client_id=name, resume=True)
    await client.disconnect()
    client = await lab.open()
    props = {"auth_method": "no such method", "session_expiry": 300}
    await client.send(wire.connect(name, clean=False, props=props))
    await client.expect_refused(wire.BAD_AUTHENTICATION_METHOD, wire.NOT_AUTHORIZED, silently=False)


@covers("MQTT-3.2.2-9", "MQTT-3.2.2-10")
async def test_the_maximum_qos_told_is_the_one_served(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    top = told(client, "maximum_qos", 2)
    granted = await client.subscribe((topic + "/0", 0), (topic + "/1", 1), (topic + "/2", 2))
    assert granted.reasons == (0, min(1, top), min(2, top))
    for qos in range(top + 1):
        await client.publish(f"{topic}/{qos}", b"x", qos=qos)
        message = await client.expect_message(f"{topic}/{qos}", b"x", qos=qos)
        if qos:
            await client.acknowledge(message)


@pytest.mark.parametrize("asked", [{}, {"request_response": 0}], ids=["absent", "0"])
@covers("MQTT-3.1.2-28")
async def test_no_response_information_unless_requested(lab: Lab, asked: dict[str, int]) -> None:
    client = await lab.connect(props=asked)
    assert client.connack is not None
    assert "response_information" not in client.connack.props


@covers("MQTT-3.1.2-29", "MQTT-3.4.2-1", "MQTT-3.9.3-2", "MQTT-3.11.3-2", "MQTT-3.7.2-1")
async def test_no_problem_information_unless_requested(lab: Lab) -> None:
    """Answers to requests that fail in part; the client checks that none carries a diagnosis."""
    client = await lab.connect(props={"request_problem": 0})
    await client.send(wire.publish(lab.topic(), qos=1, packet_id=1))
    await client.expect(wire.PUBACK, packet_id=1)
    await client.send(wire.ack(wire.PUBREL, 77))
    await client.expect(wire.PUBCOMP, packet_id=77)
    await client.send(wire.unsubscribe(2, lab.topic()))
    await client.expect(wire.UNSUBACK, packet_id=2, reasons=(0x11,))
    await client.send(wire.subscribe(3, ("$share/g/" + lab.topic(), 1)))
    await client.expect(wire.SUBACK, packet_id=3)


# The longest header: CONNACK with every property that the broker may want to tell, but no strings.
SMALL_BYTES = 60


@covers("MQTT-3.1.2-24", "MQTT-3.2.2-19", "MQTT-3.2.2-20", "MQTT-3.4.2-2", "MQTT-3.4.2-3", "MQTT-3.5.2-2")
@covers("MQTT-3.5.2-3", "MQTT-3.7.2-2", "MQTT-3.7.2-3", "MQTT-3.9.2-1", "MQTT-3.9.2-2", "MQTT-3.11.2-1")
@covers("MQTT-3.11.2-2", "MQTT-3.14.2-3", "MQTT-3.14.2-4")
async def test_no_answer_breaks_the_maximum_packet_size(lab: Lab) -> None:
    """Every kind of answer, most of them to something that failed; the client checks each one's size."""
    client = await lab.connect(props={"maximum_packet_size": SMALL_BYTES})
    await client.send(wire.publish(lab.topic(), qos=1, packet_id=1))
    await client.expect(wire.PUBACK, packet_id=1)
    await client.send(wire.publish(lab.topic(), qos=2, packet_id=2))
    await client.expect(wire.PUBREC, packet_id=2)
    await client.send(wire.ack(wire.PUBREL, 99))
    await client.expect(wire.PUBCOMP, packet_id=99)
    await client.send(wire.subscribe(3, (lab.topic(), 0)))
    await client.expect(wire.SUBACK, packet_id=3)
    await client.send(wire.unsubscribe(4, lab.topic()))
    await client.expect(wire.UNSUBACK, packet_id=4, reasons=(0x11,))
    await client.send(wire.publish("wild/#", b"x"))
    await client.expect_closed(wire.TOPIC_INVALID, wire.MALFORMED, PROTOCOL_ERROR)


@covers("MQTT-3.6.2-2", "MQTT-3.6.2-3", "MQTT-3.6.2-1")
async def test_pubrel_fits_the_maximum_packet_size(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect(props={"maximum_packet_size": SMALL_BYTES})
    await client.subscribe((topic, 2))
    publisher = await lab.connect()
    await publisher.publish(topic, b"x", qos=2)
    message = await client.expect_message(topic, b"x", qos=2)
    await client.send(wire.ack(wire.PUBREC, message.packet_id or 0))
    await client.expect(wire.PUBREL, packet_id=message.packet_id, reason=0)


@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("MQTT-3.1.2-24", "MQTT-3.1.2-25")
async def test_a_message_too_large_counts_as_sent(lab: Lab, qos: int) -> None:
    """More of them than the window holds; the small one still arrives, in a session that then has nothing."""
    name, topic = lab.name(), lab.topic()
    props = {"maximum_packet_size": 200, "receive_maximum": 2}
    client = await lab.connect(client_id=name, resume=True, props=props)
    await client.subscribe((topic, qos))
    publisher = await lab.connect()
    for _ in range(4):
        await publisher.publish(topic, b"L" * 300, qos=qos)
    await publisher.publish(topic, b"small", qos=qos)
    message = await client.expect_message(topic, b"small", qos=qos)
    if qos:
        await client.acknowledge(message)
    await client.disconnect()
    client = await lab.connect(client_id=name, resume=True)
    await client.quiet()


@covers("MQTT-3.2.2-15", "MQTT-4.13.1-1")
async def test_a_packet_above_the_servers_maximum_closes(lab: Lab) -> None:
    """The length alone tells; the broker need not wait for the bytes."""
    client = await lab.connect()
    top = told(client, "maximum_packet_size")
    assert top, "no Maximum Packet Size told"
    await client.send(b"\x30" + wire.varint(top) + wire.string(lab.topic()))
    await client.expect_closed(TOO_LARGE)


@covers("MQTT-3.2.2-15")
async def test_a_packet_at_the_servers_maximum_is_served(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    top = told(client, "maximum_packet_size")
    assert top, "no Maximum Packet Size told"
    await client.subscribe((topic, 1))
    overhead = len(wire.publish(topic, b"x" * 300_000)) - 300_000
    await client.publish(topic, b"x" * (top - overhead))
    seen = await client.expect_message(topic)
    assert seen.size == top


@pytest.mark.parametrize("value", [0, None], ids=["0", "above the maximum"])
@covers("MQTT-3.3.2-8", "MQTT-3.3.2-9", "MQTT-3.2.2-17")
async def test_a_wrong_topic_alias_closes(lab: Lab, value: int | None) -> None:
    client = await lab.connect()
    alias = told(client, "topic_alias_maximum") + 1 if value is None else value
    await client.send(wire.publish(lab.topic(), b"x", props={"topic_alias": alias}))
    # The code is named for what is above the maximum; 0 is merely not permitted.
    await client.expect_closed(ALIAS_INVALID, *([] if value is None else [PROTOCOL_ERROR, wire.MALFORMED]))


@covers("MQTT-3.3.2-12")
async def test_every_topic_alias_up_to_the_maximum_is_accepted(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic + "/+", 0))
    top = told(client, "topic_alias_maximum")
    assert top, "no Topic Alias Maximum told"
    aliases = {1, 2, top // 2 or 1, top}
    for alias in aliases:
        await client.publish(f"{topic}/{alias}", b"set", props={"topic_alias": alias})
        await client.expect_message(f"{topic}/{alias}", b"set")
    for alias in aliases:
        await client.publish("", b"used", props={"topic_alias": alias})
        await client.expect_message(f"{topic}/{alias}", b"used")


@covers("MQTT-3.3.2-12")
async def test_a_topic_alias_can_be_set_again(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic + "/+", 0))
    for tail in ("/a", "/b"):
        await client.publish(topic + tail, b"set", props={"topic_alias": 1})
        await client.expect_message(topic + tail, b"set")
    await client.publish("", b"used", props={"topic_alias": 1})
    await client.expect_message(topic + "/b", b"used")


@covers("MQTT-3.3.2-7")
async def test_topic_aliases_end_with_the_connection(lab: Lab) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(client_id=name, resume=True)
    await client.publish(topic, b"set", props={"topic_alias": 1})
    await client.disconnect()
    client = await lab.connect(client_id=name, resume=True)
    await client.send(wire.publish("", b"used", props={"topic_alias": 1}))
    await client.expect_closed(PROTOCOL_ERROR, ALIAS_INVALID, wire.TOPIC_INVALID)


@pytest.mark.parametrize("maximum", [None, 0, 1, 3])
@covers("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11", "MQTT-3.3.2-7")
async def test_aliases_toward_a_client_stay_within_its_maximum(lab: Lab, maximum: int | None) -> None:
    """The client checks each alias; the topics must come out right with or without, also after a return."""
    name, topic = lab.name(), lab.topic()
    props = {} if maximum is None else {"topic_alias_maximum": maximum}
    publisher = await lab.connect()
    client = await lab.connect(client_id=name, resume=True, props=props)
    await client.subscribe((topic + "/+", 1))
    for round_ in range(2):
        for tail in ("/a", "/b", "/c", "/d", "/a", "/b"):
            await publisher.publish(topic + tail, tail.encode(), qos=1)
            message = await client.expect_message(topic + tail, tail.encode())
            await client.acknowledge(message)
        if round_ == 0:
            await client.disconnect()
            client = await lab.connect(client_id=name, resume=True, props=props)


@covers("MQTT-4.12.0-6")
async def test_no_authentication_method_without_one_in_connect(lab: Lab) -> None:
    client = await lab.connect()
    assert client.connack is not None
    assert "auth_method" not in client.connack.props
    await client.quiet()


ZEROS = {"receive_maximum": 0, "maximum_packet_size": 0, "request_problem": 2, "request_response": 2}


@pytest.mark.parametrize("name", ZEROS)
@covers("MQTT-3.1.4-1", "MQTT-4.9.0-1")
async def test_connect_properties_have_legal_values(lab: Lab, name: str) -> None:
    """0 where the standard asks for more, 2 where it knows 0 and 1: a protocol error."""
    client = await lab.open()
    await client.send(wire.connect(lab.name(), props={name: ZEROS[name]}))
    await client.expect_refused(PROTOCOL_ERROR, wire.MALFORMED)


@covers("MQTT-3.1.4-1")
async def test_authentication_data_without_a_method_is_refused(lab: Lab) -> None:
    client = await lab.open()
    await client.send(wire.connect(lab.name(), props={"auth_data": b"x"}))
    await client.expect_refused(PROTOCOL_ERROR, wire.MALFORMED)
