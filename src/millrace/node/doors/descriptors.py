"""The descriptors of the process: how many there are, and which of them clients may take.

Logs, snapshots, links and workers need descriptors as sockets do, and a node that has none left for its log
is of use to nobody. The system gives whatever is opened the lowest number that is free. So doors that keep no
socket with a number in the reserve leave all of the reserve to the node, whatever else is open, and nobody
has to count.
"""

import logging
import resource
from contextlib import suppress

from millrace.broker.stats import Stats

log = logging.getLogger("millrace.listeners")

# More would cost memory in the system and serve nobody.
_LIMIT_MAX = 1 << 20
_RESERVE_MAX = 4096
_WARN_EVERY_S = 60.0


def raise_limit() -> None:
    """Take all that the system grants: what a shell or a service begins with is meant for small programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, _LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A sandbox may forbid it; what there is serves.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Descriptors:
    """One for all doors of a node."""

    def __init__(self, stats: Stats) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = _LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
        self.open_to_clients = self.limit - min(self.limit // 4, _RESERVE_MAX)
        self._stats = stats
        self._warn_at_s = 0.0

    def admits(self, descriptor: int, now_s: float) -> bool:
        """Whether a door may keep the socket with this number. One that it may not is to be closed."""
        if descriptor < self.open_to_clients:
            return True
        self._stats.sockets_refused += 1
        self.warn(
            f"connections are closed at once: {self.open_to_clients} of {self.limit} descriptors are in use, "
            "the rest is kept for the node itself",
            now_s,
        )
        return False

    def warn(self, what: str, now_s: float) -> None:
        """Say it, unless something of the kind was said a moment ago."""
        if now_s >= self._warn_at_s:
            self._warn_at_s = now_s + _WARN_EVERY_S
            log.warning("%s (ulimit -n, or LimitNOFILE= of a service)", what)
