"""What one seed comes to: the figures of its world, and the promise that was broken, if one was.

Whatever is raised during a run is the seed's: a broken promise (`Violation`) and an exception alike are part
of the result, so that a campaign counts them and goes on.
"""

from dataclasses import asdict, dataclass
from typing import Protocol

from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.violation import Violation


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much happened. What a kind of world does not have stays 0."""

    operations: int
    faults: int
    messages: int
    reads: int = 0
    entries: int = 0
    leaders: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Counts):
    seed: int
    simulated_s: float
    rule: str | None = None
    detail: str = ""
    trace_hash: str = ""
    tail: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return self.rule is None


class Judged(Protocol):
    clock: Clock
    trace: Trace | None

    def play(self) -> None:
        """The whole run. Raises Violation."""

    def counts(self) -> Counts: ...


def judge(seed: int, world: Judged) -> RunResult:
    """Play the world of one seed."""
    trace = world.trace
    found: Violation | None = None
    try:
        world.play()
    except Exception as error:  # noqa: BLE001  whatever is raised is a violation, to be replayed
        found = violation_of(error)
        if trace is not None:
            trace.note(world.clock.now_us, "----", f"VIOLATION {found}")
    return RunResult(
        seed=seed,
        simulated_s=world.clock.now_us / US_PER_S,
        rule=found.rule if found is not None else None,
        detail=found.detail if found is not None else "",
        trace_hash=trace.hexdigest() if trace is not None else "",
        tail=tuple(trace.tail) if trace is not None else (),
        **asdict(world.counts()),
    )


def violation_of(error: BaseException, where: str = "") -> Violation:
    """As it is, or as the rule that nothing raises; `where` says at which part of the world."""
    if isinstance(error, Violation):
        return error
    violation = Violation("exception", f"{where}{error!r} {_line_of(error)}")
    violation.__cause__ = error
    return violation


def _line_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}" if trace else ""
