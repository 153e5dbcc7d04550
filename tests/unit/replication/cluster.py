"""A small deterministic cluster for machine tests: virtual disks, a virtual network, checkers always on.

Time is a counter of moments, ten to a tick. Everything random comes from one `random.Random(seed)`. Faults
are switched by attributes; a test that wants a story sets them, `storm.py` draws them.
"""

import heapq
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millrace.driver.effects import Runner
from millrace.driver.replica import ReplicaDriver
from millrace.replication.contract import (
    Accepted,
    ChangeKind,
    ChangeMembership,
    Config,
    ConfigAt,
    Damage,
    Effect,
    Entry,
    EntryKind,
    Event,
    HardState,
    InitialState,
    LinkClosed,
    LinkOpened,
    LogView,
    Outcome,
    PeerBody,
    PeerMessage,
    Persist,
    Propose,
    ReadIndex,
    ReadReady,
    Replica,
    ReplicaId,
    Reply,
    Report,
    RequestId,
    RoleChanged,
    Snapshot,
    SnapshotTaken,
    Tick,
    TransferLeadership,
    checksum,
)
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index, Term

MOMENTS_PER_TICK = 10
SMALL = RaftOptions(
    heartbeat_ticks=2,
    election_ticks=10,
    disk_stall_ticks=20,
    append_bytes_max=256,
    append_entries_max=8,
    inflight_messages_max=4,
    inflight_bytes_max=512,
    uncommitted_bytes_max=4096,
    uncommitted_entries_max=64,
    chunk_bytes_max=96,
    chunks_inflight_max=2,
    caught_up_entries_max=4,
    # Where a test does not ask for it, nobody rests.
    rest_ticks=1_000_000,
)


MakeMachine: TypeAlias = Callable[[ReplicaId, InitialState, LogView, random.Random], Replica]


class Violation(AssertionError):
    """A checker saw what must never happen."""


class DiskState:
    """What one disk holds. The same class serves as the durable truth and as the view of the machine."""

    def __init__(self, config: Config) -> None:
        self.hard_state = HardState(term=Term(0))
        self.config = ConfigAt(index=Index(0), config=config)
        self.first = Index(1)
        self.edge_term = Term(0)
        self.log: list[Entry] = []
        self.snapshots: dict[Snapshot, bytes] = {}
        self.newest: Snapshot | None = None

    def copy(self) -> "DiskState":
        other = DiskState(self.config.config)
        other.__dict__.update(self.__dict__)
        other.log = list(self.log)
        other.snapshots = dict(self.snapshots)
        return other

    # LogView
    def first_index(self) -> Index:
        return self.first

    def last_index(self) -> Index:
        return Index(self.first + len(self.log) - 1)

    def term(self, index: Index) -> Term | None:
        if index == self.first - 1:
            return self.edge_term
        if self.newest is not None and index == self.newest.index:
            return self.newest.term
        if self.first <= index <= self.last_index():
            return self.log[index - self.first].term
        return None

    def entries(self, first: Index, last: Index, bytes_max: int) -> Sequence[Entry]:
        if first < self.first:
            return []
        chosen: list[Entry] = []
        for entry in self.log[first - self.first : last - self.first + 1]:
            bytes_max -= len(entry.payload)
            if chosen and bytes_max < 0:
                break
            chosen.append(entry)
        return chosen

    def snapshot(self) -> Snapshot | None:
        return self.newest

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        return self.snapshots.get(snapshot, b"")[position : position + bytes_max]

    # writing
    def apply(
        self, persist: Persist, staged: bytes, entries_count: int | None = None, parts: int = 4
    ) -> None:
        """Do the first `parts` of a write's four parts, and of the entries the first `entries_count`."""
        if persist.hard_state is not None and parts > 0:
            self.hard_state = persist.hard_state
        if persist.snapshot is not None and parts > 1:
            self.install(persist.snapshot, staged)
        if persist.truncate_from is not None and parts > 2:
            del self.log[persist.truncate_from - self.first :]
        if parts > 3:
            for entry in persist.entries[:entries_count]:
                if entry.index != self.last_index() + 1:
                    raise Violation(f"entry {entry.index} written after {self.last_index()}")
                self.log.append(entry)

    def install(self, snapshot: Snapshot, data: bytes) -> None:
        if checksum(data) != snapshot.checksum or len(data) != snapshot.size_bytes:
            raise Violation("an incomplete snapshot was installed")
        self.first, self.edge_term, self.log = Index(snapshot.index + 1), snapshot.term, []
        self.snapshots[snapshot], self.newest = data, snapshot
        self.config = ConfigAt(index=snapshot.index, config=snapshot.config)

    def compact(self, snapshot: Snapshot, data: bytes, keep: int) -> None:
        self.snapshots[snapshot], self.newest = data, snapshot
        self.config = ConfigAt(index=snapshot.index, config=snapshot.config)
        first = Index(max(self.first, snapshot.index + 1 - keep))
        edge_term = self.term(Index(first - 1))
        assert edge_term is not None
        del self.log[: first - self.first]
        self.first, self.edge_term = first, edge_term


