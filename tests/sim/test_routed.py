"""The simulator of routed nodes: seeds are clean, a seed is its run, and every planted bug is seen."""

import pytest

from millrace.lab.sim.mutations import search
from millrace.lab.sim.planted.routed import ROUTED_BUGS
from millrace.lab.sim.routed.world import run_routed_seed
from millrace.lab.sim.trace import Trace


@pytest.mark.parametrize("first", [0, 10])
def test_seeds_are_clean(first: int) -> None:
    for seed in range(first, first + 10):
        result = run_routed_seed(seed)
        assert result.is_clean, (seed, result.rule, result.detail)
        assert result.operations and result.messages


def test_a_seed_is_its_run() -> None:
    hashes = {run_routed_seed(3, Trace()).trace_hash for _ in range(2)}
    assert len(hashes) == 1


# How many seeds the slower ones took, with room; the others show at once.
_SEEDS = {"stale_announcement_wins": 150, "first_unsubscribe_withdraws": 40, "gap_ignored": 40}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in _SEEDS else name for name in sorted(ROUTED_BUGS)],
)
def test_every_planted_bug_is_caught(name: str) -> None:
    caught = search(name, seeds_max=_SEEDS.get(name, 10), mode="routed")
    assert caught.is_caught, name
