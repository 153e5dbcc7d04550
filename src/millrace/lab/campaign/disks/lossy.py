"""A disk that a kill of its process leaves as a loss of power leaves a real one.

The files hold what the platters hold. What a node writes stays in the memory of its process until it is
synced, so that `kill -9` drops it; a real kernel would keep it. Names that were created, renamed or removed
are so in the file system at once, beside a journal of how to undo it, which the next start of the node does
for those of which the directory was not synced.

Chance lets some of it survive, as on a real disk: of each write all, nothing, a part up to any byte, or some
sectors, each on its own, so that a later write may be there without an earlier one; of the names those up to
a point in their order. It is `lab/sim/surroundings/disk.py` for real processes.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from millrace.storage.disk import SystemDisk, SystemFile

_SECTOR_BYTES = 512


@dataclass(slots=True)
class _Change:
    """A write at a position, or a cut to a size (data is None)."""

    position: int
    data: bytes | None


@dataclass(slots=True, eq=False)
class _Inode:
    below: SystemFile
    pending: list[_Change] = field(default_factory=list)
    holders: int = 0

    def size(self) -> int:
        size = self.below.size()
        for change in self.pending:
            if change.data is None:
                size = change.position
            elif change.data:
                size = max(size, change.position + len(change.data))
        return size

    def read(self, position: int, wanted: int) -> bytes:
        """What processes see of this range: the platters, and over that what was not synced, in order."""
        if not self.pending:
            return self.below.read_at(position, wanted)
        wanted = max(0, min(wanted, self.size() - position))
        seen = bytearray(self.below.read_at(position, wanted).ljust(wanted, b"\0"))
        for change in self.pending:
            if change.data is None:
                first = min(wanted, max(0, change.position - position))
                seen[first:] = bytes(wanted - first)
                continue
            first = max(position, change.position)
            last = min(position + wanted, change.position + len(change.data))
            if first < last:
                seen[first - position : last - position] = change.data[
                    first - change.position : last - change.position
                ]
        return bytes(seen)

    def reach(self, change: _Change) -> None:
        """Carry it to the platters."""
        if change.data is None:
            self.below.truncate(change.position)
        elif change.data:
            self.below.write_at(change.position, [change.data])

    def sync(self) -> None:
        for change in self.pending:
            self.reach(change)
        self.pending.clear()


class LossyFile:
    """An open file of a `LossyDisk`."""

    __slots__ = ("_disk", "_inode", "_is_open", "path")

    def __init__(self, disk: "LossyDisk", path: str, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._is_open = True
        inode.holders += 1

    def size(self) -> int:
        with self._disk.guard:
            return self._inode.size()

    def read_at(self, position: int, size: int) -> bytes:
        with self._disk.guard:
            return self._inode.read(position, size)

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        self._disk.change(self._inode, _Change(position, b"".join(buffers)))

    def truncate(self, size: int) -> None:
        self._disk.change(self._inode, _Change(size, None))

    def sync(self) -> None:
        self._disk.wait()
        with self._disk.guard:
            self._inode.sync()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._disk.let_go(self._inode)

    def __del__(self) -> None:
        self.close()


class _Journal:
    """How to undo what was done to names whose directory was not synced, in a directory of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._file = place / "journal"
        self._rows: list[list[str]] = []
        self._made = 0

    def recover(self, rng: random.Random) -> None:
        """Undo what a loss of power undoes: everything from some point on."""
        self._place.mkdir(parents=True, exist_ok=True)
        if self._file.exists():
            rows = [json.loads(line) for line in self._file.read_text().splitlines() if line.endswith("]")]
            for row in reversed(rows[rng.randint(0, len(rows)) :]):
                self._undo(*row)
        for left in self._place.iterdir():
            left.unlink()

    def _undo(self, what: str, path: str, new: str, kept: str) -> None:
        if what == "create":
            Path(path).unlink(missing_ok=True)
        elif what == "rename" and not os.path.exists(path):
            with suppress(FileNotFoundError):
                os.rename(new, path)
        if kept and os.path.exists(kept):
            os.rename(kept, new or path)

    def aside(self) -> str:
        """Where to keep a file that may come back."""
        self._made += 1
        return str(self._place / str(self._made))

    def note(self, what: str, path: str, new: str = "", kept: str = "") -> None:
        """Before it is done: a kill may come in between, and undoing what was not done does nothing."""
        row = [what, path, new, kept]
        self._rows.append(row)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def forget(self, directory: str) -> None:
        """The names of this directory are as durable as they will ever be."""
        left: list[list[str]] = []
        gone: list[list[str]] = []
        for row in self._rows:
            (gone if os.path.dirname(row[1]) == directory else left).append(row)
        if not gone:
            return
        self._rows = left
        new = self._place / "journal.new"
        new.write_text("".join(json.dumps(row) + "\n" for row in left))
        new.replace(self._file)
        for *_, kept in gone:
            if kept:
                Path(kept).unlink(missing_ok=True)


