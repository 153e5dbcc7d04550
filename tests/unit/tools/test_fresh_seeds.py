"""Fresh seeds: the commit chooses them, every mode runs, one broken promise fails them all."""

import os
import subprocess
from pathlib import Path

from millrace.lab.sim.campaign import MODES

ROOT = Path(__file__).resolve().parents[3]


def run_seeds(venv: Path, program: str, **variables: str) -> tuple[int, list[str], str]:
    """Run the script with this shell program in place of `millrace`; returns status, output and errors."""
    (venv / "bin").mkdir()
    (venv / "bin" / "millrace").write_text(f"#!/bin/sh\n{program}\n")
    (venv / "bin" / "millrace").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "SEED"}
    done = subprocess.run(
        [str(ROOT / "tools" / "fresh_seeds.sh")],
        env={**environment, "VENV": str(venv), "JOBS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_every_mode_runs_from_the_seed_named(tmp_path: Path) -> None:
    status, lines, errors = run_seeds(tmp_path, 'echo "ran $*"', SEED="4711")
    assert (status, errors) == (0, "")
    ran = [line.split() for line in lines if line.startswith("ran ")]
    assert sorted(words[words.index("--mode") + 1] for words in ran) == sorted(MODES)
    assert all(words[words.index("--seed") + 1] == "4711" for words in ran)


def test_a_broken_promise_fails_and_the_other_modes_still_run(tmp_path: Path) -> None:
    program = 'echo "ran $*"; case "$*" in *routed*) exit 1;; esac'
    status, lines, errors = run_seeds(tmp_path, program, SEED="4711")
    assert status == 1
    assert len([line for line in lines if line.startswith("ran ")]) == len(MODES)
    [again] = [line for line in errors.splitlines() if "millrace sim" in line]
    assert "--mode routed --seed 4711 --seeds " in again


def test_without_a_seed_named_the_commit_chooses(tmp_path: Path) -> None:
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    status, lines, _ = run_seeds(tmp_path, "true")
    assert status == 0
    if found.returncode == 0:
        commit = found.stdout.strip()
        assert lines[0] == f"fresh seeds: from {int(commit[:8], 16)}, after commit {commit[:12]}"
    else:
        assert lines[0].endswith("because this is no git checkout")
