"""Sections 3.1.2 and 4.1: which session a CONNECT gets, what it keeps and when it ends."""

import asyncio
import time

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Lab, let_time_pass
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import PROTOCOL_ERROR, Will


def present(client: Client) -> bool:
    assert client.connack is not None
    return client.connack.session_present


@both
@covers("MQTT-3.1.2-6", "MQTT-3.2.2-3", "MQTT-3.1.4-4")
@covers311("MQTT-3.1.2-4", "MQTT-3.2.2-3", "MQTT-3.1.4-3")
async def test_a_session_that_never_was_is_new(lab: Lab, version: int) -> None:
    client = await lab.connect(version, resume=True)
    assert not present(client)
    await client.quiet()


@both
@covers("MQTT-3.1.2-5", "MQTT-3.2.2-3", "MQTT-3.1.2-23", "MQTT-4.5.0-1", "MQTT-3.1.3-2", "MQTT-3.1.4-4")
@covers311("MQTT-3.1.2-4", "MQTT-3.1.2-5", "MQTT-3.2.2-2", "MQTT-4.1.0-1", "MQTT-4.5.0-1", "MQTT-3.1.3-2")
@pytest.mark.parametrize("goodbye", [True, False], ids=["disconnect", "drop"])
async def test_a_session_keeps_subscriptions_and_messages(lab: Lab, version: int, goodbye: bool) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 2))
    await (client.disconnect() if goodbye else client.drop())
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"one", qos=1)
    await publisher.publish(topic, b"two", qos=2)
    client = await lab.connect(version, client_id=name, resume=True)
    assert present(client)
    seen = {(message.payload, message.qos) for message in [await client.receive(), await client.receive()]}
    assert seen == {(b"one", 1), (b"two", 2)}
    await publisher.publish(topic, b"three")
    await client.expect_message(topic, b"three")


@both
@covers("MQTT-3.1.2-4", "MQTT-3.2.2-2", "MQTT-3.1.4-4")
@covers311("MQTT-3.1.2-6", "MQTT-3.2.2-1", "MQTT-3.1.4-3")
async def test_a_clean_start_discards_the_session(lab: Lab, version: int) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, resume=True)
    await client.subscribe((topic, 2))
    await client.disconnect()
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"queued", qos=1)
    client = await lab.connect(version, client_id=name, clean=True)
    assert not present(client)
    await publisher.publish(topic, b"live", qos=1)
    await client.quiet()
    await client.disconnect()
    client = await lab.connect(version, client_id=name, resume=True)
    assert not present(client), "the discarded session came back"
    await client.quiet()


@both
@covers("MQTT-4.1.0-2")
@covers311("MQTT-3.1.2-6")
async def test_a_session_without_expiry_ends_with_its_connection(lab: Lab, version: int) -> None:
    """MQTT 5: Session Expiry Interval absent. MQTT 3.1.1: CleanSession 1."""
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name, clean=version == 4)
    await client.subscribe((topic, 1))
    await client.disconnect()
    publisher = await lab.connect(version)
    await publisher.publish(topic, b"x", qos=1)
    client = await lab.connect(version, client_id=name, resume=True)
    assert not present(client)
    await client.quiet()


@covers("MQTT-4.1.0-2", "MQTT-3.1.2-8")
async def test_a_session_ends_when_its_expiry_has_passed(lab: Lab) -> None:
    """The will, whose delay is far longer, tells that the session has ended."""
    name, topic = lab.name(), lab.topic()
    watcher = await lab.connect()
    await watcher.subscribe((topic, 0))
    will = Will(topic=topic, props={"will_delay": 3600})
    client = await lab.connect(client_id=name, props={"session_expiry": 1}, will=will)
    await client.subscribe((topic + "/x", 1))
    await client.drop()
    await watcher.expect_message(topic, b"will")
    client = await lab.connect(client_id=name, resume=True)
    assert not present(client)


@covers("MQTT-4.1.0-1")
@covers311("MQTT-4.1.0-2")
async def test_a_session_lasts_as_long_as_its_connection(lab: Lab) -> None:
    """An expiry that is over while the connection is open means nothing."""
    topic = lab.topic()
    client = await lab.connect(props={"session_expiry": 1})
    old = await lab.connect(wire.V311)
    for each in (client, old):
        await each.subscribe((topic, 1))
    await let_time_pass(1.3)
    publisher = await lab.connect()
    await publisher.publish(topic, b"x", qos=1)
    for each in (client, old):
        await each.expect_message(topic, b"x", qos=1)


@covers("MQTT-3.1.2-23")
async def test_disconnect_may_change_the_expiry(lab: Lab) -> None:
    name = lab.name()
    client = await lab.connect(client_id=name, props={"session_expiry": 1})
    await client.disconnect(0, {"session_expiry": 300})
    client = await lab.connect(client_id=name, resume=True)
    assert present(client)
    await client.disconnect(0, {"session_expiry": 0})
    client = await lab.connect(client_id=name, resume=True)
    assert not present(client)


@covers("MQTT-4.13.1-1")
async def test_disconnect_cannot_give_an_expiry_to_a_session_that_had_none(lab: Lab) -> None:
    client = await lab.connect()
    await client.send(wire.disconnect(0, {"session_expiry": 300}))
    await client.expect_closed(PROTOCOL_ERROR)


@both
@covers("MQTT-3.3.1-5")
@covers311("MQTT-3.1.2-7")
async def test_retained_messages_outlive_the_session(lab: Lab, version: int) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(version, client_id=name)
    await client.publish(topic, b"kept", qos=1, retain=True)
    await client.disconnect()
    client = await lab.connect(version, client_id=name)
    await client.subscribe((topic, 1))
    await client.expect_message(topic, b"kept", retain=True)
    await client.publish(topic, b"", retain=True)


@both
@covers("MQTT-3.1.2-5")
@covers311("MQTT-3.1.2-4")
async def test_taking_over_resumes_the_session(lab: Lab, version: int) -> None:
    name, topic = lab.name(), lab.topic()
    first = await lab.connect(version, client_id=name, resume=True)
    await first.subscribe((topic, 1))
    second = await lab.connect(version, client_id=name, resume=True)
    assert present(second)
    await first.expect_closed(wire.TAKEN_OVER)
    await second.publish(topic, b"x")
    await second.expect_message(topic, b"x")


@both
@covers("MQTT-3.2.2-22", "MQTT-3.1.2-22", "MQTT-3.1.2-20")
@covers311("MQTT-3.1.2-24", "MQTT-3.1.2-23")
async def test_silence_beyond_the_keep_alive_closes_as_if_the_network_failed(lab: Lab, version: int) -> None:
    """The silent client goes after 3 s and its will is published; the one that pings stays."""
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    lively = await lab.connect(version, keep_alive=2)
    silent = await lab.connect(version, keep_alive=2, will=Will(topic=topic))
    ending = asyncio.ensure_future(silent.expect_closed(wire.KEEP_ALIVE_TIMEOUT, within_s=15))
    while not ending.done():
        await let_time_pass(0.3)
        await lively.quiet()
    await ending
    await watcher.expect_message(topic, b"will")


@both
@covers("MQTT-3.1.2-22")
@covers311("MQTT-3.1.2-24")
async def test_the_keep_alive_is_not_shorter_than_asked(lab: Lab, version: int) -> None:
    client = await lab.open(version)
    began_s = time.monotonic()
    await client.connect(lab.name(), keep_alive=1)
    await client.expect_closed(wire.KEEP_ALIVE_TIMEOUT)
    assert time.monotonic() - began_s >= 1.0