@dataclass
class Node:
    """One process and its disk, as its driver has them: log, network and state. `view` is what the running
    machine reads."""

    name: ReplicaId
    cluster: "Cluster"
    durable: DiskState
    view: DiskState
    machine: Replica | None = None
    driver: ReplicaDriver | None = None
    staged: bytearray = field(default_factory=bytearray)
    writes: list[tuple[Persist, bytes]] = field(default_factory=list)
    applied: list[tuple[int, int, str]] = field(default_factory=list)
    applied_index: int = 0
    epoch: int = 0
    damage: Damage | None = None
    is_disk_stalled: bool = False
    is_paused: bool = False
    trace: list[str] = field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    @property
    def rests(self) -> bool:
        return self.machine is not None and self.machine.rests

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        self.cluster.send(self.name, to, body)

    # log
    def write(self, write: Persist) -> None:
        staged = bytes(self.staged)
        if self.cluster.is_view_eager:
            self.view.apply(write, staged)
        self.writes.append((write, staged))
        self.cluster.schedule_sync(self, self.epoch, write.number)

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        del self.staged[position:]
        self.staged += data

    def repaired(self) -> None:
        self.damage = None

    def committed(self, first: Index, last: Index) -> Sequence[Entry]:
        if last > self.durable.last_index():
            raise Violation(f"{self.name} was told to apply {last}, which its disk does not hold")
        found = self.view.entries(first, last, 1 << 30)
        if [entry.index for entry in found] != list(range(first, last + 1)):
            raise Violation(f"{self.name} was told to apply {first} to {last}, which its log does not show")
        return found

    # state
    def apply(self, entry: Entry) -> None:
        self.cluster.check_committed(self, entry.index, entry.term, entry.payload.hex())
        self.applied_index = entry.index
        if entry.kind in (EntryKind.DATA, EntryKind.CONTROL):
            self.applied.append((entry.index, entry.term, entry.payload.hex()))

    def restore(self, snapshot: Snapshot, loaded: Callable[[], None]) -> None:
        self.applied = [tuple(item) for item in json.loads(self.view.snapshots[snapshot])]
        for index, term, payload in self.applied:
            self.cluster.check_committed(self, index, term, payload)
        self.applied_index = snapshot.index
        loaded()

    def has_applied(self) -> None:
        assert self.driver is not None
        self.cluster.acknowledge(self)
        self.driver.tell_applied()
        self.cluster.maybe_take_snapshot(self)

    def on_reply(self, reply: Reply) -> None:
        self.cluster.on_reply(self, reply)

    def on_role_changed(self, change: RoleChanged) -> None:
        self.cluster.on_role_changed(self, change)


