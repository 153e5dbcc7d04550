"""Primary-backup streams with real processes: the primary is killed under load, and nothing is lost."""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.client import Client
from millrace.errors import LocalError
from millrace.lab.campaign.pair_run import STREAM, Beat, PairRun, call, create_stream, settled, taken_over
from millrace.lab.demo.stage import ready
from millrace.lab.demo.story import Story
from millrace.local_cluster import LocalCluster
from waiting import until_async

FRAME: dict[str, Any] = {
    "schedule": "frame",
    "check_interval_ms": 400,
    "topics": [
        {"filter": "alarms/#", "period_ms": 20, "deadline_ms": 1000, "loss_tolerance": 0, "retention": 300}
    ],
}


@asynccontextmanager
async def nodes(count: int) -> AsyncIterator[LocalCluster]:
    with tempfile.TemporaryDirectory() as directory:
        async with LocalCluster(count, Path(directory)) as cluster:
            await ready(Story(), cluster, count)
            yield cluster


async def killed_once(count: int, settings: dict[str, object], keep_last: int = 300) -> None:
    async with nodes(count) as cluster:
        await create_stream(cluster, settings)
        said: list[tuple[str, str]] = []
        beats = (Beat(keep_last=keep_last),)
        work = PairRun(cluster, interval_s=0.02, beats=beats, say=lambda who, what: said.append((who, what)))
        outcome = await work.run(1, before_s=0.5, after_s=0.2)
        assert outcome.published > 50
        assert outcome.lost == [], said
        assert outcome.doubled == 0
        assert "backup" in outcome.sources, "the other node delivered after the kill"


def test_a_killed_primary_loses_nothing_where_the_cluster_has_a_majority() -> None:
    asyncio.run(killed_once(3, {"check_interval_ms": 400}, keep_last=1000))


@pytest.mark.slow
def test_a_killed_primary_loses_nothing_with_two_nodes_alone() -> None:
    asyncio.run(killed_once(2, {"check_interval_ms": 1000}))


@pytest.mark.slow
def test_a_killed_primary_of_a_frame_schedule_loses_no_more_than_its_publisher_keeps() -> None:
    asyncio.run(killed_once(3, FRAME))


def command(cluster: LocalCluster, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", *words, "--url", cluster.nodes[0].http_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def switched_over() -> None:
    async with nodes(2) as cluster:
        made = await asyncio.to_thread(
            command,
            cluster,
            *("stream", "create", STREAM, "alarms/#", "--replication", "primary-backup"),
            *("--schedule", "frame", "--check-interval", "500"),
            *("--topic-class", "alarms/fast/#=50,400,0,40", "--topic-class", "alarms/#=1000,900,inf,0"),
        )
        assert made.returncode == 0, made.stderr
        refused = await asyncio.to_thread(
            command,
            cluster,
            *("stream", "create", "late", "late/#", "--replication", "primary-backup"),
            *("--schedule", "frame", "--topic-class", "late/#=100,100,0,2"),
        )
        assert refused.returncode == 1
        assert "replication deadline would be -3360 ms" in refused.stderr
        primary, backup = await settled(cluster)
        shown = await asyncio.to_thread(command, cluster, "stream", "show", STREAM)
        assert "any number of messages may be lost" in shown.stdout.replace("\n", " ")
        switched = await asyncio.to_thread(command, cluster, "stream", "switch", STREAM, "--json")
        assert switched.returncode == 0, switched.stderr
        assert json.loads(switched.stdout)["switched"][0]["epoch"] > 1
        assert (await settled(cluster)) == (backup, primary)
        with pytest.raises(LocalError, match="no primary-backup shard"):
            await call(cluster.nodes[0], "POST", "/v1/streams/default/switch", {})


def test_topic_classes_are_admitted_and_shown_and_a_switch_over_is_a_command() -> None:
    asyncio.run(switched_over())


async def alone_then_two(data: Path) -> None:
    cluster = LocalCluster(1, data)
    async with cluster:
        made = await asyncio.to_thread(
            command,
            cluster,
            *("stream", "create", STREAM, "alarms/#", "--replication", "primary-backup", "--json"),
        )
        assert made.returncode == 0, made.stderr
        (text,) = json.loads(made.stdout)["warnings"]
        assert "has no backup" in text
        assert text in made.stderr
        shown = await asyncio.to_thread(command, cluster, "stream", "show", STREAM)
        assert text in shown.stderr
        await until_async(lambda: any(text in line for line in cluster.nodes[0].lines), "a line in the log")
        await cluster.add().start()
        await settled(cluster)
        assert "warnings" not in await call(cluster.nodes[0], "GET", f"/v1/streams/{STREAM}")
        shown = await asyncio.to_thread(command, cluster, "stream", "show", STREAM)
        assert "has no backup" not in shown.stderr


def test_a_stream_without_a_backup_says_so_until_there_is_one(tmp_path: Path) -> None:
    asyncio.run(alone_then_two(tmp_path))


async def backup_begins_again(data: Path) -> None:
    async with LocalCluster(2, data) as cluster:
        await ready(Story(), cluster, 2)
        await create_stream(cluster, FRAME)
        primary, backup = await settled(cluster)
        async with Client(primary.url) as reader, AsyncExitStack() as stack:
            alarms = await stack.enter_async_context(reader.subscribe("alarms/#"))
            for life in range(2):
                async with Client(backup.url) as writer:
                    for number in range(5):
                        await writer.publish("alarms/1", b"%d %d" % (life, number), qos=1)
                got = [(await asyncio.wait_for(anext(alarms), 10)).payload for _ in range(5)]
                assert got == [b"%d %d" % (life, number) for number in range(5)]
                await backup.kill()
                await backup.start()
                await taken_over(cluster, primary, backup)


def test_what_is_published_at_a_backup_that_began_again_is_not_taken_for_a_repeat(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(backup_begins_again(tmp_path), 120))


async def known_to_the_other(data: Path) -> None:
    """What the node that is not primary has of a frame stream: copies, and what is retained."""
    copied = {**FRAME["topics"][0], "retention": 80}
    async with LocalCluster(2, data) as cluster:
        await ready(Story(), cluster, 2)
        await create_stream(cluster, {**FRAME, "topics": [copied]})
        primary, backup = await settled(cluster)

        async def way() -> int:
            (row,) = (await call(primary, "GET", f"/v1/streams/{STREAM}"))["shard_list"]
            return sum(one["of"] for one in row["measured"] if one["what"] == "to the backup")

        async with Client(primary.url) as writer:
            await writer.publish("alarms/kept", b"kept", qos=1, retain=True)
            while not await way():
                await writer.publish("alarms/1", b"more", qos=1)
        found = None
        while found is None:
            async with Client(backup.url) as reader, reader.subscribe("alarms/kept") as messages:
                with contextlib.suppress(TimeoutError):
                    found = await messages.get(1.0)
        assert found.payload == b"kept"


def test_the_other_node_of_a_frame_stream_has_copies_and_what_is_retained(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(known_to_the_other(tmp_path), 120))
