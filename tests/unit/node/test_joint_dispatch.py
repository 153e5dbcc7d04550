"""Messages of a frame stream that are due one after the other and go to the same receivers leave as one run:
each once, in their order, at the QoS of each subscriber. What cannot be joined leaves alone, in its place."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.message import Run
from millrace.broker.streams.stream import StreamSpec
from millrace.broker.topics.routing import Route
from millrace.client import Client, Subscription
from millrace.embedded import Broker

TIMEOUT_S = 20.0
CLASS = {"filter": "line/#", "period_ms": 1000, "deadline_ms": 900, "loss_tolerance": None, "retention": 0}
STREAM = {
    "name": "line",
    "filters": ["line/#"],
    "replication": "primary-backup",
    "primary_backup": {"schedule": "frame", "topics": [CLASS]},
}


class Line:
    """A node with a frame stream, its clients, and the sizes of runs that left jointly."""

    def __init__(self, stack: AsyncExitStack, broker: Broker, runs: list[int]) -> None:
        self._stack = stack
        self._broker = broker
        self.runs = runs

    async def client(self) -> Client:
        return await self._stack.enter_async_context(Client(self._broker.url))

    async def subscribed(self, filter: str, qos: int, client: Client | None = None) -> Subscription:
        who = client or await self.client()
        return await self._stack.enter_async_context(
            who.subscribe(filter, qos=qos, no_local=client is not None)
        )

    async def publish(self, client: Client, *messages: tuple[str, dict[str, Any]]) -> None:
        """All in one piece, so that they are there in one turn of the node's loop. The payload is the place
        in the list."""
        calls = [
            client.publish(topic, str(place), **{"qos": 1, **options})
            for place, (topic, options) in enumerate(messages)
        ]
        await asyncio.gather(*calls)


async def places(messages: Subscription, count: int) -> list[int]:
    return [int((await messages.get(TIMEOUT_S)).payload) for _ in range(count)]


def run(monkeypatch: pytest.MonkeyPatch, scene: Callable[[Line], Awaitable[None]]) -> None:
    runs: list[int] = []
    passing = Inbound.pass_on_joint

    def counted(self: Inbound, route: Route, run: Run, now_ms: int) -> None:
        runs.append(run.count)
        passing(self, route, run, now_ms)

    monkeypatch.setattr(Inbound, "pass_on_joint", counted)

    async def body() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            broker = await stack.enter_async_context(Broker())
            await broker.server.engine.opening.put(StreamSpec.read(STREAM), create=True)
            await scene(Line(stack, broker, runs))

    asyncio.run(body())


def test_neighbours_with_one_route_are_one_run_for_every_subscriber_at_its_qos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(line: Line) -> None:
        inboxes = {qos: await line.subscribed("line/#", qos) for qos in (0, 1, 2)}
        await line.publish(await line.client(), *((f"line/{n % 3}", {}) for n in range(30)))
        for qos, inbox in inboxes.items():
            found = [await inbox.get(TIMEOUT_S) for _ in range(30)]
            assert [(m.topic, int(m.payload), m.qos) for m in found] == [
                (f"line/{n % 3}", n, min(qos, 1)) for n in range(30)
            ]
        assert line.runs == [30]

    run(monkeypatch, scene)


def test_a_message_with_another_route_or_qos_is_not_joined_and_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(line: Line) -> None:
        everything = await line.subscribed("line/#", 1)
        some = await line.subscribed("line/x", 1)
        await line.publish(
            await line.client(),
            ("line/a", {}),
            ("line/b", {}),
            ("line/x", {}),
            ("line/x", {}),
            ("line/a", {"qos": 2}),
            ("line/b", {"qos": 2}),
            ("line/a", {}),
        )
        assert await places(everything, 7) == list(range(7))
        assert await places(some, 2) == [2, 3]
        assert line.runs == [2, 2, 2, 1]

    run(monkeypatch, scene)


def test_what_depends_on_its_topic_or_publisher_leaves_alone_and_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A retained message, one for a shared group, one that a subscriber has published itself."""

    async def scene(line: Line) -> None:
        publisher = await line.client()
        everything = await line.subscribed("line/#", 1)
        member = await line.subscribed("$share/g/line/g", 1)
        own = await line.subscribed("line/own", 1, publisher)
        await line.publish(
            publisher,
            ("line/a", {}),
            ("line/kept", {"retain": True}),
            ("line/b", {}),
            ("line/g", {}),
            ("line/own", {}),
            ("line/c", {}),
            ("line/d", {}),
        )
        assert await places(everything, 7) == list(range(7))
        assert await places(member, 1) == [3]
        assert line.runs == [1, 1, 2]
        late = await line.subscribed("line/kept", 1)
        assert await places(late, 1) == [1]
        await (await line.client()).publish("line/own", "9")
        assert await places(own, 1) == [9], "its own did not come"

    run(monkeypatch, scene)
