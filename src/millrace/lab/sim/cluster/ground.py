"""What every part of a simulated cluster stands on: plan, virtual time, network, and the notes of a run."""

import random

from millrace.lab.sim.cluster.plan import ClusterPlan
from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.lab.sim.surroundings.loop import SimLoop
from millrace.lab.sim.surroundings.sockets import Sockets
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import violation_of
from millrace.lab.sim.violation import Violation

_CALLS_MAX = 20_000_000


class Ground:
    """One run's time, network and chance. A violation that a part reports ends the run at its next step."""

    def __init__(self, plan: ClusterPlan, trace: Trace | None) -> None:
        self.plan = plan
        self.clock = Clock(calls_max=_CALLS_MAX)
        self.trace = trace
        self.violation: Violation | None = None
        self.loops: list[SimLoop] = []
        self._clients = 0
        note = None if trace is None else self._note_bytes
        self.sockets = Sockets(clock=self.clock, rng=self.chance("network"), note=note)

    def chance(self, name: str) -> random.Random:
        """Each actor has its own stream of chance, so that a change in one does not reshuffle the others."""
        return random.Random(f"{self.plan.seed} {name}")

    def client_loop(self) -> SimLoop:
        number = self._clients
        self._clients += 1
        return self.make_loop(
            f"10.0.{1 + number // 250}.{number % 250}", self.chance(f"client loop {number}")
        )

    def make_loop(self, address: str, rng: random.Random) -> SimLoop:
        # Abstract: what no node calls (files, processes, datagrams) is not there.
        loop = SimLoop(  # type: ignore[abstract]
            address, clock=self.clock, sockets=self.sockets, rng=rng, trouble=self.on_trouble
        )
        self.loops.append(loop)
        return loop

    @property
    def now_s(self) -> float:
        return self.clock.now_us / US_PER_S

    def note(self, who: str, text: str) -> None:
        if self.trace is not None:
            self.trace.note(self.clock.now_us, who, text)

    def _note_bytes(self, sender: str, receiver: str, text: str) -> None:
        self.note(receiver.removeprefix("10.0."), f"<{sender.removeprefix('10.0.')} {text}")

    def on_trouble(self, loop: SimLoop, error: BaseException) -> None:
        if self.violation is None:
            self.violation = violation_of(error, f"{loop.address}: ")

    def fail(self, rule: str, detail: str) -> None:
        """A promise was broken at this moment, seen from outside any node."""
        if self.violation is None:
            self.violation = Violation(rule, detail)
