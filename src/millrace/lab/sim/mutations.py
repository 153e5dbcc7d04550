"""The mutation gate: each planted bug must be caught, or the checkers are blind to a whole class of bugs.

A bug counts as caught by a seed only if the same seed is clean without it. Bugs of the machine come from
`replication/raft/mutations.py`; those of the driver (what no pure machine can get wrong) from
`driver_mutations.py` beside each process.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.lab.sim.campaign import RUNS
from millrace.lab.sim.cluster.node_mutations import NODE_MUTATIONS
from millrace.lab.sim.leaderless.driver_mutations import DRIVER_BUGS as LEADERLESS_DRIVER_BUGS
from millrace.lab.sim.pair.runs import PRIMARY_BACKUP_MUTATIONS
from millrace.lab.sim.planted.bug import Bugs
from millrace.lab.sim.raft.driver_mutations import DRIVER_BUGS
from millrace.lab.sim.routed.driver_mutations import DRIVER_BUGS as ROUTED_DRIVER_BUGS
from millrace.replication.leaderless import messages as leaderless_messages
from millrace.replication.raft.mutations import MUTATIONS
from millrace.replication.routed import machine as routed


def _described(bugs: Bugs) -> dict[str, str]:
    return {name: bug.description for name, bug in bugs.items()}


BY_MODE: dict[str, dict[str, str]] = {
    "raft": {**MUTATIONS, **_described(DRIVER_BUGS)},
    "primary-backup": PRIMARY_BACKUP_MUTATIONS,
    "leaderless": {**leaderless_messages.MUTATIONS, **_described(LEADERLESS_DRIVER_BUGS)},
    "routed": {**routed.ROUTED_MUTATIONS, **_described(ROUTED_DRIVER_BUGS)},
    "cluster": NODE_MUTATIONS,
}
"""The bugs that can be planted in what each mode simulates."""
ALL_MUTATIONS: dict[str, str] = BY_MODE["raft"]
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
    mutations, run = frozenset({name}), RUNS[mode]
    for seed in range(first_seed, first_seed + seeds_max):
        result = run(seed, mutations, None)
        if result.rule is not None and run(seed, frozenset(), None).is_clean:
            return Caught(
                name=name,
                description=BY_MODE[mode][name],
                seeds=seed - first_seed + 1,
                seed=seed,
                rule=result.rule,
                detail=result.detail,
            )
    return Caught(name=name, description=BY_MODE[mode][name], seeds=seeds_max, seed=None)


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
