"""Spark Connect: a client without a JVM, a server of its own, and the same source and sink."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.processes import BrokerProcess, environment
from millrace.client.http import Http
from spark.filling import fill
from spark.test_sink_stream import payloads
from waiting import until

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")
pytest.importorskip("grpc", reason="Spark Connect is not installed: pip install 'pyspark[connect]'")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("java") is None, reason="Java is not installed; Spark needs Java 17 or later"
    ),
]

_SOURCE = str(Path(__file__).resolve().parents[2] / "src")
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(r"Spark Connect server started at: \S+:(\d+)")
_S_MAX = 240
ROWS = 300

# What a client does. It runs in a process of its own, where no session with a JVM is.
CLIENT = """
import sys

from pyspark.sql import SparkSession

remote, url, source, target, checkpoints = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()


def read(**options):
    return spark.read.format("millrace").options(url=url, stream=source, **options).load()


print("read", read().count(), read(topics=f"{source}/1").select("payload").count())

rows = read().selectExpr(f"replace(topic, '{source}/', '{target}/batch/') AS topic", "payload")
rows.write.format("millrace").mode("append").options(url=url).save()

stream = spark.readStream.format("millrace").options(url=url, stream=source, startingOffsets="earliest")
moved = stream.load().selectExpr(f"replace(topic, '{source}/', '{target}/stream/') AS topic", "payload")
writer = moved.writeStream.format("millrace").options(url=url)
query = writer.option("checkpointLocation", checkpoints + "/stream")
query.trigger(availableNow=True).start().awaitTermination()


def publish(batch, number):
    named = {"url": url, "writer": f"each-{target}", "batch": str(number)}
    batch.write.format("millrace").mode("append").options(**named).save()


each = stream.load().selectExpr(f"replace(topic, '{source}/', '{target}/each/') AS topic", "payload")
query = each.writeStream.foreachBatch(publish).option("checkpointLocation", checkpoints + "/each")
query.trigger(availableNow=True).start().awaitTermination()

spark.sql(f"CREATE TEMPORARY VIEW v USING millrace OPTIONS (url '{url}', stream '{source}')")
print("sql", spark.sql("SELECT count(DISTINCT topic) AS n FROM v").first().n)
spark.stop()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server, as `start-connect-server.sh` starts it, but in the foreground."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.python.authenticate.socketTimeout": "120s",
    }
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    path = os.pathsep.join((_SOURCE, os.environ.get("PYTHONPATH", "")))
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [submit, "--master", "local[2]", *words, "--class", _SERVER, "spark-internal"],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, PYTHONPATH=path),
        )
    try:

        def port() -> str:
            assert process.poll() is None, log.read_text()[-3_000:]
            found = _STARTED.search(log.read_text())
            return found[1] if found is not None else ""

        until(port, "the Connect server", _S_MAX)
        yield f"sc://127.0.0.1:{port()}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        print(log.read_text()[-5_000:])


def test_a_client_without_a_jvm_reads_and_writes(
    server: str, http: Http, node: BrokerProcess, make_stream: Callable[..., str], tmp_path: Path
) -> None:
    """Batch, streaming, `foreachBatch` with writer and batch, and SQL: the server has the data source, the
    client names it."""
    source, target = make_stream(shards=2), make_stream(shards=2)
    fill(node.port, [(f"{source}/{n % 3}", b"%d" % n) for n in range(ROWS)])
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    done = subprocess.run(
        [sys.executable, program, server, node.url, source, target, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        timeout=_S_MAX,
        env=environment(PYTHONPATH=_SOURCE),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert done.stdout.split("\n")[:2] == [f"read {ROWS} {ROWS // 3}", "sql 3"]
    assert payloads(http, target) == Counter({b"%d" % n: 3 for n in range(ROWS)})
