"""A pipeline that the cluster holds, on real Spark, at three nodes: whoever dies, each row is there once."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e.staged import contents
from e2e.test_cluster import whole
from e2e.test_declared_pipelines import owner, shown
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster, NodeProcess
from spark.filling import fill
from waiting import until_async

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("java") is None, reason="Java is not installed; Spark needs Java 17 or later"
    ),
]

_S_MAX = 240
_CONF = [
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions=2",
]
COPY = """
CREATE STREAM numbers USING millrace OPTIONS (stream 'in', maxRowsPerTrigger '50');
INSERT INTO copied USING millrace OPTIONS (stream 'out', topic 'out/copy') SELECT payload FROM numbers;
"""


def create(cluster: LocalCluster, tmp_path: Path, name: str, file: str, text: str) -> None:
    http = Http(cluster.nodes[0].http_url)
    for stream in ("in", "out"):
        form = {"name": stream, "filters": [f"{stream}/#"], "shards": 2}
        http.call("POST", "/v1/streams", form)
    definition = {
        "name": name,
        "file": file,
        "master": "local[2]",
        "checkpoints": f"file://{tmp_path / 'shared'}",
        "trigger": "100ms",
        "conf": _CONF,
        "ui_port": 4150,
    }
    http.call("POST", "/v1/pipelines", {"definition": definition, "text": text})


def run(test: Any, tmp_path: Path) -> None:
    async def body() -> None:
        options = ("--set", "pipelines.run=true")
        async with (
            asyncio.timeout(900),
            LocalCluster(3, tmp_path / "cluster", options=options) as cluster,
        ):
            await whole(cluster)
            await test(cluster)

    asyncio.run(body())


async def publish(node: NodeProcess, numbers: range) -> None:
    rows = [(f"in/{number % 5}", b"%d" % number) for number in numbers]
    await asyncio.to_thread(fill, node.mqtt_port, rows)


async def has(http: Http, wanted: Counter[int]) -> None:
    """All that is wanted is there, once, and nothing else comes."""

    def look() -> bool:
        found = contents(http, "out")
        assert not found - wanted, f"too many: {(found - wanted).most_common(5)}"
        return found == wanted

    await until_async(look, "every row", _S_MAX)


def driver_of(node: NodeProcess, name: str) -> int:
    return int((node.data / "pipelines" / name / "driver.pid").read_text())


def test_the_driver_and_then_its_node_are_killed(tmp_path: Path) -> None:
    """Stream to stream: kill -9 of the driver, then of the owner's node in the middle of its batches. Another
    node goes on at the checkpoint, and the multiset is exact at every node. Spark's pages have an address."""

    async def play(cluster: LocalCluster) -> None:
        await asyncio.to_thread(create, cluster, tmp_path, "copy", "copy.sql", COPY)
        first = await owner(cluster, name="copy")
        other = next(node for node in cluster.nodes if node is not first)
        http = Http(other.http_url)
        assert ":4150" in (await asyncio.to_thread(shown, http, "copy"))["ui"]
        await publish(other, range(300))
        await until_async(lambda: len(contents(http, "out")) >= 50, "the first batch", _S_MAX)
        os.kill(driver_of(first, "copy"), signal.SIGKILL)
        await has(http, Counter(range(300)))
        await publish(other, range(300, 900))
        await until_async(lambda: len(contents(http, "out")) >= 400, "batches of the second driver", _S_MAX)
        await first.kill()
        second = await owner(cluster, apart_from=first.name, name="copy")
        assert second is not first
        await publish(other, range(900, 1_000))
        await has(http, Counter(range(1_000)))
        await first.start()
        await whole(cluster)
        for node in cluster.nodes:
            await has(Http(node.http_url), Counter(range(1_000)))

    run(play, tmp_path)


WINDOWS = """
def build(flow):
    from pyspark.sql import functions as F

    number = F.col("payload").cast("string").cast("bigint")
    timed = flow.source("in", maxRowsPerTrigger="50").select(number.alias("number"))
    timed = timed.withColumn("time", F.timestamp_seconds("number")).withWatermark("time", "5 seconds")
    sums = timed.groupBy(F.window("time", "10 seconds")).agg(F.sum("number").alias("total"))
    flow.sink("sums", sums.select(F.col("total").cast("string").alias("payload")), topic="out/sums")
"""


def test_windows_keep_their_state_over_a_rolling_restart(tmp_path: Path) -> None:
    """Windows are open while one node after the other, the owner among them, is stopped and started: their
    sums have what came before and after, once."""

    async def play(cluster: LocalCluster) -> None:
        await asyncio.to_thread(create, cluster, tmp_path, "count", "windows.py", WINDOWS)
        first = await owner(cluster)
        http = Http(first.http_url)
        # Half of a window each time: what is open must not be forgotten.
        number = 25
        await publish(first, range(number))
        await has(http, Counter([sum(range(10))]))
        for node in cluster.nodes:
            await node.stop()
            await node.start()
            await whole(cluster)
            await publish(node, range(number, number + 20))
            number += 20
        await owner(cluster)
        # Windows end five seconds before the newest number.
        closed = range((number - 1 - 5) // 10)
        await has(http, Counter(sum(range(10 * one, 10 * one + 10)) for one in closed))

    run(play, tmp_path)
