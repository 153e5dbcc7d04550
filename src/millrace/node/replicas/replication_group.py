"""The driver of one replication group: runs the machine's effects and applies what is committed.

The machine says what must happen and in which order (`replication/contract.py` lists the driver's duties);
the `App` is the replicated state on top. Nothing here knows what a block means.

Proposals are idempotent [rule 2]. Every run of every node is an *origin* that numbers its blocks per
group; the leader takes each number once and in order, and the numbers taken are part of the group's state.
So a proposal may be offered again, to this leader or the next, until it is seen applied: that is also when
its *token* comes back and whoever waits for it is answered. A node that does not lead forwards its blocks to
the one that does.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, Protocol, assert_never

from millrace.errors import StorageError
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Job, Syncer
from millrace.replication.contract import (
    Accepted,
    Applied,
    ChangeKind,
    ChangeMembership,
    Commit,
    Effect,
    EntryKind,
    Event,
    InitialState,
    InstallSnapshot,
    PeerBody,
    PeerMessage,
    Persist,
    Persisted,
    Propose,
    ReadReady,
    Refused,
    Repaired,
    Replica,
    ReplicaId,
    Reply,
    Report,
    RequestId,
    RoleChanged,
    Send,
    SnapshotTaken,
    StageSnapshot,
    StartOver,
    Status,
    Tick,
    TransferLeadership,
    Transferred,
)
from millrace.replication.contract import Config as GroupConfig
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.options import RaftOptions
from millrace.storage.block import Block, Kind, mark_of
from millrace.storage.disk import DiskFull
from millrace.storage.log import LogFailed
from millrace.storage.scan import RangeDamaged
from millrace.storage.snapshot import SnapshotDamaged
from millrace.types import Index

log = logging.getLogger("millrace.group")

_APPLY_BYTES_MAX = 4 << 20
# A replica that is its own majority needs no one's silence to become leader.
_ALONE_TICKS_MAX = 100
# Offered and not applied: beyond it the group takes nothing more.
_PENDING_BYTES_MAX = 64 << 20
# Ticks without a leader after which whoever waits is told so: a bounded wait, never a false answer.
_LEADERLESS_TICKS_MAX = 200
# Ticks without progress after which what is pending is offered again: frames may have been lost.
_OFFER_AGAIN_TICKS = 20
# Of what others forward to a leader that does not serve yet.
_EARLY_BYTES_MAX = 4 * 1024 * 1024
# Runs of nodes whose numbers are remembered; one more forgets the one that was quiet longest.
_ORIGINS_MAX = 1024


class App(Protocol):
    """The replicated state of a group. `apply` is called once for each committed block, in order."""

    def apply(self, block: Block, token: Any) -> None:
        """Data and control blocks only. `token` is what our proposer gave, None for others' blocks."""

    def begin_term(self) -> None:
        """This replica leads from now on, and has applied everything that is in its log."""

    def admit(self, block: Block) -> Block:
        """As leader, before a data block goes into the log: the block itself, or a control block in its
        place where it would only repeat what is there."""

    def withdraw(self, block: Block) -> None:
        """The log did not take a data block that was admitted: it will be offered again."""

    def to_bytes(self) -> bytes | None:
        """The whole state after the last applied block, for a snapshot; None where it is too much now."""

    def restore(self, state: bytes) -> None:
        """Begin from a snapshot."""

    def lost(self, token: Any) -> None:
        """Nobody led the group for too long: what was proposed with this token may or may not happen."""

    def covered(self, token: Any) -> None:
        """What was proposed with this token happened: it is part of the state that was just restored. What
        it came to, and at which offset, nobody will say."""


class Pending(NamedTuple):
    block: Block
    kind: EntryKind
    token: Any
    is_judged: bool = False

    @property
    def sequence(self) -> int:
        return self.block.header.sequence


