"""What the one who writes a log does for those who follow it: entries, heartbeats, snapshots, their progress.

A Raft leader and a pair's primary each own an `Appender` for one term. It sends what a follower lacks as far
as the follower's window allows, takes the answers, tells the commit index, and accepts proposals within their
bounds. It never decides who counts, how far the log is committed, or whether its owner may serve: the owner
does, and says so by `commit`.

The first entry of a term is a no-op, appended here at once: until that one is committed nothing is known
about how far the log was committed before.
"""

from collections import deque

from millrace.errors import ProtocolError
from millrace.replication.appending.core import Core
from millrace.replication.appending.progress import Pace, Progress
from millrace.replication.contract import (
    Accepted,
    Config,
    EntryKind,
    PeerStatus,
    Propose,
    RefusedReason,
    ReplicaId,
)
from millrace.replication.raft.messages import (
    Append,
    AppendReject,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
)
from millrace.types import Index

# A follower whose next entry the leader cannot read waits for so many election times, in which other replicas
# may give it again; then it gets a snapshot.
_LACKING_ELECTIONS = 30


class Appender:
    __slots__ = (
        "_append_cached",
        "_bytes_cached",
        "_core",
        "_followed",
        "_heartbeat_elapsed_ticks",
        "_uncommitted",
        "_uncommitted_bytes",
        "noop_index",
        "peers",
        "round",
        "term",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        self.term = core.term
        self.peers: dict[ReplicaId, Progress] = {}
        self.round = 0
        """The number of the last round of heartbeats, used once in a term."""
        self._heartbeat_elapsed_ticks = 0
        self._uncommitted: deque[tuple[Index, int]] = deque()
        self._uncommitted_bytes = 0
        self._append_cached: Append | None = None
        self._bytes_cached = 0
        # The configuration of which all members are among the peers, and nobody else.
        self._followed: Config | None = None
        self.follow_config()
        self.noop_index = core.log.append(core.term, EntryKind.NOOP, (b"",))[0].index
        self.replicate_all()

    @property
    def has_current_term_commit(self) -> bool:
        """Until then a new leader does not know how far its predecessors committed."""
        return self._core.commit >= self.noop_index

    # ----------------------------------------------------------------------------------- heartbeats

    def tick(self, *, rests: bool = False) -> bool:
        """Returns whether a round began. `rests`: there is nothing else to say."""
        self._heartbeat_elapsed_ticks += 1
        if self._heartbeat_elapsed_ticks < self._core.options.heartbeat_ticks:
            return False
        self.begin_round(rests=rests)
        return True

    def begin_round(self, *, rests: bool = False) -> None:
        """A round with a fresh number; it also confirms the reads that came before it."""
        self._heartbeat_elapsed_ticks = 0
        self.round += 1
        for peer in self.peers.values():
            self._send_heartbeat(peer, self.round, rests=rests)

    def _send_heartbeat(self, peer: Progress, context: int, *, rests: bool = False) -> None:
        commit = min(self._core.commit, peer.match)
        peer.commit_sent = commit
        self._core.send(peer.replica, Heartbeat(term=self.term, commit=commit, context=context, rests=rests))

    @property
    def has_said_all(self) -> bool:
        """Whether everything is committed, everybody has it and knows so, and all were heard lately."""
        core = self._core
        last, oldest = core.log.last_index, core.tick - core.options.election_ticks
        return core.commit == last and all(
            peer.match == peer.commit_sent == last
            and peer.heard_tick >= oldest
            and peer.pace is Pace.REPLICATE
            and not peer.is_append_pending
            and not peer.is_leaving
            for peer in self.peers.values()
        )

    def _send_commit_if_due(self, peer: Progress) -> None:
        """[rule 20]: at once if no append is pending that would carry it or bring an answer."""
        if not peer.is_append_pending and min(self._core.commit, peer.match) > peer.commit_sent:
            self._send_heartbeat(peer, 0)

    # ------------------------------------------------------------------------------------ proposals

    def on_propose(self, event: Propose) -> None:
        core = self._core
        bytes_count = sum(map(len, event.payloads))
        if self._is_too_much(len(event.payloads), bytes_count):
            core.refuse(event.request, RefusedReason.OVERLOADED)
            return
        entries = core.log.append(core.term, event.kind, event.payloads)
        self._uncommitted.append((entries[-1].index, bytes_count))
        self._uncommitted_bytes += bytes_count
        core.reply(
            event.request,
            Accepted(term=core.term, first_index=entries[0].index, last_index=entries[-1].index),
        )
        self.replicate_all()

    def _is_too_much(self, entries_count: int, bytes_count: int) -> bool:
        core, options = self._core, self._core.options
        if core.is_disk_behind:
            return True
        if core.log.last_index - core.commit + entries_count > options.uncommitted_entries_max:
            return True
        # One proposal larger than the bound must still be possible when nothing else waits.
        is_beyond = self._uncommitted_bytes + bytes_count > options.uncommitted_bytes_max
        return bool(self._uncommitted_bytes) and is_beyond

    def commit(self, index: Index) -> None:
        """Everything up to here is committed: tell everybody."""
        self._core.commit_to(index)
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        self.follow_config()
        for peer in self.peers.values():
            self._send_commit_if_due(peer)

    # -------------------------------------------------------------------------------------- appends

    def replicate_all(self) -> None:
        for peer in self.peers.values():
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
        if append is None or self._is_lacking_for_long(peer, append):
            snapshot = self._core.log.snapshot()
            if snapshot is not None and (append is None or snapshot.index >= peer.next):
                peer.become_snapshot(snapshot)
                self._send_chunks(peer)
                return False
        if append is None:
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

    def _is_lacking_for_long(self, peer: Progress, append: Append) -> bool:
        """What this follower needs cannot be had from the log: it is damaged here, and other replicas are
        asked for it. Where none of them has it either, the follower would wait for ever."""
        core = self._core
        if append.entries or peer.next > core.log.last_index:
            peer.lacking_tick = None
            return False
        if peer.lacking_tick is None:
            peer.lacking_tick = core.tick
        return core.tick - peer.lacking_tick >= _LACKING_ELECTIONS * core.options.election_ticks

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

    # -------------------------------------------------------------------------------------- answers

    def heard(self, sender: ReplicaId) -> Progress | None:
        peer = self.peers.get(sender)
        if peer is not None:
            peer.heard_tick = self._core.tick
        return peer

    def on_append_reply(self, sender: ReplicaId, body: AppendReply) -> tuple[Progress, bool] | None:
        """Whose answer it is, and whether its match rose; None for one that says nothing. The owner counts,
        then calls `go_on`."""
        peer = self.heard(sender)
        if peer is None:
            return None
        matched = self._claimed(sender, body)
        if matched < peer.match:
            return None  # late, and no reason to ask again
        peer.is_probe_out = False
        return peer, peer.acknowledge(matched)

    def _claimed(self, sender: ReplicaId, body: AppendReply) -> Index:
        if body.matched > self._core.log.last_index:
            raise ProtocolError(f"{sender} claims entry {body.matched}, which this leader never had")
        return body.matched

    def go_on(self, peer: Progress) -> None:
        """After its answer: the next entries, and how far it may commit."""
        self._replicate(peer)
        self._append_cached = None
        self._send_commit_if_due(peer)

    def on_append_reject(self, sender: ReplicaId, body: AppendReject) -> None:
        peer = self.heard(sender)
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

    def on_heartbeat_reply(self, sender: ReplicaId, body: HeartbeatReply) -> Progress | None:
        """Whose answer it is. The owner confirms reads, then calls `go_on_after_round`."""
        peer = self.heard(sender)
        if peer is None:
            return None
        if body.context > self.round:
            raise ProtocolError(f"{sender} answers round {body.context}, which this leader never began")
        peer.context_acknowledged = max(peer.context_acknowledged, body.context)
        return peer

    def go_on_after_round(self, peer: Progress) -> None:
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

    def link_changed(self, replica: ReplicaId, is_open: bool) -> None:
        """Whatever was on the way is lost: find the common point again, at once if the link is there."""
        peer = self.peers.get(replica)
        if peer is None:
            return
        peer.become_probe(peer.next if peer.match == 0 else None)
        if is_open:
            self._replicate(peer)
            self._append_cached = None

    # ----------------------------------------------------------------------------------- membership

    def follow_config(self) -> None:
        """Follow the configuration. A replica that left is told until its leaving is committed, so that it
        knows and stays quiet."""
        core = self._core
        config = core.configs.config
        if config is self._followed:
            return
        members = config.members
        for name in members:
            if name in self.peers:
                self.peers[name].is_leaving = False
            elif name != core.replica:
                self.peers[name] = Progress(name, Index(core.log.last_index + 1), core.tick)
        if len(self.peers) <= len(members) - (core.replica in members):
            self._followed = config
            return
        is_committed = core.configs.index <= core.commit
        for name in [name for name in self.peers if name not in members]:
            peer = self.peers[name]
            peer.is_leaving = True
            if is_committed:
                self._dismiss(peer)

    def _dismiss(self, peer: Progress) -> None:
        """Its leaving is committed: it is told so, and forgotten."""
        self._send_heartbeat(peer, 0)
        del self.peers[peer.replica]

    def is_caught_up(self, peer: Progress) -> bool:
        core = self._core
        return (
            peer.pace is Pace.REPLICATE
            and peer.match + core.options.caught_up_entries_max >= core.log.last_index
            and peer.heard_tick >= core.tick - core.options.election_ticks
        )

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
        peer = self.heard(sender)
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

    def heard_lately(self) -> list[ReplicaId]:
        """Those who said something within an election's time, and this replica itself."""
        oldest = self._core.tick - self._core.options.election_ticks
        return [*(name for name, peer in self.peers.items() if peer.heard_tick >= oldest), self._core.replica]

    def peers_status(self) -> tuple[PeerStatus, ...]:
        active = self.heard_lately()
        return tuple(
            PeerStatus(
                replica=name,
                is_voter=name in self._core.configs.config.voters,
                match=peer.match,
                is_active=name in active,
                is_caught_up=self.is_caught_up(peer),
            )
            for name, peer in self.peers.items()
        )

    def check(self) -> None:
        """Invariants of whoever writes a log."""
        core = self._core
        assert self.term == core.term, "a leader of another term"
        assert core.log.last_term == self.term, "a leader's log ends in its own term"
        for peer in self.peers.values():
            assert peer.match < peer.next <= core.log.last_index + 1, f"progress of {peer.replica}"
