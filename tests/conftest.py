"""For all tests: how fast examples come is a question of the machine, never of the code under test. Where a
change is judged the examples are the same each time; elsewhere each run draws new ones."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Nodes are started hundreds of times: what one has compiled, the others need not compile again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "millrace",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("millrace")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write stories and pages as they are now into their files; commit only a diff you can explain",
    )


# Where nodes and browsers are started, most of the time is waiting. Their files begin first, several at once,
# and the unit tests, which only compute, fill the time until the last of them has ended.
_FIRST = ("e2e", "browser", "docs", "sim")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which files are given out; within a file nothing changes."""
    tests = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        room = item.path.relative_to(tests).parts[0]
        return _FIRST.index(room) if room in _FIRST else len(_FIRST)

    items.sort(key=turn)
