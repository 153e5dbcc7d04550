"""CPU time and memory of brokers, from the accounts of the kernel."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millrace.lab.bench import peers

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# The broker is still when it used less CPU than this in a quarter of a second.
_STILL_S = 0.015
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one unit, over a whole run."""

    row: str
    broker: str
    units: int
    cpu_us: float
    memory_bytes: float
    seconds: float


class Account:
    """CPU time and memory of a running broker."""

    def __init__(self, started: peers.Running) -> None:
        self._started = started
        self.port = started.port

    def cpu_s(self) -> float:
        used = 0
        for pid in self._started.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            used += int(fields[11]) + int(fields[12])
        return used / _TICKS_A_SECOND

    def still_cpu_s(self) -> float:
        """The same, once the broker has nothing left to do."""
        last = self.cpu_s()
        while True:
            time.sleep(_LOOK_S)
            now = self.cpu_s()
            if now - last < _STILL_S:
                return now
            last = now

    def exact_cpu_s(self) -> float:
        return exact_cpu_s(self._started.pids())

    def memory_bytes(self) -> int:
        return memory_bytes(self._started.pids())


def exact_cpu_s(pids: Iterable[int]) -> float:
    """To the nanosecond, for those that do almost nothing; a thread that ended meanwhile is left out."""
    used_ns = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                used_ns += int(thread.read_text().split()[0])
    return used_ns / 1e9


def memory_bytes(pids: Iterable[int]) -> int:
    pages = (Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in pids)
    return sum(map(int, pages)) * _PAGE_BYTES
