"""Bugs of a driver, planted by name: what no pure machine can get wrong (see `planted/bug.py`)."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from millrace.driver.effects import EffectDriver
from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.raft.synced_log import SyncedLog
from millrace.replication.contract import HardState, Snapshot
from millrace.types import Index

DRIVER_BUGS = Bugs()


@DRIVER_BUGS.bug("a failed fsync is tried again and believed, though the pages are gone")
def driver_retries_fsync(plant: Plant) -> None:
    def fail(self: SyncedLog, number: int) -> None:
        self.disk.drop_pages(number)
        self._complete(number)

    plant.instead(SyncedLog, "_fail", fail)


@DRIVER_BUGS.bug("what stands after a Persist does not wait for the disk")
def driver_sends_before_sync(plant: Plant) -> None:
    def around(right: Method) -> Method:
        def hold(self: EffectDriver[Any, Any], write: Any, effects: Sequence[Any], rest: int) -> None:
            right(self, write, effects, len(effects))
            self._run(effects, rest)

        return hold

    plant.around(EffectDriver, "_hold", around)


@DRIVER_BUGS.bug("a restart does not read term and vote back")
def driver_forgets_hard_state(plant: Plant) -> None:
    def around(right: Method) -> Method:
        def start(self: Process) -> None:
            self.disk.durable.hard_state = HardState(term=self.disk.durable.hard_state.term)
            right(self)

        return start

    plant.around(Process, "start", around)


@DRIVER_BUGS.bug("a snapshot is labelled one entry later than its state")
def driver_snapshot_skips_entry(plant: Plant) -> None:
    def around(right: Method) -> Method:
        def snapshot_of(self: Process, index: Index, data: bytes) -> Snapshot | None:
            snapshot: Snapshot | None = right(self, index, data)
            if snapshot is None or self.disk.durable.term(index + 1) is None:
                return snapshot
            return replace(snapshot, index=Index(index + 1))

        return snapshot_of

    plant.around(Process, "_snapshot_of", around)
