"""The source at a cluster: any replica serves, and one that dies in the middle of a task is passed over."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from e2e.test_cluster import run
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster
from spark.filling import fill

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

from millrace.spark import options, source
from millrace.spark.offsets import Span
from millrace.spark.schema import SCHEMA

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_COUNT = 400
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
