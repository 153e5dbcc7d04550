"""The small parts around the door: the embedded broker, `$SYS`, and who counts as being on this machine."""

import asyncio
import gc
import socket
from pathlib import Path

import pytest

import millrace
from millrace.errors import ConfigError
from millrace.node.access.authentication import is_loopback
from millrace.node.cluster import sys_topics
from millrace.testing import ThreadedBroker
from millrace.types import Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect
from unit.node.house import House


def is_served(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(encode(Connect(version=Version.MQTT_3_1_1, client_id="x"), 4))
        return client.recv(4) == b"\x20\x02\x00\x00"


class TestEmbedded:
    def test_serves_on_a_port_of_its_own_and_leaves_nothing_behind(self) -> None:
        async def live() -> Path:
            async with millrace.Broker(mqtt__sys_interval_s=0) as broker:
                loop = asyncio.get_running_loop()
                assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
                assert await loop.run_in_executor(None, is_served, broker.port)
                data = Path(broker.server.config.node.data)
                assert data.is_dir()
                return data

        assert not asyncio.run(live()).exists()

    def test_two_at_once_do_not_meet(self) -> None:
        with ThreadedBroker() as one, ThreadedBroker() as two:
            assert one.port != two.port
            assert is_served(one.port) and is_served(two.port)

    def test_settings_are_checked(self) -> None:
        async def start(**overrides: object) -> None:
            async with millrace.Broker(**overrides):
                raise AssertionError("started")

        with pytest.raises(ConfigError, match="connections_max"):
            asyncio.run(start(limits__connection_max=1))
        with pytest.raises(ConfigError, match="limits"):
            asyncio.run(start(limits__connections_max=0))
        gc.collect()

    def test_a_config_and_single_settings_contradict(self) -> None:
        with pytest.raises(TypeError, match="not both"):
            millrace.Broker(millrace.embedded.settings.Config(), log__level="error")


class TestSys:
    def test_every_figure_is_a_retained_message_that_wildcards_do_not_reach(self) -> None:
        house = House()
        curious, everything = house.connect("curious"), house.connect("everything")
        everything.subscribe("#", "+/broker/uptime")
        curious.subscribe("$SYS/broker/clients/+")
        values = sys_topics.figures(house.broker, "n1", "1.0", 5)
        sys_topics.publish(house.broker, values, house.now_ms)
        house.is_awake = True
        house.turn()
        live = {m.message.topic: m.message.payload for m in curious.messages()}
        assert live["$SYS/broker/clients/connected"] == b"2"
        assert everything.read() == []
        late = house.connect("late", v5=False)
        late.subscribe("$SYS/#")
        kept = {m.message.topic: m.message.payload.decode() for m in late.messages()}
        assert kept == values

    def test_the_next_round_takes_the_place_of_the_last(self) -> None:
        house = House()
        for uptime_s in (1, 2):
            values = sys_topics.figures(house.broker, "n1", "1.0", uptime_s)
            sys_topics.publish(house.broker, values, house.now_ms)
        assert len(house.broker.retained) == len(values)
        late = house.connect("late")
        late.subscribe("$SYS/broker/uptime")
        assert late.payloads() == [b"2"]


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("127.0.0.1", 1), True),
        (("127.9.9.9", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("fe80::1%lo", 1, 0, 1), False),
        (("192.0.2.1", 1), False),
        (("::ffff:192.0.2.1", 1, 0, 0), False),
        (("localhost", 1), False),
        ("", True),
        (None, True),
    ],
)
def test_who_is_on_this_machine(peer: object, expected: bool) -> None:
    assert is_loopback(peer) is expected
