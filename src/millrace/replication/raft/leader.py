"""What only a leader has and does: replicate, count, confirm reads, change the membership, hand over.

A `Leader` lives for one leadership of one term. It never truncates its log. An entry counts as committed when
a majority of the configuration in force has it on disk and it is of the leader's own term; older entries are
committed by the first such entry (figure 8 of the Raft paper shows why counting them is wrong). That first
entry is the no-op appended here at once; until it is committed the leader neither knows the commit index for
reads nor may it change the membership, and until it is applied it takes no proposals [rule 2].

When it must go (no majority heard, its own disk stalled, voted out) it sets `resigns`; the machine above
acts on that.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.errors import ProtocolError
from millrace.replication.contract import (
    Accepted,
    ChangeKind,
    ChangeMembership,
    EntryKind,
    PeerStatus,
    Propose,
    ReadIndex,
    ReadReady,
    RefusedReason,
    ReplicaId,
    RequestId,
    TransferLeadership,
    Transferred,
)
from millrace.replication.raft.core import Core
from millrace.replication.raft.membership import change
from millrace.replication.raft.messages import (
    Append,
    AppendReject,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
)
from millrace.replication.raft.progress import Pace, Progress
from millrace.replication.raft.quorum import is_majority, reached_by_majority
from millrace.replication.raft.reads import Reads
from millrace.types import Index


@dataclass(slots=True, kw_only=True)
class Handover:
    """A leadership transfer under way."""

    request: RequestId
    target: ReplicaId
    deadline_tick: int
    is_sent: bool = False


class Leader:
    __slots__ = (
        "_append_cached",
        "_bytes_cached",
        "_context",
        "_core",
        "_handover",
        "_heartbeat_elapsed_ticks",
        "_peers",
        "_reads",
        "_uncommitted",
        "_uncommitted_bytes",
        "noop_index",
        "resigns",
        "term",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        self.term = core.term
        self.resigns = False
        self._peers: dict[ReplicaId, Progress] = {}
        self._reads = Reads()
        self._handover: Handover | None = None
        self._context = 0
        self._heartbeat_elapsed_ticks = 0
        self._uncommitted: deque[tuple[Index, int]] = deque()
        self._uncommitted_bytes = 0
        self._append_cached: Append | None = None
        self._bytes_cached = 0
        self._sync_peers()
        self.noop_index = core.log.append(core.term, EntryKind.NOOP, (b"",))[0].index
        self._replicate_all()

    def close(self, is_deposed: bool) -> None:
        """The leadership is over: answer everybody who waits. `is_deposed`: by a higher term."""
        for request in self._reads.take_all():
            self._core.refuse(request, RefusedReason.NOT_LEADER)
        handover = self._handover
        if handover is not None:
            if handover.is_sent and is_deposed:
                self._core.reply(handover.request, Transferred(target=handover.target))
            else:
                self._core.refuse(handover.request, RefusedReason.NOT_LEADER)

    # ----------------------------------------------------------------------------------------- time

    def on_tick(self) -> None:
        core, options = self._core, self._core.options
        if not is_majority(core.voters, self._active_voters()):
            # Perhaps those it does not hear still hear it: then they need not wait for its silence.
            unheard = self._peers.keys() - set(self._active_voters())
            self._ask_to_stand(self._best_of(unheard))
            self.resigns = True
            return
        if core.disk_lag_ticks > options.disk_stall_ticks:
            # Nothing can be acknowledged from here; whoever has the most goes on without the time-out.
            self._ask_to_stand(self._best_voter())
            self.resigns = True
            return
        handover = self._handover
        if handover is not None and core.tick >= handover.deadline_tick:
            core.refuse(handover.request, RefusedReason.TIMED_OUT)
            self._handover = None
        self._heartbeat_elapsed_ticks += 1
        if self._heartbeat_elapsed_ticks >= options.heartbeat_ticks:
            self._send_heartbeats()
            # A majority may have come about without an answer: the one that was missing left the group.
            self._confirm_reads()

    def _active_voters(self) -> list[ReplicaId]:
        oldest = self._core.tick - self._core.options.election_ticks
        active = [name for name, peer in self._peers.items() if peer.heard_tick >= oldest]
        return [*active, self._core.replica]

    def _send_heartbeats(self) -> None:
        """A round with a fresh context; it also confirms the reads that came before it."""
        self._heartbeat_elapsed_ticks = 0
        self._context += 1
        for peer in self._peers.values():
            self._send_heartbeat(peer, self._context)

    def _send_heartbeat(self, peer: Progress, context: int) -> None:
        commit = min(self._core.commit, peer.match)
        peer.commit_sent = commit
        self._core.send(peer.replica, Heartbeat(term=self.term, commit=commit, context=context))

    # ---------------------------------------------------------------------------------- replication

    def on_propose(self, event: Propose) -> None:
        core = self._core
        bytes_count = sum(map(len, event.payloads))
        reason = self._refusal(len(event.payloads), bytes_count)
        if reason is not None:
            core.refuse(event.request, reason)
            return
        entries = core.log.append(core.term, event.kind, event.payloads)
        self._uncommitted.append((entries[-1].index, bytes_count))
        self._uncommitted_bytes += bytes_count
        core.reply(
            event.request,
            Accepted(term=core.term, first_index=entries[0].index, last_index=entries[-1].index),
        )
        self._replicate_all()

    def _refusal(self, entries_count: int, bytes_count: int) -> RefusedReason | None:
        core, options = self._core, self._core.options
        if self._handover is not None:
            return RefusedReason.TRANSFERRING
        if not core.is_serving:
            return RefusedReason.NOT_READY
        if core.is_disk_behind:
            return RefusedReason.OVERLOADED
        if core.log.last_index - core.commit + entries_count > options.uncommitted_entries_max:
            return RefusedReason.OVERLOADED
        # One proposal larger than the bound must still be possible when nothing else waits.
        if self._uncommitted_bytes and self._uncommitted_bytes + bytes_count > options.uncommitted_bytes_max:
            return RefusedReason.OVERLOADED
        return None

    def _replicate_all(self) -> None:
        for peer in self._peers.values():
            self._replicate(peer)
        self._append_cached = None

    def _replicate(self, peer: Progress) -> None:
        """Send what this follower lacks, as far as its window allows."""
        if peer.pace is Pace.SNAPSHOT:
            self._send_chunks(peer)
            return
        if peer.pace is Pace.PROBE:
            if not peer.is_probe_out:
                self._send_append(peer)
            return
        last = self._core.log.last_index
        while peer.next <= last and peer.window_is_open(self._core.options):
            if not self._send_append(peer):
                return

    def _send_append(self, peer: Progress) -> bool:
        """One append from `peer.next` on. False if nothing that moves `next` could be sent."""
        append = self._make_append(peer.next)
        if append is None:
            snapshot = self._core.log.snapshot()
            if snapshot is not None:
                peer.become_snapshot(snapshot)
                self._send_chunks(peer)
            return False
        last = Index(append.prev_index + len(append.entries))
        if peer.pace is Pace.PROBE:
            peer.is_probe_out = True
        elif append.entries:
            peer.sent(last, self._bytes_cached)
        else:
            return False
        self._hand_over_append(peer, append, last)
        return True

    def _hand_over_append(self, peer: Progress, append: Append, last: Index) -> None:
        """It leaves, which says nothing about what the follower has: only its answer does."""
        peer.commit_sent = min(append.commit, last)
        self._core.send(peer.replica, append)

    def _make_append(self, first: Index) -> Append | None:
        """The append that begins at `first`; None if the entry before it is compacted. Followers that stand
        at the same place share one message."""
        core, options = self._core, self._core.options
        prev_index = Index(first - 1)
        cached = self._append_cached
        if cached is not None and cached.prev_index == prev_index and cached.commit == core.commit:
            return cached
        prev_term = core.log.term(prev_index)
        if prev_term is None or first < core.log.first_index:
            return None
        last = min(core.log.last_index, Index(first + options.append_entries_max - 1))
        entries = tuple(core.log.entries(first, last, options.append_bytes_max)) if first <= last else ()
        self._bytes_cached = sum(len(entry.payload) for entry in entries)
        self._append_cached = Append(
            term=self.term,
            prev_index=prev_index,
            prev_term=prev_term,
            commit=core.commit,
            entries=entries,
        )
        return self._append_cached

    def on_append_reply(self, sender: ReplicaId, body: AppendReply) -> None:
        peer = self._heard(sender)
        if peer is None:
            return
        matched = self._claimed(sender, body)
        if matched < peer.match:
            return  # late, and no reason to ask again
        peer.is_probe_out = False
        if peer.acknowledge(matched):
            self.maybe_commit()
        self._maybe_hand_over()
        self._replicate(peer)
        self._append_cached = None
        self._send_commit_if_due(peer)

    def _claimed(self, sender: ReplicaId, body: AppendReply) -> Index:
        if body.matched > self._core.log.last_index:
            raise ProtocolError(f"{sender} claims entry {body.matched}, which this leader never had")
        return body.matched

    def on_append_reject(self, sender: ReplicaId, body: AppendReject) -> None:
        peer = self._heard(sender)
        if peer is None or peer.pace is Pace.SNAPSHOT:
            return
        is_answer = peer.pace is not Pace.PROBE or body.prev_index == peer.next - 1
        if body.is_repairing and body.hint_index < peer.match:
            peer.match = body.hint_index
        elif body.prev_index <= peer.match:
            if peer.pace is not Pace.PROBE or not is_answer:
                return  # a late answer: that place is known to match
            # The end of its log was damaged while it was down, and looked as if it had never been written.
            peer.match = min(peer.match, body.hint_index)
        elif not is_answer:
            return
        agreed = body.hint_index
        if agreed >= self._core.log.first_index - 1:
            agreed = self._core.log.last_index_not_above(body.hint_index, body.hint_term)
        peer.become_probe(Index(min(body.prev_index, agreed + 1)))
        self._replicate(peer)
        self._append_cached = None

    def on_heartbeat_reply(self, sender: ReplicaId, body: HeartbeatReply) -> None:
        peer = self._heard(sender)
        if peer is None:
            return
        if body.context > self._context:
            raise ProtocolError(f"{sender} answers round {body.context}, which this leader never began")
        peer.context_acknowledged = max(peer.context_acknowledged, body.context)
        self._confirm_reads()
        if peer.transfer is not None:
            peer.transfer.round_passed()
            self._restart_transfer_if_replaced(peer)
        if peer.pace is Pace.REPLICATE and peer.match < self._core.log.last_index:
            self._nudge(peer)
        if peer.pace is Pace.PROBE:
            self._probe_again(peer)
        elif peer.pace is Pace.SNAPSHOT or peer.match < self._core.log.last_index:
            self._replicate(peer)
        self._append_cached = None
        self._send_commit_if_due(peer)

    def _nudge(self, peer: Progress) -> None:
        """Appends that were lost after the last one arrived are noticed by nobody; an empty append at the
        far end of what was sent is rejected then. If that place is compacted meanwhile there is nothing to
        compare with, and what the follower lacks is in the snapshot."""
        if peer.next - 1 != peer.match and not self._send_empty(peer):
            peer.become_probe()

    def _probe_again(self, peer: Progress) -> None:
        """The last one got lost, or its entries keep the follower busy: this one has none. Also where nothing
        is lacking, because until it is answered the follower counts as not caught up."""
        peer.is_probe_out = self._send_empty(peer)
        self._replicate(peer)

    def _send_empty(self, peer: Progress) -> bool:
        """An append without entries behind what was sent; False if that place is compacted."""
        prev_index = Index(peer.next - 1)
        prev_term = self._core.log.term(prev_index)
        if prev_term is not None:
            self._core.send(
                peer.replica,
                Append(term=self.term, prev_index=prev_index, prev_term=prev_term, commit=self._core.commit),
            )
        return prev_term is not None

    def on_persisted(self) -> None:
        self.maybe_commit()

    def _heard(self, sender: ReplicaId) -> Progress | None:
        peer = self._peers.get(sender)
        if peer is not None:
            peer.heard_tick = self._core.tick
        return peer

    def link_changed(self, replica: ReplicaId, is_open: bool) -> None:
        """Whatever was on the way is lost: find the common point again, at once if the link is there."""
        peer = self._peers.get(replica)
        if peer is None:
            return
        peer.become_probe(peer.next if peer.match == 0 else None)
        if is_open:
            self._replicate(peer)
            self._append_cached = None

    # --------------------------------------------------------------------------------------- commit

    def maybe_commit(self) -> None:
        core = self._core
        index = Index(self._reached_by_majority())
        if index <= core.commit:
            return
        if not self._is_of_own_term(index):
            return
        core.commit_to(index)
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        self._sync_peers()
        for peer in self._peers.values():
            self._send_commit_if_due(peer)
        if core.replica not in core.configs.config.voters and core.configs.index <= index:
            self._ask_to_stand(self._best_voter())
            self.resigns = True

    def _reached_by_majority(self) -> int:
        return reached_by_majority(self._matches())

    def _matches(self) -> list[int]:
        """How far each voter's disk has this log."""
        core, own = self._core, self._own_match()
        return [own if voter == core.replica else self._peers[voter].match for voter in core.voters]

    def _own_match(self) -> Index:
        """The leader's own copy counts like any other: once it is on disk (thesis 10.2.1)."""
        return self._core.log.durable

    def _is_of_own_term(self, index: Index) -> bool:
        """Only such an entry is committed by counting; it commits those before it (figure 8)."""
        return self._core.log.term(index) == self._core.term

    def _send_commit_if_due(self, peer: Progress) -> None:
        """[rule 20]: at once if no append is pending that would carry it or bring an answer."""
        if not peer.is_append_pending and min(self._core.commit, peer.match) > peer.commit_sent:
            self._send_heartbeat(peer, 0)

    # ---------------------------------------------------------------------------------------- reads

    def on_read_index(self, event: ReadIndex) -> None:
        core = self._core
        reason = self._read_refusal()
        if reason is not None:
            core.refuse(event.request, reason)
        elif not self._needs_round():
            core.reply(event.request, ReadReady(index=core.commit))
        else:
            self._reads.add(event.request, core.commit, self._first_round_that_counts())
            self._confirm_reads()

    @property
    def _has_current_term_commit(self) -> bool:
        """Until then a new leader does not know how far its predecessors committed."""
        return self._core.commit >= self.noop_index

    def _read_refusal(self) -> RefusedReason | None:
        if not self._has_current_term_commit:
            return RefusedReason.NOT_READY
        return RefusedReason.OVERLOADED if self._is_full_of_reads else None

    @property
    def _is_full_of_reads(self) -> bool:
        return len(self._reads) >= self._core.options.reads_pending_max

    def _needs_round(self) -> bool:
        """Somebody else could lead by now, unless this is the only voter."""
        return self._core.voters != (self._core.replica,)

    def _first_round_that_counts(self) -> int:
        """The first that begins after the read came."""
        return self._context + 1

    def _confirm_reads(self) -> None:
        if not len(self._reads):
            return
        core = self._core
        confirmed = reached_by_majority(
            [
                self._context if voter == core.replica else self._peers[voter].context_acknowledged
                for voter in core.voters
            ]
        )
        for request, index in self._reads.take_confirmed(confirmed):
            core.reply(request, ReadReady(index=index))
        # One round at a time: reads that come meanwhile share the next.
        if self._reads.needs(self._context) and confirmed >= self._context:
            self._send_heartbeats()

    # ----------------------------------------------------------------------------------- membership

    def on_change_membership(self, event: ChangeMembership) -> None:
        core = self._core
        config = change(core.configs.config, event.kind, event.replica)
        reason = self._change_refusal(event)
        if reason is None and isinstance(config, RefusedReason):
            reason = config
        if reason is not None:
            core.refuse(event.request, reason)
            return
        assert not isinstance(config, RefusedReason)
        entry = core.log.append(core.term, EntryKind.CONFIG, (config.encode(),))[0]
        core.configs.append(entry)
        core.reply(event.request, Accepted(term=core.term, first_index=entry.index, last_index=entry.index))
        self._sync_peers()
        self._replicate_all()

    def _change_refusal(self, event: ChangeMembership) -> RefusedReason | None:
        if self._handover is not None:
            return RefusedReason.TRANSFERRING
        if self._core.is_disk_behind:
            return RefusedReason.OVERLOADED
        reason = self._unsettled()
        if reason is not None:
            return reason
        if event.kind is ChangeKind.PROMOTE:
            peer = self._peers.get(event.replica)
            if peer is not None and not self._is_caught_up(peer):
                return RefusedReason.NOT_CAUGHT_UP
        return None

    def _unsettled(self) -> RefusedReason | None:
        """The two rules under which changes by one replica are safe (see `membership.py`)."""
        if not self._has_current_term_commit:
            return RefusedReason.NOT_READY
        return RefusedReason.CHANGE_PENDING if self._is_change_pending else None

    @property
    def _is_change_pending(self) -> bool:
        return self._core.configs.index > self._core.commit

    def _is_caught_up(self, peer: Progress) -> bool:
        core = self._core
        return (
            peer.pace is Pace.REPLICATE
            and peer.match + core.options.caught_up_entries_max >= core.log.last_index
            and peer.heard_tick >= core.tick - core.options.election_ticks
        )

    def _sync_peers(self) -> None:
        """Follow the configuration. A replica that left is told until its leaving is committed, so that it
        knows and stays quiet."""
        core = self._core
        members = core.configs.config.members
        for name in members:
            if name in self._peers:
                self._peers[name].is_leaving = False
            elif name != core.replica:
                self._peers[name] = Progress(name, Index(core.log.last_index + 1), core.tick)
        if len(self._peers) <= len(members) - (core.replica in members):
            return
        is_committed = core.configs.index <= core.commit
        for name in [name for name in self._peers if name not in members]:
            peer = self._peers[name]
            peer.is_leaving = True
            if is_committed:
                self._dismiss(peer)

    def _dismiss(self, peer: Progress) -> None:
        """Its leaving is committed: it is told so, and forgotten."""
        self._send_heartbeat(peer, 0)
        del self._peers[peer.replica]

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
            self._handover = Handover(
                request=event.request,
                target=target,
                deadline_tick=core.tick + core.options.election_ticks,
            )
            self._maybe_hand_over()

    def _maybe_hand_over(self) -> None:
        handover = self._handover
        if handover is None or handover.is_sent:
            return
        if self._may_follow(handover.target):
            handover.is_sent = True
            self._core.send(handover.target, TimeoutNow(term=self.term))

    def _may_follow(self, target: ReplicaId) -> bool:
        """Does it hold everything? Proposals are refused meanwhile, so it will."""
        peer = self._peers.get(target)
        return peer is not None and peer.match == self._core.log.last_index

    def _best_voter(self) -> ReplicaId | None:
        return self._best_of(self._active_voters())

    def _best_of(self, names: Iterable[ReplicaId]) -> ReplicaId | None:
        among = set(names)
        voters = [
            peer
            for name, peer in self._peers.items()
            if name in self._core.configs.config.voters and name in among
        ]
        return max(voters, key=lambda peer: (peer.match, peer.replica)).replica if voters else None

    def _ask_to_stand(self, best: ReplicaId | None) -> None:
        if best is not None:
            self._core.send(best, TimeoutNow(term=self.term))

    # ------------------------------------------------------------------------------------ snapshots

    def _send_chunks(self, peer: Progress) -> None:
        transfer, core = peer.transfer, self._core
        assert transfer is not None
        if not transfer.is_offered:
            transfer.is_offered = True
            core.send(peer.replica, SnapshotChunk(term=self.term, snapshot=transfer.snapshot, position=0))
        while transfer.window_is_open(core.options):
            assert transfer.position is not None
            data = core.log.snapshot_bytes(transfer.snapshot, transfer.position, core.options.chunk_bytes_max)
            if not data:
                return
            core.send(
                peer.replica,
                SnapshotChunk(
                    term=self.term, snapshot=transfer.snapshot, position=transfer.position, data=data
                ),
            )
            transfer.position += len(data)

    def on_snapshot_reply(self, sender: ReplicaId, body: SnapshotReply) -> None:
        peer = self._heard(sender)
        if peer is None or peer.transfer is None or peer.transfer.snapshot.index != body.index:
            return
        if body.position > peer.transfer.snapshot.size_bytes:
            raise ProtocolError(f"{sender} claims more of a snapshot than there is")
        peer.transfer.acknowledge(body.position)
        self._send_chunks(peer)

    def _restart_transfer_if_replaced(self, peer: Progress) -> None:
        """A transfer that stands still because its snapshot is gone goes on with the newest."""
        snapshot = self._core.log.snapshot()
        transfer = peer.transfer
        if transfer is not None and transfer.position is None and snapshot is not None:
            if snapshot != transfer.snapshot:
                peer.become_snapshot(snapshot)

    # --------------------------------------------------------------------------------------- status

    def peers_status(self) -> tuple[PeerStatus, ...]:
        active = self._active_voters()
        return tuple(
            PeerStatus(
                replica=name,
                is_voter=name in self._core.configs.config.voters,
                match=peer.match,
                is_active=name in active,
                is_caught_up=self._is_caught_up(peer),
            )
            for name, peer in self._peers.items()
        )

    def check(self) -> None:
        """Invariants of a leadership."""
        core = self._core
        assert self.term == core.term, "a leader of another term"
        assert core.log.last_term == self.term, "a leader's log ends in its own term"
        for peer in self._peers.values():
            assert peer.match < peer.next <= core.log.last_index + 1, f"progress of {peer.replica}"
        if core.configs.index > core.commit >= self.noop_index:
            base = core.configs.at(core.commit)
            changed = set(base.voters) ^ set(core.configs.config.voters)
            assert len(changed) <= 1, "two membership changes under way"
