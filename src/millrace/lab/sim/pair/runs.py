"""One seed of the mode `primary-backup`: a pair that replicates first, or (odd seeds) a frame schedule."""

from millrace.lab.sim.pair.frame_world import run_frame_seed
from millrace.lab.sim.pair.story import run_pair_seed
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import RunResult


def run_primary_backup_seed(seed: int, trace: Trace | None = None) -> RunResult:
    """A bug that is planted in the other kind of run changes nothing."""
    return run_frame_seed(seed, trace) if seed % 2 else run_pair_seed(seed, trace)
