"""What arrives at a frame stream in one piece: classes mixed, some without one, and topics that are known
from another node's publishers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from millrace.broker import meta
from millrace.broker.inbound import Inbound
from millrace.broker.meta import spec_from_dict
from millrace.client import Client
from millrace.client.errors import ClientError
from millrace.embedded import Broker
from millrace.node.primary_backup_frame import FrameShard

TIMEOUT_S = 20.0
CLASSES = [
    {"filter": "line/a/#", "period_ms": 100, "deadline_ms": 500, "loss_tolerance": 0, "retention": 40},
    {"filter": "line/b/#", "period_ms": 100, "deadline_ms": 50, "loss_tolerance": None},
]
STREAM = {
    "name": "line",
    "filters": ["line/#"],
    "replication": "primary-backup",
    "primary_backup": {"schedule": "frame", "topics": CLASSES},
}


def run(scene: Callable[[Broker, Client, FrameShard], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            broker = await stack.enter_async_context(Broker())
            await broker.server.streams.put(spec_from_dict(STREAM), create=True)
            (number,) = broker.server.streams.table.streams["line"].shards
            shard = broker.server.streams.shards[number]
            assert isinstance(shard, FrameShard)
            await scene(broker, await stack.enter_async_context(Client(broker.url)), shard)

    asyncio.run(body())


async def publish(client: Client, topics: list[str], qos: int = 1) -> list[Any]:
    """All in one piece; the payload is the place in the list."""
    calls = [client.publish(topic, str(place), qos=qos) for place, topic in enumerate(topics)]
    return await asyncio.gather(*calls, return_exceptions=True)


def test_of_messages_in_one_piece_only_those_without_a_class_are_refused() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        topics = ["line/a/1", "line/c/1", "line/b/1", "line/a/2", "line/c/1", "line/a/1"]
        async with client.subscribe("line/#", qos=1) as messages:
            # The second time their topics are known, and they come as one run.
            for _ in range(2):
                answers = await publish(client, topics)
                assert [isinstance(one, ClientError) for one in answers] == [
                    topic == "line/c/1" for topic in topics
                ]
                found = [await messages.get(TIMEOUT_S) for _ in range(4)]
                assert sorted(int(one.payload) for one in found) == [0, 2, 3, 5]
                assert [int(one.payload) for one in found if one.topic == "line/a/1"] == [0, 5]
        shown = shard.shown()
        assert [row["of"] for row in shown["measured"][:2]] == [6, 2]
        assert shown["overloaded"] == shown["queued"] == 0
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_a_queue_without_room_refuses_a_run_whole_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.node.primary_backup_frame._JOBS_MAX", 4)

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        topics = [f"line/b/{n}" for n in range(5)]
        async with client.subscribe("line/#", qos=1) as messages:
            for topic in topics:
                await client.publish(topic, "known", qos=1)
                await messages.get(TIMEOUT_S)
            answers = await publish(client, topics)
            assert all(isinstance(one, ClientError) for one in answers), "five do not fit into four"
            assert shard.shown()["overloaded"] == 5
            await publish(client, topics[:4])
            found = [await messages.get(TIMEOUT_S) for _ in range(4)]
            assert [int(one.payload) for one in found] == [0, 1, 2, 3]
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_topics_that_were_delivered_here_need_no_closer_look_when_their_publishers_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[str] = []
    accept = Inbound.accept

    def counted(self: Inbound, session: Any, topic: str, *rest: Any) -> None:
        looked_at.append(topic)
        accept(self, session, topic, *rest)

    monkeypatch.setattr(Inbound, "accept", counted)

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        async with client.subscribe("line/#", qos=1) as messages:
            for number in range(20):
                broker.server.broker.router.delivery_route(f"line/a/{number}".encode())
            topics = [f"line/a/{number}" for number in range(20)]
            topics.insert(10, "line/b/new")
            await publish(client, topics)
            found = [await messages.get(TIMEOUT_S) for _ in range(21)]
            assert sorted(int(one.payload) for one in found) == list(range(21))
            assert [one.topic for one in found if one.topic != "line/b/new"] == [
                topic for topic in topics if topic != "line/b/new"
            ]
        assert looked_at == ["line/b/new"]

    run(scene)


def test_routes_stay_known_when_the_record_of_roles_changes() -> None:
    """Finding them all again takes a node longer than its partner waits for it."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        streams, router = broker.server.streams, broker.server.broker.router
        await client.publish("line/a/1", "known", qos=1)
        before, generation = streams.definitions.pairs.by_shard[shard.number], router.generation
        pair = {"epoch": before.epoch + 2, "primary": before.primary, "backup": None, "is_in_sync": False}
        report = {"shard": shard.number, "after": before.version, "pair": pair, "is_seized": True}
        await streams.command(meta.command("pair.report", **report))
        assert streams.definitions.pairs.by_shard[shard.number].version > before.version
        assert router.generation == generation and b"line/a/1" in router.deliveries
        await streams.put(spec_from_dict({**STREAM, "name": "other", "filters": ["other/#"]}), create=True)
        assert router.generation > generation, "another stream may keep a topic now"

    run(scene)
