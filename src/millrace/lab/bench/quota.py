"""A share of a core for a process, by a control group of its own, where this machine lets us make one.

Version 1 (`cpu.cfs_quota_us`) and version 2 (`cpu.max`) of control groups are known. The groups are removed
afterwards. Where none can be made the caller is told, and measures CPU per message alone.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# Where groups are made, with a file that only the root of a hierarchy has: with version 1 the second place is
# a directory like any other.
_ROOTS = (
    (Path("/sys/fs/cgroup/cpu"), "cgroup.procs"),
    (Path("/sys/fs/cgroup"), "cgroup.controllers"),
)
_PERIOD_US = 100_000


@contextmanager
def held_to(pids: Sequence[int], share: float) -> Iterator[bool]:
    """Hold each process to this share of one core; yields whether that worked."""
    made: list[Path] = []
    try:
        held = [_hold(pid, share, made) for pid in pids]
        yield all(held)
    finally:
        for path in made:
            # Back where it came from: only an empty group can be removed.
            with suppress(OSError):
                for pid in (path / "cgroup.procs").read_text().split():
                    _write(path.parent / "cgroup.procs", pid)
            with suppress(OSError):
                path.rmdir()


def _hold(pid: int, share: float, made: list[Path]) -> bool:
    quota_us = int(share * _PERIOD_US)
    for root, mark in _ROOTS:
        if not (root / mark).exists():
            continue
        path = root / f"millrace-bench-{pid}"
        try:
            path.mkdir()
            made.append(path)
            if (path / "cpu.cfs_quota_us").exists():
                _write(path / "cpu.cfs_period_us", str(_PERIOD_US))
                _write(path / "cpu.cfs_quota_us", str(quota_us))
            else:
                _write(path / "cpu.max", f"{quota_us} {_PERIOD_US}")
            _write(path / "cgroup.procs", str(pid))
            return True
        except OSError:
            continue
    return False


def _write(path: Path, text: str) -> None:
    """Into a file of the kernel; never makes one."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
