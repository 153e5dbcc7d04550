"""Which bounds were run into, and how often: one count for each, for metrics and the log.

Whoever refuses something for want of room says so here, in one word. The node logs once a second what was
added since (`take_news`), so that a flood of refusals is one line.
"""

from millrace.limits import NODE_FILTER_BYTES_MAX, SESSION_FILTER_BYTES_MAX, Limits


class LimitsReached:
    __slots__ = ("_told", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """By bound, since the node started."""
        self._told: dict[str, int] = {}

    def count(self, bound: str) -> None:
        self.counts[bound] = self.counts.get(bound, 0) + 1

    def take_news(self) -> dict[str, int]:
        """What was added since the last call."""
        if self._told == self.counts:
            return {}
        news = {bound: number - self._told.get(bound, 0) for bound, number in self.counts.items()}
        self._told = dict(self.counts)
        return {bound: number for bound, number in news.items() if number}


def filled_bound(limits: Limits, held: int, session_bytes: int, node_bytes: int) -> str | None:
    """The bound that a session with so many subscriptions exceeds with another one: so many bytes would its
    filters weigh, and those of all sessions."""
    if held >= limits.subscriptions_max:
        return "subscriptions"
    if session_bytes > SESSION_FILTER_BYTES_MAX:
        return "session_filter_bytes"
    return "node_filter_bytes" if node_bytes > NODE_FILTER_BYTES_MAX else None
