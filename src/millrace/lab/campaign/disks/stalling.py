"""A disk whose syncs stand still for as long as a file is there: that of a leader, for example."""

import os
import time
from pathlib import Path

from millrace.storage.disk import SystemDisk, SystemFile

_LOOK_S = 0.01


class StallingDisk(SystemDisk):
    """`gate`: while this file is there, no sync returns."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def create(self, path: str) -> SystemFile:
        return _StallingFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, self)

    def open(self, path: str, *, writable: bool = False) -> SystemFile:
        return _StallingFile(path, os.O_RDWR if writable else os.O_RDONLY, self)

    def sync_directory(self, path: str) -> None:
        self.wait()
        super().sync_directory(path)

    def wait(self) -> None:
        """*blocking* As a disk that answers late: whoever syncs on the event loop holds it up."""
        while self._gate.exists():
            time.sleep(_LOOK_S)


class _StallingFile(SystemFile):
    __slots__ = ("_disk",)

    def __init__(self, path: str, flags: int, disk: StallingDisk) -> None:
        super().__init__(path, flags)
        self._disk = disk

    def sync(self) -> None:
        self._disk.wait()
        super().sync()
