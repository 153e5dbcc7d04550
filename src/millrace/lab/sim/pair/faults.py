"""What goes wrong around a primary-backup pair: one fault after the other, each with its end."""

import random

from millrace.lab.sim.pair.world import PairWorld
from millrace.lab.sim.raft.answers import ignore
from millrace.lab.sim.raft.crash_points import CRASH_POINTS
from millrace.lab.sim.raft.plan import TICK_US
from millrace.lab.sim.raft.process import Process

_ALWAYS = ("crash primary", "crash backup", "crash at point", "power loss", "switch over", "stall backup")
_WITH_AUTHORITY = (
    "crash primary",
    "split pair",
    "one way",
    "isolate",
    # More often than others: a primary that is checked on, and neither heard nor told that it is replaced.
    "unheard",
    "unheard",
    "unheard",
    "cut from authority",
    "pause primary",
    "pause backup",
    "storm",
    "stall primary",
    "hold late",
)


class PairNemesis:
    def __init__(self, world: PairWorld, rng: random.Random) -> None:
        self.faults = 0
        self._world = world
        self._rng = rng
        self._is_running = False
        kinds = _ALWAYS + (_WITH_AUTHORITY if world.plan.has_authority else ())
        share = rng.choice((0.4, 1.0))
        self._kinds = [kind for kind in kinds if rng.random() < share] or ["crash primary"]

    def start(self) -> None:
        self._is_running = True
        self._later()

    def stop(self) -> None:
        self._is_running = False

    def _later(self) -> None:
        if self.faults < self._world.plan.fault_count:
            span = self._world.plan.options.promotion_ticks
            self._world.clock.after(int((0.2 + self._rng.random()) * span * TICK_US), self._strike)

    def _strike(self) -> None:
        if not self._is_running:
            return
        self.faults += 1
        kind = self._rng.choice(self._kinds)
        world, rng = self._world, self._rng
        primary = world.primary()
        pair = [world.processes[name] for name in list(world.processes)[:2]]
        target = primary if primary is not None else rng.choice(pair)
        other = pair[1] if target is pair[0] else pair[0]
        world.note(f"fault: {kind}, {target.replica} is {target.role}")
        ticks = rng.randint(2, 2 * world.plan.options.promotion_ticks)
        if kind in ("crash backup", "pause backup", "stall backup"):
            target, other = other, target
        if "crash" in kind or kind == "power loss":
            self._crash(kind, target, pair, ticks)
        elif kind == "switch over":
            if target.is_up:
                target.transfer(None, ignore)
        elif "pause" in kind and target.is_up:
            target.pause()
            self._after(ticks, target.resume)
        elif "stall" in kind and target.is_up:
            target.log.is_stalled = True
            self._after(ticks, target.log.heal)
        else:
            self._disturb(kind, target, other, ticks)
        self._later()

    def _crash(self, kind: str, target: Process, pair: list[Process], ticks: int) -> None:
        world, rng = self._world, self._rng
        if kind == "crash at point":
            if target.is_up:
                target.points.arm(rng.choice(CRASH_POINTS), rng.randint(0, 6))
            self._after(ticks, lambda: world.restart(target))
            return
        for process in world.processes.values() if kind == "power loss" else (target,):
            process.crash(kind)
            restart_ticks = ticks if kind != "power loss" else rng.randint(1, ticks)
            self._after(restart_ticks, lambda process=process: world.restart(process))

    def _disturb(self, kind: str, target: Process, other: Process, ticks: int) -> None:
        world, network = self._world, self._world.network
        here, there = target.replica, other.replica
        everybody = list(world.processes)
        if kind == "split pair":
            network.split([here], [there])
        elif kind == "one way":
            network.block(*(([here], [there]) if self._rng.random() < 0.5 else ([there], [here])))
        elif kind == "isolate":
            network.split([here], everybody)
            self._cut_off(here)
        elif kind == "unheard":
            network.block([here], [there])
            self._cut_off(here)
        elif kind == "cut from authority":
            self._cut_off(self._rng.choice((here, there)))
        elif kind == "hold late":
            network.hold([here], everybody)
        elif kind == "storm":
            network.weather = world.plan.base.storm
        self._after(ticks, self._calm)

    def _cut_off(self, name: str) -> None:
        if self._world.authority is not None:
            self._world.authority.cut_off.add(name)

    def _calm(self) -> None:
        if not self._is_running:
            return  # everything is healed, and the weather is fine
        world = self._world
        world.network.heal()
        world.network.weather = world.plan.base.weather
        if world.authority is not None:
            world.authority.cut_off.clear()

    def _after(self, ticks: int, call: object) -> None:
        assert callable(call)
        self._world.clock.after(ticks * TICK_US, call)
