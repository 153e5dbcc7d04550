"""Time of day that only runs [rule 37].

It begins with the wall clock, runs with a clock that nobody sets, and follows the wall clock slowly: while
that is ahead by any amount, twenty seconds pass as twenty-one, and while it is behind as nineteen. So a wall
clock that jumps by hours and back moves leases, delays and stamps by a twentieth of the time it was wrong,
and the drift of an ordinary machine is followed without anybody noticing.
"""

import logging
from collections.abc import Callable

log = logging.getLogger("millrace.clock")

_FOLLOWS_PART = 20
# Less than this is what a time server corrects now and then; a jump is told once, until it is made up for.
_TOLD_US_MIN = 1_000_000
# How long what was seen of the wall clock is good for: several stamps are made for one message.
_SEEN_US_MAX = 1_000


class RunningClock:
    """Microseconds since 1970, never less than before. It begins at `start_us`, or with the wall clock."""

    def __init__(
        self, wall_us: Callable[[], int], running_us: Callable[[], int], start_us: int | None = None
    ) -> None:
        self._wall_us = wall_us
        self._running_us = running_us
        self._at_us = running_us()
        self._time_us = wall_us() if start_us is None else start_us
        # Told last, and how far the wall clock was ahead when it was looked at.
        self._told_us = self._time_us
        self._ahead_us = 0
        self._is_told = False

    def __call__(self) -> int:
        running_us = self._running_us()
        passed_us = running_us - self._at_us
        if passed_us > 0:
            time_us = self._time_us + passed_us
            most_us = passed_us // _FOLLOWS_PART
            if passed_us >= _SEEN_US_MAX:
                self._ahead_us = self._wall_us() - time_us
            # Compared by hand: every lone message asks several times, and two calls take longer than this.
            ahead_us = self._ahead_us
            time_us += most_us if ahead_us > most_us else -most_us if ahead_us < -most_us else ahead_us
            self._told_us = max(self._told_us, time_us)
            if passed_us >= _SEEN_US_MAX:
                self._at_us, self._time_us = running_us, self._told_us
        return self._told_us

    def look(self) -> str | None:
        """What to tell of a wall clock that jumped, once for each time. To be called now and then."""
        ahead_us = self._wall_us() - self()
        if abs(ahead_us) < _TOLD_US_MIN:
            self._is_told = False
        elif not self._is_told:
            self._is_told = True
            far = f"{abs(ahead_us) / 1_000_000:.1f} s {'ahead of' if ahead_us > 0 else 'behind'}"
            return (
                f"the clock of this machine is {far} the time that passed; "
                "this node follows it slowly, 1 s in 20 s"
            )
        return None
