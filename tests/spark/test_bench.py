"""`millrace bench spark` as a user runs it, with few rows: every case comes to a figure."""

import json
import subprocess
from pathlib import Path

import pytest

from e2e.processes import MILLRACE, environment

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_RUN_S_MAX = 400.0


def test_every_case_is_measured_without_a_peer(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")
    file = tmp_path / "result.json"
    options = ["--against", "", "--rows", "1000", "--rounds", "1", "--write-rounds", "2"]
    done = subprocess.run(
        [MILLRACE, "bench", "spark", *options, "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=_RUN_S_MAX,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    cases = {one["case"]: one["values"] for one in found["figures"]}
    assert {"batch count", "parse JSON", "copy source to sink", "write", "disk after a write"} <= set(cases)
    assert {
        f"500-row batch to {to}, {n}" for to in ("noop", "own sink") for n in ("8 shards", "1 shard")
    } <= set(cases)
    assert all(values["millrace"] > 0 for case, values in cases.items() if "CPU" not in case)
    assert "case" in done.stdout
