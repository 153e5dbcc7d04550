"""The demos run and prove what they say: each ends in a check of its own."""

import subprocess
import sys

import pytest

LONG = ("replication", "membership", "election", "routed", "primary-backup", "leaderless")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.parametrize("name", ["basic", "failover", *SLOW])
def test_demo(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", "demo", name],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " NO " not in done.stdout
