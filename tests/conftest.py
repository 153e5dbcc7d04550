"""For all tests: how fast examples come is a question of the machine, never of the code under test."""

from hypothesis import HealthCheck, settings

settings.register_profile("millrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("millrace")
