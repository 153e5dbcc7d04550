"""A real Spark session and a real node, both once for all tests; each test has streams of its own."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.java_parts import built_jar, is_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

_SOURCE = str(Path(__file__).resolve().parents[2] / "src")
_numbers = count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed: pip install 'millrace[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed; Spark needs Java 17 or later")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join((_SOURCE, os.environ.get("PYTHONPATH", "")))
    builder = sql.SparkSession.builder.master("local[2]")
    if is_java():
        builder = builder.config("spark.jars", built_jar())
    session = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        # Short queries end before code that was compiled with more care has paid for itself.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        # How long a Python worker may take to start: a loaded machine is slow, not broken.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path_factory.mktemp("node")).wait_ready()
    try:
        yield broker
    finally:
        broker.stop()
        print(broker.log)


@pytest.fixture(scope="session")
def http(node: BrokerProcess) -> Http:
    return Http(node.url)


@pytest.fixture
def make_stream(http: Http) -> Callable[..., str]:
    """Make a stream of this test's own; it takes the topics below its name."""

    def make(**settings: Any) -> str:
        name = f"s{next(_numbers)}"
        http.call("POST", "/v1/streams", {"name": name, "filters": [f"{name}/#"], "shards": 1, **settings})
        return name

    return make


@pytest.fixture
def shard_of(http: Http) -> Callable[[str], int]:
    """The number of the one shard of a stream."""

    def find(stream: str) -> int:
        (row,) = http.get(f"/v1/streams/{stream}")["shard_list"]
        return int(row["shard"])

    return find


@pytest.fixture
def source(spark: "SparkSession", node: BrokerProcess) -> "Callable[..., DataFrameReader]":
    """`spark.read` for a stream at the node, with options."""

    def make(stream: str, **options: str) -> "DataFrameReader":
        given = {"url": node.url, "stream": stream, **options}
        return spark.read.format("millrace").options(**given)

    return make
