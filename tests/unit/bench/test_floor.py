"""The floor under the figures of a durable message: what bare system calls take."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_the_sums_are_made_of_what_was_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millrace.lab.bench.trace.floor", "--directory", str(tmp_path)]
    said = subprocess.run(
        [*command, "--rounds", "25"], capture_output=True, text=True, timeout=60, check=True
    )
    found = {line[:32].strip(): float(line[32:].split()[0]) for line in said.stdout.splitlines()}
    sync, answer = found["a sync"], found["an answer to a packet"]
    assert sync > 0 and answer > 0 and found["a connection"] > 0
    assert found["a durable message, one node"] == pytest.approx(sync + answer, abs=0.2)
    assert found["a durable message, three nodes"] == pytest.approx(3 * sync + 5 * answer, abs=0.5)
    assert found["a durable session"] == pytest.approx(found["a connection"] + 2 * (sync + answer), abs=0.5)
    assert not list(tmp_path.iterdir()), "it leaves nothing behind"
