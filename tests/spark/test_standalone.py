"""A pipeline of the cluster on a real Spark cluster: a standalone master with two workers, as processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from e2e.conftest import StartBroker, start_broker
from e2e.processes import BrokerProcess, environment
from e2e.staged import contents
from e2e.test_declared_pipelines import shown
from millrace.client.http import Http
from spark.filling import fill
from waiting import until

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

__all__ = ["start_broker"]
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("java") is None, reason="Java is not installed; Spark needs Java 17 or later"
    ),
]

_S_MAX = 240
_HOST = "127.0.0.1"
_DEPLOY = "org.apache.spark.deploy"
_ROWS = 120
# Every number of the left meets that of the right, whichever comes first.
JOIN = """
def build(flow):
    from pyspark.sql import functions as F

    number = F.col("payload").cast("string").alias("number")
    left = flow.source("left", maxRowsPerTrigger="60").select(number)
    right = flow.source("right", maxRowsPerTrigger="60").select(number)
    joined = left.join(right, "number").select(F.col("number").alias("payload"))
    flow.sink("joined", joined, topic="out/joined")
"""


@dataclass
class Standalone:
    """A master and its workers."""

    directory: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self, kind: str, *arguments: str) -> Path:
        """Start one; the file with what it says."""
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        log = self.directory / f"{kind}-{len(self.processes)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(spark_class), f"{_DEPLOY}.{kind.lower()}.{kind}", "--host", _HOST, *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(SPARK_LOCAL_IP=_HOST, SPARK_DAEMON_MEMORY="256m"),
            )
        self.processes.append(process)
        return log

    def begin(self) -> str:
        """The address of a master that has two workers."""
        log = self.start("Master", "--port", "0", "--webui-port", "0")
        until(lambda: b"Starting Spark master at" in log.read_bytes(), "the master", _S_MAX)
        found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
        assert found is not None
        for number in range(2):
            work = str(self.directory / f"work{number}")
            self.start("Worker", "--cores", "1", "--memory", "700m", "--work-dir", work, found[1])
        until(lambda: log.read_text().count("Registering worker") == 2, "two workers", _S_MAX)
        return found[1]

    def kill_worker(self) -> None:
        """kill -9 of a worker with its executors."""
        os.killpg(self.processes[-1].pid, signal.SIGKILL)

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                process.wait(30)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


def create(node: BrokerProcess, master: str, checkpoints: Path) -> Http:
    http = Http(node.url)
    for stream in ("left", "right", "out"):
        form = {"name": stream, "filters": [f"{stream}/#"], "shards": 1}
        http.call("POST", "/v1/streams", form)
    definition = {
        "name": "join",
        "file": "join.py",
        "node": "n1",
        "master": master,
        "checkpoints": f"file://{checkpoints}",
        "trigger": "100ms",
        "conf": [
            f"spark.pyspark.python={sys.executable}",
            f"spark.driver.host={_HOST}",
            f"spark.driver.bindAddress={_HOST}",
            "spark.executor.memory=500m",
            "spark.executor.cores=1",
            "spark.sql.shuffle.partitions=2",
        ],
    }
    http.call("POST", "/v1/pipelines", {"definition": definition, "text": JOIN})
    return http


def test_a_join_keeps_its_state_over_a_killed_worker_and_another_driver(
    standalone: Standalone, start_broker: StartBroker, tmp_path: Path
) -> None:
    """One side comes, then a worker is killed and the driver replaced, then the other side comes: each number
    is joined once, by tasks that ran in executors of the workers."""
    node = start_broker("--set", "pipelines.run=true", SPARK_LOCAL_IP=_HOST)
    http = create(node, standalone.begin(), tmp_path / "checkpoints")

    def publish(stream: str, numbers: range) -> None:
        fill(node.port, [(f"{stream}/t", b"%d" % number) for number in numbers])

    def joined(count: int) -> None:
        wanted = Counter(range(count))

        def look() -> bool:
            found = contents(http, "out")
            assert not found - wanted, (found - wanted).most_common(5)
            return found == wanted

        until(look, f"{count} numbers that met", _S_MAX)

    until(lambda: shown(http, "join")["state"] == "running", "its queries", _S_MAX)
    half = _ROWS // 2
    publish("left", range(_ROWS))
    publish("right", range(half))
    joined(half)
    assert list(tmp_path.glob("work0/app-*/*")) and list(tmp_path.glob("work1/app-*/*"))
    standalone.kill_worker()
    epoch = shown(http, "join")["epoch"]
    http.call("POST", "/v1/pipelines/join/restart", {})
    until(lambda: shown(http, "join")["epoch"] > epoch, "another driver", _S_MAX)
    publish("right", range(half, _ROWS))
    joined(_ROWS)
