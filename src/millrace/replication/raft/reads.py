"""Linearizable reads: the commit index at the request, once a majority has confirmed the leadership after it.

Every heartbeat round has a context number, used once in a term; a term has one leader, so (term, context) is
never reused, not even after a restart. A read waits for a round that started after it arrived: an answer to
an earlier round proves nothing, because a newer leader may have been elected between the two.
"""

from collections import deque

from millrace.replication.contract import RequestId
from millrace.types import Index


class Reads:
    """Waiting reads in order of arrival, hence of index and of context."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Index, RequestId]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: RequestId, index: Index, context: int) -> None:
        """`context` is the first round that counts for this read."""
        self._waiting.append((context, index, request))

    def needs(self, context: int) -> bool:
        """Does anything wait for a round beyond this one?"""
        return bool(self._waiting) and self._waiting[-1][0] > context

    def take_confirmed(self, context: int) -> list[tuple[RequestId, Index]]:
        """Those that a majority's answers up to this context confirm."""
        confirmed = []
        while self._waiting and self._waiting[0][0] <= context:
            _, index, request = self._waiting.popleft()
            confirmed.append((request, index))
        return confirmed

    def take_all(self) -> list[RequestId]:
        requests = [request for _, _, request in self._waiting]
        self._waiting.clear()
        return requests
