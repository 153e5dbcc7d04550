"""Section 3.1: what a CONNECT must look like, whom it names and what it starts."""

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import MALFORMED, PROTOCOL_ERROR, Will, string


def refusals(version: int, *reasons: int) -> tuple[int, ...]:
    """A CONNECT that breaks the format: v5 may say why, 3.1.1 must not answer (3.1.1: 3.1.4-1)."""
    return reasons if version == 5 else ()


@both
@pytest.mark.parametrize("first", ["PINGREQ", "PUBLISH", "SUBSCRIBE", "DISCONNECT", "garbage"])
@covers("MQTT-3.1.0-1", "MQTT-3.14.0-1")
@covers311("MQTT-3.1.0-1", "MQTT-3.2.0-1")
async def test_anything_but_connect_first_closes_without_a_word(lab: Lab, version: int, first: str) -> None:
    packets = {
        "PINGREQ": wire.PING,
        "PUBLISH": wire.publish("a", b"x", version=version),
        "SUBSCRIBE": wire.subscribe(1, ("a", 0), version=version),
        "DISCONNECT": wire.disconnect(),
        "garbage": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(60),
    }
    client = await lab.open(version)
    await client.send(packets[first])
    await client.expect_refused(*refusals(version, MALFORMED, PROTOCOL_ERROR))


@both
@covers("MQTT-3.1.0-2", "MQTT-3.2.0-2")
@covers311("MQTT-3.1.0-2")
async def test_a_second_connect_closes(lab: Lab, version: int) -> None:
    name = lab.name()
    client = await lab.connect(version, client_id=name)
    await client.send(wire.connect(name, version=version))
    await client.expect_closed(PROTOCOL_ERROR)


def refuses_the_version(answer: bytes) -> bool:
    """Nothing at all, or a CONNACK in the words of 3.1.1 (0x01) or of 5 (0x84)."""
    return answer in (b"", b"\x20\x02\x00\x01") or (answer[0], answer[2:4]) == (0x20, b"\x00\x84")


@both
@pytest.mark.parametrize("protocol", ["MQTR", "mqtt", "MQTTX", ""])
@covers("MQTT-3.1.2-1")
@covers311("MQTT-3.1.2-1")
async def test_another_protocol_name_is_not_served(lab: Lab, version: int, protocol: str) -> None:
    client = await lab.open(version)
    await client.send(wire.connect(lab.name(), version=version, name=protocol), wire.PING)
    assert refuses_the_version(await client.rest())


@pytest.mark.parametrize("level", [0, 6, 77, 127])
@covers("MQTT-3.1.2-2", "MQTT-3.2.2-7")
async def test_an_unknown_version_is_refused(lab: Lab, level: int) -> None:
    client = await lab.open()
    await client.send(wire.connect(lab.name(), level=level), wire.PING)
    assert refuses_the_version(await client.rest())


@pytest.mark.parametrize("level", [0, 1, 2])
@covers311("MQTT-3.1.2-2", "MQTT-3.2.2-4", "MQTT-3.2.2-5")
async def test_an_older_level_gets_return_code_1(lab: Lab, level: int) -> None:
    client = await lab.open(wire.V311)
    await client.send(wire.connect(lab.name(), version=wire.V311, level=level))
    await client.expect_refused(1, silently=False)


@both
@covers("MQTT-3.1.2-3")
@covers311("MQTT-3.1.2-3")
async def test_the_reserved_connect_flag_is_checked(lab: Lab, version: int) -> None:
    client = await lab.open(version)
    await client.send(wire.connect(lab.name(), version=version, flags=0x03))
    await client.expect_refused(*refusals(version, MALFORMED))


def _broken_payloads(version: int) -> dict[str, bytes]:
    """CONNECT packets whose flags and payload disagree."""
    name = string("id")
    will = (b"\x00" if version == 5 else b"") + string("w") + string("p")
    cases = {
        "will missing": (0x06, name),
        "will payload missing": (0x06, name + will[:-3]),
        "will unasked": (0x02, name + will),
        "will QoS 3": (0x1E, name + will),
        "will QoS without will": (0x0A, name),
        "will retain without will": (0x22, name),
        "user name missing": (0x82, name),
        "user name unasked": (0x02, name + string("u")),
        "password missing": (0xC2, name + string("u")),
        "password unasked": (0x82, name + string("u") + string("p")),
        "client id missing": (0x02, b""),
        "client id cut": (0x02, b"\x00\x09abc"),
    }
    if version == 4:
        cases["password without user name"] = (0x42, name + string("p"))
    return {
        case: wire.connect("", version=version, flags=flags, payload=payload)
        for case, (flags, payload) in cases.items()
    }


