"""One seed of a primary-backup pair: faults and load, healing, and for some seeds a power loss of all."""

from millrace.lab.sim.pair.faults import PairNemesis
from millrace.lab.sim.pair.world import PairPlan, PairWorld, make_pair_plan
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import Counts, RunResult, judge


class PairStory(PairWorld):
    def __init__(self, plan: PairPlan, trace: Trace | None) -> None:
        super().__init__(plan, trace)
        self.nemesis = PairNemesis(self, self.chance("nemesis"))

    def heal(self) -> None:
        self.nemesis.stop()
        super().heal()

    def play(self) -> None:
        plan = self.plan.base
        for process in self.processes.values():
            self.restart(process)
        self.watch_record()
        for client in self.clients:
            client.start()
        self.nemesis.start()
        self.run_ticks(plan.ticks_max, lambda: self.checkers.operations >= plan.operations_max)
        for client in self.clients:
            client.stop()
        self.heal()
        self.require_progress("after healing")
        if plan.ends_with_power_loss:
            self.note("power loss of everything")
            for process in self.processes.values():
                process.crash("power loss")
            self.heal()
        self.require_progress("at the end")
        self.checkers.at_the_end(list(self.processes.values()))

    def counts(self) -> Counts:
        return Counts(
            operations=self.checkers.operations,
            reads=sum(client.reads for client in self.clients),
            entries=len(self.checkers.committed),
            faults=self.nemesis.faults,
            messages=self.network.sent,
            leaders=len(self.checkers.leaders),
        )


def run_pair_seed(seed: int, trace: Trace | None = None) -> RunResult:
    return judge(seed, PairStory(make_pair_plan(seed), trace))
