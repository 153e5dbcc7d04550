"""What only the primary of a pair does: it counts both copies, or its own alone, and serves under a lease.

While the backup is in sync, an entry is committed when both disks have it: replicate first, then acknowledge
and deliver. A primary counts alone only after the record says that the backup is out of sync, because such a
backup is never promoted; and it counts both again *before* it asks to record that the backup is in sync.

How entries get to the backup is the `Appender`'s, which a Raft leader has too. A primary that counts both
serves under a lease (`lease.py`); one that counts alone needs none.
"""

from millrace.replication.appending.appender import Appender
from millrace.replication.appending.changes import MembershipChanges
from millrace.replication.appending.core import Core
from millrace.replication.appending.handover import Handover
from millrace.replication.appending.progress import Pace, Progress
from millrace.replication.appending.reads import Reads
from millrace.replication.contract import (
    Appointed,
    ChangeMembership,
    Propose,
    ReadIndex,
    RefusedReason,
    ReplicaId,
    Report,
    TransferLeadership,
)
from millrace.replication.pair.lease import Lease
from millrace.replication.pair.messages import Check, CheckReply
from millrace.replication.pair.options import PairOptions
from millrace.replication.raft.messages import AppendReply, HeartbeatReply, TimeoutNow
from millrace.types import Index