@pytest.mark.parametrize("case", _broken_payloads(5))
@covers("MQTT-3.1.4-1", "MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-12", "MQTT-3.1.2-13", "MQTT-3.1.2-16")
@covers("MQTT-3.1.2-17", "MQTT-3.1.2-18", "MQTT-3.1.2-19", "MQTT-3.1.3-3", "MQTT-3.14.0-1")
async def test_flags_and_payload_must_agree(lab: Lab, case: str) -> None:
    client = await lab.open()
    await client.send(_broken_payloads(5)[case])
    await client.expect_refused(MALFORMED, PROTOCOL_ERROR)


@pytest.mark.parametrize("case", _broken_payloads(4))
@covers311("MQTT-3.1.4-1", "MQTT-3.1.2-9", "MQTT-3.1.2-11", "MQTT-3.1.2-13", "MQTT-3.1.2-14", "MQTT-3.1.2-15")
@covers311("MQTT-3.1.2-18", "MQTT-3.1.2-19", "MQTT-3.1.2-20", "MQTT-3.1.2-21", "MQTT-3.1.2-22")
@covers311("MQTT-3.1.3-3", "MQTT-3.2.2-6")
async def test_flags_and_payload_must_agree_311(lab: Lab, case: str) -> None:
    client = await lab.open(wire.V311)
    await client.send(_broken_payloads(4)[case])
    await client.expect_refused()


@both
@covers("MQTT-3.1.3-4")
@covers311("MQTT-3.1.3-4")
async def test_an_ill_formed_client_id_is_refused(lab: Lab, version: int) -> None:
    client = await lab.open(version)
    await client.send(wire.connect(b"\xed\xa0\x80", version=version))
    await client.expect_refused(*refusals(version, MALFORMED, wire.CLIENT_ID_NOT_VALID))


@both
@covers("MQTT-3.1.3-11")
@covers311("MQTT-3.1.3-10")
async def test_an_ill_formed_will_topic_is_refused(lab: Lab, version: int) -> None:
    client = await lab.open(version)
    await client.send(wire.connect(lab.name(), version=version, will=Will(topic=b"\xff")))
    await client.expect_refused(*refusals(version, MALFORMED, wire.TOPIC_INVALID))


@both
@covers("MQTT-3.1.3-12")
@covers311("MQTT-3.1.3-11")
async def test_an_ill_formed_user_name_is_refused(lab: Lab, version: int) -> None:
    client = await lab.open(version)
    await client.send(wire.connect(lab.name(), version=version, username=b"\xc0\xaf", password="p"))
    await client.expect_refused(*refusals(version, MALFORMED, 0x86))


@both
@covers("MQTT-3.1.3-1", "MQTT-3.1.2-7", "MQTT-3.1.2-9")
@covers311("MQTT-3.1.3-1", "MQTT-3.1.2-8", "MQTT-3.1.2-9")
async def test_payload_fields_are_read_in_their_order(lab: Lab, version: int) -> None:
    """Client id, will topic, will payload: a takeover by that id shows the first, the will the others."""
    name, topic = lab.name(), lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    first = await lab.connect(version, client_id=name, will=Will(topic=topic, payload=b"payload"))
    await lab.connect(version, client_id=name)
    await first.expect_closed(wire.TAKEN_OVER)
    await watcher.expect_message(topic, b"payload")


@both
@pytest.mark.parametrize("name", ["a", "0123456789abcdefghijklm", "NOPQRSTUVWXYZnopqrstuvw", "xyz"])
@covers("MQTT-3.1.3-5", "MQTT-3.1.4-5")
@covers311("MQTT-3.1.3-5", "MQTT-3.1.4-4")
async def test_ids_of_1_to_23_letters_and_digits_are_accepted(lab: Lab, version: int, name: str) -> None:
    client = await lab.connect(version, client_id=name)
    await client.quiet()


