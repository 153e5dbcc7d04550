"""A full disk and a failed sync, and the files beside the log."""

import random

import pytest

from millrace.errors import StorageError
from millrace.lab.sim.surroundings.disk import Keep, PowerCut, SimDisk
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DirectoryLocked, DiskError, DiskFull, FsyncFailed
from millrace.storage.files import (
    FileDamaged,
    HardState,
    NewerFormat,
    OlderFormat,
    read_hard_state,
    read_record,
    write_hard_state,
    write_record,
)
from millrace.storage.log import Log, LogFailed
from millrace.storage.snapshot import CHUNK_BYTES, SnapshotDamaged, SnapshotStore
from millrace.types import Index, Term
from unit.storage.making import (
    DIRECTORY,
    chain,
    contents,
    data,
    new_disk,
    open_log,
    raw,
    some_blocks,
    tail_of,
)

FRESH = bytes(range(24))


# ------------------------------------------------------------------------------------------- full disk


@pytest.mark.parametrize("room", [0, 1, 63, 64, 150, 1_000, 3_000])
def test_a_full_disk_changes_nothing_and_space_heals_it(room: int) -> None:
    """Whether the write, the roll or its index meets the end of the space: the append did not happen, reads
    go on, a restart finds the same, and appends work again when there is space."""
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(2), 12), term=1)
    for block in blocks:
        log.append([block])
    log.sync()
    disk.capacity_bytes = disk.used_bytes() + room
    refused = 0
    while refused < 3:
        more = chain(some_blocks(random.Random(refused), 3), tail_of(log), term=1)
        before = (contents(log), log.segments(), disk.content(disk.paths()[-1]))
        try:
            log.append(more)
            log.sync()
            blocks += more
        except DiskFull as error:
            assert "no space left" in str(error)
            assert (contents(log), log.segments(), disk.content(disk.paths()[-1])) == before
            refused += 1
    assert contents(log) == raw(blocks)
    disk.cut_power(Keep.NOTHING)
    log = open_log(disk)
    assert contents(log) == raw(blocks) and log.damages == ()
    disk.capacity_bytes = None
    more = chain(some_blocks(random.Random(9), 20), tail_of(log), term=2)
    for block in more:
        log.append([block])
    log.sync()
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk)) == raw(blocks + more)


def test_what_a_full_disk_refused_does_not_come_back() -> None:
    """Some of the refused blocks were written before the space ended; no crash may bring them back."""
    for seed in range(20):
        disk = new_disk(seed)
        log = open_log(disk)
        blocks = chain(some_blocks(random.Random(seed), 3), term=1)
        log.append(blocks)
        log.sync()
        refused = chain([data(bytes(100)) for _ in range(5)], tail_of(log), term=1)
        disk.capacity_bytes = disk.used_bytes() + 700
        with pytest.raises(DiskFull):
            log.append(refused)
        disk.cut_power(Keep.SOME)
        assert contents(open_log(disk)) == raw(blocks)


def test_a_full_disk_keeps_the_old_hard_state() -> None:
    disk = new_disk()
    path = f"{DIRECTORY}/hard"
    write_hard_state(disk, path, HardState(term=Term(1), vote="a"))
    disk.capacity_bytes = disk.used_bytes() + 10
    with pytest.raises(DiskFull):
        write_hard_state(disk, path, HardState(term=Term(2), vote="b"))
    assert read_hard_state(disk, path) == HardState(term=Term(1), vote="a")
    assert disk.paths() == [path], "nothing half-written is left"
    disk.capacity_bytes = None
    write_hard_state(disk, path, HardState(term=Term(2), vote=None))
    assert read_hard_state(disk, path) == HardState(term=Term(2))


# --------------------------------------------------------------------------------------- failed sync


def test_a_failed_sync_stops_the_log_for_good() -> None:
    """No call works any more, none touches the disk again, and a restart shows what was acknowledged."""
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(1), 6), term=1)
    log.append(blocks[:3])
    log.sync()
    log.append(blocks[3:])
    disk.fail_next_sync()
    with pytest.raises(FsyncFailed, match="cannot sync"):
        log.sync()
    changes = disk.changes
    for call in (
        log.sync,
        log.checkpoint,
        lambda: log.append(chain([data(b"x")], tail_of(log), term=1)),
        lambda: log.read(Index(1), Index(1)),
        lambda: log.truncate_from(Index(2)),
        lambda: log.trim(Index(1)),
        lambda: log.term_at(Index(1)),
    ):
        with pytest.raises(LogFailed, match="stopped after: cannot sync"):
            call()
    log.close()
    assert disk.changes == changes
    disk.cut_power(Keep.ALL)
    found = contents(open_log(disk))
    assert found == raw(blocks)[: len(found)] and len(found) >= 3


