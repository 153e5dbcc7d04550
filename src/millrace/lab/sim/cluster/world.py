"""A simulated cluster of whole nodes with MQTT clients, its faults, and the story of a run.

The code under test is the node itself, from the MQTT door to the disk, on simulated loops (`loop`), sockets
and disks; the HTTP server, TLS and the password workers are left out. One seed decides everything. A run:

1. the nodes form a cluster, in some runs while they are killed and cut off; the clients connect, the
   subscribers subscribe;
2. clients work (`work` and its neighbours) while nodes crash, lose power, stop, pause, and are cut
   off from each other and from clients, disks are slow, full and damaged, connections break
   (`faults`), and an operator changes streams and members (`operator`);
3. everything heals; within a bounded time everything is answered, everybody has what was promised, and every
   group has a leader; then the checks;
4. in some runs the whole cluster loses its power, and comes back with everything.
"""

import asyncio
import gc
import logging
from collections.abc import Callable

from millrace.lab.sim.cluster.checks import (
    Logs,
    check_beginnings,
    check_groups,
    check_readable,
    check_snapshots,
    check_states,
)
from millrace.lab.sim.cluster.faults import ClusterNemesis
from millrace.lab.sim.cluster.groups import GroupWork
from millrace.lab.sim.cluster.operator import Operator
from millrace.lab.sim.cluster.plan import ClusterPlan, make_cluster_plan
from millrace.lab.sim.cluster.retained import RetainedWork
from millrace.lab.sim.cluster.scene import Scene, is_settled
from millrace.lab.sim.cluster.short import ShortWork
from millrace.lab.sim.cluster.staging import StagingWork
from millrace.lab.sim.cluster.wills import Wills
from millrace.lab.sim.cluster.work import PubSub, Shared, Work
from millrace.lab.sim.surroundings.clock import US_PER_S
from millrace.lab.sim.surroundings.loop import SimLoop
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import Counts, RunResult, judge
from millrace.lab.sim.violation import Violation
from millrace.node.seldom import every_line

_FORM_S = 90
_SUBSCRIBE_S = 60
_HEAL_S = 120
_SETTLE_S = 90
_EXAM_S = 60
_IDLE_S = 2
_GAP_S = 2.0
_FORMING_GAP_S = 0.3

_WORK: dict[str, type[Work]] = {
    "shared": Shared,
    "wills": Wills,
    "retained": RetainedWork,
    "groups": GroupWork,
    "short": ShortWork,
    "staging": StagingWork,
}


