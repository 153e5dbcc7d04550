"""The source at a cluster: any replica serves, and one that dies in the middle of a task is passed over."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e.test_cluster import run
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster
from spark.filling import fill
from spark.test_sink_stream import payloads
from waiting import until

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

from millrace.spark import options, source
from millrace.spark.offsets import Span
from millrace.spark.schema import SCHEMA

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_COUNT = 400
_QUERY_S_MAX = 300
# Larger than an answer of a node, so that a task needs several.
_PAYLOAD_BYTES = 100_000


def test_a_node_that_dies_while_a_task_reads_costs_nothing(tmp_path: Path) -> None:
    """Every replica alone has all rows; a task whose node is killed goes on at another, each row once."""

    async def play(cluster: LocalCluster) -> None:
        spec = {"name": "c", "filters": ["c/#"], "shards": 1}
        http = Http(cluster.nodes[0].http_url)
        await asyncio.to_thread(http.call, "POST", "/v1/streams", spec)
        rows = [(f"c/{n % 3}", b"%06d" % n + bytes(_PAYLOAD_BYTES)) for n in range(_COUNT)]
        await asyncio.to_thread(fill, cluster.nodes[0].mqtt_port, rows)
        (row,) = (await asyncio.to_thread(http.get, "/v1/streams/c"))["shard_list"]
        task = source.Task(spans=(Span(shard=row["shard"], start=0, end=_COUNT, stream="c"),))

        def begin(*urls: str) -> Any:
            return source._read(options.parse({"url": ",".join(urls), "stream": "c"}), SCHEMA, task)

        def numbers(batches: Any) -> list[int]:
            return [int(payload[:6]) for batch in batches for payload in batch.column("payload").to_pylist()]

        for node in cluster.nodes:
            assert await asyncio.to_thread(numbers, begin(node.http_url)) == list(range(_COUNT))
        victim, other = cluster.nodes[1], cluster.nodes[2]
        reading = begin(victim.http_url, other.http_url)
        first = await asyncio.to_thread(next, reading)
        await victim.kill()
        rest = await asyncio.to_thread(numbers, reading)
        assert numbers([first]) + rest == list(range(_COUNT))

    run(play, tmp_path)


def test_a_query_goes_on_when_the_node_that_it_asks_dies(spark: Any, tmp_path: Path) -> None:
    """Planning, reading and writing find another node, each row comes once; by both sources."""

    async def play(cluster: LocalCluster) -> None:
        victim, *others = cluster.nodes
        http = Http(others[0].http_url)
        for name in ("q", "copied"):
            spec = {"name": name, "filters": [f"{name}/#"], "shards": 2}
            await asyncio.to_thread(http.call, "POST", "/v1/streams", spec)
        urls = ",".join(node.http_url for node in cluster.nodes)
        frame = spark.readStream.format("millrace").options(url=urls, stream="q", startingOffsets="earliest")
        rows = frame.load().selectExpr("replace(topic, 'q/', 'copied/') AS topic", "payload")
        writer = rows.writeStream.format("millrace").options(url=urls, stream="copied")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

        async def put(first: int) -> None:
            found = [(f"q/{n % 7}", b"%d" % n) for n in range(first, first + 500)]
            await asyncio.to_thread(fill, others[0].mqtt_port, found)

        def copied() -> int:
            return payloads(http, "copied").total()

        await put(0)
        query = writer.trigger(processingTime="200 milliseconds").start()
        try:
            await asyncio.to_thread(until, lambda: copied() == 500, "the first rows", _QUERY_S_MAX)
            await victim.kill()
            await put(500)
            await asyncio.to_thread(until, lambda: copied() >= 1_000, "the others", _QUERY_S_MAX)
        finally:
            await asyncio.to_thread(query.stop)
        assert await asyncio.to_thread(payloads, http, "copied") == Counter(b"%d" % n for n in range(1_000))

    run(play, tmp_path)
