"""A data block that a control block of its segment carries is written as a reference, and read whole."""

import pytest

from millrace.lab.sim.surroundings.disk import Keep, SimDisk
from millrace.storage.block import BlockDamaged, Codec, parse_block
from millrace.storage.log import Log, LogSettings
from millrace.storage.reference import carried, referring
from millrace.storage.scan import RangeDamaged
from millrace.types import Index
from unit.storage.making import (
    carrying,
    chain,
    contents,
    data,
    new_disk,
    open_log,
    raw,
    some_blocks,
    tail_of,
)

LARGE = LogSettings(segment_bytes=1 << 20)
PAYLOADS = [bytes([65 + number]) * 20_000 for number in range(4)]


def staged_and_released() -> tuple[SimDisk, Log, list[bytes]]:
    """Four blocks, staged first and then released, in one segment."""
    disk = new_disk()
    log = open_log(disk, LARGE)
    blocks = [data(payload) for payload in PAYLOADS]
    written = chain([*map(carrying, blocks), *blocks], term=1)
    for block in written:
        log.append([block])
        log.sync()
    return disk, log, raw(written)


def test_bytes_are_written_once_and_blocks_read_whole() -> None:
    disk, log, written = staged_and_released()
    assert sum(map(len, PAYLOADS)) < log.size_bytes < 1.2 * sum(map(len, PAYLOADS))
    assert contents(log) == written
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk, LARGE)) == written


def test_a_restart_by_the_index_reads_the_same() -> None:
    disk, log, written = staged_and_released()
    log.close()
    log = open_log(disk, LARGE)
    assert contents(log) == written and log.reports == ()
    # From the middle, as a reader that begins there does.
    assert raw(log.read(Index(6), Index(7))) == written[5:7]
    assert [block.header.index for block in log.read(Index(5), Index(8), 40_000)] == [5, 6]


def test_another_segment_has_its_own_copy() -> None:
    log = open_log(new_disk(), LARGE)
    block = data(PAYLOADS[0])
    written = chain([carrying(block), block], term=1)
    log.append(written[:1])
    log.end_segment()
    before = log.size_bytes
    log.append(written[1:])
    assert log.size_bytes - before > len(PAYLOADS[0])
    log.trim(Index(1))
    assert contents(log) == raw(written[1:])


def test_a_body_with_the_checksum_of_another_is_written() -> None:
    log = open_log(new_disk(), LARGE)
    first, second = data(PAYLOADS[0]), data(PAYLOADS[1])
    log.append(chain([carrying(first)], term=1))
    segment = log._segments[-1]
    (position,) = segment._carried.values()
    segment._carried[second.header.body_checksum, second.header.body_bytes] = position
    log.append(chain([second], tail_of(log), term=1))
    (found,) = log.read(Index(2), Index(2))
    assert found.body == second.body


def test_what_was_cut_off_is_not_referred_to() -> None:
    log = open_log(new_disk(), LARGE)
    block = data(PAYLOADS[0])
    log.append(chain([data(b"first")], term=1))
    log.append(chain([carrying(block)], tail_of(log), term=1))
    log.sync()
    log.truncate_from(Index(2))
    again = chain([data(PAYLOADS[1]), block], tail_of(log), term=2)
    log.append(again)
    assert raw(log.read(Index(2), Index(3))) == raw(again)


def test_damage_to_the_body_is_damage_to_both_and_repaired_by_whole_blocks() -> None:
    disk, log, written = staged_and_released()
    (path,) = (f"shard/{name}" for name in disk.names("shard") if name.endswith(".log"))
    disk.flip_bit(path, 8 * (disk.content(path).index(PAYLOADS[2]) + 5))
    for index in (3, 7):
        with pytest.raises(RangeDamaged) as error:
            log.read(Index(index), Index(index))
        assert error.value.damage.first_index == index
    assert raw(log.read(Index(4), Index(6))) == written[3:6]
    log.replace_range([parse_block(written[2]), parse_block(written[6])])
    assert contents(log) == written
    disk.cut_power(Keep.NOTHING)
    assert contents(open_log(disk, LARGE)) == written


def test_a_reference_from_outside_is_no_block() -> None:
    record = referring(data(PAYLOADS[0]), 64)
    assert record.header.codec is Codec.REFERENCE
    with pytest.raises(BlockDamaged, match="a reference outside of a segment"):
        parse_block(record.to_bytes())


def test_what_a_control_block_carries_is_found_by_a_whole_head_alone() -> None:
    block = data(PAYLOADS[0])
    assert carried(carrying(block)) == (len(b"under some key"), block.header)
    assert carried(carrying(data(b"small"))) is None
    assert carried(carrying(block, b"MRBK")) is None
    assert carried(block) is None


def test_random_logs_have_references() -> None:
    """Else the tests of crashes and damage would say nothing about them."""
    import random

    log = open_log(new_disk())
    shortened = 0
    for block in chain(some_blocks(random.Random(4), 200), term=1):
        size, segments = log.size_bytes, len(log.segments())
        log.append([block])
        is_same_segment = len(log.segments()) == segments
        shortened += is_same_segment and log.size_bytes - size < block.header.block_bytes
    assert shortened > 2
