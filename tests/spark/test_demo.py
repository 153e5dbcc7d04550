"""`millrace demo pipeline`: the main job to its end, and what it does on a machine without Java."""

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.processes import environment

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SOURCE = str(Path(__file__).resolve().parents[2] / "src")


def _demo(directory: Path, timeout_s: float, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", "demo", "pipeline"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=directory,
        env=environment(PYTHONPATH=_SOURCE, **variables),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " NO " not in done.stdout
    return done.stdout


@pytest.mark.usefixtures("spark")
def test_the_demo_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The leader and the driver were killed, every reading counts once, and the picture is there."""
    said = _demo(tmp_path, 900)
    assert said.count("kill -9") == 2
    assert "twice 0, lost 0" in said
    assert (tmp_path / "millrace-demo.png").read_bytes().startswith(b"\x89PNG")


def test_without_java_the_cluster_is_shown(tmp_path: Path) -> None:
    said = _demo(tmp_path, 180, PATH="/nowhere", JAVA_HOME="")
    assert "Spark needs Java 17" in said
    assert "acknowledged messages arrived" in said
