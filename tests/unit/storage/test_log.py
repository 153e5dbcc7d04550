"""A log without faults: what was appended is read back, found, cut and trimmed, and after a restart too."""

import itertools
import random
from dataclasses import replace

import pytest

from millrace.errors import LocalError
from millrace.kernels.blocks import Run
from millrace.kernels.checksum import crc32c
from millrace.lab.sim.surroundings.disk import SimDisk, SimFile
from millrace.storage.block import Block, BlockDamaged, Kind, data_blocks, opaque_block
from millrace.storage.log import Log, LogFailed, LogSettings, Trimmed
from millrace.storage.records import MARK_BYTES, tail_after
from millrace.storage.summary import filter_keys
from millrace.types import Index, Offset
from unit.storage.making import (
    DIRECTORY,
    SMALL,
    chain,
    contents,
    data,
    new_disk,
    open_log,
    raw,
    read_all,
    reset_to,
    some_blocks,
    stamps,
    tail_of,
)


def filled(seed: int = 1, count: int = 80) -> tuple[Log, list[Block]]:
    """A log of several segments, synced now and then."""
    rng = random.Random(seed)
    log = open_log(new_disk(seed))
    blocks = chain(some_blocks(rng, count), term=1)
    for n in range(0, count, 5):
        log.append(blocks[n : n + 5])
        log.sync()
    return log, blocks


def test_a_new_log_is_empty() -> None:
    log = open_log(new_disk())
    assert (log.first_index, log.last_index, log.last_term) == (1, 0, 0)
    assert (log.first_offset, log.next_offset) == (0, 0)
    assert log.term_at(Index(0)) == 0
    assert (log.damages, log.reports) == ((), ())


def test_what_was_appended_is_read_back_after_a_restart() -> None:
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(2), 60), term=3)
    log.append(blocks[:50])
    assert contents(log) == raw(blocks[:50])
    log.append(blocks[50:])
    assert log.sync() == 60
    log.close()
    again = open_log(disk)
    assert contents(again) == raw(blocks)
    assert again.reports == ()
    assert tail_of(again) == tail_of(log)
    assert again.segments() == log.segments()


def test_blocks_must_follow() -> None:
    """Index, term, offset and shard of a block are checked before a byte is written."""
    log = open_log(new_disk())
    first, second = chain([data(b"a"), data(b"b")], term=1)
    log.append([first])
    later = stamps(chain([data(b"b")], tail_of(log), term=2)[0])
    wrong = [
        chain([data(b"b")], shard=8, term=1)[0],
        first,
        chain([data(b"c")], after=tail_after(second.header), term=1)[0],
        second.stamped(**later | {"previous_term": 2}),
        second.stamped(**later | {"base_offset": 0}),
        second.stamped(**later | {"term": 0}),
    ]
    for block in wrong:
        with pytest.raises(LocalError, match="does not follow"):
            log.append([block])
    with pytest.raises(BlockDamaged):
        log.append([Block(header=second.header, body=first.body)])
    log.append([second])
    assert contents(log) == raw([first, second])


def test_segments_roll_and_cover_everything() -> None:
    log, blocks = filled()
    infos = log.segments()
    assert len(infos) > 4
    for info, following in itertools.pairwise(infos):
        assert info.last_index + 1 == following.first_index
        assert info.next_offset == following.first_offset
        assert info.size_bytes >= SMALL.segment_bytes
    assert sum(info.size_bytes for info in infos) == log.size_bytes
    assert infos[0].first_time_us == blocks[0].header.base_time_us
    assert infos[-1].last_time_us == blocks[-1].header.base_time_us


def test_a_segment_ends_when_it_is_told_to_and_only_once() -> None:
    log = open_log(new_disk(1))
    blocks = chain(some_blocks(random.Random(1), 3), term=1)
    log.ends_segment = True
    log.append(blocks[:1])
    assert len(log.segments()) == 1, "one without a block stays the one that is written"
    for block in blocks[1:]:
        log.append([block])
    assert len(log.segments()) == 2
    assert read_all(log) == blocks


def test_segments_have_the_share_they_are_given_up_to_the_usual_size() -> None:
    blocks = chain(some_blocks(random.Random(1), 80), term=1)

    def largest(share: int) -> int:
        log = open_log(new_disk(1))
        log.segment_share = share
        for block in blocks:
            log.append([block])
        return max(info.size_bytes for info in log.segments()[:-1])

    usual = largest(SMALL.segment_bytes)
    assert largest(1) < usual
    assert largest(100 * usual) == usual


