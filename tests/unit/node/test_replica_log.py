"""Stamping blocks: offsets and terms follow from the log, also where entries go before they are written."""

from random import Random

from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.node.logs.replica_log import ReplicaLog
from millrace.replication.contract import Entry, EntryKind, ReplicaId
from millrace.storage.block import Block, data_blocks
from millrace.storage.directory import DataDirectory
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
