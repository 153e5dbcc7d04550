"""Logs of origins on a disk that is damaged or full: what a start makes of them, and what is let go."""

from collections.abc import Callable
from random import Random

import pytest

from millrace.broker.streams.stream import Replication, Stream, StreamSpec
from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import PowerCut, SimDisk
from millrace.node.leaderless.origin_logs import OriginFiles
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Job
from millrace.replication.contract import EntryKind, ReplicaId
from millrace.replication.leaderless.messages import LogEntry, Origin, PersistLog, Position
from millrace.storage.block import data_blocks
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DiskFull

NUMBER = 5
SPEC = StreamSpec(name="jobs", filters=("jobs/#",), replication=Replication.LEADERLESS)
STREAM = Stream(spec=SPEC, generation=1, shards=(NUMBER,), leaderless=(NUMBER,))
ENTRY = LogEntry(kind=EntryKind.CONTROL, count=0, payload=b"x" * 200)
PACKET = b"\x32\x06\x00\x01t\x00\x01x"
OWN, OTHER = Origin("a", 1), Origin("b", 1)


class AtOnce:
    """A syncer whose every job is done when it is handed in."""

    def submit(self, job: Job) -> None:
        job.log.write(job.persist, job.blocks)
        job.log.sync()
        job.done(job.persist.number)


class Later:
    """A syncer whose jobs are done when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            AtOnce().submit(job)


class Replicas:
    """What origins' logs ask of a node."""

    is_synced = True
    replica = ReplicaId("a")

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.directory = DataDirectory.open(disk, "/data", owner="test", fresh=b"a" * 24)
        self.syncer: AtOnce | Later = AtOnce()

    def open_log(self, number: int) -> ReplicaLog:
        return ReplicaLog(self.disk, self.directory, number, (), has_peers=True)


def start(disk: SimDisk) -> OriginFiles:
    return OriginFiles(NUMBER, STREAM, Replicas(disk))  # type: ignore[arg-type]


def write(files: OriginFiles, origin: Origin, first: int, last: int) -> None:
    for index in range(first, last + 1):
        persist = PersistLog(number=index, origin=origin, first_index=index, entries=(ENTRY,))
        files.submit(persist, None, lambda number: None)


def damaged(*origins: Origin) -> SimDisk:
    """A disk with ten entries in each of these logs and a changed bit in the middle, after a crash."""
    disk = SimDisk(Random(1))
    files = start(disk)
    files.log_of(files.origin)
    for origin in origins:
        write(files, origin, 1, 10)
    numbers = [str(files.logs[origin].number) for origin in origins]
    disk.kill()
    for path in disk.paths():
        if path.endswith(".log") and path.split("/")[-2] in numbers:
            spoil(disk, path)
    return disk


def spoil(disk: SimDisk, path: str) -> None:
    """Change a bit of the sixth entry."""
    at = len(ENTRY.payload.join(disk.content(path).split(ENTRY.payload)[:6])) + 100
    disk.flip_bit(path, at * 8)


def test_a_start_that_finds_damage_in_the_own_log_is_another_origin() -> None:
    files = start(damaged(OWN))
    assert files.origin == Origin("a", 2)
    assert files.extents()[OWN][1].entry == 5


def test_damage_in_the_log_of_another_is_cut_and_the_own_one_goes_on() -> None:
    files = start(damaged(OTHER))
    assert files.origin == OWN
    assert files.extents()[OTHER][1].entry == 5


def test_a_crash_while_damage_is_cut_does_not_hide_it() -> None:
    """Wherever the power goes: the next start knows that the own log was longer."""
    untouched = damaged(OWN)
    changes = 0
    while True:
        disk = untouched.copy(Random(changes))
        changes += 1
        disk.cut_power_at(disk.changes + changes)
        try:
            start(disk)
        except PowerCut:
            disk.cut_power()
            assert start(disk).origin.incarnation >= 2, f"after change {changes}"
            continue
        assert changes > 5
        return


