"""Whole runs of the leaderless simulation: clean without a bug, caught with one, the same each time."""

import pytest

from millrace.sim.campaign import replay
from millrace.sim.leaderless_world import run_leaderless_seed
from millrace.sim.mutations import BY_MODE, search

BATCH = 5
BATCHES = 6
# Each breaks another promise, and each shows within a few seeds.
CHEAP = (
    "ack_before_level",
    "vector_rewound",
    "mark_lost",
    "in_flight_not_handed_over",
    "removal_below_one_mark",
    "incarnation_reused",
    "alone_before_heard",
    "returned_unasked",
    "lease_ignored",
)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_seeds_are_clean(batch: int) -> None:
    """No promise is broken, and every run published, delivered and acknowledged something."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        result = run_leaderless_seed(seed)
        assert result.is_clean, (
            f"{result.rule}: {result.detail}; replay: millrace sim --mode leaderless --seed {seed} --trace"
        )
        assert result.operations > 0
        assert result.reads > 0


@pytest.mark.parametrize("name", CHEAP)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = search(name, seeds_max=40, mode="leaderless")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_MODE["leaderless"] if name not in CHEAP])
def test_every_planted_bug_is_caught(name: str) -> None:
    caught = search(name, mode="leaderless")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


def test_a_run_is_its_seed() -> None:
    hashes = {replay(4, frozenset(), mode="leaderless").trace_hash for _ in range(2)}
    assert len(hashes) == 1
    assert replay(5, frozenset(), mode="leaderless").trace_hash not in hashes
