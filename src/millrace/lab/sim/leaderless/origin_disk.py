"""The disk of a simulated leaderless replica: what is durable of every origin's log, and the saved state."""

from collections.abc import Mapping, Sequence

from millrace.replication.leaderless.messages import NOWHERE, LogEntry, Origin, PersistLog, Position


class OriginDisk:
    """Implements `OriginLogs`. Everything here is durable; what is being synced is the host's."""

    def __init__(self) -> None:
        self.begins: dict[Origin, Position] = {}
        self.logs: dict[Origin, list[LogEntry]] = {}
        self.state: bytes | None = None
        self.incarnation = 0
        self.is_whole = False

    def extents(self) -> Mapping[Origin, tuple[Position, Position]]:
        return {origin: (self.begins[origin], self.end(origin)) for origin in self.logs}

    def begin(self, origin: Origin) -> Position:
        return self.begins.get(origin, NOWHERE)

    def end(self, origin: Origin) -> Position:
        begin, log = self.begin(origin), self.logs.get(origin, [])
        return Position(begin.entry + len(log), begin.offset + sum(entry.count for entry in log))

    def entries(
        self, origin: Origin, first: int, last: int, bytes_max: int
    ) -> tuple[int, Sequence[LogEntry]]:
        begin, log = self.begin(origin), self.logs.get(origin, [])
        start = first - begin.entry - 1
        if start < 0:
            return 0, ()
        found = log[start : last - begin.entry]
        while len(found) > 1 and sum(len(entry.payload) for entry in found) > bytes_max:
            found.pop()
        return begin.offset + sum(entry.count for entry in log[:start]), found

    def start(self) -> None:
        """Whoever starts with a log that is not provably whole writes under another incarnation."""
        if not self.is_whole:
            self.incarnation += 1
        self.is_whole = True

    def write(self, persist: PersistLog) -> None:
        origin = persist.origin
        if persist.begin is not None:
            self.begins[origin], self.logs[origin] = persist.begin, []
        if persist.state is not None:
            self.state = persist.state
        begin = self.begins.setdefault(origin, NOWHERE)
        log = self.logs.setdefault(origin, [])
        del log[persist.first_index - begin.entry - 1 :]
        log += persist.entries

    def trim(self, origin: Origin, offset: int) -> None:
        """Whole entries below `offset`."""
        begin, log = self.begin(origin), self.logs.get(origin, [])
        count = 0
        while count < len(log) and begin.offset + log[count].count <= offset and log[count].count:
            begin = Position(begin.entry + 1, begin.offset + log[count].count)
            count += 1
            while count < len(log) and not log[count].count and begin.offset < offset:
                begin = Position(begin.entry + 1, begin.offset)
                count += 1
        if count:
            self.begins[origin], self.logs[origin] = begin, log[count:]

    def lose(self) -> None:
        """All but the number: the next start must raise it."""
        self.begins, self.logs, self.state, self.is_whole = {}, {}, None, False
