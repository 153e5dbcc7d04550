"""Power cuts: at every change a workload makes, and at every byte of the last write."""

import random
from collections.abc import Callable, Iterator

import pytest

from millrace.lab.sim.surroundings.disk import Keep, PowerCut, SimDisk
from millrace.storage.block import Block
from millrace.storage.log import Log, LogSettings
from millrace.storage.records import MARK_BYTES, tail_after
from millrace.storage.scan import RangeDamaged, TornTail
from millrace.types import Index
from unit.storage.crashing import changes_of, crash_at
from unit.storage.making import (
    SMALL,
    chain,
    contents,
    data,
    new_disk,
    open_log,
    raw,
    reset_to,
    some_blocks,
    tail_of,
)

CALLS = 60


def crash_everywhere(seed: int, step: int, choices: int) -> int:
    runs = 0
    for change in range(seed % step + 1, changes_of(seed, CALLS) + 1, step):
        for keep in (Keep.NOTHING, Keep.ALL):
            runs += crash_at(change, seed=seed, calls=CALLS, keep=keep)
        for choice in range(choices):
            runs += crash_at(change, seed=seed, calls=CALLS, keep=Keep.SOME, choice=choice)
    return runs


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_power_cut_loses_nothing_that_was_synced(seed: int) -> None:
    """A sample of the change points, each with all, nothing and some of the unsynced changes kept."""
    assert crash_everywhere(seed, step=25, choices=2) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 18))
def test_a_power_cut_at_every_change(seed: int) -> None:
    """Every write, sync, rename, cut and removal of the workload."""
    assert crash_everywhere(seed, step=1, choices=4) > 500


def several_segments() -> tuple[SimDisk, Log, list[Block]]:
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(4), 40), term=1)
    for block in blocks:
        log.append([block])
    log.sync()
    assert len(log.segments()) > 3
    return disk, log, blocks


def interrupted(call: Callable[[Log], None]) -> Iterator[tuple[SimDisk, list[Block], bool]]:
    """The call on a log of several segments, cut off at each of its changes, with each choice of what is
    kept; and whether it had come to its end."""
    for change in range(1, 100):
        finished = False
        for keep in (Keep.NOTHING, Keep.ALL, Keep.SOME, Keep.SOME):
            disk, log, blocks = several_segments()
            disk.cut_power_at(disk.changes + change)
            try:
                call(log)
                finished = True
            except PowerCut:
                pass
            disk.cut_power(keep)
            yield disk, blocks, finished
        if finished:
            assert change > 4, "the call changes something"
            return
    raise AssertionError("the call does not come to its end")


@pytest.mark.parametrize("next_index", [1, 14, 41, 90])
def test_an_interrupted_reset_leaves_the_old_log_or_the_new(next_index: int) -> None:
    """The old one may be cut short: its end is about to go in any case."""
    for disk, blocks, finished in interrupted(lambda log: reset_to(log, next_index, 9, 500)):
        log = open_log(disk)
        assert log.damages == ()
        found = contents(log)
        is_new = (log.first_index, log.last_term, log.next_offset, found) == (next_index, 9, 500, [])
        assert is_new or not finished
        assert is_new or (log.first_index == 1 and found == raw(blocks)[: len(found)])
        assert is_new or len(found) >= min(next_index - 1, 40) or next_index <= 1


def test_an_interrupted_truncation_leaves_what_it_does_not_drop() -> None:
    for disk, blocks, finished in interrupted(lambda log: log.truncate_from(Index(9))):
        log = open_log(disk)
        assert log.damages == ()
        found = contents(log)
        assert found == raw(blocks)[: len(found)]
        assert len(found) == 8 if finished else len(found) >= 8


def test_an_interrupted_trim_leaves_no_gap() -> None:
    for disk, blocks, finished in interrupted(lambda log: log.trim(Index(30)) and None):
        log = open_log(disk)
        assert log.damages == ()
        assert contents(log) == raw(blocks)[log.first_index - 1 :]
        assert log.first_index > 15 or not finished


