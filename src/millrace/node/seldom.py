"""Lines of the log that strangers cause: of each kind one in a second, so that many refusals are not many
lines. What was left out is counted in the next line of its kind.

A kind is a sentence with its reason code: neither what a client says of itself nor its address makes another
one, so there are few of them.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Seldom(logging.Filter):
    """For a logger all of whose lines are of this sort."""

    is_on = True
    """Of all of them; see `every_line`."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        # Kind -> when the next line of it may be written, and how many were left out.
        self._kinds: dict[tuple[str, int | None], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not (self.is_on and logging.INFO <= record.levelno < logging.ERROR):
            return True
        last = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        kind = str(record.msg), int(last) if isinstance(last, int) else None
        now_s = self._now_s()
        next_s, left_out = self._kinds.get(kind, (now_s, 0))
        if now_s < next_s:
            self._kinds[kind] = next_s, left_out + 1
            return False
        self._kinds[kind] = now_s + 1.0, 0
        if left_out:
            record.msg = f"{record.msg} (and {left_out} more since the last one)"
        return True


@contextmanager
def every_line() -> Iterator[None]:
    """None is left out meanwhile: a simulated run must not depend on how fast it is."""
    Seldom.is_on = False
    try:
        yield
    finally:
        Seldom.is_on = True
