"""A primary-backup pair and its frame schedule keep their promises under faults; planted bugs are seen."""

import pytest

from millrace.lab.sim.mutations import search
from millrace.lab.sim.pair.runs import run_primary_backup_seed
from millrace.lab.sim.pair.world import make_pair_plan
from millrace.lab.sim.planted.pair import PAIR_BUGS
from millrace.lab.sim.trace import Trace

QUICK = (
    "ack_before_backup",
    "alone_before_recorded",
    "promoted_out_of_sync",
    "epoch_kept_at_restart",
    "frame_arrival_order",
    "frame_discard_ignored",
    "frame_overload_silent",
    "frame_recovers_backwards",
)


def test_seeds_are_clean_with_an_authority_and_without() -> None:
    seeds = range(40)
    kinds = {make_pair_plan(seed).has_authority for seed in seeds if seed % 2 == 0}
    assert kinds == {True, False}
    for seed in seeds:
        result = run_primary_backup_seed(seed)
        replay = f"millrace sim --mode primary-backup --seed {seed} --trace"
        assert result.is_clean, f"{result.rule}: {result.detail}; replay with: {replay}"
        assert result.operations > 0


@pytest.mark.parametrize("seed", [2, 3])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first, second = (run_primary_backup_seed(seed, trace=Trace()) for _ in range(2))
    assert first.trace_hash == second.trace_hash


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = search(name, seeds_max=80, mode="primary-backup")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAIR_BUGS if name not in QUICK])
def test_every_planted_bug_is_caught(name: str) -> None:
    caught = search(name, mode="primary-backup")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"
