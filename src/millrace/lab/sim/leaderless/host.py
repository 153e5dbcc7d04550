"""One leaderless replica's process: its disk, its machine with the driver of production, and its members.

A crash loses what was not synced. A host without a disk loses everything but the number of its last
incarnation.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from millrace.driver.effects import EffectDriver, Runner
from millrace.lab.sim.leaderless.origin_disk import OriginDisk
from millrace.lab.sim.leaderless.plan import LeaderlessPlan
from millrace.lab.sim.raft.plan import TICK_US
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.network import Network
from millrace.lab.sim.trace import Trace
from millrace.replication.contract import EntryKind, PeerBody, ReplicaId, RequestId, Tick
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import (
    Acknowledged,
    Answer,
    Connected,
    Divided,
    Generation,
    Given,
    GroupRemoved,
    LeaderlessEffect,
    LeaderlessEvent,
    LogEntry,
    Origin,
    Overloaded,
    Overtaken,
    PersistLog,
    Placed,
    Publish,
    Release,
    Remove,
    SetHolds,
    Settle,
    Slept,
    Span,
    Stored,
    Subscribe,
    Take,
    Unsubscribe,
)
from millrace.replication.leaderless.state import ControlState, LeaderlessGroup

_TICK = Tick()
_REQUESTS_MAX = 10_000


class Watch(Protocol):
    """Whoever wants to see what a host does."""

    def durable(self, host: "Host", persist: PersistLog) -> None: ...

    def stored(
        self, host: "Host", origin: Origin, first: int, base: int, entries: Sequence[LogEntry]
    ) -> None: ...

    def lost_disk(self, host: "Host") -> None: ...

    def answered(self, host: "Host", group: str, generation: Generation) -> None: ...

    def divided(self, host: "Host", group: str, generation: Generation) -> None: ...

    def removed(self, host: "Host", origin: Origin, offset: int) -> None: ...


class Member(Protocol):
    """A member of a group, as the node has it that it is connected to."""

    name: str
    group: str
    from_start: bool
    host: "Host | None"

    @property
    def room(self) -> int: ...

    def subscribe(self, saved_position: bytes = b"") -> None: ...

    def receive(self, span: Span) -> None: ...

    def cut_off(self) -> None: ...


class Host:
    """Stands behind the interfaces of its driver: log, network, and the machine with a trace of its steps."""

    def __init__(
        self,
        name: ReplicaId,
        *,
        plan: LeaderlessPlan,
        clock: Clock,
        network: Network,
        watch: Watch,
        trace: Trace | None,
        rng: random.Random,
        drift: float,
        make_machine: Callable[["Host"], Leaderless],
        on_crash: Callable[["Host"], None],
    ) -> None:
        self.name = name
        self.disk = OriginDisk()
        self.drift = drift
        self.machine: Leaderless | None = None
        self.boot = 0
        self.applied: dict[Origin, int] = {}
        self.consumers: dict[str, dict[str, Member]] = {}
        self.is_paused = False
        self.hesitant_until_us = 0
        self._plan = plan
        self._clock = clock
        self._network = network
        self._watch = watch
        self._trace = trace
        self._rng = rng
        self._make_machine = make_machine
        self._on_crash = on_crash
        self._driver: EffectDriver[LeaderlessEvent, LeaderlessEffect] | None = None
        self._unsynced: deque[PersistLog] = deque()
        self._is_syncing = False
        self._next_request = 0
        self._requests: dict[RequestId, Callable[[Any], None]] = {}
        self._settled: dict[str, list[Span]] = {}
        self._slept_ticks = 0
        self._inbox: list[LeaderlessEvent] = []

    @property
    def is_hesitant(self) -> bool:
        """Whether it stood still for so long, a moment ago, that others may have left it out."""
        return self._clock.now_us < self.hesitant_until_us

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    def find_group(self, key: str) -> LeaderlessGroup | None:
        """The group as this host knows it, or will by its disk once it is up."""
        if self.machine is not None:
            return self.machine.state.find(key)
        state = ControlState()
        if self.disk.state is not None:
            state.merge(self.disk.state)
        # Of what the saved state covers already nothing changes it.
        for entry in (entry for log in self.disk.logs.values() for entry in log):
            if entry.kind is EntryKind.CONTROL:
                state.apply(entry.payload)
        return state.find(key)

    # ------------------------------------------------------------------------------- start and crash

    def start(self) -> None:
        self.disk.start()
        self.boot += 1
        self.applied = {origin: end.entry for origin, (_, end) in self.disk.extents().items()}
        self.machine = self._make_machine(self)
        self._driver = EffectDriver(
            self, network=self, log=self, write_kind=PersistLog, runners=self._runners()
        )
        self._tick(self.boot)

    def crash(self, why: str) -> None:
        if self.machine is None:
            return
        self._note(f"{self.name} crashes: {why}")
        if self._driver is not None:
            self._driver.stop()
        self.machine = self._driver = None
        survivors = self._rng.randint(0, len(self._unsynced))
        for persist in list(self._unsynced)[:survivors]:
            self.disk.write(persist)
            self._watch.durable(self, persist)
        self._unsynced.clear()
        self._is_syncing = self.is_paused = False
        self._slept_ticks = 0
        self._requests.clear()
        self._settled.clear()
        self._inbox.clear()
        for members in self.consumers.values():
            for consumer in list(members.values()):
                consumer.cut_off()
        self.consumers.clear()
        if not self._plan.has_disks:
            self.disk.lose()
            self._watch.lost_disk(self)
        self._on_crash(self)

    def _note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.note(self._clock.now_us, "----", text)

    def _tick(self, boot: int) -> None:
        if self.machine is None or boot != self.boot:
            return
        self._clock.after(int(TICK_US * self.drift), self._tick, boot)
        if self.is_paused:
            self._slept_ticks += 1
            return
        self.handle(_TICK)
        if self._rng.random() < 0.2:
            self.handle(SetHolds(holds=()))
        settled, self._settled = self._settled, {}
        for group, spans in sorted(settled.items()):
            self.handle(Settle(group=group, spans=tuple(spans)))
        for group in sorted(self.consumers):
            self.find_work(group)
        if self.machine is not None and self._rng.random() < 0.02:
            self.disk.state = self.machine.to_bytes()

    def pause(self) -> None:
        """The process stands still; what is said to it waits."""
        self.is_paused = True

    def resume(self) -> None:
        if not self.is_paused:
            return
        self.is_paused = False
        slept, self._slept_ticks = self._slept_ticks, 0
        self.handle(Slept(ticks=slept))
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self.handle(event)

    # ---------------------------------------------------------------------------------------- driver

    def handle(self, event: LeaderlessEvent) -> None:
        if self._driver is None:
            return
        if self.is_paused:
            if len(self._inbox) < _REQUESTS_MAX:
                self._inbox.append(event)
            return
        self._driver.step(event)

    def step(self, event: LeaderlessEvent) -> list[LeaderlessEffect]:
        """The machine as its driver has it."""
        machine = self.machine
        assert machine is not None
        effects = machine.step(event)
        if self._trace is not None and (effects or event is not _TICK):
            incarnation = machine.origin.incarnation
            self._trace.step(self._clock.now_us, self.name, "n", incarnation, event, effects)
        return effects

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        if isinstance(body, Answer):
            self._watch.answered(self, body.group, body.generation)
        self._network.send(self.name, to, body)

    def write(self, write: PersistLog) -> None:
        self._unsynced.append(write)
        self._sync()

    def _sync(self) -> None:
        if self._is_syncing or not self._unsynced:
            return
        self._is_syncing = True
        delay_us = 50 + self._rng.randrange(self._plan.sync_us_max)
        self._clock.after(delay_us, self._synced, self.boot, len(self._unsynced))

    def _synced(self, boot: int, count: int) -> None:
        if self._driver is None or boot != self.boot:
            return
        if self.is_paused:
            self._clock.after(TICK_US // 2, self._synced, boot, count)
            return
        self._is_syncing = False
        done = [self._unsynced.popleft() for _ in range(count)]
        for persist in done:
            self.disk.write(persist)
            self._watch.durable(self, persist)
        self._driver.persisted(done[-1].number)
        self._sync()

    # --------------------------------------------------------------------------------------- effects

    def _runners(self) -> dict[type, Runner]:
        return {
            Stored: self._store,
            Placed: self._answer,
            Overloaded: self._answer,
            Acknowledged: self._acknowledge,
            Given: self._give,
            Divided: self._divide,
            GroupRemoved: self._revive,
            Remove: self._remove,
            Overtaken: self._overtake,
        }

    def _divide(self, effect: Divided) -> None:
        self._watch.divided(self, effect.group, effect.generation)
        self.find_work(effect.group)

    def _revive(self, effect: GroupRemoved) -> None:
        for consumer in list(self.consumers.get(effect.group, {}).values()):
            consumer.subscribe(effect.saved_position)

    def _remove(self, effect: Remove) -> None:
        assert self.machine is not None
        self._watch.removed(self, effect.origin, effect.offset)
        self.disk.state = self.machine.to_bytes()
        self.disk.trim(effect.origin, effect.offset)

    def _overtake(self, effect: Overtaken) -> None:
        self._note(f"{self.name} is overtaken by {effect.by}")
        self.disk.is_whole = False
        self._clock.after(1, self.crash, "overtaken")

    def _store(self, effect: Stored) -> None:
        origin = effect.origin
        first = max(self.applied.get(origin, 0), self.disk.begin(origin).entry) + 1
        base, entries = self.disk.entries(origin, first, effect.index, 1 << 40)
        self._watch.stored(self, origin, first, base, entries)
        self.applied[origin] = effect.index

    # -------------------------------------------------------------------------------------- requests

    def _answer(self, answer: Placed | Overloaded | Acknowledged) -> None:
        waiting = self._requests.get(answer.request)
        if waiting is not None:
            waiting(answer)

    def _acknowledge(self, answer: Acknowledged) -> None:
        self._answer(answer)
        self._requests.pop(answer.request, None)

    def _request(self, answered: Callable[[Any], None]) -> RequestId:
        self._next_request += 1
        request = RequestId(self._next_request)
        if len(self._requests) < _REQUESTS_MAX:
            self._requests[request] = answered
        return request

    def publish(self, blocks: tuple[tuple[int, bytes], ...], answered: Callable[[Any], None]) -> None:
        self.handle(Publish(request=self._request(answered), blocks=blocks))

    def subscribe(
        self, consumer: Member, answered: Callable[[Any], None], saved_position: bytes = b""
    ) -> None:
        self.handle(
            Subscribe(
                request=self._request(answered),
                group=consumer.group,
                client=consumer.name,
                filters=("#",),
                wall_us=self._clock.now_us,
                from_start=consumer.from_start,
                saved_position=saved_position,
            )
        )

    def unsubscribe(self, consumer: Member, answered: Callable[[Any], None]) -> None:
        self.handle(
            Unsubscribe(
                request=self._request(answered),
                group=consumer.group,
                client=consumer.name,
                wall_us=self._clock.now_us,
                is_last_out=False,
            )
        )

    # --------------------------------------------------------------------------------------- members

    def connect(self, consumer: Member) -> None:
        members = self.consumers.setdefault(consumer.group, {})
        members[consumer.name] = consumer
        self.handle(Connected(group=consumer.group, members=len(members)))

    def disconnect(self, consumer: Member, held: list[Span]) -> None:
        members = self.consumers.get(consumer.group, {})
        members.pop(consumer.name, None)
        if held:
            self.handle(Release(group=consumer.group, spans=tuple(held)))
        self.handle(Connected(group=consumer.group, members=len(members)))
        if not members:
            self.consumers.pop(consumer.group, None)

    def find_work(self, group: str) -> None:
        room = sum(consumer.room for consumer in self.consumers.get(group, {}).values())
        if room:
            self.handle(Take(group=group, count=room))

    def _give(self, effect: Given) -> None:
        members = list(self.consumers.get(effect.group, {}).values())
        for span in effect.spans:
            for offset in range(span.start, span.end):
                free = [consumer for consumer in members if consumer.room] or members
                self._rng.choice(free).receive(Span(span.origin, offset, offset + 1))

    def settle(self, group: str, span: Span) -> None:
        self._settled.setdefault(group, []).append(span)