class ClusterWorld(Scene):
    """The whole run: who acts on the scene, in which order, and what must hold at the end."""

    def __init__(self, plan: ClusterPlan, trace: Trace | None) -> None:
        super().__init__(plan, trace)
        self.nemesis = ClusterNemesis(self, self.chance("nemesis"))
        self.operator = Operator(self, self.chance("operator"))
        self.work: list[Work] = [PubSub(self, self.chance("work"))]
        self.work += [_WORK[name](self, self.chance(f"work {name}")) for name in plan.work]

    # -------------------------------------------------------------------------------------------- run

    def play(self) -> None:
        """Raises Violation."""
        if self.plan.forming_fault_s:
            self._form_under_faults()
        for host in self.members:
            host.start()
        self.until(_FORM_S, self.is_settled, "forming", self.describe)
        self.until(_SUBSCRIBE_S, lambda: all(w.is_ready() for w in self.work), "subscribing", self.describe)
        for work in self.work:
            work.begin()
        self.nemesis.start(_GAP_S)
        self.operator.start()
        self.until(self.plan.fault_s, None, "", str)
        self.nemesis.stop()
        self.operator.stop()
        self.heal()
        for work in self.work:
            work.heal()
        self.until(_HEAL_S, lambda: self.operator.is_idle, "the operator", self.describe)
        self.until(_HEAL_S, lambda: all(w.is_answered() for w in self.work), "publishing", self.describe)
        self.until(_HEAL_S, self.is_quiet, "groups", self.describe)
        self.until(_HEAL_S, lambda: all(w.is_complete() for w in self.work), "delivery", self.describe)
        self._check()
        if self.plan.is_power_lost_at_end:
            self.note("all", "power loss of everything")
            for host in self.members:
                host.crash(is_power_loss=True)
            self.heal()
            self.until(_HEAL_S, lambda: all(host.is_up for host in self.members), "starting", self.describe)
            self._check()

    def _form_under_faults(self) -> None:
        """Nodes come one after the other, and fall while they join."""
        rng = self.chance("forming")
        for host in self.members:
            self.clock.after(rng.randint(0, self.plan.forming_fault_s * US_PER_S), host.start)
        self.nemesis.start(_FORMING_GAP_S)
        self.until(self.plan.forming_fault_s, None, "", str)
        self.nemesis.stop()
        self.heal()

    def end(self) -> None:
        for loop in self.loops:
            loop.bury()

    def counts(self) -> Counts:
        return Counts(
            operations=sum(work.operations for work in self.work),
            reads=sum(len(received) for work in self.work for received in work.history.received.values()),
            entries=sum(len(work.history.sent) for work in self.work),
            faults=self.nemesis.faults + self.operator.changes,
            messages=self.sockets.delivered,
        )

    def heal(self) -> None:
        self.note("all", "everything heals")
        self.sockets.heal()
        for host in self.members:
            host.disk.cut_power_at(None)
            host.disk.capacity_bytes = None
            host.disk.mend()
            host.slow_disk = 1
            if host.loop is not None and host.loop.is_paused:
                host.loop.resume()
            host.start()

    def _check(self) -> None:
        self.until(_IDLE_S, None, "", str)
        self.until(_SETTLE_S, self.is_quiet, "groups", self.describe)
        for work in self.work:
            work.examine()
        self.until(_EXAM_S, lambda: all(w.is_examined() for w in self.work), "the exam", self.describe)
        self.until(_SETTLE_S, self.is_quiet, "groups", self.describe)
        logs = Logs(self.members)
        check_states(self.members)
        check_snapshots(self.members)
        for work in self.work:
            work.check(logs)

    def describe(self) -> str:
        """Who lacks what; raises the Violation that explains it, where there is one."""
        if not check_groups(self.members) and not check_readable(self.members):
            Logs(self.members)
        silent = [f"{host.name} does not serve" for host in self.members if not host.is_up]
        unsettled = [f"{host.name} is not settled" for host in self.members if not is_settled(host)]
        work = [work.describe() for work in self.work]
        each = check_groups, check_beginnings, check_readable
        checks = [check(self.members) for check in each]
        return ", ".join(filter(None, (*silent, *unsettled, *work, *checks)))

    def until(
        self, seconds: int, done: Callable[[], bool] | None, what: str, describe: Callable[[], str]
    ) -> None:
        """Let time pass until `done`; after so many seconds it is a violation."""
        end_us = self.clock.now_us + seconds * US_PER_S
        while self.clock.now_us < end_us:
            step_us = min(end_us, self.clock.now_us + US_PER_S // 20)
            self.clock.run(step_us, lambda: self.violation is not None)
            if self.violation is not None:
                raise self.violation
            if done is not None and done():
                return
        if done is not None:
            raise Violation("progress", f"{what} did not end within {seconds} s: {describe()}")


class _LogLines(logging.Handler):
    """What the nodes write to their logs becomes part of the trace."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        address = loop.address if isinstance(loop, SimLoop) else "?"
        self._world.note(address.removeprefix("10.0."), f"{record.levelname}: {record.getMessage()}")


def run_cluster_seed(seed: int, trace: Trace | None = None) -> RunResult:
    return run_cluster_plan(make_cluster_plan(seed), trace)


def run_cluster_plan(plan: ClusterPlan, trace: Trace | None = None) -> RunResult:
    """One whole run."""
    world = ClusterWorld(plan, trace)
    logger = logging.getLogger("millrace")
    before = (logger.handlers, logger.propagate, logger.level)
    logger.handlers, logger.propagate = [_LogLines(world)], False
    logger.setLevel(logging.INFO if world.trace is not None else logging.CRITICAL + 1)
    # A collector would run what dead tasks left behind at moments that no seed decides.
    had_collector = gc.isenabled()
    gc.disable()
    try:
        with every_line():
            return judge(world.plan.seed, world)
    finally:
        world.end()
        logger.handlers, logger.propagate = before[:2]
        logger.setLevel(before[2])
        if had_collector:
            gc.enable()
