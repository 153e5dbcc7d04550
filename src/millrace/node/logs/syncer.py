"""Group commit: what is to be on disk is written and synced in batches, off the event loop.

While one batch is being synced the next one gathers, over all groups of the node. A lone small batch is
synced in place while recent syncs were quick [rule 21]: handing it to a thread and back would take
longer than the sync itself. A failed sync is never retried; a full disk is: the batch waits until there is
room, and the node takes no new work meanwhile.

A log may also be synced only now and then (`sync_every_s`): what is acknowledged then is in the system's
memory, and the last moments before a power loss may be lost.

A log is closed only once it is released: until then the thread may be in the middle of writing it.
"""

import asyncio
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from millrace.broker.stats import Histogram
from millrace.errors import StorageError
from millrace.node.logs.replica_log import ReplicaLog
from millrace.replication.contract import Persist
from millrace.storage.block import Block
from millrace.storage.disk import DiskFull

log = logging.getLogger("millrace.disk")

_IN_PLACE_BYTES_MAX = 256 * 1024
_QUICK_S = 0.001
_FULL_RETRY_S = 0.5
# Weight of the newest sync in the running mean of their times.
_NEWEST = 0.2
# One that took longer counts as this much: a single late one, which a busy machine makes as well as a disk,
# sends no work to the thread; the second one in a row does.
_SLOW_S = 3 * _QUICK_S
# From a disk that keeps what it is given in a cache of its own to one that is about to fail.
_SYNC_BOUNDS_S = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class WriteFault(StorageError):
    """Not the disk: a fault of ours ended a write in the middle."""


@dataclass(slots=True)
class Job:
    """One `Persist` of one group."""

    log: ReplicaLog
    persist: Persist
    blocks: list[Block]
    done: Callable[[int], None]
    """Called on the event loop with the number of the `Persist`."""
    is_written: bool = False
    snapshot_bytes: int = 0
    """Of a snapshot, or of older blocks, that go along."""

    @property
    def size_bytes(self) -> int:
        # A loop: most jobs have one block, and a generator costs more than this.
        size = self.snapshot_bytes
        for block in self.blocks:
            size += block.header.block_bytes
        return size


