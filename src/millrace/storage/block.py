"""The block: the unit that is replicated, stored and handed to readers.

`docs/understand/format.md` draws the bytes.

A block is a head of 96 bytes and a body. The head has its own checksum and holds the checksum of the body, so
the leader stamps shard, term, index, offset and time into a new head and the body is never touched or copied.
A block therefore is the pair (header, body): both parts go to the disk and to peers side by side.

The body of a data block has a plain part (topic dictionary) and a coded part (columns and packets); only the
coded part is ever compressed. Control, no-op and config blocks carry opaque bytes as their coded part. Bodies
are padded to 8 bytes, so that blocks in a segment and columns in a block stay aligned.

Entries of a replication log ARE blocks: kind, term and index stand in the head. `previous_term` is the term
of the entry before, so that a reader of a log sees at once whether two neighbours belong together.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from millrace.errors import StorageError
from millrace.kernels.blocks import Columns, Run, is_plain, make_body, read_topics, split_columns
from millrace.kernels.checksum import crc32c
from millrace.limits import BLOCK_BODY_BYTES_MAX, BLOCK_MESSAGES_MAX
from millrace.storage.files import NewerFormat

MAGIC = b"MRBK"
VERSION = 1
# magic, version, kind, codec, body bytes, plain bytes, raw bytes, count, topics, shard,
# term, index, previous term, base offset, base time, origin, sequence, body checksum, (head checksum)
_HEAD = struct.Struct("<4sHBBIIIIIIQQQQqQQI")
_CHECKSUM = struct.Struct("<I")
# base time, origin, sequence, body checksum: the end of the head but for its own checksum
_OWN = struct.Struct("<qQQI")
_OWN_AT = _HEAD.size - _OWN.size
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
assert HEAD_BYTES == 96

BLOCK_BYTES_AIM = 1 << 20
"""A block is closed before it passes this, unless one message alone is larger."""

_ZLIB_LEVEL = 1
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class BlockDamaged(StorageError):
    """These bytes are not a block, or not the one that was written."""


class Kind(IntEnum):
    DATA = 0
    CONTROL = 1
    NOOP = 2
    CONFIG = 3


class Codec(IntEnum):
    NONE = 0
    ZLIB = 1
    REFERENCE = 2
    """In a segment file alone: `storage/reference.py`."""


# A look into a dict takes a fifth of the time of `Kind(number)`.
_KINDS = {int(kind): kind for kind in Kind}
_CODECS = {int(codec): codec for codec in Codec}


# Not frozen, though nobody changes one: several are made for every block that is logged, and a frozen one
# takes three times as long to make.
@dataclass(slots=True, kw_only=True)
class Header:
    """The fields of a head. From `shard` to `base_time_us` they are what the leader stamps, 0 before."""

    kind: Kind
    codec: Codec
    body_bytes: int
    """Stored, padding included."""
    plain_bytes: int
    raw_bytes: int
    """The coded part before compression."""
    count: int
    topics: int
    body_checksum: int
    shard: int = 0
    term: int = 0
    index: int = 0
    previous_term: int = 0
    base_offset: int = 0
    """Offset of the first message; of a block without messages: the next one to come."""
    base_time_us: int = 0
    origin: int = 0
    """Which run of which node made this block, and its place among the blocks that this origin made for the
    shard: a leader takes each once and in order [rule 2]. Both are 0 where nobody asks."""
    sequence: int = 0

    @property
    def block_bytes(self) -> int:
        return HEAD_BYTES + self.body_bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    def to_bytes(self) -> bytes:
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.codec,
            self.body_bytes,
            self.plain_bytes,
            self.raw_bytes,
            self.count,
            self.topics,
            self.shard,
            self.term,
            self.index,
            self.previous_term,
            self.base_offset,
            self.base_time_us,
            self.origin,
            self.sequence,
            self.body_checksum,
        )
        return head + _CHECKSUM.pack(crc32c(head))


def parse_header(data: bytes, position: int = 0, *, is_record: bool = False) -> Header:
    """The head at `position`. BlockDamaged if it is not one, NewerFormat if a later version wrote it.
    `is_record`: it stands in a segment file, where it may be the head of a reference."""
    if len(data) - position < HEAD_BYTES:
        raise BlockDamaged(f"{len(data) - position} bytes are too few for a block")
    fields = _HEAD.unpack_from(data, position)
    if fields[0] != MAGIC:
        raise BlockDamaged("no block starts here")
    end = position + _HEAD.size
    if crc32c(data[position:end]) != _CHECKSUM.unpack_from(data, end)[0]:
        raise BlockDamaged("the checksum of the head does not fit")
    if fields[1] > VERSION:
        raise NewerFormat(f"a block has version {fields[1]}; this Millrace reads up to {VERSION}")
    kind, codec = _KINDS.get(fields[2]), _CODECS.get(fields[3])
    if kind is None or codec is None:
        raise NewerFormat(f"a block has an unknown kind or codec: {fields[2]}, {fields[3]}")
    if codec is Codec.REFERENCE and not is_record:
        raise BlockDamaged("a reference outside of a segment")
    if fields[4] > BLOCK_BODY_BYTES_MAX or fields[5] > fields[4] or fields[6] > BLOCK_BODY_BYTES_MAX:
        raise BlockDamaged("the lengths in the head do not fit")
    return Header(
        kind=kind,
        codec=codec,
        body_bytes=fields[4],
        plain_bytes=fields[5],
        raw_bytes=fields[6],
        count=fields[7],
        topics=fields[8],
        shard=fields[9],
        term=fields[10],
        index=fields[11],
        previous_term=fields[12],
        base_offset=fields[13],
        base_time_us=fields[14],
        origin=fields[15],
        sequence=fields[16],
        body_checksum=fields[17],
    )


_Place = tuple[int, int, int, int, int]
"""In a log: shard, term, index, previous term, offset of the first message."""
_NOWHERE: _Place = (0, 0, 0, 0, 0)


@dataclass(slots=True, kw_only=True)
class Block:
    """A header and the body it describes. Made by this module; the body was checked or built here."""

    header: Header
    body: bytes

    def stamped(
        self,
        *,
        shard: int,
        term: int,
        index: int,
        previous_term: int,
        base_offset: int,
        base_time_us: int,
    ) -> "Block":
        """The same body under a head with these fields."""
        place = (shard, term, index, previous_term, base_offset)
        return self._under(place, base_time_us, self.header.origin, self.header.sequence)

    def timed(self, time_us: int) -> "Block":
        """The same block as of this time, without a place in a log."""
        return self._under(_NOWHERE, time_us, self.header.origin, self.header.sequence)

    def offered(self, *, origin: int, sequence: int) -> "Block":
        """The same block as the one with this number that an origin made."""
        return self._under(_NOWHERE, self.header.base_time_us, origin, sequence)

    def _under(self, place: _Place, base_time_us: int, origin: int, sequence: int) -> "Block":
        old = self.header
        shard, term, index, previous_term, base_offset = place
        # Written out: once for every block that is logged, and half the time of `replace`.
        header = Header(
            kind=old.kind,
            codec=old.codec,
            body_bytes=old.body_bytes,
            plain_bytes=old.plain_bytes,
            raw_bytes=old.raw_bytes,
            count=old.count,
            topics=old.topics,
            body_checksum=old.body_checksum,
            shard=shard,
            term=term,
            index=index,
            previous_term=previous_term,
            base_offset=base_offset,
            base_time_us=base_time_us,
            origin=origin,
            sequence=sequence,
        )
        return Block(header=header, body=self.body)

    def buffers(self) -> tuple[bytes, bytes]:
        """Head and body, to be written one after the other."""
        return self.header.to_bytes(), self.body

    def to_bytes(self) -> bytes:
        return b"".join(self.buffers())

    def payload(self) -> bytes:
        """The coded part as it was before compression: of a block that is not data, its opaque bytes."""
        header = self.header
        stored = self.body[header.plain_bytes :]
        if header.codec is Codec.NONE:
            return stored[: header.raw_bytes]
        inflate = zlib.decompressobj()
        try:
            # One byte more than promised is enough to know that the promise is false.
            raw = inflate.decompress(stored, header.raw_bytes + 1)
        except zlib.error as error:
            raise BlockDamaged(f"the body of block {header.index} cannot be expanded: {error}") from None
        if len(raw) != header.raw_bytes:
            raise BlockDamaged(f"the body of block {header.index} expands to another length")
        return raw

    def _coded(self) -> bytes | memoryview:
        """As `payload`, without a copy where it is stored as it was."""
        header = self.header
        if header.codec is not Codec.NONE:
            return self.payload()
        return memoryview(self.body)[header.plain_bytes : header.plain_bytes + header.raw_bytes]

    def dictionary(self) -> bytes:
        """The plain part. Equal dictionaries are equal bytes apart from the first 24."""
        return self.body[: self.header.plain_bytes]

    def topics(self) -> tuple[bytes, ...]:
        """The topics of a data block without a look at the rest; none for another kind."""
        if self.header.kind is not Kind.DATA:
            return ()
        try:
            return read_topics(self.dictionary(), self.header.topics)
        except ValueError as error:
            raise BlockDamaged(f"the body of block {self.header.index} does not fit: {error}") from None

    def is_plain(self) -> bool:
        """Whether it is known, without a look at each message, that none has a key or is retained."""
        header = self.header
        return header.codec is Codec.NONE and is_plain(self.body, header.plain_bytes, header.count)

    def columns(self) -> Columns:
        """The messages of a data block as columns."""
        if self.header.kind is not Kind.DATA:
            raise ValueError(f"a {self.header.kind.name} block has no columns")
        try:
            return split_columns(self.dictionary(), self._coded(), self.header.count)
        except ValueError as error:
            raise BlockDamaged(f"the body of block {self.header.index} does not fit: {error}") from None


def mark_of(data: bytes) -> tuple[int, int, int, int]:
    """Base time, origin, sequence and the checksum of the body in the head of a block that was proved or made
    here."""
    found: tuple[int, int, int, int] = _OWN.unpack_from(data, _OWN_AT)
    return found


def parse_block(data: bytes, position: int = 0) -> Block:
    """The whole block at `position`, both checksums proved. BlockDamaged or NewerFormat otherwise."""
    header = parse_header(data, position)
    return attach_body(header, data[position + HEAD_BYTES : position + header.block_bytes])


def attach_body(header: Header, body: bytes) -> Block:
    """A block from its parts, the body checked against the head."""
    check_body(header, body)
    return Block(header=header, body=body)


def check_body(header: Header, body: bytes) -> None:
    """BlockDamaged unless this is the body that the head describes."""
    if len(body) != header.body_bytes:
        raise BlockDamaged(f"{len(body)} bytes of body instead of {header.body_bytes}")
    if crc32c(body) != header.body_checksum:
        raise BlockDamaged(f"the checksum of the body of block {header.index} does not fit")


def _compressed(plain: bytes, raw: bytes | memoryview) -> bytes | None:
    """A body whose coded part is compressed; None where that does not shrink, so that no reader pays for
    nothing."""
    pressed = zlib.compress(raw, _ZLIB_LEVEL)
    if len(pressed) >= len(raw):
        return None
    return b"".join((plain, pressed, _PADDING[(len(plain) + len(pressed)) & 7]))


def _make(
    kind: Kind,
    codec: Codec,
    body: bytes,
    plain_bytes: int,
    raw_bytes: int,
    count: int = 0,
    topics: int = 0,
    base_time_us: int = 0,
) -> Block:
    """A block of this body, whose coded part is as it was before compression."""
    if codec is Codec.ZLIB:
        raw = memoryview(body)[plain_bytes : plain_bytes + raw_bytes]
        pressed = _compressed(body[:plain_bytes], raw)
        if pressed is None:
            codec = Codec.NONE
        else:
            body = pressed
    if len(body) > BLOCK_BODY_BYTES_MAX:
        raise ValueError(f"a body of {len(body)} bytes is larger than {BLOCK_BODY_BYTES_MAX}")
    header = Header(
        kind=kind,
        codec=codec,
        body_bytes=len(body),
        plain_bytes=plain_bytes,
        raw_bytes=raw_bytes,
        count=count,
        topics=topics,
        body_checksum=crc32c(body),
        base_time_us=base_time_us,
    )
    return Block(header=header, body=body)


def data_blocks(runs: Sequence[Run], codec: Codec = Codec.NONE, base_time_us: int = 0) -> list[Block]:
    """The messages of these runs in order, not stamped yet, in as many blocks as the bounds ask for."""
    body, plain_bytes, raw_bytes, count, topics = make_body(runs)
    if not count:
        raise ValueError("a data block needs a message")
    size = HEAD_BYTES + plain_bytes + raw_bytes
    if count == 1 or (count <= BLOCK_MESSAGES_MAX and size <= BLOCK_BYTES_AIM):
        return [_make(Kind.DATA, codec, body, plain_bytes, raw_bytes, count, topics, base_time_us)]
    # Rare: a chunk of very small packets, or large ones that came together. Each half pays again.
    if len(runs) > 1:
        middle = len(runs) // 2
        return data_blocks(runs[:middle], codec, base_time_us) + data_blocks(
            runs[middle:], codec, base_time_us
        )
    run, row = runs[0], count // 2
    coded = body[plain_bytes : plain_bytes + raw_bytes]
    cut = split_columns(body[:plain_bytes], coded, count).packet_positions[row]
    left = run._replace(packets=run.packets[:cut], sequences=run.sequences[:row])
    right = run._replace(packets=run.packets[cut:], sequences=run.sequences[row:])
    return data_blocks([left], codec, base_time_us) + data_blocks([right], codec, base_time_us)


def keyed_block(runs: Sequence[Run], key: bytes, codec: Codec = Codec.NONE) -> Block:
    """The messages of these runs as one block under a key. ValueError where they are too many for one."""
    body, plain_bytes, raw_bytes, count, topics = make_body(runs, key)
    size = HEAD_BYTES + plain_bytes + raw_bytes
    if not count or (count > 1 and (count > BLOCK_MESSAGES_MAX or size > BLOCK_BYTES_AIM)):
        raise ValueError(
            f"{count} messages in {size} bytes: a block has 1 to {BLOCK_MESSAGES_MAX} in {BLOCK_BYTES_AIM}"
        )
    return _make(Kind.DATA, codec, body, plain_bytes, raw_bytes, count, topics)


def opaque_block(kind: Kind, payload: bytes | Sequence[bytes] = b"", codec: Codec = Codec.NONE) -> Block:
    """A control, no-op or config block, not stamped yet; the payload whole or in pieces."""
    if kind is Kind.DATA:
        raise ValueError("a data block is made of messages")
    raw = payload if isinstance(payload, bytes) else b"".join(payload)
    padding = _PADDING[len(raw) & 7]
    return _make(kind, codec, raw + padding if padding else raw, 0, len(raw))
