"""Whether what arrived waits a moment for more of its kind, so that one sync of the disk serves many devices.

A fleet of devices brings one message at a time, each over a connection of its own. By itself each would be a
block, a write and a sync, which cost several times what the message does. None of these devices needs its
answer to go on: it says so by its pace, which leaves at least ten times as long between two messages as they
may wait here (`LEISURE_MS`). Whoever publishes as soon as it is answered never waits, nor does anybody who
comes along with it, and neither does a lone message while few others come.
"""

from collections.abc import Callable
from typing import Any, Protocol

from millrace.broker.messages.intake import LEISURE_MS

# A tenth of the pause that makes a client leisurely.
_GATHER_US = LEISURE_MS * 1_000 // 10
# More than this goes at once: a block of it is worth its sync.
_ARRIVALS_MAX = 256
# So many are to be expected, or waiting is not worth its timer.
_EXPECTED_MIN = 2
# Weight of the newest gap in the running mean, and what a pause counts at most: a fleet that begins again is
# recognised within a few messages.
_NEWEST = 0.1
_PAUSE_US = 20_000


class Timer(Protocol):
    def cancel(self) -> Any: ...


class Gathering:
    """`holds` is asked whenever what arrived could be cut into blocks; it calls `wake` when time is up."""

    __slots__ = ("_call_later", "_cut_us", "_gap_us", "_is_always", "_is_due", "_timer", "_wake")

    def __init__(
        self,
        wake: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Timer],
        *,
        is_always: bool = False,
    ) -> None:
        """`is_always`: also where few come."""
        self._wake = wake
        self._call_later = call_later
        self._timer: Timer | None = None
        self._is_always = is_always
        self._is_due = False
        self._cut_us = 0
        # Of one message to the next, on the average.
        self._gap_us = float(_PAUSE_US)

    def holds(self, count: int, now_us: int, *, is_urgent: bool) -> bool:
        """Whether so many arrivals wait. If not, the caller cuts all of them now."""
        if not is_urgent and not self._is_due and count < _ARRIVALS_MAX:
            if self._timer is not None:
                return True
            if self._is_always or self._gap_us * _EXPECTED_MIN <= _GATHER_US:
                self._timer = self._call_later(_GATHER_US / 1_000_000, self._fall_due)
                return True
        self.cut(count, now_us)
        return False

    def cut(self, count: int, now_us: int) -> None:
        """These do not wait any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due = False
        if count:
            gap_us = min(now_us - self._cut_us, _PAUSE_US)
            self._cut_us = now_us
            self._gap_us += (gap_us / count - self._gap_us) * _NEWEST

    def _fall_due(self) -> None:
        self._timer = None
        self._is_due = True
        self._wake()
