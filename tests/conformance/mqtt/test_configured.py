"""Statements that show only where an operator has set something: users and rules, no retain, no aliases.

This module starts a broker of its own, so it judges the embedded one only.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Endpoint, Lab
from conformance.mqtt.table import both, covers, covers311
from conformance.mqtt.wire import ALIAS_INVALID, NOT_AUTHORIZED, PROTOCOL_ERROR, Will

BAD_USER_OR_PASSWORD, RETAIN_NOT_SUPPORTED = 0x86, 0x9A
SETTINGS = {
    "mqtt__retain": False,
    "mqtt__response_information": "answers/",
    "mqtt__server_keep_alive_s": 3,
    "limits__topic_alias_in_max": 0,
}
# Anybody may use everything but what is under `closed/`.
RULES = """
rules = [
    { user = "anonymous", effect = "deny", action = "all", filter = "closed/#" },
    { user = "anonymous", effect = "allow", action = "all", filter = "#" },
    { user = "*", effect = "deny", action = "all", filter = "closed/#" },
    { user = "*", effect = "allow", action = "all", filter = "#" },
]
[users]
"ada" = "HASH"
"""


@pytest.fixture(scope="module")
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    if request.config.getoption("--broker-port", default=None) is not None:
        pytest.skip("needs a broker with settings of its own")
    from millrace.node.access.passwords import hash_password
    from millrace.testing import ThreadedBroker

    users: Path = tmp_path_factory.mktemp("users") / "users.toml"
    users.write_text(RULES.replace("HASH", hash_password(b"engine")))
    users.chmod(0o600)
    with ThreadedBroker(access__users_file=str(users), **SETTINGS) as broker:
        yield Endpoint(port=broker.port, websocket_port=None)


@both
@pytest.mark.parametrize("password", ["wrong", "", None])
@covers("MQTT-3.1.4-2", "MQTT-3.2.2-7", "MQTT-3.2.2-8")
@covers311("MQTT-3.2.2-5", "MQTT-3.2.2-4")
async def test_a_wrong_password_is_refused(lab: Lab, version: int, password: str | None) -> None:
    client = await lab.open(version)
    await client.send(wire.connect(lab.name(), version=version, username="ada", password=password))
    refusals = (BAD_USER_OR_PASSWORD, NOT_AUTHORIZED) if version == 5 else (4, 5)
    await client.expect_refused(*refusals, silently=False)


@both
@covers("MQTT-3.1.4-6")
@covers311("MQTT-3.1.4-5")
async def test_nothing_after_a_wrong_password_is_processed(lab: Lab, version: int) -> None:
    """The packets come in one segment, so they are there while the password is still being checked."""
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client = await lab.open(version)
    await client.send(
        wire.connect(lab.name(), version=version, username="ada", password="wrong"),
        wire.publish(topic, b"x", version=version),
        wire.PING,
    )
    refusals = (BAD_USER_OR_PASSWORD, NOT_AUTHORIZED) if version == 5 else (4, 5)
    await client.expect_refused(*refusals)
    await watcher.quiet()


@both
@covers("MQTT-3.1.2-17", "MQTT-3.1.2-19", "MQTT-3.1.3-1", "MQTT-3.1.4-5")
@covers311("MQTT-3.1.2-19", "MQTT-3.1.2-21", "MQTT-3.1.3-1", "MQTT-3.1.4-4")
async def test_user_name_and_password_are_read_after_the_will(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    will = Will(topic=topic, payload=b"payload")
    client = await lab.connect(version, will=will, username="ada", password="engine")
    await client.drop()
    await watcher.expect_message(topic, b"payload")


@covers311("MQTT-3.3.5-2")
async def test_a_publish_that_is_not_allowed_is_acknowledged_or_closes(lab: Lab) -> None:
    for qos, answer in ((1, wire.PUBACK), (2, wire.PUBREC)):
        client = await lab.connect(wire.V311)
        await client.send(wire.publish("closed/door", b"x", qos=qos, packet_id=7, version=wire.V311))
        try:
            await client.expect(answer, packet_id=7)
        except AssertionError:
            await client.expect_closed()
        else:
            await client.quiet()


@covers("MQTT-4.3.3-9", "MQTT-3.5.2-1")
async def test_after_a_refused_qos_2_publish_its_id_is_free(lab: Lab) -> None:
    """The same id is a new message: taken, and forwarded."""
    topic = lab.topic()
    client = await lab.connect()
    await client.subscribe((topic, 0))
    await client.send(wire.publish("closed/door", b"x", qos=2, packet_id=7))
    await client.expect(wire.PUBREC, packet_id=7, reason=NOT_AUTHORIZED)
    await client.send(wire.publish(topic, b"y", qos=2, packet_id=7))
    await client.take(wire.PUBREC, packet_id=7, reason=0)
    await client.send(wire.ack(wire.PUBREL, 7))
    await client.take(wire.PUBCOMP, packet_id=7, reason=0)
    await client.expect_message(topic, b"y")
    await client.quiet()


@covers("MQTT-3.4.2-1")
async def test_a_refused_qos_1_publish_says_so(lab: Lab) -> None:
    client = await lab.connect()
    await client.send(wire.publish("closed/door", b"x", qos=1, packet_id=7))
    await client.expect(wire.PUBACK, packet_id=7, reason=NOT_AUTHORIZED)


@both
@covers("MQTT-3.8.4-6", "MQTT-3.8.4-7", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
@covers311("MQTT-3.8.4-5", "MQTT-3.9.3-1", "MQTT-3.9.3-2")
async def test_refused_and_granted_filters_in_one_answer(lab: Lab, version: int) -> None:
    topic = lab.topic()
    client = await lab.connect(version)
    filters = [(topic + "/a", 1), ("closed/door", 1), (topic + "/b", 0)]
    await client.send(wire.subscribe(5, *filters, version=version))
    refused = NOT_AUTHORIZED if version == 5 else 0x80
    await client.expect(wire.SUBACK, packet_id=5, reasons=(1, refused, 0))


@pytest.mark.parametrize("asked", [{"request_problem": 0}, {"maximum_packet_size": 60}], ids=str)
@covers("MQTT-3.1.2-29", "MQTT-3.4.2-2", "MQTT-3.4.2-3", "MQTT-3.5.2-2", "MQTT-3.5.2-3", "MQTT-3.9.2-1")
@covers("MQTT-3.9.2-2", "MQTT-3.2.2-19", "MQTT-3.2.2-20")
async def test_refusals_without_a_diagnosis(lab: Lab, asked: dict[str, int]) -> None:
    """Each of these would carry a reason string if it were wanted and fitted; the client checks both."""
    client = await lab.connect(props=asked)
    await client.send(
        wire.publish("closed/door", b"x", qos=1, packet_id=1),
        wire.publish("closed/door", b"x", qos=2, packet_id=2),
        wire.subscribe(3, ("closed/door", 0)),
    )
    await client.expect(wire.PUBACK, packet_id=1, reason=NOT_AUTHORIZED)
    await client.expect(wire.PUBREC, packet_id=2, reason=NOT_AUTHORIZED)
    await client.expect(wire.SUBACK, packet_id=3, reasons=(NOT_AUTHORIZED,))


@covers("MQTT-3.2.2-13")
async def test_a_retained_will_is_rejected_where_retain_is_off(lab: Lab) -> None:
    client = await lab.open()
    await client.send(wire.connect(lab.name(), will=Will(topic=lab.topic(), retain=True)))
    await client.expect_refused(RETAIN_NOT_SUPPORTED)


@covers("MQTT-3.2.2-14")
async def test_a_retained_publish_is_punished_where_retain_is_off(lab: Lab) -> None:
    client = await lab.connect()
    assert client.connack is not None
    assert client.connack.props["retain_available"] == 0
    await client.send(wire.publish(lab.topic(), b"x", retain=True))
    await client.expect_closed(RETAIN_NOT_SUPPORTED)


@covers("MQTT-3.2.2-18")
async def test_a_topic_alias_is_punished_where_there_are_none(lab: Lab) -> None:
    client = await lab.connect()
    assert client.connack is not None
    assert client.connack.props.get("topic_alias_maximum", 0) == 0
    await client.send(wire.publish(lab.topic(), b"x", props={"topic_alias": 1}))
    await client.expect_closed(ALIAS_INVALID, PROTOCOL_ERROR)


@pytest.mark.parametrize("asked", [None, 0, 1])
@covers("MQTT-3.1.2-28")
async def test_response_information_only_on_request(lab: Lab, asked: int | None) -> None:
    client = await lab.connect(props={} if asked is None else {"request_response": asked})
    assert client.connack is not None
    assert ("response_information" in client.connack.props) is (asked == 1)


@covers("MQTT-3.1.2-21", "MQTT-3.2.2-21", "MQTT-3.1.2-22")
async def test_the_servers_keep_alive_replaces_the_clients(lab: Lab) -> None:
    client = await lab.connect(keep_alive=600)
    assert client.connack is not None
    assert client.connack.props["server_keep_alive"] == 3
    await client.expect_closed(wire.KEEP_ALIVE_TIMEOUT)
