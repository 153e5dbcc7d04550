"""Virtual time: one queue of calls, run in order of (time, order of scheduling).

Nothing in a simulated world happens outside this queue, so a run depends on its seed alone. Ties are broken
by the order in which calls were scheduled, never by comparing the calls. Nothing can be cancelled: a call
that may have become pointless (its process crashed, its request was answered) checks that itself.
"""

import heapq
from collections.abc import Callable
from typing import Any

from millrace.errors import LocalError

US_PER_S = 1_000_000


class Clock:
    """Microseconds since the world began."""

    __slots__ = ("_heap", "_sequence", "calls_max", "now_us")

    def __init__(self, *, calls_max: int) -> None:
        self.now_us = 0
        self.calls_max = calls_max
        self._sequence = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    @property
    def calls_scheduled(self) -> int:
        return self._sequence

    def after(self, delay_us: int, call: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._sequence, call, args))

    def run(self, until_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Run calls until `done` says so (then True) or until that time (then False)."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            if done is not None and done():
                return True
            if self._sequence > self.calls_max:
                raise LocalError(f"the world scheduled more than {self.calls_max} calls: it does not end")
            self.now_us, _, call, args = heapq.heappop(heap)
            call(*args)
        if done is not None and done():
            return True
        self.now_us = until_us
        return False
