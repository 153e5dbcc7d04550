"""A disk in memory that can fail in every way a real one does; the same interface as `storage.disk`.

Each file has two contents: what the processes see, and what the platters hold. A write changes the first and
is remembered; a sync carries it over to the second. Names work the same way: creating, renaming and removing
are seen at once and durable after the directory was synced.

- `cut_power` forgets what the processes saw. Of each write that was not synced the rng keeps all, nothing, a
  part up to any byte, or some sectors, each on its own, so that a later write may survive an earlier one;
  names are kept up to a point in their order, as a journal does. `keep` and `tear_bytes` fix the choice for
  exhaustive tests.
- `kill` is the end of a process only: everything seen stays, nothing more becomes durable.
- `fail_next_sync`: the sync raises, the pages count as clean afterwards, and the next sync says that all is
  well although they never reach the platters; the reason why a sync is never retried.
- `misdirect_next_write`: the bytes land somewhere else and the call succeeds.
- `flip_bit`, `capacity_bytes` (a full disk), `stall`.
- `cut_power_at`: power fails at the n-th call that changes something, before it or halfway through a write.

Everything follows from the calls and the seeded rng; there is no clock. A call adds its time to `delay_s`,
and whoever drives the simulation takes it from there.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from millrace.storage.disk import DirectoryLocked, DiskError, DiskFull, FsyncFailed

_SYNC_S = 0.000_2
_CALL_S = 0.000_005
_SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine is off: no code of the product runs on, so none may catch this."""


