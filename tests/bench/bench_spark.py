"""Rows per second from the log into Spark, beside Spark reading the same rows from Parquet.

    PYTHONPATH=src:tests .venv/bin/python tests/bench/bench_spark.py [ROWS] [PAYLOAD_BYTES]

One node and Spark share the machine. The log is filled over MQTT at QoS 1 first. `count` reads every column;
`payload` asks for the payload alone by a schema; `by topic` groups. The query over an empty stream is what
planning costs before the first row. Every row has the same payload, which Parquet stores once: its figure is
an upper bound that no reader of the bytes can reach. Each figure is the best of three runs.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill

_RUNS = 3
_TOPICS = 100


def _session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def _best_s(rows: int, job: Callable[[], int]) -> float:
    best_s = float("inf")
    for _ in range(_RUNS):
        start_s = time.perf_counter()
        found = job()
        best_s = min(best_s, time.perf_counter() - start_s)
        assert found == rows, f"{found} rows instead of {rows}"
    return best_s


def _measure(name: str, rows: int, job: Callable[[], int]) -> None:
    best_s = _best_s(rows, job)
    print(f"{name:28} {rows / best_s / 1e6:6.2f} million rows/s ({best_s:.2f} s)", flush=True)


def main(rows: int, payload_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        node = BrokerProcess(Path(name) / "node").wait_ready()
        try:
            http = Http(node.url)
            http.call("POST", "/v1/streams", {"name": "bench", "filters": ["bench/#"], "shards": 2})
            http.call("POST", "/v1/streams", {"name": "empty", "filters": ["empty/#"], "shards": 2})
            payload = os.urandom(payload_bytes)
            fill(node.port, ((f"bench/{n % _TOPICS}", payload) for n in range(rows)))
            spark = _session()
            source = spark.read.format("millrace").options(url=node.url, stream="bench")
            table = str(Path(name) / "table")
            source.load().write.parquet(table)
            print(f"{rows} rows of {payload_bytes} B, 2 shards, local[2]")
            empty = spark.read.format("millrace").options(url=node.url, stream="empty")
            print(f"{'millrace, an empty stream':28} {_best_s(0, lambda: empty.load().count()):.2f} s")
            four_columns = "count(topic), count(offset), count(timestamp), count(payload)"
            _measure("millrace, count", rows, lambda: source.load().count())
            _measure(
                "millrace, payload column",
                rows,
                lambda: (
                    spark.read.format("millrace")
                    .options(url=node.url, stream="bench")
                    .schema("payload binary")
                    .load()
                    .count()
                ),
            )
            _measure(
                "millrace, by topic",
                rows,
                lambda: sum(row["count"] for row in source.load().groupBy("topic").count().collect()),
            )
            _measure(
                "parquet, four columns",
                rows,
                lambda: spark.sql(f"select {four_columns} from parquet.`{table}`").collect()[0][0],
            )
            spark.stop()
        finally:
            node.stop()


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*(arguments + [1_000_000, 100][len(arguments) :]))
