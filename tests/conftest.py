"""For all tests: how fast examples come is a question of the machine, never of the code under test. Where a
change is judged the examples are the same each time; elsewhere each run draws new ones."""

import os

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
