"""Edge functions at a real broker: results in place of inputs, in order, once, also when things die."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.device import Device
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess, millrace
from e2e.running import run
from e2e.test_cluster import whole
from millrace.client import Client
from millrace.local_cluster import LocalCluster
from waiting import until, until_async

FUNCTIONS = """
import asyncio, json, os, time
VERSION = "1"
UNSAYABLE = {b"long": 70_000 * "é", b"nul": "a \\0 b", b"lone": "a \\ud800 b"}

def double(topic, payload):
    if payload == b"boom":
        raise ValueError("no such thing")
    if payload in UNSAYABLE:
        raise ValueError(UNSAYABLE[payload])
    if payload == b"slow":
        time.sleep(30)
    if payload == b"die":
        os._exit(3)
    if payload == b"nothing":
        return None
    if payload == b"several":
        return [b"one", ("elsewhere/result", "two")]
    return payload * 2

async def later(topic, payload):
    await asyncio.sleep(0.01)
    return payload.upper()

def version(topic, payload):
    return VERSION

def busy(topic, payload):
    end = time.monotonic() + 0.03
    while time.monotonic() < end:
        pass
    return b"made " + payload
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "modules" / "handmade.py"
    file.parent.mkdir()
    file.write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", f"{file.parent}:{_own_path()}")
    return file


def _own_path() -> str:
    import millrace

    return str(Path(millrace.__file__).parents[1])


@pytest.fixture
def broker(functions: Path, start_broker: StartBroker) -> BrokerProcess:
    return start_broker("--set", "edge.modules=handmade", "--set", "edge.timeout_ms=5000")


def made(broker: BrokerProcess, name: str, function: str, *filters: str) -> None:
    body = {"name": name, "filters": list(filters), "edge": f"handmade:{function}"}
    answer = MqttDoor(broker.ports["http"])("POST", "/v1/streams", body)
    assert answer.status == 201, answer


