"""A snapshot from the leader that the disk has no room for waits, and is installed once there is some."""

import asyncio
import zlib
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.meta.state import META_GROUP
from millrace.lab.sim.surroundings.disk import SimDisk, SimFile
from millrace.node.cluster.cluster import Cluster
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Job, write
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.replication.contract import Config, Entry, EntryKind, Persist, ReplicaId, Snapshot
from millrace.replication.raft.messages import Append, SnapshotChunk
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DiskFull
from millrace.storage.snapshot import CHUNK_BYTES
from millrace.types import Index, Term
from unit.node.test_failed_sync import LEADER, ME, InPlace, Nothing, append

HEAD = b'{"origins": [], "next_offset": 30, "time_us": 0}\n'


def snapshot_of(state: bytes) -> Snapshot:
    return Snapshot(
        index=Index(9),
        term=Term(1),
        config=Config(voters=(ME, LEADER)),
        size_bytes=len(state),
        checksum=zlib.crc32(state),
    )


def replica_log(disk: SimDisk, voters: tuple[ReplicaId, ...] = (ME, LEADER)) -> ReplicaLog:
    directory = DataDirectory.open(disk, "/data", owner="test", fresh=bytes(24))
    return ReplicaLog(disk, directory, 7, voters, has_peers=True)


class Patient(InPlace):
    """Keeps a batch for which there was no room until it is told to try again."""

    kept: list[Job]

    def _full(self, batch: list[Job], error: DiskFull) -> None:
        self.kept = batch

    def try_again(self) -> None:
        write(self.kept)
        self._sync_logs(self.kept)
        self._finish(self.kept)


@pytest.mark.parametrize("state", [HEAD, HEAD + bytes(2 * CHUNK_BYTES)], ids=["small", "of many chunks"])
def test_an_install_goes_on_wherever_the_disk_was_full(state: bytes) -> None:
    """Room comes a little at a time: every write of the install is the one that fails at some point."""
    disk = SimDisk(Random(1))
    log = replica_log(disk)
    snapshot = snapshot_of(state)
    disk.capacity_bytes = disk.used_bytes()
    log.stage(snapshot, 0, b"")
    log.stage(snapshot, 0, state)
    log.begin_again(snapshot)
    failed = 0
    for _ in range(2 * len(state)):
        try:
            log.write(Persist(number=1, snapshot=snapshot), [])
            break
        except DiskFull:
            failed += 1
            disk.capacity_bytes += max(16, len(state) // 64)
    assert failed > 3
    assert log.snapshot_state() == state
    assert (log.first_index(), log.log.next_offset) == (10, 30)


class WithoutInodes(SimDisk):
    """Also without descriptors it is like this: no file can be made, and others go on."""

    is_out = False

    def create(self, path: str) -> SimFile:
        if self.is_out:
            raise DiskFull(f"{path}: no more files")
        return super().create(path)


@pytest.mark.parametrize("state", [HEAD, HEAD + bytes(2 * CHUNK_BYTES)], ids=["small", "of many chunks"])
def test_an_install_waits_where_no_file_can_be_made_for_it(state: bytes) -> None:
    """Its bytes are taken nevertheless: where they raise, they take down the link that brings them."""
    disk = WithoutInodes(Random(1))
    log = replica_log(disk)
    snapshot = snapshot_of(state)
    disk.is_out = True
    log.stage(snapshot, 0, b"")
    log.stage(snapshot, 0, state)
    log.begin_again(snapshot)
    with pytest.raises(DiskFull):
        log.write(Persist(number=1, snapshot=snapshot), [])
    disk.is_out = False
    log.write(Persist(number=1, snapshot=snapshot), [])
    assert log.snapshot_state() == state


def test_no_snapshot_is_taken_while_one_from_the_leader_waits_for_room() -> None:
    """What was applied here lies before the one that comes: it has no configuration and no term any more."""

    async def scene() -> None:
        disk = SimDisk(Random(1))
        syncer = Patient(asyncio.get_running_loop(), _unexpected, in_place=True, sync_every_s=0.0)
        group = ReplicationGroup(
            *(7, ME, replica_log(disk), Nothing(), syncer),
            origin=1,
            rng=Random(1),
            send=lambda number, to, body: None,
            forward=lambda number, to, kind, block: False,
            wall_us=lambda: 0,
            running_us=lambda: 0,
        )

        def hear(body: Append | SnapshotChunk) -> None:
            group.on_peer(LEADER, body)
            syncer.start()

        hear(append(0, 1, 2))
        hear(Append(term=Term(1), prev_index=Index(2), prev_term=Term(1), commit=Index(2), entries=()))
        assert group.applied == 2
        disk.capacity_bytes = disk.used_bytes()
        snapshot = snapshot_of(HEAD)
        hear(SnapshotChunk(term=Term(1), snapshot=snapshot, position=0))
        hear(SnapshotChunk(term=Term(1), snapshot=snapshot, position=0, data=HEAD))
        assert not group.snapshot_taken()
        disk.capacity_bytes = None
        syncer.try_again()
        assert group.applied == 9
        assert group.snapshot_taken()

    asyncio.run(scene())


def test_what_was_appended_before_a_segment_could_not_end_is_not_appended_again() -> None:
    """A log that is trimmed whole needs a file for what follows; without room for it that waits."""
    disk = SimDisk(Random(1))
    log = replica_log(disk)

    def job(index: int) -> Job:
        entry = Entry(term=Term(1), index=Index(index), kind=EntryKind.NOOP, payload=b"x")
        return Job(log, Persist(number=index, entries=(entry,)), [log.stamp(entry, None)], lambda n: None)

    write([job(1)])
    log.trim_to, log.rolls_now = Index(2), True
    second = job(2)
    disk.capacity_bytes = disk.used_bytes() + second.size_bytes
    write([second])
    assert (log.first_index(), log.last_index()) == (1, 2)
    disk.capacity_bytes = None
    write([Job(log, Persist(number=3), [], lambda n: None)])
    assert (log.first_index(), log.last_index()) == (3, 2), "with the next write all of it goes"


def _unexpected(error: Exception) -> None:
    raise error


def test_a_review_goes_on_though_the_addresses_of_others_cannot_be_written() -> None:
    """They are for a start at which nobody can be asked; the next review writes them."""
    disk = WithoutInodes(Random(1))
    directory = DataDirectory.open(disk, "/data", owner="test", fresh=bytes(24))
    replicas: Any = SimpleNamespace(disk=disk, directory=directory, links=None)
    removal = SimpleNamespace(released_by=set())
    cluster: Any = SimpleNamespace(_replicas=replicas, _peers_written={}, removal=removal)
    directory.shard_path(META_GROUP)
    disk.is_out = True
    Cluster._want(cluster, {"a": "127.0.0.1:7000"})
    assert cluster._peers_written == {}
    disk.is_out = False
    Cluster._want(cluster, {"a": "127.0.0.1:7000"})
    assert cluster._peers_written == {"a": "127.0.0.1:7000"}
