"""Whole runs: clean without a planted bug, caught with one, and the same in every process."""

import json
import os
import subprocess
import sys

import pytest

from millrace.sim.campaign import replay
from millrace.sim.mutations import ALL_MUTATIONS, search
from millrace.sim.world import run_seed

BATCH = 20
BATCHES = 10
# Each breaks another promise, and each shows within a few seeds.
CHEAP = (
    "ack_before_fsync",
    "commit_before_majority",
    "vote_without_log_check",
    "driver_sends_before_sync",
    "driver_snapshot_skips_entry",
)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_seeds_are_clean(batch: int) -> None:
    """No promise is broken, and the clients got work done in every run."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        result = run_seed(seed)
        assert result.is_clean, (
            f"{result.rule}: {result.detail}; replay with: millrace sim --seed {seed} --trace"
        )
        assert result.operations > 0


@pytest.mark.parametrize("name", CHEAP)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = search(name, seeds_max=40)
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL_MUTATIONS if name not in CHEAP])
def test_every_planted_bug_is_caught(name: str) -> None:
    caught = search(name)
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


def test_a_violation_ends_the_trace_and_names_its_rule() -> None:
    result = replay(0, frozenset({"ack_before_fsync"}))
    assert result.rule == "sent too early"
    assert "VIOLATION sent too early" in result.tail[-1]


_HASHES = """
import json, sys
from millrace.sim.campaign import replay
print(json.dumps([replay(seed, frozenset()).trace_hash for seed in range(int(sys.argv[1]))]))
"""


def hashes(count: int, hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _HASHES, str(count)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout)
    return found


def check_same(count: int) -> None:
    ours, theirs = hashes(count, "1"), hashes(count, "4242")
    assert ours == theirs
    assert len(set(ours)) == count, "different seeds give different traces"


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    check_same(5)


@pytest.mark.slow
def test_a_hundred_seeds_give_the_same_traces_in_every_process() -> None:
    check_same(100)
