"""What only a leader has and decides: who counts, how far is committed, reads, the membership, handing over.

A `Leader` lives for one leadership of one term. It never truncates its log. An entry counts as committed when
a majority of the configuration in force has it on disk and it is of the leader's own term; older entries are
committed by the first such entry (figure 8 of the Raft paper shows why counting them is wrong). That first
entry is the no-op appended at once; until it is committed the leader neither knows the commit index for reads
nor may it change the membership, and until it is applied it takes no proposals [rule 2].

How entries get to the followers is the `Appender`'s. When the leader must go (no majority heard, its own disk
stalled, voted out) it sets `resigns`; the machine above acts on that.
"""

from collections.abc import Iterable

from millrace.replication.appending.appender import Appender
from millrace.replication.appending.changes import MembershipChanges
from millrace.replication.appending.core import Core
from millrace.replication.appending.handover import Handover
from millrace.replication.appending.reads import Reads
from millrace.replication.contract import (
    ChangeMembership,
    Propose,
    ReadIndex,
    RefusedReason,
    ReplicaId,
    TransferLeadership,
)
from millrace.replication.raft.messages import AppendReply, HeartbeatReply, TimeoutNow
from millrace.replication.raft.quorum import is_majority, reached_by_majority
from millrace.replication.raft.rest import Rest
from millrace.types import Index


class Leader:
    __slots__ = ("_changes", "_core", "_handover", "_reads", "appender", "resigns", "rest")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.resigns = False
        self.appender = Appender(core)
        self.rest = Rest(core, self.appender)
        self._reads = Reads(core, self.appender)
        self._changes = MembershipChanges(core, self.appender)
        self._handover: Handover | None = None

    def close(self, is_deposed: bool) -> None:
        """The leadership is over: answer everybody who waits. `is_deposed`: by a higher term."""
        self._reads.close()
        if self._handover is not None:
            self._handover.close(is_deposed)

    # ----------------------------------------------------------------------------------------- time

    def on_tick(self) -> None:
        core = self._core
        active = self.appender.heard_lately()
        if not is_majority(core.voters, active):
            # Perhaps those it does not hear still hear it: then they need not wait for its silence.
            self._ask_to_stand(self._best_of(self.appender.peers.keys() - set(active)))
            self.resigns = True
            return
        if core.disk_lag_ticks > core.options.disk_stall_ticks:
            # Nothing can be acknowledged from here; whoever has the most goes on without the time-out.
            self._ask_to_stand(self._best_voter())
            self.resigns = True
            return
        if self._handover is not None and self._handover.has_expired():
            self._handover = None
        if self.appender.tick(rests=self.rest.on_tick()):
            # A majority may have come about without an answer: the one that was missing left the group.
            self._confirm_reads()

    # ---------------------------------------------------------------------------------- replication

    def on_propose(self, event: Propose) -> None:
        if self._handover is not None:
            self._core.refuse(event.request, RefusedReason.TRANSFERRING)
        elif not self._core.is_serving:
            self._core.refuse(event.request, RefusedReason.NOT_READY)
        else:
            self.appender.on_propose(event)

    def on_append_reply(self, sender: ReplicaId, body: AppendReply) -> None:
        found = self.appender.on_append_reply(sender, body)
        if found is None:
            return
        peer, is_news = found
        if is_news:
            self.maybe_commit()
        self._maybe_hand_over()
        self.appender.go_on(peer)

    def on_heartbeat_reply(self, sender: ReplicaId, body: HeartbeatReply) -> None:
        peer = self.appender.on_heartbeat_reply(sender, body)
        if peer is not None:
            self._confirm_reads()
            self.appender.go_on_after_round(peer)
            if self._handover is None and not len(self._reads):
                self.rest.on_reply(sender, body)

    # --------------------------------------------------------------------------------------- commit

    def maybe_commit(self) -> None:
        core = self._core
        index = Index(self._reached_by_majority())
        if index <= core.commit or not self._is_of_own_term(index):
            return
        self.appender.commit(index)
        if core.replica not in core.configs.config.voters and core.configs.index <= index:
            self._ask_to_stand(self._best_voter())
            self.resigns = True

    def _reached_by_majority(self) -> int:
        return reached_by_majority(self._matches())

    def _matches(self) -> list[int]:
        """How far each voter's disk has this log."""
        core, own = self._core, self._own_match()
        peers = self.appender.peers
        return [own if voter == core.replica else peers[voter].match for voter in core.voters]

    def _own_match(self) -> Index:
        """The leader's own copy counts like any other: once it is on disk (thesis 10.2.1)."""
        return self._core.log.durable

    def _is_of_own_term(self, index: Index) -> bool:
        """Only such an entry is committed by counting; it commits those before it (figure 8)."""
        return self._core.log.term(index) == self._core.term

    # ---------------------------------------------------------------------------------------- reads

    def on_read_index(self, event: ReadIndex) -> None:
        if self._reads.on_read_index(event, needs_round=self._needs_round()):
            self._confirm_reads()

    def _needs_round(self) -> bool:
        """Somebody else could lead by now, unless this is the only voter."""
        return self._core.voters != (self._core.replica,)

    def _confirm_reads(self) -> None:
        if not len(self._reads):
            return
        core, peers = self._core, self.appender.peers
        rounds = [
            self.appender.round if voter == core.replica else peers[voter].context_acknowledged
            for voter in core.voters
        ]
        self._reads.confirm(reached_by_majority(rounds))

    # ----------------------------------------------------------------------------------- membership

    def on_change_membership(self, event: ChangeMembership) -> None:
        if self._handover is not None:
            self._core.refuse(event.request, RefusedReason.TRANSFERRING)
        else:
            self._changes.on_change_membership(event)

    # ------------------------------------------------------------------------------------- handover

    def on_transfer_leadership(self, event: TransferLeadership) -> None:
        core = self._core
        target = event.target if event.target is not None else self._best_voter()
        if target == core.replica:
            core.refuse(event.request, RefusedReason.ALREADY_SO)
        elif target is None or target not in core.configs.config.voters:
            core.refuse(event.request, RefusedReason.NO_SUCH_REPLICA)
        elif self._handover is not None:
            core.refuse(event.request, RefusedReason.TRANSFERRING)
        else:
            self._handover = Handover(core, self.appender, event.request, target)
            self._maybe_hand_over()

    def _maybe_hand_over(self) -> None:
        if self._handover is not None:
            self._handover.maybe_send()

    def _best_voter(self) -> ReplicaId | None:
        return self._best_of(self.appender.heard_lately())

    def _best_of(self, names: Iterable[ReplicaId]) -> ReplicaId | None:
        among = set(names)
        voters = [
            peer
            for name, peer in self.appender.peers.items()
            if name in self._core.configs.config.voters and name in among
        ]
        return max(voters, key=lambda peer: (peer.match, peer.replica)).replica if voters else None

    def _ask_to_stand(self, best: ReplicaId | None) -> None:
        if best is not None:
            self._core.send(best, TimeoutNow(term=self.appender.term))

    def check(self) -> None:
        """Invariants of a leadership."""
        core = self._core
        self.appender.check()
        if core.configs.index > core.commit >= self.appender.noop_index:
            base = core.configs.at(core.commit)
            changed = set(base.voters) ^ set(core.configs.config.voters)
            assert len(changed) <= 1, "two membership changes under way"
