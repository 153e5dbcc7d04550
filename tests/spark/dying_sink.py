"""The sink, and a driver that ends by kill -9 at a place that the environment names."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millrace.spark import options
from millrace.spark.sink import Staged, StreamWriter
from millrace.spark.source import MillraceSource
from spark.java_parts import built_jar, is_java, jar_of_tests


def _kill_driver() -> None:
    """The commit runs in a Python process under the JVM: the one that started the JVM is the driver."""
    os.kill(int(os.environ["DRIVER_PID"]), signal.SIGKILL)
    os.kill(int(Path(os.environ["JVM_PID_FILE"]).read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(StreamWriter):
    def write(self, iterator: Any) -> Staged:
        done = super().write(iterator)
        if os.environ["DIE"] == "worker" and done.batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if os.environ["DIE"] == "before commit" and batchId == 1:
            _kill_driver()
        super().commit(messages, batchId)
        if os.environ["DIE"] == "after commit" and batchId == 1:
            _kill_driver()


class DyingSource(MillraceSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return DyingWriter(options.parse_sink(self.options))


def drive() -> None:
    """Run the query that COPY describes, in a session of this process."""
    from spark.test_sink_stream import Copy

    url, checkpoint, source, target = os.environ["COPY"].split("|")
    pid_file = Path(checkpoint).parent / "jvm.pid"
    os.environ |= {"DRIVER_PID": str(os.getpid()), "JVM_PID_FILE": str(pid_file)}
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]")
    if is_java():
        # The dying sink in Java.
        jars = (built_jar(), jar_of_tests(Path(checkpoint).parent))
        builder = builder.config("spark.jars", ",".join(jars))
    session = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    jvm: Any = session.sparkContext._jvm
    pid_file.write_text(str(jvm.java.lang.ProcessHandle.current().pid()))
    session.dataSource.register(DyingSource)
    sink = "millrace.spark.Dying" if is_java() else "dying"
    query = Copy(url, Path(checkpoint), source, target).start(session, sink)
    query.awaitTermination()
