"""The mutation gate: each planted bug must be caught, or the checkers are blind to a whole class of bugs.

A bug counts as caught by a seed only if the same seed is clean without it. The bugs are in `planted/`.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.lab.sim.campaign import run_with
from millrace.lab.sim.planted.registry import BUGS

SEEDS_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    name: str
    description: str
    seeds: int
    """How many it took; all that were tried if it was not caught."""
    seed: int | None
    rule: str = ""
    detail: str = ""

    @property
    def is_caught(self) -> bool:
        return self.seed is not None


def search(name: str, *, first_seed: int = 0, seeds_max: int = SEEDS_MAX, mode: str = "raft") -> Caught:
    description = BUGS[mode][name].description
    for seed in range(first_seed, first_seed + seeds_max):
        result = run_with(frozenset({name}), seed, mode)
        if result.rule is not None and run_with(frozenset(), seed, mode).is_clean:
            return Caught(
                name=name,
                description=description,
                seeds=seed - first_seed + 1,
                seed=seed,
                rule=result.rule,
                detail=result.detail,
            )
    return Caught(name=name, description=description, seeds=seeds_max, seed=None)


def _search(job: tuple[str, int, int, str]) -> Caught:
    name, first_seed, seeds_max, mode = job
    return search(name, first_seed=first_seed, seeds_max=seeds_max, mode=mode)


def search_all(
    names: Sequence[str],
    *,
    first_seed: int = 0,
    seeds_max: int = SEEDS_MAX,
    jobs: int = 1,
    mode: str = "raft",
) -> Iterator[Caught]:
    work = [(name, first_seed, seeds_max, mode) for name in names]
    if jobs == 1:
        yield from map(_search, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_search, work)
