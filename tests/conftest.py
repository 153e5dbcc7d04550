"""For all tests: how fast examples come is a question of the machine, never of the code under test. Where a
change is judged the examples are the same each time; elsewhere each run draws new ones."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "millrace",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("millrace")
