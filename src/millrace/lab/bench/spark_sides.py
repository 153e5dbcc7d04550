"""The two sides of the Spark benchmark: how Spark reads and writes Millrace, and how it does Kafka.

Both get the same rows, of 100 bytes of JSON under one of 64 topics or keys, made by Spark itself, and streams
of the same number of parts. Kafka is there twice: with its connector's defaults, and with larger fetches and
batches, by the same broker.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.client.http import Http
from millrace.lab.bench import peers
from millrace.lab.bench.kafka import KAFKA, KAFKA_TUNED, SPARK_PEERS, KafkaJars, kafka_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAYLOAD_BYTES = 100
_KEYS = 64
# Numbers of one length, so that every row has the same size.
_FIRST_ID = 10**11
_PAYLOAD = (
    "concat('{\"id\":', cast(id + %d as string), ',\"device\":', cast(id %% %d + 100 as string), "
    "',\"value\":', cast(id %% 1000 + 1000 as string), ',\"pad\":\"', repeat('x', %d), '\"}')"
)
_FRAME_BYTES = len('{"id":100000000000,"device":100,"value":1000,"pad":""}')
PAYLOAD_SQL = _PAYLOAD % (_FIRST_ID, _KEYS, PAYLOAD_BYTES - _FRAME_BYTES)
SCHEMA = "id long, device int, value int, pad string"

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20
# What Kafka's documentation advises for throughput: few large fetches and few large batches.
_TUNED_READ = {
    "kafka.max.poll.records": "50000",
    "kafka.max.partition.fetch.bytes": str(16 * _MIB),
    "kafka.fetch.max.bytes": str(64 * _MIB),
    "kafka.receive.buffer.bytes": str(_MIB),
}
_TUNED_WRITE = {
    "kafka.batch.size": str(_MIB),
    "kafka.linger.ms": "20",
    "kafka.buffer.memory": str(128 * _MIB),
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """Seconds of CPU by who used them. Python is the driver, its workers, and Spark's helpers of them."""

    broker: float
    jvm: float
    python: float

    def __sub__(self, other: "Cpu") -> "Cpu":
        return Cpu(self.broker - other.broker, self.jvm - other.jvm, self.python - other.python)


MILLRACE_JAVA = "millrace-java"
PEERS = (MILLRACE_JAVA, *SPARK_PEERS)
"""What stands beside the source in Python: the one in Java at the same node, and Kafka."""


class Side(ABC):
    """One broker as Spark sees it. `rows_option` bounds a micro-batch."""

    name: str
    rows_option: str

    def __init__(self, running: peers.Running, directory: Path) -> None:
        self.running = running
        self._data = directory / "data"

    @abstractmethod
    def make(self, stream: str, parts: int) -> None:
        """An empty stream."""

    @abstractmethod
    def reading(self, stream: str) -> tuple[str, dict[str, str]]:
        """The format and the options that read a stream from its beginning; the column is `payload`."""

    @abstractmethod
    def writing(self, stream: str) -> tuple[str, dict[str, str]]:
        """The format and the options that write rows of `shape` to it."""

    @abstractmethod
    def shape(self, rows: "DataFrame", stream: str) -> "DataFrame":
        """Rows with `key` and `payload` as the sink wants them."""

    def payload(self, read: "DataFrame") -> "DataFrame":
        return read

    def disk_bytes(self) -> int:
        """What its files take."""
        return sum(path.stat().st_blocks * 512 for path in self._data.rglob("*") if path.is_file())

    def broker_s(self) -> float:
        """CPU that its processes have used."""
        return sum(own + gone for own, gone in map(_cpu_s, self.running.pids()))


class MillraceSide(Side):
    name, rows_option = peers.MILLRACE, "maxRowsPerTrigger"

    def __init__(self, running: peers.Running, directory: Path, kind: str) -> None:
        super().__init__(running, directory)
        self._kind = kind

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.running.control_port}"

    def make(self, stream: str, parts: int) -> None:
        with Http(self._url) as http:
            http.call("POST", "/v1/streams", {"name": stream, "filters": [f"{stream}/#"], "shards": parts})

    def reading(self, stream: str) -> tuple[str, dict[str, str]]:
        return self._kind, {"url": self._url, "stream": stream, "startingOffsets": "earliest"}

    def writing(self, stream: str) -> tuple[str, dict[str, str]]:
        return self._kind, {"url": self._url, "stream": stream}

    def shape(self, rows: "DataFrame", stream: str) -> "DataFrame":
        return rows.selectExpr(f"concat('{stream}/', key) AS topic", "payload")

    def payload(self, read: "DataFrame") -> "DataFrame":
        return read.selectExpr("payload", "substring_index(topic, '/', -1) AS key")


