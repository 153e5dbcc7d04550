"""The primary-backup machine: two copies, one of which serves, and who of them it is.

It has the shape of PacificA (Lin and others, Microsoft Research MSR-TR-2008-25) for two replicas: the primary
commits what all replicas of the recorded configuration have, an authority keeps that record and changes it by
compare and set on its version, a lease from the backup, which is the one that could take over, keeps an old
primary from serving, and a new primary commits what it has stored. It departs from it in this:

- The backup asks and the primary answers, instead of beacons of the primary that the backup acknowledges: the
  question says which answer was heard last (decision 019).
- Two nodes alone have no authority. They go on by what they last heard from each other, which a partition can
  split into two histories; the higher epoch wins and the other side starts over. `docs/` says so to users.
- The log, the appends and the snapshots are those of Raft, with the epoch in the place of the term.

An epoch (the term of the log's entries) has one primary. The two replicas of a pair use odd and even epochs,
so that no two ever claim the same one. A message of a higher epoch makes this replica a backup of it, a
message of a lower one is answered with the epoch it lacks: that fences a primary that was away.

The backup stores what the primary sends and asks on an interval whether it is well. After three misses it
takes over, in the next epoch of its own: it commits what it has stored and not yet delivered, in order, and
goes on as primary. It may only do so while it is in sync, that is, while the primary acknowledges nothing
without it.

With an authority (`Appointed.has_quorum`: a meta group that outlives either of the two) epochs and roles are
changes of its record, each made against the version it was decided on: a promotion and "the backup is out of
sync" cannot both happen. Without one the backup decides by what the primary said last in this run of the
program, and in a partition both sides go on; the higher epoch wins, and the other side starts over.

A primary that restarts needs another epoch too: what it had sent and not synced may be in its backup's log.
It asks first: the authority, or the other replica, which may have taken over meanwhile. Alone it waits. The
other replica, if it takes over after its answer, does so above the epoch that the answer allowed: nobody may
have heard of that one but the disk of the primary, which is to be fenced when it is back.

The primary's part is in `primary.py`, what a backup knows by asking in `watch.py`. The log, and how entries
get to the other replica, are in `appending/`, which Raft uses too.
"""

import random
from typing import assert_never

from msgspec.structs import replace

from millrace.errors import ProtocolError
from millrace.replication.appending.core import Core, check_proposal
from millrace.replication.appending.follower import Follower
from millrace.replication.appending.served import ServedLog
from millrace.replication.contract import (
    Applied,
    Appointed,
    ChangeMembership,
    Config,
    Damage,
    Effect,
    Event,
    InitialState,
    LinkClosed,
    LinkOpened,
    LogView,
    PeerBody,
    PeerMessage,
    Persisted,
    Propose,
    ReadIndex,
    RefusedReason,
    ReplicaId,
    Report,
    RoleChanged,
    Silence,
    SnapshotTaken,
    StartOver,
    Status,
    Tick,
    TransferLeadership,
    Transferred,
)
from millrace.replication.pair.messages import Check, CheckReply, PairBody
from millrace.replication.pair.options import PairOptions
from millrace.replication.pair.primary import Primary
from millrace.replication.pair.roles import TRANSITIONS, PairRole
from millrace.replication.pair.watch import PartnerWatch
from millrace.replication.raft.messages import (
    Append,
    AppendReject,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    check_append,
)
from millrace.types import Index, Term

_BODIES = PairBody.__args__
_OBSERVER = "observer"


