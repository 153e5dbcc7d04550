"""What a node takes from the machine it runs on, apart from its event loop: disk, threads, the wall clock,
the sockets of its doors.

Production takes `SYSTEM`. A simulation puts its own in their place, and the node does not notice.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.broker.freezing import ROWS_AT_ONCE
from millrace.errors import StorageError
from millrace.node.config import Address
from millrace.node.doors import listeners
from millrace.node.doors.descriptors import Descriptors
from millrace.node.logs.syncer import Syncer, ThreadSyncer
from millrace.node.turn import Turn
from millrace.storage.disk import Disk, SystemDisk
from millrace.storage.log import DEFAULT_SETTINGS, LogSettings

_READERS = 2
# What a log writes ahead: one sync in many grows the file, and a node has few logs that are large.
_FILL_BYTES = 1 << 20


class MakeSyncer(Protocol):
    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StorageError], None],
        *,
        in_place: bool,
        sync_every_s: float | None,
    ) -> Syncer: ...


class Closeable(Protocol):
    def close(self) -> None: ...


class Listen(Protocol):
    async def __call__(
        self,
        address: Address,
        factory: Callable[[], Any],
        descriptors: Descriptors,
        *,
        context: Callable[[], ssl.SSLContext] | None = None,
        handshake_s: float | None = None,
        is_shared: bool = False,
        turn: Turn | None = None,
    ) -> tuple[Closeable, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    make_disk: Callable[[], Disk]
    make_syncer: MakeSyncer
    make_readers: Callable[[], Executor]
    """Workers that read logs."""
    wall_us: Callable[[], int]
    """Microseconds since 1970; may jump."""
    running_us: Callable[[], int]
    """Microseconds since some moment; nobody sets it, and it also runs while the machine sleeps."""
    listen: Listen
    """For clients: what they connect to, and its port."""
    log_settings: LogSettings = DEFAULT_SETTINGS
    loading: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around what loads modules."""
    rows_at_once: int = ROWS_AT_ONCE
    """Rows of a state that one step of a snapshot takes."""
    pause_s: Callable[[], float] = lambda: 0.0
    """Between two of these steps; 0 is one turn of the loop."""
    gathers_always: bool = False
    """Whether leisurely publishers wait for each other also where few come (`gathering.py`)."""


def _wall_us() -> int:
    return time.time_ns() // 1000


# CLOCK_MONOTONIC stands still while a machine sleeps.
_RUNNING_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _running_us() -> int:
    return time.clock_gettime_ns(_RUNNING_CLOCK) // 1000


def _readers() -> Executor:
    return ThreadPoolExecutor(_READERS, thread_name_prefix="reader")


SYSTEM = Surroundings(
    make_disk=SystemDisk,
    make_syncer=ThreadSyncer,
    make_readers=_readers,
    wall_us=_wall_us,
    running_us=_running_us,
    listen=listeners.listen,
    log_settings=LogSettings(fill_bytes=_FILL_BYTES),
)
