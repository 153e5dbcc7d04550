"""Three real nodes and a routed stream: clear answers, switching, sessions that move, killed nodes."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.client import Client
from millrace.client.http import Http, HttpError
from millrace.lab.campaign.report import Report
from millrace.lab.campaign.routed import run_routed
from millrace.lab.demo.by_hand import HandClient
from millrace.lab.demo.stage import is_whole
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause, until_async

TIMEOUT_S = 60.0
STREAM = {"name": "live", "filters": ["live/#"], "replication": "routed"}


async def call(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(Http(node.http_url).call, method, path, body)


async def refused(node: NodeProcess, method: str, path: str, body: Any = None) -> str:
    with pytest.raises(HttpError) as caught:
        await call(node, method, path, body)
    return str(caught.value)


async def everywhere(cluster: LocalCluster, replication: str) -> None:
    """Every node knows the stream as it is now."""
    async with asyncio.timeout(TIMEOUT_S):
        for node in cluster.nodes:
            while True:
                found = (await call(node, "GET", "/v1/streams"))["streams"]
                if any(s["name"] == "live" and s["replication"] == replication for s in found):
                    break
                await pause()


def run(test: Callable[[LocalCluster], Awaitable[None]], data: Path, *options: str) -> None:
    async def body() -> None:
        async with asyncio.timeout(180), LocalCluster(3, data, options=options) as cluster:
            while not all([await is_whole(node, 3) for node in cluster.nodes]):
                await pause()
            await call(cluster.nodes[0], "POST", "/v1/streams", STREAM)
            await everywhere(cluster, "routed")
            await test(cluster)

    asyncio.run(body())


def cli(node: NodeProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "millrace.cli.main", *words, "--url", node.http_url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, input="", check=False)


def test_a_routed_stream_answers_clearly_and_can_be_switched(tmp_path: Path) -> None:
    """What has no offset says so; a switch says what it means, asks, and keeps what is retained."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        got: list[bytes] = []
        async with (
            Client(first.url, client_id="one") as one,
            Client(second.url, client_id="two") as two,
            two.subscribe("live/#", qos=2) as messages,
        ):

            async def read() -> None:
                async for message in messages:
                    got.append(message.payload)

            reading = asyncio.create_task(read())
            # SUBACK came after every node knew: nothing published from then on is missed, at any QoS.
            for qos in (0, 1, 2):
                await one.publish("live/a", b"%d" % qos, qos=qos)
            await until_async(lambda: len(got) == 3, f"three messages, got {got}", TIMEOUT_S)
            assert sorted(got) == [b"0", b"1", b"2"]
            await one.publish("live/kept", b"value", qos=1, retain=True)
            await until_async(lambda: len(got) == 4, f"the retained one, got {got}", TIMEOUT_S)

            known = (await call(first, "GET", "/status"))["routed"]
            assert sum(known["peers"].values()) == 1, "n1 knows the one filter there is elsewhere"
            assert known["retained"] == 1
            assert "routed" in await refused(third, "GET", "/v1/streams/live/shards/99/messages")
            assert "no stored messages" in await refused(third, "POST", "/v1/streams/live/purge", {})
            assert "stored nowhere" in await refused(
                third, "POST", "/v1/groups", {"name": "g", "filters": ["live/a"]}
            )

            asked = await asyncio.to_thread(cli, second, "stream", "alter", "live", "--replication", "quorum")
            assert asked.returncode == 2 and "offset 0" in asked.stderr, asked
            assert (await call(second, "GET", "/v1/streams/live"))["replication"] == "routed", (
                "nobody said yes"
            )
            done = await asyncio.to_thread(
                cli, second, "stream", "alter", "live", "--replication", "quorum", "--yes"
            )
            assert done.returncode == 0, done
            await everywhere(cluster, "quorum")
            await one.publish("live/a", b"stored", qos=1)
            await until_async(lambda: b"stored" in got, f"the stored one, got {got}", TIMEOUT_S)
            (shard,) = (await call(second, "GET", "/v1/streams/live"))["shard_list"]
            assert shard["next_offset"] == 1, "only what was published since has an offset"
            queue = {"topic": "live/queue"}
            assert await call(second, "PUT", "/topic", queue) == {"success": True}
            assert (await call(second, "PUT", "/message", {**queue, "message": "kept"}))["success"]

            await call(second, "PATCH", "/v1/streams/live", {"replication": "routed"})
            await everywhere(cluster, "routed")
            await one.publish("live/a", b"unstored", qos=1)
            await until_async(lambda: b"unstored" in got, f"the last one, got {got}", TIMEOUT_S)
            assert len(got) == len(set(got)), f"each once: {got}"
            sealed = f"/v1/streams/live/shards/{shard['shard']}/messages"
            read_back: list[str] = []
            async with asyncio.timeout(TIMEOUT_S):
                while len(read_back) < 2:
                    found = (await call(third, "GET", sealed))["messages"]
                    read_back = [row["payload"] for row in found]
            assert read_back == ["stored", "kept"]
            lost = {**queue, "message": "lost"}
            assert "stored nowhere" in await refused(third, "PUT", "/message", lost)
            assert await call(second, "GET", "/message", queue) == {"success": True, "message": "kept"}
            reading.cancel()
        async with Client(third.url) as fresh, fresh.subscribe("live/kept", qos=1) as kept:
            assert (await asyncio.wait_for(anext(aiter(kept)), TIMEOUT_S)).payload == b"value"

    run(body, tmp_path)


