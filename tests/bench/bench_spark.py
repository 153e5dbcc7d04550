"""Rows per second from the log into Spark, beside the bounds above and below it.

    PYTHONPATH=src:tests .venv/bin/python tests/bench/bench_spark.py [ROWS] [PAYLOAD_BYTES]

One node and Spark share the machine. The log is filled over MQTT at QoS 1 first. `count` reads every column;
`payload` asks for the payload alone by a schema; `by topic` groups. Above: Spark's own Parquet reader over
the same rows; they have one payload, which Parquet stores once, so that no reader of bytes can reach it.
Below: the same blocks from the same node, handed to Spark as tuples, row by row. The query over an empty
stream is what planning costs before the first row.

Rounds go through all cases in turn. The first ones warm Java up and do not count; of the others the best wall
time is shown, and the medians of the CPU that node, JVM and Python workers took, in us a row (for no
rows: milliseconds): on a machine that is busy with other things these say more than the rate. `at 2 cores` is
the rate that they allow on two cores of their own. The slowest case is run in the last two rounds only.
"""

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from millrace.node.logs.reading import stored_rows
from millrace.storage.block import parse_block
from spark.filling import packet, read, text

_WARM, _ROUNDS = 4, 3
_TOPICS = 100
_WINDOW = 10_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROW_BY_ROW = "row by row (lower bound)"


def _fill(port: int, rows: int, payload: bytes) -> None:
    """Windows of the same packets: what is measured is the other end."""
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        link.sendall(packet(0x10, text("MQTT") + bytes((4, 2, 0, 0)) + text("filler")))
        assert read(link, 4)[3] == 0
        packets = [
            packet(0x32, text(f"bench/{n % _TOPICS}") + (n + 1).to_bytes(2, "big") + payload)
            for n in range(_WINDOW)
        ]
        for begin in range(0, rows, _WINDOW):
            count = min(_WINDOW, rows - begin)
            link.sendall(b"".join(packets[:count]))
            read(link, 4 * count)
        link.sendall(b"\xe0\0")


def _row_source() -> Any:
    """The source as one would write it first: a tuple for each message."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from millrace.spark.reading import ClusterReader
    from millrace.spark.schema import SCHEMA

    names = ["topic", "shard", "offset", "payload", "qos", "retain", "publisher"]

    class RowReader(DataSourceReader):
        def __init__(self, url: str) -> None:
            self._url = url

        def partitions(self) -> list[InputPartition]:
            extents = ClusterReader((self._url,)).extents("bench")
            return [InputPartition((shard, extent.next)) for shard, extent in extents.items()]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            shard, end = partition.value
            cluster, at = ClusterReader((self._url,)), 0
            while at < end:
                answer, at = cluster.blocks("bench", shard, at, end)
                position, data = 0, bytes(answer)
                while position < len(data):
                    block = parse_block(data, position)
                    position += block.header.block_bytes
                    for row in stored_rows(shard, block, range(block.header.count)):
                        yield tuple(getattr(row, name) for name in names)

    class RowSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "millrace-rows"

        def schema(self) -> Any:
            return type(SCHEMA)([SCHEMA[name] for name in names])

        def reader(self, schema: Any) -> DataSourceReader:
            return RowReader(str(self.options["url"]))

    return RowSource


def _session() -> Any:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _cpu_s(pid: int | str, *, with_ended: bool = False) -> float:
    """CPU seconds of a process so far, or of it and its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_ended else 13])) / _TICKS_PER_S


def _children(root: int) -> dict[int, str]:
    """Every process below `root`, with its name."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid], names[pid] = int(rest.split()[1]), name
    found: dict[int, str] = {}
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found.update((pid, names[pid]) for pid in fresh)
    return found


def _usage(node: int) -> tuple[float, float, float]:
    """CPU seconds of the node, of Java and of the Python workers so far."""
    java = python = 0.0
    for pid, name in _children(os.getpid()).items():
        if pid == node:
            continue
        if name == "java":
            java += _cpu_s(pid)
        else:
            # A worker that ends between two looks takes its time with it, unless its parent is asked.
            python += _cpu_s(pid, with_ended=True)
    return _cpu_s(node), java, python


def _measure(cases: dict[str, tuple[int, Callable[[], int]]], node: int) -> None:
    walls_s: dict[str, list[float]] = {name: [] for name in cases}
    used_s: dict[str, list[tuple[float, ...]]] = {name: [] for name in cases}
    for number in range(_WARM + _ROUNDS):
        for name, (rows, job) in cases.items():
            if name == _ROW_BY_ROW and number < _WARM + _ROUNDS - 2:
                continue
            before, start_s = _usage(node), time.perf_counter()
            found = job()
            wall_s = time.perf_counter() - start_s
            used = tuple(after - was for was, after in zip(before, _usage(node), strict=True))
            assert found == rows, f"{name}: {found} rows instead of {rows}"
            if number >= _WARM:
                walls_s[name].append(wall_s)
                used_s[name].append(used)
    print(
        f"{'million rows/s':28} {'wall':>6} {'at 2 cores':>11}   CPU us a row: "
        f"{'node':>6} {'JVM':>6} {'Python':>6} {'all':>6}"
    )
    for name, rounds in used_s.items():
        rows, wall_s = cases[name][0], min(walls_s[name])
        medians_s = [median(process) for process in zip(*rounds, strict=True)]
        shown = f"{wall_s:5.2f}s {'':11}"
        if rows:
            shown = f"{rows / wall_s / 1e6:6.2f} {rows / max(0.01, sum(medians_s) / 2) / 1e6:11.2f}"
        each = [part_s * 1e6 / rows if rows else part_s * 1e3 for part_s in (*medians_s, sum(medians_s))]
        print(f"{name:28} {shown}{'':17}" + "".join(f" {one:6.2f}" for one in each), flush=True)


def main(rows: int, payload_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        node = BrokerProcess(Path(name) / "node").wait_ready()
        try:
            http = Http(node.url)
            http.call("POST", "/v1/streams", {"name": "bench", "filters": ["bench/#"], "shards": 2})
            http.call("POST", "/v1/streams", {"name": "empty", "filters": ["empty/#"], "shards": 2})
            _fill(node.port, rows, os.urandom(payload_bytes))
            spark = _session()
            spark.dataSource.register(_row_source())

            def source(stream: str = "bench") -> Any:
                return spark.read.format("millrace").options(url=node.url, stream=stream)

            table = str(Path(name) / "table")
            source().load().write.parquet(table)
            four = "count(topic), count(offset), count(timestamp), count(payload)"

            def by_topic() -> int:
                return sum(row["count"] for row in source().load().groupBy("topic").count().collect())

            print(f"{rows} rows of {payload_bytes} B, 2 shards, local[2], load {os.getloadavg()[0]:.1f}")
            cases: dict[str, tuple[int, Callable[[], int]]] = {
                "an empty stream": (0, lambda: source("empty").load().count()),
                "count, all columns": (rows, lambda: source().load().count()),
                "count, payload alone": (rows, lambda: source().schema("payload binary").load().count()),
                "by topic": (rows, by_topic),
                _ROW_BY_ROW: (
                    rows,
                    lambda: spark.read.format("millrace-rows").option("url", node.url).load().count(),
                ),
                "Parquet (upper bound)": (
                    rows,
                    lambda: spark.sql(f"select {four} from parquet.`{table}`").collect()[0][0],
                ),
            }
            _measure(cases, node.process.pid)
            spark.stop()
        finally:
            node.stop()


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(*(arguments + [1_000_000, 100][len(arguments) :]))
