"""Damage is detected, reported and never served: flipped bits, stray writes, lost bytes, and their repair."""

import random
import re
from typing import Any

import pytest

from millrace.errors import StorageError
from millrace.lab.sim.surroundings.disk import Keep, SimDisk
from millrace.storage.block import HEAD_BYTES, Block
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DiskFull
from millrace.storage.files import FileDamaged, HardState, NewerFormat, read_hard_state, write_hard_state
from millrace.storage.log import Log, LogSettings
from millrace.storage.records import MARK_BYTES, Mark, Tail, tail_before
from millrace.storage.recover import IndexLost
from millrace.storage.repair import RepairRefused
from millrace.storage.scan import Damage, RangeDamaged, Source, TornTail
from millrace.storage.snapshot import SnapshotDamaged, SnapshotStore
from millrace.storage.summary import filter_keys
from millrace.types import Index, Offset, Term
from unit.storage.making import (
    DIRECTORY,
    SALT,
    SHARD,
    chain,
    contents,
    data,
    new_disk,
    open_log,
    raw,
    some_blocks,
    stamps,
    tail_of,
)

STATE = random.Random(9).randbytes(600_000)
FRESH = bytes(range(24))


def whole_directory() -> tuple[SimDisk, list[Block], int]:
    """A data directory with everything in it, as a crash leaves it; the blocks of the log; the index from
    which on they are of the last group commit."""
    disk = SimDisk(random.Random(1))
    directory = DataDirectory.open(disk, "data", owner="me", fresh=FRESH)
    path = directory.shard_path(SHARD)
    log = open_at(disk, path)
    blocks = chain(some_blocks(random.Random(2), 70), term=1)
    for n in range(0, 66, 3):
        log.append(blocks[n : n + 3])
        log.sync()
    log.append(blocks[66:])
    log.sync()
    write_hard_state(disk, f"{path}/hard", HardState(term=Term(4), vote="me", commit=Index(60)))
    store = SnapshotStore(disk, path, shard=SHARD)
    writer = store.begin(Index(40))
    writer.write(STATE)
    writer.finish(term=Term(1), config=b"[['a'],[]]")
    disk.cut_power(Keep.NOTHING)
    return disk, blocks, 67


def open_at(disk: SimDisk, path: str) -> Log:
    settings = LogSettings(segment_bytes=6_000, checkpoint_every_bytes=2_500)
    return Log.open(disk, path, shard=SHARD, salt=SALT, settings=settings)


def served(log: Log) -> dict[int, bytes]:
    """Everything the log gives out when all of it is asked for, by index."""
    found: dict[int, bytes] = {}
    index = int(log.first_index)
    while index <= log.last_index:
        try:
            blocks = log.read(Index(index), log.last_index)
        except RangeDamaged as error:
            assert error.damage.first_index <= index <= error.damage.last_index
            index = error.damage.last_index + 1
            continue
        found |= {block.header.index: block.to_bytes() for block in blocks}
        index = blocks[-1].header.index + 1
    return found


def check_log(disk: SimDisk, path: str, blocks: list[Block], last_group: int) -> Log:
    """Nothing wrong is served; what is not served is reported, as torn only in the last group commit."""
    log = open_at(disk, path)
    found = served(log)
    truth = {block.header.index: block.to_bytes() for block in blocks}
    assert all(truth[index] == block for index, block in found.items()), "served what was not written"
    damaged = {index for damage in log.damages for index in range(damage.first_index, damage.last_index + 1)}
    torn = [report for report in log.reports if isinstance(report, TornTail)]
    cut = set(range(torn[0].next_index, len(blocks) + 1)) if torn else set()
    assert set(truth) - set(found) == damaged | cut, "what is missing is what is reported"
    assert all(index >= last_group for index in cut), "only the last group commit may look torn"
    return log


