"""How long a broker's event loop was held: the longest single callback, in CPU time of the loop's thread.

Wall time would count what other processes and the test's own threads took from the machine. The event loop
runs every callback by `Handle._run`, so that is where the watch looks; it counts only what runs on the thread
of the broker that it was made for, and only while it is entered.
"""

import asyncio
import gc
import threading
import time
from types import TracebackType
from typing import Any

from millrace.testing import ThreadedBroker

HELD_S_MAX = 0.020
"""No input may hold the loop for longer [rule 33]."""


class LoopWatch:
    """Use as a context manager around the attack; afterwards `longest_s` and `longest` say what was found."""

    def __init__(self, broker: ThreadedBroker) -> None:
        self._thread = broker._thread.ident
        self.longest_s = 0.0
        self.longest = "nothing ran"
        self.callbacks = 0
        self._run: Any = None

    def __enter__(self) -> "LoopWatch":
        # Collections of garbage walk the objects of the test's own program too, which no node has.
        gc.collect()
        gc.freeze()
        run = self._run = asyncio.events.Handle._run

        def watched(handle: asyncio.events.Handle) -> None:
            if threading.get_ident() != self._thread:
                run(handle)
                return
            callback = handle._callback  # type: ignore[attr-defined]
            begin_s = time.thread_time()
            run(handle)
            held_s = time.thread_time() - begin_s
            self.callbacks += 1
            if held_s > self.longest_s:
                self.longest_s, self.longest = held_s, repr(callback)

        asyncio.events.Handle._run = watched  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.events.Handle._run = self._run  # type: ignore[method-assign]
        gc.unfreeze()

    def check(self) -> None:
        found = f"the loop was held for {self.longest_s * 1000:.1f} ms of CPU time by {self.longest[:300]}"
        assert self.longest_s <= HELD_S_MAX, found
