"""One replica's process: the driver of `replication/contract.py`, duty by duty, with places to crash.

Events enter by `handle` and are stepped one after the other; what a step returns runs in list order. A
`Persist` is written, and the rest of its list waits until a sync covers it. Syncs are grouped: one covers all
that was written before it began. Applying is immediate or lags, snapshots take time, and a crash may come at
any of `CRASH_POINTS`, armed by the nemesis. After a crash nothing of this incarnation runs any more: every
scheduled call carries the incarnation it belongs to.

Requests of clients are answered through a callback with an `Answer`. A crash answers nobody.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millrace.lab.sim.raft.checkers import Checkers
from millrace.lab.sim.raft.plan import TICK_US, Plan
from millrace.lab.sim.raft.state import State
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.log_disk import LogDisk
from millrace.lab.sim.surroundings.network import Network
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    Accepted,
    Applied,
    ChangeKind,
    ChangeMembership,
    Commit,
    Effect,
    EntryKind,
    InstallSnapshot,
    PeerMessage,
    Persist,
    Persisted,
    Propose,
    ReadIndex,
    ReadReady,
    Refused,
    Repaired,
    Replica,
    ReplicaId,
    Reply,
    RequestId,
    RoleChanged,
    Send,
    Snapshot,
    SnapshotTaken,
    StageSnapshot,
    Tick,
    TransferLeadership,
    Transferred,
    checksum,
)
from millrace.types import Index

INBOX_MAX = 2_000
TICK = Tick()
CRASH_POINTS = (
    "before persist",
    "after write",
    "after sync",
    "between effects",
    "before apply",
    "after apply",
)
DRIVER_MUTATIONS = {
    "driver_retries_fsync": "a failed fsync is tried again and believed, though the pages are gone",
    "driver_sends_before_sync": "what stands after a Persist does not wait for the disk",
    "driver_forgets_hard_state": "a restart does not read term and vote back",
    "driver_snapshot_skips_entry": "a snapshot is labelled one entry later than its state",
}


class Outcome(Enum):
    ACKED = "acked"
    LOST = "lost"
    READ = "read"
    REFUSED = "refused"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    outcome: Outcome
    first: int = 0
    last: int = 0
    term: int = 0
    """Of the entries acknowledged."""
    versions: tuple[int, ...] = ()
    """What a read saw."""
    leader: ReplicaId | None = None
    reason: str = ""


AnswerCall = Callable[[Answer], None]


class _CrashedHere(Exception):
    """Unwinds the step in which an armed crash point was met."""


class Process:
    def __init__(
        self,
        *,
        replica: ReplicaId,
        disk: LogDisk,
        plan: Plan,
        clock: Clock,
        network: Network,
        checkers: Checkers,
        trace: Trace | None,
        rng: random.Random,
        drift: float,
        make_machine: Callable[["Process"], Replica],
        on_crash: Callable[["Process"], None],
        mutations: frozenset[str],
    ) -> None:
        self.replica = replica
        self.disk = disk
        self.plan = plan
        self.rng = rng
        self.drift = drift
        self.incarnation = 0
        self.machine: Replica | None = None
        self.role = "down"
        self.term = 0
        self.is_serving = False
        self.is_paused = False
        self.is_gone = False
        """Its disk is lost: this replica id never comes back."""
        self.is_stalled = False
        self.is_full = False
        self.is_disk_slow = plan.slow_sync_rate > 0
        self.fsync_fails = False
        self.armed: str | None = None
        self._armed_after = 0
        self._clock = clock
        self._network = network
        self._checkers = checkers
        self._trace = trace
        self._make_machine = make_machine
        self._on_crash = on_crash
        self._mutations = mutations
        self._reset()

    def _reset(self) -> None:
        self.state = State()
        self.commit = 0
        self.led_from = 0
        """Where the log ended when this replica became leader."""
        self._busy = False
        self._events: deque[Any] = deque()
        self._inbox: deque[Any] = deque()
        self.waiting: deque[tuple[Persist, list[Effect], int]] = deque()
        self.persist_number = 0
        self._is_syncing = False
        self._apply_scheduled = False
        self._snapshot_running = False
        self._request = 0
        self._requests: dict[int, AnswerCall] = {}
        self._proposals: dict[int, tuple[int, int, AnswerCall]] = {}
        self._reads: list[tuple[int, AnswerCall]] = []

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    @property
    def requests_open(self) -> int:
        return len(self._requests)

    @property
    def is_asked_to_change(self) -> bool:
        """A change of the membership waits until this process goes on."""
        return any(type(event) is ChangeMembership for event in self._inbox)

    # ------------------------------------------------------------------------------------ life cycle

    def start(self) -> None:
        assert self.machine is None and not self.is_gone
        self.incarnation += 1
        self._reset()
        self.is_paused = self.is_stalled = self.is_full = self.fsync_fails = False
        self.armed = None
        if "driver_forgets_hard_state" in self._mutations:
            self.disk.durable.hard_state = type(self.disk.durable.hard_state)(
                term=self.disk.durable.hard_state.term
            )
        if self.disk.durable.snapshot is not None:
            self.state = State.decode(self.disk.latest_bytes())
            self.commit = self.disk.durable.snapshot.index
        self.role, self.term, self.is_serving = "follower", self.disk.durable.hard_state.term, False
        # A starting node reads its log before it serves anybody, so these reads may block and are never cold.
        cold_rate, self.disk.cold_rate = self.disk.cold_rate, 0.0
        try:
            self.machine = self._make_machine(self)
        except Exception as error:
            raise Violation("machine raised", f"{self.replica} at its start: {error!r}") from error
        self.disk.cold_rate = cold_rate
        self._checkers.on_start(self)
        self.note("start")
        self._clock.after(int(self.rng.random() * TICK_US), self._tick, self.incarnation)

    def crash(self, why: str) -> None:
        if self.machine is None:
            return
        self.disk.crash()
        self._checkers.on_crash(self)
        self.machine = None
        self.role, self.is_serving = "down", False
        self.incarnation += 1
        self._reset()
        self.note(f"crash: {why}; disk keeps up to {self.disk.durable.last}")
        self._on_crash(self)

    def arm(self, point: str, after: int) -> None:
        self.armed, self._armed_after = point, after

    def pause(self) -> None:
        self.is_paused = True
        self.note("pause")

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.is_paused = False
        self.note("resume")
        held, self._inbox = self._inbox, deque()
        for event in held:
            self.handle(event)

    def heal_disk(self) -> None:
        self.is_stalled = self.is_full = self.fsync_fails = False
        if self.machine is not None:
            self._start_sync()

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.note(self._clock.now_us, self.replica, text)

    def _point(self, name: str) -> None:
        if self.armed == name:
            self._armed_after -= 1
            if self._armed_after < 0:
                self.armed = None
                self.crash(name)
                raise _CrashedHere

    # ---------------------------------------------------------------------------------------- events

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        self._clock.after(int(TICK_US * self.drift), self._tick, incarnation)
        if not self.is_paused:
            self.handle(TICK)

    def handle(self, event: Any) -> None:
        """An event of the contract, or (effects, position): the rest of a list that waited."""
        if self.machine is None:
            return
        if self.is_paused:
            # Only the network may lose: a request or a finished sync waits.
            if len(self._inbox) < INBOX_MAX or type(event) is not PeerMessage:
                self._inbox.append(event)
            return
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        incarnation = self.incarnation
        try:
            while self._events:
                event = self._events.popleft()
                if type(event) is tuple:
                    self._run(*event)
                else:
                    self._step(event)
        except _CrashedHere:
            return
        finally:
            if incarnation == self.incarnation:
                self._busy = False

    def _step(self, event: Any) -> None:
        assert self.machine is not None
        try:
            effects = self.machine.step(event)
        except Violation:
            raise
        except Exception as error:
            raise Violation("machine raised", f"{self.replica} on {event}: {error!r}") from error
        self._checkers.after_step(self, event, effects)
        if self._trace is not None:
            self._trace.step(self._clock.now_us, self.replica, self.role, self.term, event, effects)
        if effects:
            self._run(effects, 0)

    # --------------------------------------------------------------------------------------- effects

    def _run(self, effects: list[Effect], position: int) -> None:
        for at in range(position, len(effects)):
            if self.machine is None:
                raise Violation("contract", f"{self.replica} runs effects after its crash")
            effect = effects[at]
            kind = type(effect)
            if self.armed is not None:
                self._point("between effects")
            if kind is Send:
                self._checkers.on_send(self, effect.to, effect.body)  # type: ignore[union-attr]
                self._network.send(self.replica, effect.to, effect.body)  # type: ignore[union-attr]
            elif kind is Persist:
                self._persist(effect, effects, at + 1)  # type: ignore[arg-type]
                if "driver_sends_before_sync" not in self._mutations:
                    return
            else:
                self._run_other(effect)

    def _run_other(self, effect: Effect) -> None:
        match effect:
            case Commit():
                self._checkers.on_commit(self, effect.index)
                self.commit = effect.index
                self._schedule_apply()
            case Reply():
                self._reply(effect)
            case StageSnapshot():
                self.disk.stage(effect.snapshot, effect.position, effect.data)
            case InstallSnapshot():
                self._install(effect.snapshot)
            case Repaired():
                self.disk.damage = None
                self.note("repaired")
            case RoleChanged():
                pass  # taken at the step: a role is a fact when it is returned
            case _:
                raise Violation("contract", f"unknown effect {effect!r}")

    # ------------------------------------------------------------------------------------------ disk

    def _persist(self, persist: Persist, effects: list[Effect], position: int) -> None:
        if self.armed is not None:
            self._point("before persist")
        self.disk.write(persist)
        if "driver_sends_before_sync" in self._mutations:
            position = len(effects)
        self.waiting.append((persist, effects, position))
        if self.armed is not None:
            self._point("after write")
        if persist.is_barrier and len(self.waiting) == 1:
            self._complete(persist.number)
        else:
            self._start_sync()

    def _start_sync(self) -> None:
        if self._is_syncing or not self.waiting or self.is_stalled or self.is_full:
            return
        self._is_syncing = True
        delay_us = 20 + int(self.rng.random() * self.plan.sync_us_max)
        if self.is_disk_slow and self.rng.random() < self.plan.slow_sync_rate:
            delay_us *= 50
        self._clock.after(delay_us, self._synced, self.incarnation, self.waiting[-1][0].number)

    def _synced(self, incarnation: int, number: int) -> None:
        if incarnation != self.incarnation:
            return
        if self.is_paused or self.is_stalled:
            self._clock.after(TICK_US // 2, self._synced, incarnation, number)
            return
        self._is_syncing = False
        if self.fsync_fails:
            self.fsync_fails = False
            if "driver_retries_fsync" not in self._mutations:
                self.crash("fsync failed")
                return
            self.disk.drop_pages(number)
        try:
            self._complete(number)
        except _CrashedHere:
            return
        self._start_sync()

    def _complete(self, number: int) -> None:
        """All up to `number` is durable; barriers that follow have nothing to wait for."""
        due = []
        while self.waiting and (self.waiting[0][0].number <= number or self.waiting[0][0].is_barrier):
            item = self.waiting.popleft()
            number = max(number, item[0].number)
            due.append(item)
        self._checkers.on_durable(self, self.disk.sync(number))
        if self.armed is not None:
            self._point("after sync")
        # The contract leaves the order of the two open, so the seed chooses it.
        choice = self.rng.random()
        if choice < 0.25:
            self.handle(Persisted(number=number))
        for persist, effects, position in due:
            if position < len(effects):
                self.handle((effects, position))
            if choice > 0.75 and persist.number != number:
                self.handle(Persisted(number=persist.number))
        if choice >= 0.25:
            self.handle(Persisted(number=number))

    # -------------------------------------------------------------------------------------- applying

    def _schedule_apply(self) -> None:
        if self.plan.apply_lag_us_max == 0:
            self._apply()
        elif not self._apply_scheduled:
            self._apply_scheduled = True
            delay_us = int(self.rng.random() ** 4 * self.plan.apply_lag_us_max)
            self._clock.after(delay_us, self._apply_late, self.incarnation)

    def _apply_late(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if self.is_paused:
            self._clock.after(TICK_US, self._apply_late, incarnation)
            return
        self._apply_scheduled = False
        try:
            self._apply()
        except _CrashedHere:
            return

    def _apply(self) -> None:
        if self.commit <= self.state.applied:
            return
        if self.armed is not None:
            self._point("before apply")
        image, state = self.disk.durable, self.state
        for index in range(state.applied + 1, self.commit + 1):
            entry = image.entry(index)
            if entry is None:
                raise Violation("apply order", f"{self.replica} has no durable entry {index} to apply")
            state.apply(entry)
            self._checkers.on_apply(self, entry, state.chain)
            if index in self._proposals:
                self._settle(index, entry.term)
        if self.armed is not None:
            self._point("after apply")
        self._applied()

    def _applied(self) -> None:
        if self._reads:
            applied = self.state.applied
            ready = [call for index, call in self._reads if index <= applied]
            self._reads = [item for item in self._reads if item[0] > applied]
            for call in ready:
                self._answer_read(call)
        self.handle(Applied(index=Index(self.state.applied)))
        if self.machine is not None:
            self._maybe_snapshot()

    def _settle(self, index: int, term: int) -> None:
        first, proposed_term, call = self._proposals.pop(index)
        outcome = Outcome.ACKED if term == proposed_term else Outcome.LOST
        call(Answer(outcome=outcome, first=first, last=index, term=proposed_term))

    def _install(self, snapshot: Snapshot) -> None:
        if self.disk.durable.snapshot is None or self.disk.durable.snapshot.index < snapshot.index:
            raise Violation("contract", f"{self.replica} installs {snapshot.index}, which is not on its disk")
        if snapshot.index > self.state.applied:
            self.state = State.decode(self.disk.latest_bytes())
            self.commit = max(self.commit, self.state.applied)
            self._checkers.on_install(self, snapshot, self.state)
            # What was proposed here and covered now is open: the client asks again.
            self._proposals = {at: item for at, item in self._proposals.items() if at > self.state.applied}
        self._applied()

    # ------------------------------------------------------------------------------------- snapshots

    def _maybe_snapshot(self) -> None:
        base = self.disk.written.snapshot.index if self.disk.written.snapshot is not None else 0
        if self._snapshot_running or self.is_full:
            return
        if self.state.applied - base < self.plan.snapshot_every_entries:
            return
        assert self.machine is not None
        index = Index(self.state.applied)
        term = self.disk.durable.term(index)
        if term is None:
            return
        data = self.state.encode()
        config = self.machine.config_at(index)
        if "driver_snapshot_skips_entry" in self._mutations and self.disk.durable.term(index + 1) is not None:
            index = Index(index + 1)
        snapshot = Snapshot(
            index=index, term=term, config=config, size_bytes=len(data), checksum=checksum(data)
        )
        self._snapshot_running = True
        delay_us = int(self.rng.random() * self.plan.snapshot_us_max)
        self._clock.after(delay_us, self._snapshot_done, self.incarnation, snapshot, data)

    def _snapshot_done(self, incarnation: int, snapshot: Snapshot, data: bytes) -> None:
        if incarnation != self.incarnation:
            return
        if self.is_paused:
            self._clock.after(TICK_US, self._snapshot_done, incarnation, snapshot, data)
            return
        self._snapshot_running = False
        newest = self.disk.written.snapshot
        if newest is not None and newest.index >= snapshot.index:
            return
        self.disk.put_snapshot(snapshot, data)
        self.handle(SnapshotTaken(index=snapshot.index, term=snapshot.term, config=snapshot.config))
        if self.machine is not None:
            self.disk.compact(snapshot.index - self.plan.keep_entries)

    # -------------------------------------------------------------------------------------- requests

    def propose(self, payloads: tuple[bytes, ...], kind: EntryKind, call: AnswerCall) -> None:
        self.handle(Propose(request=self._open(call), payloads=payloads, kind=kind))

    def read(self, call: AnswerCall) -> None:
        self.handle(ReadIndex(request=self._open(call)))

    def change(self, kind: ChangeKind, replica: ReplicaId, call: AnswerCall) -> None:
        self.handle(ChangeMembership(request=self._open(call), kind=kind, replica=replica))

    def transfer(self, target: ReplicaId | None, call: AnswerCall) -> None:
        self.handle(TransferLeadership(request=self._open(call), target=target))

    def _open(self, call: AnswerCall) -> RequestId:
        if self.machine is None:
            return RequestId(0)
        self._request += 1
        self._requests[self._request] = call
        return RequestId(self._request)

    def _reply(self, reply: Reply) -> None:
        call = self._requests.pop(reply.request, None)
        if call is None:
            raise Violation("contract", f"{self.replica} answers request {reply.request} twice or unasked")
        match reply.outcome:
            case Accepted(term=term, first_index=first, last_index=last):
                self._proposals[last] = (first, term, call)
                # A Persisted that was stepped before this reply may have committed it already.
                found = self.disk.durable.term(last) if last <= self.state.applied else None
                if found is not None:
                    self._settle(last, found)
            case ReadReady(index=index) if index <= self.state.applied:
                self._answer_read(call)
            case ReadReady(index=index):
                self._reads.append((index, call))
            case Refused(reason=reason, leader=leader):
                call(Answer(outcome=Outcome.REFUSED, reason=reason.value, leader=leader))
            case Transferred():
                call(Answer(outcome=Outcome.DONE))

    def _answer_read(self, call: AnswerCall) -> None:
        call(Answer(outcome=Outcome.READ, last=self.state.applied, versions=tuple(self.state.versions)))
