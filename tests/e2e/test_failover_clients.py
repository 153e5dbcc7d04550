"""`Publisher` and `Subscriber` with two real brokers, one of which is killed."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from e2e.processes import MILLRACE, BrokerProcess, environment
from e2e.running import run
from e2e.test_cluster import whole
from millrace.client import Client, Publisher, Subscriber
from millrace.local_cluster import LocalCluster, PortBlock
from waiting import until, until_async

INTERVAL_S = 0.02


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Two brokers that know nothing of each other."""
    ports = PortBlock()
    brokers = [
        BrokerProcess(tmp_path / name, "--mqtt", f"127.0.0.1:{ports.take()}").wait_ready() for name in "ab"
    ]
    yield brokers
    for broker in brokers:
        broker.stop()
    ports.close()


def urls(pair: list[BrokerProcess]) -> list[str]:
    return [f"mqtt://127.0.0.1:{broker.port}" for broker in pair]


async def numbers(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield b"%d" % number


def test_a_publisher_goes_to_the_other_broker_and_sends_its_last_messages_again(
    pair: list[BrokerProcess],
) -> None:
    async def scenario() -> None:
        got: list[int] = []
        async with (
            Client(urls(pair)[1]) as reader,
            reader.subscribe("beat") as messages,
            Publisher(urls(pair), interval_s=INTERVAL_S, keep_last=60, timeout_s=10.0) as publisher,
        ):

            async def read() -> None:
                async for message in messages:
                    got.append(int(message.payload))

            reading = asyncio.create_task(read())
            running = asyncio.create_task(publisher.run("beat", numbers(60)))
            await until_async(lambda: publisher.acknowledged >= 20, "the primary to be in use")
            acknowledged = publisher.acknowledged
            pair[0].signal(signal.SIGKILL)
            await running
            await until_async(lambda: 59 in got, "the last message")
            reading.cancel()
            assert publisher.switches == 1
            assert publisher.given_up == 0
            assert got == list(range(got[0], 60)), "in order, none missing, none twice"
            assert got[0] <= acknowledged, "the last messages before the kill came again"

    run(scenario())


def test_a_subscriber_of_both_sees_each_message_once_across_a_failover(tmp_path: Path) -> None:
    """Two nodes of a cluster hand out the same messages; the publisher's node is killed in the middle."""

    async def scenario() -> None:
        async with LocalCluster(3, tmp_path) as cluster:
            await whole(cluster)
            first, second = cluster.nodes[0], cluster.nodes[1]
            got: list[int] = []
            sources: set[str] = set()
            async with (
                Subscriber(first.url, second.url, "beat") as subscriber,
                Publisher((first.url, second.url), interval_s=INTERVAL_S, keep_last=200) as publisher,
            ):

                async def read() -> None:
                    async for sourced in subscriber:
                        got.append(int(sourced.message.payload))
                        sources.add(sourced.source)

                reading = asyncio.create_task(read())
                running = asyncio.create_task(publisher.run("beat", numbers(200)))
                await until_async(lambda: len(got) >= 20 and subscriber.repeated > 5, "both to deliver")
                await first.kill()
                await running
                await until_async(lambda: len(got) >= 200, "everything", 30.0)
                reading.cancel()
            assert sorted(got) == list(range(200))
            assert publisher.given_up == 0
            assert "backup" in sources

    run(scenario())


def test_by_command_with_the_source_of_each_message(pair: list[BrokerProcess]) -> None:
    primary, backup = urls(pair)
    both = ["--url", primary, "--backup", backup]
    reader = subprocess.Popen(
        [MILLRACE, "sub", "beat", *both, "--json", "--count", "100", "--timeout", "60"],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    # At each broker what was asked for, and its word on epochs.
    until(lambda: _subscribers(pair) == 4, "the reader at both brokers", 20.0)
    pace = ["--every", "50ms", "--repeat", "100", "--keep-last", "100"]
    writer = subprocess.Popen(
        [MILLRACE, "pub", "beat", "x", *both, *pace, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert reader.stdout is not None
    first = json.loads(reader.stdout.readline())
    assert (first["source"], first["payload"]) == ("primary", "x")
    pair[0].signal(signal.SIGKILL)
    out, _ = writer.communicate(timeout=60)
    assert json.loads(out)["switches"] >= 1
    rest, _ = reader.communicate(timeout=60)
    rows = [first, *map(json.loads, rest.splitlines())]
    assert reader.returncode == 0 and len(rows) == 100
    assert rows[-1]["source"] == "backup"


def _subscribers(pair: list[BrokerProcess]) -> int:
    from e2e.http_calls import MqttDoor

    return sum(MqttDoor(broker.ports["http"])("GET", "/status").json["subscriptions"] for broker in pair)
