"""Spark on this broker beside Spark on Kafka: the same cases, the same rows, in turn within each round.

One Spark session with two cores serves all sides, so that compiled code and worker processes are as warm for
one as for the other; the first round of each case warms up and is not counted. What a row costs is CPU time
by broker, JVM and Python, which holds on a busy machine too; rates do not.

A micro-batch is timed by Spark's own account of a trigger, over a stream that is full: each takes 500 rows.
The cases that write come last and write one stream round after round, which shows whether it slows down.

Where the page cache grows, a write to a file may cost the kernel several times as much, probably because a
virtual machine gets a page from its host when it first touches it. So the memory that the files will take is
touched beforehand (decision 075 has what is measured of it and what is not).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from millrace.errors import ConfigError
from millrace.lab.bench.kafka import KafkaJars
from millrace.lab.bench.spark_sides import (
    MILLRACE_JAVA,
    PAYLOAD_BYTES,
    SCHEMA,
    Cpu,
    Side,
    cpu,
    made_rows,
    sides,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 8
BATCH_ROWS = 500
_BATCHES = 24
_BATCHES_WARM = 4
# What files take beside the payloads: topics, columns, and what is staged.
_FILE_FACTOR = 4

COUNT = "batch count"
AVAILABLE = "AvailableNow to noop"
PARSE = "parse JSON"
COPY = "copy source to sink"
WRITE = "write"
TO_NOOP = "500-row batch to noop"
TO_SINK = "500-row batch to own sink"

SMALL = "batches"
CASES = {"count": COUNT, "available": AVAILABLE, "parse": PARSE, "copy": COPY, SMALL: TO_NOOP, "write": WRITE}
"""What `--case` chooses from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of one case at one side."""

    case: str
    parts: int
    side: str
    round: int
    rows: int
    seconds: float
    cpu: Cpu
    batch_ms: tuple[float, ...] = ()
    """Of each micro-batch, where the case is about those."""
    disk_bytes: int | None = None
    """What the broker's files have grown by, where the case writes."""


@dataclass(slots=True)
class Bench:
    """What the cases share."""

    spark: "SparkSession"
    place: Path
    rows: int
    rounds: int
    write_rounds: int
    before: Callable[[str, str, int], None] = lambda case, side, round: None
    cases: Sequence[str] = tuple(CASES)
    _names: Iterator[int] = field(default_factory=count)
    _jvm_pid: int = 0

    def __post_init__(self) -> None:
        jvm: Any = self.spark._jvm
        self._jvm_pid = int(jvm.java.lang.ProcessHandle.current().pid())

    # ------------------------------------------------------------------------------------------- cases

    def run(self, found: Sequence[Side]) -> Iterator[Sample]:
        """The chosen cases, round by round, the sides in turn."""
        acts = {"count": self._count, "available": self._available, "parse": self._parse, "copy": self._copy}
        chosen = [name for name in acts if name in self.cases]
        full = {side.name: self._fill(side, PARTS, self.rows) for side in found} if chosen else {}
        for name in chosen:
            for number in range(self.rounds + 1):
                for side in found:
                    act = partial(acts[name], side, full[side.name])
                    sample = self._timed(CASES[name], side, number, act)
                    if number:
                        yield sample
        if SMALL in self.cases:
            yield from self._small(found)
        if "write" in self.cases:
            yield from self._writes(found)

    def _small(self, found: Sequence[Side]) -> Iterator[Sample]:
        for parts in (PARTS, 1):
            streams = {side.name: self._fill(side, parts, BATCH_ROWS * _BATCHES) for side in found}
            for case in (TO_NOOP, TO_SINK):
                for number in range(self.rounds):
                    for side in found:
                        yield self._batches(case, side, streams[side.name], parts, number)

    def _writes(self, found: Sequence[Side]) -> Iterator[Sample]:
        """One stream for all rounds: what a write costs must not depend on how many there were."""
        streams = {side.name: self._empty(side, PARTS) for side in found}
        for number in range(self.write_rounds):
            for side in found:
                act = partial(self._write, side, streams[side.name], self.rows)
                yield self._timed(WRITE, side, number, act, is_write=True)

    def _count(self, side: Side, stream: str) -> None:
        found = self._read(side, stream).count()
        if found != self.rows:
            raise ConfigError(f"{side.name} has {found} rows of {self.rows} that were written")

    def _parse(self, side: Side, stream: str) -> None:
        from pyspark.sql import functions as f

        text = side.payload(self._read(side, stream)).select(f.col("payload").cast("string").alias("text"))
        parsed = text.select(f.from_json("text", SCHEMA).alias("row"))
        parsed.agg(f.sum("row.value"), f.max("row.id")).collect()

    def _available(self, side: Side, stream: str) -> None:
        self._drain(self._read_stream(side, stream), "noop", {})

    def _copy(self, side: Side, stream: str) -> None:
        target = self._empty(side, PARTS)
        rows = side.shape(side.payload(self._read_stream(side, stream)), target)
        self._drain(rows, *side.writing(target))

    def _batches(self, case: str, side: Side, stream: str, parts: int, number: int) -> Sample:
        rows = self._read_stream(side, stream, {side.rows_option: str(BATCH_ROWS)})
        to: tuple[str, dict[str, str]] = ("noop", {})
        if case == TO_SINK:
            target = self._empty(side, parts)
            rows, to = side.shape(side.payload(rows), target), side.writing(target)
        found: list[float] = []
        sample = self._timed(case, side, number, lambda: found.extend(self._drain(rows, *to)))
        return _with_batches(sample, parts, tuple(found[_BATCHES_WARM:]))

    # ------------------------------------------------------------------------------------------- means

    def _timed(
        self, case: str, side: Side, number: int, act: Callable[[], object], *, is_write: bool = False
    ) -> Sample:
        self.before(case, side.name, number)
        disk, before, began_s = side.disk_bytes(), cpu(side, self._jvm_pid), time.perf_counter()
        act()
        seconds = time.perf_counter() - began_s
        used = cpu(side, self._jvm_pid) - before
        return Sample(
            case=case,
            parts=PARTS,
            side=side.name,
            round=number,
            rows=self.rows,
            seconds=seconds,
            cpu=used,
            disk_bytes=side.disk_bytes() - disk if is_write else None,
        )

    def _empty(self, side: Side, parts: int) -> str:
        stream = f"{side.name}-{next(self._names)}"
        side.make(stream, parts)
        return stream

    def _fill(self, side: Side, parts: int, rows: int) -> str:
        stream = self._empty(side, parts)
        self._write(side, stream, rows)
        return stream

    def _write(self, side: Side, stream: str, rows: int) -> None:
        kind, options = side.writing(stream)
        shaped = side.shape(made_rows(self.spark, rows), stream)
        shaped.write.format(kind).options(**options).mode("append").save()

    def _read(self, side: Side, stream: str) -> "DataFrame":
        kind, options = side.reading(stream)
        return self.spark.read.format(kind).options(**options).load()

    def _read_stream(self, side: Side, stream: str, more: dict[str, str] | None = None) -> "DataFrame":
        kind, options = side.reading(stream)
        return self.spark.readStream.format(kind).options(**options, **(more or {})).load()

    def _drain(self, rows: "DataFrame", kind: str, options: dict[str, str]) -> list[float]:
        """Run a query over what is there; how long each of its micro-batches took, in ms."""
        checkpoint = self.place / f"checkpoint-{next(self._names)}"
        writer = rows.writeStream.format(kind).options(**options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint, ignore_errors=True)
        return [
            float(one["durationMs"]["triggerExecution"])
            for one in query.recentProgress
            if one["numInputRows"]
        ]


