"""A disk on which nothing is ever written: what is written to it stays in memory.

It lets a start be rehearsed. Whatever opens a log cuts torn tails, makes indexes again and drops leftovers on
the way; on this disk the same code does all of that and the files below stay as they are, so that what it
found and would have done can be told without doing it.
"""

from collections.abc import Sequence

from millrace.storage.disk import Disk, DiskError, File, Lock
from millrace.storage.files import directory_of


class _Content:
    """The bytes of one file that was changed here."""

    __slots__ = ("data",)

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)


class _UnwrittenFile:
    """Implements `File`. Reads what is below until it is changed, and from then on its own copy."""

    __slots__ = ("_below", "_changed", "_disk", "path")

    def __init__(self, disk: "UnwrittenDisk", path: str, below: File | None) -> None:
        self._disk = disk
        self._below = below
        self._changed = disk.changed.get(path)
        self.path = path

    def _content(self) -> _Content | None:
        # Another one may have changed the same file since this was opened.
        self._changed = self._changed or self._disk.changed.get(self.path)
        return self._changed

    def size(self) -> int:
        content = self._content()
        if content is not None:
            return len(content.data)
        assert self._below is not None
        return self._below.size()

    def read_at(self, position: int, size: int) -> bytes:
        content = self._content()
        if content is not None:
            return bytes(content.data[position : position + size])
        assert self._below is not None
        return self._below.read_at(position, size)

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        # A start puts the end of a log back as it is; a copy of that would only take memory.
        if self.read_at(position, len(data)) == data:
            return
        own = self._own().data
        own.extend(bytes(max(0, position - len(own))))
        own[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        if size != self.size():
            own = self._own().data
            del own[size:]
            own.extend(bytes(size - len(own)))

    def _own(self) -> _Content:
        content = self._content()
        if content is None:
            assert self._below is not None
            content = self._changed = _Content(self._below.read_at(0, self._below.size()))
            self._disk.changed[self.path] = content
        return content

    def sync(self) -> None:
        """There is nothing to wait for."""

    def close(self) -> None:
        if self._below is not None:
            self._below.close()


class _NoLock:
    def close(self) -> None:
        """Nothing is held: whoever looks has seen to it that no node runs."""


class UnwrittenDisk:
    """Implements `Disk` above another one, of which it only reads."""

    def __init__(self, below: Disk) -> None:
        self._below = below
        self.changed: dict[str, _Content] = {}
        """Files as they are here, where they are not as below."""
        self._removed: set[str] = set()
        self._directories: set[str] = set()

    def _is_below(self, path: str) -> bool:
        return path not in self._removed and self._below.exists(path)

    def create(self, path: str) -> File:
        self.changed[path] = _Content()
        self._removed.discard(path)
        return _UnwrittenFile(self, path, None)

    def open(self, path: str, *, writable: bool = False) -> File:
        if path in self.changed:
            return _UnwrittenFile(self, path, None)
        if path in self._removed:
            raise DiskError(f"cannot open {path}: it was removed")
        return _UnwrittenFile(self, path, self._below.open(path))

    def names(self, directory: str) -> list[str]:
        here = {path.rpartition("/")[2] for path in self.changed if directory_of(path) == directory}
        here |= {path.rpartition("/")[2] for path in self._directories if directory_of(path) == directory}
        below = (name for name in self._below.names(directory) if f"{directory}/{name}" not in self._removed)
        return sorted(here.union(below))

    def exists(self, path: str) -> bool:
        return path in self.changed or path in self._directories or self._is_below(path)

    def make_directory(self, path: str) -> None:
        if not self._is_below(path):
            self._directories.add(path)

    def rename(self, old: str, new: str) -> None:
        if old not in self.changed:
            file = self.open(old)
            self.changed[old] = _Content(file.read_at(0, file.size()))
            file.close()
        content = self.changed.pop(old)
        self._removed.add(old)
        self._removed.discard(new)
        self.changed[new] = content

    def remove(self, path: str) -> None:
        self.changed.pop(path, None)
        self._removed.add(path)

    def remove_directory(self, path: str) -> None:
        self._directories.discard(path)
        self._removed.add(path)

    def sync_directory(self, path: str) -> None:
        """There is nothing to wait for."""

    def lock(self, path: str, owner: str) -> Lock:
        return _NoLock()

    def free_bytes(self, path: str) -> int:
        return self._below.free_bytes(path)