class LossyDisk(SystemDisk):
    """See the module. Used by all threads of one process; `place` is for what may come back, and `wait` is
    called before each sync."""

    def __init__(self, rng: random.Random, place: Path, wait: Callable[[], None] = lambda: None) -> None:
        self._rng = rng
        self.wait = wait
        self.guard = RLock()
        self._inodes: dict[tuple[int, int], _Inode] = {}
        self._journal = _Journal(place)
        self._journal.recover(rng)

    # ---------------------------------------------------------------------------------- content

    def change(self, inode: _Inode, change: _Change) -> None:
        with self.guard:
            inode.pending.append(change)
            for part in self._survivors(change):
                inode.reach(part)

    def _survivors(self, change: _Change) -> list[_Change]:
        """What of a change reaches the platters although nobody asks for it."""
        fate = self._rng.randrange(4)
        if fate == 0 or change.data is None:
            # A cut always waits: bytes that it takes may be wanted under a change that comes before it.
            return []
        if fate == 1:
            return [change]
        if fate == 2:
            return [_Change(change.position, change.data[: self._rng.randint(0, len(change.data))])]
        sectors = range(0, len(change.data), _SECTOR_BYTES)
        return [
            _Change(change.position + at, change.data[at : at + _SECTOR_BYTES])
            for at in sectors
            if self._rng.random() < 0.5
        ]

    def _held(self, path: str, below: SystemFile) -> LossyFile:
        """One inode for all who open the same file."""
        status = os.fstat(below._descriptor)
        key = (status.st_dev, status.st_ino)
        inode = self._inodes.get(key)
        if inode is None:
            inode = self._inodes[key] = _Inode(below)
        elif inode.below is not below:
            below.close()
        return LossyFile(self, path, inode)

    def let_go(self, inode: _Inode) -> None:
        """Close what nobody holds, unless it has bytes that are only here."""
        with self.guard:
            inode.holders -= 1
            status = os.fstat(inode.below._descriptor)
            if inode.holders or (inode.pending and status.st_nlink):
                return
            del self._inodes[status.st_dev, status.st_ino]
            inode.below.close()

    def create(self, path: str) -> LossyFile:  # type: ignore[override]
        with self.guard:
            is_new = not os.path.exists(path)
            if is_new:
                self._journal.note("create", path)
            file = self._held(path, SystemFile(path, os.O_RDWR | os.O_CREAT))
            if not is_new:
                file.truncate(0)
            return file

    def open(self, path: str, *, writable: bool = False) -> LossyFile:  # type: ignore[override]
        with self.guard:
            return self._held(path, SystemFile(path, os.O_RDWR))

    # ------------------------------------------------------------------------------------ names

    def rename(self, old: str, new: str) -> None:
        with self.guard:
            kept = ""
            if os.path.exists(new):
                kept = self._journal.aside()
                os.link(new, kept)
            self._journal.note("rename", old, new, kept)
            super().rename(old, new)

    def remove(self, path: str) -> None:
        with self.guard:
            if os.path.exists(path):
                kept = self._journal.aside()
                self._journal.note("remove", path, kept=kept)
                os.rename(path, kept)

    def remove_directory(self, path: str) -> None:
        with self.guard:
            self._journal.forget(path)
            super().remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.wait()
        with self.guard:
            self._journal.forget(path)
