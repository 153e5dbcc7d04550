"""Section 4.8.2: shared subscriptions."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Lab
from conformance.mqtt.table import covers
from conformance.mqtt.wire import FILTER_INVALID, MALFORMED, PROTOCOL_ERROR, Packet


@pytest.mark.parametrize(
    "name", ["$share/", "$share//a", "$share/g", "$share/g/", "$share/g+/a", "$share/#/a", "$share/+/a"]
)
@covers("MQTT-4.8.2-1", "MQTT-4.8.2-2")
async def test_an_illegal_shared_filter_is_refused(lab: Lab, name: str) -> None:
    """Not granted as a shared subscription: an error code in SUBACK, or the end of the connection."""
    client = await lab.connect()
    await client.send(wire.subscribe(1, (name, 0)))
    seen = await client.receive()
    if seen.kind == wire.SUBACK:
        assert seen.reasons in ((FILTER_INVALID,), (0x80,), (0x83,), (0x87,)), f"got {seen}"
    else:
        assert seen.kind == wire.DISCONNECT, f"got {seen}"
        assert seen.reason in (MALFORMED, PROTOCOL_ERROR, FILTER_INVALID), f"got {seen}"


async def _pair(lab: Lab, topic: str, qos: int, *, resume: bool = False) -> tuple[list[Client], Client]:
    """Two members of a new group, and a publisher."""
    shared = f"$share/{lab.name()}/{topic}"
    members = [await lab.connect(resume=resume) for _ in range(2)]
    for member in members:
        await member.subscribe((shared, qos))
    return members, await lab.connect()


async def _drained(members: list[Client], topic: str, publisher: Client) -> list[list[Packet]]:
    """What each member got so far, acknowledged; a direct marker tells the end."""
    got: list[list[Packet]] = []
    for member in members:
        marker = f"marker/{member.client_id}"
        await member.subscribe((marker, 0))
        await publisher.publish(marker, b"")
        mine = []
        while (seen := await member.expect(wire.PUBLISH)).topic != marker:
            assert seen.topic == topic
            mine.append(seen)
            if seen.qos:
                await member.acknowledge(seen)
        got.append(mine)
    return got


@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("MQTT-4.8.2-1", "MQTT-4.8.2-3")
async def test_each_message_goes_to_one_member_of_each_group(lab: Lab, qos: int) -> None:
    """And to every ordinary subscriber as well."""
    topic = lab.topic()
    members, publisher = await _pair(lab, topic, qos)
    alone = await lab.connect()
    await alone.subscribe((f"$share/{lab.name()}/{topic}", qos))
    plain = await lab.connect()
    await plain.subscribe((topic, qos))
    wanted = [b"%d" % number for number in range(10)]
    for payload in wanted:
        await publisher.publish(topic, payload, qos=qos)
    first, second, single, ordinary = await _drained([*members, alone, plain], topic, publisher)
    assert sorted(seen.payload for seen in first + second) == wanted
    assert [seen.payload for seen in single] == wanted
    assert [seen.payload for seen in ordinary] == wanted
    assert {seen.qos for seen in first + second + single + ordinary} == {qos}


@covers("MQTT-4.8.2-3")
async def test_each_member_is_served_at_its_own_qos(lab: Lab) -> None:
    topic = lab.topic()
    shared = f"$share/{lab.name()}/{topic}"
    low, high = await lab.connect(), await lab.connect()
    await low.subscribe((shared, 0))
    await high.subscribe((shared, 1))
    publisher = await lab.connect()
    for number in range(10):
        await publisher.publish(topic, b"%d" % number, qos=2)
    first, second = await _drained([low, high], topic, publisher)
    assert len(first) + len(second) == 10
    assert {seen.qos for seen in first} <= {0}
    assert {seen.qos for seen in second} <= {1}


@covers("MQTT-4.8.2-2")
async def test_the_share_name_is_no_part_of_the_filter(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    shared = f"$share/{lab.name()}/{topic}/+/x"
    await client.subscribe((shared, 0))
    await client.publish(topic + "/a/x", b"yes")
    await client.expect_message(topic + "/a/x", b"yes")
    await client.unsubscribe(topic + "/+/x")
    await client.publish(topic + "/b/x", b"still")
    await client.expect_message(topic + "/b/x", b"still")
    await client.unsubscribe(shared)
    await client.publish(topic + "/c/x", b"gone")
    await client.quiet()


async def _begun(lab: Lab, topic: str, qos: int) -> tuple[Client, Client, Client, Packet]:
    """A delivery that has begun to one of two members: (that one, the other, the publisher, the message)."""
    members, publisher = await _pair(lab, topic, qos, resume=True)
    await publisher.publish(topic, b"x", qos=qos)
    first, second = members
    arrived = await first.ping() + [None]
    message = arrived[0]
    if message is None:
        try:
            message = await first.expect(wire.PUBLISH, within_s=0.05)
        except AssertionError:
            first, second = second, first
            message = await first.expect(wire.PUBLISH)
    assert message.payload == b"x"
    return first, second, publisher, message


@covers("MQTT-4.8.2-4")
async def test_a_qos_2_delivery_is_completed_to_the_same_member(lab: Lab) -> None:
    topic = lab.topic()
    first, second, _, message = await _begun(lab, topic, 2)
    name = first.client_id
    await first.drop()
    await second.quiet()
    first = await lab.connect(client_id=name, resume=True)
    again = await first.expect_message(topic, b"x", qos=2, dup=True, packet_id=message.packet_id)
    await first.acknowledge(again)
    await second.quiet()


@covers("MQTT-4.8.2-5")
async def test_a_qos_2_delivery_goes_to_nobody_else_when_the_session_ends(lab: Lab) -> None:
    """Beside QoS 1 messages, which may go to another member, before the newer one."""
    topic = lab.topic()
    shared = f"$share/{lab.name()}/{topic}"
    publisher, first, second = await lab.connect(), await lab.connect(resume=True), await lab.connect()
    await first.subscribe((shared, 2))
    for number in range(6):
        await publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
        await first.expect_message(topic, b"%d" % number)
    await second.subscribe((shared, 2))
    await first.disconnect(0, {"session_expiry": 0})
    await publisher.publish(topic, b"next", qos=2)
    (got,) = await _drained([second], topic, publisher)
    assert {seen.payload for seen in got if seen.qos == 2} == {b"next"}


@pytest.mark.parametrize("qos", [1, 2])
@covers("MQTT-4.8.2-6")
async def test_a_refused_message_goes_to_nobody_else(lab: Lab, qos: int) -> None:
    topic = lab.topic()
    first, second, _, message = await _begun(lab, topic, qos)
    answer = wire.PUBACK if qos == 1 else wire.PUBREC
    await first.send(wire.ack(answer, message.packet_id or 0, 0x80))
    await first.quiet()
    await second.quiet()
