"""Rows per second from Spark into the log, beside the same rows going nowhere.

    PYTHONPATH=src:tests .venv/bin/python tests/bench/bench_spark_write.py [ROWS] [TASKS]

One node and Spark share the machine. A write is complete: staged, committed and visible. `noop` is a sink of
Spark's that drops its rows: what bringing them up costs. The rows lie in Spark's memory (a cached frame), so
that making them is not measured. Payloads of 100 B, and a quarter as many of 1 KiB; 100 topics, 2 shards.
Rounds, wall time and CPU are those of `bench_spark`.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.bench_spark import _measure, _session
from e2e.processes import BrokerProcess
from millrace.client.http import Http

_TOPICS = 100


def _frame(spark: Any, rows: int, size: int, tasks: int) -> Any:
    frame = spark.range(0, rows, numPartitions=tasks).selectExpr(
        f"concat('bench/', id % {_TOPICS}) as topic",
        f"cast(rpad(cast(id as string), {size}, 'x') as binary) as payload",
    )
    frame.cache().count()
    return frame


def main(rows: int, tasks: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        node = BrokerProcess(Path(name) / "node").wait_ready()
        try:
            http = Http(node.url)
            fields = {"name": "bench", "filters": ["bench/#"], "shards": 2}
            http.call("POST", "/v1/streams", fields)
            spark = _session()

            def stored() -> int:
                return sum(int(row["next_offset"]) for row in http.get("/v1/streams/bench")["shard_list"])

            def to_noop(frame: Any, count: int) -> int:
                frame.write.format("noop").mode("overwrite").save()
                return count

            def to_log(frame: Any) -> int:
                before = stored()
                frame.write.format("millrace").mode("append").option("url", node.url).save()
                return stored() - before

            for size, count in ((100, rows), (1024, rows // 4)):
                frame = _frame(spark, count, size, tasks)
                print(
                    f"{count} rows of {size} B in {tasks} tasks, 2 shards, local[2], "
                    f"load {os.getloadavg()[0]:.1f}"
                )
                cases: dict[str, tuple[int, Callable[[], int]]] = {
                    "noop": (count, lambda frame=frame, count=count: to_noop(frame, count)),
                    "to the log": (count, lambda frame=frame: to_log(frame)),
                }
                _measure(cases, node.process.pid)
                frame.unpersist()
            spark.stop()
        finally:
            node.stop()


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*(arguments + [1_000_000, 2][len(arguments) :]))
