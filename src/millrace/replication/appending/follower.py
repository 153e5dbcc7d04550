"""What a replica does with what the leader of its term sends: appends, heartbeats, pieces of a snapshot.

Whatever is answered as matched is on this disk before the answer leaves. Up to the commit index the log is
never touched: a leader's log holds every committed entry, so that part of an append is known to be equal.
"""

from millrace.replication.appending.core import Core
from millrace.replication.contract import (
    ConfigAt,
    EntryKind,
    Repaired,
    ReplicaId,
    Snapshot,
    StageSnapshot,
    checksum,
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
from millrace.types import Index, Term


class Follower:
    """Holds the incoming snapshot, so a download goes on under another leader that has the same one."""

    __slots__ = ("_checksum", "_core", "_matched", "_position", "_snapshot")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._snapshot: Snapshot | None = None
        self._position = 0
        self._checksum = 0
        self._matched: tuple[Term, Index] = (Term(0), Index(0))

    # -------------------------------------------------------------------------------------- appends

    def on_append(self, sender: ReplicaId, body: Append) -> None:
        core, log = self._core, self._core.log
        if core.is_disk_behind:
            return
        prev_index, prev_term, entries = body.prev_index, body.prev_term, body.entries
        if prev_index < core.commit:
            known = core.commit - prev_index
            if len(entries) <= known:
                self.accept(sender, core.commit)
                return
            assert entries[known - 1].term == log.term(core.commit), "a leader lacks a committed entry"
            prev_index, prev_term, entries = core.commit, entries[known - 1].term, entries[known:]
        if not self._follows(prev_index, prev_term):
            self._reject(sender, prev_index, prev_term)
            return
        cut, fresh = log.merge(entries)
        if cut is not None:
            assert cut > core.commit, f"entry {cut} is committed and would be truncated"
            core.configs.truncate_from(cut)
        for entry in fresh:
            if entry.kind is EntryKind.CONFIG and entry.index > core.configs.index:
                core.configs.append(entry)
        matched = Index(prev_index + len(entries))
        # Beyond `matched` this log may hold entries of another leader, whatever the commit index says.
        core.commit_to(min(body.commit, matched))
        self.accept(sender, matched)

    def _follows(self, prev_index: Index, prev_term: Term) -> bool:
        """Does the entry before an append stand in this log, of the same term?"""
        return self._core.log.matches(prev_index, prev_term)

    def accept(self, sender: ReplicaId, matched: Index) -> None:
        """Say that the log agrees with the sender's up to here, once that is on disk."""
        core = self._core
        self._matched = (core.term, matched)
        self.check_repaired()
        reply = AppendReply(term=core.term, matched=matched)
        if matched > core.log.durable:
            core.send_durable(sender, reply)
        else:
            core.send(sender, reply)

    def _reject(self, sender: ReplicaId, prev_index: Index, prev_term: Term) -> None:
        core = self._core
        hint_index = core.log.last_index_not_above(prev_index, prev_term)
        hint_term = core.log.term(hint_index)
        assert hint_term is not None
        core.send(
            sender,
            AppendReject(
                term=core.term,
                prev_index=prev_index,
                hint_index=hint_index,
                hint_term=hint_term,
                is_repairing=core.damage is not None,
            ),
        )

    def on_heartbeat(self, sender: ReplicaId, body: Heartbeat) -> bool:
        """Returns whether this replica rests: the leader has nothing to say, and all that it said is here."""
        core = self._core
        core.commit_to(min(body.commit, core.log.last_index))
        rests = body.rests and self._has_everything(body.commit)
        if body.context:
            core.send(sender, HeartbeatReply(term=core.term, context=body.context, rests=rests))
        if core.damage is not None and self._matched[0] != core.term:
            # The leader may believe that this log is complete, and then nothing would ever be sent.
            self._reject(sender, Index(core.log.last_index + 1), core.term)
        return rests

    def _has_everything(self, commit: Index) -> bool:
        core = self._core
        is_whole = core.damage is None and not core.log.is_installing and not core.log.pending
        return is_whole and core.log.last_index == core.commit == commit

    def check_repaired(self) -> None:
        """A damaged replica may vote again once it holds whatever it may have acknowledged and a majority
        may have counted. A leader has all of that. So it suffices to match a leader as far as this log ever
        reached, or up to an entry of a term that began after the damage: all that was acknowledged before
        and committed lies below it."""
        core = self._core
        if core.damage is None:
            return
        term, matched = self._matched
        if term != core.term:
            return
        held = min(matched, core.log.durable)
        is_newer = core.term > core.damage.term and core.log.term(held) == core.term
        if held >= core.damage.last_index or is_newer:
            core.damage = None
            core.emit(Repaired())

    # ------------------------------------------------------------------------------------ snapshots

    def on_snapshot_chunk(self, sender: ReplicaId, body: SnapshotChunk) -> None:
        core, snapshot = self._core, body.snapshot
        if core.log.is_installing or core.is_disk_behind:
            return
        if self._holds_already(snapshot):
            core.commit_to(snapshot.index)
            self.accept(sender, core.commit)
            return
        if snapshot != self._snapshot:
            if body.data:
                return  # a late piece of a transfer that was given up must not displace the running one
            self._start_over(snapshot)
        self._take(body)
        if self._position < snapshot.size_bytes:
            core.send(sender, SnapshotReply(term=core.term, index=snapshot.index, position=self._position))
        else:
            self._install(sender, snapshot)

    def _holds_already(self, snapshot: Snapshot) -> bool:
        """Does the log reach as far as the snapshot? Then installing it would throw the rest away."""
        core = self._core
        return snapshot.index <= core.commit or core.log.matches(snapshot.index, snapshot.term)

    def _start_over(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._position = 0
        self._checksum = 0
        self._core.emit(StageSnapshot(snapshot=snapshot, position=0, data=b""))

    def _take(self, body: SnapshotChunk) -> None:
        """Pieces are taken in order only; any other is dropped and the answer says where we stand."""
        data = body.data
        if not data or body.position != self._position:
            return
        if self._position + len(data) > body.snapshot.size_bytes:
            return
        self._core.emit(StageSnapshot(snapshot=body.snapshot, position=self._position, data=data))
        self._position += len(data)
        self._checksum = checksum(data, self._checksum)

    def _install(self, sender: ReplicaId, snapshot: Snapshot) -> None:
        core = self._core
        if self._checksum != snapshot.checksum:
            self._start_over(snapshot)
            core.send(sender, SnapshotReply(term=core.term, index=snapshot.index, position=0))
            return
        self._snapshot = None
        self.accept(sender, self._adopt(snapshot))

    def _adopt(self, snapshot: Snapshot) -> Index:
        """The snapshot takes the place of the whole log, which matches the leader's up to there then."""
        core = self._core
        core.log.install(snapshot, core.commit)
        core.configs.reset(ConfigAt(index=snapshot.index, config=snapshot.config))
        core.commit_to(snapshot.index)
        return snapshot.index
