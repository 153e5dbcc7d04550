"""The handing over of a leadership: the follower that is to lead gets everything, and then its call.

Proposals are refused meanwhile, so the target catches up. It has until the deadline to take over.
"""

from millrace.replication.appending.appender import Appender
from millrace.replication.appending.core import Core
from millrace.replication.contract import RefusedReason, ReplicaId, RequestId, Transferred
from millrace.replication.raft.messages import TimeoutNow


class Handover:
    """One that is under way."""

    __slots__ = ("_appender", "_core", "_deadline_tick", "_request", "_target", "is_sent")

    def __init__(self, core: Core, appender: Appender, request: RequestId, target: ReplicaId) -> None:
        self._core = core
        self._appender = appender
        self._request = request
        self._target = target
        self._deadline_tick = core.tick + core.options.election_ticks
        self.is_sent = False
        """From here on the other one may begin at any moment."""

    def maybe_send(self) -> None:
        """To be called whenever the target may have got something."""
        if not self.is_sent and self._may_follow(self._target):
            self.is_sent = True
            self._core.send(self._target, TimeoutNow(term=self._appender.term))

    def _may_follow(self, target: ReplicaId) -> bool:
        """Does it hold everything?"""
        peer = self._appender.peers.get(target)
        return peer is not None and peer.match == self._core.log.last_index

    def has_expired(self) -> bool:
        """Returns whether it took too long; whoever asked for it knows then."""
        if self._core.tick < self._deadline_tick:
            return False
        self._core.refuse(self._request, RefusedReason.TIMED_OUT)
        return True

    def close(self, is_deposed: bool) -> None:
        """The leadership is over. `is_deposed`: by a higher term."""
        if self.is_sent and is_deposed:
            self._core.reply(self._request, Transferred(target=self._target))
        else:
            self._core.refuse(self._request, RefusedReason.NOT_LEADER)
