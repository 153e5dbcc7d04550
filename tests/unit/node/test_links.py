"""Dialing another node: an attempt that the network swallows is given up and made again."""

import asyncio
from random import Random
from typing import Any

import pytest

from millrace.node.config import Address
from millrace.node.peers import links
from millrace.node.peers.links import Links
from millrace.node.peers.messages import Identity


class Silent:
    """In place of a loop: packets to the other node are dropped, and nobody says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.attempts = 0
        self.tried_again = asyncio.Event()

    def create_task(self, work: Any) -> "asyncio.Task[None]":
        return self._loop.create_task(work)

    async def create_connection(self, *arguments: Any) -> None:
        self.attempts += 1
        if self.attempts == 3:
            self.tried_again.set()
        await asyncio.Event().wait()


def test_an_attempt_that_nobody_answers_is_made_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system itself would repeat its packets at longer and longer intervals, for two minutes."""
    monkeypatch.setattr(links, "_CONNECT_S", 0.01, raising=False)
    lost: list[str] = []

    async def scene() -> None:
        made = Links(
            replica="a",
            identity=lambda: Identity("a", "a", "", ""),
            secret=b"of this test",
            random=Random(1),
            on_frame=lambda replica, tag, number, body: None,
            on_open=lambda replica: None,
            on_close=lost.append,
            may_accept=lambda identity: True,
        )
        silent: Any = Silent(asyncio.get_running_loop())
        made.loop = silent
        made.want({"b": Address("192.0.2.1", 1)})
        async with asyncio.timeout(30):
            await silent.tried_again.wait()
        await made.stop()

    asyncio.run(scene())
    assert lost == ["b", "b"], "each one is told as a lost link is"
