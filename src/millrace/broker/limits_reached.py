"""Which bounds were run into, and how often: one count for each, for metrics and the log.

Whoever refuses something for want of room says so here, in one word. The node logs once a second what was
added since (`take_news`), so that a flood of refusals is one line.
"""


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
