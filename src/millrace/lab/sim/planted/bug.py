"""How a bug is planted: while a run lasts, methods of the code that runs are replaced by wrong ones.

Machines and nodes have no switch for bugs and do not know that there are any. A bug is a function that takes
a `Plant` and says what to replace by what; its name is the bug's name. What it replaces must exist and take
the same arguments, so that a change of the code that leaves a bug without its place shows at once.

A bug that needs a memory of its own keeps it in a dictionary that the function makes: it is empty at the
beginning of every run.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from millrace.errors import LocalError

Method = Callable[..., Any]


class Plant:
    """The replacements of one run, undone in reverse order. Of a wrong method that looks at nothing it is
    given, `*arguments` stands for whatever the right one takes."""

    def __init__(self) -> None:
        self._replaced: list[tuple[type, str, Any]] = []

    def instead(self, owner: type, attribute: str, wrong: Method) -> None:
        """`wrong` takes the place of a method, static method or property that `owner` itself defines."""
        self.around(owner, attribute, lambda _: wrong)

    def around(self, owner: type, attribute: str, make: Callable[[Method], Method]) -> None:
        """As `instead`; `make` is given the right method, for a wrong one that calls it."""
        found = vars(owner).get(attribute)
        if found is None:
            raise LocalError(f"{owner.__name__} has no {attribute}: a planted bug has lost its place")
        right = _function_of(found)
        wrong = make(right)
        if _arguments(wrong) not in (_arguments(right), ["arguments"]):
            raise LocalError(f"{owner.__name__}.{attribute} takes other arguments than the bug planted there")
        self._replaced.append((owner, attribute, found))
        setattr(owner, attribute, _shaped_like(found, wrong))

    def uproot(self) -> None:
        while self._replaced:
            owner, attribute, found = self._replaced.pop()
            setattr(owner, attribute, found)


def _function_of(found: Any) -> Method:
    if isinstance(found, property):
        assert found.fget is not None
        return found.fget
    function: Method = found.__func__ if isinstance(found, staticmethod) else found
    return function


def _shaped_like(found: Any, wrong: Method) -> Any:
    if isinstance(found, property):
        return property(wrong)
    return staticmethod(wrong) if isinstance(found, staticmethod) else wrong


def _arguments(function: Method) -> list[str]:
    return [*inspect.signature(function).parameters]


Plants = Callable[[Plant], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    name: str
    description: str
    """What goes wrong, and where such a bug was published, or which text gives the rule that it breaks;
    neither where it is a construction of ours."""
    plants: Plants


class Bugs(dict[str, Bug]):
    """The bugs of one machine by name, in the order in which they are written down."""

    def bug(self, description: str) -> Callable[[Plants], Plants]:
        """Decorates the function that plants it."""

        def register(plants: Plants) -> Plants:
            name = getattr(plants, "__name__", "")
            assert name and name not in self, f"two bugs have the name {name!r}"
            self[name] = Bug(name=name, description=description, plants=plants)
            return plants

        return register


@contextmanager
def planted(bugs: Mapping[str, Bug], names: frozenset[str]) -> Iterator[None]:
    """The bugs of these names are in everything that runs meanwhile. LocalError names one that is unknown."""
    if not names <= bugs.keys():
        raise LocalError(f"unknown bugs: {', '.join(sorted(names - bugs.keys()))}")
    plant = Plant()
    try:
        for name in sorted(names):
            bugs[name].plants(plant)
        yield
    finally:
        plant.uproot()
