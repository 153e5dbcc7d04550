"""Waiting for a condition, the only place in the tests that sleeps."""

import asyncio
import time
from collections.abc import Callable

_STEP_S = 0.005
_PAUSE_S = 0.05


def until(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Return once the condition holds; fail with `what` if it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(_STEP_S)


async def until_async(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(_STEP_S)


async def pause() -> None:
    """Between two looks at something that must be asked for."""
    await asyncio.sleep(_PAUSE_S)
