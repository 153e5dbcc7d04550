"""When a leader and all that follow it rest: no heartbeats, no time-outs, no ticks.

A group in which nothing happens has nothing to prove, and a node may have thousands. So a leader that has
said everything proposes rest with its heartbeats. A follower that has everything rests and says so. Once all
have said it in one round, the leader rests as well. Nobody waits for an answer then, and whoever speaks wakes
whom it speaks to:

- a leader wakes with a proposal, a read, a change, a question for votes, or news of a link, and its next
  heartbeat, which proposes no rest, wakes the others;
- a follower wakes with anything from its leader but a heartbeat that proposes rest, and with a question for
  votes. If its link to the leader closes, or nothing comes over it (`Silence`), it stands for election at
  once: the others refuse as long as they hear the leader, and their leader, asked as well, wakes.

Time stands still for a replica that rests, for a leader's count of who was heard lately as well. So what
tells a living leader from a dead one is the link between two nodes alone, which serves all groups of both.
Safety never depends on time: a leader that was replaced while it rested learns of it before it commits
anything, like any other.
"""

from millrace.replication.appending.appender import Appender
from millrace.replication.appending.core import Core
from millrace.replication.contract import ReplicaId
from millrace.replication.raft.messages import HeartbeatReply
from millrace.types import Index


class Rest:
    """A leader's part. `on_tick` before each tick's heartbeats, `on_reply` for each answer to them."""

    __slots__ = ("_agreed", "_appender", "_core", "_idle_ticks", "_last_index", "is_agreed")

    def __init__(self, core: Core, appender: Appender) -> None:
        self._core = core
        self._appender = appender
        self._last_index = Index(0)
        self._idle_ticks = 0
        # Who rests in the round that is under way.
        self._agreed: set[ReplicaId] = set()
        self.is_agreed = False
        """All rest, and so does the leader."""

    def disturb(self) -> None:
        """Something happens."""
        self._idle_ticks = 0
        self._agreed.clear()
        self.is_agreed = False

    def on_tick(self) -> bool:
        """Whether the next heartbeats propose rest."""
        core = self._core
        if core.log.last_index != self._last_index:
            self._last_index = core.log.last_index
            self.disturb()
        self._idle_ticks += 1
        self._agreed.clear()
        return self._may_rest()

    def _may_rest(self) -> bool:
        core = self._core
        is_idle = self._idle_ticks >= core.options.rest_ticks and core.log.last_index == self._last_index
        return is_idle and core.is_serving and not core.log.pending and self._appender.has_said_all

    def on_reply(self, sender: ReplicaId, body: HeartbeatReply) -> None:
        if not body.rests or body.context != self._appender.round or not self._may_rest():
            return
        self._agreed.add(sender)
        self.is_agreed = self._agreed >= self._appender.peers.keys()
