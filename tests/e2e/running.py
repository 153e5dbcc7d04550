"""One scenario on an event loop of its own, with an end to all patience."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_SCENARIO_S_MAX = 120.0


def run(scenario: Coroutine[Any, Any, Result]) -> Result:
    async def bounded() -> Result:
        async with asyncio.timeout(_SCENARIO_S_MAX):
            return await scenario

    return asyncio.run(bounded())
