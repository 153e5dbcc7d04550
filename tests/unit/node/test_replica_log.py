"""Stamping blocks: offsets and terms follow from the log, also where entries go before they are written."""

from random import Random

import pytest

from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import Keep, SimDisk
from millrace.node.logs.replica_log import ReplicaLog
from millrace.replication.contract import Entry, EntryKind, Persist, ReplicaId
from millrace.storage.block import Block, data_blocks
from millrace.storage.directory import DataDirectory
from millrace.storage.scan import RangeDamaged
from millrace.types import Index, Term

PACKET = b"\x32\x06\x00\x01t\x00\x01x"


def replica_log() -> ReplicaLog:
    disk = SimDisk(Random(1))
    directory = DataDirectory.open(disk, "/data", owner="test", fresh=bytes(24))
    return ReplicaLog(disk, directory, 7, (ReplicaId("a"),), has_peers=False)


def entry(index: int, term: int, time_us: int = 0) -> Entry:
    (block,) = data_blocks([Run(packets=PACKET * 3, version=4)])
    timed = block.stamped(shard=0, term=0, index=0, previous_term=0, base_offset=0, base_time_us=time_us)
    return Entry(term=Term(term), index=Index(index), kind=EntryKind.DATA, payload=timed.to_bytes())


def stamp(log: ReplicaLog, index: int, term: int, time_us: int = 0) -> Block:
    return log.stamp(entry(index, term, time_us), None)


def test_what_replaces_entries_not_yet_written_gets_their_offsets() -> None:
    """A new leader's entry drops one that this replica has only handed to its disk."""
    log = replica_log()
    stamp(log, 1, 1)
    dropped = stamp(log, 2, 1)
    stamp(log, 3, 1)
    assert dropped.header.base_offset == 3
    log.rewind(Index(2), dropped)
    fresh = stamp(log, 2, 2)
    assert (fresh.header.base_offset, fresh.header.previous_term) == (3, 1)


def test_what_replaces_written_entries_gets_their_offsets() -> None:
    log = replica_log()
    log.log.append([stamp(log, 1, 1), stamp(log, 2, 1), stamp(log, 3, 1)])
    log.rewind(Index(2), None)
    log.log.truncate_from(Index(2))
    fresh = stamp(log, 2, 2)
    assert (fresh.header.base_offset, fresh.header.previous_term) == (3, 1)


def test_a_replica_keeps_the_time_that_the_leader_fixed() -> None:
    """Two replicas that began at different entries stamp the same block alike."""
    old, young = replica_log(), replica_log()
    stamp(old, 1, 1, time_us=900)
    assert stamp(old, 2, 1, time_us=500).header.base_time_us == 500
    assert stamp(young, 1, 1, time_us=500).header.base_time_us == 500


def written(disk: SimDisk, count: int) -> ReplicaLog:
    log = reopened(disk, has_peers=True)
    for index in range(1, count + 1):
        log.log.append([stamp(log, index, 3)])
        log.sync()
    return log


def reopened(disk: SimDisk, *, has_peers: bool) -> ReplicaLog:
    if disk.exists("/data"):
        disk.kill()
        disk.mend()
    directory = DataDirectory.open(disk, "/data", owner="test", fresh=bytes(24))
    return ReplicaLog(disk, directory, 7, (ReplicaId("a"),), has_peers=has_peers)


def cut_in_half(disk: SimDisk) -> None:
    """The log's file loses its end, which was synced, as an operator's mistake or a file system may do."""
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    disk.cut(path, len(disk.content(path).rstrip(b"\0")) // 2)


def test_a_replica_knows_that_it_lost_what_was_synced() -> None:
    """Nothing in the file tells a lost end from one that was never written [rule 34]."""
    disk = SimDisk(Random(1))
    written(disk, 10)
    cut_in_half(disk)
    log = reopened(disk, has_peers=True)
    assert log.last_index() < 10
    damage = log.initial_state().damage
    assert damage is not None and (damage.last_index, damage.last_term) == (10, 3)
    # Until others have given it again, also after another start.
    damage = reopened(disk, has_peers=True).initial_state().damage
    assert damage is not None and damage.last_index == 10


def test_a_replica_without_others_goes_on_with_what_is_left() -> None:
    disk = SimDisk(Random(1))
    written(disk, 10)
    cut_in_half(disk)
    assert reopened(disk, has_peers=False).initial_state().damage is None


def test_what_was_cut_on_purpose_is_not_lost() -> None:
    disk = SimDisk(Random(1))
    written(disk, 10).cut(Index(4))
    log = reopened(disk, has_peers=True)
    assert log.last_index() == 3
    assert log.initial_state().damage is None


@pytest.mark.parametrize("first", [3, 4, 5, 8])
def test_what_another_leader_replaces_behind_damage_stops_no_node(first: int) -> None:
    """The replica goes on, and remembers that it lost something, also where the damage is at its end now."""
    disk = SimDisk(Random(1))
    log = written(disk, 10)
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    third = log.log.read(Index(3), Index(3))[0]
    disk.flip_bit(path, 8 * disk.content(path).index(third.to_bytes()) + 8 * (len(third.to_bytes()) - 1))
    with pytest.raises(RangeDamaged):
        log.log.read(Index(3), Index(3))
    log.rewind(Index(first), None)
    fresh = stamp(log, first, 9)
    log.write(Persist(number=1, truncate_from=Index(first)), [fresh])
    log.sync()
    assert log.last_index() == first and log.term(Index(first)) == 9
    damage = reopened(disk, has_peers=True).initial_state().damage
    assert first == 3 or (damage is not None and damage.last_index >= first - 1)


def test_what_was_not_synced_is_not_lost() -> None:
    disk = SimDisk(Random(1))
    log = written(disk, 5)
    log.log.append([stamp(log, 6, 3)])
    disk.cut_power(Keep.NOTHING)
    disk.mend()
    log = reopened(disk, has_peers=True)
    assert log.last_index() == 5
    assert log.initial_state().damage is None
