"""A Spark Declarative Pipelines project, run by `millrace pipeline run DIR` with our source and our sink."""

import os
import shutil
from pathlib import Path

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from millrace.spark.supervisor import Plan, Supervisor
from spark.filling import fill

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "pipelines" / "declarative"
_SOURCE = str(PROJECT.parents[2] / "src")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, with a place of this test's own for what it keeps."""
    pytest.importorskip("pyspark.pipelines", reason="PySpark is not installed: pip install 'millrace[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed; Spark needs Java 17 or later")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((_SOURCE, os.environ.get("PYTHONPATH", ""))))
    directory = tmp_path / "project"
    shutil.copytree(PROJECT, directory)
    spec = directory / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/millrace-declarative" in text
    spec.write_text(text.replace("file:///tmp/millrace-declarative", f"file://{tmp_path}/store"))
    return directory


def test_a_declarative_project_reads_and_writes_streams_exactly_once(
    project: Path, tmp_path: Path, node: BrokerProcess, http: Http
) -> None:
    """Two runs: the second one goes on where the checkpoint of the first is."""
    for name in ("plant", "warnings"):
        http.call("POST", "/v1/streams", {"name": name, "filters": [f"{name}/#"]})
    plan = Plan(
        name="declarative",
        file=project,
        state=tmp_path / "state",
        urls=node.url,
        master="local[2]",
        configuration=("spark.ui.enabled=false",),
        starts_max=1,
    )
    (row,) = http.get("/v1/streams/warnings")["shard_list"]
    path = f"/v1/streams/warnings/shards/{row['shard']}/messages"
    expected: list[tuple[str, bytes]] = []
    for readings in ((80, 91, 95), (10, 99)):
        fill(node.port, [("plant/press/temperature", str(celsius).encode()) for celsius in readings])
        Supervisor(plan, lambda state: None).run()
        expected += [("warnings/plant/press/temperature", str(n).encode()) for n in readings if n > 90]
        found = http.get(path, **{"from": "earliest"})["messages"]
        assert [(one["topic"], one["payload"].encode()) for one in found] == expected
