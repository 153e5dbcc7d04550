"""A pytest fixture: `def test_it(millrace_broker): ... millrace_broker.port`.

The broker runs on an event loop in a thread of its own, so that tests may use any client, blocking or not.
"""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.embedded import Broker


class ThreadedBroker:
    """An embedded broker on its own thread. Use as a context manager."""

    def __init__(self, **overrides: Any) -> None:
        self._broker = Broker(**overrides)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="millrace", daemon=True)

    def __enter__(self) -> "ThreadedBroker":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._broker.__aenter__(), self._loop).result(60)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._broker.__aexit__(None, None, None), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def host(self) -> str:
        return self._broker.host

    @property
    def port(self) -> int:
        return self._broker.port

    @property
    def url(self) -> str:
        return self._broker.url

    @property
    def ports(self) -> dict[str, int]:
        return self._broker.server.ports


@pytest.fixture
def millrace_broker() -> Iterator[ThreadedBroker]:
    """A broker of this test's own, on a free port of this machine."""
    with ThreadedBroker() as broker:
        yield broker
