"""The numbered statements of both standards, and which test shows which.

`@covers("MQTT-3.1.0-1")` names statements of MQTT 5, `@covers311(...)` those of MQTT 3.1.1; a test may carry
both and then takes `version` as a parameter (see `both`). The decorator also runs the coroutine: a test gets
a `lab` and everything it opened there is closed when it ends. An id that is not in the tables is refused when
the test is imported; `test_table.py` checks the other direction, that no statement is forgotten.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TEST_S_MAX = 120.0

both = pytest.mark.parametrize("version", [5, 4], ids=["v5", "v311"])


def read_table(name: str) -> list[list[str]]:
    """The rows of a tab-separated file, without its header."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


STATEMENTS = {
    "v5": {row[0] for row in read_table("statements_v5.tsv")},
    "v311": {row[0] for row in read_table("statements_v311.tsv")},
}

Test = Callable[..., Any]


def covers(*ids: str) -> Callable[[Test], Test]:
    """This test shows these statements of MQTT 5."""
    return _cover("v5", ids)


def covers311(*ids: str) -> Callable[[Test], Test]:
    """This test shows these statements of MQTT 3.1.1."""
    return _cover("v311", ids)


def _cover(standard: str, ids: tuple[str, ...]) -> Callable[[Test], Test]:
    unknown = [name for name in ids if name not in STATEMENTS[standard]]
    if unknown or not ids:
        raise ValueError(f"not a statement of {standard}: {unknown}")

    def mark(test: Test) -> Test:
        return _runner(test) if inspect.iscoroutinefunction(test) else test

    return mark


def _runner(test: Test) -> Test:
    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def whole() -> None:
            try:
                async with asyncio.timeout(TEST_S_MAX):
                    await test(**arguments)
            finally:
                await arguments["lab"].close()

        asyncio.run(whole())

    return run