def test_what_cannot_be_read_is_not_there_now() -> None:
    disk = SimDisk(Random(1))
    files = start(disk)
    write(files, OWN, 1, 10)
    path = next(p for p in disk.paths() if p.endswith(".log"))
    spoil(disk, path)
    assert len(files.entries(OWN, 1, 10, 1 << 20)[1]) == 5
    assert files.entries(OWN, 6, 10, 1 << 20) == (0, ())


def test_a_log_begins_again_in_its_turn() -> None:
    """Its files may be in the hands of the thread, which lets some of them go."""
    replicas, syncer = Replicas(SimDisk(Random(1))), Later()
    files = OriginFiles(NUMBER, STREAM, replicas)  # type: ignore[arg-type]
    write(files, OTHER, 1, 10)
    replicas.syncer = syncer
    one = files.logs[OTHER]
    files.tidy(one)
    done: list[int] = []
    persist = PersistLog(number=11, origin=OTHER, first_index=21, begin=Position(20, 7))
    files.submit(persist, b"state", done.append)
    files.submit(PersistLog(number=12, origin=OTHER, first_index=21, entries=(ENTRY,)), None, done.append)
    assert files.begin(OTHER) == Position(0, 0), "it is not touched here"
    assert (one.first_offset, one.next_offset) == (7, 7), "and nobody reads it any more"
    syncer.work()
    assert done == [11, 12]
    assert files.begin(OTHER) == Position(20, 7)
    assert files.entries(OTHER, 21, 21, 1000) == (7, [ENTRY])


def test_a_state_of_many_retained_messages_is_saved() -> None:
    disk = SimDisk(Random(1))
    state = Random(2).randbytes(3 << 20)
    start(disk).save_state(state)
    disk.kill()
    assert start(disk).read_state() == state


@pytest.mark.parametrize("storage", ["disk", "memory"])
def test_a_write_that_finds_no_room_is_the_same_when_it_is_tried_again(storage: str) -> None:
    """Room comes a little at a time: every step of making a log, of beginning it later and of appending to it
    is the one that fails at some point."""
    disk = SimDisk(Random(1))
    spec = StreamSpec(name="jobs", filters=("jobs/#",), replication=Replication.LEADERLESS, storage=storage)
    stream = Stream(spec=spec, generation=1, shards=(NUMBER,), leaderless=(NUMBER,))
    files = OriginFiles(NUMBER, stream, Replicas(disk))  # type: ignore[arg-type]
    done: list[int] = []

    def patiently(act: Callable[[], object]) -> int:
        disk.capacity_bytes = disk.used_bytes()
        for tries in range(1000):
            try:
                act()
            except DiskFull:
                disk.capacity_bytes += 16
            else:
                disk.capacity_bytes = None
                return tries
        raise AssertionError("it was never done")

    begin = PersistLog(number=1, origin=OTHER, first_index=8, begin=Position(7, 7), state=b"s")
    (block,) = data_blocks([Run(packets=PACKET * 3, version=4)])
    data = LogEntry(kind=EntryKind.DATA, count=3, payload=block.to_bytes())
    append = PersistLog(number=2, origin=OTHER, first_index=8, entries=(data,))
    assert patiently(lambda: files.submit(begin, b"state", done.append)) > 2
    if storage == "memory":
        # Otherwise the syncer is who tries again.
        assert patiently(lambda: files.submit(append, None, done.append)) > 0
    else:
        files.submit(append, None, done.append)
    assert done == ([] if storage == "memory" else [1, 2]), "in memory it is done when `submit` returns"
    assert files.begin(OTHER) == Position(7, 7)
    assert files.logs[OTHER].replica_log.log.next_offset == 10
    if storage == "disk":
        disk.kill()
        again = start(disk)
        assert OTHER in again.logs and again.read_state() == b"state"
