"""Section 3.3.1.3: what is retained, what a subscription gets of it, and the RETAIN flag on the way out."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import options


async def retained(lab: Lab, version: int, topic: str) -> list[tuple[bytes, int]]:
    """What a fresh client gets for subscribing: (payload, QoS) of each retained message."""
    client = await lab.connect(version)
    await client.subscribe((topic, 2))
    return [(message.payload, message.qos) for message in await _arrived(client)]


async def _arrived(client: Client) -> list[wire.Packet]:
    """What is under way to this client: a message on a topic of its own tells that the rest has come."""
    marker = f"marker/{client.client_id}"
    before = await client.ping()
    await client.subscribe((marker, 0))
    await client.send(wire.publish(marker, b"", version=client.version))
    while (seen := await client.expect(wire.PUBLISH)).topic != marker:
        before.append(seen)
    return before


@both
@covers("MQTT-3.3.1-5", "MQTT-3.3.1-9")
@covers311("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7")
async def test_the_last_retained_message_is_kept_with_its_qos(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    for qos in (0, 1, 2):
        await client.publish(topic, b"at %d" % qos, qos=qos, retain=True)
        assert await retained(lab, version, topic) == [(b"at %d" % qos, qos)]
    await client.publish(topic, b"last", qos=0, retain=True)
    assert await retained(lab, version, topic) == [(b"last", 0)]
    await client.publish(topic, b"", retain=True)


@both
@covers("MQTT-3.3.1-9")
@covers311("MQTT-3.3.1-6")
async def test_every_matching_topic_sends_its_retained_message(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    for tail in ("/a", "/b", "/b/c", ""):
        await client.publish(topic + tail, tail.encode() or b"root", qos=1, retain=True)
    assert sorted(await retained(lab, version, topic + "/+")) == [(b"/a", 1), (b"/b", 1)]
    found = [payload for payload, _ in await retained(lab, version, topic + "/#")]
    assert sorted(found) == [b"/a", b"/b", b"/b/c", b"root"]
    for tail in ("/a", "/b", "/b/c", ""):
        await client.publish(topic + tail, b"", retain=True)


@both
@covers("MQTT-3.3.1-6", "MQTT-3.3.1-7")
@covers311("MQTT-3.3.1-10", "MQTT-3.3.1-11")
async def test_an_empty_payload_clears_and_is_forwarded_but_not_kept(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 1))
    client = await lab.connect(version)
    await client.publish(topic, b"", qos=1, retain=True)
    message = await watcher.expect_message(topic, b"")
    await watcher.acknowledge(message)
    assert await retained(lab, version, topic) == []
    await client.publish(topic, b"x", qos=1, retain=True)
    await client.publish(topic, b"", qos=1, retain=True)
    await watcher.expect_message(topic, b"x")
    await watcher.expect_message(topic, b"")
    assert await retained(lab, version, topic) == []


@both
@pytest.mark.parametrize("payload", [b"live", b""], ids=["payload", "empty"])
@covers("MQTT-3.3.1-8")
@covers311("MQTT-3.3.1-12")
async def test_without_the_flag_nothing_is_stored_or_removed(lab: Lab, version: int, payload: bytes) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.publish(topic, payload, qos=1)
    assert await retained(lab, version, topic) == []
    await client.publish(topic, b"kept", qos=1, retain=True)
    await client.publish(topic, payload, qos=1)
    assert await retained(lab, version, topic) == [(b"kept", 1)]
    await client.publish(topic, b"", retain=True)


@covers("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-4")
async def test_retain_handling(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.publish(topic, b"kept", qos=1, retain=True)
    for handling, new, again in ((0, True, True), (1, True, False), (2, False, False)):
        subscriber = await lab.connect()
        for wanted in (new, again):
            await subscriber.subscribe((topic, options(0, handling=handling)))
            got = [message.payload for message in await _arrived(subscriber)]
            assert got == ([b"kept"] if wanted else []), f"handling {handling}, new {wanted is new}"
    await client.publish(topic, b"", retain=True)


@covers("MQTT-3.3.1-10")
async def test_retain_handling_1_after_a_return_finds_the_subscription(lab: Lab) -> None:
    name, topic = lab.name(), lab.topic()
    client = await lab.connect(client_id=name, resume=True)
    await client.publish(topic, b"kept", qos=1, retain=True)
    await client.subscribe((topic, options(0, handling=2)))
    await client.disconnect()
    client = await lab.connect(client_id=name, resume=True)
    await client.subscribe((topic, options(0, handling=1)))
    assert await _arrived(client) == []
    await client.publish(topic, b"", retain=True)


@pytest.mark.parametrize("share", [False, True], ids=["plain", "shared"])
@covers("MQTT-3.3.1-12", "MQTT-3.3.1-13")
async def test_retain_as_published(lab: Lab, share: bool) -> None:
    topic = lab.topic()
    prefix, other = (f"$share/{lab.name()}/" if share else "" for _ in range(2))
    publisher = await lab.connect()
    plain, faithful = await lab.connect(), await lab.connect()
    await plain.subscribe((prefix + topic, options(1)))
    await faithful.subscribe((other + topic, options(1, as_published=True)))
    for qos in (0, 1):
        for retain in (True, False):
            await publisher.publish(topic, b"x", qos=qos, retain=retain)
            await plain.expect_message(topic, b"x", retain=False)
            await faithful.expect_message(topic, b"x", retain=retain)
    await publisher.publish(topic, b"", retain=True)


@both
@covers("MQTT-3.3.1-12")
@covers311("MQTT-3.3.1-8", "MQTT-3.3.1-9")
async def test_the_flag_tells_a_stored_message_from_a_live_one(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    await client.subscribe((topic, 0))
    await client.publish(topic, b"x", retain=True)
    await client.expect_message(topic, b"x", retain=False)
    late = await lab.connect(version)
    await late.subscribe((topic, 0))
    await late.expect_message(topic, b"x", retain=True)
    await client.publish(topic, b"", retain=True)


@covers("MQTT-3.3.1-9")
async def test_a_shared_subscription_gets_no_retained_messages(lab: Lab) -> None:
    topic = lab.topic()
    client = await lab.connect()
    await client.publish(topic, b"kept", retain=True)
    await client.subscribe((f"$share/{lab.name()}/{topic}", 0))
    assert await _arrived(client) == []
    await client.publish(topic, b"", retain=True)
