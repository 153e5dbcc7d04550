"""Streams that changed before a node in this process was started again: what was acknowledged is there."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from e2e.running import run
from millrace import Broker
from millrace.broker.streams.stream import Capture, StreamSpec
from millrace.client import Client

JOBS = StreamSpec(name="jobs", filters=("jobs/#",))
SLEEPER: dict[str, Any] = {"client_id": "sleeper", "session_expiry_s": 600}


def broker_at(path: Path) -> Broker:
    return Broker(node__data=str(path / "data"))


async def publish(broker: Broker, *payloads: str) -> None:
    async with Client(broker.url, client_id="p") as client:
        for payload in payloads:
            await client.publish("jobs/x", payload, qos=1)


async def received(broker: Broker, count: int) -> list[bytes]:
    """So many messages of the durable client, each acknowledged."""
    async with Client(broker.url, **SLEEPER) as client, client.subscribe("#", qos=1) as jobs:
        return [(await anext(jobs)).payload for _ in range(count)]


def test_a_stream_that_captures_nothing_any_more_keeps_what_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_at(tmp_path) as broker:
            await broker.server.engine.opening.put(JOBS, create=True)
            assert await received(broker, 0) == []
            await publish(broker, "kept")
            await broker.server.engine.opening.put(replace(JOBS, capture=Capture.NONE), create=False)
        async with broker_at(tmp_path) as broker:
            assert await received(broker, 1) == [b"kept"]

    run(scenario())


def test_what_was_acknowledged_of_a_log_newer_than_the_subscription_does_not_come_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with (
            broker_at(tmp_path) as broker,
            Client(broker.url, **SLEEPER) as client,
            client.subscribe("#", qos=1) as jobs,
        ):
            await broker.server.engine.opening.put(JOBS, create=True)
            await publish(broker, "1", "2")
            assert [(await anext(jobs)).payload for _ in range(2)] == [b"1", b"2"]
        async with broker_at(tmp_path) as broker:
            await publish(broker, "3")
            assert await received(broker, 1) == [b"3"]

    run(scenario())
