"""A few leaderless machines with disks in memory and a network that a test opens and cuts by hand."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.driver.effects import EffectDriver, Runner
from millrace.lab.sim.leaderless.origin_disk import OriginDisk
from millrace.replication.contract import PeerBody, PeerMessage, ReplicaId, RequestId, Tick
from millrace.replication.leaderless.machine import Leaderless, LeaderlessOptions
from millrace.replication.leaderless.messages import (
    Acknowledged,
    Connected,
    Divided,
    Given,
    GroupRemoved,
    LeaderlessEffect,
    LeaderlessEvent,
    Level,
    Origin,
    Overloaded,
    Overtaken,
    PersistLog,
    Placed,
    Publish,
    Remove,
    SetHolds,
    Settle,
    Spans,
    Stored,
    Subscribe,
    Take,
    Unsubscribe,
)

OPTIONS = LeaderlessOptions(pulse_ticks=1, silent_ticks=5, resend_ticks=4, pull_ticks=2)


@dataclass
class Node:
    """Stands behind the interfaces of its driver: log, network, and a machine with a list of its steps."""

    name: ReplicaId
    disk: OriginDisk
    machine: Leaderless
    wire: deque[tuple[ReplicaId, ReplicaId, PeerBody]]
    acknowledged: set[int] = field(default_factory=set)
    stored: list[tuple[Origin, int]] = field(default_factory=list)
    steps: list[tuple[LeaderlessEvent, list[LeaderlessEffect]]] = field(default_factory=list)
    given: Spans = ()
    removed: dict[Origin, int] = field(default_factory=dict)
    is_stalled: bool = False
    unsynced: deque[PersistLog] = field(default_factory=deque)

    def __post_init__(self) -> None:
        runners: dict[type, Runner] = {
            Acknowledged: lambda effect: self.acknowledged.add(effect.request),
            Stored: lambda effect: self.stored.append((effect.origin, effect.index)),
            Given: lambda effect: setattr(self, "given", effect.spans),
            Remove: self._remove,
        }
        for kind in (Placed, Overloaded, Divided, GroupRemoved, Overtaken):
            runners[kind] = _nothing
        self.driver: EffectDriver[LeaderlessEvent, LeaderlessEffect] = EffectDriver(
            self, network=self, log=self, write_kind=PersistLog, runners=runners
        )

    def step(self, event: LeaderlessEvent) -> list[LeaderlessEffect]:
        effects = self.machine.step(event)
        self.steps.append((event, list(effects)))
        return effects

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        self.wire.append((self.name, to, body))

    def write(self, write: PersistLog) -> None:
        self.unsynced.append(write)
        self.sync()

    def sync(self) -> None:
        while self.unsynced and not self.is_stalled:
            write = self.unsynced.popleft()
            self.disk.write(write)
            self.driver.persisted(write.number)

    def _remove(self, effect: Remove) -> None:
        self.removed[effect.origin] = effect.offset
        self.disk.state = self.machine.to_bytes()
        self.disk.trim(effect.origin, effect.offset)


def _nothing(effect: LeaderlessEffect) -> None:
    """A test looks at the machine, or at the steps."""


class Stage:
    """Messages arrive at once and in order; a tick comes when a test says so."""

    def __init__(
        self,
        count: int = 3,
        *,
        level: Level = Level.MAJORITY,
        options: LeaderlessOptions = OPTIONS,
        seed: int = 1,
        ticks: int = 4,
    ) -> None:
        """After so many ticks the nodes have met, unless there are none."""
        self.names = tuple(ReplicaId(name) for name in "abcdefg"[:count])
        self.level, self.options, self.seed = level, options, seed
        self.nodes: dict[ReplicaId, Node] = {}
        self.wire: deque[tuple[ReplicaId, ReplicaId, PeerBody]] = deque()
        self.cut: set[tuple[str, str]] = set()
        self.is_lost: Callable[[ReplicaId, PeerBody], bool] = lambda to, body: False
        """Of what is on the wire, to whom and what."""
        self.request = 0
        self.boots = 0
        self.holds: dict[str, tuple[tuple[Origin, int], ...]] = {}
        self.lives: list[Node] = []
        """Every machine that ever ran, in the order of their starts."""
        for name in self.names:
            self.start(name, OriginDisk())
        self.tick(ticks)

    def start(self, name: str, disk: OriginDisk) -> None:
        disk.start()
        self.boots += 1
        machine = Leaderless(
            ReplicaId(name),
            origin=Origin(name, disk.incarnation),
            boot=self.boots,
            members=self.names,
            logs=disk,
            state=disk.state,
            rng=random.Random(f"{self.seed} {name} {self.boots}"),
            level=self.level,
            options=self.options,
        )
        node = self.nodes[ReplicaId(name)] = Node(
            name=ReplicaId(name), disk=disk, machine=machine, wire=self.wire
        )
        self.lives.append(node)

    def stop(self, name: str) -> OriginDisk:
        return self.nodes.pop(ReplicaId(name)).disk

    def __getitem__(self, name: str) -> Node:
        return self.nodes[ReplicaId(name)]

    # ---------------------------------------------------------------------------------------- driving

    def step(self, name: str, event: LeaderlessEvent) -> None:
        self[name].driver.step(event)

    def unstall(self, name: str) -> None:
        self[name].is_stalled = False
        self[name].sync()
        self.deliver()

    def deliver(self) -> None:
        while self.wire:
            sender, to, body = self.wire.popleft()
            if to in self.nodes and (sender, to) not in self.cut and not self.is_lost(to, body):
                self.step(to, PeerMessage(sender=sender, body=body))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for name in list(self.nodes):
                self.step(name, Tick())
                self.step(name, SetHolds(holds=self.holds.get(name, ())))
            self.deliver()

    def until(self, done: Callable[[], bool], ticks_max: int = 200) -> None:
        for _ in range(ticks_max):
            if done():
                return
            self.tick()
        raise AssertionError("it did not come true")

    # ------------------------------------------------------------------------------------------- acts

    def partition(self, left: str, right: str) -> None:
        self.cut |= {(a, b) for a in left for b in right} | {(b, a) for a in left for b in right}

    def heal(self) -> None:
        self.cut.clear()

    def publish(self, name: str, *texts: str) -> int:
        self.request += 1
        blocks = tuple((1, text.encode()) for text in texts)
        self.step(name, Publish(request=RequestId(self.request), blocks=blocks))
        self.deliver()
        return self.request

    def join(self, name: str, group: str, client: str, members: int = 1, *, from_start: bool = True) -> int:
        self.request += 1
        self.step(
            name,
            Subscribe(
                request=RequestId(self.request),
                group=group,
                client=client,
                filters=("#",),
                wall_us=self.request,
                from_start=from_start,
            ),
        )
        self.step(name, Connected(group=group, members=members))
        self.deliver()
        return self.request

    def leave(self, name: str, group: str, client: str, *, is_last_out: bool = True) -> None:
        self.request += 1
        self.step(
            name,
            Unsubscribe(
                request=RequestId(self.request),
                group=group,
                client=client,
                wall_us=self.request,
                is_last_out=is_last_out,
            ),
        )
        self.step(name, Connected(group=group, members=0))
        self.deliver()

    def take(self, name: str, group: str, count: int = 100) -> Spans:
        self.step(name, Take(group=group, count=count))
        return self[name].given

    def settle(self, name: str, group: str, spans: Spans) -> None:
        self.step(name, Settle(group=group, spans=spans))
        self.deliver()

    def texts(self, name: str, spans: Spans) -> list[str]:
        """The messages of one-message blocks."""
        found = []
        for span in spans:
            log = self[name].disk
            _, entries = log.entries(span.origin, log.begin(span.origin).entry + 1, 1 << 40, 1 << 40)
            offset = log.begin(span.origin).offset
            for entry in entries:
                if entry.count and span.start <= offset < span.end:
                    found.append(entry.payload.decode())
                offset += entry.count
        return found

    def is_divided(self, group: str, *names: str) -> bool:
        divisions = [self[name].machine.work_division.division(group) for name in names]
        return all(d.is_in_force for d in divisions) and len({d.promised for d in divisions}) == 1
