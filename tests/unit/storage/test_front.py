"""Older blocks come in front of a log that began from a snapshot: all or none, whatever ends it."""

import random
from dataclasses import replace

import pytest

from millrace.lab.sim.surroundings.disk import Keep, PowerCut, SimDisk
from millrace.storage.block import Block, BlockDamaged
from millrace.storage.disk import DiskFull
from millrace.storage.log import Log
from millrace.storage.recover import IndexLost
from millrace.storage.repair import RepairRefused
from millrace.storage.scan import RangeDamaged
from millrace.types import Index, Offset
from unit.storage.making import (
    DIRECTORY,
    SHARD,
    chain,
    contents,
    new_disk,
    open_log,
    raw,
    reset_to,
    some_blocks,
    stamps,
    tail_of,
)

BLOCKS = chain(some_blocks(random.Random(4), 40), term=1)
BEGINS_AT = 21
PIECES = (BLOCKS[12:20], BLOCKS[5:12])


def begun_from_a_snapshot(*, written: int = 40) -> tuple[SimDisk, Log]:
    """A log that begins at entry 21 of what others have, with segments that were there before."""
    disk = new_disk()
    log = open_log(disk)
    log.append(chain(some_blocks(random.Random(5), 9), term=1))
    log.sync()
    header = BLOCKS[BEGINS_AT - 1].header
    reset_to(log, BEGINS_AT, header.previous_term, header.base_offset)
    for block in BLOCKS[BEGINS_AT - 1 : written]:
        log.append([block])
    log.sync()
    return disk, log


@pytest.mark.parametrize("written", [BEGINS_AT - 1, BEGINS_AT, 40])
def test_a_log_goes_on_backwards_and_stays_so_after_a_start(written: int) -> None:
    """Also where it is empty, or one segment which is still written."""
    disk, log = begun_from_a_snapshot(written=written)
    for piece in PIECES:
        log.prepend(piece)
        assert log.first_index == piece[0].header.index
        assert log.first_offset == piece[0].header.base_offset
        assert log.term_at(Index(log.first_index - 1)) == piece[0].header.previous_term
        assert contents(log) == raw(BLOCKS[log.first_index - 1 : written])
    for keep in (Keep.NOTHING, Keep.ALL):
        disk.cut_power(keep)
        log = open_log(disk)
        assert log.reports == ()
        assert contents(log) == raw(BLOCKS[5:written])
        for block in BLOCKS[5:written]:
            assert log.read(Index(block.header.index), Index(block.header.index)) == [block]
            if block.header.count:
                assert log.find_offset(Offset(block.header.base_offset)) == block.header.index
    more = chain(some_blocks(random.Random(6), 3), tail_of(log), term=2)
    log.append(more)
    assert log.trim(Index(12)) == 13, "and what came in front goes like any other"
    assert contents(log) == raw(BLOCKS[12:written] + more)


def test_a_power_cut_at_every_change_leaves_whole_pieces() -> None:
    """What was put in front before stays, what is under way is there or is not, and the rest follows."""
    for change in range(1, 100):
        finished = 0
        for keep in (Keep.NOTHING, Keep.ALL, Keep.SOME, Keep.SOME):
            disk, log = begun_from_a_snapshot()
            disk.cut_power_at(disk.changes + change)
            finished = 0
            try:
                for piece in PIECES:
                    log.prepend(piece)
                    finished += 1
            except PowerCut:
                pass
            disk.cut_power(keep)
            log = open_log(disk)
            assert all(isinstance(report, IndexLost) for report in log.reports), log.reports
            begins_at = [BEGINS_AT, *(piece[0].header.index for piece in PIECES)]
            assert log.first_index in begins_at[finished : finished + 2]
            assert contents(log) == raw(BLOCKS[log.first_index - 1 :])
            assert not any(name.endswith(".tmp") for name in disk.names(DIRECTORY))
            for piece in PIECES:
                if piece[-1].header.index == log.first_index - 1:
                    log.prepend(piece)
            assert contents(open_log(disk)) == raw(BLOCKS[5:])
        if finished == len(PIECES):
            assert change > 10
            return
    raise AssertionError("it does not come to its end")


