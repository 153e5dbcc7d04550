"""What only the primary of a pair does: it counts both copies, or its own alone, and serves under a lease.

It shares a leader's work (appends, snapshots, pace, bounds) with Raft and differs in who counts. While the
backup is in sync, an entry is committed when both disks have it: replicate first, then acknowledge and
deliver. A primary counts alone only after the record says that the backup is out of sync, because such a
backup is never promoted; and it counts both again *before* it asks to record that the backup is in sync.

The lease [rule 23] is given by the one who could take over. A backup that heard an answer promotes
nobody for `promise_ticks`; its next question says which answer it heard, and from the moment that answer left
the primary may take proposals for `lease_ticks`, which is less. A primary that counts alone needs no lease.
"""

from millrace.replication.contract import (
    Appointed,
    ReadIndex,
    ReadReady,
    RefusedReason,
    ReplicaId,
    Report,
    TransferLeadership,
)
from millrace.replication.pair.messages import Check, CheckReply
from millrace.replication.pair.options import PairOptions
from millrace.replication.raft.core import Core
from millrace.replication.raft.leader import Leader
from millrace.replication.raft.progress import Pace, Progress
from millrace.types import Index


class Primary(Leader):
    __slots__ = (
        "_answers",
        "_given_up",
        "_joining_at",
        "_lagging_tick",
        "_lease_tick",
        "_leaving_told",
        "_matched_seen",
        "_options",
        "_pair",
        "_reported_in_at",
        "_started_tick",
        "is_alone",
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
        # When each recent answer left, by the number of its question.
        self._answers: dict[int, int] = {}
        self._lease_tick = -1
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
        super().__init__(core)

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
        peer = self._peers.get(self.backup)
        return None if peer is None else (peer,)

    def appointed(self, pair: Appointed) -> None:
        """The record has changed and names this primary."""
        core = self._core
        had_quorum, old_backup, was_in_sync = self._pair.has_quorum, self.backup, self.is_in_sync
        self._pair = pair
        if self.backup != old_backup:
            self._lease_tick = -1
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
        self._sync_peers()
        self.maybe_commit()
        assert core.replica in (pair.primary, pair.backup)

    def on_check(self, sender: ReplicaId, body: Check) -> None:
        core = self._core
        peer = self._heard(sender)
        if sender != self.backup or peer is None or self._given_up:
            return
        if core.disk_lag_ticks > core.options.disk_stall_ticks:
            return  # nothing can be acknowledged from here: let the other one take over
        sent_tick = self._answers.get(body.answered)
        if sent_tick is not None:
            self._lease_tick = max(self._lease_tick, sent_tick + self._options.lease_ticks)
        if not body.answered:
            # Perhaps one that began anew, and counts anew.
            self._answers.clear()
        # A question that comes twice was answered when it came first: by that answer the backup counts.
        self._answers.setdefault(body.number, core.tick)
        while len(self._answers) > 2 * self._options.misses_max:
            del self._answers[next(iter(self._answers))]
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
        return CheckReply(term=self.term, number=body.number, is_primary=True, is_in_sync=self.is_in_sync)

    @property
    def is_in_sync(self) -> bool:
        """The backup holds whatever was acknowledged."""
        return not self.is_alone and self._joining_at is None and self._leaving_told is None

    @property
    def has_lease(self) -> bool:
        if not self.is_in_sync or not self._pair.has_quorum:
            return True
        return self._core.tick < self._lease_tick

    @property
    def may_accept(self) -> bool:
        return self.has_lease and not self._given_up and self._handover is None

    # ----------------------------------------------------------------------------------------- time

    def on_tick(self) -> None:
        core = self._core
        handover = self._handover
        if handover is not None and core.tick >= handover.deadline_tick:
            core.refuse(handover.request, RefusedReason.TIMED_OUT)
            self._handover = None
            # The other one may be about to take over: only another epoch makes this one primary again.
            self.resigns = handover.is_sent
        self._heartbeat_elapsed_ticks += 1
        if self._heartbeat_elapsed_ticks >= core.options.heartbeat_ticks:
            self._send_heartbeats()
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
        peer = self._peers.get(backup)
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

    def _reached_by_majority(self) -> int:
        core = self._core
        own = core.log.durable
        counting = self._counting
        if counting is None:
            return 0
        return min(own, *(peer.match for peer in counting)) if counting else own

    def _refusal(self, entries_count: int, bytes_count: int) -> RefusedReason | None:
        if not self.has_lease or self._given_up:
            return RefusedReason.NOT_READY
        return super()._refusal(entries_count, bytes_count)

    # ---------------------------------------------------------------------------------------- reads

    def on_read_index(self, event: ReadIndex) -> None:
        core = self._core
        if not self.has_lease or self._given_up:
            core.refuse(event.request, RefusedReason.NOT_READY)
        elif self.is_alone and core.commit >= self.noop_index:
            core.reply(event.request, ReadReady(index=core.commit))
        else:
            super().on_read_index(event)

    def _confirm_reads(self) -> None:
        if not len(self._reads):
            return
        counting = self._counting
        if counting is None:
            return
        confirmed = (
            min(self._context, *(p.context_acknowledged for p in counting)) if counting else (self._context)
        )
        for request, index in self._reads.take_confirmed(confirmed):
            self._core.reply(request, ReadReady(index=index))
        if self._reads.needs(self._context) and confirmed >= self._context:
            self._send_heartbeats()

    # ------------------------------------------------------------------------------------- handover

    def on_transfer_leadership(self, event: TransferLeadership) -> None:
        """A planned switch-over; the backup must be in sync."""
        core = self._core
        if event.target == core.replica:
            core.refuse(event.request, RefusedReason.ALREADY_SO)
        elif self.backup is None or event.target not in (None, self.backup):
            core.refuse(event.request, RefusedReason.NO_SUCH_REPLICA)
        elif not self.is_in_sync or self._reported_in_at is not None:
            core.refuse(event.request, RefusedReason.NOT_CAUGHT_UP)
        else:
            super().on_transfer_leadership(TransferLeadership(request=event.request, target=self.backup))

    def _maybe_hand_over(self) -> None:
        super()._maybe_hand_over()
        if self._handover is not None and self._handover.is_sent:
            # From here on the other one may begin at any moment.
            self._given_up = True

    def _best_voter(self) -> ReplicaId | None:
        return self.backup

    def check(self) -> None:
        core = self._core
        assert self.term == core.term, "a primary of another epoch"
        assert core.log.last_term == self.term, "a primary's log ends in its own epoch"
        for peer in self._peers.values():
            assert peer.match < peer.next <= core.log.last_index + 1, f"progress of {peer.replica}"
