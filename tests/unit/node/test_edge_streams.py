"""The reader that runs an edge function: on a disk without room, and with one call that takes long."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.broker.entries.consume import Take
from millrace.broker.streams.stream import StreamSpec
from millrace.client import Client
from millrace.embedded import Broker
from millrace.node.edge.functions import EdgeFunctions, EdgeUnavailable
from millrace.node.edge.streams import EDGE_CURSOR, EdgeStreams
from unit.node.lone_groups import LoneGroups

TURNS = 50


class Function:
    """Makes nothing of what it gets; with the first message the disk is full."""

    def __init__(self, node: LoneGroups) -> None:
        self._node = node
        self.got: list[bytes] = []

    async def ready(self, edge: str) -> None:
        pass

    async def run(self, edge: str, topic: str, payload: bytes) -> list[Any]:
        self.got.append(payload)
        self._node.space.is_refusing = len(self.got) == 1
        return []

    async def stop(self) -> None:
        pass


async def turns() -> None:
    """Whatever can go on without time passing."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_nothing_is_taken_for_an_edge_function_while_the_disk_is_full() -> None:
    """Each take, and each start of the reader, would be an entry more in the log."""

    async def scene() -> None:
        node = LoneGroups()
        node.shard.stream = replace(node.shard.stream, edges={16: "module:function"})
        function = Function(node)
        edge = EdgeStreams(node.shards, node.reading, node.space, node.groups, function)  # type: ignore[arg-type]
        node.space.is_refusing = True
        edge.tick()
        await turns()
        assert EDGE_CURSOR not in node.cursors
        node.space.is_refusing = False
        node.store(b"1")
        edge.tick()
        await turns()
        assert function.got == [b"1"]
        node.store(b"2")
        await turns()
        edge.tick()
        await turns()
        assert function.got == [b"1"]
        node.space.is_refusing = False
        edge.tick()
        await turns()
        assert function.got == [b"1", b"2"]
        await edge.stop()

    asyncio.run(scene())


CORRECTED = StreamSpec.read({"name": "s", "filters": ["t"], "edge": "right:function"})


class Corrected(Function):
    """The first function of the stream does not load."""

    async def ready(self, edge: str) -> None:
        if edge == "wrong:function":
            raise EdgeUnavailable("wrong:function does not start")


async def hours(monkeypatch: pytest.MonkeyPatch, edge: EdgeStreams) -> None:
    """The reader tries again and again, and no time passes."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))
    for _ in range(20):
        edge.tick()
        await turns()
    monkeypatch.undo()


def test_a_function_that_cannot_be_loaded_costs_the_log_nothing_and_the_corrected_one_gets_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what was taken before for the wrong one. Its shard is sealed by then."""

    async def scene() -> None:
        node = LoneGroups()
        node.shard.stream = replace(node.shard.stream, edges={16: "wrong:function"})
        function = Corrected(node)
        node.store(b"1", b"2")
        edge = EdgeStreams(node.shards, node.reading, node.space, node.groups, function)  # type: ignore[arg-type]
        shard = node.shard
        await edge._cursor(shard)
        await shard.consumers.do(Take(EDGE_CURSOR, "", 1, 3_600_000_000))
        proposed = node.proposed
        await hours(monkeypatch, edge)
        assert node.proposed == proposed and not function.got
        node.shard.stream = replace(shard.stream, spec=CORRECTED)
        for _ in range(3):
            node.space.is_refusing = False
            await hours(monkeypatch, edge)
        assert function.got == [b"1", b"2"]
        await edge.stop()

    asyncio.run(scene())


class OneIsSlow:
    """Six results of each input, in turn on topics of two shards; one input takes longer than all others."""

    def __init__(self, topics: list[str], slow: str) -> None:
        self._topics = topics
        self._slow = slow
        self.go_on = asyncio.Event()

    def check(self, edge: str) -> None:
        pass

    async def ready(self, edge: str) -> None:
        pass

    async def run(self, edge: str, topic: str, payload: bytes) -> list[tuple[str, bytes]]:
        if topic == self._slow:
            await self.go_on.wait()
        return [(self._topics[n % 2], b"%s %d" % (topic.encode(), n)) for n in range(6)]

    async def stop(self) -> None:
        pass


def test_the_results_of_one_slow_call_among_many_are_not_taken_for_too_old() -> None:
    async def scene(broker: Broker, client: Client) -> None:
        engine = broker.server.engine
        await engine.opening.put(
            StreamSpec.read({"name": "made", "filters": ["made/#"], "shards": 2}), create=True
        )
        table = engine.definitions.table
        by_shard = {table.shard(table.streams["made"], b"made/%d" % n): f"made/{n}" for n in range(32)}
        function = OneIsSlow(sorted(by_shard.values()), "work/0")
        engine.edges.functions = function  # type: ignore[assignment]
        # The reader begins once all inputs are there: they are one batch.
        begin, engine.edges.tick = engine.edges.tick, lambda: None  # type: ignore[method-assign]
        spec = {"name": "work", "filters": ["work/#"], "edge": "module:function"}
        await engine.opening.put(StreamSpec.read(spec), create=True)
        async with client.subscribe("made/#", qos=1) as messages:
            calls = [client.publish(f"work/{n}", b"", qos=1) for n in range(32)]
            await asyncio.gather(*calls)
            begin()
            found = [(await messages.get(20.0)).payload for _ in range(31 * 6)]
            function.go_on.set()
            found += [(await messages.get(20.0)).payload for _ in range(6)]
        assert len(set(found)) == 32 * 6

    async def body() -> None:
        async with asyncio.timeout(60), Broker() as broker, Client(broker.url) as client:
            await scene(broker, client)

    asyncio.run(body())


def test_a_process_that_does_not_start_is_about_the_function_and_not_about_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that it failed on would be a dead letter, each of them."""
    (tmp_path / "ends_itself.py").write_text("import sys\nsys.exit(1)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    async def scene() -> None:
        functions = EdgeFunctions("ends_itself", 1, 5.0)
        with pytest.raises(EdgeUnavailable, match="ends_itself:function does not start"):
            await functions.run("ends_itself:function", "work/1", b"")
        await functions.stop()

    asyncio.run(scene())
