"""What a node hands to its broker, as small stand-ins for tests that have no whole node."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from millrace.broker.groups.group_work import GroupWork
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Intake
from millrace.node.shards.publishing import Publishing


class IntakesBy:
    """A table of intakes that a test says by a function of the topic."""

    def __init__(self, find: Callable[[str], Intake | None]) -> None:
        self.find = find


class Waiter:
    """Who waits for an arrival without being a session: as a future it is told once."""

    def __init__(self, tell: Callable[[int | None], None]) -> None:
        self._tell = tell

    def done(self) -> bool:
        return False

    def set_result(self, offset: int | None) -> None:
        self._tell(offset)


def tell_waiters(broker: Broker) -> None:
    """As a node does at the end of each turn of its loop."""
    Publishing.answer(broker.take_outcomes())


def definitions(**filters: tuple[str, ...]) -> Any:
    """Groups made by command, by name, of which only the filters count."""
    made = {name: SimpleNamespace(spec=SimpleNamespace(filters=some)) for name, some in filters.items()}
    return SimpleNamespace(by_name=made)


class WorkOf:
    """A node with one log, whatever its number."""

    node = "here"

    def __init__(self, work: GroupWork) -> None:
        self._work = work

    def find(self, shard: int) -> GroupWork | None:
        return self._work
