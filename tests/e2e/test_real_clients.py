"""Clients that other people wrote, over TCP, against a broker process: paho, aiomqtt and mosquitto's own."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from e2e.device import V5, V311, Device, both, unique
from e2e.processes import BrokerProcess, tool
from waiting import until

Devices = Callable[..., Device]

TOOL_S_MAX = 15

# A client process of its own, because only a process can be killed.
VICTIM = """
import sys
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
client = paho.Client(CallbackAPIVersion.VERSION2, sys.argv[4], protocol=int(sys.argv[2]))
client.on_connect = lambda *_: print("connected", flush=True)
client.will_set(sys.argv[3], "gone", 1, True)
client.connect("127.0.0.1", int(sys.argv[1]))
client.loop_forever()
"""


# ---------------------------------------------------------------------------------- paho, both ways


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("to", [V311, V5], ids=["to-v311", "to-v5"])
@pytest.mark.parametrize("source", [V311, V5], ids=["from-v311", "from-v5"])
def test_a_message_arrives_once_at_its_qos(
    broker: BrokerProcess, devices: Devices, source: int, to: int, qos: int
) -> None:
    """Every QoS between every pair of versions."""
    topic = unique("plain")
    receiver = devices(broker.port, version=to).connect()
    assert receiver.subscribe(topic, qos) == qos
    assert devices(broker.port, version=source).connect().publish(topic, b"21.5", qos) == 0
    (got,) = receiver.expect()
    assert (got.topic, got.payload, got.qos, got.retain) == (topic, b"21.5", qos, False)
    assert receiver.nothing_came()


@both
@pytest.mark.parametrize(("sent", "asked"), [(2, 1), (2, 0), (1, 0), (0, 2)])
def test_the_lower_qos_counts(
    broker: BrokerProcess, devices: Devices, version: int, sent: int, asked: int
) -> None:
    topic = unique("lower")
    receiver = devices(broker.port, version=version).connect()
    receiver.subscribe(topic, asked)
    devices(broker.port, version=version).connect().publish(topic, b"x", sent)
    assert receiver.expect()[0].qos == min(sent, asked)


@both
@pytest.mark.parametrize("qos", [1, 2])
def test_many_messages_stay_in_order_and_come_once(
    broker: BrokerProcess, devices: Devices, version: int, qos: int
) -> None:
    topic = unique("order")
    receiver = devices(broker.port, version=version).connect()
    receiver.subscribe(topic, qos)
    sender = devices(broker.port, version=version).connect()
    payloads = [b"%d" % number for number in range(300)]
    for payload in payloads:
        sender.paho.publish(topic, payload, qos)
    receiver.expect_payloads(*payloads)
    assert receiver.nothing_came()


@both
def test_a_large_payload_comes_through_whole(broker: BrokerProcess, devices: Devices, version: int) -> None:
    topic = unique("large")
    payload = bytes(range(256)) * 4096
    receiver = devices(broker.port, version=version).connect()
    receiver.subscribe(topic, 1)
    devices(broker.port, version=version).connect().publish(topic, payload, 1)
    receiver.expect_payloads(payload)


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retained_is_kept_replaced_and_deleted(
    broker: BrokerProcess, devices: Devices, version: int, qos: int
) -> None:
    topic = unique("kept")
    sender = devices(broker.port, version=version).connect()
    sender.publish(topic, b"old", qos, retain=True)
    sender.publish(topic, b"new", qos, retain=True)
    first = devices(broker.port, version=version).connect()
    first.subscribe(topic, 2)
    (got,) = first.expect()
    assert (got.payload, got.qos, got.retain) == (b"new", qos, True)
    sender.publish(topic, b"live", qos, retain=True)
    (got,) = first.expect()
    assert (got.payload, got.retain) == (b"live", False), (
        "toward an old subscription it is an ordinary message"
    )
    sender.publish(topic, b"", qos, retain=True)
    second = devices(broker.port, version=version).connect()
    second.subscribe(topic, 2)
    assert second.nothing_came()


# ------------------------------------------------------------------------------------------- wills


@contextmanager
def victim(port: int, version: int, topic: str, client_id: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(port), str(int(version)), topic, client_id],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@both
def test_the_will_of_a_killed_client_is_published(
    broker: BrokerProcess, devices: Devices, version: int
) -> None:
    """kill -9 of a client process: the observer hears of it, and the retained will stays."""
    topic = unique("will")
    observer = devices(broker.port, version=version).connect()
    observer.subscribe(topic, 1)
    with victim(broker.port, version, topic, unique("victim")) as process:
        assert observer.nothing_came(), "the will was published while its client lived"
        process.kill()
        (got,) = observer.expect()
    assert (got.payload, got.qos) == (b"gone", 1)
    late = devices(broker.port, version=version).connect()
    late.subscribe(topic, 1)
    assert late.expect()[0].retain


@both
def test_a_goodbye_takes_the_will_back(broker: BrokerProcess, devices: Devices, version: int) -> None:
    topic = unique("will")
    observer = devices(broker.port, version=version).connect()
    observer.subscribe(topic, 1)
    client = devices(broker.port, version=version, will=(topic, b"gone", 1, False)).connect()
    client.disconnect()
    assert observer.nothing_came()
    client = devices(broker.port, version=version, will=(topic, b"gone", 1, False)).connect()
    client.drop()
    observer.expect_payloads(b"gone")


# ---------------------------------------------------------------------------------------- sessions


@both
def test_a_session_collects_while_its_client_is_away(
    broker: BrokerProcess, devices: Devices, version: int
) -> None:
    """QoS 1 and 2 wait, each in its order, and come once; QoS 0 does not wait."""
    topic, name = unique("away"), unique("sleeper")
    kept = {"version": version, "client_id": name, "clean": False, "expiry_s": 300}
    client = devices(broker.port, **kept).connect()
    assert not client.session_present
    client.subscribe(f"{topic}/#", 2)
    client.disconnect()
    sender = devices(broker.port, version=version).connect()
    for number in range(20):
        sender.publish(f"{topic}/{number % 3}", b"%d" % number, qos=number % 3)
    client = devices(broker.port, **kept).connect()
    assert client.session_present
    found = client.expect(13)
    for qos in (1, 2):
        # paho shows a QoS 2 message when it is released, so only messages of one QoS have an order.
        numbers = [int(got.payload) for got in found if got.qos == qos]
        assert numbers == list(range(qos, 20, 3))
    assert client.nothing_came()
    sender.publish(f"{topic}/now", b"live", 1)
    client.expect_payloads(b"live")


@both
def test_a_clean_start_forgets_the_session(broker: BrokerProcess, devices: Devices, version: int) -> None:
    topic, name = unique("away"), unique("sleeper")
    client = devices(broker.port, version=version, client_id=name, clean=False, expiry_s=300).connect()
    client.subscribe(topic, 1)
    client.disconnect()
    devices(broker.port, version=version).connect().publish(topic, b"missed", 1)
    client = devices(broker.port, version=version, client_id=name, clean=True).connect()
    assert not client.session_present
    assert client.nothing_came()


@pytest.mark.parametrize("how", ["takeover", "goodbye", "drop"])
def test_a_session_resumed_without_expiry_ends_with_its_connection(
    broker: BrokerProcess, devices: Devices, how: str
) -> None:
    """It hands out what waited and then is gone: nothing that was acknowledged comes again."""
    topic, name = unique("last"), unique("sleeper")
    first = devices(broker.port, client_id=name, clean=False, expiry_s=300).connect()
    first.subscribe(topic, 2)
    first.disconnect()
    sender = devices(broker.port).connect()
    sender.publish(topic, b"1", 1)
    sender.publish(topic, b"2", 2)
    second = devices(broker.port, client_id=name, clean=False, expiry_s=0).connect()
    assert second.session_present
    assert {got.payload for got in second.expect(2)} == {b"1", b"2"}
    assert second.nothing_came()
    if how == "goodbye":
        second.disconnect()
    elif how == "drop":
        second.drop()
    third = devices(broker.port, client_id=name, clean=False, expiry_s=300).connect()
    assert not third.session_present
    assert third.nothing_came()


@both
def test_unsubscribing_ends_delivery(broker: BrokerProcess, devices: Devices, version: int) -> None:
    topic = unique("leave")
    client = devices(broker.port, version=version).connect()
    client.subscribe(topic, 1)
    sender = devices(broker.port, version=version).connect()
    sender.publish(topic, b"before", 1)
    client.expect_payloads(b"before")
    client.unsubscribe(topic)
    sender.publish(topic, b"after", 1)
    assert client.nothing_came()


@both
def test_a_second_connection_takes_the_session_over(
    broker: BrokerProcess, devices: Devices, version: int
) -> None:
    """The first connection is closed, in MQTT 5 with 0x8E; the subscription goes on at the second."""
    topic, name = unique("takeover"), unique("twin")
    first = devices(broker.port, version=version, client_id=name, clean=False, expiry_s=60).connect()
    first.subscribe(topic, 1)
    second = devices(broker.port, version=version, client_id=name, clean=False, expiry_s=60).connect()
    reason = first.wait_closed()
    if version == V5:
        assert reason.value == 0x8E
    assert second.session_present
    devices(broker.port).connect().publish(topic, b"x", 1)
    second.expect_payloads(b"x")
    # One line of a kind is written in a second: this one, or that of another test right before it.
    assert ": the client connected again (0x8e)" in broker.log


# ----------------------------------------------------------------------------------- shared, MQTT 5


def test_a_group_shares_its_messages(broker: BrokerProcess, devices: Devices) -> None:
    """Three members of both versions: each message to exactly one, none without work; others get all."""
    topic, group = unique("jobs"), unique("group")
    members = [devices(broker.port, version=version).connect() for version in (V5, V5, V311)]
    for member in members:
        assert member.subscribe(f"$share/{group}/{topic}/+", 1) == 1
    observer = devices(broker.port).connect()
    observer.subscribe(f"{topic}/+", 1)
    sender = devices(broker.port).connect()
    payloads = [b"%d" % number for number in range(60)]
    for number, payload in enumerate(payloads):
        sender.publish(f"{topic}/{number % 7}", payload, 1)
    until(lambda: sum(member.waiting for member in members) >= 60, "60 messages at the group")
    shares = [[got.payload for got in member.expect(member.waiting)] for member in members]
    assert sorted(chain.from_iterable(shares)) == sorted(payloads)
    assert all(shares), "a member got nothing"
    observer.expect_payloads(*payloads)


def test_what_a_member_did_not_take_goes_to_the_others(broker: BrokerProcess, devices: Devices) -> None:
    topic, group = unique("jobs"), unique("group")
    leaver, stayer = devices(broker.port).connect(), devices(broker.port).connect()
    for member in (leaver, stayer):
        member.subscribe(f"$share/{group}/{topic}", 1)
    leaver.disconnect()
    sender = devices(broker.port).connect()
    for number in range(10):
        sender.publish(topic, b"%d" % number, 1)
    stayer.expect_payloads(*(b"%d" % number for number in range(10)))


def test_properties_travel_from_publisher_to_subscriber(broker: BrokerProcess, devices: Devices) -> None:
    """MQTT 5 to MQTT 5 whole, user properties in their order; MQTT 3.1.1 gets the same message without."""
    topic = unique("request")
    new, old = devices(broker.port).connect(), devices(broker.port, version=V311).connect()
    identified = Properties(PacketTypes.SUBSCRIBE)
    identified.SubscriptionIdentifier = 7
    new.subscribe(topic, 1, properties=identified)
    old.subscribe(topic, 1)
    pairs = [("b", "1"), ("a", "2"), ("b", "3")]
    devices(broker.port).connect().publish(
        topic,
        b"{}",
        1,
        PayloadFormatIndicator=1,
        ContentType="application/json",
        ResponseTopic="answers/here",
        CorrelationData=b"\0\xff",
        MessageExpiryInterval=60,
        UserProperty=pairs,
    )
    (got,) = new.expect()
    assert got.properties.PayloadFormatIndicator == 1
    assert got.properties.ContentType == "application/json"
    assert got.properties.ResponseTopic == "answers/here"
    assert got.properties.CorrelationData == b"\0\xff"
    assert 0 < got.properties.MessageExpiryInterval <= 60
    assert got.properties.UserProperty == pairs
    assert got.properties.SubscriptionIdentifier == [7]
    old.expect_payloads(b"{}")


# ----------------------------------------------------------------------------------------- aiomqtt


@pytest.mark.parametrize(
    "protocol", [aiomqtt.ProtocolVersion.V31, aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5]
)
def test_aiomqtt_publishes_and_subscribes(broker: BrokerProcess, protocol: aiomqtt.ProtocolVersion) -> None:
    """The asyncio client, in every version it knows, at every QoS, with a retained message."""
    topic = unique("aio")

    async def talk() -> list[tuple[str, bytes, int]]:
        options = {"port": broker.port, "protocol": protocol, "timeout": TOOL_S_MAX}
        async with (
            aiomqtt.Client("127.0.0.1", identifier=unique("aio"), **options) as sender,
            aiomqtt.Client("127.0.0.1", identifier=unique("aio"), **options) as receiver,
        ):
            await sender.publish(f"{topic}/kept", b"kept", 1, retain=True)
            await receiver.subscribe(f"{topic}/#", 2)
            for qos in (0, 1, 2):
                await sender.publish(f"{topic}/{qos}", b"%d" % qos, qos)
            found = []
            async with asyncio.timeout(TOOL_S_MAX):
                async for message in receiver.messages:
                    found.append((str(message.topic), bytes(message.payload), message.qos))
                    if len(found) == 4:
                        return found
        raise AssertionError("the connection ended early")

    found = asyncio.run(talk())
    assert found[0] == (f"{topic}/kept", b"kept", 1)
    assert sorted(found[1:]) == [(f"{topic}/{qos}", b"%d" % qos, qos) for qos in (0, 1, 2)]


# -------------------------------------------------------------------------- mosquitto_pub and _sub


def run_tool(name: str, broker: BrokerProcess, *arguments: str, stdin: str | None = None) -> str:
    command = [tool(name), "-h", "127.0.0.1", "-p", str(broker.port), *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=TOOL_S_MAX, check=False
    )
    assert done.returncode == 0, f"{command} failed: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("protocol", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_clients_understand_the_broker(broker: BrokerProcess, protocol: str, qos: str) -> None:
    """mosquitto_pub with many lines to a durable mosquitto_sub that first registers and then collects."""
    topic, name = unique("mosquitto"), unique("mosq")[-23:]
    subscriber = ("-V", protocol, "-t", topic, "-q", "2", "-i", name, "-c")
    run_tool("mosquitto_sub", broker, *subscriber, "-E")
    lines = [f"line {number}" for number in range(50)]
    run_tool(
        "mosquitto_pub", broker, "-V", protocol, "-t", topic, "-q", qos, "-l", stdin="\n".join(lines) + "\n"
    )
    last_qos = "1" if qos == "0" else qos
    run_tool("mosquitto_pub", broker, "-V", protocol, "-t", topic, "-q", last_qos, "-m", "end")
    expected = ["end"] if qos == "0" else [*lines, "end"]
    found = run_tool("mosquitto_sub", broker, *subscriber, "-C", str(len(expected)), "-W", "10")
    assert found.splitlines() == expected


def test_mosquitto_sees_the_retained_flag(broker: BrokerProcess) -> None:
    topic = unique("mosquitto")
    run_tool("mosquitto_pub", broker, "-t", topic, "-q", "1", "-r", "-m", "kept")
    found = run_tool("mosquitto_sub", broker, "-t", topic, "-C", "1", "-W", "10", "-F", "%t %q %r %p")
    assert found == f"{topic} 0 1 kept\n"


def test_mosquitto_request_and_response(broker: BrokerProcess, devices: Devices) -> None:
    """mosquitto_rr asks with a response topic and correlation data; a paho service answers it."""
    topic = unique("service")
    service = devices(broker.port).connect()
    service.subscribe(topic, 1)
    command = [tool("mosquitto_rr"), "-h", "127.0.0.1", "-p", str(broker.port), "-V", "5", "-W", "10"]
    command += ["-t", topic, "-e", f"{topic}/answers", "-m", "2+2", "-q", "1"]
    asker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        (question,) = service.expect()
        assert question.payload == b"2+2"
        data = getattr(question.properties, "CorrelationData", None)
        properties = {} if data is None else {"CorrelationData": data}
        service.publish(question.properties.ResponseTopic, b"4", 1, **properties)
        answer, _ = asker.communicate(timeout=TOOL_S_MAX)
        assert answer == "4\n"
    finally:
        asker.kill()
        asker.wait()
