"""Zeros written ahead of the log: never read as records, never reported, gone when a segment is sealed."""

import random

import pytest

from millrace.lab.sim.surroundings.disk import Keep, SimDisk
from millrace.storage.block import Block
from millrace.storage.disk import DiskFull
from millrace.storage.log import LogSettings
from millrace.storage.scan import TornTail
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

FILLED = LogSettings(fill_bytes=8_000, fill_from_bytes=0)
ROLLING = LogSettings(segment_bytes=3_000, fill_bytes=8_000, fill_from_bytes=0)


def file_bytes(disk: SimDisk, path: str) -> int:
    return disk.open(path).size()


def log_files(disk: SimDisk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.names(DIRECTORY) if name.endswith(".log")]


def test_a_sync_behind_zeros_leaves_the_length_of_the_file_alone() -> None:
    disk = new_disk()
    log = open_log(disk, FILLED)
    (path,) = log_files(disk)
    lengths = set()
    for _ in range(10):
        log.append(chain([data(b"x" * 100)], tail_of(log), term=1))
        log.sync()
        lengths.add(file_bytes(disk, path))
    assert len(lengths) == 1 and lengths.pop() > log.size_bytes


def test_a_kill_leaves_zeros_that_a_start_cuts_without_a_word() -> None:
    disk = new_disk()
    log = open_log(disk, FILLED)
    blocks = chain(some_blocks(random.Random(1), 5), term=1)
    log.append(blocks)
    log.sync()
    disk.kill()
    again = open_log(disk, FILLED)
    assert again.reports == () and contents(again) == raw(blocks)
    (path,) = log_files(disk)
    assert file_bytes(disk, path) == again.size_bytes
    more = chain(some_blocks(random.Random(2), 5), tail_of(again), term=1)
    again.append(more)
    again.sync()
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk, FILLED)) == raw(blocks + more)


def test_anything_but_zeros_behind_the_end_is_a_torn_tail() -> None:
    disk = new_disk()
    log = open_log(disk, FILLED)
    blocks = chain(some_blocks(random.Random(1), 5), term=1)
    log.append(blocks)
    log.sync()
    (path,) = log_files(disk)
    disk.open(path, writable=True).write_at(log.size_bytes + 3_000, [b"\x01"])
    disk.kill()
    again = open_log(disk, FILLED)
    assert [type(report) for report in again.reports] == [TornTail]
    assert contents(again) == raw(blocks)


def test_sealed_and_closed_segments_end_where_their_records_do() -> None:
    disk = new_disk()
    log = open_log(disk, ROLLING)
    blocks = chain(some_blocks(random.Random(3), 40), term=1)
    for block in blocks:
        log.append([block])
        log.sync()
    assert len(log.segments()) > 3
    log.close()
    sizes = [segment.size_bytes for segment in open_log(disk, ROLLING).segments()]
    assert [file_bytes(disk, path) for path in log_files(disk)] == sizes


def test_where_zeros_do_not_fit_the_blocks_are_written_without_them() -> None:
    disk = new_disk()
    log = open_log(disk, FILLED)
    log.append(chain([data(b"x" * 100)], tail_of(log), term=1))
    log.sync()
    disk.capacity_bytes = disk.used_bytes() + 2_000
    first = log.size_bytes
    kept: list[Block] = []
    with pytest.raises(DiskFull):
        for _ in range(100):
            (block,) = chain([data(b"y" * 1_000)], tail_of(log), term=1)
            log.append([block])
            log.sync()
            kept.append(block)
    assert log.size_bytes > first + 5_000, "what the zeros held is used before the disk is full"
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk, FILLED))[1:] == raw(kept)