class Syncer(ABC):
    """One per node. Jobs of one group complete in order. Who performs a batch is left to a subclass."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StorageError], None],
        *,
        in_place: bool,
        sync_every_s: float | None,
    ) -> None:
        """`sync_every_s`: 0 syncs before anything is reported as done, None never."""
        self._loop = loop
        self._on_failure = on_failure
        self._in_place = in_place
        self._sync_every_s = sync_every_s
        # Written and not synced, where that waits for its time.
        self._unsynced: dict[int, ReplicaLog] = {}
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._gathered: list[Job] = []
        # To be let go when the batch under way is over, and what to call then.
        self._leaving: list[tuple[ReplicaLog, Callable[[], None]]] = []
        self._busy = False
        self._is_scheduled = False
        self._mean_s = 0.0
        self._batches = 0
        self._longest_s = 0.0
        self.sync_times = Histogram(_SYNC_BOUNDS_S)
        """Of each sync of a log. Only one batch is performed at a time, so only one thread adds to it."""
        self.votes_waiting = 0
        """Terms and votes that are not on disk yet. Each is a sync of its own."""
        self._failed = False
        self._is_closed = False
        self.is_full = False
        # Called before a sync, which keeps the loop or competes with it: what others need to begin theirs
        # leaves first.
        self.before_sync: Callable[[], None] = _nothing

    @property
    def under_way(self) -> int:
        """The number of the batch that is being performed; 0: there is none."""
        return self._batches if self._busy else 0

    def take_longest_s(self) -> float:
        """How long the longest batch took since this was asked last."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def submit(self, job: Job) -> None:
        self._gathered.append(job)
        self.votes_waiting += job.persist.hard_state is not None
        if not self._busy and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.start)

    def start(self) -> bool:
        """Begin with what has gathered, unless a batch is under way: its end begins the next. Whether
        something is on disk now that was not before."""
        self._is_scheduled = False
        if self._gathered and not self._busy:
            self._busy = True
            self._start()
            return not self._busy
        return False

    def release(self, replica_log: ReplicaLog, then: Callable[[], None]) -> None:
        """Write nothing more of this log: its jobs that did not begin count as done, so whoever submitted
        them must not listen any more. `then` is called once nothing of it is under way, also where the disk
        is full: at once, or at the end of the batch. No submit for this log after this."""
        self._leaving.append((replica_log, then))
        self._drop_leaving(self._gathered)
        if not self._busy:
            self._let_go()

    def _drop_leaving(self, jobs: list[Job]) -> None:
        leaving = {id(replica_log) for replica_log, _ in self._leaving}
        dropped = [job for job in jobs if id(job.log) in leaving]
        jobs[:] = [job for job in jobs if id(job.log) not in leaving]
        for job in dropped:
            self.votes_waiting -= job.persist.hard_state is not None
            job.done(job.persist.number)

    def _let_go(self) -> None:
        leaving, self._leaving = self._leaving, []
        for replica_log, then in leaving:
            self._unsynced.pop(id(replica_log), None)
            then()

    def fail(self, error: StorageError) -> None:
        """What was on disk is not there any more: nothing further is written, and the node stops."""
        if not self._failed:
            self._failed = True
            self._on_failure(error)

    def close(self) -> None:
        """Finish what was handed out; nothing is written after this. Whoever closes the logs syncs them."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    @abstractmethod
    def _now_s(self) -> float:
        """For measuring how long a sync took."""

    @abstractmethod
    def _hand_out(self, batch: list[Job]) -> None:
        """Perform it off the event loop, then call `_finish`, `_full` or `fail` on it."""

    def _start(self) -> None:
        batch, self._gathered = self._gathered, []
        self._batches += 1
        if not (batch or self._is_due) or self._failed or self._is_closed:
            self._busy = False
            return
        self.before_sync()
        if self._in_place and self._mean_s < _QUICK_S and not self.is_full and _is_small(batch):
            self._attempt(batch)()
        else:
            self._hand_out(batch)

    def _attempt(self, batch: list[Job]) -> Callable[[], None]:
        """*worker* Write and sync; what is to be called on the event loop then."""
        started_s = self._now_s()
        try:
            write(batch)
            self._sync_logs(batch)
        except DiskFull as error:
            return partial(self._full, batch, error)
        except StorageError as error:
            return partial(self.fail, error)
        except Exception as error:
            # Nobody knows what is on disk then, and a silent end would be worse.
            log.exception("a write ended in the middle")
            return partial(self.fail, WriteFault(f"a write ended in the middle: {error!r}"))
        self._took(self._now_s() - started_s)
        return partial(self._finish, batch)

    def _fall_due(self) -> None:
        self._timer = None
        self._is_due = True
        if not self._busy:
            self._busy = True
            self._start()

    def _took(self, sync_s: float) -> None:
        self._mean_s += (min(sync_s, _SLOW_S) - self._mean_s) * _NEWEST
        self._longest_s = max(self._longest_s, sync_s)

    def _finish(self, batch: list[Job]) -> None:
        self._busy = False
        if self.is_full:
            self.is_full = False
            log.warning("there is room on the disk again")
        faults: list[Exception] = []
        for job in batch:
            self.votes_waiting -= job.persist.hard_state is not None
            try:
                job.done(job.persist.number)
            except Exception as fault:
                # Of one group: the others must hear of theirs all the same, or they wait for ever.
                log.exception("what followed a write failed")
                faults.append(fault)
        if not self._is_closed:
            self._go_on()
        if faults:
            raise faults[0]

    def _go_on(self) -> None:
        self._let_go()
        if self._unsynced and self._timer is None and self._sync_every_s:
            self._timer = self._loop.call_later(self._sync_every_s, self._fall_due)
        if self._gathered and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.start)

    def _full(self, batch: list[Job], error: DiskFull) -> None:
        if self._is_closed:
            return
        if not self.is_full:
            self.is_full = True
            log.error("%s; publishing to logged streams is refused until there is room", error)
        self._drop_leaving(batch)
        self._let_go()
        self._loop.call_later(_FULL_RETRY_S, self._hand_out, batch)

    def _sync_logs(self, batch: list[Job]) -> None:
        """Sync each log of the batch once, or note that it is to be."""
        logs = {id(job.log): job.log for job in batch}
        # Once: the event loop sets it at any moment.
        is_due = self._is_due
        if self._sync_every_s:
            self._unsynced.update(logs)
            logs = self._unsynced if is_due else {}
        if self._sync_every_s is not None:
            for replica_log in logs.values():
                began_s = self._now_s()
                replica_log.sync()
                self.sync_times.observe(self._now_s() - began_s)
        if is_due:
            self._is_due = False
            self._unsynced = {}


class ThreadSyncer(Syncer):
    """Performs batches in a thread of its own."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StorageError], None],
        *,
        in_place: bool,
        sync_every_s: float | None,
    ) -> None:
        super().__init__(loop, on_failure, in_place=in_place, sync_every_s=sync_every_s)
        self._work: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="syncer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        super().close()
        self._work.put(None)
        self._thread.join()

    def _now_s(self) -> float:
        return time.perf_counter()

    def _hand_out(self, batch: list[Job]) -> None:
        self._work.put(batch)

    def _run(self) -> None:
        while True:
            batch = self._work.get()
            if batch is None:
                return
            self._report(self._attempt(batch))

    def _report(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            # The loop is closed: the node is gone and nobody waits for the answer.
            log.debug("a sync finished after the node stopped")


def _nothing() -> None:
    pass


def _is_small(batch: list[Job]) -> bool:
    size = 0
    for job in batch:
        size += job.size_bytes
    return size <= _IN_PLACE_BYTES_MAX


def write(batch: list[Job]) -> None:
    """Write all jobs. After DiskFull the batch may be given again."""
    for job in batch:
        if not job.is_written:
            job.log.write(job.persist, job.blocks)
            job.is_written = True
