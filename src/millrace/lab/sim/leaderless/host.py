"""One leaderless replica's process: its disk, the driver of its machine, and the members connected to it.

The driver keeps the duties of `replication/contract.py`: what stands after a `PersistLog` waits for the disk,
persists complete in order, and a crash loses what was not synced. A host without a disk loses everything but
the number of its last incarnation.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.lab.sim.raft.plan import TICK_US
from millrace.replication.contract import EntryKind, Persisted, ReplicaId, RequestId, Send, Tick
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import (
    NOWHERE,
    Acknowledged,
    Answer,
    Connected,
    Divided,
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
    Position,
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

if TYPE_CHECKING:
    from millrace.lab.sim.leaderless.members import Consumer
    from millrace.lab.sim.leaderless.world import LeaderlessWorld

DRIVER_MUTATIONS = {
    "incarnation_reused": "a start goes on with an origin whose log is not whole",
}
_TICK = Tick()
_REQUESTS_MAX = 10_000


class OriginDisk:
    """Implements `OriginLogs`. Everything here is durable; what is being synced is the host's."""

    def __init__(self) -> None:
        self.begins: dict[Origin, Position] = {}
        self.logs: dict[Origin, list[LogEntry]] = {}
        self.state: bytes | None = None
        self.incarnation = 0
        self.is_whole = False

    def extents(self) -> Mapping[Origin, tuple[Position, Position]]:
        return {origin: (self.begins[origin], self.end(origin)) for origin in self.logs}

    def begin(self, origin: Origin) -> Position:
        return self.begins.get(origin, NOWHERE)

    def end(self, origin: Origin) -> Position:
        begin, log = self.begin(origin), self.logs.get(origin, [])
        return Position(begin.entry + len(log), begin.offset + sum(entry.count for entry in log))

    def entries(
        self, origin: Origin, first: int, last: int, bytes_max: int
    ) -> tuple[int, Sequence[LogEntry]]:
        begin, log = self.begin(origin), self.logs.get(origin, [])
        start = first - begin.entry - 1
        if start < 0:
            return 0, ()
        found = log[start : last - begin.entry]
        while len(found) > 1 and sum(len(entry.payload) for entry in found) > bytes_max:
            found.pop()
        return begin.offset + sum(entry.count for entry in log[:start]), found

    def write(self, persist: PersistLog) -> None:
        origin = persist.origin
        if persist.begin is not None:
            self.begins[origin], self.logs[origin] = persist.begin, []
        if persist.state is not None:
            self.state = persist.state
        begin = self.begins.setdefault(origin, NOWHERE)
        log = self.logs.setdefault(origin, [])
        del log[persist.first_index - begin.entry - 1 :]
        log += persist.entries

    def trim(self, origin: Origin, offset: int) -> None:
        """Whole entries below `offset`."""
        begin, log = self.begin(origin), self.logs.get(origin, [])
        count = 0
        while count < len(log) and begin.offset + log[count].count <= offset and log[count].count:
            begin = Position(begin.entry + 1, begin.offset + log[count].count)
            count += 1
            while count < len(log) and not log[count].count and begin.offset < offset:
                begin = Position(begin.entry + 1, begin.offset)
                count += 1
        if count:
            self.begins[origin], self.logs[origin] = begin, log[count:]

    def lose(self) -> None:
        """All but the number: the next start must raise it."""
        self.begins, self.logs, self.state, self.is_whole = {}, {}, None, False


