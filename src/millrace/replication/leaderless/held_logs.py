"""What one node holds of every origin's log: how far it is written, how far on disk, and what is gone."""

from collections import deque

from millrace.errors import ProtocolError
from millrace.replication.leaderless.messages import (
    NOWHERE,
    LogEntry,
    Origin,
    OriginLogs,
    Position,
    WirePositions,
)


class HeldLog:
    """One origin's log on this node."""

    __slots__ = ("durable", "last", "moved_tick", "pulled_tick", "removed", "tail")

    def __init__(self, end: Position) -> None:
        self.durable = end
        self.last = end
        # Handed out and not on disk yet: number, position after them, the entries.
        self.tail: deque[tuple[int, Position, tuple[LogEntry, ...]]] = deque()
        self.moved_tick = 0
        self.pulled_tick: int | None = None
        self.removed = 0


class HeldLogs(dict[Origin, HeldLog]):
    """Whoever moves `durable` of a log, or adds one past `known`, calls `moved`."""

    def __init__(self, view: OriginLogs, *, origins_max: int) -> None:
        super().__init__((origin, HeldLog(end)) for origin, (_, end) in sorted(view.extents().items()))
        self._view = view
        self._origins_max = origins_max
        self._positions: WirePositions | None = None

    def known(self, origin: Origin, now: int) -> HeldLog:
        """The log of an origin, of which nobody may have heard until now. `RemoteError` for one too many."""
        log = self.get(origin)
        if log is None:
            if len(self) >= self._origins_max:
                raise ProtocolError(f"more than {self._origins_max} origins")
            log = self[origin] = HeldLog(NOWHERE)
            log.moved_tick = now
            self.moved()
        return log

    def moved(self) -> None:
        self._positions = None

    def positions(self) -> WirePositions:
        """What this disk holds of every log."""
        if self._positions is None:
            self._positions = tuple(sorted((origin, log.durable) for origin, log in self.items()))
        return self._positions

    def extent(self, origin: Origin) -> tuple[int, int]:
        """The offsets that can be read of one log."""
        log = self[origin]
        return max(log.removed, self._view.begin(origin).offset), log.durable.offset

    def durable(self, origin: Origin) -> Position:
        log = self.get(origin)
        return NOWHERE if log is None else log.durable
