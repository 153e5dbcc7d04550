"""A workload on a log, a model of what a crash may leave of it, and the check of one against the other.

The model knows which blocks are durable (a sync covered them), which are only written, and which call was
under way. After a crash the log must be one that the calls allow:

- every durable block is there, unless the call under way was dropping it;
- what follows is a beginning of what was written after, in order, and nothing else;
- nothing is called damaged: a power cut is not damage.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.lab.sim.surroundings.disk import Keep, PowerCut, SimDisk
from millrace.storage.block import Block
from millrace.storage.log import Log
from millrace.storage.recover import IndexLost
from millrace.storage.scan import TornTail
from millrace.types import Index
from unit.storage.making import chain, contents, new_disk, open_log, raw, reset_to, some_blocks, tail_of


@dataclass
class Model:
    """`blocks[0]` has index `first`; the first `durable` of them were synced."""

    first: int = 1
    blocks: list[Block] = field(default_factory=list)
    durable: int = 0
    # Set while a call is under way: what it may leave besides the above.
    appending: list[Block] = field(default_factory=list)
    cutting_at: int | None = None
    trimming: bool = False
    resetting_to: int | None = None

    def check(self, log: Log) -> None:
        assert all(isinstance(report, TornTail | IndexLost) for report in log.reports), log.reports
        found = contents(log)
        if self.resetting_to is not None and log.first_index == self.resetting_to and not found:
            return
        skipped = log.first_index - self.first
        assert skipped == 0 or (self.trimming and skipped > 0)
        possible = raw(self.blocks + self.appending)[skipped:]
        assert found == possible[: len(found)], "what was written, in order, and nothing else"
        needed = self.durable
        for limit in (self.cutting_at, self.resetting_to):
            if limit is not None:
                needed = min(needed, max(limit - self.first, 0))
        assert len(found) >= needed - skipped, "everything durable is there"


class Workload:
    """Random calls from a seed, the same for the same seed; the model follows."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.model = Model()
        self._rng = random.Random(seed)
        self._disk = disk
        self._term = 1
        self._log: Log | None = None
        self._staged: list[Block] = []

    def run(self, calls: int) -> Log:
        self._log = open_log(self._disk)
        steps: list[Callable[[Log], None]] = [
            *[self._append] * 9,
            *[self._sync] * 6,
            self._truncate,
            self._trim,
            self._checkpoint,
            self._restart,
        ]
        for n in range(calls):
            self._rng.choice(steps)(self._log)
            if n == calls * 2 // 3:
                self._reset(self._log)
        return self._log

    def _append(self, log: Log) -> None:
        fresh = some_blocks(self._rng, self._rng.randint(1, 4), staged=self._staged)
        blocks = chain(fresh, tail_of(log), term=self._term)
        self.model.appending = blocks
        # A roll syncs what is there before the new segment takes these.
        log.append(blocks)
        self.model.blocks += blocks
        self.model.appending = []

    def _sync(self, log: Log) -> None:
        assert log.sync() == log.last_index
        self.model.durable = len(self.model.blocks)

    def _checkpoint(self, log: Log) -> None:
        log.checkpoint()
        self.model.durable = len(self.model.blocks)

    def _truncate(self, log: Log) -> None:
        index = self._rng.randint(max(log.first_index, log.last_index - 12), log.last_index + 1)
        self.model.cutting_at = index
        log.truncate_from(Index(index))
        del self.model.blocks[index - self.model.first :]
        self.model.durable = min(self.model.durable, len(self.model.blocks))
        self.model.cutting_at = None
        self._term += 1

    def _trim(self, log: Log) -> None:
        self.model.trimming = True
        first = log.trim(Index(log.first_index + self._rng.randrange(25)))
        gone = first - self.model.first
        del self.model.blocks[:gone]
        self.model.durable = max(0, self.model.durable - gone)
        self.model.first = first
        self.model.trimming = False

    def _reset(self, log: Log) -> None:
        index = log.last_index + 1 + self._rng.randint(-3, 5)
        self.model.resetting_to = index
        reset_to(log, index, self._term, 500)
        self.model = Model(first=index)

    def _restart(self, log: Log) -> None:
        log.close()
        self.model.durable = len(self.model.blocks)
        self._disk.kill()
        self._log = open_log(self._disk)


def crash_at(change: int, *, seed: int, calls: int, keep: Keep, choice: int = 0) -> bool:
    """Run the workload, cut the power at that change, check what is left; False if the end came first."""
    disk = new_disk(seed * 1_000_003 + choice)
    workload = Workload(disk, seed)
    disk.cut_power_at(change)
    try:
        workload.run(calls)
    except PowerCut:
        disk.cut_power(keep)
    else:
        return False
    log = open_log(disk)
    workload.model.check(log)
    found = contents(log)
    # What a start has shown is durable: others may have been told.
    disk.cut_power(Keep.NOTHING)
    log = open_log(disk)
    assert contents(log) == found
    more = chain(some_blocks(random.Random(change), 3), tail_of(log), term=log.last_term + 1)
    log.append(more)
    log.sync()
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk)) == found + raw(more)
    return True


def changes_of(seed: int, calls: int) -> int:
    """How many changes the whole workload makes."""
    disk = new_disk(seed)
    start = disk.changes
    Workload(disk, seed).run(calls)
    assert disk.changes > start
    return disk.changes
