"""Loading modules in a thread of a node that serves, without keeping its event loop waiting [rule 33].

Modules make many objects and almost no garbage. While they are loaded, the collector looks at all objects
again and again, and holds the interpreter for longer than any input may. So it pauses, and what was loaded is
never looked at again.

A turn of the loop gives the interpreter away at its system calls, several times where it has much to do. A
thread that loads takes it then for as long as the switch interval, 5 ms each time. So that is made shorter.
"""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH_S = 0.0005


@contextmanager
def uncollected() -> Iterator[None]:
    """For a process that is a node: what exists at the end stays, and whatever is garbage by then with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with _giving_way:
            yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class _GivingWay:
    """A short switch interval, for as long as anybody loads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._before_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._count:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before_s, _SWITCH_S))
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._before_s)


_giving_way = _GivingWay()
