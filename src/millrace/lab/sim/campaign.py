"""Many seeds, on one core or several, in slices that add up across days.

A campaign file keeps one record per slice: which code, which seeds, what it did and what it found. The next
slice goes on after the last seed. A figure such as "10,000 seeds without a violation" is a sum over slices
of the same code; `sources` is a hash over the code that decides a run, so that slices of different code are
told apart even between commits.
"""

import json
import math
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from millrace.errors import LocalError
from millrace.lab.sim.cluster.world import run_cluster_seed
from millrace.lab.sim.leaderless.world import run_leaderless_seed
from millrace.lab.sim.pair.runs import run_primary_backup_seed
from millrace.lab.sim.planted.bug import planted
from millrace.lab.sim.planted.registry import BUGS
from millrace.lab.sim.raft.story import run_seed
from millrace.lab.sim.routed.world import run_routed_seed
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import RunResult

RUNS: dict[str, Callable[[int, Trace | None], RunResult]] = {
    "raft": run_seed,
    "cluster": run_cluster_seed,
    "primary-backup": run_primary_backup_seed,
    "leaderless": run_leaderless_seed,
    "routed": run_routed_seed,
}
MODES = tuple(RUNS)
VIOLATIONS_MAX = 20
"""A campaign stops here: more of the same says nothing new."""
_PACKAGE = Path(__file__).resolve().parents[2]
_CHUNK = 8
# Whose code decides what a seed does.
_DECIDING = {
    "raft": ("replication", "driver", "lab/sim"),
    "primary-backup": ("broker", "replication", "driver", "lab/sim"),
    "leaderless": ("replication", "driver", "lab/sim"),
    "routed": ("kernels", "broker", "replication", "wire", "driver", "node", "lab/sim"),
    "cluster": ("kernels", "broker", "replication", "storage", "wire", "driver", "node", "client", "lab/sim"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A violation and what is needed to see it again."""

    seed: int
    rule: str
    detail: str


@dataclass(slots=True, kw_only=True)
class Slice:
    commit: str
    sources: str
    mode: str
    first_seed: int
    seeds: int = 0
    operations: int = 0
    reads: int = 0
    entries: int = 0
    faults: int = 0
    messages: int = 0
    simulated_s: float = 0.0
    wall_s: float = 0.0
    violations: list[Found] = field(default_factory=list)

    def add(self, result: RunResult) -> None:
        self.seeds += 1
        self.operations += result.operations
        self.reads += result.reads
        self.entries += result.entries
        self.faults += result.faults
        self.messages += result.messages
        self.simulated_s += result.simulated_s
        if result.rule is not None:
            self.violations.append(Found(seed=result.seed, rule=result.rule, detail=result.detail))


def code_commit() -> str:
    """The commit of the checkout this runs from, with a `+` if files differ from it; `-` outside one."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--", str(_PACKAGE)) else "")
    except (OSError, subprocess.CalledProcessError):
        return "-"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@cache
def code_sources(mode: str) -> str:
    """A hash over the files that decide what a seed does, as they were when first asked."""
    digest = blake2b(digest_size=6)
    for folder in _DECIDING[mode]:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_with(bugs: frozenset[str], seed: int, mode: str, trace: Trace | None = None) -> RunResult:
    """One run with the bugs of these names in the code that runs."""
    with planted(BUGS[mode], bugs):
        return RUNS[mode](seed, trace)


def _run(job: tuple[str, int, frozenset[str], float]) -> RunResult | None:
    """None where there is no time left to begin."""
    mode, seed, bugs, until_s = job
    return run_with(bugs, seed, mode) if time.monotonic() < until_s else None


def results(
    seeds: range, bugs: frozenset[str], jobs: int, mode: str = "raft", until_s: float = math.inf
) -> Iterator[RunResult]:
    """In the order of the seeds, whatever the number of processes. None is begun after `until_s`, by the
    clock that all processes share; each that was begun is told."""
    work = ((mode, seed, bugs, until_s) for seed in seeds)
    if jobs == 1:
        yield from _begun(map(_run, work))
        return
    # In chunks, seeds behind one that was not begun would be done, and lost.
    chunk = _CHUNK if until_s == math.inf else 1
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        # A window, so that an early stop does not leave thousands of seeds behind.
        batches = iter(lambda: list(islice(work, chunk * jobs * 4)), [])
        yield from _begun(one for batch in batches for one in pool.imap(_run, batch, chunksize=chunk))


def _begun(found: Iterable[RunResult | None]) -> Iterator[RunResult]:
    """Up to the first seed that was not begun."""
    for one in found:
        if one is None:
            return
        yield one


def replay(
    seed: int,
    bugs: frozenset[str],
    sink: Callable[[str], None] | None = None,
    *,
    mode: str = "raft",
) -> RunResult:
    """The same run again with its trace: the hash, the last lines, and every line to `sink`."""
    return run_with(bugs, seed, mode, Trace(sink))


class CampaignFile:
    """The slices so far. Written aside and renamed, so that an interrupted slice loses only itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.slices: list[Slice] = []
        if path.exists():
            try:
                self.slices = [_slice_of(record) for record in json.loads(path.read_text())["slices"]]
            except (ValueError, KeyError, TypeError) as error:
                raise LocalError(f"{path} is not a campaign file: {error!r}") from error

    def next_seed(self, mode: str) -> int:
        return max((one.first_seed + one.seeds for one in self.slices if one.mode == mode), default=0)

    def write(self, current: Slice) -> None:
        records = [asdict(one) for one in (*self.slices, current)]
        aside = self._path.with_name(self._path.name + ".new")
        aside.write_text(json.dumps({"slices": records}, indent=1) + "\n")
        os.replace(aside, self._path)


def _slice_of(record: dict[str, object]) -> Slice:
    found = [Found(**violation) for violation in record.pop("violations")]  # type: ignore[attr-defined]
    return Slice(**record, violations=found)  # type: ignore[arg-type]


def run_slice(
    seeds: range,
    *,
    mode: str = "raft",
    jobs: int = 1,
    file: CampaignFile | None = None,
    seconds_max: float | None = None,
    on_result: Callable[[Slice, RunResult], None] | None = None,
) -> Slice:
    """Run these seeds, or as many as the time allows. Ctrl-C ends the slice and keeps what it did."""
    current = Slice(commit=code_commit(), sources=code_sources(mode), mode=mode, first_seed=seeds.start)
    started_s = saved_s = time.monotonic()
    until_s = math.inf if seconds_max is None else started_s + seconds_max
    try:
        for result in results(seeds, frozenset(), jobs, mode, until_s):
            current.add(result)
            now_s = time.monotonic()
            current.wall_s = round(now_s - started_s, 1)
            if on_result is not None:
                on_result(current, result)
            if file is not None and now_s - saved_s > 5:
                saved_s = now_s
                file.write(current)
            if len(current.violations) >= VIOLATIONS_MAX:
                break
    except KeyboardInterrupt:
        pass
    if file is not None:
        file.write(current)
    return current