class JavaSide(MillraceSide):
    name = MILLRACE_JAVA


class KafkaSide(Side):
    rows_option = "maxOffsetsPerTrigger"

    def __init__(
        self, running: peers.Running, directory: Path, *, tuned: bool, spark: "SparkSession"
    ) -> None:
        super().__init__(running, directory)
        self.name = KAFKA_TUNED if tuned else KAFKA
        self._spark = spark
        self._server = {"kafka.bootstrap.servers": f"127.0.0.1:{running.port}"}
        self._read = self._server | (_TUNED_READ if tuned else {})
        self._write = self._server | (_TUNED_WRITE if tuned else {})

    def make(self, stream: str, parts: int) -> None:
        jvm: Any = self._spark._jvm
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", self._server["kafka.bootstrap.servers"])
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            topics = jvm.java.util.ArrayList()
            topics.add(jvm.org.apache.kafka.clients.admin.NewTopic(stream, parts, 1))
            admin.createTopics(topics).all().get()
        finally:
            admin.close()

    def reading(self, stream: str) -> tuple[str, dict[str, str]]:
        return "kafka", self._read | {"subscribe": stream, "startingOffsets": "earliest"}

    def writing(self, stream: str) -> tuple[str, dict[str, str]]:
        return "kafka", self._write | {"topic": stream}

    def shape(self, rows: "DataFrame", stream: str) -> "DataFrame":
        return rows.selectExpr("cast(key AS binary) AS key", "cast(payload AS binary) AS value")

    def payload(self, read: "DataFrame") -> "DataFrame":
        return read.selectExpr("value AS payload", "cast(key AS string) AS key")


def made_rows(spark: "SparkSession", count: int) -> "DataFrame":
    """The rows that every case begins with."""
    return spark.range(count).selectExpr(
        f"cast(id % {_KEYS} AS string) AS key", f"cast({PAYLOAD_SQL} AS binary) AS payload"
    )


@contextmanager
def sides(
    spark: "SparkSession", kernels: str, jars: KafkaJars | None, against: list[str], directory: Path
) -> Iterator[list[Side]]:
    """Millrace by the source in Python, and by that in Java or Kafka where they are wanted and can run."""
    with ExitStack() as stack:

        def start(broker: peers.Broker) -> tuple[peers.Running, Path]:
            place = directory / broker.name
            place.mkdir()
            running = peers.start(broker, place, durable=True)
            stack.callback(peers.stop, running.process)
            return running, place

        own = start(peers.this_broker(kernels))
        found: list[Side] = [MillraceSide(*own, peers.MILLRACE)]
        if MILLRACE_JAVA in against:
            from millrace.lab.bench.spark_python import PythonSource

            spark.dataSource.register(PythonSource)
            found = [MillraceSide(*own, PythonSource.name()), JavaSide(*own, MILLRACE_JAVA)]
        against = [name for name in against if name in SPARK_PEERS]
        if jars is not None:
            running, place = start(kafka_broker(jars))
            found += [KafkaSide(running, place, tuned=name == KAFKA_TUNED, spark=spark) for name in against]
        yield found


# -------------------------------------------------------------------------------------------- accounts


def cpu(side: Side, jvm_pid: int) -> Cpu:
    """What has been used until now. Python processes are children of the JVM, but for the driver: those that
    ended are in the JVM's account of its children."""
    jvm_s, gone_s = _cpu_s(jvm_pid)
    below = [pid for pid in descendants(jvm_pid) if pid != jvm_pid]
    workers_s = sum(own + gone for own, gone in map(_cpu_s, below))
    return Cpu(side.broker_s(), jvm_s, time.process_time() + gone_s + workers_s)


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                # The thread ended meanwhile.
                continue
    return found


def _cpu_s(pid: int) -> tuple[float, float]:
    """CPU of a process, and of its children that ended and were waited for; nothing for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    user, system, children_user, children_system = (int(text) / _TICKS_PER_S for text in fields[11:15])
    return user + system, children_user + children_system
