"""The example with Delta Lake: every message once in the table, its earlier versions, the way back to topics.

Delta Lake follows Spark's releases some months later, so `make lakehouse` runs this file with the PySpark
that it was built for.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.processes import MILLRACE, BrokerProcess, environment
from millrace.client.http import Http
from millrace.lab.bench.maven import Artifact, fetch
from spark.filling import fill

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: make lakehouse")

SPARK, DELTA = "4.2", "4.4.0"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipelines" / "lakehouse"
_RUN_S_MAX = 600

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(
        not pyspark.__version__.startswith(f"{SPARK}."),
        reason=f"Delta Lake {DELTA} needs PySpark {SPARK}, this is {pyspark.__version__}: make lakehouse",
    ),
]


@pytest.fixture(scope="module")
def jars() -> str:
    found = fetch([Artifact("io.delta", f"delta-spark_{SPARK}_2.13", DELTA)])
    if found is None:
        pytest.skip("no mvn, which fetches Delta Lake")
    # What Delta Lake depends on otherwise, Spark has.
    own = [*found.glob("delta-*.jar"), *found.glob("unitycatalog-*.jar")]
    return ",".join(str(jar) for jar in own)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "node").wait_ready()
    Http([broker.url]).call("POST", "/v1/streams", {"name": "plant", "filters": ["plant/#"], "shards": 2})
    yield broker
    broker.stop()


def run(*command: str) -> str:
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=_RUN_S_MAX, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


class Lake:
    """The table, and the commands of the example for it."""

    def __init__(self, directory: Path, jars: str, url: str) -> None:
        self.table = str(directory / "lake")
        self._state = str(directory / "state")
        self._jars, self._url = jars, url

    def fill(self) -> None:
        run(
            *(MILLRACE, "pipeline", "run", str(EXAMPLE / "pipeline.py"), "--once", "--master", "local[2]"),
            *("--url", self._url, "--state", self._state),
            *("--set", f"table={self.table}", "--set", "stream=plant", "--conf", f"spark.jars={self._jars}"),
            *("--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension"),
            "--conf",
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        )

    def replay(self, *options: str) -> str:
        return run(
            *(sys.executable, str(EXAMPLE / "replay.py"), self.table, "--jars", self._jars),
            *("--url", self._url, *options),
        )

    def versions(self) -> dict[int, int]:
        """How many messages the table had at each version."""
        lines = [line.split() for line in self.replay().splitlines() if line.startswith("version")]
        return {int(number.rstrip(":")): int(rows) for _, number, rows, _ in lines}


def published(url: str) -> Counter[tuple[str, str]]:
    """What was replayed."""
    http = Http([url])
    found: Counter[tuple[str, str]] = Counter()
    for row in http.get("/v1/streams/default")["shard_list"]:
        at = row["first_offset"]
        while at < row["next_offset"]:
            query = {"from": at, "limit": 10_000, "filter": "replay/#"}
            page = http.get(f"/v1/streams/default/shards/{row['shard']}/messages", **query)
            found.update((one["topic"], one["payload"]) for one in page["messages"])
            at = page["next_offset"]
    return found


def test_there_and_back_with_time_travel(node: BrokerProcess, jars: str, tmp_path: Path) -> None:
    """The table has each message once, over three runs; the version of the first run has what was there then,
    and is published once however often it is replayed."""
    lake = Lake(tmp_path, jars, node.url)
    first = [(f"plant/press{n % 7}", json.dumps({"n": n})) for n in range(500)]
    fill(node.port, [(topic, payload.encode()) for topic, payload in first])
    lake.fill()
    early = lake.versions()
    assert early[max(early)] == len(first)

    fill(node.port, [("plant/oven", b"%d" % n) for n in range(200)])
    lake.fill()
    lake.fill()
    late = lake.versions()
    assert late[max(late)] == 700 and late[max(early)] == len(first)

    for _ in range(2):
        lake.replay("--version", str(max(early)), "--below", "replay")
    assert published(node.url) == Counter((f"replay/{topic}", payload) for topic, payload in first)
