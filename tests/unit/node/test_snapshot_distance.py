"""How far behind the end of a log its newest snapshot may lie: that is what a restart applies again."""

from random import Random

import pytest

from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.node.logs import snapshots
from millrace.node.logs.replica_log import ReplicaLog
from millrace.replication.contract import Config, Entry, EntryKind, Persist, ReplicaId
from millrace.storage.directory import DataDirectory
from millrace.storage.log import LogSettings
from millrace.types import Index, Term

SEGMENT_BYTES = 4_000
PAYLOAD = bytes(400)


class Written:
    """In place of a shard and its group: what is appended is applied, and the state is small."""

    number = 7

    def __init__(self) -> None:
        disk = SimDisk(Random(1))
        directory = DataDirectory.open(disk, "/data", owner="test", fresh=bytes(24))
        settings = LogSettings(segment_bytes=SEGMENT_BYTES)
        voters = (ReplicaId("a"),)
        self.replica_log = ReplicaLog(disk, directory, 7, voters, has_peers=False, settings=settings)
        self.group = self
        self.applied = Index(0)
        self.snapshots = 0

    def append(self) -> None:
        self.applied = Index(self.applied + 1)
        entry = Entry(term=Term(1), index=self.applied, kind=EntryKind.NOOP, payload=PAYLOAD)
        self.replica_log.write(Persist(number=1, entries=(entry,)), [self.replica_log.stamp(entry, None)])

    def begin_snapshot(self) -> None:
        config = Config(voters=(ReplicaId("a"),))
        self.replica_log.take_snapshot(self.applied, Term(1), config, [b"state"])
        self.snapshots += 1

    @property
    def bytes_behind_snapshot(self) -> int:
        known = self.replica_log.snapshot()
        return (self.applied - (0 if known is None else known.index)) * len(PAYLOAD)


def test_a_log_that_is_trimmed_as_fast_as_it_grows_has_a_near_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its size says nothing of how much came since."""
    monkeypatch.setattr(snapshots, "_EVERY_BYTES", 5 * SEGMENT_BYTES)
    shard = Written()
    furthest = 0
    for _ in range(500):
        shard.append()
        if len(shard.replica_log.log.segments()) > 8:
            shard.replica_log.log.trim(shard.replica_log.log.segments()[0].last_index)
        snapshots.take_due([shard])  # type: ignore[list-item]
        furthest = max(furthest, shard.bytes_behind_snapshot)
    assert furthest <= 6 * SEGMENT_BYTES
    assert shard.snapshots < 15, "and no more than that asks for"


def test_many_small_entries_are_as_long_to_apply_as_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all of them are in the segment that is being written."""
    monkeypatch.setattr(snapshots, "_EVERY_ENTRIES", 3)
    shard = Written()
    for _ in range(7):
        shard.append()
        snapshots.take_due([shard])  # type: ignore[list-item]
    assert shard.snapshots == 2
