"""Brokers for the tests in a browser: the same as those of the end-to-end tests."""

from e2e.conftest import start_broker

__all__ = ["start_broker"]
