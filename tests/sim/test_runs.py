"""Whole runs: clean without a planted bug, caught with one, and the same in every process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

import pytest

from millrace.lab.sim.campaign import replay
from millrace.lab.sim.mutations import search
from millrace.lab.sim.planted.raft import RAFT_BUGS
from millrace.lab.sim.raft.story import run_seed

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
# Of whole nodes: small runs in which groups are at work, whose waiters are woken.
_WITH_GROUPS = (42, 10)


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


def test_a_run_of_whole_nodes_does_not_depend_on_what_was_written_a_moment_ago() -> None:
    """Lines of the log are part of the trace, and a real node leaves out what comes too often."""
    seed = _WITH_GROUPS[0]
    first, second = (replay(seed, frozenset(), mode="cluster").trace_hash for _ in range(2))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RAFT_BUGS if name not in CHEAP])
def test_every_planted_bug_is_caught(name: str) -> None:
    caught = search(name)
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


def test_a_violation_ends_the_trace_and_names_its_rule() -> None:
    result = replay(0, frozenset({"ack_before_fsync"}))
    assert result.rule == "sent too early"
    assert "VIOLATION sent too early" in result.tail[-1]


_HASHES = """
import json, sys
from millrace.lab.sim.campaign import replay
mode, *seeds = sys.argv[1:]
print(json.dumps([replay(int(seed), frozenset(), mode=mode).trace_hash for seed in seeds]))
"""


def hashes(mode: str, seeds: Iterable[int], **variables: str) -> list[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", _HASHES, mode, *map(str, seeds)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout)
    return found


def check_same(mode: str, seeds: Sequence[int]) -> None:
    """With other hashes of strings, and with objects at other addresses, which are their hashes."""
    ours = hashes(mode, seeds, PYTHONHASHSEED="1")
    theirs = hashes(mode, seeds, PYTHONHASHSEED="4242", PYTHONMALLOC="malloc")
    assert ours == theirs
    assert len(set(ours)) == len(seeds), "different seeds give different traces"


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    check_same("raft", range(5))


@pytest.mark.long
def test_a_run_of_whole_nodes_is_the_same_in_every_process() -> None:
    check_same("cluster", _WITH_GROUPS)


@pytest.mark.slow
def test_a_hundred_seeds_give_the_same_traces_in_every_process() -> None:
    check_same("raft", range(100))


@pytest.mark.slow
def test_many_runs_of_whole_nodes_are_the_same_in_every_process() -> None:
    check_same("cluster", range(20))