def facts(log: Log) -> tuple[object, ...]:
    """What the index files answer."""
    offsets = range(log.first_offset, log.next_offset)
    keys = [filter_keys(f"site/{n}/#".encode()) or () for n in range(5)]
    return (
        log.segments(),
        [log.term_at(Index(n)) for n in range(log.first_index - 1, log.last_index + 1)],
        [log.find_offset(Offset(n)) for n in offsets],
        [log.skip_to(Index(n), some) for some in keys for n in range(1, log.last_index + 1, 5)],
    )


def check_flip(disk: SimDisk, path: str, bit: int, blocks: list[Block], last_group: int) -> None:
    """Flip one bit of one file and open everything."""
    hurt = disk.copy(random.Random(0))
    hurt.flip_bit(path, bit)
    try:
        opened = DataDirectory.open(hurt, "data", owner="me", fresh=bytes(24))
        assert path != "data/FORMAT" or (opened.identity, opened.salt) != (FRESH[:16], FRESH[16:])
        shard = opened.shard_path(SHARD)
        assert path != "data/FORMAT", "a changed identity was taken"
    except (FileDamaged, NewerFormat):
        assert path == "data/FORMAT"
        return
    log = check_log(hurt, shard, blocks, last_group)
    if path.endswith(".log"):
        assert log.reports, "a changed bit of a segment went unnoticed"
    else:
        assert len(served(log)) == len(blocks)
    if path.endswith(".idx"):
        assert facts(log) == facts(open_at(disk.copy(random.Random(0)), shard))
    try:
        state = read_hard_state(hurt, f"{shard}/hard")
        assert not path.endswith("hard")
        assert state == HardState(term=Term(4), vote="me", commit=Index(60))
    except FileDamaged:
        assert path.endswith("hard")
    snapshot, passed_over = SnapshotStore(hurt, shard, shard=SHARD).newest()
    try:
        if snapshot is not None:
            assert b"".join(snapshot.chunks()) == STATE
            assert not path.endswith(".snap")
        else:
            assert path.endswith(".snap") and len(passed_over) == 1
    except SnapshotDamaged:
        assert path.endswith(".snap")


def flip(count: int, seed: int) -> None:
    """Flips spread over the kinds of files, and over the bytes of each."""
    disk, blocks, last_group = whole_directory()
    rng = random.Random(seed)
    kinds: dict[str, list[str]] = {}
    for path in disk.paths():
        if path != "data/LOCK":
            kinds.setdefault(path.rpartition(".")[2], []).append(path)
    assert len(kinds) == 5, "log, index, snapshot, hard state, format"
    for n in range(count):
        path = rng.choice(kinds[sorted(kinds)[n % 5]] if n % 2 else kinds["log"])
        check_flip(disk, path, rng.randrange(8 * len(disk.content(path))), blocks, last_group)


