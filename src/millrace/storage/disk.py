"""The only file calls of the product, and the interface that a simulated disk implements as well.

A `Disk` names files by path and a `File` reads and writes at positions. Nothing here knows what the bytes
mean. Three rules that callers rely on:

- What was written is on the disk only after `File.sync`; that a name exists (created, renamed, removed) only
  after `Disk.sync_directory`.
- `write_at` writes everything or raises. After an error some of the bytes may be in the file; `DiskFull`
  means that the caller may cut them off and go on, `DiskError` that nothing is known.
- A file for which there is no descriptor is not opened or created: that is `DiskFull` as well. `names` and
  `sync_directory`, of which callers expect no such thing, have a descriptor of their own.
- A failed sync raises `FsyncFailed` and must never be repeated: the kernel may have dropped the dirty pages
  and the next call would answer that all is well.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from millrace.errors import StorageError

_BUFFERS_MAX = 512  # below the system's IOV_MAX of 1024
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EDQUOT, *_NO_DESCRIPTOR)
# A descriptor that is given up where there is no other; of the whole process.
_spare: list[int] = []

_Result = TypeVar("_Result")


class DiskError(StorageError):
    """A file call failed; the message names the call and the file."""


class DiskFull(StorageError):
    """No space left, or no descriptor; what was asked for did not happen, and may be asked for again when
    there is some."""


class FsyncFailed(StorageError):
    """Bytes that were written may be lost although a later sync would succeed. Never retried: stop."""


class DirectoryLocked(StorageError):
    """Another process holds the data directory."""


class File(Protocol):
    """An open file. Reads may run in several threads at once, beside one writer."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes:
        """`size` bytes, fewer only where the file ends."""

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        """All buffers, end to end, or an error."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return once the content and the size are on the disk."""

    def close(self) -> None: ...


class Lock(Protocol):
    """Held until closed, or until the process dies."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Everything storage asks of a file system."""

    def create(self, path: str) -> File:
        """An empty file to write, in place of any that was there."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """A file that exists."""

    def names(self, directory: str) -> list[str]:
        """Sorted; empty if there is no such directory."""

    def exists(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """One level; no error if it is there."""

    def rename(self, old: str, new: str) -> None:
        """Within one directory, in place of any file of that name."""

    def remove(self, path: str) -> None:
        """A file; no error if it is gone."""

    def remove_directory(self, path: str) -> None:
        """Must be empty."""

    def sync_directory(self, path: str) -> None: ...

    def lock(self, path: str, owner: str) -> Lock:
        """Raises DirectoryLocked with the text of the present owner."""

    def free_bytes(self, path: str) -> int: ...


def _error(error: OSError, action: str, path: str) -> StorageError:
    kind = DiskFull if error.errno in _FULL else DiskError
    return kind(f"cannot {action} {path}: {error.strerror or error}")


def _with_spare(call: Callable[[], _Result]) -> _Result:
    """A call that needs a descriptor until it returns: the spare one where there is no other."""
    try:
        return call()
    except OSError as error:
        if error.errno not in _NO_DESCRIPTOR:
            raise
        try:
            os.close(_spare.pop())
        except IndexError:
            # Another thread has it.
            raise error from None
        return call()
    finally:
        if not _spare:
            with suppress(OSError):
                _spare.append(os.open("/", os.O_RDONLY | os.O_CLOEXEC))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SystemFile:
    """A file of the operating system. One that nobody holds any more is closed."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, flags: int) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise _error(error, "open", path) from error

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise _error(error, "measure", self.path) from error

    def read_at(self, position: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, position)
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _error(error, "read", self.path) from error
        return data

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        try:
            for start in range(0, len(buffers), _BUFFERS_MAX):
                chunk = buffers[start : start + _BUFFERS_MAX]
                wanted = sum(map(len, chunk))
                done = os.pwritev(self._descriptor, chunk, position)
                rest = b"" if done == wanted else b"".join(chunk)
                while done < wanted:
                    # A short write is how a file system says that the rest will not fit, or how a signal
                    # interrupts; asking again tells which.
                    written = os.pwrite(self._descriptor, rest[done:], position + done)
                    if not written:
                        raise OSError(errno.EIO, "wrote nothing")
                    done += written
                position += wanted
        except OSError as error:
            raise _error(error, "write", self.path) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise _error(error, "cut", self.path) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise FsyncFailed(f"cannot sync {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class _SystemLock(SystemFile):
    __slots__ = ()

    def __del__(self) -> None:
        """Held until it is closed."""


class SystemDisk:
    """The file system of the operating system."""

    def create(self, path: str) -> SystemFile:
        return SystemFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str, *, writable: bool = False) -> SystemFile:
        return SystemFile(path, os.O_RDWR if writable else os.O_RDONLY)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(_with_spare(lambda: os.listdir(directory)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _error(error, "list", directory) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            if not os.path.isdir(path):
                raise DiskError(f"cannot make directory {path}: a file has that name") from None
        except OSError as error:
            raise _error(error, "make directory", path) from error

    def rename(self, old: str, new: str) -> None:
        try:
            os.replace(old, new)
        except OSError as error:
            raise _error(error, f"rename {old} to", new) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _error(error, "remove", path) from error

    def remove_directory(self, path: str) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            raise _error(error, "remove directory", path) from error

    def sync_directory(self, path: str) -> None:
        try:
            _with_spare(lambda: _sync_directory(path))
        except OSError as error:
            raise FsyncFailed(f"cannot sync directory {path}: {error.strerror or error}") from error

    def lock(self, path: str, owner: str) -> Lock:
        file = _SystemLock(path, os.O_RDWR | os.O_CREAT)
        descriptor = file._descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = file.read_at(0, 200).decode(errors="replace").strip()
            file.close()
            if isinstance(error, BlockingIOError):
                raise DirectoryLocked(f"{path} is held by {holder or 'another process'}") from None
            raise _error(error, "lock", path) from error
        with suppress(DiskFull):
            # The text is for people: the lock is held without it.
            file.truncate(0)
            file.write_at(0, [owner.encode()])
        return file

    def lock_unwritten(self, path: str) -> Lock | None:
        """Keep others from locking this, without a byte written; None where there is no such file. Raises
        DirectoryLocked with the text of the present owner."""
        if not os.path.exists(path):
            return None
        file = _SystemLock(path, os.O_RDONLY)
        try:
            fcntl.flock(file._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            holder = file.read_at(0, 200).decode(errors="replace").strip()
            file.close()
            if isinstance(error, BlockingIOError):
                raise DirectoryLocked(f"{path} is held by {holder or 'another process'}") from None
            raise _error(error, "lock", path) from error
        return file

    def free_bytes(self, path: str) -> int:
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise _error(error, "measure", path) from error
        return status.f_bavail * status.f_frsize
