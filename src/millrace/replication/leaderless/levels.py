"""Who waits for how many disks: publishers of a leaderless node, answered in the order in which they came.

A message has reached its level when so many other members hold its entry as the level asks for. They say so
of this node's own log when they have it (`Have`), and of all logs in their pulses. A repeat waits for all
that the node holds, as the message may stand in any log: its publisher was never told how far it got.
"""

from collections import deque
from collections.abc import Iterator
from typing import assert_never

from millrace.replication.contract import RequestId
from millrace.replication.leaderless.contacts import Peer
from millrace.replication.leaderless.messages import NOWHERE, Level, Origin, Position, WirePositions

# One that waits without a message counts as so much of what is unacknowledged.
_REPEAT_BYTES = 256


class Waiting:
    def __init__(self, origin: Origin, peers: dict[str, Peer], level: Level) -> None:
        self.level = level
        self.size_bytes = 0
        self._origin = origin
        self._peers = peers
        # The last own entry, bytes, request, and what is to be reached besides.
        self._queue: deque[tuple[int, int, RequestId, WirePositions]] = deque()

    def publish(self, request: RequestId, last_index: int, size_bytes: int) -> None:
        self._queue.append((last_index, size_bytes, request, ()))
        self.size_bytes += size_bytes

    def repeat(self, request: RequestId, last_index: int, positions: WirePositions) -> None:
        self._queue.append((last_index, _REPEAT_BYTES, request, positions))
        self.size_bytes += _REPEAT_BYTES

    def reached(self, durable_index: int) -> Iterator[RequestId]:
        """Those that may be answered now; `durable_index` is how far the own disk has the own log."""
        while self._queue:
            index, size_bytes, request, besides = self._queue[0]
            if index > durable_index or not self._is_reached(index) or not all(map(self._is_spread, besides)):
                return
            self._queue.popleft()
            self.size_bytes -= size_bytes
            yield request

    def _is_reached(self, index: int) -> bool:
        return sum(peer.acked >= index for peer in self._peers.values()) >= self._others_wanted()

    def _is_spread(self, held: tuple[Origin, Position]) -> bool:
        """The same for the log of another."""
        origin, position = held
        if origin == self._origin:
            return True
        known = [(peer.positions or {}).get(origin, NOWHERE) for peer in self._peers.values()]
        return sum(one.entry >= position.entry for one in known) >= self._others_wanted()

    def _others_wanted(self) -> int:
        others = len(self._peers)
        match self.level:
            case Level.LOCAL:
                wanted = 0
            case Level.ONE:
                wanted = 1
            case Level.MAJORITY:
                wanted = (others + 1) // 2
            case Level.ALL:
                wanted = others
            case _:
                assert_never(self.level)
        return min(wanted, others)
