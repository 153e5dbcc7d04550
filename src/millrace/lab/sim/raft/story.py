"""One seed of a simulated group: what happens to it from its beginning to its end.

A run has four acts. Faults and load; then everything heals and the group must make progress and catch up;
then one exam (see `exams`), which does one thing to a healthy group and asks for one promise; then, for
some seeds, a power loss of the whole cluster. At the end everything acknowledged is in the state of every
member.
"""

from millrace.lab.sim.raft.exams import take_exam
from millrace.lab.sim.raft.faults import Nemesis
from millrace.lab.sim.raft.plan import Plan, make_plan
from millrace.lab.sim.raft.world import World
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import Counts, RunResult, judge


class Story(World):
    def __init__(self, plan: Plan, trace: Trace | None) -> None:
        super().__init__(plan, trace)
        self.nemesis = Nemesis(world=self, rng=self.chance("nemesis"))

    def heal(self) -> None:
        self.nemesis.stop()
        super().heal()

    def _owes_no_answer(self) -> bool:
        return not any(process.requests_open for process in self.processes.values())

    def play(self) -> None:
        plan = self.plan
        for process in tuple(self.processes.values()):
            self.restart(process)
        for client in self.clients:
            client.start()
        self.nemesis.start()
        self.run_ticks(plan.ticks_max, lambda: self.checkers.operations >= plan.operations_max)
        for client in self.clients:
            client.stop()
        self.heal()
        self.require_progress("after healing")
        self.require("all members caught up", self.is_settled)
        take_exam(self)
        self.heal()
        if plan.ends_with_power_loss:
            self.note("power loss of the whole cluster")
            for process in tuple(self.processes.values()):
                process.crash("power loss")
            self.heal()
        self.require_progress("at the end")
        self.require("all members caught up at the end", self.is_settled)
        self.require("every request answered", self._owes_no_answer)
        self.checkers.at_the_end(
            [self.processes[name] for name in self.members() if not self.processes[name].is_gone]
        )

    def counts(self) -> Counts:
        return Counts(
            operations=self.checkers.operations,
            reads=sum(client.reads for client in self.clients),
            entries=len(self.checkers.committed),
            faults=self.nemesis.faults,
            messages=self.messages,
            leaders=len(self.checkers.leaders),
        )


def run_seed(seed: int, trace: Trace | None = None) -> RunResult:
    return judge(seed, Story(make_plan(seed), trace))