class Host:
    def __init__(self, name: ReplicaId, world: "LeaderlessWorld", rng: random.Random, drift: float) -> None:
        self.name = name
        self.disk = OriginDisk()
        self.drift = drift
        self.machine: Leaderless | None = None
        self.boot = 0
        self.applied: dict[Origin, int] = {}
        self.consumers: dict[str, dict[str, Consumer]] = {}
        self._world = world
        self._clock = world.clock
        self._rng = rng
        self._queue: deque[tuple[PersistLog, list[LeaderlessEffect]]] = deque()
        self._is_syncing = False
        self._next_request = 0
        self._requests: dict[RequestId, Callable[[Any], None]] = {}
        self._settled: dict[str, list[Span]] = {}
        self.is_paused = False
        self.hesitant_until_us = 0
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
        disk = self.disk
        if not disk.is_whole and ("incarnation_reused" not in self._world.mutations or not disk.incarnation):
            disk.incarnation += 1
        disk.is_whole = True
        self.boot += 1
        self.applied = {origin: end.entry for origin, (_, end) in disk.extents().items()}
        self.machine = Leaderless(
            self.name,
            origin=Origin(self.name, disk.incarnation),
            boot=self.boot,
            members=self._world.members,
            logs=disk,
            state=disk.state,
            rng=random.Random(f"{self._world.plan.seed} machine {self.name} {self.boot}"),
            level=self._world.plan.level,
            options=self._world.plan.options,
        )
        self._tick(self.boot)

    def crash(self, why: str) -> None:
        if self.machine is None:
            return
        self._world.note(f"{self.name} crashes: {why}")
        self.machine = None
        survivors = self._rng.randint(0, len(self._queue))
        for persist, _ in list(self._queue)[:survivors]:
            self.disk.write(persist)
            self._world.checks.durable(self, persist)
        self._queue.clear()
        self._is_syncing = self.is_paused = False
        self._slept_ticks = 0
        self._requests.clear()
        self._settled.clear()
        self._inbox.clear()
        for members in self.consumers.values():
            for consumer in list(members.values()):
                consumer.cut_off()
        self.consumers.clear()
        if not self._world.plan.has_disks:
            self.disk.lose()
            self._world.checks.lost_disk(self)
        self._world.on_crash(self)

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
        machine = self.machine
        if machine is None:
            return
        if self.is_paused:
            if len(self._inbox) < _REQUESTS_MAX:
                self._inbox.append(event)
            return
        effects = machine.step(event)
        trace = self._world.trace
        if trace is not None and (effects or event is not _TICK):
            trace.step(
                self._clock.now_us,
                self.name,
                "n",
                machine.origin.incarnation,
                event,
                effects,  # type: ignore[arg-type]
            )
        for position, effect in enumerate(effects):
            if isinstance(effect, PersistLog):
                self._queue.append((effect, effects[position + 1 :]))
                self._sync()
                return
            self._run(effect)

    def _sync(self) -> None:
        if self._is_syncing or not self._queue:
            return
        self._is_syncing = True
        delay_us = 50 + self._rng.randrange(self._world.plan.sync_us_max)
        self._clock.after(delay_us, self._synced, self.boot, len(self._queue))

    def _synced(self, boot: int, count: int) -> None:
        if self.machine is None or boot != self.boot:
            return
        self._is_syncing = False
        done = [self._queue.popleft() for _ in range(count)]
        for persist, _ in done:
            self.disk.write(persist)
            self._world.checks.durable(self, persist)
        for _, effects in done:
            for effect in effects:
                self._run(effect)
        self.handle(Persisted(number=done[-1][0].number))
        self._sync()

    def _run(self, effect: LeaderlessEffect) -> None:
        match effect:
            case Send():
                if isinstance(effect.body, Answer):
                    self._world.checks.answered(self, effect.body.group, effect.body.generation)
                self._world.network.send(self.name, effect.to, effect.body)
            case Stored():
                self._store(effect)
            case Placed() | Overloaded():
                self._answer(effect.request, effect)
            case Acknowledged():
                self._answer(effect.request, effect)
                self._requests.pop(effect.request, None)
            case Given():
                self._give(effect)
            case Divided():
                self._world.checks.divided(self, effect.group, effect.generation)
                self.find_work(effect.group)
            case GroupRemoved():
                for consumer in list(self.consumers.get(effect.group, {}).values()):
                    consumer.subscribe(effect.saved_position)
            case Remove():
                self._world.checks.removed(self, effect.origin, effect.offset)
                if self.machine is not None:
                    self.disk.state = self.machine.to_bytes()
                self.disk.trim(effect.origin, effect.offset)
            case Overtaken():
                self._world.note(f"{self.name} is overtaken by {effect.by}")
                self.disk.is_whole = False
                self._clock.after(1, self.crash, "overtaken")
            case PersistLog():
                raise AssertionError("a list has one write at most")

    def _store(self, effect: Stored) -> None:
        origin = effect.origin
        first = max(self.applied.get(origin, 0), self.disk.begin(origin).entry) + 1
        base, entries = self.disk.entries(origin, first, effect.index, 1 << 40)
        self._world.checks.stored(self, origin, first, base, entries)
        self.applied[origin] = effect.index

    # -------------------------------------------------------------------------------------- requests

    def _answer(self, request: RequestId, answer: Any) -> None:
        waiting = self._requests.get(request)
        if waiting is not None:
            waiting(answer)

    def _request(self, answered: Callable[[Any], None]) -> RequestId:
        self._next_request += 1
        request = RequestId(self._next_request)
        if len(self._requests) < _REQUESTS_MAX:
            self._requests[request] = answered
        return request

    def publish(self, blocks: tuple[tuple[int, bytes], ...], answered: Callable[[Any], None]) -> None:
        self.handle(Publish(request=self._request(answered), blocks=blocks))

    def subscribe(
        self, consumer: "Consumer", answered: Callable[[Any], None], saved_position: bytes = b""
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

    def unsubscribe(self, consumer: "Consumer", answered: Callable[[Any], None]) -> None:
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

    def connect(self, consumer: "Consumer") -> None:
        members = self.consumers.setdefault(consumer.group, {})
        members[consumer.name] = consumer
        self.handle(Connected(group=consumer.group, members=len(members)))

    def disconnect(self, consumer: "Consumer", held: list[Span]) -> None:
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