def test_reads_are_bounded_and_ordered() -> None:
    log, blocks = filled()
    for first in range(1, 81, 7):
        got = log.read(Index(first), Index(80), bytes_max=600)
        assert raw(got) == raw(blocks[first - 1 : first - 1 + len(got)])
        assert sum(block.header.block_bytes for block in got[:-1]) < 600
    assert raw(log.read(Index(5), Index(5), bytes_max=1)) == raw([blocks[4]])
    with pytest.raises(LocalError, match="beyond"):
        log.read(Index(81), Index(90))


def test_every_offset_is_found_in_its_block() -> None:
    log, blocks = filled()
    by_offset = {
        offset: block.header.index
        for block in blocks
        for offset in range(block.header.base_offset, block.header.next_offset)
    }
    assert len(by_offset) == log.next_offset > 80
    for offset, index in by_offset.items():
        assert log.find_offset(Offset(offset)) == index
    assert log.find_offset(log.next_offset) == log.last_index + 1
    with pytest.raises(LocalError, match="beyond"):
        log.find_offset(Offset(log.next_offset + 1))


def test_terms_are_known_for_every_index() -> None:
    """Also across restarts and for the index before the first."""
    disk = new_disk()
    log = open_log(disk)
    terms = [1, 1, 1, 4, 4, 9, 9, 9, 9, 10] * 6
    for n, term in enumerate(sorted(terms)):
        log.append(chain([data(bytes(150))], tail_of(log), term=term))
        if n % 4 == 0:
            log.sync()
    log.close()
    log = open_log(disk)
    assert len(log.segments()) > 3
    assert [log.term_at(Index(n)) for n in range(61)] == [0, *sorted(terms)]
    log.trim(Index(30))
    assert log.first_index > 1
    assert log.term_at(Index(log.first_index - 1)) == sorted(terms)[log.first_index - 2]
    with pytest.raises(Trimmed):
        log.term_at(Index(log.first_index - 2))


@pytest.mark.parametrize("restart", [False, True])
def test_truncation_at_every_index(restart: bool) -> None:
    """Whatever index the tail is cut at, what is before it stays, and the log goes on from there."""
    for cut in range(1, 42, 4):
        disk = new_disk()
        log = open_log(disk)
        blocks = chain(some_blocks(random.Random(3), 40), term=1)
        log.append(blocks[:20])
        log.sync()
        log.append(blocks[20:])
        log.truncate_from(Index(cut))
        if restart:
            disk.cut_power()
            log = open_log(disk)
            assert log.reports == ()
        assert contents(log) == raw(blocks[: cut - 1])
        fresh = chain(some_blocks(random.Random(cut), 30), tail_of(log), term=2)
        log.append(fresh)
        log.sync()
        disk.cut_power()
        log = open_log(disk)
        assert log.reports == ()
        assert contents(log) == raw(blocks[: cut - 1] + fresh)
        assert log.term_at(Index(cut)) == 2


def test_truncation_above_the_end_does_nothing() -> None:
    log, blocks = filled()
    log.truncate_from(Index(81))
    assert contents(log) == raw(blocks)
    log.trim(Index(40))
    with pytest.raises(Trimmed):
        log.truncate_from(Index(1))


def test_trim_removes_whole_segments_and_never_the_last() -> None:
    log, blocks = filled()
    infos = log.segments()
    assert log.trim(Index(infos[0].last_index - 1)) == 1
    assert log.trim(infos[1].last_index) == infos[2].first_index
    assert log.first_offset == infos[2].first_offset
    with pytest.raises(Trimmed, match=f"earliest is offset {infos[2].first_offset}") as caught:
        log.read(Index(1), Index(5))
    assert caught.value.first_index == infos[2].first_index
    with pytest.raises(Trimmed):
        log.find_offset(Offset(0))
    assert log.trim(Index(10_000)) == infos[-1].first_index
    assert contents(log) == raw(blocks[infos[-1].first_index - 1 :])


@pytest.mark.parametrize("next_index", [1, 7, 41, 200])
def test_reset_begins_anew(next_index: int) -> None:
    """Below, inside, at the end of and above what the log held."""
    disk = new_disk()
    log = open_log(disk)
    for block in chain(some_blocks(random.Random(4), 40), term=1):
        log.append([block])
    log.sync()
    assert len(log.segments()) > 3
    reset_to(log, next_index, 5, 1_000)
    for again in (log, open_log(disk)):
        assert (again.first_index, again.last_index) == (next_index, next_index - 1)
        assert (again.last_term, again.next_offset) == (5, 1_000)
        assert again.term_at(Index(next_index - 1)) == 5
    fresh = chain(some_blocks(random.Random(5), 10), tail_of(log), term=6)
    log.append(fresh)
    log.sync()
    disk.cut_power()
    assert contents(open_log(disk)) == raw(fresh)


