"""What the nodes of a local cluster say: a bounded file for each, and how they are shown and followed."""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

DIRECTORY = "logs"
SUPERVISOR = "supervisor"
_FILE_BYTES_MAX = 16 * 1024 * 1024
_POLL_S = 0.2
_TAIL_BYTES_PER_LINE = 400
_QUIET = re.compile(r'\S+ \S+ (?:info|debug) |.*"level": "(?:info|debug)"|millrace \S+ ready: ')


def is_quiet(line: str) -> bool:
    """Whether a line is for whoever looks at the log, and not for everybody who started a cluster."""
    return _QUIET.match(line) is not None


def path(directory: Path, name: str) -> Path:
    return directory / DIRECTORY / f"{name}.log"


class LogFile:
    """Appends lines. A file that has grown to its bound becomes NAME.log.1, in place of the one before."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = path(directory, name)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a")

    def write(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()
        if self._file.tell() >= _FILE_BYTES_MAX:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("a")

    def close(self) -> None:
        self._file.close()


def tail(directory: Path, names: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The last lines of several logs together, (name, line), in the order of their times. A line without a
    time of its own, as in a traceback, stays behind the one before it."""
    found: list[tuple[str, str, str]] = []
    for name in names:
        stamp = ""
        for line in _last_lines(path(directory, name), count):
            if line[:2] == "20":
                stamp = line[:23]
            found.append((stamp, name, line))
    found.sort(key=lambda entry: entry[0])
    return [(name, line) for _, name, line in found[-count:]]


def _last_lines(file: Path, count: int) -> list[str]:
    try:
        with file.open("rb") as log:
            size_bytes = log.seek(0, 2)
            start = max(0, size_bytes - count * _TAIL_BYTES_PER_LINE)
            log.seek(start)
            lines = log.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return lines[1 if start else 0 :][-count:]


def follow(directory: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Lines as they come, (name, line), for ever; a file that is exchanged is followed from its start."""
    positions = {name: _size(path(directory, name)) for name in names}
    while True:
        for name in names:
            size_bytes = _size(path(directory, name))
            if size_bytes < positions[name]:
                positions[name] = 0
            if size_bytes > positions[name]:
                with path(directory, name).open("rb") as log:
                    log.seek(positions[name])
                    whole, _, _ = log.read(size_bytes - positions[name]).rpartition(b"\n")
                if whole:
                    positions[name] += len(whole) + 1
                    for line in whole.decode(errors="replace").splitlines():
                        yield name, line
        time.sleep(_POLL_S)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
