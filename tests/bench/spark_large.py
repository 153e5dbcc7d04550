"""How much memory reading takes, whatever the size: a stream grows in steps, and Spark reads all of it.

    PYTHONPATH=src:tests .venv/bin/python tests/bench/spark_large.py [GIB ...]

Rows of 1 KiB, 8 shards, Spark with two cores. For each size all rows are read twice: as a batch, and by a
streaming query with `availableNow` and micro-batches of 256 MiB. Printed are the highest resident sizes of
the node (without the files that it maps), of all Python processes of Spark together, and of the JVM.
"""

import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from millrace.lab.bench import peers
from millrace.lab.bench.spark_bench import session
from millrace.lab.bench.spark_sides import MillraceSide, descendants

_ROW_BYTES = 1024
_PARTS = 8
_LOOK_S = 0.25
_MIB = 1 << 20


def resident(pid: int) -> int:
    """Bytes of its own memory, without what is mapped from files; of what it shares with processes that it
    was forked from, its part."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Pss_Anon"))) << 10
    return 0


class Peaks:
    """The highest of each while it is open."""

    def __init__(self, node: list[int], jvm: int) -> None:
        self._node, self._jvm = node, jvm
        self._is_over = threading.Event()
        self.found = {"node": 0, "python": 0, "jvm": 0}

    def __enter__(self) -> "Peaks":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            workers = [pid for pid in descendants(self._jvm) if pid != self._jvm]
            now = {
                "node": sum(map(resident, self._node)),
                "python": sum(map(resident, workers)),
                "jvm": resident(self._jvm),
            }
            self.found = {name: max(now[name], before) for name, before in self.found.items()}


def as_batch(spark: Any, options: dict[str, str], place: str) -> int:
    frame = spark.read.format("millrace").options(**options).load()
    return int(frame.selectExpr("sum(length(payload)) AS n").first().n) // _ROW_BYTES


def as_stream(spark: Any, options: dict[str, str], place: str) -> int:
    frame = spark.readStream.format("millrace").options(**options, maxBytesPerTrigger=str(256 * _MIB)).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", place)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(one["numInputRows"] for one in query.recentProgress)


def write(spark: Any, options: dict[str, str], first: int, after: int) -> None:
    made = spark.range(first, after, numPartitions=4).selectExpr(
        "concat('large/', id % 64) AS topic", f"rpad(cast(id AS string), {_ROW_BYTES}, 'x') AS payload"
    )
    made.write.format("millrace").mode("append").options(**options).save()


def main(sizes: list[float]) -> None:
    with tempfile.TemporaryDirectory() as name, session([], Path(name)) as spark, ExitStack() as stack:
        place = Path(name) / "node"
        place.mkdir()
        running = peers.start(peers.this_broker("c"), place, durable=True)
        stack.callback(peers.stop, running.process)
        side = MillraceSide(running, place)
        side.make("large", _PARTS)
        jvm: Any = spark._jvm
        jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())
        rows = 0
        for size in sizes:
            wanted = int(size * (1 << 30)) // _ROW_BYTES
            began_s = time.perf_counter()
            write(spark, side.writing("large")[1], rows, wanted)
            rows = wanted
            print(
                f"{size:g} GiB, {rows:,} rows; written in {time.perf_counter() - began_s:.0f} s", flush=True
            )
            for act in (as_batch, as_stream):
                began_s = time.perf_counter()
                with Peaks(running.pids(), jvm_pid) as peaks:
                    assert act(spark, side.reading("large")[1], f"{name}/{act.__name__}-{rows}") == rows
                took_s = time.perf_counter() - began_s
                shown = ", ".join(f"{part} {peak / _MIB:,.0f} MiB" for part, peak in peaks.found.items())
                rate = f"{took_s:.1f} s, {size * 1024 / took_s:,.0f} MiB/s"
                print(f"  {act.__name__}: {rate}; {shown}", flush=True)


if __name__ == "__main__":
    main([float(word) for word in sys.argv[1:]] or [1, 4, 12])
