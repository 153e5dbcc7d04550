"""The format does not drift: golden files are written byte for byte and read back; the page shows them."""

import random

import pytest

from millrace.storage.block import Codec, Kind, parse_block
from millrace.storage.files import HardState, read_hard_state
from millrace.storage.log import Log
from millrace.storage.snapshot import SnapshotStore
from millrace.types import Index, Term
from unit.storage.format_example import (
    GOLDEN,
    PAGE,
    SHARD_FILES,
    control_block,
    example_block,
    example_shard,
    page_with_example,
    zlib_block,
)
from unit.storage.making import DIRECTORY, SALT, SHARD, new_disk, publish, raw, read_all


def test_data_and_control_blocks_are_written_as_ever() -> None:
    assert example_block().to_bytes() == (GOLDEN / "block_data.bin").read_bytes()
    assert control_block().to_bytes() == (GOLDEN / "block_control.bin").read_bytes()


def test_golden_blocks_are_read_as_ever() -> None:
    """Of a compressed block only the content is fixed: another zlib may find other bytes."""
    block = parse_block((GOLDEN / "block_data.bin").read_bytes())
    assert block == example_block()
    assert (block.header.term, block.header.index, block.header.base_offset) == (3, 12, 1_000)
    columns = block.columns()
    payloads = [
        bytes(columns.packets[at : at + size])
        for at, size in zip(columns.payload_positions, columns.payload_sizes, strict=True)
    ]
    assert payloads == [b"21.5", b"21.6", b"open"]
    assert [block.topics()[n] for n in columns.topic_ids] == [b"hall/temp", b"hall/temp", b"hall/door"]
    pressed = parse_block((GOLDEN / "block_zlib.bin").read_bytes())
    assert pressed.header.codec is Codec.ZLIB
    assert bytes(pressed.columns().packets) == publish(b"hall/temp", b"20.0") * 40
    assert pressed.payload() == zlib_block().payload()
    control = parse_block((GOLDEN / "block_control.bin").read_bytes())
    assert (control.header.kind, control.payload()) == (Kind.CONTROL, b"trim 17")


@pytest.mark.parametrize("file", sorted(SHARD_FILES))
def test_the_files_of_a_shard_are_written_as_ever(file: str) -> None:
    disk = example_shard()
    assert sorted(SHARD_FILES) == disk.names(DIRECTORY)
    assert disk.content(f"{DIRECTORY}/{file}") == (GOLDEN / SHARD_FILES[file]).read_bytes()


def test_the_golden_shard_is_read_as_ever() -> None:
    disk = new_disk()
    for file, golden in SHARD_FILES.items():
        disk.create(f"{DIRECTORY}/{file}").write_at(0, [(GOLDEN / golden).read_bytes()])
    log = Log.open(disk, DIRECTORY, shard=SHARD, salt=SALT)
    assert log.reports == ()
    assert (log.first_index, log.last_index, log.first_offset, log.next_offset) == (12, 13, 1_000, 1_003)
    assert [log.term_at(Index(n)) for n in (11, 12, 13)] == [3, 3, 4]
    assert raw(read_all(log))[0] == (GOLDEN / "block_data.bin").read_bytes()
    assert read_hard_state(disk, f"{DIRECTORY}/hard") == HardState(term=Term(4), vote="n1", commit=Index(13))
    snapshot = SnapshotStore(disk, DIRECTORY, shard=SHARD).open(Index(11))
    assert snapshot.info.config == b'[["n1"],[]]'
    assert b"".join(snapshot.chunks()) == random.Random(1).randbytes(100)


def test_the_page_shows_the_block_as_it_is() -> None:
    """docs/understand/format.md names every byte of the example; `format_example` writes it."""
    page = PAGE.read_text()
    assert page == page_with_example(page)
    assert example_block().to_bytes()[:4].hex(" ") in page
