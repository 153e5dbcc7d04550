"""One replication group of a node: a machine, its driver and its log below, the `App` on top, and proposals.

The machine says what must happen and the driver sees to it (`millrace/driver/`); the `App` is the replicated
state. Nothing here knows what a block means.

Proposals are idempotent: every run of every node is an *origin* that numbers its blocks per group, and the
leader takes each number once and in order (`admission.py`). So a proposal may be offered again, to this
leader or the next, until it is seen applied: that is also when its *token* comes back and whoever waits for
it is answered. A node that does not lead forwards its blocks to the one that does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Any

from millrace.driver.replica import ReplicaDriver
from millrace.errors import StorageError
from millrace.limits import PENDING_BYTES_MAX
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Syncer
from millrace.node.replicas.admission import Admission
from millrace.node.replicas.app import App, Machine, Pending
from millrace.node.replicas.group_log import GroupLog
from millrace.node.replicas.membership import next_change
from millrace.node.replicas.moment import Moment
from millrace.node.replicas.state_snapshots import StateAt, StateSnapshots
from millrace.replication.contract import (
    Accepted,
    ChangeMembership,
    Config,
    Entry,
    EntryKind,
    Event,
    InitialState,
    PeerBody,
    PeerMessage,
    Propose,
    ReplicaId,
    Reply,
    Report,
    RequestId,
    RoleChanged,
    Silence,
    Snapshot,
    SnapshotTaken,
    StartOver,
    Status,
    Tick,
    TransferLeadership,
)
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.options import RaftOptions
from millrace.storage.block import Block, Kind, mark_of
from millrace.storage.disk import DiskFull
from millrace.storage.log import LogFailed
from millrace.storage.scan import RangeDamaged
from millrace.storage.snapshot import SnapshotDamaged
from millrace.types import Index

log = logging.getLogger("millrace.group")

# A replica that is its own majority needs no one's silence to become leader.
_ALONE_TICKS_MAX = 100
# Of what is offered to the machine at once, so that a refusal costs no more than this.
_OFFER_BLOCKS_MAX = 256
_OFFER_BYTES_MAX = 4 << 20
# Ticks without a leader after which whoever waits is told so: a bounded wait, never a false answer.
_LEADERLESS_TICKS_MAX = 200
# Ticks without progress after which what is pending is offered again: frames may have been lost.
_OFFER_AGAIN_TICKS = 20


class ReplicationGroup:
    def __init__(
        self,
        number: int,
        replica: ReplicaId,
        replica_log: ReplicaLog,
        app: App,
        syncer: Syncer,
        *,
        origin: int,
        rng: Random,
        send: Callable[[int, ReplicaId, PeerBody], None],
        forward: Callable[[int, ReplicaId, EntryKind, Block], bool],
        wall_us: Callable[[], int],
        running_us: Callable[[], int],
    ) -> None:
        self.number, self.replica = number, replica
        self.app = app
        self.replica_log = replica_log
        self._syncer = syncer
        self._origin = origin
        self._send, self._forward = send, forward
        # Of a pair's machine only: what the meta group is asked to record, and the end of this replica's log.
        self.on_report: Callable[[int, Report], None] = _no_report
        self.on_start_over: Callable[[int, StartOver], None] = _no_start_over
        self._admission = Admission(app, self._append, lambda: self.is_alone, wall_us, running_us)
        self.snapshots = self._made_snapshots()
        state = replica_log.initial_state()
        saved = replica_log.snapshot_state()
        if saved is not None:
            self._restore(self.snapshots.restore(saved))
        self._machine = self._started(state, rng)
        self._log = GroupLog(replica_log, syncer, parsed=self._parsed, is_alone=lambda: self.is_alone)
        self._driver = self._made_driver(state.applied)
        self._log.open(self._driver, self._persisted)
        replica_log.applied = lambda: self.applied
        self._last_request = RequestId(0)
        self._sequence = 0
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        # How many of the pending ones were offered to the present leader.
        self._offered = 0
        # The machine took no more. It is asked again when something was written or applied, or time passes:
        # asked with every proposal it would refuse all that waits again and again.
        self._is_refused = False
        self._quiet_ticks = self._leaderless_ticks = 0
        self.is_asleep = False
        """Nothing happens here before somebody proposes or speaks: ticks are left out."""
        self.on_wake: Callable[[ReplicationGroup], None] = _nobody_ticks
        # Changes of role, term, leader or serving; candidacies; other leaders than before.
        self.role_changes = self.elections = self.leader_changes = 0
        self._last_leader: ReplicaId | None = None
        self._rng = rng
        self.serving = asyncio.Event()
        """Set while somebody serves this group: this replica, or a leader it knows."""
        self.role_changed = Moment()
        """Role, term, leader, or whether this replica serves."""
        if self.is_alone:
            self._elect_alone()

    def _made_snapshots(self) -> StateSnapshots:
        return StateSnapshots(
            *(lambda: self.app, self.replica_log, self._syncer),
            taken=self._on_snapshot,
            failed=self._on_loss,
            is_void=lambda: self._has_no_snapshot_now,
            is_closed=lambda: self.is_closed,
        )

    def _made_driver(self, applied: Index) -> ReplicaDriver:
        return ReplicaDriver(
            self._machine,
            network=self,
            log=self._log,
            state=self,
            applied=applied,
            runners={
                Report: lambda report: self.on_report(self.number, report),
                StartOver: lambda effect: self.on_start_over(self.number, effect),
            },
            on_storage_error=self._on_storage_error,
        )

    def _started(self, state: InitialState, rng: Random) -> Machine:
        """An index may vouch for what is damaged, so that only this reading finds it: then as what the
        opening finds, one segment after the other."""
        for _ in self.replica_log.log.segments():
            try:
                return self._make_machine(state, rng)
            except RangeDamaged:
                state = self.replica_log.initial_state()
        return self._make_machine(state, rng)

    def _make_machine(self, state: InitialState, rng: Random) -> Machine:
        return Raft(self.replica, state=state, log=self.replica_log, options=RaftOptions(), rng=rng)

    def _elect_alone(self) -> None:
        """Let the time-out pass at once; the vote goes to disk, and `Persisted` does the rest."""
        for _ in range(_ALONE_TICKS_MAX):
            if self.status().role != "follower":
                return
            self.step(Tick())

    # -------------------------------------------------------------------------------------- state

    @property
    def applied(self) -> Index:
        """The last entry that is part of the state."""
        return self._driver.applied

    @property
    def is_closed(self) -> bool:
        """It takes nothing and says nothing any more."""
        return self._driver.is_stopped

    def status(self) -> Status:
        self._driver.tell_applied()
        return self._machine.status()

    @property
    def config(self) -> Config:
        """Who counts, as far as this replica knows; cheaper than `status`."""
        return self._machine.config

    @property
    def is_alone(self) -> bool:
        config = self._machine.config
        return config.voters == (self.replica,) and not config.learners

    @property
    def is_leader(self) -> bool:
        return self._machine.is_serving

    @property
    def is_serving(self) -> bool:
        """Whether a proposal has somewhere to go."""
        machine = self._machine
        return machine.is_serving or (machine.leader is not None and machine.leader != self.replica)

    @property
    def origin(self) -> int:
        """Under which this replica's own blocks are numbered; another one after each beginning."""
        return self._origin

    @property
    def has_data_pending(self) -> bool:
        return any(pending.kind is EntryKind.DATA for pending in self._pending)

    @property
    def oldest_pending(self) -> int:
        """The number of the first block that was proposed here and is not applied yet; 0: there is none."""
        return self._pending[0].sequence if self._pending else 0

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    # --------------------------------------------------------------------------------- proposals

    def propose(
        self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind, *, is_judged: bool = False
    ) -> bool:
        """Offer blocks, one token each. False: too much is pending, nothing happened. True: each token comes
        back with its block through `App.apply`, sooner or later. Not to be called from `App.apply`.
        `is_judged`: the app is asked to admit them also where this replica is alone."""
        assert not self._driver.is_stepping
        if self._pending_bytes > PENDING_BYTES_MAX:
            return False
        if self.is_asleep:
            self._wake()
        # Others may be gone by the time it is offered, and what they brought is in the log.
        is_judged = is_judged or not self.is_alone
        for block, token in zip(blocks, tokens, strict=True):
            self._sequence += 1
            offered = block.offered(origin=self._origin, sequence=self._sequence)
            self._pending.append(Pending(offered, kind, token, is_judged))
            self._pending_bytes += offered.header.block_bytes
        self._offer()
        return True

    def _append(self, payloads: tuple[bytes, ...], kind: EntryKind) -> bool:
        """As leader: put these into the log."""
        if self.is_asleep:
            self._wake()
        request = Propose(request=self._new_request(), payloads=payloads, kind=kind)
        return isinstance(self._driver.ask(request), Accepted)

    def _new_request(self) -> RequestId:
        self._last_request = RequestId(self._last_request + 1)
        return self._last_request

    def _abandon(self) -> None:
        """Give up waiting for what is pending. What becomes of the blocks stays open, so the numbers after
        theirs must not be used: this node goes on as another origin."""
        for token in self.given_up():
            self.app.lost(token)

    def given_up(self) -> list[Any]:
        """The tokens of all that is pending, which do not come back any other way from here on."""
        tokens = [pending.token for pending in self._pending]
        self._pending.clear()
        self._pending_bytes = self._offered = self._sequence = 0
        self._origin = self._rng.getrandbits(63) | 1
        return tokens

    def _give_up_covered(self) -> None:
        """Own blocks that a snapshot covers are in the log, but they do not pass here."""
        covered = self._admission.origins.get(self._origin, 0)
        while self._pending and self._pending[0].sequence <= covered:
            self.app.covered(self._settled(self._pending[0].sequence))

    def _offer(self) -> None:
        """Bring what is pending to the leader, whoever it is."""
        if self._offered >= len(self._pending) or self._driver.is_stepping or self._is_refused:
            return
        leader = self._machine.leader
        if self._machine.is_serving:
            while self._offered < len(self._pending):
                batch = self._batch()
                if not self._admission.take(batch):
                    self._is_refused = True
                    return
                self._offered += len(batch)
        elif leader is not None and leader != self.replica:
            while self._offered < len(self._pending):
                pending = self._pending[self._offered]
                if not self._forward(self.number, leader, pending.kind, pending.block):
                    return
                self._offered += 1

    def _batch(self) -> list[Pending]:
        """The next pending ones of one kind, within bounds."""
        batch: list[Pending] = []
        size = 0
        for pending in islice(self._pending, self._offered, self._offered + _OFFER_BLOCKS_MAX):
            size += pending.block.header.block_bytes
            if batch and (pending.kind is not batch[0].kind or size > _OFFER_BYTES_MAX):
                break
            batch.append(pending)
        return batch

    def take(self, block: Block, kind: EntryKind) -> None:
        """A block that another node forwarded. Out of turn it is dropped: its origin offers it again."""
        forwarded = Pending(block, kind, None, True)
        if self._machine.is_serving:
            self._admission.take_early()
            self._admission.take([forwarded])
        elif self._machine.leader == self.replica:
            self._admission.keep_early(forwarded)

    # ---------------------------------------------------------------------------------------- time

    def tick(self) -> None:
        """Time passes. A replica alone has no one to speak to and nothing to wait for."""
        if self.is_closed:
            return
        self._driver.tell_applied()
        self._step_tick()
        self._leaderless_ticks = 0 if self._is_answered else self._leaderless_ticks + 1
        if self._pending:
            if self._leaderless_ticks >= _LEADERLESS_TICKS_MAX:
                self._abandon()
                return
            self._is_refused = False
            self._quiet_ticks += 1
            if self._quiet_ticks >= _OFFER_AGAIN_TICKS:
                self._quiet_ticks = 0
                self._offered = 0
                if self._machine.leader is not None:
                    # One that rests counts no silence, and what is pending should have ended that rest.
                    self.fall_silent(self._machine.leader)
            self._offer()
        if self._machine.is_serving:
            self._admission.take_early()
        self.is_asleep = self._may_sleep()

    def _wake(self) -> None:
        self.is_asleep = False
        self.on_wake(self)

    def _may_sleep(self) -> bool:
        """A replica to whom time means nothing: one that rests, or a leader alone, which has written, applied
        and told everything. Any event wakes it."""
        machine = self._machine
        if self._pending or not self._driver.has_told_applied:
            return False
        return machine.rests or (machine.is_serving and self.is_alone)

    def fall_silent(self, peer: ReplicaId) -> None:
        """Nothing came from that node for a while."""
        if self._machine.rests:
            self.step(Silence(peer=peer))

    @property
    def _is_answered(self) -> bool:
        """Whether somebody settles what is pending, or would."""
        return self.is_serving

    def _step_tick(self) -> None:
        if not self.is_alone:
            self.step(Tick())

    def on_peer(self, sender: ReplicaId, body: PeerBody) -> None:
        if self.is_asleep:
            self._wake()
        self._driver.step(PeerMessage(sender=sender, body=body))

    # ---------------------------------------------------------------------------------- membership

    def approach(self, voters: tuple[str, ...], learners: tuple[str, ...]) -> None:
        """As leader: one step from the present configuration toward this one."""
        config = self.config
        is_there = set(config.voters) == set(voters) and set(config.learners) == set(learners)
        if is_there and self.replica in voters:
            return
        status = self.status()
        if not status.serving:
            return
        change = next_change(status, voters, learners)
        if change is not None:
            kind, replica = change
            self.step(ChangeMembership(request=self._new_request(), kind=kind, replica=replica))
        elif set(voters) <= set(status.config.voters) and self.replica not in voters and voters:
            self.transfer(None)

    def is_caught_up(self, replica: str) -> bool:
        """As leader: whether this voter has all but the latest."""
        status = self.status()
        return replica in status.config.voters and any(
            peer.replica == replica and peer.is_caught_up for peer in status.peers
        )

    def transfer(self, target: ReplicaId | None) -> None:
        self.step(TransferLeadership(request=self._new_request(), target=target))

    # ----------------------------------------------------------------------------------- snapshots

    def begin_snapshot(self) -> None:
        """Write the state as a snapshot, over some turns of the loop. Not where one is under way, the app has
        too much to write now, a part of it cannot be read before that is repaired, or one from the leader is
        on its way to the disk: what was applied here lies before it, and neither the log nor the machine
        knows that part any more."""
        if self.snapshots.is_running or self._has_no_snapshot_now or self._is_snapshot_known:
            return
        try:
            self.snapshots.begin(self._state())
        except RangeDamaged as error:
            self._cannot_read(error)

    def snapshot_taken(self) -> bool:
        """*blocking* The same at once, for the end of a run. False where there is none of the present state
        afterwards."""
        if self._has_no_snapshot_now:
            return False
        if self._is_snapshot_known:
            return True
        try:
            return self.snapshots.write(self._state())
        except RangeDamaged as error:
            self._cannot_read(error)
        except DiskFull:
            raise
        except StorageError as error:
            # As with a log: a sync that failed is not tried again, and this replica is silent.
            self._on_loss(error)
        return False

    @property
    def _has_no_snapshot_now(self) -> bool:
        return self._log.is_installing or self.is_closed

    @property
    def _is_snapshot_known(self) -> bool:
        index, known = self.applied, self.replica_log.snapshot()
        is_known = known is not None and known.index == index and not self.replica_log.is_snapshot_damaged
        return index == 0 or is_known

    def _state(self) -> StateAt:
        index = self.applied
        term = self.replica_log.term(index)
        assert term is not None
        fields = {
            "origins": list(self._admission.origins.items()),
            "next_offset": self.replica_log.offset_after(index),
            "time_us": self._admission.time_us,
        }
        return StateAt(index=index, term=term, config=self._machine.config_at(index), fields=fields)

    def _cannot_read(self, error: RangeDamaged) -> None:
        if error.damage.last_index > self.applied:
            self._on_loss(error)

    def _on_snapshot(self, at: StateAt) -> None:
        self._driver.tell_applied()
        self.step(SnapshotTaken(index=at.index, term=at.term, config=at.config))

    def _restore(self, fields: dict[str, Any]) -> None:
        self._admission.origins = dict(fields["origins"])
        self._admission.time_us = fields["time_us"]

    # ------------------------------------------------------------------------------ driver and state

    def step(self, event: Event) -> None:
        """One event. Called while the effects of another run, it waits its turn: lists keep their order."""
        if self.is_asleep:
            self._wake()
        self._driver.step(event)

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        self._send(self.number, to, body)

    def _on_storage_error(self, error: StorageError) -> bool:
        if isinstance(error, RangeDamaged | SnapshotDamaged):
            self._on_loss(error)
            return True
        if isinstance(error, LogFailed) and self.replica_log.log.has_failed:
            # The syncer says so, and the node stops; its thread may be a moment ahead of the loop. Until then
            # this replica is silent: nobody knows what its disk holds.
            self._driver.stop()
            return True
        return False

    def _on_loss(self, error: StorageError) -> None:
        """Nobody else need have it, and this replica counts as one that does: it is silent at once. The next
        start finds what is lost, and neither votes nor leads before it is whole again."""
        self._driver.stop()
        self._syncer.fail(error)

    def on_role_changed(self, change: RoleChanged) -> None:
        log.debug("group %d: %s in term %d, leader %s", self.number, change.role, change.term, change.leader)
        self.role_changes += 1
        if change.role == "candidate":
            self.elections += 1
        if change.leader is not None and change.leader != self._last_leader:
            self._last_leader = change.leader
            self.leader_changes += 1
        if change.serving:
            self._admission.begin_term()
            self.app.begin_term()
        if change.leader != self.replica:
            self._admission.forget_early()
        self._offered = 0
        self._is_refused = False
        self._quiet_ticks = 0
        if change.serving or (change.leader is not None and change.leader != self.replica):
            self.serving.set()
        else:
            self.serving.clear()
        self.role_changed.come()

    def on_reply(self, reply: Reply) -> None:
        """A proposal's outcome is handed back by the driver; nobody waits for others."""

    def _parsed(self, entry: Entry) -> Block | None:
        """The block of an entry that came from here, without parsing it again."""
        if not self._pending or entry.kind not in (EntryKind.DATA, EntryKind.CONTROL):
            return None
        time_us, origin, sequence, body_checksum = mark_of(entry.payload)
        if origin != self._origin:
            return None
        position = sequence - self._pending[0].sequence
        if not 0 <= position < len(self._pending) or self._pending[position].kind is not entry.kind:
            return None
        block = self._pending[position].block
        # The leader may have left messages out, under the same number: then it is another block.
        is_same = (block.header.base_time_us, block.header.body_checksum) == (time_us, body_checksum)
        return block if is_same else None

    def _persisted(self, number: int) -> None:
        self._driver.persisted(number)
        if self._is_refused and not self._driver.is_stopped:
            self._is_refused = False
            self._offer()

    def has_applied(self) -> None:
        """`Applied` may lag. Only a leader that is about to serve waits for it; otherwise once for all that
        was applied since the last tick, because a step costs as much as applying a block."""
        machine = self._machine
        if machine.leader == self.replica and not machine.is_serving:
            self._driver.tell_applied()

    def apply(self, block: Block) -> None:
        header = block.header
        if header.kind not in (Kind.DATA, Kind.CONTROL):
            return
        self._admission.applied(header)
        token = None
        if header.origin == self._origin and self._pending:
            token = self._settled(header.sequence)
        self.app.apply(block, token)

    def restore(self, snapshot: Snapshot, loaded: Callable[[], None]) -> None:
        def restored(fields: dict[str, Any]) -> None:
            self._log.loaded(snapshot)
            self._restore(fields)
            self._give_up_covered()
            loaded()

        self.snapshots.load(restored)

    def _settled(self, sequence: int) -> Any:
        """The token of our block with this number; those before it were applied before it."""
        pending = self._pending[0]
        if pending.sequence != sequence:
            return None
        self._pending.popleft()
        self._pending_bytes -= pending.block.header.block_bytes
        self._offered = max(0, self._offered - 1)
        self._quiet_ticks = self._leaderless_ticks = 0
        return pending.token

    def stop_then(self, call: Callable[[], None]) -> None:
        """Take nothing more, and call back once nothing of this group is on its way to the disk."""
        self._driver.stop()
        self._syncer.release(self.replica_log, call)

    def close(self) -> None:
        self._driver.stop()
        self.replica_log.close()


def _nobody_ticks(group: ReplicationGroup) -> None:
    """Before whoever ticks this group has it."""


def _no_report(number: int, report: Report) -> None:
    raise AssertionError(f"group {number} reports to nobody: {report}")


def _no_start_over(number: int, effect: StartOver) -> None:
    raise AssertionError(f"group {number} cannot start over: {effect}")