class Cluster:
    def __init__(
        self,
        voters: int,
        seed: int = 0,
        *,
        spares: int = 0,
        options: RaftOptions = SMALL,
        is_view_eager: bool = True,
        make_machine: MakeMachine | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.options = options
        self.is_view_eager = is_view_eager
        self.make_machine = make_machine or self._make_raft
        self.now = 0
        self.nodes: dict[ReplicaId, Node] = {}
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.serial = 0
        self.cut: set[tuple[ReplicaId, ReplicaId]] = set()
        self.drop_chance = self.duplicate_chance = 0.0
        self.delay_max = self.sync_max = 1
        self.late_chance, self.late_moments = 0.0, 0
        self.tick_moments: dict[ReplicaId, int] = {}
        self.snapshot_every = 0
        self.on_send: Callable[[ReplicaId, ReplicaId, PeerBody], None] = lambda _source, _to, _body: None
        # what the checkers know
        self.leaders: dict[int, ReplicaId] = {}
        self.committed: dict[int, tuple[int, str]] = {}
        self.acknowledged_index = 0
        self.waiting: dict[ReplicaId, list[Accepted]] = {}
        self.reads: dict[RequestId, int] = {}
        self.replies: dict[RequestId, Outcome] = {}
        self.reads_done = self.acknowledged = self.proposed = 0
        names = [ReplicaId(f"n{number}") for number in range(1, voters + spares + 1)]
        first = Config(voters=tuple(names[:voters]))
        for position, name in enumerate(names):
            disk = DiskState(first if position < voters else Config(voters=()))
            self.nodes[name] = Node(name=name, cluster=self, durable=disk, view=disk.copy())
            self.start(name)

    # ------------------------------------------------------------------------------------ processes

    def start(self, name: ReplicaId) -> None:
        node = self.nodes[name]
        self._stop(node)
        node.view = node.durable.copy()
        node.applied, node.applied_index = [], 0
        if node.view.newest is not None:
            node.restore(node.view.newest, lambda: None)
        node.staged, node.writes = bytearray(), []
        node.is_disk_stalled = node.is_paused = False
        self.waiting[name] = []
        state = InitialState(
            hard_state=node.view.hard_state,
            config=node.view.config,
            commit=Index(node.applied_index),
            applied=Index(node.applied_index),
            damage=node.damage,
        )
        node.machine = self.make_machine(name, state, node.view, self.make_rng(name))
        node.driver = ReplicaDriver(
            node.machine,
            network=node,
            log=node,
            state=node,
            applied=Index(node.applied_index),
            runners=self.runners(node),
        )
        self._schedule_tick(name, node.epoch)

    def runners(self, node: Node) -> dict[type, Runner]:
        """Of the effects that the driver alone does nothing for. Nobody is above a pair here."""
        return {Report: lambda report: None}

    def _stop(self, node: Node) -> None:
        if node.driver is not None:
            node.driver.stop()
        node.machine = node.driver = None
        node.epoch += 1

    def _make_raft(self, name: ReplicaId, state: InitialState, log: LogView, rng: random.Random) -> Replica:
        return Raft(name, state=state, log=log, options=self.options, rng=rng)

    def make_rng(self, name: ReplicaId) -> random.Random:
        return random.Random(self.rng.random())

    def _schedule_tick(self, name: ReplicaId, epoch: int) -> None:
        def tick() -> None:
            node = self.nodes[name]
            if node.epoch == epoch and node.is_up:
                if not node.is_paused:
                    self.step(name, Tick())
                self._schedule_tick(name, epoch)

        self.after(self.tick_moments.get(name, MOMENTS_PER_TICK), tick)

    def crash(self, name: ReplicaId) -> None:
        """Power loss: of what was being written, any prefix may be on disk."""
        node = self.nodes[name]
        for position, (persist, staged) in enumerate(node.writes):
            if self.rng.random() < 0.5:
                node.durable.apply(persist, staged)
                continue
            count = self.rng.randrange(len(persist.entries) + 1)
            node.durable.apply(persist, staged, count, parts=self.rng.randrange(5))
            del node.writes[position:]
            break
        self._stop(node)

    def damage_log(self, name: ReplicaId, index: Index) -> None:
        """A bit flipped in an entry of a stopped node; recovery cuts there and remembers how far it was."""
        node = self.nodes[name]
        disk = node.durable
        assert not node.is_up and disk.first <= index <= disk.last_index()
        if node.damage is None:
            node.damage = Damage(
                last_index=disk.last_index(),
                term=disk.hard_state.term,
                last_term=disk.term(disk.last_index()) if self.rng.random() < 0.5 else None,
            )
        if disk.newest is not None and index <= disk.newest.index:
            disk.first, disk.edge_term, disk.log = Index(disk.newest.index + 1), disk.newest.term, []
        else:
            del disk.log[index - disk.first :]

    def link_closed(self, left: ReplicaId, right: ReplicaId) -> None:
        for here, there in ((left, right), (right, left)):
            if self.nodes[here].is_up:
                self.step(here, LinkClosed(peer=there))

    def link_opened(self, left: ReplicaId, right: ReplicaId) -> None:
        for here, there in ((left, right), (right, left)):
            if self.nodes[here].is_up:
                self.step(here, LinkOpened(peer=there))

    # ----------------------------------------------------------------------------------------- time

    def after(self, moments: int, action: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (self.now + moments, self.serial, action))

    def run(self, ticks: int) -> None:
        end = self.now + ticks * MOMENTS_PER_TICK
        while self.queue and self.queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self.queue)
            action()
        self.now = end

    def run_until(self, condition: Callable[[], bool], ticks_max: int = 400) -> None:
        for _ in range(ticks_max):
            if condition():
                return
            self.run(1)
        raise Violation(f"no progress within {ticks_max} ticks: {self.describe()}")

    def describe(self) -> str:
        return "; ".join(
            f"{node.name} {node.machine.status()}" if node.machine else f"{node.name} down"
            for node in self.nodes.values()
        )

    # -------------------------------------------------------------------------------------- driving

    def step(self, name: ReplicaId, event: Event) -> list[Effect]:
        driver = self.nodes[name].driver
        assert driver is not None
        return list(driver.step(event))

    def schedule_sync(self, node: Node, epoch: int, number: int) -> None:
        self.after(self.rng.randint(1, self.sync_max), lambda: self._synced(node, epoch, number))

    def _synced(self, node: Node, epoch: int, number: int) -> None:
        if node.epoch != epoch:
            return
        if node.is_disk_stalled or node.is_paused:
            self.after(MOMENTS_PER_TICK, lambda: self._synced(node, epoch, number))
            return
        done = [write for write in node.writes if write[0].number <= number]
        node.writes = node.writes[len(done) :]
        for persist, staged in done:
            node.durable.apply(persist, staged)
            if not self.is_view_eager:
                node.view.apply(persist, staged)
        if done and node.driver is not None:
            node.driver.persisted(done[-1][0].number)

    def send(self, source: ReplicaId, to: ReplicaId, body: PeerBody) -> None:
        self.on_send(source, to, body)
        copies = 1 + (self.rng.random() < self.duplicate_chance)
        for _ in range(copies):
            if self.rng.random() < self.drop_chance:
                continue
            delay = self.rng.randint(1, self.delay_max)
            if self.rng.random() < self.late_chance:
                delay += self.rng.randrange(self.late_moments)
            self.after(delay, lambda: self._deliver(source, to, body))

    def _deliver(self, source: ReplicaId, to: ReplicaId, body: PeerBody) -> None:
        node = self.nodes.get(to)
        if node is not None and node.is_up and (source, to) not in self.cut:
            if node.is_paused:
                self.after(MOMENTS_PER_TICK, lambda: self._deliver(source, to, body))
            else:
                self.step(to, PeerMessage(sender=source, body=body))

    def partition(self, *sides: Sequence[str]) -> None:
        """Only replicas of the same side hear each other."""
        self.cut = {
            (left, right)
            for left in self.nodes
            for right in self.nodes
            if not any(left in side and right in side for side in sides)
        }

    def heal(self) -> None:
        self.cut = set()

    # --------------------------------------------------------------------------- state and checkers

    def check_committed(self, node: Node, index: int, term: int, payload: str) -> None:
        if self.committed.setdefault(index, (term, payload)) != (term, payload):
            raise Violation(f"{node.name} applied another entry {index}")

    def acknowledge(self, node: Node) -> None:
        still = []
        for accepted in self.waiting[node.name]:
            if accepted.last_index > node.applied_index:
                still.append(accepted)
            elif self.committed[accepted.last_index][0] == accepted.term:
                self.acknowledged += 1
                self.acknowledged_index = max(self.acknowledged_index, accepted.last_index)
        self.waiting[node.name] = still

    def maybe_take_snapshot(self, node: Node) -> None:
        """Not at once: the log may be cut only after the machine has heard of the snapshot."""
        epoch = node.epoch

        def take() -> None:
            if node.epoch == epoch:
                self.take_snapshot(node.name)

        if self.snapshot_every and node.applied_index - node.view.first >= self.snapshot_every:
            self.after(0, take)

    def take_snapshot(self, name: ReplicaId, keep: int = 2) -> None:
        node = self.nodes[name]
        assert node.machine is not None
        index = Index(node.applied_index)
        term = node.view.term(index)
        if term is None or index == 0 or (node.view.newest is not None and node.view.newest.index >= index):
            return
        data = json.dumps(node.applied).encode()
        config = node.machine.config_at(index)
        snapshot = Snapshot(
            index=index, term=term, config=config, size_bytes=len(data), checksum=checksum(data)
        )
        self.step(name, SnapshotTaken(index=index, term=term, config=config))
        if index <= node.durable.last_index():
            for disk in (node.view, node.durable):
                disk.compact(snapshot, data, keep)

    def on_reply(self, node: Node, reply: Reply) -> None:
        self.replies[reply.request] = reply.outcome
        if isinstance(reply.outcome, Accepted):
            self.waiting[node.name].append(reply.outcome)
        if isinstance(reply.outcome, ReadReady):
            self.reads_done += 1
            if reply.outcome.index < self.reads[reply.request]:
                raise Violation(
                    f"{node.name} reads at {reply.outcome.index}, acknowledged {self.reads[reply.request]}"
                )

    def on_role_changed(self, node: Node, change: RoleChanged) -> None:
        if change.role == "leader" and self.leaders.setdefault(change.term, node.name) != node.name:
            raise Violation(f"two leaders in term {change.term}")

    # ------------------------------------------------------------------------------------- requests

    def request(self, name: ReplicaId, make: Callable[[RequestId], Event]) -> RequestId:
        self.serial += 1
        request = RequestId(self.serial)
        self.step(name, make(request))
        return request

    def propose(self, name: ReplicaId, count: int = 1) -> RequestId:
        self.proposed += count
        payloads = tuple(f"{self.proposed}.{part}".encode() for part in range(count))
        return self.request(name, lambda request: Propose(request=request, payloads=payloads))

    def read(self, name: ReplicaId) -> RequestId:
        self.reads[RequestId(self.serial + 1)] = self.acknowledged_index
        return self.request(name, lambda request: ReadIndex(request=request))

    def change(self, name: ReplicaId, kind: ChangeKind, replica: ReplicaId) -> RequestId:
        return self.request(
            name, lambda request: ChangeMembership(request=request, kind=kind, replica=replica)
        )

    def transfer(self, name: ReplicaId, target: ReplicaId | None = None) -> RequestId:
        return self.request(name, lambda request: TransferLeadership(request=request, target=target))

    # ------------------------------------------------------------------------------------- shortcuts

    def machine(self, name: str) -> Replica:
        machine = self.nodes[ReplicaId(name)].machine
        assert machine is not None
        return machine

    def leader(self) -> ReplicaId | None:
        """The serving leader of the highest term, if any."""
        serving = [
            (status.term, status.replica)
            for node in self.nodes.values()
            if node.machine is not None and (status := node.machine.status()).serving
        ]
        return max(serving)[1] if serving else None

    def elect(self) -> ReplicaId:
        self.run_until(lambda: self.leader() is not None)
        leader = self.leader()
        assert leader is not None
        return leader

    def settle(self) -> None:
        """Heal everything; a leader must emerge, commit something new, and every member must apply it."""
        self.heal()
        self.drop_chance = self.duplicate_chance = self.late_chance = 0.0
        self.delay_max = self.sync_max = 1
        for name, node in self.nodes.items():
            node.is_paused = node.is_disk_stalled = False
            if not node.is_up:
                self.start(name)
        for left in self.nodes:
            for right in self.nodes:
                if left < right:
                    self.link_opened(left, right)
        before = self.acknowledged
        for _ in range(40):
            leader = self.leader()
            if leader is not None:
                self.propose(leader)
            self.run(10)
            if self.acknowledged > before and self._is_even():
                return
        raise Violation(f"no progress after healing: {self.describe()}")

    def _is_even(self) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        config = self.machine(leader).status().config
        members = [self.nodes[name] for name in config.members]
        if len({node.applied_index for node in members}) > 1:
            return False
        if len({json.dumps(node.applied) for node in members}) > 1:
            raise Violation("replicas that applied the same entries have different states")
        configs = {node.machine.status().config for node in members if node.machine is not None}
        if len(configs) > 1 and len({node.durable.last_index() for node in members}) == 1:
            raise Violation("replicas with the same log have different configurations")
        return len(configs) == 1
