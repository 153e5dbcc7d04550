"""What clients that do not read may hold in memory: each of them, and all of them together.

The event loop tells a connection when more than `SLOW_BYTES` wait to be taken. Up to there nothing is
counted, which is what nearly every connection ever sees. From then on the connection is *slow*: its writes
are measured, and it goes on while neither its own bound nor the common one is reached. Beyond, it is
*blocked*: QoS 0 is dropped, the rest waits in its log. So a burst finds room while few are slow, and all
slow ones together hold no more than the common bound and `SLOW_BYTES` each.
"""

import os
from collections.abc import Callable
from typing import Any

from millrace.limits import Limits

SLOW_BYTES = 256 * 1024


class OutputBudget:
    """One per node."""

    __slots__ = ("_all_bytes_max", "_one_bytes_max", "held_bytes")

    def __init__(self, limits: Limits) -> None:
        self._one_bytes_max = limits.output_buffer_bytes_max
        self._all_bytes_max = limits.output_total_bytes_max
        self.held_bytes = 0

    def is_spent(self, own_bytes: int) -> bool:
        return own_bytes >= self._one_bytes_max or self.held_bytes >= self._all_bytes_max


class PacedOutput:
    """A connection that knows whether its client reads. The event loop calls `pause_writing` and
    `resume_writing`; a subclass says what `_block` and `_unblock` mean."""

    __slots__ = ("_budget", "_descriptor", "_is_blocked", "_slow_bytes", "transport", "write")

    def __init__(self, budget: OutputBudget) -> None:
        self._budget = budget
        # What the budget holds of ours.
        self._slow_bytes = 0
        self._is_blocked = False
        # Of the socket, where it is written to directly.
        self._descriptor = -1
        self.transport: Any = None
        self.write: Callable[[bytes], None] = _write_nowhere

    def begin_output(self, transport: Any) -> None:
        self.transport = transport
        self.write = transport.write

    def write_straight(self) -> None:
        """Write to the socket itself while nothing waits before it: a transport of its own queues what it is
        given, which costs a small packet as much as the call to the kernel. For bare sockets only."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None and self.transport.get_extra_info("ssl_object") is None:
            self._descriptor = connected.fileno()
            self.write = self._write_straight

    def write_by_transport(self) -> None:
        """Before the transport is told to end: then only it knows whether the socket is still ours."""
        self._descriptor = -1
        if self.write == self._write_straight:
            self.write = self.transport.write

    def end_output(self) -> None:
        self._descriptor = -1
        self.write = _write_nowhere
        self._count(0)

    def pause_writing(self) -> None:
        self.write = self._write_slowly
        self._measure()

    def resume_writing(self) -> None:
        self._count(0)
        self.write = self.transport.write if self._descriptor < 0 else self._write_straight
        if self._is_blocked:
            self._is_blocked = False
            self._unblock()

    def _write_straight(self, data: bytes) -> None:
        transport = self.transport
        if not transport.get_write_buffer_size():
            try:
                sent = os.write(self._descriptor, data)
            except OSError:
                # Full, or broken: the transport knows what to do in either case.
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    def _write_slowly(self, data: bytes) -> None:
        self.transport.write(data)
        self._measure()

    def _measure(self) -> None:
        self._count(self.transport.get_write_buffer_size())
        if not self._is_blocked and self._budget.is_spent(self._slow_bytes):
            self._is_blocked = True
            self._block()

    def _count(self, slow_bytes: int) -> None:
        self._budget.held_bytes += slow_bytes - self._slow_bytes
        self._slow_bytes = slow_bytes

    def _block(self) -> None:
        """There is no more room. Called once, until `_unblock`."""

    def _unblock(self) -> None:
        """The client reads again."""


def _write_nowhere(data: bytes) -> None:
    """The connection is gone; what was still meant for it is too."""
