"""The turn of the event loop: what several reads brought leaves together at its end.

Whoever puts work in place calls `wake`. The end comes in the next round of the loop, or, while a poll hands
out what it has read, right behind its last read: a round of the loop costs about as much as a small message.
"""

from collections.abc import Callable


class Turn:
    __slots__ = ("_call_soon", "_run", "is_due", "is_reading")

    def __init__(self, run: Callable[[], None], call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._run = run
        self._call_soon = call_soon
        self.is_due = False
        self.is_reading = False
        """Whoever reads sees to the end."""

    def wake(self) -> None:
        if not self.is_due:
            self.is_due = True
            if not self.is_reading:
                self._call_soon(self.end)

    def end(self) -> None:
        """At once, if it is due."""
        if self.is_due:
            self.is_due = False
            self._run()
