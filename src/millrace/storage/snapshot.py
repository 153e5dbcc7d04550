"""Snapshots of a shard's state: written aside, checked piece by piece, read from any position.

A snapshot file is a head, the bytes of the state in chunks of 256 KiB, the configuration of the group, and
one checksum for each chunk. The checksum of a chunk covers the index of the snapshot and the number of the
chunk, so that a chunk in the wrong place is as bad as a changed one. A read proves every chunk it touches; a
transfer may start anywhere. The head is written last, and the file gets its name only when all is on disk.

`<index>.snap`; an open snapshot stays readable after its file was removed.
"""

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from millrace.kernels.checksum import crc32c
from millrace.limits import SNAPSHOT_CONFIG_BYTES_MAX
from millrace.storage.disk import Disk, File
from millrace.storage.files import ASIDE, FileDamaged, NewerFormat, put_in_place
from millrace.types import Index, Term

CHUNK_BYTES = 256 << 10
SUFFIX = ".snap"

_MAGIC = b"MRSN"
_VERSION = 1
# magic, version, reserved (0), shard, config bytes, index, term, state bytes, checksum of the state,
# checksum of config and table, (checksum of the head, padding)
_HEAD = struct.Struct("<4sHHIIQQQII")
_CHECKSUM = struct.Struct("<II")
_HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_CHUNK_SEED = struct.Struct("<QQ")
_NAME = re.compile(r"([0-9]{20})\.snap")


