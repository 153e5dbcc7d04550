"""A few leaderless machines with disks in memory and a network that a test opens and cuts by hand."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.lab.sim.leaderless.host import OriginDisk
from millrace.replication.contract import PeerMessage, Persisted, ReplicaId, RequestId, Send, Tick
from millrace.replication.leaderless.machine import Leaderless, LeaderlessOptions
from millrace.replication.leaderless.messages import (
    Acknowledged,
    Connected,
    Given,
    LeaderlessEffect,
    LeaderlessEvent,
    Level,
    Origin,
    PersistLog,
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
    name: ReplicaId
    disk: OriginDisk
    machine: Leaderless
    acknowledged: set[int] = field(default_factory=set)
    stored: list[tuple[Origin, int]] = field(default_factory=list)
    steps: list[tuple[LeaderlessEvent, list[LeaderlessEffect]]] = field(default_factory=list)
    given: Spans = ()
    removed: dict[Origin, int] = field(default_factory=dict)
    is_stalled: bool = False
    unsynced: deque[tuple[PersistLog, list[LeaderlessEffect]]] = field(default_factory=deque)


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
        self.wire: deque[tuple[ReplicaId, ReplicaId, object]] = deque()
        self.cut: set[tuple[str, str]] = set()
        self.request = 0
        self.boots = 0
        self.holds: dict[str, tuple[tuple[Origin, int], ...]] = {}
        self.lives: list[Node] = []
        """Every machine that ever ran, in the order of their starts."""
        for name in self.names:
            self.start(name, OriginDisk())
        self.tick(ticks)

    def start(self, name: str, disk: OriginDisk) -> None:
        if not disk.is_whole:
            disk.incarnation += 1
            disk.is_whole = True
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
        node = self.nodes[ReplicaId(name)] = Node(name=ReplicaId(name), disk=disk, machine=machine)
        self.lives.append(node)

    def stop(self, name: str) -> OriginDisk:
        return self.nodes.pop(ReplicaId(name)).disk

    def __getitem__(self, name: str) -> Node:
        return self.nodes[ReplicaId(name)]

    # ---------------------------------------------------------------------------------------- driving

    def step(self, name: str, event: LeaderlessEvent) -> None:
        node = self[name]
        effects = node.machine.step(event)
        node.steps.append((event, list(effects)))
        for position, effect in enumerate(effects):
            if isinstance(effect, PersistLog):
                node.unsynced.append((effect, effects[position + 1 :]))
                self._sync(node)
                return
            self._run(node, effect)

    def _sync(self, node: Node) -> None:
        while node.unsynced and not node.is_stalled:
            persist, rest = node.unsynced.popleft()
            node.disk.write(persist)
            for effect in rest:
                self._run(node, effect)
            self.step(node.name, Persisted(number=persist.number))

    def unstall(self, name: str) -> None:
        self[name].is_stalled = False
        self._sync(self[name])
        self.deliver()

    def _run(self, node: Node, effect: LeaderlessEffect) -> None:
        match effect:
            case Send():
                self.wire.append((node.name, effect.to, effect.body))
            case Acknowledged():
                node.acknowledged.add(effect.request)
            case Stored():
                node.stored.append((effect.origin, effect.index))
            case Given():
                node.given = effect.spans
            case Remove():
                node.removed[effect.origin] = effect.offset
                node.disk.state = node.machine.to_bytes()
                node.disk.trim(effect.origin, effect.offset)

    def deliver(self) -> None:
        while self.wire:
            sender, to, body = self.wire.popleft()
            if to in self.nodes and (sender, to) not in self.cut:
                self.step(to, PeerMessage(sender=sender, body=body))  # type: ignore[arg-type]

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
