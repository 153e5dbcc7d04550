"""What stands in a segment file: blocks and marks, and how each follows the one before.

A segment is blocks end to end, and between them *marks*. The first record of every segment is a mark. A mark
says: everything before me in this file was synced before I was written, and the log then ended like this.
The log writes one at the head of each append that follows a sync, so each group commit begins with a mark.

That is what tells a torn tail from damage. When bytes cannot be read and a later mark can, they were on disk
once: damage. When no mark follows, they are of the last group commit, which a crash may leave in any state,
even with a later page written and an earlier one not: a torn tail, to be cut.

A mark holds its own position and the salt of the data directory, so that neither a stray write nor a payload
made to look like one is taken for a mark.
"""

import struct
from typing import NamedTuple

from millrace.kernels.checksum import crc32c
from millrace.storage.block import Header

MARK_MAGIC = b"MRSY"
# magic, flags, shard, reserved (0), position, salt, next index, last term, next offset, (checksum, padding)
_MARK = struct.Struct("<4sIIIQQQQQ")
_CHECKSUM = struct.Struct("<II")
MARK_BYTES = _MARK.size + _CHECKSUM.size
assert MARK_BYTES == 64

_FLAG_START = 1

UNKNOWN = 0xFFFF_FFFF_FFFF_FFFF
"""A term or offset that damage has hidden: whatever the next block says is taken."""


class Tail(NamedTuple):
    """How a log ends: what the next block must follow."""

    next_index: int
    last_term: int
    next_offset: int

    def is_followed_by(self, header: Header) -> bool:
        return (
            header.index == self.next_index
            and (header.previous_term == self.last_term or self.last_term == UNKNOWN)
            and (header.base_offset == self.next_offset or self.next_offset == UNKNOWN)
            and header.term >= header.previous_term
        )

    @property
    def is_known(self) -> bool:
        return UNKNOWN not in (self.last_term, self.next_offset)


EMPTY = Tail(next_index=1, last_term=0, next_offset=0)
"""The tail of a new log."""


def tail_before(header: Header) -> Tail:
    return Tail(next_index=header.index, last_term=header.previous_term, next_offset=header.base_offset)


def tail_after(header: Header) -> Tail:
    return Tail(header.index + 1, header.term, header.base_offset + header.count)


class Mark(NamedTuple):
    """Everything before `position` is synced; `tail` is how the log ends there."""

    shard: int
    salt: int
    position: int
    tail: Tail
    is_start: bool = False
    """The log begins here: segments of lower index are leftovers of what this one replaced."""

    def to_bytes(self) -> bytes:
        data = _MARK.pack(
            MARK_MAGIC,
            _FLAG_START if self.is_start else 0,
            self.shard,
            0,
            self.position,
            self.salt,
            self.tail.next_index,
            self.tail.last_term,
            self.tail.next_offset,
        )
        return data + _CHECKSUM.pack(crc32c(data), 0)


def parse_mark(data: bytes, *, shard: int, salt: int, position: int) -> Mark | None:
    """The mark in these bytes if it is one that this log wrote at this position."""
    if len(data) != MARK_BYTES or not data.startswith(MARK_MAGIC):
        return None
    _, flags, found_shard, _, found_position, found_salt, *tail = _MARK.unpack_from(data)
    if _CHECKSUM.unpack_from(data, _MARK.size) != (crc32c(data[: _MARK.size]), 0):
        return None
    if (found_shard, found_position, found_salt) != (shard, position, salt):
        return None
    return Mark(
        shard=shard,
        salt=salt,
        position=position,
        tail=Tail(next_index=tail[0], last_term=tail[1], next_offset=tail[2]),
        is_start=bool(flags & _FLAG_START),
    )
