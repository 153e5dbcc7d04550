"""Sections 3.14, 3.15, 4.12 and 4.13: goodbyes, AUTH, and how errors end a connection."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import (
    BAD_AUTHENTICATION_METHOD,
    MALFORMED,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    TAKEN_OVER,
)


@both
@pytest.mark.parametrize("flags", [1, 2, 8])
@covers("MQTT-3.14.1-1")
@covers311("MQTT-3.14.1-1")
async def test_disconnect_flags_are_checked(lab: Lab, version: int, flags: int) -> None:
    """It is an error and no goodbye: the will is published."""
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version, will=wire.Will(topic=topic))
    await client.send(wire.packet(wire.DISCONNECT, flags))
    await client.expect_closed(MALFORMED)
    await watcher.expect_message(topic, b"will")


@both
@covers("MQTT-3.14.4-1", "MQTT-3.14.4-2")
@covers311("MQTT-3.14.4-1", "MQTT-3.14.4-2")
async def test_nothing_after_a_goodbye_is_processed(lab: Lab, version: int) -> None:
    """The broker closes its end as well, without an answer."""
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.connect(version)
    await client.send(wire.disconnect(), wire.publish(topic, b"x", version=version), wire.PING)
    await client.expect_closed()
    await watcher.quiet()


@covers("MQTT-3.14.2-1", "MQTT-3.14.2-2", "MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-4.13.2-1")
async def test_the_brokers_goodbye_is_its_last_word(lab: Lab) -> None:
    """The decoder knows which reasons and properties a server may use; nothing follows but the close."""
    name, topic = lab.name(), lab.topic()
    first = await lab.connect(client_id=name, resume=True)
    await first.subscribe((topic, 1))
    publisher = await lab.connect()
    second = await lab.connect(client_id=name, resume=True)
    await publisher.publish(topic, b"x", qos=1)
    told = await first.expect_closed(TAKEN_OVER)
    assert told is None or "session_expiry" not in told.props
    await second.expect_message(topic, b"x")


@pytest.mark.parametrize("flags", [1, 2, 8])
@covers("MQTT-3.15.1-1")
async def test_auth_flags_are_checked(lab: Lab, flags: int) -> None:
    client = await lab.connect()
    await client.send(wire.auth(0x18, {"auth_method": "x"}, flags=flags))
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("reason", [0x01, 0x18, 0x19, 0x80])
@covers("MQTT-4.12.0-7", "MQTT-4.12.1-1", "MQTT-4.12.1-2", "MQTT-3.15.2-1")
async def test_auth_without_a_method_in_connect_closes(lab: Lab, reason: int) -> None:
    """Also as a re-authentication (0x19), which fails for want of a first one."""
    client = await lab.connect()
    await client.send(wire.auth(reason, {"auth_method": "x"}))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED, BAD_AUTHENTICATION_METHOD, NOT_AUTHORIZED)


@covers("MQTT-4.12.0-1", "MQTT-4.12.0-4", "MQTT-3.1.4-2", "MQTT-3.2.2-7")
async def test_an_unknown_authentication_method_is_refused(lab: Lab) -> None:
    client = await lab.open()
    await client.send(wire.connect(lab.name(), props={"auth_method": "NO-SUCH-METHOD", "auth_data": b"x"}))
    await client.expect_refused(BAD_AUTHENTICATION_METHOD, NOT_AUTHORIZED)


UNPARSEABLE = {
    "packet type 0": b"\x00\x00",
    "string longer than its packet": b"\x30\x05\x00\x09abc",
    "subscribe cut in a filter": b"\x82\x06\x00\x01\x00\x09ab",
    "pubrel without an id": b"\x62\x00",
    "pingreq with a body": b"\xc0\x01\x00",
}


@both
@pytest.mark.parametrize("case", UNPARSEABLE)
@covers("MQTT-4.13.1-1", "MQTT-4.13.2-1")
@covers311("MQTT-4.8.0-1")
async def test_what_cannot_be_parsed_ends_its_connection_only(lab: Lab, version: int, case: str) -> None:
    topic = lab.topic()
    other = await lab.connect(version)
    await other.subscribe((topic, 0))
    client = await lab.connect(version)
    await client.send(UNPARSEABLE[case])
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR)
    await other.publish(topic, b"x")
    await other.expect_message(topic, b"x")


@both
@pytest.mark.parametrize("kind", [wire.CONNACK, wire.SUBACK, wire.UNSUBACK, wire.PINGRESP])
@covers("MQTT-4.13.1-1")
@covers311("MQTT-4.8.0-1")
async def test_a_servers_packet_from_a_client_closes(lab: Lab, version: int, kind: int) -> None:
    answer = b"\x00\x01\x00\x00"
    bodies = {wire.CONNACK: b"\x00\x00\x00", wire.SUBACK: answer, wire.UNSUBACK: answer}
    client = await lab.connect(version)
    await client.send(wire.packet(kind, 0, bodies.get(kind, b"")))
    await client.expect_closed(PROTOCOL_ERROR, MALFORMED)


@covers311("MQTT-4.8.0-1")
async def test_auth_is_unknown_to_311(lab: Lab) -> None:
    client = await lab.connect(wire.V311)
    await client.send(b"\xf0\x00")
    await client.expect_closed()


BAD_PROPERTIES = {
    "unknown": b"\x02\x7f\x00",
    "longer than the packet": b"\x40\x01\x00",
    "length cut": b"\xff",
    "value cut": b"\x02\x02\x00",
    "flag neither 0 nor 1": b"\x02\x01\x02",
}


@pytest.mark.parametrize("case", BAD_PROPERTIES)
@covers("MQTT-4.13.1-1")
async def test_broken_properties_close(lab: Lab, case: str) -> None:
    client = await lab.connect()
    await client.send(wire.publish(lab.topic(), b"", props=BAD_PROPERTIES[case]))
    await client.expect_closed(MALFORMED, PROTOCOL_ERROR, 0x99)