def test_an_interrupted_repair_leaves_the_damage_or_heals_it() -> None:
    blocks = several_segments()[2]

    def repair(log: Log) -> None:
        disk, directory = log._home.disk, log._home.directory
        assert isinstance(disk, SimDisk)
        path = next(f"{directory}/{name}" for name in disk.names(directory) if name.endswith(".log"))
        disk.flip_bit(path, 8 * (disk.content(path).index(blocks[2].body) + 4))
        with pytest.raises(RangeDamaged):
            log.read(Index(3), Index(3))
        log.replace_range([blocks[2]])

    for disk, _, finished in interrupted(repair):
        log = open_log(disk)
        try:
            assert raw(log.read(Index(3), Index(3))) == raw([blocks[2]])
        except RangeDamaged:
            assert not finished
            log.replace_range([blocks[2]])
        assert contents(log) == raw(blocks)


def tail_of_64_kib() -> tuple[SimDisk, list[Block], list[Block]]:
    """A disk with synced blocks and then one write of 64 KiB that was not synced."""
    disk = new_disk()
    log = open_log(disk, LogSettings())
    synced = chain(some_blocks(random.Random(1), 5), term=1)
    log.append(synced)
    log.sync()
    sizes = [100, 3_000, 40_000, 700, 9_000, 10]
    written = chain([data(random.Random(size).randbytes(size)) for size in sizes], tail_of(log), term=1)
    room = 65_536 - sum(block.header.block_bytes for block in written)
    written += chain([data(bytes(room - 300))], tail_after(written[-1].header), term=1)
    log.append(written)
    return disk, synced, written


def tear_at(disk: SimDisk, tear: int, synced: list[Block], written: list[Block]) -> None:
    torn = disk.copy(random.Random(tear))
    torn.cut_power(tear_bytes=tear)
    log = open_log(torn, LogSettings())
    found = contents(log)
    assert found == raw(synced + written)[: len(found)]
    assert len(found) >= len(synced)
    # The write began with a mark.
    whole, used = 0, MARK_BYTES
    for block in written:
        used += block.header.block_bytes
        whole += used <= tear
    assert len(found) == len(synced) + whole, "a block that is whole is kept"
    assert all(isinstance(report, TornTail) for report in log.reports)


def test_a_torn_write_is_cut_at_a_block() -> None:
    """400 of the bytes of a 64 KiB write, among them all near the borders of blocks."""
    disk, synced, written = tail_of_64_kib()
    tears = set(random.Random(1).sample(range(65_536), 250))
    at = MARK_BYTES
    for block in written:
        tears.update((at - 1, at, at + 1, at + 40, at + 95, at + 96, at + 97))
        at += block.header.block_bytes
    for tear in sorted(tears):
        tear_at(disk, tear, synced, written)


@pytest.mark.slow
def test_a_write_torn_at_every_byte() -> None:
    disk, synced, written = tail_of_64_kib()
    for tear in range(65_537):
        tear_at(disk, tear, synced, written)


def test_a_killed_process_leaves_everything_and_a_start_makes_it_durable() -> None:
    """After kill -9 the page cache has what was written; once a start has shown it, power may go."""
    disk = new_disk()
    log = open_log(disk)
    blocks = chain(some_blocks(random.Random(2), 30), term=1)
    for block in blocks:
        log.append([block])
    disk.kill()
    assert contents(open_log(disk)) == raw(blocks)
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk)) == raw(blocks)


def test_group_commit_syncs_once_for_many_appends() -> None:
    disk = new_disk()
    log = open_log(disk, LogSettings())
    before = disk.changes
    for block in chain(some_blocks(random.Random(3), 10), term=1):
        log.append([block])
    log.sync()
    assert disk.changes - before == 10 + 1
    assert log.sync() == 10
    assert disk.changes - before == 10 + 1, "nothing to sync costs nothing"
    disk.cut_power(Keep.NOTHING)
    assert open_log(disk, SMALL).last_index == 10
