"""The mutation gate: each planted bug must be caught, or the checkers are blind to a whole class of bugs.

A bug counts as caught by a seed only if the same seed is clean without it. Bugs of the machine come from
`replication/mutations.py`; those of the driver (what no pure machine can get wrong) from `process.py`.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.replication.mutations import MUTATIONS
from millrace.sim.process import DRIVER_MUTATIONS
from millrace.sim.world import run_seed

ALL_MUTATIONS: dict[str, str] = {**MUTATIONS, **DRIVER_MUTATIONS}
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


def search(name: str, *, first_seed: int = 0, seeds_max: int = SEEDS_MAX) -> Caught:
    mutations = frozenset({name})
    for seed in range(first_seed, first_seed + seeds_max):
        result = run_seed(seed, mutations)
        if result.rule is not None and run_seed(seed).is_clean:
            return Caught(
                name=name,
                description=ALL_MUTATIONS[name],
                seeds=seed - first_seed + 1,
                seed=seed,
                rule=result.rule,
                detail=result.detail,
            )
    return Caught(name=name, description=ALL_MUTATIONS[name], seeds=seeds_max, seed=None)


def _search(job: tuple[str, int, int]) -> Caught:
    name, first_seed, seeds_max = job
    return search(name, first_seed=first_seed, seeds_max=seeds_max)


def search_all(
    names: Sequence[str], *, first_seed: int = 0, seeds_max: int = SEEDS_MAX, jobs: int = 1
) -> Iterator[Caught]:
    work = [(name, first_seed, seeds_max) for name in names]
    if jobs == 1:
        yield from map(_search, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_search, work)
