"""Exactly once under fire: topic to Spark to topic over three nodes, while driver, JVM, Python workers and
nodes are killed in turn with kill -9.

    PYTHONPATH=src:tests .venv/bin/python tests/campaigns/sink_under_fire.py [KILLS] [ROWS] [SEED] [KIND]

The source stream is filled with numbered rows, and Spark copies them to another stream. KIND says how: `sink`
is a streaming query with the sink, `each` one whose batches `foreachBatch` writes with `writer` and `batch`,
and `declared` a pipeline that the cluster holds, where the node that owns it is killed as well. Between two
kills at least one batch becomes visible, so that every kill falls into work. What is killed dies at a moment
that the seed chooses: a node comes back after a while, a driver starts again from its checkpoint, a worker is
replaced by Spark. At the end the two streams must be the same multiset: what is missing and what is there
twice is counted and must be nothing.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from campaigns.drivers import DECLARED, EACH, SINK, DeclaredDriver, Driver, OwnDriver
from e2e.test_cluster import whole
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.local_cluster import LocalCluster, NodeProcess
from millrace.spark.reading import ClusterReader
from millrace.storage.block import HEAD_BYTES, Kind, attach_body, parse_header
from spark.filling import fill
from spark.java_parts import built_jar, is_java
from waiting import until_async

_BATCHES_PER_KILL = 3
_STALL_S_MAX = 900.0
_NODE_AWAY_S_MAX = 3.0
# A driver that was just killed, and a pipeline whose owner was, need a while until tasks run again.
_THERE_S_MAX = 90.0
_TOPICS = 50
_WRITER = "copy-under-fire"
_KILLS = {
    SINK: ("driver", "worker", "node", "jvm"),
    EACH: ("driver", "worker", "node", "jvm"),
    DECLARED: ("driver", "worker", "owner", "jvm", "node"),
}


def _kills(kind: str) -> tuple[str, ...]:
    """With the source in Java there are no Python workers."""
    return tuple(one for one in _KILLS[kind] if one != "worker" or not is_java())


def drive(urls: str, checkpoint: str, rows_per_batch: int, kind: str) -> None:
    """The driver's process: the query, for ever."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import DataFrame, SparkSession

    # A task may fail three times before its batch does.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")
    if is_java():
        builder = builder.config("spark.jars", built_jar())
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("millrace").options(url=urls, stream="in", startingOffsets="earliest")
    frame = source.option("maxRowsPerTrigger", str(rows_per_batch)).option("minPartitions", "4").load()
    rows = frame.selectExpr("replace(topic, 'in/', 'out/') as topic", "payload")

    def publish(batch: DataFrame, number: int) -> None:
        named = {"url": urls, "stream": "out", "writer": _WRITER, "batch": str(number)}
        batch.write.format("millrace").mode("append").options(**named).save()

    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    if kind == EACH:
        query = writer.foreachBatch(publish).start()
    else:
        query = writer.format("millrace").options(url=urls, stream="out").start()
    query.awaitTermination()


@dataclass
class Score:
    kills: Counter[str] = field(default_factory=Counter)
    started_s: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.started_s:7.1f} s  {text}", flush=True)


def _visible(urls: list[str]) -> int:
    """Rows of the target that any node sees."""
    best = 0
    for url in urls:
        with suppress(LocalError, OSError):
            rows = Http(url).call("GET", "/v1/streams/out", timeout_s=3)["shard_list"]
            best = max(best, sum(int(row["next_offset"]) for row in rows))
    return best


