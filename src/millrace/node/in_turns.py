"""Long work of a node, in steps: one in each turn of the event loop, all that is under way in turns.

So whoever has much to do, such as writing a large state as a snapshot, holds the loop for one step at a time,
and several of them do not hold it longer than one [rule 33].
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator


class InTurns:
    def __init__(self, pause_s: Callable[[], float]) -> None:
        """`pause_s`: how long the next step waits; 0 is one turn."""
        self._pause_s = pause_s
        self._works: deque[Iterator[None]] = deque()

    def __call__(self, work: Iterator[None]) -> None:
        """Take the first step now, as most work has no other, and the rest in later turns. The work sees to
        its errors itself, and ends when nobody wants it any more."""
        if next(work, self) is self:
            return
        self._works.append(work)
        if len(self._works) == 1:
            self._go_on()

    def _go_on(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._pause_s()
        if pause_s:
            loop.call_later(pause_s, self._step)
        else:
            loop.call_soon(self._step)

    def _step(self) -> None:
        work = self._works[0]
        is_over = True
        try:
            is_over = next(work, self) is self
        finally:
            self._works.popleft()
            if not is_over:
                self._works.append(work)
            if self._works:
                self._go_on()
