"""No descriptor is left: what was asked for did not happen, and may be asked for again."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from millrace.lab.sim.surroundings.disk import Keep, SimDisk, SimFile
from millrace.storage.disk import DiskFull
from millrace.storage.log import Log
from millrace.types import Index, Offset, Term
from unit.storage.making import DIRECTORY, chain, contents, open_log, some_blocks, tail_of

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}


class ScarceDisk(SimDisk):
    """One of the files that are opened finds no descriptor: the one with the number `refused`."""

    opened = 0
    refused = -1
    is_counting = True

    def _take(self, path: str) -> None:
        self.opened += self.is_counting
        if self.is_counting and self.opened == self.refused:
            raise DiskFull(f"cannot open {path}: Too many open files")

    def create(self, path: str) -> SimFile:
        self._take(path)
        return super().create(path)

    def open(self, path: str, *, writable: bool = False) -> SimFile:
        self._take(path)
        return super().open(path, writable=writable)


def _append(log: Log) -> None:
    log.append(chain(some_blocks(Random(int(log.last_index)), 6), tail_of(log), term=1))
    log.sync()


STEPS: list[Callable[[Log], object]] = [
    *[_append] * 8,
    lambda log: log.truncate_from(Index(log.last_index - 1)),
    _append,
    lambda log: log.truncate_from(Index(12)),
    _append,
    lambda log: log.end_segment(),
    _append,
    lambda log: log.trim(Index(8)),
    lambda log: log.checkpoint(),
    lambda log: log.reset(next_index=Index(200), last_term=Term(1), next_offset=Offset(900)),
    *[_append] * 4,
    lambda log: log.reset(next_index=Index(202), last_term=Term(1), next_offset=Offset(950)),
    _append,
]


def _run(refused: int) -> tuple[list[list[bytes]], int, int]:
    """What the log holds after each step, how many files were opened, and how often one was refused."""
    disk = ScarceDisk(Random(1))
    disk.make_directory(DIRECTORY)
    disk.sync_directory("")
    log = open_log(disk)
    disk.opened, disk.refused = 0, refused
    states, refusals = [contents(log)], 0
    for step in STEPS:
        try:
            step(log)
        except DiskFull:
            refusals += 1
            _check_restart(disk, states[-1])
            step(log)
        disk.is_counting = False
        states.append(contents(log))
        disk.is_counting = True
    _check_restart(disk, states[-1])
    return states, disk.opened, refusals


def _check_restart(disk: SimDisk, before: list[bytes]) -> None:
    """Nothing but what a step takes away is missing, and what is there is sound."""
    for keep in (Keep.ALL, Keep.NOTHING):
        twin = disk.copy(Random(1))
        twin.cut_power(keep)
        log = open_log(twin)
        assert not log.damages
        found = contents(log)
        assert found == before[: len(found)] or found == before[-len(found) :]


def test_a_log_goes_on_wherever_a_descriptor_was_missing() -> None:
    """Each file that a log ever opens is the one that is refused: the step is asked for again, and all is as
    if nothing had been; nothing fails for want of an index."""
    expected, opened, _ = _run(-1)
    total = 0
    for refused in range(1, opened + 1):
        states, _, refusals = _run(refused)
        assert states == expected
        total += refusals
    # An index that was not written or read is no reason to refuse anything.
    assert 0 < total < opened


def test_a_segment_that_could_not_be_begun_leaves_nothing() -> None:
    """Nobody asks for it again: what is appended next goes on in the old one."""
    refusals = 0
    for refused in range(1, 6):
        disk = ScarceDisk(Random(1))
        disk.make_directory(DIRECTORY)
        disk.sync_directory("")
        log = open_log(disk)
        _append(log)
        disk.opened, disk.refused = 0, refused
        try:
            log.end_segment()
        except DiskFull:
            refusals += 1
        disk.refused = -1
        _append(log)
        expected = contents(log)
        disk.cut_power(Keep.ALL)
        log = open_log(disk)
        assert not log.damages and contents(log) == expected
    assert refusals


def test_the_system_without_descriptors(tmp_path: Path) -> None:
    """Files wait for one. Names and the sync of a directory, behind which nothing can be undone, have one of
    their own. A file that nobody holds gives its descriptor back."""
    program = (
        "import os, resource\n"
        "from millrace.storage.disk import DiskFull, SystemDisk\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        f"disk, root = SystemDisk(), {str(tmp_path)!r}\n"
        "disk.create(root + '/f').close()\n"
        "disk.sync_directory(root)\n"
        "held = []\n"
        "while True:\n"
        "    try:\n"
        "        held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "    except OSError:\n"
        "        break\n"
        "for call in (lambda: disk.create(root + '/g'), lambda: disk.open(root + '/f')):\n"
        "    try:\n"
        "        call()\n"
        "    except DiskFull as error:\n"
        "        print(error)\n"
        "for _ in range(3):\n"
        "    disk.sync_directory(root)\n"
        "    print(disk.names(root))\n"
        "os.close(held.pop())\n"
        "for _ in range(3):\n"
        "    disk.open(root + '/f')\n"
        "print('served')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env=ENVIRONMENT,
        timeout=60,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines == [
        f"cannot open {tmp_path}/g: Too many open files",
        f"cannot open {tmp_path}/f: Too many open files",
        *["['f']"] * 3,
        "served",
    ], done.stderr