@both
@covers("MQTT-3.1.3-6")
@covers311("MQTT-3.1.3-6")
async def test_clients_without_an_id_are_different_clients(lab: Lab, version: int) -> None:
    """Were they one client, the second would take the first's connection over."""
    first = await lab.connect(version, client_id="")
    second = await lab.connect(version, client_id="")
    topic = lab.topic()
    for client in (first, second):
        await client.subscribe((topic, 0))
    await second.publish(topic, b"x")
    for client in (first, second):
        await client.expect_message(topic, b"x")


@covers("MQTT-3.1.3-7", "MQTT-3.2.2-16")
async def test_an_assigned_id_is_told_and_counts(lab: Lab) -> None:
    """The session can be taken up again under the assigned id."""
    ids = set()
    for _ in range(3):
        client = await lab.connect(client_id="", clean=False, props={"session_expiry": 300})
        assert client.connack is not None
        name = client.connack.props["assigned_client_id"]
        assert name, "[MQTT-3.2.2-16] an empty Assigned Client Identifier"
        ids.add(name)
        await client.disconnect()
        again = await lab.connect(client_id=name, resume=True)
        assert again.connack is not None
        assert again.connack.session_present, "the assigned id does not name the session"
    assert len(ids) == 3


@covers311("MQTT-3.1.3-7", "MQTT-3.1.3-8", "MQTT-3.1.3-9")
async def test_no_id_and_no_clean_session_is_rejected(lab: Lab) -> None:
    client = await lab.open(wire.V311)
    await client.send(wire.connect("", version=wire.V311, clean=False))
    await client.expect_refused(2, silently=False)


@covers("MQTT-3.1.3-8")
async def test_an_id_is_either_accepted_or_refused_as_invalid(lab: Lab) -> None:
    client = await lab.open()
    await client.send(wire.connect(lab.name() + "x" * 65_000))
    seen = await client.expect(wire.CONNACK)
    assert seen.reason in (0, wire.CLIENT_ID_NOT_VALID), f"got {seen}"
    if seen.reason:
        await client.expect_closed()
    else:
        await client.quiet()


@both
@covers("MQTT-3.1.4-3", "MQTT-3.1.3-2", "MQTT-4.13.2-1")
@covers311("MQTT-3.1.4-2", "MQTT-3.1.3-2")
async def test_a_second_connection_takes_the_client_id_over(lab: Lab, version: int) -> None:
    name = lab.name()
    other = await lab.connect(version)
    first = await lab.connect(version, client_id=name)
    second = await lab.connect(version, client_id=name)
    await first.expect_closed(wire.TAKEN_OVER)
    await second.quiet()
    await other.quiet()


@both
@covers("MQTT-3.1.4-6")
@covers311("MQTT-3.1.4-5")
async def test_nothing_after_a_rejected_connect_is_processed(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.open(version)
    rejected = wire.connect(lab.name(), version=version, level=77)
    await client.send(rejected + wire.publish(topic, b"x", version=version))
    await client.rest()
    await watcher.quiet()


@both
@covers("MQTT-3.2.0-1", "MQTT-3.1.4-5")
@covers311("MQTT-3.2.0-1")
async def test_connack_comes_first_even_with_messages_waiting(lab: Lab, version: int) -> None:
    """CONNECT, SUBSCRIBE and PUBLISH in one segment: the answers come in that order."""
    topic = lab.topic()
    client = await lab.open(version)
    await client.send(
        wire.connect(lab.name(), version=version),
        wire.subscribe(1, (topic, 0), version=version),
        wire.publish(topic, b"x", version=version),
    )
    await client.expect(wire.CONNACK, reason=0)
    await client.expect(wire.SUBACK)
    await client.expect_message(topic, b"x")


@both
@covers("MQTT-4.2.0-1")
@covers311("MQTT-7.1.1-1", "MQTT-7.0.0-2")
async def test_bytes_may_arrive_one_by_one(lab: Lab, version: int) -> None:
    """A byte stream has no packets of its own."""
    client = await lab.open(version)
    for byte in wire.connect(lab.name(), version=version) + wire.PING:
        await client.send(bytes([byte]))
    await client.expect(wire.CONNACK, reason=0)
    await client.expect(wire.PINGRESP)