class Keep(Enum):
    """What a power cut leaves of the changes that were not synced."""

    NOTHING = "nothing"
    ALL = "all"
    SOME = "some"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Chance of each fault at each call that could have it."""

    sync_error: float = 0.0
    misdirected_write: float = 0.0
    stall: float = 0.0
    stall_s_max: float = 5.0


NO_FAULTS = FaultRates()


@dataclass(slots=True)
class _Change:
    """A write at a position, or a cut to a size (data is None)."""

    position: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            if self.position < len(content):
                del content[self.position :]
            else:
                content.extend(bytes(self.position - len(content)))
            return
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data


@dataclass(slots=True, eq=False)
class _Inode:
    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)
    last_change: int = 0

    def change(self, change: _Change, number: int) -> None:
        change.apply(self.seen)
        self.pending.append(change)
        self.last_change = number

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()


# A directory is None in a table of names.
_Names = dict[str, _Inode | None]


@dataclass(frozen=True, slots=True)
class _Rename:
    """In `directory` the name `old` goes and `new` comes; one of the two may be empty."""

    directory: str
    old: str
    new: str
    inode: _Inode | None

    def apply(self, names: _Names) -> None:
        if self.old:
            names.pop(self.old, None)
        if self.new:
            names[self.new] = self.inode


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class SimFile:
    """An open file of a `SimDisk`; dead after a power cut or the end of its process."""

    __slots__ = ("_boot", "_disk", "_inode", "_writable", "path")

    def __init__(self, disk: "SimDisk", path: str, inode: _Inode, writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._writable = writable
        self._boot = disk.boot

    def _alive(self, *, write: bool = False) -> _Inode:
        if self._boot != self._disk.boot:
            raise DiskError(f"{self.path} was opened before the power cut")
        if write and not self._writable:
            raise DiskError(f"{self.path} is open for reading only")
        return self._inode

    def size(self) -> int:
        return len(self._alive().seen)

    def read_at(self, position: int, size: int) -> bytes:
        self._disk.delay_s += _CALL_S
        return bytes(self._alive().seen[position : position + size])

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        self._disk._write(self._alive(write=True), self.path, position, b"".join(buffers))

    def truncate(self, size: int) -> None:
        inode = self._alive(write=True)
        self._disk._step()
        inode.change(_Change(size, None), self._disk.changes)

    def sync(self) -> None:
        self._disk._sync(self._alive(), self.path)

    def close(self) -> None:
        pass


class _SimLock:
    __slots__ = ("_disk", "_path")

    def __init__(self, disk: "SimDisk", path: str) -> None:
        self._disk = disk
        self._path = path

    def close(self) -> None:
        self._disk.locks.pop(self._path, None)


class SimDisk:
    """See the module. The root directory is the empty path."""

    def __init__(
        self,
        rng: random.Random,
        *,
        capacity_bytes: int | None = None,
        rates: FaultRates = NO_FAULTS,
    ) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.rates = rates
        self.delay_s = 0.0
        """Time that the calls so far have taken; the driver takes it and sets it back."""
        self.changes = 0
        """Calls so far that changed something."""
        self.boot = 0
        self.locks: dict[str, str] = {}
        self._seen: _Names = {"": None}
        self._durable: _Names = {"": None}
        self._pending: list[_Rename] = []
        self._cut_at: int | None = None
        self._sync_failures = 0
        self._misdirections = 0

    # -------------------------------------------------------------------------------- fault control

    def cut_power_at(self, change: int | None) -> None:
        """Raise PowerCut at the call number `change`, counted from the first call of this disk."""
        self._cut_at = change

    def cut_power(self, keep: Keep = Keep.SOME, tear_bytes: int | None = None) -> None:
        """Lose what was not synced. With `tear_bytes` all is kept, but of the last write so many bytes."""
        inodes = self._inodes()
        last = max(inodes, key=lambda inode: inode.last_change, default=None)
        for inode in inodes:
            kept = inode.pending
            if tear_bytes is not None:
                if inode is last and kept and kept[-1].data is not None:
                    kept = [*kept[:-1], _Change(kept[-1].position, kept[-1].data[:tear_bytes])]
            elif keep is Keep.NOTHING:
                kept = []
            elif keep is Keep.SOME:
                kept = [part for change in kept for part in self._survivors(change)]
            inode.pending = kept
            inode.sync()
            inode.seen[:] = inode.durable
        if keep is Keep.ALL or tear_bytes is not None:
            count = len(self._pending)
        else:
            count = self.rng.randint(0, len(self._pending)) if keep is Keep.SOME else 0
        for rename in self._pending[:count]:
            rename.apply(self._durable)
        self._pending.clear()
        self._seen = dict(self._durable)
        self._cut_at = None
        self.kill()

    def kill(self) -> None:
        """The process ends: its files and locks are gone, what it wrote is still seen."""
        self.boot += 1
        self.locks.clear()

    def fail_next_sync(self, count: int = 1) -> None:
        self._sync_failures += count

    def mend(self) -> None:
        """No fault that was asked for is still to come."""
        self._sync_failures = self._misdirections = 0

    def misdirect_next_write(self, count: int = 1) -> None:
        self._misdirections += count

    def stall(self, seconds: float) -> None:
        """The next answer takes this much longer."""
        self.delay_s += seconds

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a file, on the platters and for all who read it."""
        inode = self._file(path)
        for content in (inode.seen, inode.durable):
            if bit >> 3 < len(content):
                content[bit >> 3] ^= 1 << (bit & 7)

    def cut(self, path: str, size: int) -> None:
        """Lose the end of a file, on the platters and for all who read it, whether it was synced or not."""
        inode = self._file(path)
        inode.sync()
        del inode.seen[size:]
        inode.durable[:] = inode.seen

    def paths(self) -> list[str]:
        """All files, sorted."""
        return sorted(path for path, inode in self._seen.items() if inode is not None)

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).seen)

    def used_bytes(self) -> int:
        return sum(len(inode.seen) for inode in set(self._seen.values()) if inode is not None)

    def copy(self, rng: random.Random) -> "SimDisk":
        """Another disk with the same content, seen and durable, and nothing pending dropped."""
        twin = SimDisk(rng, capacity_bytes=self.capacity_bytes, rates=self.rates)
        twins: dict[int, _Inode] = {}
        for inode in self._inodes():
            pending = [_Change(change.position, change.data) for change in inode.pending]
            twins[id(inode)] = _Inode(
                bytearray(inode.seen), bytearray(inode.durable), pending, inode.last_change
            )

        def twin_of(inode: _Inode | None) -> _Inode | None:
            return None if inode is None else twins[id(inode)]

        twin._seen = {path: twin_of(inode) for path, inode in self._seen.items()}
        twin._durable = {path: twin_of(inode) for path, inode in self._durable.items()}
        twin._pending = [
            _Rename(rename.directory, rename.old, rename.new, twin_of(rename.inode))
            for rename in self._pending
        ]
        twin.changes = self.changes
        return twin

    # ---------------------------------------------------------------------------------- Disk's calls

    def create(self, path: str) -> SimFile:
        self._step()
        inode = self._seen.get(path)
        if inode is None:
            if path in self._seen:
                raise DiskError(f"cannot open {path}: is a directory")
            self._need_directory(path)
            inode = _Inode()
            self._rename(_Rename(_parent(path), "", path, inode))
        inode.change(_Change(0, None), self.changes)
        return SimFile(self, path, inode, True)

    def open(self, path: str, *, writable: bool = False) -> SimFile:
        return SimFile(self, path, self._file(path), writable)

    def names(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._seen if path and _parent(path) == directory)

    def exists(self, path: str) -> bool:
        return path in self._seen

    def make_directory(self, path: str) -> None:
        if path in self._seen:
            if self._seen[path] is not None:
                raise DiskError(f"cannot make directory {path}: a file has that name")
            return
        self._step()
        self._need_directory(path)
        self._rename(_Rename(_parent(path), "", path, None))

    def rename(self, old: str, new: str) -> None:
        if _parent(old) != _parent(new):
            raise DiskError(f"cannot rename {old} to {new}: not the same directory")
        inode = self._file(old)
        self._step()
        self._rename(_Rename(_parent(old), old, new, inode))

    def remove(self, path: str) -> None:
        if path in self._seen:
            self._step()
            self._file(path)
            self._rename(_Rename(_parent(path), path, "", None))

    def remove_directory(self, path: str) -> None:
        if self.names(path):
            raise DiskError(f"cannot remove directory {path}: it is not empty")
        self._step()
        self._rename(_Rename(_parent(path), path, "", None))

    def sync_directory(self, path: str) -> None:
        path = "" if path == "." else path
        self._need_directory(path + "/")
        self._before_sync(path)
        for rename in self._pending:
            if rename.directory == path:
                rename.apply(self._durable)
        self._pending = [rename for rename in self._pending if rename.directory != path]

    def lock(self, path: str, owner: str) -> _SimLock:
        holder = self.locks.get(path)
        if holder is not None:
            raise DirectoryLocked(f"{path} is held by {holder}")
        if path not in self._seen:
            self.create(path)
        self.locks[path] = owner
        return _SimLock(self, path)

    def free_bytes(self, path: str) -> int:
        self._need_directory(path + "/")
        return (1 << 60) if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes())

    # --------------------------------------------------------------------------------------- inside

    def _inodes(self) -> list[_Inode]:
        """Each once, in an order that follows from the names."""
        tables = [*sorted(self._seen.items()), *sorted(self._durable.items())]
        pending = [(rename.new, rename.inode) for rename in self._pending]
        found = {id(inode): inode for _, inode in [*tables, *pending] if inode is not None}
        return list(found.values())

    def _file(self, path: str) -> _Inode:
        inode = self._seen.get(path)
        if inode is None:
            raise DiskError(f"cannot open {path}: no such file")
        return inode

    def _need_directory(self, path: str) -> None:
        if self._seen.get(_parent(path), 0) is not None:
            raise DiskError(f"cannot use {path}: no such directory")

    def _rename(self, rename: _Rename) -> None:
        rename.apply(self._seen)
        self._pending.append(rename)

    def _step(self) -> None:
        """Every call that changes something comes through here, before it does."""
        self.changes += 1
        self.delay_s += _CALL_S
        if self.rates.stall and self.rng.random() < self.rates.stall:
            self.delay_s += self.rng.random() * self.rates.stall_s_max
        if self._cut_at is not None and self.changes >= self._cut_at:
            raise PowerCut

    def _survivors(self, change: _Change) -> list[_Change]:
        """What a power cut leaves of one change that was not synced."""
        fate = self.rng.randrange(4)
        if fate == 0:
            return []
        if fate == 1 or change.data is None:
            return [change]
        if fate == 2:
            return [_Change(change.position, change.data[: self.rng.randint(0, len(change.data))])]
        sectors = range(0, len(change.data), _SECTOR_BYTES)
        return [
            _Change(change.position + at, change.data[at : at + _SECTOR_BYTES])
            for at in sectors
            if self.rng.random() < 0.5
        ]

    def _write(self, inode: _Inode, path: str, position: int, data: bytes) -> None:
        try:
            self._step()
        except PowerCut:
            # The write may have begun: what of it is kept is chosen with the rest.
            inode.change(_Change(position, data), self.changes)
            raise
        if self._misdirections or (
            self.rates.misdirected_write and self.rng.random() < self.rates.misdirected_write
        ):
            self._misdirections = max(0, self._misdirections - 1)
            inode, position = self._elsewhere(inode, position)
        grown = max(0, position + len(data) - len(inode.seen))
        if self.capacity_bytes is not None and self.used_bytes() + grown > self.capacity_bytes:
            fits = max(0, len(data) - (self.used_bytes() + grown - self.capacity_bytes))
            if fits:
                inode.change(_Change(position, data[:fits]), self.changes)
            raise DiskFull(f"cannot write {path}: no space left on the simulated disk")
        inode.change(_Change(position, data), self.changes)

    def _elsewhere(self, inode: _Inode, position: int) -> tuple[_Inode, int]:
        """Another sector, in this file or another."""
        others = [other for other in self._inodes() if other is not inode and other.seen]
        if others and self.rng.random() < 0.5:
            inode = self.rng.choice(others)
        sectors = max(1, len(inode.seen) // _SECTOR_BYTES)
        return inode, _SECTOR_BYTES * self.rng.randrange(sectors) + position % _SECTOR_BYTES

    def _before_sync(self, path: str, inode: _Inode | None = None) -> None:
        self._step()
        self.delay_s += _SYNC_S
        rate = self.rates.sync_error
        if self._sync_failures or (rate and self.rng.random() < rate):
            self._sync_failures = max(0, self._sync_failures - 1)
            if inode is not None:
                # Linux marks the pages clean although they were not written.
                inode.pending.clear()
            raise FsyncFailed(f"cannot sync {path}: simulated input/output error")

    def _sync(self, inode: _Inode, path: str) -> None:
        self._before_sync(path, inode)
        inode.sync()
