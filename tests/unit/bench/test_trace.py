"""What a traced node says of a message is so: times and calls belong to the step in which they happen."""

import importlib
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.kernels import ACCELERATED
from millrace.lab.bench.trace import publish, steps
from millrace.lab.bench.trace.steps import STEPS, Tracer

clock = [0]
"""In nanoseconds. Looking at it is no call of a Python function."""


class Work:
    def outer(self) -> None:
        self._take(4_000)
        self.inner()
        self.inner()
        self._take(3_000)

    def inner(self) -> None:
        self._take(1_000)

    def _take(self, time_ns: int) -> None:
        clock[0] += time_ns


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Work]]:
    """A class whose steps are put back behind the test."""
    before = dict(vars(Work))
    monkeypatch.setattr(steps, "STEPS", (("out", __name__, "Work.outer"), ("in", __name__, "Work.inner")))
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter_ns=partial(itemgetter(0), clock)))
    yield Work
    for name in ("outer", "inner"):
        setattr(Work, name, before[name])


def test_a_step_has_the_time_that_no_step_inside_it_has(work: type[Work]) -> None:
    tracer = Tracer(counts=False)
    tracer.install()
    work().outer()
    tracer.begin()
    work().outer()
    found = tracer.end()
    work().outer()
    assert found["out"]["times"] == 1 and found["in"]["times"] == 2
    assert found["out"]["us"] == 7 and found["in"]["us"] == 1


def test_calls_are_counted_where_they_happen(work: type[Work]) -> None:
    tracer = Tracer(counts=True)
    tracer.install()
    tracer.begin()
    work().outer()
    found = tracer.end()
    # Each of them, and what it spins in.
    assert found["out"]["calls"] == 3 and found["in"]["calls"] == 4


@pytest.mark.parametrize(("module", "path"), [(module, path) for _, module, path in STEPS])
def test_the_functions_of_the_steps_exist(module: str, path: str) -> None:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_the_sums_stand_below_each_node() -> None:
    made = [
        publish.Step(case="alone", node=node, step=step, function="f", times=1, us=us, calls=2, builtins=1)
        for node in ("one", "other")
        for step, us in (("read", 1.5), ("scan", 2.0))
    ]
    rows = publish.rows(made)
    assert [(row["node"], row["step"], row["us"], row["calls"]) for row in rows[:3]] == [
        ("one", "read", "1.5", "2"),
        ("one", "scan", "2.0", "2"),
        ("one", "all", "3.5", "4"),
    ]


@pytest.mark.long
def test_a_publish_is_followed_from_its_read_to_its_acknowledgement() -> None:
    found, whole = publish.measure("alone", "c" if ACCELERATED else "python", 50)
    times = {step.step: step.times for step in found}
    for step in ("read", "scan", "block made", "log: append", "system: sync", "applied", "arrivals answered"):
        assert times[step] == pytest.approx(1, abs=0.3), step
    assert whole.p50_us > 0 and all(step.calls >= 1 for step in found)
