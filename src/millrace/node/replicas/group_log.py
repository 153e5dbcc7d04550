"""The log of one replication group as its driver has it: entries become stamped blocks on their way to disk.

A block that was written a moment ago is applied from memory; older ones are read.
"""

import logging
from collections.abc import Callable, Sequence

from millrace.driver.replica import ReplicaDriver
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Job, Syncer
from millrace.replication.contract import Entry, Persist, Snapshot
from millrace.storage.block import Block
from millrace.storage.scan import RangeDamaged
from millrace.types import Index

log = logging.getLogger("millrace.group")

_APPLY_BYTES_MAX = 4 << 20


class GroupLog:
    """Implements `AppliedLog`. `open` once, before the first write."""

    def __init__(
        self,
        replica_log: ReplicaLog,
        syncer: Syncer,
        *,
        parsed: Callable[[Entry], Block | None],
        is_alone: Callable[[], bool],
    ) -> None:
        """`parsed` gives the block of an entry that came from here, None for others."""
        # A snapshot from the leader that is handed to the disk and not loaded yet.
        self._installing: Snapshot | None = None
        self._replica_log = replica_log
        self._syncer = syncer
        self._parsed = parsed
        self._is_alone = is_alone
        # Written and not applied.
        self._blocks: dict[int, Block] = {}
        self._driver: ReplicaDriver
        self._persisted: Callable[[int], None]

    def open(self, driver: ReplicaDriver, persisted: Callable[[int], None]) -> None:
        """`persisted` hears of what is on disk, and tells this driver."""
        self._driver = driver
        self._persisted = persisted

    @property
    def is_installing(self) -> bool:
        """A snapshot from the leader is handed to the disk and not loaded yet."""
        return self._installing is not None

    def loaded(self, snapshot: Snapshot) -> None:
        """It is the state now."""
        if self._installing == snapshot:
            self._installing = None

    def write(self, write: Persist) -> None:
        replica_log, blocks = self._replica_log, self._blocks
        if write.snapshot is not None:
            self._installing = write.snapshot
            blocks.clear()
            replica_log.begin_again(write.snapshot)
        if write.truncate_from is not None:
            replica_log.rewind(write.truncate_from, blocks.get(write.truncate_from))
            for index in [index for index in blocks if index >= write.truncate_from]:
                del blocks[index]
        stamped = []
        for entry in write.entries:
            block = replica_log.stamp(entry, self._parsed(entry))
            blocks[entry.index] = block
            stamped.append(block)
        self._syncer.submit(Job(replica_log, write, stamped, self._persisted))

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        self._replica_log.stage(snapshot, position, data)

    def repaired(self) -> None:
        self._replica_log.repaired()
        log.warning("group %d: what was damaged is whole again", self._replica_log.group)

    def committed(self, first: Index, last: Index) -> Sequence[Block]:
        """A replica alone has nobody to repair it: what is damaged is reported and passed over, and
        everything else is served."""
        block = self._blocks.pop(first, None)
        if block is not None:
            return (block,)
        try:
            found = self._replica_log.blocks(first, last, _APPLY_BYTES_MAX)
        except RangeDamaged as error:
            if not self._is_alone():
                raise
            log.error("group %d: %s; what it held is lost here", self._replica_log.group, error)
            self._driver.pass_over(Index(error.damage.last_index))
            return ()
        for one in found:
            self._blocks.pop(one.header.index, None)
        return found
