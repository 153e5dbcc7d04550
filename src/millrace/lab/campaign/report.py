"""What a campaign found: figures, broken promises, and a table of both."""

import json
from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


class Report:
    """Figures by name, in the order in which they were noted, and what went wrong."""

    VIOLATIONS_SHOWN_MAX = 20

    def __init__(self, campaign: str) -> None:
        self.campaign = campaign
        self.figures: dict[str, Any] = {}
        self.violations: list[str] = []

    def note(self, name: str, value: Any) -> None:
        self.figures[name] = value

    def violate(self, what: str) -> None:
        self.violations.append(what)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.violate(what)

    def times(
        self, name: str, seconds: list[float], *, p50_max_s: float = 0.0, p99_max_s: float = 0.0
    ) -> None:
        """Percentiles of durations; a bound of 0 is none."""
        if not seconds:
            return
        p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
        self.note(f"{name}, p50 ms", round(p50 * 1000))
        self.note(f"{name}, p99 ms", round(p99 * 1000))
        self.note(f"{name}, max ms", round(max(seconds) * 1000))
        if p50_max_s:
            self.require(p50 <= p50_max_s, f"{name}: p50 {p50 * 1000:.0f} ms above {p50_max_s * 1000:.0f} ms")
        if p99_max_s:
            self.require(p99 <= p99_max_s, f"{name}: p99 {p99 * 1000:.0f} ms above {p99_max_s * 1000:.0f} ms")

    def table(self) -> str:
        width = max(map(len, self.figures), default=0)
        lines = [f"campaign {self.campaign}"]
        lines += [f"  {name:<{width}}  {_shown(value)}" for name, value in self.figures.items()]
        shown = self.violations[: self.VIOLATIONS_SHOWN_MAX]
        lines += [f"  VIOLATION  {what}" for what in shown]
        if len(self.violations) > len(shown):
            lines.append(f"  ... and {len(self.violations) - len(shown)} more")
        lines.append("result: " + ("violations found" if self.violations else "every promise held"))
        return "\n".join(lines)

    def as_json(self) -> str:
        fields = {"campaign": self.campaign, "figures": self.figures, "violations": self.violations}
        return json.dumps(fields, indent=2)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
