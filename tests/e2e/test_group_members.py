"""MQTT clients as members of groups that were made by command [rule 12], beside HTTP ones."""

from collections.abc import Callable

import pytest

from e2e.conftest import StartBroker
from e2e.device import Device, both, unique
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess, millrace
from e2e.running import run
from millrace.client import Client
from millrace.client.http import Http
from millrace.client.reader import read
from waiting import until, until_async

Devices = Callable[..., Device]


@pytest.fixture
def door(broker: BrokerProcess) -> MqttDoor:
    return MqttDoor(broker.ports["http"])


def made(door: MqttDoor, *filters: str, **settings: object) -> str:
    name = unique("workers")
    assert door("POST", "/v1/groups", {"name": name, "filters": list(filters), **settings}).status == 201
    return name


def lag(door: MqttDoor, group: str) -> int:
    return int(door("GET", f"/v1/groups/{group}").json["lag"])


@both
def test_what_the_group_collected_goes_to_a_member_that_joins_by_its_name(
    broker: BrokerProcess, door: MqttDoor, devices: Devices, version: int
) -> None:
    topic = unique("jobs")
    group = made(door, topic)
    publisher = devices(broker.port).connect()
    for number in range(5):
        publisher.publish(topic, b"%d" % number, qos=1)
    member = devices(broker.port, version=version).connect()
    assert member.subscribe(f"$share/{group}/{topic}", qos=2) == 1, "QoS 1 is the most a member is granted"
    member.expect_payloads(b"0", b"1", b"2", b"3", b"4")
    until(lambda: lag(door, group) == 0, "the acknowledgements to move the group's cursor")
    publisher.publish(topic, b"live", qos=1)
    member.expect_payloads(b"live")
    assert door("GET", f"/v1/groups/{group}").json["members_here"] == 1


def test_each_message_goes_to_one_of_the_members_by_mqtt_and_http(
    broker: BrokerProcess, door: MqttDoor, devices: Devices
) -> None:
    topic = unique("jobs")
    group = made(door, f"{topic}/+", f"{topic}/deep/#")
    members = [devices(broker.port).connect() for _ in range(2)]
    for member in members:
        member.subscribe(f"$share/{group}/{topic}/+", qos=1)
    publisher = devices(broker.port).connect()
    sent = {f"{topic}/{n}" if n % 2 else f"{topic}/deep/{n}" for n in range(60)}
    for one in sorted(sent):
        publisher.publish(one, one.encode(), qos=1)
    by_http: list[str] = []

    def all_there() -> bool:
        taken = door("POST", f"/v1/groups/{group}/take", {"count": 5, "ack": "manual"}).json["messages"]
        receipts = [message["receipt"] for message in taken]
        if receipts:
            door("POST", f"/v1/groups/{group}/ack", {"receipts": receipts})
        by_http.extend(message["topic"] for message in taken)
        return sum(member.waiting for member in members) + len(by_http) >= len(sent)

    until(all_there, "every message at one of the members")
    got = [[message.topic for message in member.expect(member.waiting)] for member in members]
    assert sorted(got[0] + got[1] + by_http) == sorted(sent)
    assert got[0] and got[1]
    until(lambda: lag(door, group) == 0, "everything to be acknowledged")


def test_what_a_lost_member_did_not_acknowledge_is_given_to_another(
    broker: BrokerProcess, door: MqttDoor, devices: Devices
) -> None:
    topic = unique("jobs")
    group = made(door, topic)
    silent = devices(broker.port, expiry_s=300).connect()
    silent.paho.manual_ack_set(True)
    silent.subscribe(f"$share/{group}/{topic}", qos=1)
    publisher = devices(broker.port).connect()
    for number in range(3):
        publisher.publish(topic, b"%d" % number, qos=1)
    silent.expect(3)
    assert lag(door, group) == 3
    silent.drop()
    other = devices(broker.port).connect()
    other.subscribe(f"$share/{group}/{topic}", qos=1)
    assert sorted(got.payload for got in other.expect(3)) == [b"0", b"1", b"2"]
    until(lambda: lag(door, group) == 0, "the other's acknowledgements")
    back = devices(broker.port, client_id=silent.client_id, clean=False, expiry_s=300).connect()
    assert back.nothing_came(), "what was given to another does not come to the first again"


def test_a_group_made_later_takes_in_the_members_of_its_name_and_lets_them_go(
    broker: BrokerProcess, door: MqttDoor, devices: Devices
) -> None:
    topic, name = unique("jobs"), unique("workers")
    member = devices(broker.port).connect()
    member.subscribe(f"$share/{name}/{topic}", qos=1)
    publisher = devices(broker.port).connect()
    publisher.publish(topic, b"before", qos=1)
    member.expect_payloads(b"before")
    assert door("POST", "/v1/groups", {"name": name, "filters": [topic]}).status == 201
    until(lambda: door("GET", f"/v1/groups/{name}").json["members_here"] == 1, "the member to be taken in")
    publisher.publish(topic, b"through the group", qos=1)
    member.expect_payloads(b"through the group")
    until(lambda: lag(door, name) == 0, "the acknowledgement")
    assert door("DELETE", f"/v1/groups/{name}").status == 204
    publisher.publish(topic, b"after", qos=1)
    member.expect_payloads(b"after")


def test_a_member_may_read_everything_the_group_takes_or_nothing(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, devices: Devices
) -> None:
    users = tmp_path_factory.mktemp("users") / "users.toml"
    assert millrace("acl", "add", "*", "allow", "all", "open/#", "--users", str(users)).returncode == 0
    broker = start_broker("--set", f"access.users_file={users}")
    door = MqttDoor(broker.ports["http"])
    group = made(door, "open/a", "closed/b")
    member = devices(broker.port).connect()
    assert member.subscribe(f"$share/{group}/open/a", qos=1) == 0x87


def test_the_async_client_consumes_with_explicit_acknowledgement_and_reads_from_an_offset(
    broker: BrokerProcess, door: MqttDoor
) -> None:
    async def scenario() -> None:
        topic = unique("jobs")
        group = made(door, topic)
        async with Client(f"mqtt://127.0.0.1:{broker.port}") as client:
            for number in range(3):
                await client.publish(topic, b"%d" % number)
            async with client.subscribe(topic, group=group, manual_ack=True) as jobs:
                first, second = await jobs.get(10), await jobs.get(10)
                jobs.ack(first)
                await until_async(lambda: lag(door, group) == 2, "one of three to be done")
                jobs.ack(second)
                jobs.ack(await jobs.get(10))
            await until_async(lambda: lag(door, group) == 0, "all to be done")
        log = read(Http(f"http://127.0.0.1:{broker.ports['http']}"), [topic])
        assert [(await anext(log))["payload"] for _ in range(3)] == ["0", "1", "2"]
        await log.aclose()

    run(scenario())
