"""Section 3.1.2.5 and 3.1.3.2: the will is published once, when its client goes without a goodbye."""

import time

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import Will, options


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
@covers("MQTT-3.1.2-7", "MQTT-3.1.2-8", "MQTT-3.1.2-9", "MQTT-3.1.2-12")
@covers311("MQTT-3.1.2-8", "MQTT-3.1.2-9", "MQTT-3.1.2-14")
async def test_a_lost_connection_publishes_the_will_at_its_qos(lab: Lab, version: int, qos: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 2))
    client = await lab.connect(version, will=Will(topic=topic, payload=b"gone", qos=qos))
    await watcher.quiet()
    await client.drop()
    await watcher.expect_message(topic, b"gone", qos=qos)


@both
@covers("MQTT-3.1.2-8")
@covers311("MQTT-3.1.2-8")
async def test_a_protocol_error_publishes_the_will(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version, will=Will(topic=topic))
    await client.send(b"\x00\x00")
    await client.expect_closed(wire.MALFORMED, wire.PROTOCOL_ERROR)
    await watcher.expect_message(topic, b"will")


@both
@covers("MQTT-3.1.2-10", "MQTT-3.14.4-3")
@covers311("MQTT-3.1.2-10", "MQTT-3.14.4-3")
async def test_a_goodbye_discards_the_will(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version, will=Will(topic=topic))
    await client.disconnect()
    await watcher.quiet()


@covers("MQTT-3.1.2-10", "MQTT-3.14.4-3")
async def test_only_a_normal_goodbye_discards_the_will(lab: Lab) -> None:
    """0x04 asks for the will."""
    topic = lab.topic()
    watcher = await lab.connect()
    await watcher.subscribe((topic, 0))
    client = await lab.connect(will=Will(topic=topic))
    await client.disconnect(0x04)
    await watcher.expect_message(topic, b"will")


@both
@covers("MQTT-3.1.2-10")
@covers311("MQTT-3.1.2-10", "MQTT-3.1.2-12")
async def test_a_published_will_is_gone(lab: Lab, version: int) -> None:
    """The same session without a will flag ends without a will."""
    name, topic = lab.name(), lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version, client_id=name, resume=True, will=Will(topic=topic))
    await client.drop()
    await watcher.expect_message(topic, b"will")
    client = await lab.connect(version, client_id=name, resume=True)
    await client.drop()
    await watcher.quiet()


@both
@pytest.mark.parametrize("retain", [False, True])
@covers("MQTT-3.1.2-14", "MQTT-3.1.2-15")
@covers311("MQTT-3.1.2-16", "MQTT-3.1.2-17")
async def test_the_will_is_retained_as_asked(lab: Lab, version: int, retain: bool) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, options(1, as_published=version == 5)))
    client = await lab.connect(version, will=Will(topic=topic, qos=1, retain=retain))
    await client.drop()
    await watcher.expect_message(topic, b"will", retain=retain and version == 5)
    late = await lab.connect(version)
    await late.subscribe((topic, 1))
    if retain:
        await late.expect_message(topic, b"will", retain=True)
        await late.publish(topic, b"", retain=True)
    else:
        await late.quiet()


@covers("MQTT-3.1.3-9", "MQTT-3.1.2-8")
async def test_coming_back_within_the_delay_stops_the_will(lab: Lab) -> None:
    name, topic = lab.name(), lab.topic()
    watcher = await lab.connect()
    await watcher.subscribe((topic, 0))
    will = Will(topic=topic, props={"will_delay": 3})
    client = await lab.connect(client_id=name, resume=True, will=will)
    await client.drop()
    await lab.connect(client_id=name, resume=True)
    await watcher.quiet(3.4)


@covers("MQTT-3.1.2-8")
async def test_the_will_waits_for_its_delay(lab: Lab) -> None:
    topic = lab.topic()
    watcher = await lab.connect()
    await watcher.subscribe((topic, 0))
    client = await lab.connect(resume=True, will=Will(topic=topic, props={"will_delay": 1}))
    began_s = time.monotonic()
    await client.drop()
    await watcher.expect_message(topic, b"will")
    assert time.monotonic() - began_s >= 0.99


@covers("MQTT-3.1.2-8")
async def test_the_end_of_the_session_does_not_wait_for_the_delay(lab: Lab) -> None:
    topic = lab.topic()
    watcher = await lab.connect()
    await watcher.subscribe((topic, 0))
    client = await lab.connect(will=Will(topic=topic, props={"will_delay": 3600}))
    await client.drop()
    await watcher.expect_message(topic, b"will")


@covers("MQTT-3.1.3-10", "MQTT-3.1.2-9")
async def test_the_properties_of_the_will_are_published_in_order(lab: Lab) -> None:
    topic = lab.topic()
    watcher = await lab.connect()
    await watcher.subscribe((topic, 1))
    pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("a", "2")]
    props = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": topic + "/answer",
        "correlation_data": b"\x00\xff",
        "user": pairs,
    }
    client = await lab.connect(will=Will(topic=topic, qos=1, props=props))
    await client.drop()
    seen = await watcher.expect_message(topic, b"will")
    assert seen.props == props