def test_what_a_failed_sync_left_in_memory_is_on_disk_after_a_restart() -> None:
    """The system shows the pages of a failed sync as if they were written. A restart that counts on them must
    write them again, or a power loss later leaves a hole in the middle of the log."""
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(1), 9), term=1)
    log.append(blocks[:3])
    log.sync()
    log.append(blocks[3:6])
    disk.fail_next_sync()
    with pytest.raises(FsyncFailed):
        log.sync()
    disk.kill()
    log = open_log(disk)
    assert contents(log) == raw(blocks)[:6], "the process died, not the system"
    log.append(blocks[6:])
    log.sync()
    disk.cut_power(Keep.NOTHING)
    again = open_log(disk)
    assert again.reports == ()
    assert contents(again) == raw(blocks)


def test_every_sync_that_fails_stops_the_log() -> None:
    """In a roll, a checkpoint, a truncation, a removal: never retried, never passed over."""
    failed = 0
    for n in range(40):
        disk = new_disk()
        log = open_log(disk)
        blocks = chain(some_blocks(random.Random(n), 40), term=1)
        for block in blocks[:20]:
            log.append([block])
            log.sync()
        disk.fail_next_sync()
        try:
            for block in blocks[20 : 20 + n]:
                log.append([block])
            log.truncate_from(Index(15))
            raise AssertionError("no sync was made")
        except FsyncFailed:
            failed += 1
        changes = disk.changes
        with pytest.raises(LogFailed):
            log.sync()
        assert disk.changes == changes
    assert failed == 40


def test_an_unknown_write_error_stops_the_log() -> None:
    """Only a full disk leaves the state known."""
    disk = new_disk()
    log = open_log(disk)
    log.append(chain([data(b"x")], term=1))
    disk.kill()
    with pytest.raises(DiskError):
        log.append(chain([data(b"y")], tail_of(log), term=1))
    with pytest.raises(LogFailed):
        log.sync()


# -------------------------------------------------------------------------------------- small files


@pytest.mark.parametrize("keep", [*Keep, None])
def test_a_small_file_is_old_or_new_after_any_crash(keep: Keep | None) -> None:
    """At every change of its replacement: a power cut, or (None) the end of the process only."""
    old, new = HardState(term=Term(3), vote="old", commit=Index(7)), HardState(term=Term(4), vote="new")
    path = f"{DIRECTORY}/hard"
    seen: set[str | None] = set()
    for change in range(1, 20):
        for choice in range(3):
            disk = new_disk(choice)
            write_hard_state(disk, path, old)
            disk.cut_power_at(disk.changes + change)
            try:
                write_hard_state(disk, path, new)
                expected = [new]
            except PowerCut:
                expected = [old, new]
            disk.cut_power_at(None)
            if keep is None:
                disk.kill()
            else:
                disk.cut_power(keep)
            found = read_hard_state(disk, path)
            assert found in expected
            seen.add(found.vote if found else None)
            disk.cut_power(Keep.NOTHING)
            assert read_hard_state(disk, path) == found, "what was read stays"
    assert seen == {"old", "new"}


def test_hard_state_round_trip_and_absence() -> None:
    disk = new_disk()
    path = f"{DIRECTORY}/hard"
    assert read_hard_state(disk, path) is None
    for vote in (None, "", "ü" * 100):
        state = HardState(term=Term(2**64 - 1), vote=vote, commit=Index(2**63))
        write_hard_state(disk, path, state)
        assert read_hard_state(disk, path) == state


def test_a_record_under_another_name_is_not_taken() -> None:
    """A file of another kind, a later version and an oversized payload are refused."""
    disk = new_disk()
    write_record(disk, f"{DIRECTORY}/a", b"AAAA", b"payload")
    assert read_record(disk, f"{DIRECTORY}/a", b"AAAA") == b"payload"
    with pytest.raises(FileDamaged, match="head does not fit"):
        read_record(disk, f"{DIRECTORY}/a", b"BBBB")
    with pytest.raises(StorageError, match="too many"):
        write_record(disk, f"{DIRECTORY}/a", b"AAAA", bytes(1 << 21))