def test_a_session_moves_with_what_it_has_not_finished(tmp_path: Path) -> None:
    """Under way at the old node, and queued there while it was away: both come along [E4]."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        roamer = HandClient(first.mqtt_port, "roamer")
        await roamer.connect()
        await roamer.subscribe("live/roam", 2)
        async with Client(second.url, client_id="publisher") as publisher:
            await publisher.publish("live/roam", b"1", qos=2)
            under_way = await roamer.publish()
            roamer.drop()
            await publisher.publish("live/roam", b"2", qos=1)
            moved = HandClient(third.mqtt_port, "roamer")
            assert await moved.connect(), "the session is known"
            again = await moved.publish()
            assert (again.message.payload, again.packet_id, again.dup) == (b"1", under_way.packet_id, True)
            moved.acknowledge(again)
            queued = await moved.publish()
            assert queued.message.payload == b"2"
            moved.acknowledge(queued)
            await publisher.publish("live/roam", b"3", qos=1)
            assert (await moved.publish()).message.payload == b"3"
            moved.drop()

    run(body, tmp_path)


def test_without_takeover_nothing_moves(tmp_path: Path) -> None:
    """The switch: what was under way stays behind, and one name may be connected at two nodes."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        roamer = HandClient(first.mqtt_port, "roamer")
        await roamer.connect()
        await roamer.subscribe("live/roam", 1)
        async with (
            Client(second.url, client_id="same") as publisher,
            Client(third.url, client_id="same") as other,
        ):
            await other.publish("live/other", b"", qos=1)
            await publisher.publish("live/roam", b"behind", qos=1)
            await roamer.publish()
            moved = HandClient(third.mqtt_port, "roamer")
            assert await moved.connect(), "its record moves: subscriptions and cursors"
            async with asyncio.timeout(TIMEOUT_S):
                task = asyncio.create_task(moved.publish())
                while not task.done():
                    await publisher.publish("live/roam", b"new", qos=1)
                    await asyncio.sleep(0)
            assert (await task).message.payload == b"new"
            moved.drop()

    run(body, tmp_path, "--set", "cluster.takeover=false")


@pytest.mark.slow
def test_subscriptions_are_back_soon_after_a_killed_node(tmp_path: Path) -> None:
    """Each node once; 100 filters and a durable session at each [E7]."""

    async def body() -> None:
        report = Report("routed")
        async with asyncio.timeout(150), LocalCluster(3, tmp_path) as cluster:
            await run_routed(cluster, kills=3, seconds=0, down_s=0.5, report=report, say=lambda text: None)
        assert report.violations == []
        assert report.figures["kills"] == 3

    asyncio.run(body())
