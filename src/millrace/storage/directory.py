"""The data directory of a node: lock, format, identity, and one numbered directory for each shard.

    LOCK        held by flock while the node runs; its text says who
    FORMAT      format version, the node's random identity and salt
    shards/N/   the files of shard N

Shards are numbers. No name of a topic, stream or client ever becomes a path.
"""

import re

from millrace.errors import StorageError
from millrace.kernels.checksum import crc32c
from millrace.storage.disk import Disk, Lock
from millrace.storage.files import (
    FileDamaged,
    NewerFormat,
    OlderFormat,
    directory_of,
    remove_leftovers,
    replace_file,
)

FORMAT_VERSION = 2
IDENTITY_BYTES = 16
SALT_BYTES = 8
SHARD_TOP = 0xFFFF_FFFF

# What may lie here before the first start and says nothing about data: the file of users that people add, the
# secret of the cluster, and the directories of further nodes of this machine.
_OTHERS_WELCOME = frozenset(("LOCK", "users.toml", "users.toml.lock", "cluster.secret", "workers"))
_FIRST_LINE = re.compile(rb"millrace data directory, format ([0-9]{1,9})")
_SHARD_NAME = re.compile(r"0|[1-9][0-9]{0,9}")


def _format_file(identity: bytes, salt: bytes) -> bytes:
    text = f"millrace data directory, format {FORMAT_VERSION}\nidentity {identity.hex()}\nsalt {salt.hex()}\n"
    return f"{text}checksum {crc32c(text.encode()):08x}\n".encode()


class DataDirectory:
    """An open, locked data directory. Use from one thread at a time."""

    __slots__ = ("_disk", "_lock", "_path", "identity", "salt")

    def __init__(self, disk: Disk, path: str, lock: Lock, identity: bytes, salt: int) -> None:
        self._disk = disk
        self._path = path
        self._lock = lock
        self.identity = identity
        """Random, made with the directory: the voter [rule 19]."""
        self.salt = salt
        """Random, never leaves the directory: nobody can write marks of ours into a payload."""

    @classmethod
    def open(cls, disk: Disk, path: str, *, owner: str, fresh: bytes) -> "DataDirectory":
        """Lock and check the directory; make it if it is not there or empty.

        `owner` is the text that a second process is shown; `fresh` is 24 random bytes, used for a new
        directory only. Raises DirectoryLocked, NewerFormat, OlderFormat, FileDamaged or
        StorageError, each saying what to do; nothing is changed then.
        """
        if len(fresh) != IDENTITY_BYTES + SALT_BYTES:
            raise ValueError(f"{IDENTITY_BYTES + SALT_BYTES} random bytes are needed")
        disk.make_directory(path)
        lock = disk.lock(f"{path}/LOCK", owner)
        try:
            identity, salt = cls._read_format(disk, path) or cls._make(disk, path, fresh)
            # A crash may have come between making a name and syncing it.
            disk.make_directory(f"{path}/shards")
            disk.sync_directory(path)
            disk.sync_directory(f"{path}/shards")
        except BaseException:
            lock.close()
            raise
        return cls(disk, path, lock, identity, int.from_bytes(salt, "little"))

    @classmethod
    def rehearse(cls, disk: Disk, path: str) -> "DataDirectory":
        """A directory that is there, opened on a disk that keeps nothing and locks nothing. Raises as `open`
        does; StorageError where nobody ever made a data directory of it."""
        found = cls._read_format(disk, path)
        if found is None:
            raise StorageError(f"{path} has no FORMAT file: it is not a data directory of Millrace")
        identity, salt = found
        return cls(disk, path, disk.lock(f"{path}/LOCK", ""), identity, int.from_bytes(salt, "little"))

    @staticmethod
    def _make(disk: Disk, path: str, fresh: bytes) -> tuple[bytes, bytes]:
        remove_leftovers(disk, path)
        others = [name for name in disk.names(path) if name not in _OTHERS_WELCOME]
        if others:
            raise StorageError(
                f"{path} holds {others[0]!r} but no FORMAT file: it is not a data directory of Millrace; "
                "name an empty directory or restore the file"
            )
        disk.sync_directory(directory_of(path))
        identity, salt = fresh[:IDENTITY_BYTES], fresh[IDENTITY_BYTES:]
        replace_file(disk, f"{path}/FORMAT", [_format_file(identity, salt)])
        return identity, salt

    @staticmethod
    def _read_format(disk: Disk, path: str) -> tuple[bytes, bytes] | None:
        name = f"{path}/FORMAT"
        if not disk.exists(name):
            return None
        file = disk.open(name)
        try:
            data = file.read_at(0, 4096)
        finally:
            file.close()
        first = _FIRST_LINE.match(data)
        if first and int(first[1]) == 1:
            raise OlderFormat(
                f"{path} was written by Millrace 0.1 (data format 1); this version reads only format "
                f"{FORMAT_VERSION}. Start 0.1 on it, or name another --data; nothing was changed"
            )
        # The rest of the file of a later format is not ours to judge.
        if first and int(first[1]) > FORMAT_VERSION:
            raise NewerFormat(
                f"{path} has data format {int(first[1])}; this Millrace reads {FORMAT_VERSION} alone. "
                "Start the version that wrote it; nothing was changed"
            )
        lines = data.split(b"\n")
        try:
            identity = bytes.fromhex(lines[1].removeprefix(b"identity ").decode())
            salt = bytes.fromhex(lines[2].removeprefix(b"salt ").decode())
        except (IndexError, ValueError):
            identity = salt = b""
        if len(identity) != IDENTITY_BYTES or len(salt) != SALT_BYTES or data != _format_file(identity, salt):
            raise FileDamaged(
                f"{name} is damaged: restore it, or let this node join again with an empty directory"
            )
        return identity, salt

    def shards(self) -> list[int]:
        """The numbers of the shards that have a directory here."""
        names = self._disk.names(f"{self._path}/shards")
        return sorted(int(name) for name in names if _SHARD_NAME.fullmatch(name))

    def shard_path(self, shard: int) -> str:
        """The directory of a shard, made if needed."""
        path = self._shard_path(shard)
        if not self._disk.exists(path):
            self._disk.make_directory(path)
            self._disk.sync_directory(f"{self._path}/shards")
        return path

    def remove_shard(self, shard: int) -> None:
        """Drop a shard and everything in it. Close its log before; repeat after a crash, which may leave a
        part of it."""
        path = self._shard_path(shard)
        for name in self._disk.names(path):
            self._disk.remove(f"{path}/{name}")
        if self._disk.exists(path):
            self._disk.remove_directory(path)
            self._disk.sync_directory(f"{self._path}/shards")

    def _shard_path(self, shard: int) -> str:
        if not 0 <= shard <= SHARD_TOP:
            raise ValueError(f"shard {shard} is not a number of 32 bits")
        return f"{self._path}/shards/{shard}"

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self._path)

    def close(self) -> None:
        self._lock.close()
