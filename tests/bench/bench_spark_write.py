"""Rows per second from Spark into the log, beside the same rows going nowhere.

    PYTHONPATH=src:tests .venv/bin/python tests/bench/bench_spark_write.py [ROWS] [TASKS]

One node and Spark share the machine. A write is complete: staged, committed and visible. `noop` is a sink of
Spark's that drops its rows: what making them costs. CPU is of all processes, in microseconds a row: it says
more than the rate where others work on the same cores. Payloads of 100 B and 1 KiB, 100 topics, 2 shards;
each figure is the best of three runs.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.bench_spark import _session
from e2e.processes import BrokerProcess
from millrace.client.http import Http

_RUNS = 3
_TOPICS = 100
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _cpu_s(pids: list[int]) -> float:
    """User and system time of these processes and of those below them, alive or waited for."""
    below = set(pids)
    times: dict[int, float] = {}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15])) * _TICK_S
    for _ in range(8):
        below |= {pid for pid, parent in parents.items() if parent in below}
    return sum(times[pid] for pid in below if pid in times)


def _measure(name: str, rows: int, node: BrokerProcess, job: Callable[[], None]) -> None:
    best_s, best_cpu = float("inf"), (0.0, 0.0)
    for _ in range(_RUNS):
        spark_s, node_s, start_s = _cpu_s([os.getpid()]), _cpu_s([node.process.pid]), time.perf_counter()
        job()
        took_s = time.perf_counter() - start_s
        node_us = (_cpu_s([node.process.pid]) - node_s) / rows * 1e6
        spark_us = (_cpu_s([os.getpid()]) - spark_s) / rows * 1e6 - node_us
        if took_s < best_s:
            best_s, best_cpu = took_s, (spark_us, node_us)
    rate = rows / best_s / 1e6
    print(
        f"{name:16} {rate:6.2f} million rows/s ({best_s:.2f} s); CPU us/row: "
        f"Spark {best_cpu[0]:.2f}, node {best_cpu[1]:.2f}",
        flush=True,
    )


def _write(frame: Any, url: str) -> None:
    frame.write.format("millrace").mode("append").option("url", url).save()


def main(rows: int, tasks: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        node = BrokerProcess(Path(name) / "node").wait_ready()
        try:
            http = Http(node.url)
            fields = {"name": "bench", "filters": ["bench/#"], "shards": 2}
            http.call("POST", "/v1/streams", fields)
            spark = _session()
            print(f"{rows} rows in {tasks} tasks, 2 shards, local[2], load {os.getloadavg()[0]:.1f}")
            written = 0
            for size in (100, 1024):
                frame = spark.range(0, rows, numPartitions=tasks).selectExpr(
                    f"concat('bench/', id % {_TOPICS}) as topic",
                    f"cast(rpad(cast(id as string), {size}, 'x') as binary) as payload",
                )
                _measure(
                    f"noop, {size} B",
                    rows,
                    node,
                    lambda frame=frame: frame.write.format("noop").mode("overwrite").save(),
                )
                _measure(f"millrace, {size} B", rows, node, lambda frame=frame: _write(frame, node.url))
                written += _RUNS * rows
                found = sum(row["next_offset"] for row in http.get("/v1/streams/bench")["shard_list"])
                assert found == written, f"{found} messages in the log instead of {written}"
            spark.stop()
        finally:
            node.stop()


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*(arguments + [1_000_000, 2][len(arguments) :]))