@pytest.mark.parametrize("next_index", [1, 9, 13, BEGINS_AT, 30, 90])
def test_an_interrupted_reset_of_such_a_log_leaves_nothing_of_the_old_below(next_index: int) -> None:
    """The new log begins where it says, also in the middle of what was put in front."""
    for change in range(1, 100):
        finished = False
        for keep in (Keep.NOTHING, Keep.ALL, Keep.SOME, Keep.SOME, Keep.SOME):
            disk, log = begun_from_a_snapshot()
            for piece in PIECES:
                log.prepend(piece)
            disk.cut_power_at(disk.changes + change)
            try:
                reset_to(log, next_index, 9, 500)
                finished = True
            except PowerCut:
                pass
            disk.cut_power(keep)
            log = open_log(disk)
            assert log.damages == ()
            found = contents(log)
            is_new = (log.first_index, log.last_term, log.next_offset, found) == (next_index, 9, 500, [])
            assert is_new or not finished
            begins_at = (BEGINS_AT, *(piece[0].header.index for piece in PIECES))
            # Nothing at all is a log that begins with the first entry.
            if not is_new and not (next_index == log.first_index == 1 and found == []):
                assert log.first_index in begins_at
                assert found == raw(BLOCKS[log.first_index - 1 :])[: len(found)]
        if finished:
            return
    raise AssertionError("it does not come to its end")


def refused(log: Log, blocks: list[Block], error: type[Exception] = RepairRefused) -> None:
    before = contents(log)
    with pytest.raises(error):
        log.prepend(blocks)
    assert contents(log) == before
    assert not any(name.endswith(".tmp") for name in log._home.disk.names(DIRECTORY))


def test_what_does_not_fit_is_refused() -> None:
    disk, log = begun_from_a_snapshot()
    last = BLOCKS[19]
    refused(log, BLOCKS[12:19])
    refused(log, [*BLOCKS[12:16], *BLOCKS[17:20]])
    refused(log, BLOCKS[12:21])
    refused(log, [*BLOCKS[12:19], last.stamped(**{**stamps(last), "term": 2})])
    refused(log, [*BLOCKS[12:19], last.stamped(**{**stamps(last), "base_offset": 3})])
    other = [block.stamped(**{**stamps(block), "shard": SHARD + 1}) for block in BLOCKS[12:20]]
    refused(log, other)
    damaged = replace(last, body=bytes([last.body[0] ^ 1]) + last.body[1:])
    refused(log, [*BLOCKS[12:19], damaged], BlockDamaged)
    log.prepend([])
    log.prepend(BLOCKS[12:20])
    assert contents(open_log(disk)) == raw(BLOCKS[12:])


def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    """At every byte at which the room may end; later it works."""
    tried = 0
    for room in range(0, 100_000, 97):
        disk, log = begun_from_a_snapshot()
        disk.capacity_bytes = disk.used_bytes() + room
        try:
            log.prepend(BLOCKS[12:20])
        except DiskFull:
            tried += 1
            assert contents(log) == raw(BLOCKS[20:])
            disk.capacity_bytes = None
            log.prepend(BLOCKS[12:20])
        else:
            break
        assert contents(open_log(disk)) == raw(BLOCKS[12:])
    assert tried > 3


def test_damage_in_what_came_in_front_is_told_and_repaired() -> None:
    """A bit that turns is damage of these entries and of no others, before a start and after it."""
    disk, log = begun_from_a_snapshot()
    log.prepend(BLOCKS[12:20])
    path = next(path for path in disk.paths() if path.endswith("13.log"))
    disk.flip_bit(path, 8 * (disk.content(path).index(BLOCKS[15].body) + 1))
    with pytest.raises(RangeDamaged):
        log.read(Index(16), Index(16))
    log = open_log(disk)
    assert [(damage.first_index, damage.last_index) for damage in log.damages] == [(16, 16)]
    log.replace_range([BLOCKS[15]])
    assert contents(open_log(disk)) == raw(BLOCKS[12:])


def test_what_came_in_front_stays_where_the_file_that_says_so_is_damaged() -> None:
    disk, log = begun_from_a_snapshot()
    log.prepend(BLOCKS[12:20])
    log.close()
    disk.flip_bit(f"{DIRECTORY}/front", 9)
    assert contents(open_log(disk)) == raw(BLOCKS[12:])
