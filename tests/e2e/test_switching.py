"""The replication of a stream is changed while messages are under way: on three real nodes, with publishers
at two of them and a subscriber at the third. Every publish is acknowledged, everything comes, once and in its
order, and what the logs of before hold can be read by offset."""

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from e2e.test_cluster import name, run
from millrace.client import Client
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause, until_async

TIMEOUT_S = 60.0
STORED = ("leaderless", "quorum", "primary-backup", "quorum")
# Publishes of one publisher that wait for their acknowledgement at a time.
WINDOW = 8
# Of each publisher, between two changes.
MESSAGES = 100
# How long a node stands still: less than the 3 s after which it counts as gone.
STANDS_S = 2.0


async def call(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(Http(node.http_url).call, method, path, body)


class Publisher:
    """Publishes numbers on a topic of its own until it is told to stop. A refusal ends the test."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self.topic = topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._is_stopping = False

    async def run(self) -> None:
        slots = asyncio.Semaphore(WINDOW)

        async def one(number: int) -> None:
            await self._client.publish(self.topic, str(number), qos=1)
            self.acknowledged.add(number)
            slots.release()

        async with asyncio.TaskGroup() as group:
            while not self._is_stopping:
                await slots.acquire()
                group.create_task(one(self.sent))
                self.sent += 1

    def stop(self) -> None:
        self._is_stopping = True

    @property
    def unanswered(self) -> int:
        """The first one that is not acknowledged, or the next to come."""
        return next(number for number in range(self.sent + 1) if number not in self.acknowledged)

    async def goes_on(self) -> None:
        wanted = len(self.acknowledged) + MESSAGES
        await until_async(
            lambda: len(self.acknowledged) >= wanted,
            f"{MESSAGES} more on {self.topic}, where {self.sent} are sent",
            TIMEOUT_S,
        )


class Traffic:
    """Publishers at two nodes, a subscriber at the third."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._nodes = cluster.nodes
        self.publishers: list[Publisher] = []
        self.got: dict[str, list[int]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """On leaving, what was sent is acknowledged and what was acknowledged has arrived."""
        first, second, third = self._nodes
        async with AsyncExitStack() as stack:
            reader = await stack.enter_async_context(Client(third.url, client_id=name("s"), reconnect=False))
            messages = await stack.enter_async_context(reader.subscribe("sw/#", qos=1))

            async def read() -> None:
                async for message in messages:
                    self.got[message.topic].append(int(message.payload))

            reading = asyncio.create_task(read())
            stack.callback(reading.cancel)
            for node in (first, second):
                client = await stack.enter_async_context(
                    Client(node.url, client_id=name("p"), reconnect=False)
                )
                self.publishers.append(Publisher(client, f"sw/{node.name}"))
            self.got = {publisher.topic: [] for publisher in self.publishers}
            async with asyncio.TaskGroup() as group:
                for publisher in self.publishers:
                    group.create_task(publisher.run())
                await self.go_on()
                yield
                for publisher in self.publishers:
                    publisher.stop()
            for publisher in self.publishers:
                assert len(publisher.acknowledged) == publisher.sent
            await until_async(
                lambda: not self.missing(), f"everything, {self.missing()} is missing", TIMEOUT_S
            )

    def missing(self) -> set[tuple[str, int]]:
        return {
            (publisher.topic, number)
            for publisher in self.publishers
            for number in publisher.acknowledged.difference(self.got[publisher.topic])
        }

    async def go_on(self) -> None:
        await asyncio.gather(*(publisher.goes_on() for publisher in self.publishers))

    def came_once(self) -> None:
        for topic, numbers in self.got.items():
            assert len(numbers) == len(set(numbers)), (topic, Counter(numbers).most_common(5))

    def came_in_order(self, ends: "dict[str, int] | None" = None) -> None:
        """Those below `ends` of each topic."""
        for topic, numbers in self.got.items():
            part = [number for number in numbers if ends is None or number < ends[topic]]
            late = [pair for pair in itertools.pairwise(part) if pair[0] > pair[1]]
            assert not late, (topic, late)


async def make_stream(cluster: LocalCluster) -> None:
    await call(cluster.nodes[0], "POST", "/v1/streams", {"name": "sw", "filters": ["sw/#"]})
    await everywhere(cluster, "quorum")


async def everywhere(cluster: LocalCluster, replication: str) -> None:
    """Every node knows the stream as it is now."""

    async def is_known(node: NodeProcess) -> bool:
        rows = (await call(node, "GET", "/v1/streams"))["streams"]
        return any(row["name"] == "sw" and row["replication"] == replication for row in rows)

    async with asyncio.timeout(TIMEOUT_S):
        for node in cluster.nodes:
            while not await is_known(node):
                await pause()


async def switch(node: NodeProcess, replication: str) -> None:
    await call(node, "PATCH", "/v1/streams/sw", {"replication": replication})


async def stored(node: NodeProcess) -> dict[str, set[int]]:
    """Everything that the stream has in its logs, sealed and open, as this node gives it by offset; once."""
    found: Counter[tuple[str, int]] = Counter()
    for row in (await call(node, "GET", "/v1/streams/sw"))["shard_list"]:
        offset = 0
        while offset < row["next_offset"]:
            path = f"/v1/streams/sw/shards/{row['shard']}/messages?from={offset}&limit=10000"
            answer = await call(node, "GET", path)
            found.update((message["topic"], int(message["payload"])) for message in answer["messages"])
            offset = answer["next_offset"]
    assert not found or max(found.values()) == 1, (node.name, found.most_common(5))
    kept: dict[str, set[int]] = {}
    for topic, number in found:
        kept.setdefault(topic, set()).add(number)
    return kept


async def switched_through(cluster: LocalCluster, ways: tuple[str, ...]) -> None:
    """From one way to the next with messages under way; then to routed, where nothing is stored, and back."""
    await make_stream(cluster)
    traffic = Traffic(cluster)
    async with traffic.running():
        for turn, replication in enumerate(ways):
            await switch(cluster.nodes[turn % 3], replication)
            await traffic.go_on()
        ends = {publisher.topic: publisher.sent for publisher in traffic.publishers}
        first_routed = {publisher.topic: publisher.unanswered for publisher in traffic.publishers}
        await switch(cluster.nodes[1], "routed")
        await traffic.go_on()
        await switch(cluster.nodes[2], "quorum")
        await everywhere(cluster, "quorum")
        last_routed = {publisher.topic: publisher.sent for publisher in traffic.publishers}
        await traffic.go_on()
    traffic.came_once()
    traffic.came_in_order(ends)
    publishers = traffic.publishers
    routed = {topic: range(first, last_routed[topic]) for topic, first in first_routed.items()}
    for node in cluster.nodes:
        async with asyncio.timeout(TIMEOUT_S):
            # A majority acknowledged: this node may have the last ones a little later.
            while True:
                kept = await stored(node)
                lost = {one.topic: one.acknowledged - kept.get(one.topic, set()) for one in publishers}
                if all(numbers.issubset(routed[topic]) for topic, numbers in lost.items()):
                    break
        assert all(lost.values()), "while it was routed nothing was stored"


def test_nothing_is_lost_or_doubled_when_the_replication_changes_under_load(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        await switched_through(cluster, STORED)

    run(body, tmp_path)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_replication_changes_many_times(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        rng, ways = Random(1), ["quorum"]
        while len(ways) < 25:
            ways.append(rng.choice([way for way in sorted(set(STORED)) if way != ways[-1]]))
        await switched_through(cluster, tuple(ways[1:]))

    run(body, tmp_path)


@pytest.mark.slow
def test_order_holds_at_a_node_that_stands_still_while_the_replication_changes(tmp_path: Path) -> None:
    """The subscriber's node hears of the change, of the end of the old log and of the new one all at once."""

    async def body(cluster: LocalCluster) -> None:
        await make_stream(cluster)
        traffic = Traffic(cluster)
        first, _, third = cluster.nodes

        async def change(replication: str) -> None:
            await traffic.go_on()
            await switch(first, replication)
            await traffic.go_on()

        async with traffic.running():
            for replication in (*STORED, *STORED):
                third.signal(signal.SIGSTOP)
                changing = asyncio.create_task(change(replication))
                await asyncio.wait({changing}, timeout=STANDS_S)
                third.signal(signal.SIGCONT)
                await changing
        traffic.came_once()
        traffic.came_in_order()

    run(body, tmp_path)
