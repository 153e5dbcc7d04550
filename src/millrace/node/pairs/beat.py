"""The ticks of a pair by the clock of its node."""

# A timer may fire this much before its moment: clocks count in microseconds, and quotients are rounded.
# Otherwise such a timer finds nothing due, is set for the same moment, and fires without end.
_EARLY_S = 0.000_002


class Beat:
    """Ticks that are due, and when the next one is.

    The moments of the ticks are fixed: a timer that is set for so long after it fired is later every time,
    and so would be the moment at which a backup takes over.
    """

    def __init__(self, began_s: float, tick_s: float) -> None:
        self._began_s = began_s
        self.tick_s = tick_s
        self._ticks = 0

    @property
    def next_s(self) -> float:
        return self._began_s + (self._ticks + 1) * self.tick_s

    def take(self, now_s: float, most: int) -> int:
        """How many ticks are to be stepped now; what is due beyond `most` is left out for good."""
        due = int((now_s + _EARLY_S - self._began_s) / self.tick_s)
        missed = min(due - self._ticks, most)
        self._ticks = due
        return missed
