"""Dialing another node: an attempt that the network swallows is given up and made again."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.node.cluster.cluster import Cluster
from millrace.node.config import Address
from millrace.node.peers import links
from millrace.node.peers.links import Links
from millrace.node.peers.messages import Identity, Refused, SignOfLife
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
            on_silence=lambda other: None,
            why_not=lambda identity: "",
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
        self.silent: list[str] = []
        self.links = Links(
            replica=replica,
            identity=lambda: Identity(replica, replica, "", ""),
            secret=b"of this test",
            random=Random(1),
            on_frame=lambda sender, tag, number, body: self.heard.append((sender, number)),
            on_open=self.opened.append,
            on_close=lambda other: None,
            on_silence=self.silent.append,
            why_not=lambda identity: "",
        )

    async def listen(self) -> Address:
        await self.links.listen(Address("127.0.0.1", 0))
        return Address("127.0.0.1", self.links.port)


NOBODY = Address("127.0.0.1", 1)


NOBODY = Address("127.0.0.1", 1)


def test_a_link_over_which_nothing_comes_is_told_once_and_again_after_a_word() -> None:
    """Groups that rest go by it, long before the link is cut."""

    async def scene() -> None:
        here, there = Node("a"), Node("b")
        await there.links.connect(await here.listen())
        await until_async(lambda: here.opened == ["b"] and there.opened == ["a"], "the link")
        assert here.links._timer is not None
        here.links._timer.cancel()
        link = here.links._links["b"]
        sign = encode(SignOfLife())

        def tick(count: int) -> None:
            for _ in range(count):
                link.tick(sign, is_replaceable=False)

        link._quiet_ticks = 0
        tick(3)
        assert not here.silent
        tick(3)
        assert here.silent == ["b"]
        there.links.send("a", sign)
        await until_async(lambda: link._quiet_ticks == 0, "a word")
        tick(4)
        assert here.silent == ["b", "b"] and here.links.is_linked("b")
        await here.links.stop()
        await there.links.stop()

    asyncio.run(scene())


def test_a_node_of_another_cluster_is_refused_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """The log names both clusters and the way out, also at a node that has only been dialed."""

    async def scene() -> None:
        here, there = Node("a"), Node("b")
        cluster: Any = SimpleNamespace(
            _replicas=SimpleNamespace(cluster_id="c1"), members=SimpleNamespace(cluster="c1")
        )
        there.links.identity = lambda: Identity("b", "n2", "c2", "")
        here.links._why_not = lambda identity: Cluster._why_not_linked(cluster, identity)
        link = await there.links.connect(await here.listen())
        await until_async(lambda: link.is_closed, "the link to be refused")
        assert not here.links.is_linked("b")
        assert Cluster._why_not_linked(cluster, Identity("b", "n2", "", "")) == "", "it has joined none yet"
        await here.links.stop()
        await there.links.stop()

    asyncio.run(scene())
    assert (
        "no link with node n2: it has data of cluster c2, and this node has data of cluster c1" in caplog.text
    )
    assert "remove its data directory, and start it with cluster.join" in caplog.text


def test_a_copied_data_directory_is_named_and_the_own_address_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        here, copy = Node("a"), Node("a")
        here.links.identity = lambda: Identity("a", "n1", "", "10.0.0.1:1884")
        address = await here.listen()
        for at, warned in (("10.0.0.1:1884", False), ("10.0.0.2:1884", True)):
            copy.links.identity = lambda at=at: Identity("a", "n1", "", at)  # type: ignore[misc]
            link = await copy.links.connect(address)
            await until_async(lambda link=link: link.is_closed, "the link to be refused")  # type: ignore[misc]
            assert ("copies of one data directory" in caplog.text) == warned
        await here.links.stop()
        await copy.links.stop()

    asyncio.run(scene())


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