# ------------------------------------------------------------------------------------ data directory


def test_a_data_directory_keeps_its_identity() -> None:
    disk = SimDisk(random.Random(1))
    first = DataDirectory.open(disk, "data", owner="process 1", fresh=FRESH)
    assert first.identity == FRESH[:16] and first.salt == int.from_bytes(FRESH[16:], "little")
    path = first.shard_path(3)
    assert path == "data/shards/3"
    log = Log.open(disk, path, shard=3, salt=first.salt)
    log.append(chain([data(b"x")], term=1, shard=3))
    log.close()
    first.shard_path(20)
    first.close()
    disk.cut_power(Keep.NOTHING)
    again = DataDirectory.open(disk, "data", owner="process 2", fresh=bytes(24))
    assert (again.identity, again.salt) == (first.identity, first.salt)
    assert again.shards() == [3, 20]
    assert Log.open(disk, again.shard_path(3), shard=3, salt=again.salt).last_index == 1
    again.remove_shard(3)
    assert again.shards() == [20]
    with pytest.raises(ValueError, match="32 bits"):
        again.shard_path(-1)


def test_a_second_process_is_told_who_holds_the_directory() -> None:
    disk = SimDisk(random.Random(1))
    first = DataDirectory.open(disk, "data", owner="node n1, process 17", fresh=FRESH)
    with pytest.raises(DirectoryLocked, match="held by node n1, process 17"):
        DataDirectory.open(disk, "data", owner="other", fresh=FRESH)
    first.close()
    DataDirectory.open(disk, "data", owner="other", fresh=FRESH)


def test_a_directory_of_0_1_is_refused_and_untouched() -> None:
    disk = SimDisk(random.Random(1))
    DataDirectory.open(disk, "data", owner="me", fresh=FRESH).close()
    file = disk.create("data/FORMAT")
    file.write_at(0, [b"millrace data directory, format 1\nidentity 00\nsalt 00\n"])
    before = disk.paths()
    with pytest.raises(OlderFormat, match=r"written by Millrace 0\.1"):
        DataDirectory.open(disk, "data", owner="me", fresh=FRESH)
    assert disk.paths() == before


def test_a_newer_format_is_refused_and_untouched() -> None:
    disk = SimDisk(random.Random(1))
    DataDirectory.open(disk, "data", owner="me", fresh=FRESH).close()
    later = b"millrace data directory, format 12\nsomething else entirely\n"
    file = disk.create("data/FORMAT")
    file.write_at(0, [later])
    before = disk.paths()
    with pytest.raises(NewerFormat, match="has data format 12; this Millrace reads 2 alone"):
        DataDirectory.open(disk, "data", owner="me", fresh=FRESH)
    assert disk.content("data/FORMAT") == later and disk.paths() == before
    assert not disk.locks, "the lock is let go"


def test_a_directory_of_something_else_is_refused() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_directory("home")
    disk.create("home/thesis.tex")
    with pytest.raises(StorageError, match=r"'thesis\.tex' but no FORMAT file"):
        DataDirectory.open(disk, "home", owner="me", fresh=FRESH)


def test_a_new_directory_survives_a_crash_at_any_point() -> None:
    for change in range(1, 20):
        for keep in Keep:
            disk = SimDisk(random.Random(change))
            disk.cut_power_at(change)
            try:
                DataDirectory.open(disk, "data", owner="me", fresh=FRESH)
            except PowerCut:
                disk.cut_power(keep)
            again = DataDirectory.open(disk, "data", owner="me", fresh=FRESH) if not disk.locks else None
            if again is not None:
                identity = again.identity
                again.shard_path(1)
                disk.cut_power(Keep.NOTHING)
                again = DataDirectory.open(disk, "data", owner="me", fresh=bytes(24))
                assert again.identity == identity and again.shards() == [1]


# ---------------------------------------------------------------------------------------- snapshots


def snapshot_store(disk: SimDisk) -> SnapshotStore:
    return SnapshotStore(disk, DIRECTORY, shard=7)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 17])