def test_flipped_bits_are_detected_and_never_served() -> None:
    flip(100, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_ten_thousand_flipped_bits(seed: int) -> None:
    flip(2_500, seed=100 + seed)


def test_every_bit_of_the_small_files() -> None:
    """Hard state and format file, bit by bit."""
    disk, _, _ = whole_directory()
    path = f"data/shards/{SHARD}/hard"
    for bit in range(8 * len(disk.content(path))):
        disk.flip_bit(path, bit)
        with pytest.raises(FileDamaged, match="hard is damaged"):
            read_hard_state(disk, path)
        disk.flip_bit(path, bit)
    for bit in range(8 * len(disk.content("data/FORMAT"))):
        disk.flip_bit("data/FORMAT", bit)
        with pytest.raises((FileDamaged, NewerFormat)):
            DataDirectory.open(disk, "data", owner="me", fresh=bytes(24))
        disk.flip_bit("data/FORMAT", bit)


def flip_index_bits(step: int) -> None:
    """Bits of the index of a sealed segment and of the last one; every answer stays the same."""
    disk, _, _ = whole_directory()
    shard = f"data/shards/{SHARD}"
    truth = facts(open_at(disk.copy(random.Random(0)), shard))
    paths = [path for path in disk.paths() if path.endswith(".idx")]
    for path in (paths[0], paths[-1]):
        for bit in range(0, 8 * len(disk.content(path)), step):
            hurt = disk.copy(random.Random(0))
            hurt.flip_bit(path, bit)
            log = open_at(hurt, shard)
            assert facts(log) == truth
            # The last one is only read ahead of a scan, which tells the same without it.
            assert log.reports or path == paths[-1], "a changed bit of an index went unnoticed"


def test_changed_index_files_never_give_a_wrong_answer() -> None:
    flip_index_bits(step=151)


@pytest.mark.slow
def test_every_third_bit_of_two_index_files() -> None:
    flip_index_bits(step=3)


def stray(seed: int) -> None:
    """One write of a workload lands somewhere else; everything is synced; then a restart."""
    rng = random.Random(seed)
    disk = new_disk(seed)
    log = open_log(disk)
    blocks = chain(some_blocks(rng, 40), term=1)
    victim = rng.randrange(10)
    groups = [blocks[n : n + 4] for n in range(0, 40, 4)]
    try:
        for n, group in enumerate(groups):
            if n == victim:
                disk.misdirect_next_write()
            log.append(group)
            log.sync()
    except StorageError:
        # The write that went astray was not one of blocks, and was missed at once.
        return
    truth = {block.header.index: block.to_bytes() for block in blocks}
    assert all(truth[index] == block for index, block in served(log).items())
    disk.cut_power(Keep.NOTHING)
    try:
        log = open_log(disk)
    except StorageError as error:
        assert "not known" in str(error)
        return
    found = served(log)
    assert all(truth[index] == block for index, block in found.items())
    missing = set(truth) - set(found)
    damaged = {index for damage in log.damages for index in range(damage.first_index, damage.last_index + 1)}
    torn = [report.next_index for report in log.reports if isinstance(report, TornTail)]
    undetectable = {block.header.index for block in groups[-1]} if victim == 9 else set()
    assert missing <= damaged | set(range(min(torn, default=99), 41)) | undetectable


def test_stray_writes_are_never_served() -> None:
    for seed in range(40):
        stray(seed)


@pytest.mark.slow
def test_many_stray_writes() -> None:
    for seed in range(1_000, 6_000):
        stray(seed)


def damaged_log(restart: bool = True) -> tuple[SimDisk, Log, list[Block], int]:
    """A log with one bad body in the middle of its second segment; the index of the bad block."""
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(
        [data(random.Random(n).randbytes(200), topic=f"t/{n}".encode()) for n in range(60)], term=1
    )
    for n in range(0, 60, 2):
        log.append(blocks[n : n + 2])
        log.sync()
    second = log.segments()[1]
    bad = second.first_index + 3
    path = f"{DIRECTORY}/{second.first_index:020d}.log"
    at = disk.content(path).index(blocks[bad - 1].body) + 60
    disk.flip_bit(path, 8 * at)
    if restart:
        log.close()
        log = open_log(disk)
    return disk, log, blocks, bad


@pytest.mark.parametrize("restart", [False, True])
def test_a_read_names_file_position_and_offsets(restart: bool) -> None:
    _, log, blocks, bad = damaged_log(restart)
    assert log.damages == ()
    before = log.read(Index(bad - 2), Index(bad + 2))
    assert raw(before) == raw(blocks[bad - 3 : bad - 1]), "what stands before the damage is served"
    with pytest.raises(RangeDamaged) as caught:
        log.read(Index(bad), Index(60))
    damage = caught.value.damage
    assert (damage.first_index, damage.last_index) == (bad, bad)
    assert (damage.first_offset, damage.next_offset) == (bad - 1, bad)
    message = str(caught.value)
    assert re.search(r"shard/\d{20}\.log: damaged at byte \d+", message)
    assert f"offset {bad - 1} to {bad - 1}" in message
    assert log.damages == (damage,)
    assert log.term_at(Index(bad)) == 1, "the index knew it before"
    assert raw(log.read(Index(bad + 1), Index(60))) == raw(
        blocks[bad : bad + len(log.read(Index(bad + 1), Index(60)))]
    )
    assert log.find_offset(Offset(bad)) == bad + 1
    log.append(chain([data(b"goes on")], tail_of(log), term=1))
    assert log.sync() == 61


@pytest.mark.parametrize("kind", ["active", "sealed", "by its index"])
def test_the_term_of_a_damaged_block_is_known_until_a_start_scans_it(kind: str) -> None:
    """Each block begins a term, so no neighbour tells it."""
    disk, settings = new_disk(), LogSettings()
    log = open_log(disk, settings)
    blocks: list[Block] = []
    for term in range(1, 8):
        blocks += chain([data(bytes([term]) * 100)], tail_of(log), term=term)
        log.append(blocks[-1:])
        log.sync()
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    if kind != "active":
        log.ends_segment = True
        log.append(chain([data(b"next")], tail_of(log), term=8))
        log.sync()
    if kind == "by its index":
        log.close()
        log = open_log(disk, settings)
    disk.flip_bit(path, 8 * (disk.content(path).index(blocks[3].body) + 40))
    with pytest.raises(RangeDamaged):
        log.read(Index(4), Index(4))
    assert [log.term_at(Index(n)) for n in range(1, 8)] == list(range(1, 8))
    log.close()
    log = open_log(disk, settings)
    with pytest.raises(RangeDamaged):
        log.read(Index(4), Index(4))
    if kind != "active":
        with pytest.raises(RangeDamaged):
            log.term_at(Index(4))
    log.truncate_from(Index(4))
    log.append(chain([data(b"again")], tail_of(log), term=9))
    log.sync()
    disk.flip_bit(path, 8 * (disk.content(path).index(blocks[1].body) + 40))
    with pytest.raises(RangeDamaged):
        log.read(Index(2), Index(2))
    assert [log.term_at(Index(n)) for n in range(1, 5)] == [1, 2, 3, 9], "what a scan found whole is known"


def test_a_bad_head_hides_no_more_than_its_group() -> None:
    """Where the length is lost, reading goes on at the next certain place; offsets inside are refused."""
    disk, log, blocks, bad = damaged_log()
    second = log.segments()[1]
    path = f"{DIRECTORY}/{second.first_index:020d}.log"
    at = disk.content(path).index(blocks[bad - 1].header.to_bytes())
    disk.flip_bit(path, 8 * (at + 10))
    found = served(log)
    damage = log.damages[0]
    assert damage.first_index == bad and damage.last_index <= bad + 2
    assert set(found) == set(range(1, 61)) - set(range(bad, damage.last_index + 1))
    with pytest.raises(RangeDamaged):
        log.find_offset(Offset(bad - 1))
    assert log.find_offset(Offset(damage.last_index)) == damage.last_index + 1


def test_known_damage_is_remembered_across_restarts() -> None:
    """Once found, damage is reported by every start until it is repaired, without a read."""
    disk, log, _, bad = damaged_log()
    with pytest.raises(RangeDamaged):
        log.read(Index(bad), Index(bad))
    for _ in range(2):
        log.close()
        log = open_log(disk)
        assert [(damage.first_index, damage.last_index) for damage in log.damages] == [(bad, bad)]
        assert any(isinstance(report, Damage) for report in log.reports)


@pytest.mark.parametrize("restart", [False, True])
def test_damage_in_the_last_segment_is_not_a_tail(restart: bool) -> None:
    """A later mark proves that the bytes were on disk: they are missing, not torn."""
    disk = new_disk()
    log = open_log(disk, LogSettings())
    blocks = chain([data(bytes([n]) * 100) for n in range(12)], term=1)
    for n in range(0, 12, 3):
        log.append(blocks[n : n + 3])
        log.sync()
    path = disk.paths()[0]
    disk.flip_bit(path, 8 * (disk.content(path).index(blocks[4].body) + 40))
    if restart:
        disk.cut_power()
        log = open_log(disk, LogSettings())
    with pytest.raises(RangeDamaged):
        log.read(Index(5), Index(5))
    assert log.last_index == 12
    assert set(served(log)) == set(range(1, 13)) - {5}
    more = chain([data(b"more")], tail_of(log), term=1)
    log.append(more)
    log.sync()
    for _ in range(2):
        disk.cut_power()
        log = open_log(disk, LogSettings())
        assert [damage.first_index for damage in log.damages] == [5]
        assert raw(log.read(Index(13), Index(13))) == raw(more)
    log.replace_range([blocks[4]])
    assert contents(log) == raw(blocks + more)


def test_damage_in_the_last_group_commit_is_cut_and_reported() -> None:
    disk = new_disk()
    log = open_log(disk, LogSettings())
    blocks = chain([data(bytes([n]) * 100) for n in range(6)], term=1)
    log.append(blocks[:3])
    log.sync()
    log.append(blocks[3:])
    log.sync()
    path = disk.paths()[0]
    disk.flip_bit(path, 8 * (disk.content(path).index(blocks[4].body) + 40))
    disk.cut_power()
    log = open_log(disk, LogSettings())
    (report,) = log.reports
    assert isinstance(report, TornTail) and report.next_index == 5
    assert "torn tail cut at byte" in str(report) and "before index 5" in str(report)
    assert contents(log) == raw(blocks[:4])


def test_after_a_checkpoint_even_the_last_group_is_protected() -> None:
    disk = new_disk()
    log = open_log(disk, LogSettings())
    blocks = chain([data(bytes([n]) * 100) for n in range(6)], term=1)
    log.append(blocks)
    log.checkpoint()
    path = next(path for path in disk.paths() if path.endswith(".log"))
    disk.flip_bit(path, 8 * (disk.content(path).index(blocks[4].body) + 40))
    disk.cut_power()
    log = open_log(disk, LogSettings())
    assert log.last_index == 6
    assert set(served(log)) == {1, 2, 3, 4, 6}


@pytest.mark.parametrize("lost", [1, 300, 1_500])
def test_a_file_that_lost_synced_bytes_is_damaged(lost: int) -> None:
    """The index says how long the segment was; a shorter one is missing blocks, it is not torn."""
    disk = new_disk()
    log = open_log(disk, LogSettings())
    blocks = chain([data(bytes([n]) * 100) for n in range(12)], term=1)
    log.append(blocks)
    log.close()
    path = next(path for path in disk.paths() if path.endswith(".log"))
    file = disk.open(path, writable=True)
    file.truncate(file.size() - lost)
    file.sync()
    log = open_log(disk, LogSettings())
    (damage,) = log.damages
    assert damage.last_index == log.last_index == 12
    assert set(served(log)) == set(range(1, damage.first_index))
    log.replace_range(blocks[damage.first_index - 1 :])
    assert contents(log) == raw(blocks)


def test_a_missing_segment_is_damage() -> None:
    disk = new_disk()
    log = open_log(disk)
    blocks = chain([data(bytes([n]) * 200) for n in range(60)], term=1)
    for n in range(0, 60, 2):
        log.append(blocks[n : n + 2])
        log.sync()
    log.close()
    gone = log.segments()[2]
    disk.remove(f"{DIRECTORY}/{gone.first_index:020d}.log")
    log = open_log(disk)
    (damage,) = log.damages
    assert (damage.first_index, damage.last_index) == (gone.first_index, gone.last_index)
    assert (damage.first_offset, damage.next_offset) == (gone.first_offset, gone.next_offset)
    with pytest.raises(RepairRefused, match=f"block {gone.last_index} is damaged and was not given"):
        log.replace_range(blocks[gone.first_index - 1 : gone.last_index - 1])
    log.replace_range(blocks[gone.first_index - 1 : gone.last_index])
    assert log.damages == () and contents(log) == raw(blocks)
    log.close()
    log = open_log(disk)
    assert log.reports == () and contents(log) == raw(blocks)


def test_repair_puts_back_what_peers_have() -> None:
    disk, log, blocks, bad = damaged_log()
    with pytest.raises(RangeDamaged):
        log.read(Index(bad), Index(bad))
    with pytest.raises(RepairRefused, match="damaged and was not given"):
        log.replace_range([blocks[bad - 2]])
    other = chain([data(b"another block")], after=tail_before(blocks[bad - 1].header), term=1)
    with pytest.raises(RepairRefused, match=r"does not (follow|fit)"):
        log.replace_range([other[0].stamped(**stamps(other[0]) | {"term": 3})])
    foreign = blocks[bad - 1].stamped(**stamps(blocks[bad - 1]) | {"shard": 99})
    with pytest.raises(RepairRefused, match="another shard"):
        log.replace_range([foreign])
    with pytest.raises(RepairRefused, match="next segment"):
        log.replace_range(blocks[bad - 1 : bad + 30])
    assert len(log.damages) == 1
    disk.capacity_bytes = disk.used_bytes() + 100
    with pytest.raises(DiskFull):
        log.replace_range([blocks[bad - 1]])
    disk.capacity_bytes = None
    log.replace_range(blocks[bad - 2 : bad + 1])
    assert log.damages == ()
    assert contents(log) == raw(blocks)
    disk.cut_power(Keep.NOTHING)
    log = open_log(disk)
    assert log.reports == () and contents(log) == raw(blocks)


def test_truncation_at_and_inside_damage() -> None:
    """A replica may drop everything from the first damaged block on; not from the middle of damage."""
    disk, log, blocks, bad = damaged_log()
    second = log.segments()[1]
    path = f"{DIRECTORY}/{second.first_index:020d}.log"
    disk.flip_bit(path, 8 * disk.content(path).index(blocks[bad - 2].body))
    with pytest.raises(RangeDamaged):
        log.read(Index(bad), Index(bad))
    (damage,) = log.damages
    assert (damage.first_index, damage.last_index) == (bad - 1, bad)
    with pytest.raises(RangeDamaged):
        log.truncate_from(Index(bad))
    assert log.last_index == 60
    log.truncate_from(Index(bad - 1))
    assert log.damages == () and contents(log) == raw(blocks[: bad - 2])
    log.append(blocks[bad - 2 :])
    log.sync()
    disk.cut_power(Keep.NOTHING)
    log = open_log(disk)
    assert log.reports == () and contents(log) == raw(blocks)


def test_truncation_behind_damage_is_refused() -> None:
    """The bytes behind may be all that proves the damage to be no torn tail; later segments may go."""
    disk, log, blocks, bad = damaged_log()
    with pytest.raises(RangeDamaged):
        log.read(Index(bad), Index(bad))
    with pytest.raises(RangeDamaged):
        log.truncate_from(Index(bad + 1))
    third = log.segments()[2].first_index
    log.truncate_from(Index(third + 1))
    disk.cut_power(Keep.NOTHING)
    log = open_log(disk)
    assert log.last_index == third and [damage.first_index for damage in log.damages] == [bad]
    log.replace_range([blocks[bad - 1]])
    assert contents(log) == raw(blocks[:third])


def test_a_block_of_another_shard_is_never_served() -> None:
    """A stray write may bring a whole block with the right index to the right place, of the wrong log."""
    disk = new_disk()
    disk.make_directory("other")
    log = open_log(disk, LogSettings())
    other = Log.open(disk, "other", shard=SHARD + 1, salt=SALT)
    blocks = chain([data(bytes([n]) * 100) for n in range(6)], term=1)
    log.append(blocks)
    other.append(chain([data(bytes([n + 50]) * 100) for n in range(6)], term=1, shard=SHARD + 1))
    log.checkpoint()
    other.checkpoint()
    ours, theirs = (
        next(path for path in disk.paths() if path.startswith(f"{name}/") and path.endswith("log"))
        for name in (DIRECTORY, "other")
    )
    at = disk.content(ours).index(blocks[2].header.to_bytes())
    size = blocks[2].header.block_bytes
    disk.open(ours, writable=True).write_at(at, [disk.content(theirs)[at : at + size]])
    assert set(served(log)) == {1, 2} | set(range(log.damages[0].last_index + 1, 7))
    assert log.damages[0].first_index == 3


def test_lost_index_files_cost_a_scan_and_nothing_else() -> None:
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(8), 60), term=1)
    for n in range(0, 60, 5):
        log.append(blocks[n : n + 5])
    log.close()
    segments = log.segments()
    for path in disk.paths():
        if path.endswith(".idx"):
            disk.remove(path)
    log = open_log(disk)
    assert [type(report) for report in log.reports] == [IndexLost] * (len(segments) - 1)
    assert "made again from its segment" in str(log.reports[0])
    assert contents(log) == raw(blocks) and log.segments() == segments
    log.close()
    assert open_log(disk).reports == ()