async def _pause(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    await until_async(lambda: time.monotonic() >= end_s, "time to pass", seconds + _STALL_S_MAX)


async def _until_visible(urls: list[str], driver: Driver, rows: int) -> int:
    """Wait for progress, keeping a driver running; fails when nothing moves for long."""
    last, moved_s = -1, time.monotonic()
    while True:
        driver.keep_running()
        seen = await asyncio.to_thread(_visible, urls)
        if seen >= rows:
            return seen
        if seen != last:
            last, moved_s = seen, time.monotonic()
        assert time.monotonic() - moved_s < _STALL_S_MAX, f"nothing moved for {_STALL_S_MAX} s at {seen} rows"
        await _pause(0.2)


async def _kill(what: str, cluster: LocalCluster, driver: Driver, chance: random.Random) -> bool:
    await _pause(chance.uniform(0, 1.0))
    kills = {"driver": driver.kill_all, "jvm": driver.kill_jvm, "worker": driver.kill_worker}
    if what in kills:
        end_s = time.monotonic() + _THERE_S_MAX
        while not await asyncio.to_thread(kills[what], chance):
            if time.monotonic() > end_s:
                return False
            await _pause(0.05)
        return True
    node: NodeProcess | None = chance.choice(cluster.nodes)
    if what == "owner" and isinstance(driver, DeclaredDriver):
        node = await asyncio.to_thread(driver.owner)
    if node is None:
        return False
    await node.kill()
    await _pause(chance.uniform(0, _NODE_AWAY_S_MAX))
    await node.start()
    return True


def contents(url: str, stream: str) -> Counter[bytes]:
    """Every payload of a stream, read as blocks from one node."""
    cluster = ClusterReader((url,))
    found: Counter[bytes] = Counter()
    for shard, extent in cluster.extents(stream).items():
        offset = extent.first
        while offset < extent.next:
            answer, after = cluster.blocks(stream, shard, offset, extent.next)[:2]
            data = bytes(answer)
            position = 0
            while position < len(data):
                header = parse_header(data, position)
                if header.kind is Kind.DATA and header.base_offset >= offset:
                    block = attach_body(header, data[position + HEAD_BYTES : position + header.block_bytes])
                    columns = block.columns()
                    packets = bytes(columns.packets)
                    spans = zip(columns.payload_positions, columns.payload_sizes, strict=True)
                    found.update(packets[start : start + size] for start, size in spans)
                position += header.block_bytes
            offset = after
    cluster.http.close()
    return found


def _driver(kind: str, cluster: LocalCluster, directory: Path, rows_per_batch: int) -> Driver:
    if kind == DECLARED:
        return DeclaredDriver(cluster, directory, rows_per_batch)
    urls = ",".join(node.http_url for node in cluster.nodes)
    return OwnDriver(
        [__file__, "--drive", urls, str(directory / "checkpoint"), str(rows_per_batch), kind], directory
    )


async def campaign(kills: int, rows: int, seed: int, kind: str = SINK) -> bool:
    chance = random.Random(seed)
    score = Score()
    with tempfile.TemporaryDirectory(prefix="millrace-fire-") as name:
        directory = Path(name)
        options = ("--set", "pipelines.run=true") if kind == DECLARED else ()
        async with LocalCluster(3, directory / "nodes", options=options) as cluster:
            first = Http(cluster.nodes[0].http_url)
            for stream in ("in", "out"):
                fields = {"name": stream, "filters": [f"{stream}/#"], "shards": 2}
                await asyncio.to_thread(first.call, "POST", "/v1/streams", fields)
            await whole(cluster)
            messages = ((f"in/{n % _TOPICS}", b"%d" % n) for n in range(rows))
            await asyncio.to_thread(fill, cluster.nodes[0].mqtt_port, messages)
            score.say(f"{rows} rows are in the source; seed {seed}")
            urls = [node.http_url for node in cluster.nodes]
            batch = max(1, rows // (_BATCHES_PER_KILL * (kills + 1)))
            driver = await asyncio.to_thread(_driver, kind, cluster, directory, batch)
            try:
                seen = 0
                for what in cycle(_kills(kind)):
                    seen = await _until_visible(urls, driver, min(rows, seen + 1))
                    if await _kill(what, cluster, driver, chance):
                        score.kills[what] += 1
                        score.say(f"kill {score.kills.total()}: {what}; {seen} of {rows} rows visible")
                    if score.kills.total() == kills:
                        break
                seen = await _until_visible(urls, driver, rows)
                took_s = time.monotonic() - score.started_s
            finally:
                await asyncio.to_thread(driver.end)
            wanted = Counter(b"%d" % n for n in range(rows))
            is_right = True
            for node in cluster.nodes:
                url = [node.http_url]
                await until_async(lambda url=url: _visible(url) >= rows, f"{node.name} to be level", 120.0)
                found = await asyncio.to_thread(contents, node.http_url, "out")
                lost, doubled = wanted - found, found - wanted
                is_right = is_right and not lost and not doubled
                score.say(
                    f"{node.name}: {found.total()} rows, {lost.total()} lost, {doubled.total()} too many"
                )
            killed = ", ".join(f"{count} {what}" for what, count in score.kills.items())
            verdict = "PASS" if is_right else "FAIL"
            score.say(f"{killed} killed, {driver.starts} drivers, {kind}, {took_s:.0f} s: {verdict}")
            if not is_right:
                print(await asyncio.to_thread(driver.story))
            return is_right


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--drive"]:
        drive(arguments[1], arguments[2], int(arguments[3]), arguments[4])
        return 0
    given = arguments + ["9", "200000", "1", SINK][len(arguments) :]
    kills, rows, seed = map(int, given[:3])
    return 0 if asyncio.run(campaign(kills, rows, seed, given[3])) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
