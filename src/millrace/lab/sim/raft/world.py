"""One simulated group: replicas with their disks, the network and clients. What happens to it is `story.py`.

Time and chance come from the seed alone, and each actor has its own stream of chance, so that a change in one
does not reshuffle the others.

The replicas here are machines with the driver of production. A simulation of whole nodes replaces `Process`
and keeps the clock, the network, the trace, the nemesis' vocabulary and the campaign.
"""

import random
from collections.abc import Callable

from millrace.lab.sim.raft.checkers import Checkers
from millrace.lab.sim.raft.plan import TICK_US, Plan
from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.raft.signs import Sign, Signs
from millrace.lab.sim.raft.workload import Client
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.log_disk import LogDisk
from millrace.lab.sim.surroundings.network import Network, Weather
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    NO_INDEX,
    Config,
    ConfigAt,
    LinkClosed,
    LinkOpened,
    PeerMessage,
    Replica,
    ReplicaId,
)
from millrace.replication.contract import EntryKind as Kind
from millrace.replication.raft.machine import Raft

CALLS_MAX = 400_000
PROGRESS_ELECTIONS_MAX = 40
"""How many election times a healed group may take to commit something: split votes repeat, rarely."""
_EMPTY = Config(voters=())


class World:
    def __init__(self, plan: Plan, trace: Trace | None) -> None:
        self.plan = plan
        self.trace = trace
        self.clock = Clock(calls_max=CALLS_MAX)
        names = [ReplicaId(f"{chr(ord('a') + slot)}1") for slot in range(plan.voters + plan.spares)]
        self._first_config = Config(voters=tuple(names[: plan.voters]))
        self.processes: dict[ReplicaId, Process] = {}
        self.checkers = Checkers(first_config=self._first_config, processes=self.processes)
        self.network = Network(
            clock=self.clock, rng=self.chance("network"), weather=plan.weather, deliver=self._deliver
        )
        self._signs = Signs(self.clock, self.network, self.processes)
        for slot, name in enumerate(names):
            config = self._first_config if slot < plan.voters else _EMPTY
            self._add(name, config, plan.drifts[slot])
        choice = self.chance("choice")
        self.clients = [
            Client(
                number=number,
                plan=plan,
                clock=self.clock,
                checkers=self.checkers,
                rng=self.chance(f"client {number}"),
                choose=lambda: choice.choice(list(self.processes.values())),
                find=self.processes.get,
            )
            for number in range(plan.clients)
        ]

    def chance(self, actor: str) -> random.Random:
        return random.Random(f"{self.plan.seed} {actor}")

    # ------------------------------------------------------------------------------------- processes

    def _add(self, name: ReplicaId, config: Config, drift: float) -> Process:
        disk = LogDisk(
            first_config=ConfigAt(index=NO_INDEX, config=config),
            rng=self.chance(f"disk {name}"),
            shows_written=self.plan.shows_written,
            cold_rate=self.plan.cold_rate,
        )
        process = Process(
            replica=name,
            disk=disk,
            plan=self.plan,
            clock=self.clock,
            network=self.network,
            checkers=self.checkers,
            trace=self.trace,
            rng=self.chance(f"process {name}"),
            drift=drift,
            make_machine=self._make_machine,
            on_crash=self._on_crash,
        )
        self.processes[name] = process
        return process

    def _make_machine(self, process: Process) -> Replica:
        return Raft(
            process.replica,
            state=process.disk.initial_state(),
            log=process.disk,
            options=self.plan.options,
            rng=self.chance(f"machine {process.replica} {process.incarnation}"),
        )

    def add_joining(self, old: ReplicaId) -> None:
        """The node of a lost disk starts again, empty, as a new replica [rule 19]."""
        name = ReplicaId(f"{old[0]}{int(old[1:]) + 1}")
        self._add(name, _EMPTY, self.processes[old].drift)
        self.restart(self.processes[name])

    def restart(self, process: Process) -> None:
        if process.is_up or process.is_gone:
            return
        process.start()
        for peer in self.processes.values():
            if peer is not process and peer.is_up and self.network.is_open(process.replica, peer.replica):
                peer.handle(LinkOpened(peer=process.replica))
                process.handle(LinkOpened(peer=peer.replica))

    def _on_crash(self, process: Process) -> None:
        self.clock.after(1_000, self._link_closed, process.replica)

    def _link_closed(self, name: ReplicaId) -> None:
        if self.processes[name].is_up:
            return
        for peer in self.processes.values():
            if self.network.is_open(name, peer.replica):
                peer.handle(LinkClosed(peer=name))

    def tell_links(self, rng: random.Random) -> None:
        """A cut is often noticed as a closed connection, sometimes only as silence."""
        if rng.random() < 0.5:
            return
        for one in self.processes.values():
            for other in self.processes:
                if not self.network.is_open(one.replica, other) and rng.random() < 0.7:
                    one.handle(LinkClosed(peer=other))

    def _deliver(self, sender: str, to: str, body: object) -> None:
        process = self.processes.get(ReplicaId(to))
        if process is not None and process.is_up:
            self._signs.heard(process.replica, ReplicaId(sender))
        if process is not None and not isinstance(body, Sign):
            process.handle(PeerMessage(sender=ReplicaId(sender), body=body))  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.note(self.clock.now_us, "----", text)

    # ----------------------------------------------------------------------------------------- views

    @property
    def messages(self) -> int:
        """What the group said so far."""
        return self.network.sent - self._signs.given

    def leader(self) -> Process | None:
        """The leader of the highest term among those that run, as somebody outside would find it."""
        found = [p for p in self.processes.values() if p.role == "leader" and p.is_up]
        return max(found, key=lambda process: process.term) if found else None

    def config(self) -> Config:
        """The committed configuration."""
        return self.checkers.config

    def members(self) -> tuple[ReplicaId, ...]:
        return self.config().members

    def lost(self) -> list[ReplicaId]:
        """Members whose data is, in part or whole, not there now."""
        return [
            name
            for name in self.members()
            if self.processes[name].is_gone or self.processes[name].disk.damage is not None
        ]

    def may_lose_data(self) -> bool:
        committed = len(self.checkers.committed)
        pending = any(
            entry.kind is Kind.CONFIG and entry.index > committed
            for process in self.processes.values()
            for entry in process.disk.written.entries
        )
        pending = pending or any(process.is_asked_to_change for process in self.processes.values())
        return not pending and not self.lost() and len(self.config().voters) >= 3

    # ----------------------------------------------------------------------------------------- story

    def calm_weather(self) -> None:
        self.network.weather = self.plan.weather

    def heal_network(self) -> None:
        self.network.heal()
        self.note("network healed")

    def heal(self) -> None:
        """No fault from here on: links, clocks, disks and processes are as they should be."""
        self.note("heal")
        self.network.weather = Weather()
        self.network.heal()
        for process in tuple(self.processes.values()):
            process.drift = 1.0 + 0.02 * (ord(process.replica[0]) % 5 - 2)
            process.points.disarm()
            process.log.is_slow = False
            process.log.heal()
            process.resume()
            self.restart(process)

    def run_ticks(self, ticks: int, done: Callable[[], bool] | None = None) -> bool:
        return self.clock.run(self.clock.now_us + ticks * TICK_US, done)

    def require(self, what: str, done: Callable[[], bool]) -> None:
        """It must come true within the bound of a healthy group."""
        if not self.run_ticks(PROGRESS_ELECTIONS_MAX * self.plan.options.election_ticks, done):
            raise Violation("liveness", f"not within {PROGRESS_ELECTIONS_MAX} election times: {what}")

    def require_progress(self, what: str) -> None:
        """Every client's open request is answered, and one more of the first client after it."""
        client = self.clients[0]
        wanted = client.operations + 1
        client.start()
        self.require(f"progress {what}", lambda: client.operations >= wanted)
        client.stop()
        self.require(f"answers {what}", lambda: all(each.is_idle for each in self.clients))

    def is_settled(self) -> bool:
        leader = self.leader()
        if leader is None or not leader.is_serving:
            return False
        applied = len(self.checkers.committed)
        return all(
            process.is_gone or (process.is_up and process.state.applied == applied)
            for process in map(self.processes.__getitem__, self.members())
        )