class SnapshotDamaged(FileDamaged):
    """A snapshot that does not hold what was written; the message names the file and the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """Names one snapshot: the state after `index`, whose entry has `term`."""

    index: Index
    term: Term
    config: bytes
    size_bytes: int
    checksum: int
    """CRC-32 (zlib's) over all bytes of the state."""


def _chunk_checksum(index: int, number: int, chunk: bytes) -> int:
    return crc32c(chunk, crc32c(_CHUNK_SEED.pack(index, number)))


def _chunks_in(size: int) -> int:
    return -(-size // CHUNK_BYTES)


class SnapshotWriter:
    """A snapshot that is being taken or received. `finish` or `abandon` it."""

    __slots__ = ("_buffer", "_checksum", "_disk", "_file", "_index", "_path", "_shard", "_size", "_table")

    def __init__(self, disk: Disk, path: str, *, shard: int, index: Index) -> None:
        self._disk = disk
        self._path = path
        self._shard = shard
        self._index = index
        # Made with the first write: that may wait for room, a beginning may not.
        self._file: File | None = None
        self._buffer = bytearray()
        self._table: list[bytes] = []
        self._size = 0
        self._checksum = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of state taken so far; the next `write` goes on from here."""
        return self._size

    def write(self, data: bytes) -> None:
        """More of the state. On DiskFull it is kept in memory and goes with the next call."""
        self._checksum = zlib.crc32(data, self._checksum)
        self._size += len(data)
        self._buffer += data
        self._flush(CHUNK_BYTES)

    def _flush(self, at_least: int) -> None:
        while len(self._buffer) >= at_least and self._buffer:
            chunk = bytes(self._buffer[:CHUNK_BYTES])
            position = _HEAD_BYTES + len(self._table) * CHUNK_BYTES
            self._made().write_at(position, [chunk])
            del self._buffer[:CHUNK_BYTES]
            checksum = _chunk_checksum(self._index, len(self._table), chunk)
            self._table.append(checksum.to_bytes(4, "little"))

    def _made(self) -> File:
        if self._file is None:
            self._file = self._disk.create(self._path + ASIDE)
        return self._file

    def finish(self, *, term: Term, config: bytes, checksum: int | None = None) -> SnapshotInfo:
        """Make it the snapshot of its index, durably. `checksum` is what the sender of a received one says;
        where the bytes are others, SnapshotDamaged, and nothing is left. After DiskFull it may be called
        again."""
        if checksum is not None and checksum != self._checksum:
            self.abandon()
            raise SnapshotDamaged(f"{self._path}: what was received is not what was sent")
        if len(config) > SNAPSHOT_CONFIG_BYTES_MAX:
            raise ValueError(f"a configuration of {len(config)} bytes")
        self._flush(1)
        table = b"".join(self._table)
        file = self._made()
        file.write_at(_HEAD_BYTES + self._size, [config, table])
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            0,
            self._shard,
            len(config),
            self._index,
            term,
            self._size,
            self._checksum,
            crc32c(table, crc32c(config)),
        )
        file.write_at(0, [head, _CHECKSUM.pack(crc32c(head), 0)])
        file.sync()
        file.close()
        put_in_place(self._disk, self._path)
        return SnapshotInfo(
            index=self._index, term=term, config=config, size_bytes=self._size, checksum=self._checksum
        )

    def abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._disk.remove(self._path + ASIDE)


class SnapshotFile:
    """An open snapshot. Close it when done."""

    __slots__ = ("_file", "_table", "info")

    def __init__(self, disk: Disk, path: str, *, shard: int, index: int) -> None:
        self._file = disk.open(path)
        try:
            self.info, self._table = self._read_head(shard, index)
        except BaseException:
            self._file.close()
            raise

    def _read_head(self, shard: int, index: int) -> tuple[SnapshotInfo, memoryview]:
        path = self._file.path
        data = self._file.read_at(0, _HEAD_BYTES)
        if len(data) < _HEAD_BYTES or not data.startswith(_MAGIC):
            raise SnapshotDamaged(f"{path} is damaged: its head is missing")
        if _CHECKSUM.unpack_from(data, _HEAD.size) != (crc32c(data[: _HEAD.size]), 0):
            raise SnapshotDamaged(f"{path} is damaged: the checksum of its head does not fit")
        _, version, _, found_shard, config_bytes, found_index, term, size, checksum, rest = _HEAD.unpack_from(
            data
        )
        if version > _VERSION:
            raise NewerFormat(f"{path} has version {version}; this Millrace reads up to {_VERSION}")
        if (found_shard, found_index) != (shard, index):
            raise SnapshotDamaged(f"{path} is the snapshot of another shard or index")
        table_bytes = 4 * _chunks_in(size)
        data = self._file.read_at(_HEAD_BYTES + size, config_bytes + table_bytes)
        if len(data) != config_bytes + table_bytes or crc32c(data) != rest:
            raise SnapshotDamaged(f"{path} is damaged: its configuration or table does not fit")
        info = SnapshotInfo(
            index=Index(index),
            term=Term(term),
            config=data[:config_bytes],
            size_bytes=size,
            checksum=checksum,
        )
        return info, memoryview(data[config_bytes:]).cast("I")

    def read(self, position: int, bytes_max: int) -> bytes:
        """Bytes of the state from `position`, at most so many, up to the end of a chunk; proved."""
        if not 0 <= position < self.info.size_bytes:
            return b""
        number, skip = divmod(position, CHUNK_BYTES)
        size = min(CHUNK_BYTES, self.info.size_bytes - number * CHUNK_BYTES)
        chunk = self._file.read_at(_HEAD_BYTES + number * CHUNK_BYTES, size)
        if len(chunk) != size or _chunk_checksum(self.info.index, number, chunk) != self._table[number]:
            raise SnapshotDamaged(
                f"{self._file.path} is damaged: bytes {number * CHUNK_BYTES} to "
                f"{number * CHUNK_BYTES + size} of the state do not fit"
            )
        return chunk[skip : skip + bytes_max]

    def chunks(self) -> Iterator[bytes]:
        """The whole state, piece by piece."""
        for position in range(0, self.info.size_bytes, CHUNK_BYTES):
            yield self.read(position, CHUNK_BYTES)

    def prove(self) -> None:
        """Read all of it. SnapshotDamaged where it is not what was written."""
        for _ in self.chunks():
            pass

    def close(self) -> None:
        self._file.close()


class SnapshotStore:
    """The snapshots of one shard. A snapshot is kept until a newer one is there and it is dropped."""

    __slots__ = ("_directory", "_disk", "_shard")

    def __init__(self, disk: Disk, directory: str, *, shard: int) -> None:
        self._disk = disk
        self._directory = directory
        self._shard = shard

    def _path(self, index: int) -> str:
        return f"{self._directory}/{index:020d}{SUFFIX}"

    def indexes(self) -> list[Index]:
        """Of the snapshots that are there, the newest last."""
        matches = map(_NAME.fullmatch, self._disk.names(self._directory))
        return sorted(Index(int(match[1])) for match in matches if match)

    def begin(self, index: Index) -> SnapshotWriter:
        """Take or receive the snapshot of `index`; what another writer of this index has written is lost."""
        return SnapshotWriter(self._disk, self._path(index), shard=self._shard, index=index)

    def open(self, index: Index) -> SnapshotFile:
        """Raises SnapshotDamaged or NewerFormat."""
        return SnapshotFile(self._disk, self._path(index), shard=self._shard, index=index)

    def newest(self) -> tuple[SnapshotFile | None, list[SnapshotDamaged]]:
        """The newest one that is whole, and those that were passed over. What is returned is durable: a
        crash may have come between the rename and the sync of the directory."""
        damaged: list[SnapshotDamaged] = []
        for index in reversed(self.indexes()):
            found = None
            try:
                found = self.open(index)
                found.prove()
            except SnapshotDamaged as error:
                if found is not None:
                    found.close()
                damaged.append(error)
                continue
            self._disk.sync_directory(self._directory)
            return found, damaged
        return None, damaged

    def drop_below(self, index: Index) -> None:
        """Remove the snapshots of lower indexes; those that are open stay readable."""
        for old in self.indexes():
            if old < index:
                self._disk.remove(self._path(old))
        self._disk.sync_directory(self._directory)
