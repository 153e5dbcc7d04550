"""`millrace pipeline run`: a driver that is killed, one that never comes up, wrong use, no Java."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import MILLRACE, BrokerProcess, complaint, environment, millrace
from millrace.client.http import Http
from spark.filling import fill
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SOURCE = str(Path(__file__).resolve().parents[2] / "src")
_BATCH_S_MAX = 240
COPY = """
def build(flow):
    rows = flow.source(flow.setting("stream")).select("payload", "shard", "offset")
    flow.sink("copy", rows, format="parquet", path=flow.setting("table"))
"""


@pytest.fixture
def start(tmp_path: Path, node: BrokerProcess) -> Iterator[Any]:
    """Start `millrace pipeline run` and end it whatever happens."""
    running: list[subprocess.Popen[str]] = []

    def run(file: Path, *arguments: str) -> "subprocess.Popen[str]":
        command = [MILLRACE, "pipeline", "run", str(file), "--url", node.url, "--master", "local[2]"]
        process = subprocess.Popen(
            [*command, "--state", str(tmp_path / "state"), *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=_SOURCE),
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def test_a_killed_driver_is_started_again_and_repeats_nothing(
    start: Any, spark: Any, node: BrokerProcess, http: Http, make_stream: Any, tmp_path: Path
) -> None:
    """kill -9 of the driver: rows before and after it are in the table once, the node shows the pipeline on
    $SYS, and SIGTERM ends it with status 0."""
    stream, table = make_stream(), tmp_path / "table"
    file = tmp_path / "copy.py"
    file.write_text(COPY)
    fill(node.port, [(f"{stream}/t", b"%d" % n) for n in range(100)])
    process = start(file, "--set", f"stream={stream}", "--set", f"table={table}", "--name", stream)

    def rows() -> int:
        reports = {one["name"]: one for one in http.get("/v1/pipelines")["pipelines"]}
        queries = reports.get(stream, {"queries": []})["queries"]
        return sum(query["rows"] for query in queries)

    until(lambda: rows() >= 100 or process.poll() is not None, "the first batch", _BATCH_S_MAX)
    assert process.poll() is None
    driver = int((tmp_path / "state" / "driver.pid").read_text())
    os.kill(driver, signal.SIGKILL)
    fill(node.port, [(f"{stream}/t", b"%d" % n) for n in range(100, 150)])
    until(lambda: rows() >= 150, "the batch after the restart", _BATCH_S_MAX)
    shown = millrace(
        "sub", f"$SYS/pipelines/{stream}", "--count", "1", "--url", f"mqtt://127.0.0.1:{node.port}"
    )
    report = json.loads(shown.stdout)
    assert (report["state"], report["restarts"]) == ("running", 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    found = sorted(int(row.payload) for row in spark.read.parquet(str(table)).collect())
    assert found == list(range(150))


def test_it_gives_up_with_a_reason(start: Any, tmp_path: Path) -> None:
    """A driver that cannot come up is started as often as was asked for; then the status is 1."""
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('no such thing')\n")
    process = start(file, "--starts", "2")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "gives up after 2 starts" in errors and "no such thing" in errors
    assert errors.count("millrace: ") == 1


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("empty.py", "x = 1\n", "no function build(flow)"),
        ("wrong.txt", "", "a pipeline is a .py file"),
        ("missing.py", None, "there is no file"),
        ("syntax.py", "def build(flow):\n    return (\n", "syntax.py, line 2: '(' was never closed"),
        (
            "table.py",
            "def build(flow):\n    flow.spark.table('nowhere')\n",
            "table.py, line 2: [TABLE_OR_VIEW",
        ),
        ("table.sql", "INSERT INTO x USING noop SELECT * FROM nowhere;", "[TABLE_OR_VIEW_NOT_FOUND]"),
    ],
)
def test_wrong_use_is_said_at_once(
    start: Any, tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    process = start(file)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in errors


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(COPY)
    done = millrace("pipeline", "run", str(file), "--state", str(tmp_path), PATH="/nowhere", JAVA_HOME="")
    assert done.returncode == 1
    assert "install it" in complaint(done) and "Java 17" in complaint(done)
