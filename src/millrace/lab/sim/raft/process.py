"""One replica's process: the driver of production over a simulated disk and network, with places to crash.

Events enter by `handle`. The driver (`millrace/driver/`) steps them one after the other and runs what comes
back; here is what stands around it: a log whose syncs take time, a network that loses, a state that is
applied at once or late, snapshots that take a while, and the checkers, which see every step and every message
as it leaves. A crash may come at any of `CRASH_POINTS`, armed by the nemesis. After a crash nothing of this
incarnation runs any more: every scheduled call carries the incarnation it belongs to.

Requests of clients are answered through a callback with an `Answer`. A crash answers nobody.
"""

import random
from collections import deque
from collections.abc import Callable

from millrace.driver.effects import Runner
from millrace.driver.replica import ReplicaDriver
from millrace.lab.sim.raft.answers import Answer, AnswerCall, Outcome
from millrace.lab.sim.raft.checkers import Checkers
from millrace.lab.sim.raft.crash_points import CrashedHere, CrashPoints
from millrace.lab.sim.raft.plan import TICK_US, Plan
from millrace.lab.sim.raft.state import State
from millrace.lab.sim.raft.synced_log import SyncedLog
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.log_disk import LogDisk
from millrace.lab.sim.surroundings.network import Network
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    Accepted,
    ChangeKind,
    ChangeMembership,
    Commit,
    Effect,
    Entry,
    EntryKind,
    Event,
    InstallSnapshot,
    PeerBody,
    PeerMessage,
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
    Snapshot,
    SnapshotTaken,
    Tick,
    TransferLeadership,
    Transferred,
    checksum,
)
from millrace.types import Index

INBOX_MAX = 2_000
TICK = Tick()


