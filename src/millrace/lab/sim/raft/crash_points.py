"""Named moments inside a driver's work at which a simulated process may be made to crash."""

from collections.abc import Callable

CRASH_POINTS = (
    "before persist",
    "after write",
    "after sync",
    "between effects",
    "before apply",
    "after apply",
)


class CrashedHere(Exception):
    """Unwinds the step in which an armed crash point was met."""


class CrashPoints:
    """At most one of them is armed."""

    def __init__(self, crash: Callable[[str], None]) -> None:
        self._crash = crash
        self.armed: str | None = None
        self._passes_left = 0

    def arm(self, point: str, after: int) -> None:
        """Crash when `point` is met, after it was passed so many times."""
        assert point in CRASH_POINTS
        self.armed, self._passes_left = point, after

    def disarm(self) -> None:
        self.armed = None

    def meet(self, point: str) -> None:
        if self.armed == point:
            self._passes_left -= 1
            if self._passes_left < 0:
                self.armed = None
                self._crash(point)
                raise CrashedHere