class Machine(Replica, Protocol):
    """A replica as this driver asks it for every block."""

    @property
    def is_serving(self) -> bool: ...

    @property
    def leader(self) -> ReplicaId | None: ...

    @property
    def config(self) -> GroupConfig: ...


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
    ) -> None:
        self.number = number
        self.replica = replica
        self.app = app
        self.replica_log = replica_log
        self._syncer = syncer
        self._origin = origin
        self._send = send
        self._forward = forward
        # Of a pair's machine only: what the meta group is asked to record, and the end of this replica's log.
        self.on_report: Callable[[int, Report], None] = _no_report
        self.on_start_over: Callable[[int, StartOver], None] = _no_start_over
        # Last number applied of each origin; a dict keeps the order in which they were heard.
        self._origins: dict[int, int] = {}
        # As leader: last number taken, applied or not. Valid for one term of serving.
        self._taken: dict[int, int] = {}
        # Time of the last block applied, and as leader of the last one taken.
        self._time_us = 0
        self._taken_time_us = 0
        state = replica_log.initial_state()
        saved = replica_log.snapshot_state()
        if saved is not None:
            self._restore(saved)
        self.applied: Index = state.applied
        self._applied_told = state.applied
        self._machine = self._started(state, rng)
        replica_log.applied = lambda: self.applied
        self._next_request = 0
        self._outcome: Accepted | Refused | None = None
        self._sequence = 0
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        # How many of the pending ones were offered to the present leader.
        self._offered = 0
        self._early: list[Pending] = []
        self._early_bytes = 0
        self._quiet_ticks = 0
        self._leaderless_ticks = 0
        self._rng = rng
        self._blocks: dict[int, Block] = {}
        # A snapshot from the leader is handed to the disk and not restored yet.
        self._is_installing = False
        # Effects that wait for a Persist: (number, effects).
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self.is_closed = False
        self.serving = asyncio.Event()
        """Set while somebody serves this group: this replica, or a leader it knows."""
        if self.is_alone:
            self._elect_alone()

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

    def status(self) -> Status:
        self._tell_applied()
        return self._machine.status()

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
    def pending_count(self) -> int:
        return len(self._pending)

    # --------------------------------------------------------------------------------- proposals

    def propose(
        self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind, *, is_judged: bool = False
    ) -> bool:
        """Offer blocks, one token each. False: too much is pending, nothing happened. True: each token comes
        back with its block through `App.apply`, sooner or later. Not to be called from `App.apply`.
        `is_judged`: the app is asked to admit them also where this replica is alone."""
        assert not self._is_stepping
        if self._pending_bytes > _PENDING_BYTES_MAX:
            return False
        # Others may be gone by the time it is offered, and what they brought is in the log.
        is_judged = is_judged or not self.is_alone
        for block, token in zip(blocks, tokens, strict=True):
            self._sequence += 1
            offered = block.offered(origin=self._origin, sequence=self._sequence)
            self._pending.append(Pending(offered, kind, token, is_judged))
            self._pending_bytes += offered.header.block_bytes
        self._offer()
        return True

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
        covered = self._origins.get(self._origin, 0)
        while self._pending and self._pending[0].sequence <= covered:
            self.app.covered(self._settled(self._pending[0].sequence))

    def _offer(self) -> None:
        """Bring what is pending to the leader, whoever it is."""
        if self._offered >= len(self._pending) or self._is_stepping:
            return
        leader = self._machine.leader
        if self._machine.is_serving:
            while self._offered < len(self._pending):
                batch = self._batch()
                if not self._take_batch(batch):
                    return
                self._offered += len(batch)
        elif leader is not None and leader != self.replica:
            while self._offered < len(self._pending):
                pending = self._pending[self._offered]
                if not self._forward(self.number, leader, pending.kind, pending.block):
                    return
                self._offered += 1

    def _batch(self) -> list[Pending]:
        """The next pending ones of one kind."""
        first = self._pending[self._offered]
        batch = [first]
        for position in range(self._offered + 1, len(self._pending)):
            if self._pending[position].kind is not first.kind:
                break
            batch.append(self._pending[position])
        return batch

    def take(self, block: Block, kind: EntryKind) -> None:
        """A block that another node forwarded. Out of turn it is dropped: its origin offers it again."""
        if self._machine.is_serving:
            self._take_early()
            self._take_batch([Pending(block, kind, None, True)])
        elif self._machine.leader == self.replica and self._early_bytes < _EARLY_BYTES_MAX:
            # Elected, and its first entry is not committed: the origin would come again a second later.
            self._early.append(Pending(block, kind, None, True))
            self._early_bytes += block.header.block_bytes

    def _take_early(self) -> None:
        early, self._early, self._early_bytes = self._early, [], 0
        for pending in early:
            self._take_batch([pending])

    def _take_batch(self, batch: list[Pending]) -> bool:
        """As leader: put blocks of one origin into the log, each number once and in order."""
        origin = batch[0].block.header.origin
        taken = self._taken.get(origin, self._origins.get(origin, 0))
        fresh = [pending for pending in batch if pending.sequence > taken]
        if not fresh:
            return True
        if fresh[0].sequence != taken + 1:
            return False
        runs = self._admitted(fresh)
        for position, (kind, blocks) in enumerate(runs):
            self._next_request += 1
            self._outcome = None
            payloads = tuple(self._timed(block).to_bytes() for block in blocks)
            self.step(Propose(request=RequestId(self._next_request), payloads=payloads, kind=kind))
            if not isinstance(self._outcome, Accepted):
                self._withdraw(runs[position:])
                return False
            self._taken[origin] = blocks[-1].header.sequence
        return True

    def _timed(self, block: Block) -> Block:
        """Time never goes back in a group, whatever the clocks of nodes do [rule 2]."""
        header = block.header
        if header.base_time_us >= self._taken_time_us:
            self._taken_time_us = header.base_time_us
            return block
        return Block(header=replace(header, base_time_us=self._taken_time_us), body=block.body)

    def _admitted(self, fresh: list[Pending]) -> list[tuple[EntryKind, list[Block]]]:
        """What goes into the log: the app may put a note in place of a block that says nothing new. Its
        number stays, so its origin learns that it is settled."""
        runs: list[tuple[EntryKind, list[Block]]] = []
        # Alone, whoever proposes has applied everything that could be repeated and asks before.
        is_alone = self.is_alone
        for pending in fresh:
            block, kind = pending.block, pending.kind
            if kind is EntryKind.DATA and (pending.is_judged or not is_alone):
                admitted = self.app.admit(block)
                if admitted is not block:
                    header = replace(
                        admitted.header, origin=block.header.origin, sequence=block.header.sequence
                    )
                    block = Block(header=header, body=admitted.body)
                    kind = EntryKind(int(header.kind))
            if runs and runs[-1][0] is kind:
                runs[-1][1].append(block)
            else:
                runs.append((kind, [block]))
        return runs

    def _withdraw(self, runs: list[tuple[EntryKind, list[Block]]]) -> None:
        """Not taken: what was admitted counts as new when it comes again, or it would pass for a repeat."""
        for kind, blocks in runs:
            if kind is EntryKind.DATA:
                for block in blocks:
                    self.app.withdraw(block)

    # ---------------------------------------------------------------------------------------- time

    def tick(self) -> None:
        """Time passes. A replica alone has no one to speak to and nothing to wait for."""
        if self.is_closed:
            return
        self._tell_applied()
        self._step_tick()
        self._leaderless_ticks = 0 if self._is_answered else self._leaderless_ticks + 1
        if self._pending:
            if self._leaderless_ticks >= _LEADERLESS_TICKS_MAX:
                self._abandon()
                return
            self._quiet_ticks += 1
            if self._quiet_ticks >= _OFFER_AGAIN_TICKS:
                self._quiet_ticks = 0
                self._offered = 0
            self._offer()
        if self._early and self._machine.is_serving:
            self._take_early()

    @property
    def _is_answered(self) -> bool:
        """Whether somebody settles what is pending, or would."""
        return self.is_serving

    def _step_tick(self) -> None:
        if not self.is_alone:
            self.step(Tick())

    def on_peer(self, sender: ReplicaId, body: PeerBody) -> None:
        self.step(PeerMessage(sender=sender, body=body))

    # ---------------------------------------------------------------------------------- membership

    def approach(self, voters: tuple[str, ...], learners: tuple[str, ...]) -> None:
        """As leader: one step from the present configuration toward this one."""
        status = self.status()
        if not status.serving:
            return
        config = status.config
        caught_up = {peer.replica for peer in status.peers if peer.is_caught_up}
        for name in (*voters, *learners):
            if name not in config.members:
                self._change(ChangeKind.ADD_LEARNER, ReplicaId(name))
                return
        for replica in config.learners:
            if replica in voters and replica in caught_up:
                self._change(ChangeKind.PROMOTE, replica)
                return
        if not set(voters) <= set(config.voters):
            # Nobody leaves before those who take over are there.
            return
        for replica in config.members:
            if replica in voters or replica in learners or replica == self.replica:
                continue
            self._change(ChangeKind.REMOVE, replica)
            return
        for replica in config.voters:
            if replica in learners and replica != self.replica:
                self._change(ChangeKind.DEMOTE, replica)
                return
        if self.replica not in voters and voters:
            self.transfer(None)

    def is_caught_up(self, replica: str) -> bool:
        """As leader: whether this voter has all but the latest."""
        status = self.status()
        return replica in status.config.voters and any(
            peer.replica == replica and peer.is_caught_up for peer in status.peers
        )

    def _change(self, kind: ChangeKind, replica: ReplicaId) -> None:
        self._next_request += 1
        self.step(ChangeMembership(request=RequestId(self._next_request), kind=kind, replica=replica))

    def transfer(self, target: ReplicaId | None) -> None:
        self._next_request += 1
        self.step(TransferLeadership(request=RequestId(self._next_request), target=target))

    # ----------------------------------------------------------------------------------- snapshots

    def snapshot_taken(self) -> bool:
        """*blocking* Write the state as a snapshot; for the end of a run and for quiet times. False where the
        app has too much to write now or cannot read a part of it before that is repaired, or one from the
        leader is on its way to the disk: what was applied here lies before it, and neither the log nor the
        machine knows that part any more."""
        if self._is_installing or self.is_closed:
            return False
        index = self.applied
        known = self.replica_log.snapshot()
        is_known = known is not None and known.index == index and not self.replica_log.is_snapshot_damaged
        if index == 0 or is_known:
            return True
        try:
            state = self._to_bytes()
            term = self.replica_log.term(index)
        except RangeDamaged as error:
            if error.damage.last_index > index:
                self._on_loss(error)
            return False
        if state is None:
            return False
        self._tell_applied()
        assert term is not None
        config = self._machine.config_at(index)
        try:
            self.replica_log.take_snapshot(index, term, config, state)
        except DiskFull:
            raise
        except StorageError as error:
            # As with a log: a sync that failed is not tried again, and this replica is silent.
            self._on_loss(error)
            return False
        self.step(SnapshotTaken(index=index, term=term, config=config))
        return True

    def _to_bytes(self) -> bytes | None:
        state = self.app.to_bytes()
        if state is None:
            return None
        head = {
            "origins": list(self._origins.items()),
            "next_offset": self.replica_log.offset_after(self.applied),
            "time_us": self._time_us,
        }
        return json.dumps(head).encode() + b"\n" + state

    def _restore(self, saved: bytes) -> None:
        head, _, state = saved.partition(b"\n")
        fields = json.loads(head)
        self._origins = dict(fields["origins"])
        self._time_us = fields["time_us"]
        self.app.restore(state)

    # ----------------------------------------------------------------------------------- effects

    def step(self, event: Event) -> None:
        """One event. Called while the effects of another run, it waits its turn: lists keep their order."""
        if self.is_closed:
            return
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._run(self._machine.step(self._events.popleft()))
        except LogFailed:
            if not self.replica_log.log.has_failed:
                raise
            # The syncer says so, and the node stops; its thread may be a moment ahead of the loop. Until then
            # this replica is silent: nobody knows what its disk holds.
            self.is_closed = True
        except (RangeDamaged, SnapshotDamaged) as error:
            self._on_loss(error)
        finally:
            self._is_stepping = False

    def _on_loss(self, error: StorageError) -> None:
        """Nobody else need have it, and this replica counts as one that does: it is silent at once. The next
        start finds what is lost, and neither votes nor leads before it is whole again."""
        self.is_closed = True
        self._syncer.fail(error)

    def _run(self, effects: list[Effect]) -> None:
        for position, effect in enumerate(effects):
            if self.is_closed:
                # By one of these effects: nothing may be on its way to the disk from there on.
                return
            if isinstance(effect, Persist):
                rest = effects[position + 1 :]
                # `Accepted` promises nothing, so it need not wait for the disk to be read.
                for later in rest:
                    if isinstance(later, Reply):
                        self._reply(later)
                self._waiting.append((effect.number, rest))
                self._persist(effect)
                return
            self._run_one(effect)

    def _run_one(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(self.number, effect.to, effect.body)
            case Commit():
                self._commit(effect.index)
            case Reply():
                self._reply(effect)
            case RoleChanged():
                self._on_role_changed(effect)
            case StageSnapshot():
                self.replica_log.stage(effect.snapshot, effect.position, effect.data)
            case InstallSnapshot():
                saved = self.replica_log.snapshot_state()
                assert saved is not None
                self._restore(saved)
                self._is_installing = False
                self.applied = effect.snapshot.index
                self._tell_applied()
                self._give_up_covered()
            case Repaired():
                self.replica_log.repaired()
                log.warning("group %d: what was damaged is whole again", self.number)
            case Report():
                self.on_report(self.number, effect)
            case StartOver():
                self.on_start_over(self.number, effect)
            case Persist():
                raise AssertionError("a list has one Persist at most")
            case _:
                assert_never(effect)

    def _on_role_changed(self, effect: RoleChanged) -> None:
        log.debug("group %d: %s in term %d, leader %s", self.number, effect.role, effect.term, effect.leader)
        if effect.serving:
            # Everything before the own-term entry is applied: the numbers taken are those applied.
            self._taken = dict(self._origins)
            self._taken_time_us = self._time_us
            self.app.begin_term()
        if effect.leader != self.replica:
            self._early, self._early_bytes = [], 0
        self._offered = 0
        self._quiet_ticks = 0
        if effect.serving or (effect.leader is not None and effect.leader != self.replica):
            self.serving.set()
        else:
            self.serving.clear()

    def _reply(self, reply: Reply) -> None:
        match reply.outcome:
            case Accepted() | Refused():
                self._outcome = reply.outcome
            case ReadReady() | Transferred():
                log.debug("group %d: %s", self.number, reply.outcome)

    def _persist(self, persist: Persist) -> None:
        if persist.snapshot is not None:
            self._is_installing = True
            self._blocks.clear()
            self.replica_log.begin_again(persist.snapshot)
        if persist.truncate_from is not None:
            self.replica_log.rewind(persist.truncate_from, self._blocks.get(persist.truncate_from))
            for index in [i for i in self._blocks if i >= persist.truncate_from]:
                del self._blocks[index]
        stamped = []
        for entry in persist.entries:
            block = self.replica_log.stamp(entry, self._own_block(entry.payload, entry.kind))
            self._blocks[entry.index] = block
            stamped.append(block)
        self._syncer.submit(Job(self.replica_log, persist, stamped, self._persisted))

    def _own_block(self, payload: bytes, kind: EntryKind) -> Block | None:
        """The block of a payload that came from here, without parsing it again."""
        if kind not in (EntryKind.DATA, EntryKind.CONTROL):
            return None
        if not self._pending:
            return None
        time_us, origin, sequence = mark_of(payload)
        if origin != self._origin:
            return None
        position = sequence - self._pending[0].sequence
        if not 0 <= position < len(self._pending) or self._pending[position].kind is not kind:
            return None
        block = self._pending[position].block
        return block if block.header.base_time_us == time_us else None

    def _persisted(self, number: int) -> None:
        if self.is_closed:
            return
        while self._waiting and self._waiting[0][0] <= number:
            _, effects = self._waiting.popleft()
            for effect in effects:
                if not isinstance(effect, Reply):
                    self._run_one(effect)
        self.step(Persisted(number=number))

    def _commit(self, index: Index) -> None:
        while self.applied < index:
            first = Index(self.applied + 1)
            block = self._blocks.pop(first, None)
            found = [block] if block is not None else self._read(first, index)
            for one in found:
                self._blocks.pop(one.header.index, None)
                self._apply(one)
        machine = self._machine
        if machine.leader == self.replica and not machine.is_serving:
            self._tell_applied()

    def _tell_applied(self) -> None:
        """`Applied` may lag. Only a leader that is about to serve waits for it; otherwise once for all that
        was applied since the last tick, because a step costs as much as applying a block."""
        if self._applied_told != self.applied:
            self._applied_told = self.applied
            self.step(Applied(index=self.applied))

    def _read(self, first: Index, last: Index) -> list[Block]:
        """Committed blocks from disk. A replica alone has nobody to repair it: what is damaged is reported
        and passed over, and everything else is served."""
        try:
            return self.replica_log.blocks(first, last, _APPLY_BYTES_MAX)
        except RangeDamaged as error:
            if not self.is_alone:
                raise
            log.error("group %d: %s; what it held is lost here", self.number, error)
            self.applied = Index(error.damage.last_index)
            return []

    def _apply(self, block: Block) -> None:
        header = block.header
        self.applied = Index(header.index)
        if header.kind not in (Kind.DATA, Kind.CONTROL):
            return
        self._time_us = max(self._time_us, header.base_time_us)
        token = None
        if header.origin:
            self._origins.pop(header.origin, None)
            self._origins[header.origin] = header.sequence
            if len(self._origins) > _ORIGINS_MAX:
                del self._origins[next(iter(self._origins))]
            if header.origin == self._origin and self._pending:
                token = self._settled(header.sequence)
        self.app.apply(block, token)

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
        self.is_closed = True
        self._syncer.release(self.replica_log, call)

    def close(self) -> None:
        self.is_closed = True
        self.replica_log.close()


def _no_report(number: int, report: Report) -> None:
    raise AssertionError(f"group {number} reports to nobody: {report}")


def _no_start_over(number: int, effect: StartOver) -> None:
    raise AssertionError(f"group {number} cannot start over: {effect}")