class PrimaryBackup(ServedLog):
    """A `Replica`. `pair` is the record as the driver knows it; without one the first voter begins."""

    __slots__ = (
        "_claimed",
        "_follower",
        "_granted",
        "_is_promotable",
        "_is_returning",
        "_is_stopped",
        "_options",
        "_pair",
        "_primary",
        "_unentered",
        "_watch",
    )

    def __init__(
        self,
        replica: ReplicaId,
        *,
        state: InitialState,
        log: LogView,
        options: PairOptions,
        rng: random.Random,
        pair: Appointed | None = None,
    ) -> None:
        self._core = Core(replica, state, log, options.raft, rng, role=PairRole.BACKUP)
        self._follower = Follower(self._core)
        self._options = options
        self._primary: Primary | None = None
        self._pair = _trusted(pair) if pair is not None else self._pair_of(self._core.configs.config)
        # The epoch that this replica asked to be recorded as its own.
        self._claimed = Term(0)
        self._is_returning = self._core.vote == replica
        # Without an authority: the epoch in which the partner may have begun on an answer from here.
        self._granted = Term(0)
        # The newest epoch that was heard of while the disk had no room for it.
        self._unentered = Term(0)
        self._is_promotable = False
        self._is_stopped = False
        self._watch = PartnerWatch(self._core, options)

    @staticmethod
    def _pair_of(config: Config) -> Appointed:
        voters = config.voters or (ReplicaId(""),)
        return Appointed(
            version=0,
            epoch=Term(0),
            primary=voters[0],
            backup=voters[1] if len(voters) > 1 else None,
            is_in_sync=True,
            has_quorum=False,
        )

    # ------------------------------------------------------------------------------------- contract

    def step(self, event: Event) -> list[Effect]:
        if self._is_stopped:
            return []
        core = self._core
        term, commit = core.term, core.commit
        self._dispatch(event)
        if self._primary is not None and self._primary.resigns:
            self.become_backup(leader=None)
            self._is_returning = True
        effects = core.finish()
        if effects and isinstance(effects[0], RoleChanged):
            effects[0] = self._named(effects[0])
        assert core.term >= term, "an epoch fell"
        assert commit <= core.commit <= core.log.last_index, "the commit index fell or left the log"
        assert core.applied <= core.commit_given <= core.commit, "something uncommitted was given to apply"
        assert (core.role is PairRole.PRIMARY) == (self._primary is not None)
        if self._primary is not None:
            self._primary.appender.check()
        return effects

    def _named(self, change: RoleChanged) -> RoleChanged:
        return RoleChanged(role=self._role, term=change.term, leader=change.leader, serving=change.serving)

    @property
    def _role(self) -> str:
        """As people are told: a backup that belongs to no pair looks on."""
        is_looking_on = self._primary is None and self._partner is None
        return _OBSERVER if is_looking_on else self._core.role.value

    def status(self) -> Status:
        primary = self._primary
        return self._core.status(self._role, primary.appender.peers_status() if primary is not None else ())

    @property
    def may_accept(self) -> bool:
        """A primary that serves, under its lease, and has not begun to hand over."""
        primary = self._primary
        return primary is not None and self._core.is_serving and primary.may_accept

    @property
    def is_cut_off(self) -> bool:
        """The link to the other replica is closed."""
        return self._watch.is_cut_off

    @property
    def is_alone(self) -> bool:
        """A primary whose copy is the only one that counts."""
        return self._primary is not None and self._primary.is_alone

    def _dispatch(self, event: Event) -> None:
        core = self._core
        match event:
            case PeerMessage():
                self._on_peer_message(event.sender, event.body)
            case Persisted():
                core.on_persisted(event)
                self._follower.check_repaired()
                if self._primary is not None:
                    self._primary.maybe_commit()
            case Propose():
                check_proposal(event)
                if self._primary is not None:
                    self._primary.on_propose(event)
                else:
                    core.refuse(event.request, RefusedReason.NOT_LEADER)
            case Tick():
                core.tick += 1
                if self._primary is not None:
                    self._primary.on_tick()
                else:
                    self._on_tick()
            case Applied():
                primary = self._primary
                core.on_applied(event, primary.appender.noop_index if primary is not None else None)
            case ReadIndex() | ChangeMembership():
                self._on_request(event)
            case TransferLeadership():
                self._on_transfer(event)
            case SnapshotTaken():
                core.on_snapshot_taken(event)
            case Silence():
                pass  # a pair never rests
            case LinkOpened() | LinkClosed():
                self._on_link(event.peer, is_open=isinstance(event, LinkOpened))
            case Appointed():
                self._on_appointed(event)
            case _:
                assert_never(event)

    def _on_link(self, peer: ReplicaId, *, is_open: bool) -> None:
        if peer == self._partner:
            self._watch.link_changed(is_open=is_open, is_watching=self._primary is None)
        if self._primary is not None:
            self._primary.appender.link_changed(peer, is_open)

    def _on_request(self, event: ReadIndex | ChangeMembership) -> None:
        if self._primary is None:
            self._core.refuse(event.request, RefusedReason.NOT_LEADER)
        elif isinstance(event, ReadIndex):
            self._primary.on_read_index(event)
        else:
            self._primary.on_change_membership(event)

    def _on_transfer(self, event: TransferLeadership) -> None:
        """At the primary a planned switch-over; at the other replica, naming itself, a promotion by command
        that does not wait for misses. With an authority it is recorded only where it loses nothing; without
        one the caller answers for it."""
        core = self._core
        if self._primary is not None:
            self._primary.on_transfer_leadership(event)
        elif event.target != core.replica or self._partner is None:
            core.refuse(event.request, RefusedReason.NOT_LEADER)
        elif not self._is_able:
            core.refuse(event.request, RefusedReason.NOT_READY)
        else:
            core.reply(event.request, Transferred(target=core.replica))
            self._take_over()

    # ---------------------------------------------------------------------------------------- roles

    @property
    def _partner(self) -> ReplicaId | None:
        """The other replica of the pair; None for a replica that belongs to no pair or has no partner."""
        pair, mine = self._pair, self._core.replica
        if pair.primary == mine:
            return pair.backup
        return pair.primary if pair.backup == mine else None

    @property
    def _is_able(self) -> bool:
        """Could this replica keep what a primary promises?"""
        core = self._core
        return (
            core.damage is None
            and not core.log.is_installing
            and not core.is_disk_behind
            and core.disk_lag_ticks < self._options.check_ticks
        )

    def _next_epoch(self, above: int = 0) -> Term:
        """The next one of this replica: the smaller id of a pair uses odd epochs, the other even ones."""
        core = self._core
        newest = Term(max(core.term, self._pair.epoch, above))
        partner = self._partner
        parity = 1 if partner is None or core.replica < partner else 0
        return Term(newest + 1 if (newest + 1) % 2 == parity else newest + 2)

    def become_primary(self, epoch: Term, *, takes_over: bool = False) -> None:
        """`takes_over`: without an authority, from a primary that is believed dead."""
        core, pair = self._core, self._pair
        assert self._primary is None
        core.enter_term(epoch)
        core.vote = core.leader = core.replica
        self._enter(PairRole.PRIMARY)
        self._is_returning = False
        is_alone = not pair.is_in_sync if pair.has_quorum else takes_over
        # Without a record, whatever is in this log may have been acknowledged without the other one.
        is_in_sync = pair.is_in_sync if pair.has_quorum else not core.log.last_index
        self._primary = Primary(core, pair, self._options, is_alone=is_alone, is_in_sync=is_in_sync)
        if takes_over:
            self._report_claim(epoch, is_in_sync=False)
        self._primary.maybe_commit()

    def become_backup(self, leader: ReplicaId | None, term: Term | None = None) -> None:
        core = self._core
        primary = self._primary
        if primary is not None:
            primary.close(is_deposed=term is not None)
            self._primary = None
        core.is_serving = False
        self._enter(PairRole.BACKUP)
        core.leader = leader
        self._watch.leader_heard()
        if term is not None and term > core.term:
            core.enter_term(term)
            core.vote = leader
            self._is_returning = False
            # Whether it may follow on this primary is to be asked first.
            self._is_promotable = False
            self._watch.ask_soon()
        self._watch.heard()

    def _enter(self, role: PairRole) -> None:
        now = self._core.role
        assert isinstance(now, PairRole) and role in TRANSITIONS[now], f"{now} cannot become {role}"
        self._core.role = role

    # ------------------------------------------------------------------------------- checks by time

    def _on_tick(self) -> None:
        core, pair, watch = self._core, self._pair, self._watch
        if watch.is_leader_gone:
            core.leader = None
        is_first = pair.primary == core.replica and not core.term and not pair.epoch
        if is_first and not pair.has_quorum and self._is_able:
            # Nothing was ever written: nobody else can have begun.
            self.become_primary(self._next_epoch())
            return
        if self._partner is None:
            if pair.primary == core.replica and self._is_able:
                self._claim_as_primary()
            return
        if watch.tick():
            self._ask()
            watch.asked_now()
        if pair.has_quorum and pair.primary == core.replica:
            is_due = core.tick % core.options.heartbeat_ticks == 0 and not watch.has_promised
            if is_due and self._is_able:
                self._claim_as_primary()
        elif watch.is_overdue:
            self._maybe_take_over()

    def _ask(self) -> None:
        partner = self._partner
        assert partner is not None
        self._core.send(partner, self._watch.ask())

    def _claim_as_primary(self) -> None:
        """This replica is the primary of the record, and needs an epoch of this run of the program."""
        if self._pair.has_quorum:
            self._report_claim(self._next_epoch(), is_in_sync=self._pair.is_in_sync)
        elif self._partner is None:
            self.become_primary(self._next_epoch())

    @property
    def _is_in_sync(self) -> bool:
        """Does this backup hold whatever was acknowledged, as far as it can know?"""
        if self._pair.has_quorum:
            return self._pair.is_in_sync
        # What was said in this epoch is no permission to follow on the primary of a newer one.
        is_newest = self._core.term >= self._unentered
        return self._is_promotable and not self._is_returning and is_newest

    def _maybe_take_over(self) -> None:
        core, pair = self._core, self._pair
        if not self._is_able or not self._is_in_sync:
            return
        if not pair.has_quorum or core.tick % core.options.heartbeat_ticks == 0:
            self._take_over()

    def _take_over(self) -> None:
        if self._pair.has_quorum:
            self._report_claim(self._next_epoch(), is_in_sync=False)
        else:
            # Above whatever the partner has begun, or it would fence this one when it is back.
            epoch = self._next_epoch(above=max(self._granted, self._unentered))
            self.become_primary(epoch, takes_over=True)

    def _report_claim(self, epoch: Term, *, is_in_sync: bool, is_seized: bool = False) -> None:
        pair, core = self._pair, self._core
        self._claimed = epoch
        core.emit(
            Report(
                after=pair.version,
                epoch=epoch,
                primary=core.replica,
                backup=self._partner,
                is_in_sync=is_in_sync,
                is_seized=is_seized or not pair.has_quorum,
            )
        )

    def _on_appointed(self, event: Appointed) -> None:
        core, known = self._core, self._pair
        if event.version < known.version:
            return
        self._pair = event = _trusted(event)
        is_mine = core.replica in (event.primary, event.backup)
        if event.epoch > known.epoch:
            # Whoever it is now gets its full time before anybody judges it.
            self._watch.heard()
        if not event.has_quorum:
            if self._primary is not None and is_mine:
                self._primary.appointed(event)
            elif event.is_in_sync and self._partner is not None and not self._is_promotable:
                # The record is no permission here, but a reason to ask for it before an interval is over.
                self._ask()
            return
        if event.epoch > core.term and event.primary != core.replica:
            self.become_backup(leader=event.primary, term=event.epoch)
        elif event.primary == core.replica and event.epoch == self._claimed and self._primary is None:
            if self._watch.has_promised:
                # Again once that has run out, in the next epoch.
                pass
            elif self._is_new(event.epoch):
                self.become_primary(event.epoch)
        elif self._primary is not None and is_mine:
            if event.epoch < core.term:
                # It became primary while there was no authority to ask.
                self._report_claim(core.term, is_in_sync=False, is_seized=True)
            self._primary.appointed(event)
        if self._primary is None and self._partner is not None and event.primary != core.replica:
            self._ask()

    def _is_new(self, epoch: Term) -> bool:
        """Only in an epoch that nobody has entered may a primary begin."""
        return epoch > self._core.term

    # ------------------------------------------------------------------------------------- messages

    def _on_peer_message(self, sender: ReplicaId, body: PeerBody) -> None:
        core = self._core
        if not isinstance(body, _BODIES):
            raise ProtocolError(f"{type(body).__name__} is no message of a primary-backup pair")
        if isinstance(body, Append):
            check_append(body)
        if body.term < core.term:
            self._on_stale(sender, body)
            return
        if body.term > core.term:
            if core.is_disk_behind:
                # As if lost: a new epoch is one more write for a disk that does not keep up. But its sender
                # lives, and is not to be followed on as soon as the disk does. And it may go on without this
                # replica, which acknowledges nothing more in its own epoch.
                self._unentered = max(self._unentered, body.term)
                if self._primary is not None:
                    self.become_backup(leader=None)
                    self._is_returning = True
                if sender == self._partner:
                    self._watch.heard()
                return
            is_primary = isinstance(body, Append | Heartbeat | SnapshotChunk) or (
                isinstance(body, CheckReply) and body.is_primary
            )
            self.become_backup(leader=sender if is_primary else None, term=body.term)
        if self._primary is not None:
            self._step_primary(self._primary, sender, body)
        else:
            self._step_backup(sender, body)

    def _on_stale(self, sender: ReplicaId, body: PairBody) -> None:
        core = self._core
        if isinstance(body, Check) and self._primary is None:
            # It was away. Whether it may go on is for those of the newer epoch to say.
            core.send(sender, self._reply_of(body.number))
        elif isinstance(body, Append | Heartbeat | SnapshotChunk | Check):
            core.send(sender, HeartbeatReply(term=core.term, context=0))

    def _reply_of(self, number: int) -> CheckReply:
        return CheckReply(term=self._core.term, number=number, is_primary=False, is_in_sync=False)

    def _step_primary(self, primary: Primary, sender: ReplicaId, body: PairBody) -> None:
        match body:
            case AppendReply():
                primary.on_append_reply(sender, body)
            case HeartbeatReply():
                primary.on_heartbeat_reply(sender, body)
            case AppendReject():
                primary.appender.on_append_reject(sender, body)
            case SnapshotReply():
                primary.appender.on_snapshot_reply(sender, body)
            case Check():
                primary.on_check(sender, body)
            case Append() | Heartbeat() | SnapshotChunk():
                raise ProtocolError(f"{sender} is primary of epoch {body.term} as well")
            case CheckReply() | TimeoutNow():
                pass  # meant for a role this replica has left
            case _:
                assert_never(body)

    def _step_backup(self, sender: ReplicaId, body: PairBody) -> None:
        match body:
            case Append():
                self._hear_primary(sender)
                self._on_append(sender, body)
            case Heartbeat():
                self._hear_primary(sender)
                self._follower.on_heartbeat(sender, body)
            case SnapshotChunk():
                self._hear_primary(sender)
                self._on_snapshot_chunk(sender, body)
            case Check():
                self._on_check(sender, body)
            case CheckReply():
                self._on_check_reply(sender, body)
            case TimeoutNow():
                if self._partner == sender and self._is_able:
                    self._watch.release()
                    self._take_over()
            case AppendReply() | AppendReject() | HeartbeatReply() | SnapshotReply():
                pass
            case _:
                assert_never(body)

    def _hear_primary(self, sender: ReplicaId) -> None:
        core = self._core
        if core.vote is None:
            core.vote = sender
        elif core.vote != sender:
            raise ProtocolError(f"{core.vote} and {sender} are both primary of epoch {core.term}")
        if core.leader is None:
            self._watch.heard()
            if sender == self._partner:
                self._ask()
        core.leader = sender
        self._watch.leader_heard()

    def _on_check(self, sender: ReplicaId, body: Check) -> None:
        """Asked by the partner, which is no primary, or is one again: two backups find out who goes on."""
        if sender != self._partner:
            return
        # It lives, and it may begin as soon as it has the answer: it gets its full time.
        self._watch.heard()
        # At most two further, whichever epochs are its own.
        self._granted = Term(max(self._core.term, self._pair.epoch) + 2)
        self._core.send(sender, self._reply_of(body.number))

    def _on_check_reply(self, sender: ReplicaId, body: CheckReply) -> None:
        core, watch = self._core, self._watch
        if sender != self._partner or not watch.is_news(body.number):
            return
        if body.is_primary and self._pair.has_quorum and self._pair.primary == core.replica:
            # The record names this one: no further promise, so that the other's time ends.
            return
        watch.answered(body.number)
        if body.is_primary:
            is_awaited = watch.promise()
            self._hear_primary(sender)
            self._is_promotable = body.is_in_sync and core.damage is None
            watch.heard()
            if is_awaited:
                self._ask()
        elif self._is_returning and not self._pair.has_quorum and self._is_able:
            # The other one has not taken over, and waits a full promise from its answer on.
            self.become_primary(self._next_epoch())

    # ------------------------------------------------------------------------------------ two lines

    def _on_append(self, sender: ReplicaId, body: Append) -> None:
        """As in Raft, but for a primary that may lack what was committed here (see `StartOver`)."""
        core, log = self._core, self._core.log
        if body.prev_index >= core.commit:
            self._follower.on_append(sender, body)
            return
        if log.term(body.prev_index) not in (None, body.prev_term):
            self._start_over(body.prev_index)
            return
        for entry in body.entries:
            if entry.index <= core.commit and log.term(entry.index) not in (None, entry.term):
                self._start_over(entry.index)
                return
        last = Index(body.prev_index + len(body.entries))
        if last < core.commit:
            self._follower.accept(sender, last)
        else:
            self._follower.on_append(sender, body)

    def _on_snapshot_chunk(self, sender: ReplicaId, body: SnapshotChunk) -> None:
        core, snapshot = self._core, body.snapshot
        if snapshot.index <= core.commit and core.log.term(snapshot.index) not in (None, snapshot.term):
            self._start_over(snapshot.index)
            return
        self._follower.on_snapshot_chunk(sender, body)

    def _start_over(self, index: Index) -> None:
        core = self._core
        assert not self._pair.has_quorum, "two histories under one authority"
        damage = Damage(last_index=core.log.last_index, term=core.term)
        core.emit(StartOver(damage=damage, lost=core.commit - index + 1))
        self._is_stopped = True


def _trusted(pair: Appointed) -> Appointed:
    """A record of two nodes alone may be older than what its primary acknowledged alone since."""
    return replace(pair, is_in_sync=False) if pair.has_quorum and pair.is_seized else pair
