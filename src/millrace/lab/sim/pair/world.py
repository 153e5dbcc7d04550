"""A primary-backup pair with its clients: with an authority above it, or two nodes alone. See `story.py`.

The machine is the production one, and so is the record of roles (`broker/meta/pairs.py`). The authority
itself, a meta group in production, is one place here that answers late, in order, and not at all while it is
cut off from a replica. With it a third replica looks on, and anything may be cut and paused. Two nodes alone
are promised less: their crashes, restarts, stalls and lost messages lose nothing, a partition may, so runs
of that kind have none (the story `pair_split.txt` shows what it does)."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from millrace.broker.meta.pairs import Pair, Pairs
from millrace.driver.effects import Runner
from millrace.errors import LocalError
from millrace.lab.sim.pair.checkers import PairCheckers
from millrace.lab.sim.raft.plan import TICK_US, Plan, make_plan
from millrace.lab.sim.raft.process import TICK, Process
from millrace.lab.sim.raft.workload import Client
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.log_disk import LogDisk
from millrace.lab.sim.surroundings.network import Network, Weather
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    NO_INDEX,
    Appointed,
    Config,
    ConfigAt,
    LinkClosed,
    LinkOpened,
    PeerMessage,
    Replica,
    ReplicaId,
    Report,
    StartOver,
)
from millrace.replication.pair.machine import PrimaryBackup
from millrace.replication.pair.options import PairOptions
from millrace.types import Term

CALLS_MAX = 400_000
_SHARD = 16
_LIVELY_PROMOTIONS = 30
"""How many promotion times a healed pair may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    base: Plan
    """Sizes, weather, load and disks, as for Raft."""
    options: PairOptions
    has_authority: bool
    fault_count: int


def make_pair_plan(seed: int) -> PairPlan:
    rng = random.Random(f"pair {seed}")
    base = make_plan(seed)
    has_authority = rng.random() < 0.6
    raft = replace(base.options, heartbeat_ticks=rng.choice((1, 2)), disk_stall_ticks=rng.choice((10, 30)))
    drift = rng.choice((0.0, 0.03, 0.07))
    weather = base.weather
    if not has_authority:
        weather = replace(weather, drop_rate=min(weather.drop_rate, 0.01), straggler_rate=0.0)
    return PairPlan(
        base=replace(
            base,
            voters=2,
            spares=1 if has_authority else 0,
            drifts=tuple(1.0 + drift * (2 * rng.random() - 1) for _ in range(3)),
            weather=weather,
            options=raft,
            slow_sync_rate=0.0,
            ticks_max=rng.choice((300, 500)),
        ),
        options=PairOptions(check_ticks=rng.choice((6, 8, 12)), raft=raft),
        has_authority=has_authority,
        fault_count=0 if base.is_calm else rng.choice((4, 8, 16)),
    )


class PairProcess(Process):
    """Knows the record as of the last time it was told, also after a restart."""

    on_report: Callable[["PairProcess", Report], None]
    known: Pair | None = None
    _paused_us = 0

    def _runners(self) -> dict[type, Runner]:
        own: dict[type, Runner] = {Report: partial(self.on_report, self), StartOver: self._on_start_over}
        return {**super()._runners(), **own}

    def _on_start_over(self, effect: StartOver) -> None:
        raise Violation("two histories", f"{self.replica} lost {effect.lost} committed entries")

    def pause(self) -> None:
        if not self.is_paused:
            self._paused_us = self._clock.now_us
        super().pause()

    def resume(self) -> None:
        """A driver that was held up steps the ticks it missed before anything else."""
        if self.is_paused:
            missed = int((self._clock.now_us - self._paused_us) / (TICK_US * self.drift))
            self._inbox.extendleft([TICK] * missed)
        super().resume()


