"""Small files that are replaced whole: written aside, synced, renamed, and checked when read.

A record file is a fixed head (tag, version, length, checksum) and a payload; the tag says what kind of file
it is, so that a file under the wrong name is not taken for another. A reader therefore sees the old content
or the new one, never a mixture, and never a changed bit.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from millrace.errors import StorageError
from millrace.kernels.checksum import crc32c
from millrace.storage.disk import Disk, DiskFull
from millrace.types import Index, Term

ASIDE = ".tmp"
"""Ending of a file that is being written; one that is found at start is what a crash left."""

# tag, version, reserved (0), payload bytes, checksum over the head up to here and the payload
_HEAD = struct.Struct("<4sHHII")
_VERSION = 1
_RECORD_BYTES_MAX = 1 << 20

_HARD_STATE_TAG = b"MRHS"
# term, commit, vote bytes (NO_VOTE for none)
_HARD_STATE = struct.Struct("<QQI")
_NO_VOTE = 0xFFFF_FFFF

NO_INDEX = Index(0)
"""Before the first entry, whose index is 1."""


class FileDamaged(StorageError):
    """A file that is replaced whole does not hold what was written; the message names it."""


class NewerFormat(StorageError):
    """Written by a later version of Millrace. Nothing was changed."""


class OlderFormat(StorageError):
    """The data directory was written by a version whose format this one does not read any more."""


def directory_of(path: str) -> str:
    return path.rpartition("/")[0] or "."


def write_aside(disk: Disk, path: str, buffers: Sequence[bytes]) -> None:
    """First half of a replacement: the bytes are on disk under another name. On DiskFull nothing is left."""
    aside = path + ASIDE
    try:
        file = disk.create(aside)
        try:
            file.write_at(0, buffers)
            file.sync()
        finally:
            file.close()
    except DiskFull:
        disk.remove(aside)
        raise


def put_in_place(disk: Disk, path: str) -> None:
    """Second half: what was written aside is `path` now, durably."""
    disk.rename(path + ASIDE, path)
    disk.sync_directory(directory_of(path))


def replace_file(disk: Disk, path: str, buffers: Sequence[bytes]) -> None:
    """Make `path` hold these bytes, durably. On DiskFull the old content stays."""
    write_aside(disk, path, buffers)
    put_in_place(disk, path)


def remove_leftovers(disk: Disk, directory: str) -> None:
    """Drop what a crash left half-written aside. Nothing ever depended on it."""
    for name in disk.names(directory):
        if name.endswith(ASIDE):
            disk.remove(f"{directory}/{name}")


def write_record(
    disk: Disk, path: str, tag: bytes, payload: bytes, bytes_max: int = _RECORD_BYTES_MAX
) -> None:
    """Replace a record file; `tag` is four bytes that name its kind."""
    if len(payload) > bytes_max:
        raise StorageError(f"{path}: {len(payload)} bytes are too many for a small file")
    head = _HEAD.pack(tag, _VERSION, 0, len(payload), 0)[:-4]
    checksum = crc32c(payload, crc32c(head))
    replace_file(disk, path, [head, checksum.to_bytes(4, "little"), payload])


def read_record(disk: Disk, path: str, tag: bytes, bytes_max: int = _RECORD_BYTES_MAX) -> bytes | None:
    """The payload; None if there is no such file. FileDamaged if it is not what was written."""
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        data = file.read_at(0, min(file.size(), _HEAD.size + bytes_max + 1))
    finally:
        file.close()
    if len(data) < _HEAD.size:
        raise FileDamaged(f"{path} is damaged: {len(data)} bytes are too few")
    found, version, _, size, checksum = _HEAD.unpack_from(data)
    payload = data[_HEAD.size :]
    if found != tag or size != len(payload):
        raise FileDamaged(f"{path} is damaged: its head does not fit")
    if crc32c(payload, crc32c(data[: _HEAD.size - 4])) != checksum:
        raise FileDamaged(f"{path} is damaged: its checksum does not fit")
    if version > _VERSION:
        raise NewerFormat(f"{path} has version {version}; this Millrace reads up to {_VERSION}")
    return payload


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a replica must not forget: on disk before any message that depends on it leaves."""

    term: Term
    vote: str | None = None
    commit: Index = NO_INDEX
    """A lower bound of what is committed; a hint that saves work after a restart."""


def write_hard_state(disk: Disk, path: str, state: HardState) -> None:
    vote = b"" if state.vote is None else state.vote.encode()
    size = _NO_VOTE if state.vote is None else len(vote)
    write_record(disk, path, _HARD_STATE_TAG, _HARD_STATE.pack(state.term, state.commit, size) + vote)


def read_hard_state(disk: Disk, path: str) -> HardState | None:
    """None for a new replica. What is returned is durable: a crash may have come between the rename and the
    sync of the directory, and the caller will act on it."""
    payload = read_record(disk, path, _HARD_STATE_TAG)
    if payload is None:
        return None
    disk.sync_directory(directory_of(path))
    term, commit, size = _HARD_STATE.unpack_from(payload)
    vote = None if size == _NO_VOTE else payload[_HARD_STATE.size :].decode()
    return HardState(term=Term(term), vote=vote, commit=Index(commit))