def test_a_payload_cannot_pose_as_a_mark_or_a_block() -> None:
    """A publisher who knows the format, the shard, the position and the next index, but not the salt, cannot
    turn a torn tail into damage; and a block inside a payload is never taken for one."""
    after = Tail(next_index=3, last_term=1, next_offset=2)
    forged = chain([data(b"forged")], after, term=1)[0].to_bytes()

    def torn(salt: int) -> Log:
        """A log whose last, unsynced block has a bad head and a payload with a mark made with that salt."""
        disk = new_disk()
        log = open_log(disk, LogSettings())
        log.append(chain([data(b"a")], term=1))
        log.sync()
        # After a mark and the head of the block comes the body; the payload has 400 bytes in any case.
        lead = (
            len(disk.content(disk.paths()[0])) + MARK_BYTES + HEAD_BYTES + data(b"#" * 400).body.index(b"#")
        )
        gap = -lead % 8
        mark = Mark(shard=SHARD, salt=salt, position=lead + gap, tail=after).to_bytes()
        evil = chain(
            [data(b"#" * gap + mark + forged + b"#" * (400 - gap - MARK_BYTES - len(forged)))],
            tail_of(log),
            term=1,
        )
        log.append(evil)
        path = disk.paths()[0]
        disk.flip_bit(path, 8 * (disk.content(path).index(evil[0].header.to_bytes()) + 20))
        assert disk.content(path).index(mark) == lead + gap
        disk.kill()
        return open_log(disk, LogSettings())

    assert torn(salt=SALT).last_index == 3, "with the salt the forged block would be served"
    log = torn(salt=SALT + 1)
    assert log.last_index == 1
    assert [type(report) for report in log.reports] == [TornTail]


@pytest.mark.parametrize("count", [0, 3], ids=["empty", "of one commit"])
def test_a_first_segment_whose_head_is_damaged_keeps_what_follows_and_takes_more(count: int) -> None:
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(3), count + 2), term=1)
    log.append(blocks[:count])
    log.sync()
    disk.kill()
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    disk.flip_bit(path, 200)
    for written in (count, count + 1):
        log = open_log(disk)
        assert contents(log) == raw(blocks[:written])
        log.append([blocks[written]])
        log.sync()
        disk.kill()
    assert contents(open_log(disk)) == raw(blocks)


class Short:
    """A file that lost its end, after it was measured."""

    path = "short"

    def __init__(self) -> None:
        self.reads = 0

    def read_at(self, position: int, size: int) -> bytes:
        self.reads += 1
        return bytes(5_000)[position : position + size]


def test_the_search_for_a_mark_ends_where_the_file_does() -> None:
    file: Any = Short()
    assert Source(file, size=64_000, shard=1, salt=1).next_mark(0) is None
    assert file.reads < 10
