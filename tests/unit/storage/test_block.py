"""The block as a value: made, stamped, written, read; and every changed bit is noticed."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels.blocks import Run
from millrace.kernels.checksum import crc32c
from millrace.limits import BLOCK_MESSAGES_MAX
from millrace.storage.block import (
    BLOCK_BYTES_AIM,
    HEAD_BYTES,
    Block,
    BlockDamaged,
    Codec,
    Header,
    Kind,
    data_blocks,
    keyed_block,
    opaque_block,
    parse_block,
    parse_header,
)
from millrace.storage.files import NewerFormat
from unit.storage.making import chain, data, publish

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def test_crc32c_is_castagnoli() -> None:
    """The check value that the polynomial is published with; pieces give the same as the whole."""
    assert crc32c(b"123456789") == 0xE306_9283
    assert crc32c(b"56789", crc32c(b"1234")) == 0xE306_9283


@given(
    st.sampled_from(list(Kind)),
    st.sampled_from([Codec.NONE, Codec.ZLIB]),
    st.binary(max_size=200),
    U32,
    U64,
    U64,
    U64,
    U64,
)
@settings(max_examples=100, deadline=None)
def test_stamped_blocks_come_back_from_their_bytes(
    kind: Kind, codec: Codec, payload: bytes, shard: int, term: int, index: int, previous: int, offset: int
) -> None:
    """Kind, stamps and content survive; the body is the same object before and after the stamp."""
    block = data(payload, payload, codec=codec) if kind is Kind.DATA else opaque_block(kind, payload, codec)
    stamped = block.stamped(
        shard=shard,
        term=term,
        index=index,
        previous_term=previous,
        base_offset=offset,
        base_time_us=-(2**63) + offset,
    )
    assert stamped.body is block.body
    raw = stamped.to_bytes()
    assert len(raw) % 8 == 0 and len(raw) == stamped.header.block_bytes
    again = parse_block(b"xyz" + raw + b"tail", 3)
    assert again == stamped
    assert (again.header.kind, again.header.term, again.header.index) == (kind, term, index)
    if kind is Kind.DATA:
        columns = again.columns()
        assert again.topics() == (b"t",)
        assert [bytes(columns.packets)] == [publish(b"t", payload) * 2]
        assert again.header.next_offset == offset + 2
    else:
        assert again.payload() == payload


def test_compression_shrinks_what_it_can_and_leaves_the_dictionary_plain() -> None:
    topic = b"readable/topic"
    block = data(*[b'{"temperature": 21.5}'] * 200, topic=topic, codec=Codec.ZLIB)
    assert block.header.codec is Codec.ZLIB
    assert block.header.block_bytes < block.header.raw_bytes / 4
    assert topic in block.body
    noise = random.Random(1).randbytes(300)
    assert opaque_block(Kind.CONTROL, noise, Codec.ZLIB).header.codec is Codec.NONE


def test_a_body_that_expands_to_something_else_is_refused() -> None:
    """The promised length bounds the expansion, so a small body cannot fill the memory."""
    block = opaque_block(Kind.CONTROL, bytes(100_000), Codec.ZLIB)
    for raw_bytes in (99_999, 100_001):
        lying = Block(header=replace(block.header, raw_bytes=raw_bytes), body=block.body)
        with pytest.raises(BlockDamaged, match="another length"):
            lying.payload()
    garbage = Block(header=block.header, body=b"\xff" * len(block.body))
    with pytest.raises(BlockDamaged, match="cannot be expanded"):
        garbage.payload()


def test_every_flipped_bit_is_noticed() -> None:
    """Whichever bit of head or body changes, the block is not taken."""
    raw = chain([data(b"hello", b"world")])[0].to_bytes()
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BlockDamaged):
            parse_block(bytes(changed))


def test_every_cut_is_noticed() -> None:
    raw = chain([data(b"hello")])[0].to_bytes()
    for size in range(len(raw)):
        with pytest.raises(BlockDamaged):
            parse_block(raw[:size])


def _with_head(header: Header, **fields: int) -> bytes:
    """The head with other bytes at given places, its checksum made right again."""
    head = bytearray(header.to_bytes()[:-4])
    for place, value in fields.items():
        head[int(place.removeprefix("at_"))] = value
    return bytes(head) + crc32c(bytes(head)).to_bytes(4, "little")


def test_blocks_of_a_later_version_are_refused_as_such() -> None:
    """Not damage: the message says that another Millrace wrote it."""
    header = data(b"x").header
    with pytest.raises(NewerFormat, match="version 2; this Millrace reads up to 1"):
        parse_header(_with_head(header, at_4=2))
    with pytest.raises(NewerFormat, match="codec"):
        parse_header(_with_head(header, at_7=9))


def test_lengths_that_no_block_has_are_not_believed() -> None:
    with pytest.raises(BlockDamaged, match="lengths"):
        parse_header(_with_head(data(b"x").header, at_11=0xFF))


def test_bounds_cut_a_long_run_into_blocks() -> None:
    """10,000 messages or 1 MiB, whichever comes first; order and sequences are kept across the cut."""
    small = publish(b"t", b"") * 25_000
    blocks = data_blocks([Run(small, 4, producer=b"p", sequences=range(25_000))])
    assert all(block.header.count <= BLOCK_MESSAGES_MAX for block in blocks)
    assert all(block.header.block_bytes <= BLOCK_BYTES_AIM for block in blocks)
    assert sum(block.header.count for block in blocks) == 25_000
    sequences = [number for block in blocks for number in block.columns().sequences]
    assert sequences == list(range(25_000))
    large = [Run(publish(b"t", bytes([n]) * 300_000), 4, delta_us=n) for n in range(7)]
    blocks = data_blocks(large)
    assert all(block.header.block_bytes <= BLOCK_BYTES_AIM for block in blocks)
    assert b"".join(bytes(block.columns().packets) for block in blocks) == b"".join(
        run.packets for run in large
    )


def test_one_large_message_is_one_block() -> None:
    (block,) = data_blocks([Run(publish(b"t", bytes(3 << 20)), 4)])
    assert block.header.block_bytes > BLOCK_BYTES_AIM and block.header.count == 1


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="message"):
        data_blocks([])
    with pytest.raises(ValueError, match="messages"):
        opaque_block(Kind.DATA, b"x")
    with pytest.raises(ValueError, match="no columns"):
        opaque_block(Kind.NOOP).columns()
    assert opaque_block(Kind.NOOP).topics() == ()
    assert opaque_block(Kind.NOOP).header.block_bytes == HEAD_BYTES


def test_a_block_may_have_a_key() -> None:
    """The key comes back with the columns, compressed or not; one block is one block or an error."""
    run = Run(packets=b"\x30\x04\0\1ta" * 3, version=4)
    for codec in (Codec.NONE, Codec.ZLIB):
        block = keyed_block([run], b"writer/0/attempt/7", codec)
        columns = parse_block(block.to_bytes()).columns()
        assert (columns.key, bytes(columns.packets), block.topics()) == (
            b"writer/0/attempt/7",
            run.packets,
            (b"t",),
        )
    assert data_blocks([run])[0].columns().key == b""
    with pytest.raises(ValueError, match="a block has 1 to"):
        keyed_block([run._replace(packets=run.packets * 5_000)], b"k")