def test_a_closed_log_does_nothing_more() -> None:
    log, _ = filled()
    log.close()
    with pytest.raises(LogFailed, match="closed"):
        log.read(Index(1), Index(1))
    log.close()


def test_a_narrow_filter_skips_segments() -> None:
    """Segments without a matching topic are skipped, the one that has it is not, before and after a
    restart."""
    disk = new_disk()
    log = open_log(disk)
    for n in range(60):
        topic = b"rare/one/x" if n == 37 else f"common/{n % 3}/x".encode()
        log.append(chain([data(bytes(150), topic=topic)], tail_of(log), term=1))
    log.sync()
    holder = next(info for info in log.segments() if info.first_index <= 38 <= info.last_index)
    assert holder.first_index > 1
    for again in (log, open_log(disk)):
        for wanted in (b"rare/one/x", b"rare/#", b"rare/+/x", b"rare/one/x/#"):
            keys = filter_keys(wanted)
            assert keys is not None
            assert again.skip_to(Index(1), keys) == holder.first_index
            assert again.skip_to(Index(38), keys) == 38
            assert again.skip_to(Index(holder.last_index + 1), keys) == 61
        common = filter_keys(b"common/1/+")
        assert common is not None and again.skip_to(Index(9), common) == 9
        assert filter_keys(b"+/one/x") is None


def test_large_and_empty_blocks_live_together() -> None:
    disk = new_disk()
    log = open_log(disk, LogSettings())
    (large,) = data_blocks([Run(b"\x30\xfd\xff\x3f\x00\x01t" + bytes(1_048_570), 4)])
    blocks = chain(
        [opaque_block(Kind.NOOP), large, opaque_block(Kind.CONFIG, b"[]"), large, data(b"x")], term=2
    )
    log.append(blocks)
    log.sync()
    disk.cut_power()
    log = open_log(disk, LogSettings())
    assert contents(log) == raw(blocks)
    assert [block.header.kind for block in read_all(log)][:3] == [Kind.NOOP, Kind.DATA, Kind.CONFIG]
    assert raw(log.read(Index(4), Index(4))) == raw([blocks[3]])


def test_a_block_with_a_broken_dictionary_stops_nothing() -> None:
    """Its checksums are good, so whoever made it is to blame: stored, served, refused only when decoded."""
    disk = new_disk()
    log = open_log(disk)
    good = data(b"x", topic=b"a/b")
    body = bytearray(good.body)
    body[24:28] = b"\xff\xff\xff\xff"
    header = replace(good.header, body_checksum=crc32c(bytes(body)))
    blocks = chain([Block(header=header, body=bytes(body)), data(b"y")], term=1)
    log.append(blocks)
    log.sync()
    for _ in range(2):
        assert contents(log) == raw(blocks)
        keys = filter_keys(b"any/thing")
        assert keys is not None and log.skip_to(Index(1), keys) == 1, "it may hold any topic"
        with pytest.raises(BlockDamaged, match="does not fit"):
            log.read(Index(1), Index(1))[0].topics()
        disk.cut_power()
        log = open_log(disk)
    assert log.reports == ()


class CountingFile(SimFile):
    """Counts the bytes that are read."""

    def read_at(self, position: int, size: int) -> bytes:
        found = super().read_at(position, size)
        assert isinstance(self._disk, CountingDisk)
        self._disk.segment_bytes += len(found)
        return found


class CountingDisk(SimDisk):
    """Counts what is read of segment files."""

    segment_bytes = 0

    def open(self, path: str, *, writable: bool = False) -> SimFile:
        kind = CountingFile if path.endswith(".log") else SimFile
        return kind(self, path, self._file(path), writable)


def test_a_clean_restart_reads_no_block() -> None:
    """The index covers a log that was closed: of each segment only the first record is read."""
    disk = CountingDisk(random.Random(1))
    disk.make_directory(DIRECTORY)
    blocks = chain(some_blocks(random.Random(6), 60), term=1)
    log = open_log(disk)
    for n in range(0, 60, 4):
        log.append(blocks[n : n + 4])
    log.close()
    disk.segment_bytes = 0
    again = open_log(disk)
    assert len(again.segments()) > 3
    assert disk.segment_bytes == MARK_BYTES * len(again.segments())
    assert contents(again) == raw(blocks)