class Primary:
    __slots__ = (
        "_changes",
        "_core",
        "_given_up",
        "_handover",
        "_joining_at",
        "_lagging_tick",
        "_lease",
        "_leaving_told",
        "_matched_seen",
        "_options",
        "_pair",
        "_reads",
        "_reported_in_at",
        "_started_tick",
        "appender",
        "is_alone",
        "resigns",
    )

    def __init__(
        self, core: Core, pair: Appointed, options: PairOptions, *, is_alone: bool, is_in_sync: bool
    ) -> None:
        """`is_in_sync`: the backup is known to hold whatever was acknowledged before."""
        self._core = core
        self._pair = pair
        self._options = options
        self.is_alone = is_alone or self.backup is None
        """Only this copy counts."""
        self._lease = Lease(options)
        self._given_up = False
        # The version at which it was asked to record that the backup is in sync; until that is settled the
        # backup may be promoted at any moment.
        self._reported_in_at: int | None = None
        # Both copies count, but the backup lacks entries up to here that were acknowledged without it.
        self._joining_at = None if self.is_alone or is_in_sync else core.log.last_index
        # Without an authority: the backup is to be out of sync, and is told so by this answer (0: none yet).
        self._leaving_told: int | None = None
        self._started_tick = core.tick
        self._lagging_tick: int | None = None
        self._matched_seen = Index(0)
        self.resigns = False
        self._handover: Handover | None = None
        self.appender = Appender(core)
        self._reads = Reads(core, self.appender)
        self._changes = MembershipChanges(core, self.appender)

    def close(self, is_deposed: bool) -> None:
        """It is primary no longer: answer everybody who waits. `is_deposed`: by a higher epoch."""
        self._reads.close()
        if self._handover is not None:
            self._handover.close(is_deposed)

    # ----------------------------------------------------------------------------------------- pair

    @property
    def backup(self) -> ReplicaId | None:
        pair = self._pair
        return pair.backup if pair.primary == self._core.replica else pair.primary

    @property
    def _counting(self) -> tuple[Progress, ...] | None:
        """The other replicas that count; None while the one that does is not known here."""
        if self.is_alone or self.backup is None:
            return ()
        peer = self.appender.peers.get(self.backup)
        return None if peer is None else (peer,)

    def appointed(self, pair: Appointed) -> None:
        """The record has changed and names this primary."""
        core = self._core
        had_quorum, old_backup, was_in_sync = self._pair.has_quorum, self.backup, self.is_in_sync
        self._pair = pair
        if self.backup != old_backup:
            self._lease.end()
            self._lagging_tick = None
        if self._reported_in_at is not None and pair.version > self._reported_in_at:
            self._reported_in_at = None
        if pair.has_quorum:
            if was_in_sync and not had_quorum and not pair.is_in_sync and self.backup == old_backup:
                # Known here, whatever two nodes alone could record: both count on until it is recorded.
                self._regain_backup()
            self.is_alone = self.backup is None or (not pair.is_in_sync and self._reported_in_at is None)
        elif self.backup is None:
            self.is_alone = True
        elif old_backup is None or had_quorum:
            # What was acknowledged alone is not at the backup because a record says so.
            self.is_alone = self.is_alone or not pair.is_in_sync
            if not pair.is_seized:
                # At once: what this primary does from now on may be for nobody to record.
                self._report(is_in_sync=self.is_in_sync)
        if self.is_alone or self.backup != old_backup:
            self._joining_at = self._leaving_told = None
        self.appender.follow_config()
        self.maybe_commit()
        assert core.replica in (pair.primary, pair.backup)

    def on_check(self, sender: ReplicaId, body: Check) -> None:
        core = self._core
        peer = self.appender.heard(sender)
        if sender != self.backup or peer is None or self._given_up:
            return
        if core.disk_lag_ticks > core.options.disk_stall_ticks:
            return  # nothing can be acknowledged from here: let the other one take over
        self._lease.on_check(body, core.tick)
        if self._leaving_told is not None and not self.is_alone:
            if not body.answered:
                # A backup that began anew counts anew.
                self._leaving_told = min(self._leaving_told, body.number)
            if 0 < self._leaving_told <= body.answered:
                self._go_alone()
            else:
                self._leaving_told = self._leaving_told or body.number
        core.send(sender, self._answer_to(body))

    def _answer_to(self, body: Check) -> CheckReply:
        term = self.appender.term
        return CheckReply(term=term, number=body.number, is_primary=True, is_in_sync=self.is_in_sync)

    @property
    def is_in_sync(self) -> bool:
        """The backup holds whatever was acknowledged."""
        return not self.is_alone and self._joining_at is None and self._leaving_told is None

    @property
    def has_lease(self) -> bool:
        if not self.is_in_sync or not self._pair.has_quorum:
            return True
        return self._lease.runs(self._core.tick)

    @property
    def may_accept(self) -> bool:
        return self.has_lease and not self._given_up and self._handover is None

    # ----------------------------------------------------------------------------------------- time

    def on_tick(self) -> None:
        handover = self._handover
        if handover is not None and handover.has_expired():
            self._handover = None
            # The other one may be about to take over: only another epoch makes this one primary again.
            self.resigns = handover.is_sent
        if self.appender.tick():
            self._confirm_reads()
        self._watch_backup()

    def _watch_backup(self) -> None:
        core, backup = self._core, self.backup
        if backup is None or self._given_up:
            return
        pair = self._pair
        if not pair.has_quorum and core.tick % self._options.check_ticks == 0:
            # Nothing depends on this record, but people and later members read it: until it is so.
            recorded = pair.primary, pair.epoch, pair.is_in_sync, pair.is_seized
            if recorded != (core.replica, core.term, self.is_in_sync, True):
                self._report(is_in_sync=self.is_in_sync)
        peer = self.appender.peers.get(backup)
        silent_ticks = core.tick - (self._started_tick if peer is None else peer.heard_tick)
        limit_ticks = self._options.lease_ticks
        if not self._pair.has_quorum:
            # Nobody can be asked: as long as the backup would wait for this primary.
            limit_ticks = self._options.promotion_ticks
        is_gone = peer is None or silent_ticks > limit_ticks or self._is_stuck(peer, limit_ticks)
        if self._joining_at is not None:
            self._go_on_joining(peer, is_gone)
        elif is_gone and not self.is_alone:
            is_silent = silent_ticks > limit_ticks
            if is_silent or peer is not None:
                self._lose_backup(is_silent=is_silent)
        elif self.is_alone and peer is not None and not is_gone and self._is_near(peer):
            # First count both, then look at what was acknowledged: from here on it does not grow.
            self.is_alone = False
            self._joining_at = core.commit
        elif self._reported_in_at is not None and core.tick % self._options.check_ticks == 0:
            self._report(is_in_sync=True)

    def _is_stuck(self, peer: Progress | None, limit_ticks: int) -> bool:
        """It answers, but its disk does not: nothing moves though something waits."""
        core = self._core
        if peer is None or peer.match >= core.log.durable or peer.match > self._matched_seen:
            self._matched_seen = Index(0) if peer is None else peer.match
            self._lagging_tick = None
            return False
        if self._lagging_tick is None:
            self._lagging_tick = core.tick
        return core.tick - self._lagging_tick > limit_ticks

    def _is_near(self, peer: Progress) -> bool:
        core = self._core
        lag = core.log.last_index - peer.match
        return peer.pace is Pace.REPLICATE and lag <= core.options.caught_up_entries_max

    def _go_on_joining(self, peer: Progress | None, is_gone: bool) -> None:
        assert self._joining_at is not None
        if peer is None or is_gone:
            # Nobody was told that it is in sync.
            self._joining_at = None
            self.is_alone = True
            self.maybe_commit()
        elif self._has_joined(peer):
            self._joining_at = None
            self._regain_backup()

    def _has_joined(self, peer: Progress) -> bool:
        """Does it hold what was acknowledged without it?"""
        return self._joining_at is not None and peer.match >= self._joining_at

    def _lose_backup(self, *, is_silent: bool) -> None:
        core, pair = self._core, self._pair
        if pair.has_quorum:
            if core.tick % core.options.heartbeat_ticks == 0:
                self._report(is_in_sync=False)
        elif is_silent:
            self._go_alone()
        elif self._leaving_told is None:
            # It hears this primary, so it must know first that it may not take over.
            self._leaving_told = 0

    def _go_alone(self) -> None:
        self.is_alone = True
        self._leaving_told = None
        self._report(is_in_sync=False)
        self.maybe_commit()

    def _regain_backup(self) -> None:
        if self._pair.has_quorum:
            self._reported_in_at = self._pair.version
        self._report(is_in_sync=True)

    def _report(self, *, is_in_sync: bool) -> None:
        core, pair = self._core, self._pair
        core.emit(
            Report(
                after=pair.version,
                epoch=core.term,
                primary=core.replica,
                backup=self.backup,
                is_in_sync=is_in_sync,
                is_seized=not pair.has_quorum,
            )
        )

    # ------------------------------------------------------------------------------------- counting

    def maybe_commit(self) -> None:
        core = self._core
        index = Index(self._reached_by_all())
        if index <= core.commit or core.log.term(index) != core.term:
            return
        self.appender.commit(index)
        if core.replica not in core.configs.config.voters and core.configs.index <= index:
            if self.backup is not None:
                core.send(self.backup, TimeoutNow(term=self.appender.term))
            self.resigns = True

    def _reached_by_all(self) -> int:
        """How far everybody who counts has the log on disk."""
        own, counting = self._core.log.durable, self._counting
        if counting is None:
            return 0
        return min(own, *(peer.match for peer in counting)) if counting else own

    # ------------------------------------------------------------------------- requests and answers

    @property
    def _refusal(self) -> RefusedReason | None:
        if not self.has_lease or self._given_up:
            return RefusedReason.NOT_READY
        return None if self._handover is None else RefusedReason.TRANSFERRING

    def on_propose(self, event: Propose) -> None:
        reason = self._refusal
        if reason is None and not self._core.is_serving:
            reason = RefusedReason.NOT_READY
        if reason is None:
            self.appender.on_propose(event)
        else:
            self._core.refuse(event.request, reason)

    def on_read_index(self, event: ReadIndex) -> None:
        if not self.has_lease or self._given_up:
            self._core.refuse(event.request, RefusedReason.NOT_READY)
            return
        is_only = self.is_alone or self._core.voters == (self._core.replica,)
        if self._reads.on_read_index(event, needs_round=not is_only):
            self._confirm_reads()

    def on_change_membership(self, event: ChangeMembership) -> None:
        if self._handover is None:
            self._changes.on_change_membership(event)
        else:
            self._core.refuse(event.request, RefusedReason.TRANSFERRING)

    def on_append_reply(self, sender: ReplicaId, body: AppendReply) -> None:
        found = self.appender.on_append_reply(sender, body)
        if found is not None:
            peer, is_news = found
            if is_news:
                self.maybe_commit()
            self._maybe_hand_over()
            self.appender.go_on(peer)

    def on_heartbeat_reply(self, sender: ReplicaId, body: HeartbeatReply) -> None:
        peer = self.appender.on_heartbeat_reply(sender, body)
        if peer is None:
            return
        self._confirm_reads()
        self.appender.go_on_after_round(peer)

    def _confirm_reads(self) -> None:
        counting = self._counting
        if counting is not None and len(self._reads):
            rounds = [self.appender.round, *(peer.context_acknowledged for peer in counting)]
            self._reads.confirm(min(rounds))

    # ------------------------------------------------------------------------------------- handover

    def on_transfer_leadership(self, event: TransferLeadership) -> None:
        """A planned switch-over; the backup must be in sync."""
        core, backup = self._core, self.backup
        if event.target == core.replica:
            core.refuse(event.request, RefusedReason.ALREADY_SO)
        elif backup is None or event.target not in (None, backup):
            core.refuse(event.request, RefusedReason.NO_SUCH_REPLICA)
        elif not self.is_in_sync or self._reported_in_at is not None:
            core.refuse(event.request, RefusedReason.NOT_CAUGHT_UP)
        elif backup not in core.configs.config.voters:
            core.refuse(event.request, RefusedReason.NO_SUCH_REPLICA)
        elif self._handover is not None:
            core.refuse(event.request, RefusedReason.TRANSFERRING)
        else:
            self._handover = Handover(core, self.appender, event.request, backup)
            self._maybe_hand_over()

    def _maybe_hand_over(self) -> None:
        if self._handover is not None:
            self._handover.maybe_send()
            # From here on the other one may begin at any moment.
            self._given_up = self._given_up or self._handover.is_sent