class Process:
    """Implements `AppliedState` and the driver's `Network`, and is the machine that its driver steps."""

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
        self.points = CrashPoints(self.crash)
        self.log = SyncedLog(
            disk=disk,
            plan=plan,
            clock=clock,
            rng=rng,
            points=self.points,
            is_paused=lambda: self.is_paused,
            on_durable=lambda persists: checkers.on_durable(self, persists),
            on_failed=lambda: self.crash("fsync failed"),
        )
        self._clock = clock
        self._network = network
        self._checkers = checkers
        self._trace = trace
        self._make_machine = make_machine
        self._on_crash = on_crash
        self._driver: ReplicaDriver | None = None
        self._reset()

    def _reset(self) -> None:
        self.state = State()
        self.commit = 0
        self.led_from = 0
        """Where the log ended when this replica became leader."""
        self._inbox: deque[Event] = deque()
        self._is_apply_scheduled = False
        self._is_snapshot_running = False
        self._request = 0
        self._requests: dict[int, AnswerCall] = {}
        self._proposals: dict[int, tuple[int, int, AnswerCall]] = {}
        self._reads: list[tuple[int, AnswerCall]] = []

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    @property
    def rests(self) -> bool:
        return self.machine is not None and self.machine.rests

    @property
    def driver(self) -> ReplicaDriver:
        assert self._driver is not None, "the process is down"
        return self._driver

    @property
    def writes_waiting(self) -> int:
        return self.driver.writes_waiting

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
        self.is_paused = False
        self.points.disarm()
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
        self._driver = self._make_driver()
        self.log.open(self._driver)
        self._checkers.on_start(self)
        self.note("start")
        self._clock.after(int(self.rng.random() * TICK_US), self._tick, self.incarnation)

    def _make_driver(self) -> ReplicaDriver:
        return ReplicaDriver(
            self,
            network=self,
            log=self.log,
            state=self,
            applied=Index(self.state.applied),
            runners=self._runners(),
        )

    def _runners(self) -> dict[type, Runner]:
        """Of the effects that something more is done for than the driver does."""
        return {Commit: self._on_commit, InstallSnapshot: self._on_install, Repaired: self._on_repaired}

    def crash(self, why: str) -> None:
        if self.machine is None:
            return
        self.disk.crash()
        self._checkers.on_crash(self)
        self.driver.stop()
        self.log.close()
        self.machine = self._driver = None
        self.role, self.is_serving = "down", False
        self.incarnation += 1
        self._reset()
        self.note(f"crash: {why}; disk keeps up to {self.disk.durable.last}")
        self._on_crash(self)

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

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.note(self._clock.now_us, self.replica, text)

    # ---------------------------------------------------------------------------------------- events

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        self._clock.after(int(TICK_US * self.drift), self._tick, incarnation)
        if not self.is_paused:
            self.handle(TICK)

    def handle(self, event: Event) -> None:
        if self._driver is None:
            return
        if self.is_paused:
            # Only the network may lose: a request waits.
            if len(self._inbox) < INBOX_MAX or type(event) is not PeerMessage:
                self._inbox.append(event)
            return
        try:
            self._driver.step(event)
        except CrashedHere:
            return

    def step(self, event: Event) -> list[Effect]:
        """The machine as its driver has it: everybody looks at what it says before anything of it happens."""
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
        return effects

    # --------------------------------------------------------------------------------------- effects

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        self.points.meet("between effects")
        self._checkers.on_send(self, to, body)
        self._network.send(self.replica, to, body)

    def _on_commit(self, effect: Commit) -> None:
        self.points.meet("between effects")
        self._checkers.on_commit(self, effect.index)
        self.commit = effect.index
        if self.plan.apply_lag_us_max == 0:
            self._apply()
        elif not self._is_apply_scheduled:
            self._is_apply_scheduled = True
            delay_us = int(self.rng.random() ** 4 * self.plan.apply_lag_us_max)
            self._clock.after(delay_us, self._apply_late, self.incarnation)

    def _on_install(self, effect: InstallSnapshot) -> None:
        self.points.meet("between effects")
        newest = self.disk.durable.snapshot
        if newest is None or newest.index < effect.snapshot.index:
            raise Violation("contract", f"{self.replica} installs {effect.snapshot.index}, not on its disk")
        self.driver.install(effect)

    def _on_repaired(self, effect: Repaired) -> None:
        self.points.meet("between effects")
        self.log.repaired()
        self.note("repaired")

    def on_role_changed(self, change: RoleChanged) -> None:
        """Taken at the step: a role is a fact when it is returned."""
        self.points.meet("between effects")

    # -------------------------------------------------------------------------------------- applying

    def _apply_late(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        if self.is_paused:
            self._clock.after(TICK_US, self._apply_late, incarnation)
            return
        self._is_apply_scheduled = False
        try:
            self._apply()
        except CrashedHere:
            return

    def _apply(self) -> None:
        if self.commit > self.state.applied:
            self.points.meet("before apply")
            self.driver.apply_to(Index(self.commit))

    def apply(self, entry: Entry) -> None:
        self.state.apply(entry)
        self._checkers.on_apply(self, entry, self.state.chain)
        if entry.index in self._proposals:
            self._settle(entry.index, entry.term)
        if entry.index == self.commit:
            self.points.meet("after apply")

    def restore(self, snapshot: Snapshot, loaded: Callable[[], None]) -> None:
        """At once, or over a while."""
        data, delay_us = self.disk.latest_bytes(), int(self.rng.random() * self.plan.snapshot_us_max)
        if self.rng.random() < 0.5:
            self._load(self.incarnation, snapshot, data, loaded)
        else:
            self._clock.after(delay_us, self._load, self.incarnation, snapshot, data, loaded)

    def _load(self, incarnation: int, snapshot: Snapshot, data: bytes, loaded: Callable[[], None]) -> None:
        if incarnation != self.incarnation or snapshot.index < self.state.applied:
            return
        self.state = State.decode(data)
        self.commit = max(self.commit, self.state.applied)
        self._checkers.on_install(self, snapshot, self.state)
        # What was proposed here and covered now is open: the client asks again.
        self._proposals = {at: item for at, item in self._proposals.items() if at > self.state.applied}
        loaded()

    def has_applied(self) -> None:
        if self._reads:
            applied = self.state.applied
            ready = [call for index, call in self._reads if index <= applied]
            self._reads = [item for item in self._reads if item[0] > applied]
            for call in ready:
                self._answer_read(call)
        self.driver.tell_applied()
        if self.machine is not None:
            self._maybe_snapshot()

    def _settle(self, index: int, term: int) -> None:
        first, proposed_term, call = self._proposals.pop(index)
        outcome = Outcome.ACKED if term == proposed_term else Outcome.LOST
        call(Answer(outcome=outcome, first=first, last=index, term=proposed_term))

    # ------------------------------------------------------------------------------------- snapshots

    def _maybe_snapshot(self) -> None:
        base = self.disk.written.snapshot.index if self.disk.written.snapshot is not None else 0
        if self._is_snapshot_running or self.log.is_full:
            return
        if self.state.applied - base < self.plan.snapshot_every_entries:
            return
        snapshot = self._snapshot_of(Index(self.state.applied), data := self.state.encode())
        if snapshot is None:
            return
        self._is_snapshot_running = True
        delay_us = int(self.rng.random() * self.plan.snapshot_us_max)
        self._clock.after(delay_us, self._snapshot_done, self.incarnation, snapshot, data)

    def _snapshot_of(self, index: Index, data: bytes) -> Snapshot | None:
        """The name of the state after `index`; None where the log does not know that entry any more."""
        assert self.machine is not None
        term = self.disk.durable.term(index)
        if term is None:
            return None
        config = self.machine.config_at(index)
        return Snapshot(index=index, term=term, config=config, size_bytes=len(data), checksum=checksum(data))

    def _snapshot_done(self, incarnation: int, snapshot: Snapshot, data: bytes) -> None:
        if incarnation != self.incarnation:
            return
        if self.is_paused:
            self._clock.after(TICK_US, self._snapshot_done, incarnation, snapshot, data)
            return
        self._is_snapshot_running = False
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

    def on_reply(self, reply: Reply) -> None:
        self.points.meet("between effects")
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
