"""The numbers of a primary-backup pair, with the relations between them checked once.

Ticks are whatever the driver makes them. A check every `check_ticks`; one that is not answered within half of
that is missed, over a closed link at once; after `misses_max` in a row the backup takes over, three intervals
(three and a half where only silence tells) after the last question that was answered at the latest.
"""

from dataclasses import dataclass, field

from millrace.errors import ConfigError
from millrace.replication.raft.options import RaftOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    check_ticks: int = 20
    """The backup asks this often."""
    misses_max: int = 3
    """Questions in a row without an answer after which the backup takes over."""
    raft: RaftOptions = field(default_factory=RaftOptions)
    """What the pair shares with Raft: pace, windows and bounds of appends and snapshots."""

    def __post_init__(self) -> None:
        if self.check_ticks < 4 or self.misses_max < 2:
            raise ConfigError("a check takes at least 4 ticks, and a promotion at least 2 missed checks")
        if self.raft.heartbeat_ticks > self.check_ticks:
            raise ConfigError("heartbeats are at least as frequent as checks")

    @property
    def timeout_ticks(self) -> int:
        return self.check_ticks // 2

    @property
    def promise_ticks(self) -> int:
        """A backup that heard an answer waits at least this long."""
        return self.misses_max * self.check_ticks

    @property
    def promotion_ticks(self) -> int:
        """And at most this long after the last question that was answered."""
        return self.promise_ticks + self.timeout_ticks

    @property
    def lease_ticks(self) -> int:
        """Shorter than the promise by a sixth, which is what two clocks may differ by."""
        return self.promise_ticks - self.check_ticks // 2
