"""The log of a simulated replica as its driver has it: a `LogDisk` whose syncs take time and may fail.

Syncs are grouped: one covers all that was written before it began. A disk may be slow, stall, be full for a
while, or fail a sync, which ends the process. A sync that was begun before a crash ends nothing after it.
"""

import random
from collections.abc import Callable, Sequence

from millrace.driver.replica import ReplicaDriver
from millrace.lab.sim.raft.crash_points import CrashedHere, CrashPoints
from millrace.lab.sim.raft.plan import TICK_US, Plan
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.log_disk import LogDisk
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import Entry, Persist, Snapshot
from millrace.types import Index


class SyncedLog:
    """Implements `AppliedLog`."""

    def __init__(
        self,
        *,
        disk: LogDisk,
        plan: Plan,
        clock: Clock,
        rng: random.Random,
        points: CrashPoints,
        is_paused: Callable[[], bool],
        on_durable: Callable[[Sequence[Persist]], None],
        on_failed: Callable[[], None],
    ) -> None:
        self.disk = disk
        self.is_stalled = False
        self.is_full = False
        self.fails_next_sync = False
        self.is_slow = plan.slow_sync_rate > 0
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._points = points
        self._is_paused = is_paused
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._is_syncing = False
        self._driver: ReplicaDriver | None = None

    def open(self, driver: ReplicaDriver) -> None:
        """The process starts: this driver hears of what is on disk."""
        self._driver = driver
        self.is_stalled = self.is_full = self.fails_next_sync = self._is_syncing = False

    def close(self) -> None:
        """The process is gone."""
        self._driver = None

    def heal(self) -> None:
        self.is_stalled = self.is_full = self.fails_next_sync = False
        self._start_sync()

    # --------------------------------------------------------------------------------- AppliedLog

    def write(self, write: Persist) -> None:
        self._points.meet("between effects")
        self._points.meet("before persist")
        is_first = not self.disk.is_unsynced
        self.disk.write(write)
        self._points.meet("after write")
        if write.is_barrier and is_first:
            self._complete(write.number)
        else:
            self._start_sync()

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        self._points.meet("between effects")
        self.disk.stage(snapshot, position, data)

    def repaired(self) -> None:
        self.disk.damage = None

    def committed(self, first: Index, last: Index) -> Sequence[Entry]:
        found = [self.disk.durable.entry(index) for index in range(first, last + 1)]
        if None in found:
            raise Violation("apply order", f"no durable entry {first + found.index(None)} to apply")
        return [entry for entry in found if entry is not None]

    # --------------------------------------------------------------------------------------- syncs

    def _start_sync(self) -> None:
        if self._driver is None or self._is_syncing or not self.disk.is_unsynced:
            return
        if self.is_stalled or self.is_full:
            return
        self._is_syncing = True
        delay_us = 20 + int(self._rng.random() * self._plan.sync_us_max)
        if self.is_slow and self._rng.random() < self._plan.slow_sync_rate:
            delay_us *= 50
        self._clock.after(delay_us, self._synced, self._driver, self.disk.last_unsynced)

    def _synced(self, driver: ReplicaDriver, number: int) -> None:
        if driver is not self._driver:
            return
        if self._is_paused() or self.is_stalled:
            self._clock.after(TICK_US // 2, self._synced, driver, number)
            return
        self._is_syncing = False
        try:
            if self.fails_next_sync:
                self.fails_next_sync = False
                self._fail(number)
            else:
                self._complete(number)
        except CrashedHere:
            return
        self._start_sync()

    def _fail(self, number: int) -> None:
        """A failed sync is never tried again."""
        self._on_failed()

    def _complete(self, number: int) -> None:
        """All up to `number` is durable; barriers that follow have nothing to wait for."""
        synced = self.disk.sync(number)
        self._on_durable(synced)
        self._points.meet("after sync")
        numbers = [persist.number for persist in synced]
        # The contract leaves open in which order the machine is told and what waited runs, and how many
        # writes it is told of at a time, so the seed chooses.
        choice = self._rng.random()
        assert self._driver is not None
        for durable in numbers if choice > 0.75 else numbers[-1:]:
            self._driver.persisted(durable, tells_first=choice < 0.25)
