"""Exactly once under fire: topic to Spark to topic over three nodes, while driver, Python workers and nodes
are killed in turn with kill -9.

    PYTHONPATH=src:tests .venv/bin/python tests/campaigns/sink_under_fire.py [KILLS] [ROWS] [SEED]

The source stream is filled with numbered rows; a streaming query copies them to another stream. Between two
kills at least one batch becomes visible, so that every kill falls into work. What is killed dies at a moment
that the seed chooses: a node comes back after a while, a driver starts again from its checkpoint, a worker is
replaced by Spark. At the end the two streams must be the same multiset: what is missing and what is there
twice is counted and must be nothing.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from e2e.test_cluster import whole
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.local_cluster import LocalCluster
from millrace.spark.reading import ClusterReader
from millrace.storage.block import HEAD_BYTES, Kind, attach_body, parse_header
from spark.filling import fill
from waiting import until_async

_BATCHES_PER_KILL = 3
_STALL_S_MAX = 900.0
_NODE_AWAY_S_MAX = 3.0
# A driver that was just killed needs a while until tasks run again.
_WORKER_S_MAX = 60.0
_TOPICS = 50


def drive(urls: str, checkpoint: str, rows_per_batch: int) -> None:
    """The driver's process: the query, for ever."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    # A task may fail three times before its batch does.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    source = spark.readStream.format("millrace").options(url=urls, stream="in", startingOffsets="earliest")
    frame = source.option("maxRowsPerTrigger", str(rows_per_batch)).option("minPartitions", "4").load()
    rows = frame.selectExpr("replace(topic, 'in/', 'out/') as topic", "payload")
    sink = rows.writeStream.format("millrace").options(url=urls, stream="out")
    sink.option("checkpointLocation", checkpoint).start().awaitTermination()


class Driver:
    """The driver as a process group that is killed and started again."""

    def __init__(self, urls: str, directory: Path, rows_per_batch: int) -> None:
        self._arguments = [urls, str(directory / "checkpoint"), str(rows_per_batch)]
        self._log = directory / "driver.txt"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def keep_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--drive", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The driver imports what this process found, also where a test run set the path.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )

    def _pids(self) -> dict[int, str]:
        """Every process of the driver's session, with its command."""
        assert self._process is not None
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if os.getsid(int(entry.name)) == self._process.pid:
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(entry.name)] = command.decode(errors="replace")
        return found

    def kill(self) -> None:
        """The driver, its JVM and everything under them."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """One Python process that runs a task; False where there is none right now."""
        pids = self._pids()
        workers = []
        for pid, command in pids.items():
            if "pyspark.daemon" in command:
                with suppress(OSError, ValueError):
                    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                    if "pyspark.daemon" in pids.get(parent, ""):
                        workers.append(pid)
        if not workers:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
            return True
        return False


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
    if what == "driver":
        await asyncio.to_thread(driver.kill)
    elif what == "worker":
        end_s = time.monotonic() + _WORKER_S_MAX
        while not await asyncio.to_thread(driver.kill_worker, chance):
            if time.monotonic() > end_s:
                return False
            await _pause(0.05)
    else:
        node = chance.choice(cluster.nodes)
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


async def campaign(kills: int, rows: int, seed: int) -> bool:
    chance = random.Random(seed)
    score = Score()
    with tempfile.TemporaryDirectory(prefix="millrace-fire-") as name:
        directory = Path(name)
        async with LocalCluster(3, directory / "nodes") as cluster:
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
            driver = Driver(",".join(urls), directory, batch)
            try:
                seen = 0
                for what in cycle(("driver", "worker", "node")):
                    seen = await _until_visible(urls, driver, min(rows, seen + 1))
                    if await _kill(what, cluster, driver, chance):
                        score.kills[what] += 1
                        score.say(f"kill {score.kills.total()}: {what}; {seen} of {rows} rows visible")
                    if score.kills.total() == kills:
                        break
                seen = await _until_visible(urls, driver, rows)
                took_s = time.monotonic() - score.started_s
            finally:
                await asyncio.to_thread(driver.kill)
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
            score.say(
                f"{killed} killed, {driver.starts} drivers, {took_s:.0f} s: {'PASS' if is_right else 'FAIL'}"
            )
            if not is_right:
                print((directory / "driver.txt").read_text(errors="replace")[-5_000:])
            return is_right


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--drive"]:
        drive(arguments[1], arguments[2], int(arguments[3]))
        return 0
    numbers = [int(word) for word in arguments]
    kills, rows, seed = (numbers + [9, 200_000, 1][len(numbers) :])[:3]
    return 0 if asyncio.run(campaign(kills, rows, seed)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
