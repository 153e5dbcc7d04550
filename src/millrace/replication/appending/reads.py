"""Linearizable reads: the commit index at the request, once those who count confirmed the leadership after.

This is ReadIndex of the Raft thesis (6.4). Every heartbeat round has a number, used once in a term; a term
has one leader, so (term, round) is never reused, not even after a restart. A read waits for a round that
started after it arrived: an answer to an earlier round proves nothing, because a newer leader may have been
elected between the two.
"""

from collections import deque

from millrace.replication.appending.appender import Appender
from millrace.replication.appending.core import Core
from millrace.replication.contract import ReadIndex, ReadReady, RefusedReason, RequestId
from millrace.types import Index


class Reads:
    """Waiting reads in order of arrival, hence of index and of round."""

    __slots__ = ("_appender", "_core", "_waiting")

    def __init__(self, core: Core, appender: Appender) -> None:
        self._core = core
        self._appender = appender
        # The first round that counts for it, the commit index when it came, the request.
        self._waiting: deque[tuple[int, Index, RequestId]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def on_read_index(self, event: ReadIndex, *, needs_round: bool) -> bool:
        """Returns whether it waits: the owner looks then whether it is confirmed already. `needs_round`:
        somebody else could lead by now."""
        core = self._core
        reason = self._refusal()
        if reason is not None:
            core.refuse(event.request, reason)
            return False
        if not needs_round:
            # Also where others wait: they came while somebody else still counted.
            core.reply(event.request, ReadReady(index=core.commit))
            return False
        if self._is_full:
            core.refuse(event.request, RefusedReason.OVERLOADED)
            return False
        self._waiting.append((self._first_round_that_counts(), core.commit, event.request))
        return True

    def _refusal(self) -> RefusedReason | None:
        return None if self._appender.has_current_term_commit else RefusedReason.NOT_READY

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= self._core.options.reads_pending_max

    def _first_round_that_counts(self) -> int:
        """The first that begins after the read came."""
        return self._appender.round + 1

    def confirm(self, confirmed: int) -> None:
        """Those who count answered every round up to this one."""
        waiting, core, newest = self._waiting, self._core, self._appender.round
        while waiting and waiting[0][0] <= confirmed:
            _, index, request = waiting.popleft()
            core.reply(request, ReadReady(index=index))
        # One round at a time: reads that come meanwhile share the next.
        if waiting and waiting[-1][0] > newest and confirmed >= newest:
            self._appender.begin_round()

    def close(self) -> None:
        for _, _, request in self._waiting:
            self._core.refuse(request, RefusedReason.NOT_LEADER)
        self._waiting.clear()
