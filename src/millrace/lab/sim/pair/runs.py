"""One seed of the mode `primary-backup`: a pair that replicates first, or (odd seeds) a frame schedule."""

from millrace.lab.sim.pair.frame_world import run_frame_seed
from millrace.lab.sim.pair.story import run_pair_seed
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import RunResult
from millrace.replication.frame.sides import FRAME_MUTATIONS
from millrace.replication.pair.mutations import PAIR_MUTATIONS

PRIMARY_BACKUP_MUTATIONS: dict[str, str] = {**PAIR_MUTATIONS, **FRAME_MUTATIONS}


def run_primary_backup_seed(
    seed: int, mutations: frozenset[str] = frozenset(), trace: Trace | None = None
) -> RunResult:
    """A bug that is planted in the other kind of run changes nothing."""
    if seed % 2:
        return run_frame_seed(seed, mutations & FRAME_MUTATIONS.keys(), trace)
    return run_pair_seed(seed, mutations & PAIR_MUTATIONS.keys(), trace)