def test_subscribers_get_what_the_function_makes_and_the_log_keeps_the_input(
    broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    made(broker, "work", "double", "work/#")
    device = devices(broker.port).connect()
    device.subscribe("work/#", qos=1)
    device.subscribe("elsewhere/#", qos=1)
    for payload in (b"a", b"nothing", b"several", b"b"):
        assert device.publish("work/x", payload, qos=1) == 0
    got = [(message.topic, message.payload) for message in device.expect(4)]
    assert [row for row in got if row[0] == "work/x"] == [
        ("work/x", b"aa"),
        ("work/x", b"one"),
        ("work/x", b"bb"),
    ]
    assert ("elsewhere/result", b"two") in got
    door = MqttDoor(broker.ports["http"])
    shard = door("GET", "/v1/streams/work").json["shard_list"][0]["shard"]
    page = door("GET", f"/v1/streams/work/shards/{shard}/messages?limit=100").json["messages"]
    assert [m["payload"] for m in page if m["payload"] in ("a", "nothing", "several", "b")] == [
        "a",
        "nothing",
        "several",
        "b",
    ]


def test_what_fails_goes_to_the_dead_letters_and_the_rest_goes_on(
    broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    made(broker, "work", "double", "work/#")
    device = devices(broker.port).connect()
    device.subscribe("work/#", qos=1)
    device.subscribe("dead/work", qos=1)
    for payload in (b"boom", b"slow", b"die", b"good"):
        device.publish("work/x", payload, qos=1)
    until(lambda: device.waiting >= 4, "three dead letters and a result", 60.0)
    got = device.expect(4)
    dead = [message for message in got if message.topic == "dead/work"]
    assert [message.payload for message in dead] == [b"boom", b"slow", b"die"]
    errors = [dict(message.properties.UserProperty)["error"] for message in dead]
    assert "ValueError: no such thing" in errors[0]
    assert "took more than 5 s" in errors[1]
    assert "ended in the middle" in errors[2]
    assert [message.payload for message in got if message.topic == "work/x"] == [b"goodgood"]


def test_an_error_that_no_property_can_hold_is_told_as_far_as_it_goes(
    broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    made(broker, "work", "double", "work/#")
    device = devices(broker.port).connect()
    device.subscribe("work/#", qos=1)
    device.subscribe("dead/work", qos=1)
    for payload in (b"long", b"nul", b"lone", b"good"):
        device.publish("work/x", payload, qos=1)
    *dead, good = sorted(device.expect(4), key=lambda message: message.topic)
    assert [message.payload for message in dead] == [b"long", b"nul", b"lone"]
    long, nul, lone = (dict(message.properties.UserProperty)["error"] for message in dead)
    assert "ValueError: éé" in long and len(long) <= 1_000
    assert "ValueError: a   b" in nul
    assert "ValueError: a ? b" in lone
    assert (good.topic, good.payload) == ("work/x", b"goodgood"), "the messages after it go on"


def test_a_publish_that_carries_the_mark_of_a_result_is_an_input_all_the_same(
    broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    """As when a dead letter is put back with its properties."""
    made(broker, "work", "double", "work/#")
    device = devices(broker.port).connect()
    device.subscribe("work/#", qos=1)
    marked = [("millrace-edge", "handmade:double"), ("error", "ValueError: no such thing")]
    assert device.publish("work/x", b"again", qos=1, UserProperty=marked) == 0
    device.expect_payloads(b"againagain")


def test_async_functions_durable_sessions_and_order_per_topic(
    broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    made(broker, "work", "later", "work/#")
    sleeper = devices(broker.port, client_id="sleeper", clean=False, expiry_s=600).connect()
    sleeper.subscribe("work/+", qos=1)
    sleeper.disconnect()
    device = devices(broker.port).connect()
    for number in range(30):
        device.publish(f"work/{number % 3}", f"m{number}".encode(), qos=1)
    back = devices(broker.port, client_id="sleeper", clean=False, expiry_s=600).connect()
    until(lambda: back.waiting >= 30, "30 results", 60.0)
    got = [(message.topic, message.payload) for message in back.expect(30)]
    for topic in range(3):
        mine = [payload for name, payload in got if name == f"work/{topic}"]
        assert mine == [f"M{number}".encode() for number in range(topic, 30, 3)]
    assert back.nothing_came(), "no input is ever delivered"


def test_a_module_that_the_node_does_not_allow_is_refused(broker: BrokerProcess) -> None:
    door = MqttDoor(broker.ports["http"])
    answer = door("POST", "/v1/streams", {"name": "evil", "filters": ["e"], "edge": "os:system"})
    assert answer.status == 400 and "edge.modules" in answer.json["detail"]
    done = millrace(
        "stream", "create", "evil", "e", "--edge", "os", "--url", f"http://127.0.0.1:{broker.ports['http']}"
    )
    assert done.returncode != 0 and "module:function" in done.stderr


def test_a_function_that_does_not_exist_is_refused(broker: BrokerProcess) -> None:
    """What is published to it would be acknowledged and wait for ever."""
    door = MqttDoor(broker.ports["http"])
    answer = door("POST", "/v1/streams", {"name": "late", "filters": ["l"], "edge": "handmade:missing"})
    assert answer.status == 400 and "handmade:missing cannot be loaded" in answer.json["detail"]
    made(broker, "work", "version", "work/#")
    answer = door("PATCH", "/v1/streams/work", {"edge": "handmade:missing"})
    assert answer.status == 400 and "handmade:missing cannot be loaded" in answer.json["detail"]
    assert door("GET", "/v1/streams/late").status == 404


def test_functions_are_loaded_anew_by_command(
    broker: BrokerProcess, functions: Path, devices: Callable[..., Device]
) -> None:
    made(broker, "work", "version", "work/#")
    device = devices(broker.port).connect()
    device.subscribe("work/#", qos=1)
    device.publish("work/x", b"", qos=1)
    device.expect_payloads(b"1")
    functions.write_text(FUNCTIONS.replace('VERSION = "1"', 'VERSION = "two"'))
    done = millrace("stream", "reload-edge", "--json", "--url", f"http://127.0.0.1:{broker.ports['http']}")
    assert json.loads(done.stdout)["reloaded"] == 1
    device.publish("work/x", b"", qos=1)
    device.expect_payloads(b"two")


def test_every_message_is_made_once_although_the_leader_is_killed(functions: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        count = 40
        options = ("--set", "edge.modules=handmade")
        async with LocalCluster(3, tmp_path / "nodes", options=options) as cluster:
            await whole(cluster)
            door = MqttDoor(cluster.nodes[0].http_port)
            body = {"name": "work", "filters": ["work/#"], "edge": "handmade:busy"}
            assert (await asyncio.to_thread(door, "POST", "/v1/streams", body)).status == 201
            got: list[str] = []
            async with (
                Client(
                    [node.url for node in cluster.nodes[1:]], client_id="r", session_expiry_s=600
                ) as reader,
                Client(
                    [node.url for node in cluster.nodes[1:]], client_id="w", session_expiry_s=600
                ) as writer,
                reader.subscribe("work/#", qos=2) as messages,
            ):

                async def read() -> None:
                    async for message in messages:
                        got.append(message.payload.decode())

                reading = asyncio.create_task(read())
                for number in range(count):
                    await writer.publish("work/x", str(number))
                await until_async(lambda: len(got) > 5, "some results", 30.0)
                cluster.nodes[0].signal(signal.SIGKILL)
                wanted = [f"made {number}" for number in range(count)]
                await until_async(lambda: len(got) >= count, "all results", 60.0)
                reading.cancel()
            assert got == wanted, "in order, none missing, none twice"

    run(scenario())