def _with_batches(sample: Sample, parts: int, batch_ms: tuple[float, ...]) -> Sample:
    return replace(sample, parts=parts, rows=BATCH_ROWS * _BATCHES, batch_ms=batch_ms)


def measure(
    *,
    kernels: str,
    jars: KafkaJars | None,
    against: list[str],
    rows: int,
    rounds: int,
    write_rounds: int,
    before: Callable[[str, str, int], None],
    cases: Sequence[str] = tuple(CASES),
) -> Iterator[Sample]:
    """The chosen cases with brokers of their own, which are gone afterwards."""
    times = 1 + (rounds + 1 if "copy" in cases else 0) + (write_rounds if "write" in cases else 0)
    written = rows * PAYLOAD_BYTES * (1 + len(against)) * times
    touch_memory(written * _FILE_FACTOR)
    beside = [str(path) for path in jars.connector] if jars is not None else []
    if MILLRACE_JAVA in against:
        from pyspark_millrace import jar

        beside.append(jar())
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name, session(beside, Path(name)) as spark:
        bench = Bench(spark, Path(name), rows, rounds, write_rounds, before, cases)
        with sides(spark, kernels, jars, against, Path(name)) as found:
            yield from bench.run(found)


def touch_memory(size_bytes: int) -> int:
    """Have the system use so much memory once, at most half of what is free; how much it was. In a process of
    its own, which gives it back."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_bytes = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    size_bytes = min(size_bytes, free_bytes // 2)
    program = (
        f"import mmap\nm = mmap.mmap(-1, {size_bytes})\nfor at in range(0, {size_bytes}, 4096): m[at] = 1"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    return size_bytes


@contextmanager
def session(jars: Sequence[str], place: Path) -> "Iterator[SparkSession]":
    """Spark with two cores; ConfigError where it cannot run here."""
    if shutil.which("java") is None:
        raise ConfigError("Java is not installed; Spark needs Java 17 or later")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("PySpark is not installed: pip install 'millrace[spark]'") from None
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[2]").appName("millrace-bench")
    settings = {
        # Kafka's consumers with large fetches do not fit into Spark's default of 1 GiB.
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.jars": ",".join(jars),
        "spark.python.authenticate.socketTimeout": "120s",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


# --------------------------------------------------------------------------------------------- figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What this broker wants to reach: so many times the peer's figure, and against which peer."""

    against: str
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table: the figure of each side, medians over the rounds."""

    case: str
    unit: str
    values: dict[str, float]
    is_cost: bool = False
    target: Target | None = None

    def ratio(self, ours: str, theirs: str) -> float | None:
        """Ours divided by theirs."""
        found = self.values.get(theirs)
        return self.values[ours] / found if found and ours in self.values else None


_RATE_TARGETS = {
    COUNT: Target(against="kafka-tuned", ratio=3.0),
    AVAILABLE: Target(against="kafka-tuned", ratio=2.5),
    PARSE: Target(against="kafka", ratio=3.0),
    COPY: Target(against="kafka", ratio=2.0),
    WRITE: Target(against="kafka-tuned", ratio=1.5),
}
_BATCH_TARGET = Target(against="kafka", ratio=1.0)


def figures(samples: Sequence[Sample], payload_bytes: int) -> list[Figure]:
    """The table: rates, micro-batches, CPU by part, and how writing held over the rounds."""
    names = list(dict.fromkeys(one.side for one in samples))

    def by_side(chosen: Sequence[Sample], value: Callable[[Sample], float]) -> dict[str, float]:
        grouped = {name: [value(one) for one in chosen if one.side == name] for name in names}
        return {name: median(values) for name, values in grouped.items() if values}

    found: list[Figure] = []
    for case, target in _RATE_TARGETS.items():
        chosen = [one for one in samples if one.case == case]
        if chosen:
            rates = by_side(chosen, lambda one: one.rows / one.seconds)
            found.append(Figure(case=case, unit="rows/s", values=rates, target=target))
    for case, parts in dict.fromkeys((one.case, one.parts) for one in samples if one.batch_ms):
        chosen = [one for one in samples if one.case == case and one.parts == parts and one.batch_ms]
        times = by_side(chosen, lambda one: median(one.batch_ms))
        words = f"{case}, {parts} shard{'s' if parts > 1 else ''}"
        found.append(Figure(case=words, unit="ms", values=times, is_cost=True, target=_BATCH_TARGET))
    for case in _RATE_TARGETS:
        chosen = [one for one in samples if one.case == case]
        for part in ("broker", "jvm", "python") if chosen else ():
            costs = by_side(chosen, partial(_cost_us, part))
            found.append(Figure(case=f"{case}: CPU, {part}", unit="us/row", values=costs, is_cost=True))
    return found + _over_rounds([one for one in samples if one.case == WRITE], by_side, payload_bytes)


def _cost_us(part: str, sample: Sample) -> float:
    """CPU of one row in one part."""
    return 1e6 * float(getattr(sample.cpu, part)) / sample.rows


def _over_rounds(
    writes: Sequence[Sample],
    by_side: Callable[[Sequence[Sample], Callable[[Sample], float]], dict[str, float]],
    payload_bytes: int,
) -> list[Figure]:
    """The first quarter of the writes beside the last: what is steady is the same in both."""
    if not writes:
        return []
    rounds = max(one.round for one in writes) + 1
    quarter = max(1, rounds // 4)
    found = []
    for words, chosen in (
        ("first", [one for one in writes if one.round < quarter]),
        ("last", [one for one in writes if one.round >= rounds - quarter]),
    ):
        named = f"write, {words} {quarter} of {rounds} rounds"
        rates = by_side(chosen, lambda one: one.rows / one.seconds)
        costs = by_side(chosen, partial(_cost_us, "broker"))
        found.append(Figure(case=named, unit="rows/s", values=rates))
        found.append(Figure(case=f"{named}: CPU, broker", unit="us/row", values=costs, is_cost=True))
    sizes = by_side(writes, lambda one: (one.disk_bytes or 0) / (one.rows * payload_bytes))
    found.append(Figure(case="disk after a write", unit="x payload", values=sizes, is_cost=True))
    return found


def document(found: Sequence[Figure], samples: Sequence[Sample]) -> dict[str, Any]:
    """Everything for programs."""
    return {"figures": [asdict(one) for one in found], "samples": [asdict(one) for one in samples]}


def table(found: Sequence[Figure], ours: str) -> list[dict[str, str]]:
    """Rows for people: a column for each side, and behind them the ratios to the peers."""
    names = list(dict.fromkeys(name for one in found for name in one.values))
    rows = []
    for one in found:
        row = {"case": one.case, "unit": one.unit}
        row |= {name: _words(one.values.get(name)) for name in names}
        for name in names:
            if name != ours:
                ratio = one.ratio(ours, name)
                row[f"/ {name}"] = "" if ratio is None else f"{ratio:.2f}"
        row["reach"] = _reach(one, ours)
        rows.append(row)
    return rows


def _reach(one: Figure, ours: str) -> str:
    if one.target is None:
        return ""
    sign = "<=" if one.is_cost else ">="
    wanted = f"{sign} {one.target.ratio:g} x {one.target.against}"
    ratio = one.ratio(ours, one.target.against)
    if ratio is None:
        return wanted
    is_reached = ratio <= one.target.ratio if one.is_cost else ratio >= one.target.ratio
    return f"{wanted}: {'yes' if is_reached else 'no'}"


def _words(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