class Authority:
    """One record, changed in the order in which requests arrive."""

    def __init__(self, world: "PairWorld", rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._pairs = Pairs()
        self._pairs.found(_SHARD, ("a1", "b1"))
        self.cut_off: set[str] = set()

    @property
    def pair(self) -> Pair:
        return self._pairs.by_shard[_SHARD]

    def ask(self, process: PairProcess, report: Report) -> None:
        if process.replica not in self.cut_off:
            self._world.clock.after(self._delay_us(), self._decide, report)

    def _delay_us(self) -> int:
        return 500 + int(self._rng.random() ** 3 * 60_000)

    def _decide(self, report: Report) -> None:
        wanted = Pair(
            version=0,
            epoch=report.epoch,
            primary=report.primary,
            backup=report.backup,
            is_in_sync=report.is_in_sync,
        )
        try:
            self._pairs.report(_SHARD, report.after, wanted, is_seized=report.is_seized)
        except LocalError as error:
            self._world.note(f"not recorded: {error}")
            return
        self._world.note(f"recorded: {self.pair}")
        self.tell_all()

    def tell_all(self) -> None:
        pair = self.pair
        for process in self._world.processes.values():
            assert isinstance(process, PairProcess)
            if process.is_up and process.known != pair and process.replica not in self.cut_off:
                self._world.clock.after(self._delay_us(), self._tell, process, process.incarnation, pair)

    def _tell(self, process: PairProcess, incarnation: int, pair: Pair) -> None:
        if process.incarnation != incarnation or process.replica in self.cut_off:
            return
        # A replica of the record applies its changes in order: none is told an older one.
        if process.known is not None and process.known.version >= pair.version:
            return
        process.known = pair
        process.handle(appointed(pair, has_quorum=True))


def appointed(pair: Pair, *, has_quorum: bool) -> Appointed:
    return Appointed(
        version=pair.version,
        epoch=Term(pair.epoch),
        primary=ReplicaId(pair.primary),
        backup=None if pair.backup is None else ReplicaId(pair.backup),
        is_in_sync=pair.is_in_sync,
        has_quorum=has_quorum,
        is_seized=pair.is_seized,
    )


class PairWorld:
    def __init__(self, plan: PairPlan, trace: Trace | None) -> None:
        self.plan = plan
        self.trace = trace
        self.clock = Clock(calls_max=CALLS_MAX)
        names = [ReplicaId(name) for name in ("a1", "b1", "c1")[: 2 + plan.base.spares]]
        self._config = Config(voters=tuple(names[:2]), learners=tuple(names[2:]))
        self.processes: dict[ReplicaId, Process] = {}
        self.authority = Authority(self, self.chance("authority")) if plan.has_authority else None
        self.checkers = PairCheckers(
            first_config=self._config,
            processes=self.processes,
            record=lambda: None if self.authority is None else self.authority.pair,
        )
        self.network = Network(
            clock=self.clock, rng=self.chance("network"), weather=plan.base.weather, deliver=self._deliver
        )
        for slot, name in enumerate(names):
            self._add(name, plan.base.drifts[slot])
        choice = self.chance("choice")
        self.clients = [
            Client(
                number=number,
                plan=plan.base,
                clock=self.clock,
                checkers=self.checkers,
                rng=self.chance(f"client {number}"),
                choose=lambda: choice.choice(list(self.processes.values())),
                find=self.processes.get,
            )
            for number in range(plan.base.clients)
        ]

    def chance(self, actor: str) -> random.Random:
        return random.Random(f"{self.plan.base.seed} pair {actor}")

    def _add(self, name: ReplicaId, drift: float) -> None:
        base = self.plan.base
        process = PairProcess(
            replica=name,
            disk=LogDisk(
                first_config=ConfigAt(index=NO_INDEX, config=self._config),
                rng=self.chance(f"disk {name}"),
                shows_written=base.shows_written,
                cold_rate=base.cold_rate,
            ),
            plan=base,
            clock=self.clock,
            network=self.network,
            checkers=self.checkers,
            trace=self.trace,
            rng=self.chance(f"process {name}"),
            drift=drift,
            make_machine=self._make_machine,
            on_crash=self._on_crash,
        )
        process.on_report = self._on_report
        if self.authority is not None:
            process.known = self.authority.pair
        self.processes[name] = process

    def _make_machine(self, process: Process) -> Replica:
        assert isinstance(process, PairProcess)
        known = process.known
        return PrimaryBackup(
            process.replica,
            state=process.disk.initial_state(),
            log=process.disk,
            options=self.plan.options,
            rng=self.chance(f"machine {process.replica} {process.incarnation}"),
            pair=None if known is None else appointed(known, has_quorum=True),
        )

    def _on_report(self, process: PairProcess, report: Report) -> None:
        if self.authority is not None:
            self.authority.ask(process, report)

    def restart(self, process: Process) -> None:
        if process.is_up:
            return
        process.start()
        for peer in self.processes.values():
            if peer is not process and peer.is_up and self.network.is_open(process.replica, peer.replica):
                peer.handle(LinkOpened(peer=process.replica))
                process.handle(LinkOpened(peer=peer.replica))

    def _on_crash(self, process: Process) -> None:
        self.clock.after(1_000, self._link_closed, process.replica)

    def _link_closed(self, name: ReplicaId) -> None:
        if not self.processes[name].is_up:
            for peer in self.processes.values():
                peer.handle(LinkClosed(peer=name))

    def _deliver(self, sender: str, to: str, body: Any) -> None:
        self.processes[ReplicaId(to)].handle(PeerMessage(sender=ReplicaId(sender), body=body))

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.note(self.clock.now_us, "----", text)

    # ----------------------------------------------------------------------------------------- story

    def primary(self) -> Process | None:
        found = [p for p in self.processes.values() if p.role == "primary" and p.is_up]
        return max(found, key=lambda process: process.term) if found else None

    def watch_record(self) -> None:
        """A replica that was away hears the record again."""
        if self.authority is not None:
            self.authority.tell_all()
            self.clock.after(5 * TICK_US, self.watch_record)

    def heal(self) -> None:
        self.note("heal")
        self.network.weather = Weather()
        self.network.heal()
        if self.authority is not None:
            self.authority.cut_off.clear()
        for process in self.processes.values():
            process.points.disarm()
            process.log.heal()
            process.resume()
            self.restart(process)

    def run_ticks(self, ticks: int, done: Callable[[], bool] | None = None) -> bool:
        return self.clock.run(self.clock.now_us + ticks * TICK_US, done)

    def require(self, what: str, done: Callable[[], bool]) -> None:
        ticks = _LIVELY_PROMOTIONS * self.plan.options.promotion_ticks
        if not self.run_ticks(ticks, done):
            raise Violation("liveness", f"not within {_LIVELY_PROMOTIONS} promotion times: {what}")

    def require_progress(self, what: str) -> None:
        client = self.clients[0]
        wanted = client.operations + 1
        client.start()
        self.require(f"progress {what}", lambda: client.operations >= wanted)
        client.stop()
        self.require(f"answers {what}", lambda: all(each.is_idle for each in self.clients))
        self.require(f"all caught up {what}", self._is_settled)

    def _is_settled(self) -> bool:
        applied = len(self.checkers.committed)
        primary = self.primary()
        if primary is None or not primary.is_serving:
            return False
        assert isinstance(primary.machine, PrimaryBackup)
        return not primary.machine.is_alone and all(
            process.is_up and process.state.applied == applied for process in self.processes.values()
        )