def test_snapshots_are_read_from_any_position(size: int) -> None:
    disk = new_disk()
    state = random.Random(size).randbytes(size)
    store = snapshot_store(disk)
    writer = store.begin(Index(10))
    for at in range(0, size, 100_000):
        assert writer.size_bytes == at
        writer.write(state[at : at + 100_000])
    info = writer.finish(term=Term(3), config=b"conf")
    disk.cut_power(Keep.NOTHING)
    found, passed_over = store.newest()
    assert found is not None and passed_over == []
    assert found.info == info and (info.index, info.term, info.config, info.size_bytes) == (
        10,
        3,
        b"conf",
        size,
    )
    assert b"".join(found.chunks()) == state
    for position in (0, 1, size // 2, size - 1, size, size + 1):
        got = found.read(position, 5_000) if position >= 0 else b""
        assert got == (state[position : position + len(got)] if position >= 0 else b"")
        assert got or not 0 <= position < size


def test_a_snapshot_travels_in_pieces() -> None:
    """Pieces from any holder; what arrives changed is not installed."""
    disk, other = new_disk(1), new_disk(2)
    state = random.Random(5).randbytes(2 * CHUNK_BYTES + 5)
    writer = snapshot_store(disk).begin(Index(10))
    writer.write(state)
    writer.finish(term=Term(3), config=b"c")
    source = snapshot_store(disk).open(Index(10))

    def transfer(spoil: bool) -> None:
        incoming = snapshot_store(other).begin(Index(10))
        while incoming.size_bytes < source.info.size_bytes:
            piece = source.read(incoming.size_bytes, 70_000)
            incoming.write(piece[:-1] + b"!" if spoil and incoming.size_bytes > 300_000 else piece)
        incoming.finish(term=source.info.term, config=source.info.config, checksum=source.info.checksum)

    with pytest.raises(SnapshotDamaged, match="not what was sent"):
        transfer(spoil=True)
    assert other.paths() == []
    transfer(spoil=False)
    assert snapshot_store(other).open(Index(10)).info == source.info


def test_an_older_snapshot_serves_where_the_newest_is_damaged() -> None:
    disk = new_disk()
    store = snapshot_store(disk)
    for index in (5, 9):
        writer = store.begin(Index(index))
        writer.write(b"state %d" % index)
        writer.finish(term=Term(1), config=b"")
    disk.flip_bit(f"{DIRECTORY}/{9:020d}.snap", 100)
    found, passed_over = store.newest()
    assert found is not None and found.info.index == 5
    assert "00009.snap is damaged" in str(passed_over[0])


def test_dropped_snapshots_stay_readable_while_open() -> None:
    disk = new_disk()
    store = snapshot_store(disk)
    for index in (5, 9):
        writer = store.begin(Index(index))
        writer.write(b"state %d" % index)
        writer.finish(term=Term(1), config=b"")
    old = store.open(Index(5))
    store.drop_below(Index(9))
    assert store.indexes() == [9]
    assert b"".join(old.chunks()) == b"state 5"


def test_a_snapshot_is_there_whole_or_not_at_all() -> None:
    """A power cut at every change while it is taken; a full disk in the middle."""
    for change in range(1, 12):
        for keep in [*Keep, None]:
            disk = new_disk(change)
            disk.cut_power_at(disk.changes + change)
            try:
                writer = snapshot_store(disk).begin(Index(10))
                writer.write(bytes(CHUNK_BYTES + 5))
                writer.finish(term=Term(1), config=b"")
                finished = True
            except PowerCut:
                finished = False
            disk.cut_power_at(None)
            if keep is None:
                disk.kill()
            else:
                disk.cut_power(keep)
            found, passed_over = snapshot_store(disk).newest()
            assert passed_over == []
            assert found is not None or not finished
            if found is not None:
                assert b"".join(found.chunks()) == bytes(CHUNK_BYTES + 5)
                disk.cut_power(Keep.NOTHING)
                assert snapshot_store(disk).indexes() == [10], "what was shown stays"
    disk = new_disk()
    disk.capacity_bytes = 300_000
    writer = snapshot_store(disk).begin(Index(10))
    with pytest.raises(DiskFull):
        writer.write(bytes(3 * CHUNK_BYTES))
    disk.capacity_bytes = None
    assert writer.finish(term=Term(1), config=b"").size_bytes == 3 * CHUNK_BYTES, "nothing was lost"
    found, _ = snapshot_store(disk).newest()
    assert found is not None and b"".join(found.chunks()) == bytes(3 * CHUNK_BYTES)
