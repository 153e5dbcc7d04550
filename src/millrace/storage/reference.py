"""A record that points at a body which stands in the same segment file already.

What a writer stages lies in the log as a control block that carries a whole data block. When it is released,
the same data block is appended as an ordinary one. Its bytes are not written twice: where the segment has
them, the record is a head and a *reference* to where they are.

References live in segment files only. `Segment` makes them and `Source` follows them, so that whoever appends
and whoever reads has whole blocks: nothing about them goes to peers, to clients, into snapshots or into
another segment. They point backward within one file, which is cut at its end and removed as a whole.
"""

import struct
from collections.abc import Callable
from dataclasses import replace

from millrace.kernels.checksum import crc32c
from millrace.storage.block import (
    HEAD_BYTES,
    MAGIC,
    Block,
    BlockDamaged,
    Codec,
    Header,
    Kind,
    attach_body,
    parse_header,
)

# position of the body in the file, its size, bytes of its plain part, its checksum, codec
_REFERENCE = struct.Struct("<QIIIB3x")
assert _REFERENCE.size % 8 == 0

BODY_BYTES_MIN = 128
"""A smaller body is not worth a reference."""
# In front of the block that it carries a control block says who staged it, and under which key.
_SEARCHED_BYTES = 4_096

ReadAt = Callable[[int, int], bytes]


def carried(block: Block) -> tuple[int, Header] | None:
    """Where in the body of a control block another block begins, and its head."""
    if block.header.kind is not Kind.CONTROL or block.header.codec is not Codec.NONE:
        return None
    at = block.body.find(MAGIC, 0, _SEARCHED_BYTES)
    if at < 0:
        return None
    try:
        header = parse_header(block.body[at : at + HEAD_BYTES])
    except BlockDamaged:
        return None
    is_worth_it = header.body_bytes >= BODY_BYTES_MIN
    fits = at + header.block_bytes <= len(block.body)
    return (at, header) if is_worth_it and fits else None


def referring(block: Block, position: int) -> Block:
    """The record for a block whose body stands at `position` of the file."""
    old = block.header
    body = _REFERENCE.pack(position, old.body_bytes, old.plain_bytes, old.body_checksum, old.codec)
    header = replace(
        old, codec=Codec.REFERENCE, body_bytes=len(body), plain_bytes=0, body_checksum=crc32c(body)
    )
    return Block(header=header, body=body)


def followed(record: Block, position: int, read_at: ReadAt) -> Block:
    """The whole block of a record that stands at `position`. BlockDamaged: the body is not what it was."""
    header = record.header
    if len(record.body) != _REFERENCE.size:
        raise BlockDamaged(f"the reference of block {header.index} has {len(record.body)} bytes")
    at, body_bytes, plain_bytes, checksum, codec = _REFERENCE.unpack(record.body)
    if codec not in (Codec.NONE, Codec.ZLIB) or at + body_bytes > position:
        raise BlockDamaged(f"the reference of block {header.index} does not fit")
    whole = replace(
        header, codec=Codec(codec), body_bytes=body_bytes, plain_bytes=plain_bytes, body_checksum=checksum
    )
    return attach_body(whole, read_at(at, body_bytes))
