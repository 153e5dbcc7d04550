"""Dialing another node: an attempt that the network swallows is given up and made again."""

import asyncio
from random import Random
from typing import Any

import pytest

from millrace.node.config import Address
from millrace.node.peers import links
from millrace.node.peers.links import Links
from millrace.node.peers.messages import Identity, Refused
from millrace.node.peers.registry import encode
from waiting import until_async


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


class Node:
    """One node's links, on loopback."""

    def __init__(self, replica: str) -> None:
        self.replica = replica
        self.opened: list[str] = []
        self.heard: list[tuple[str, int]] = []
        self.links = Links(
            replica=replica,
            identity=lambda: Identity(replica, replica, "", ""),
            secret=b"of this test",
            random=Random(1),
            on_frame=lambda sender, tag, number, body: self.heard.append((sender, number)),
            on_open=self.opened.append,
            on_close=lambda other: None,
            may_accept=lambda identity: True,
        )

    async def listen(self) -> Address:
        await self.links.listen(Address("127.0.0.1", 0))
        return Address("127.0.0.1", self.links.port)


NOBODY = Address("127.0.0.1", 1)


def test_a_node_that_moved_dials_those_who_know_only_its_old_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smaller id dials first, but at an address where nobody is any more [rule 32]."""
    monkeypatch.setattr(links, "_PATIENCE_S", 0.05)

    async def scene() -> None:
        stayed, moved = Node("a"), Node("b")
        await moved.listen()
        moved.links.want({"a": await stayed.listen()})
        stayed.links.want({"b": NOBODY})
        await until_async(
            lambda: stayed.links.is_linked("b") and moved.links.is_linked("a"), "the two to be linked"
        )
        await stayed.links.stop()
        await moved.links.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("seed", range(5))
def test_two_that_dial_each_other_at_once_keep_one_and_the_same_connection(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_PATIENCE_S", 0.0)

    async def scene() -> None:
        nodes = [Node("a"), Node("b")]
        addresses = [await node.listen() for node in nodes]
        for node, other, address in zip(nodes, reversed(nodes), reversed(addresses), strict=True):
            node.links.want({other.replica: address})
        a, b = nodes
        await until_async(lambda: bool(a.opened and b.opened), "the two to be linked")
        for number in range(20):
            frame = encode(Refused("not now"), number)

            def is_heard(number: int = number, frame: bytes = bytes(frame)) -> bool:
                # Again and again: a link may lose what is sent while one connection gives way to the other.
                a.links.send("b", frame)
                b.links.send("a", frame)
                return ("b", number) in a.heard and ("a", number) in b.heard

            await until_async(is_heard, "both to hear each other")
        assert len(a.opened) <= 2 and len(b.opened) <= 2
        await a.links.stop()
        await b.links.stop()

    asyncio.run(scene())
