"""A bug is planted where its code still is, for as long as a run lasts, and nothing is left of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import LocalError
from millrace.lab.sim.planted.bug import Bug, Plant, planted
from millrace.lab.sim.planted.registry import BUGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "simulation.md"
EVERY_BUG = [(mode, name) for mode, bugs in BUGS.items() for name in bugs]


class Machine:
    def step(self, event: str) -> str:
        return f"right {event}"

    @property
    def role(self) -> str:
        return "right"

    @staticmethod
    def next_term(term: int) -> int:
        return term + 1


@pytest.fixture
def plant() -> Iterator[Plant]:
    one = Plant()
    yield one
    one.uproot()


def test_the_page_on_the_simulation_has_every_one() -> None:
    page = PAGE.read_text(encoding="utf-8")
    # The table of routed streams says them in words.
    assert [name for mode, name in EVERY_BUG if mode != "routed" and f"| `{name}`" not in page] == []
    routed = page.partition("### In routed streams")[2].partition("\nSearched with")[0]
    assert routed.count("\n| ") == 1 + sum(mode == "routed" for mode, _ in EVERY_BUG)


@pytest.mark.parametrize(("mode", "name"), EVERY_BUG)
def test_every_bug_finds_its_place_and_leaves_it(
    mode: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: dict[tuple[type, str], Any] = {}
    around = Plant.around

    def noted(self: Plant, owner: type, attribute: str, make: Any) -> None:
        before.setdefault((owner, attribute), vars(owner).get(attribute))
        around(self, owner, attribute, make)

    monkeypatch.setattr(Plant, "around", noted)
    with planted(BUGS[mode], frozenset({name})):
        assert all(vars(owner)[attribute] is not was for (owner, attribute), was in before.items())
    assert all(vars(owner)[attribute] is was for (owner, attribute), was in before.items())
    assert before or BUGS[mode][name].plants is None


def test_methods_static_methods_and_properties_are_replaced(plant: Plant) -> None:
    plant.around(Machine, "step", lambda original: lambda self, event: f"not {original(self, event)}")
    plant.instead(Machine, "role", lambda self: "wrong")
    plant.instead(Machine, "next_term", lambda term: term)
    machine = Machine()
    assert (machine.step("tick"), machine.role, machine.next_term(7)) == ("not right tick", "wrong", 7)
    plant.uproot()
    assert (machine.step("tick"), machine.role, machine.next_term(7)) == ("right tick", "right", 8)


def test_a_bug_that_has_lost_its_place_fails_loudly(plant: Plant) -> None:
    with pytest.raises(LocalError, match="Machine has no on_tick"):
        plant.instead(Machine, "on_tick", lambda self: None)
    with pytest.raises(LocalError, match=r"Machine\.step takes other arguments"):
        plant.instead(Machine, "step", lambda self: "wrong")


def test_nothing_stays_planted_when_a_bug_cannot_be() -> None:
    def half(plant: Plant) -> None:
        plant.instead(Machine, "step", lambda self, event: "wrong")
        plant.instead(Machine, "gone", lambda self: None)

    bugs = {"half": Bug(name="half", description="", plants=half)}
    with pytest.raises(LocalError), planted(bugs, frozenset({"half"})):
        raise AssertionError("it was planted")
    assert Machine().step("tick") == "right tick"


def test_an_unknown_bug_is_named() -> None:
    with (
        pytest.raises(LocalError, match="unknown bugs: no_such_bug"),
        planted({}, frozenset({"no_such_bug"})),
    ):
        raise AssertionError("it was planted")
