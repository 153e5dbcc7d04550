"""The reader that runs an edge function, on a disk without room."""

import asyncio
from dataclasses import replace
from typing import Any

from millrace.node.edge_streams import EDGE_CURSOR, EdgeStreams
from unit.node.lone_groups import LoneGroups

TURNS = 50


class Function:
    """Makes nothing of what it gets; with the first message the disk is full."""

    def __init__(self, node: LoneGroups) -> None:
        self._node = node
        self.got: list[bytes] = []

    async def run(self, edge: str, topic: str, payload: bytes) -> list[Any]:
        self.got.append(payload)
        self._node.streams.is_refusing = len(self.got) == 1
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
        edge = EdgeStreams(node.streams, node.groups, function)  # type: ignore[arg-type]
        node.streams.is_refusing = True
        edge.tick()
        await turns()
        assert EDGE_CURSOR not in node.cursors
        node.streams.is_refusing = False
        node.store(b"1")
        edge.tick()
        await turns()
        assert function.got == [b"1"]
        node.store(b"2")
        await turns()
        edge.tick()
        await turns()
        assert function.got == [b"1"]
        node.streams.is_refusing = False
        edge.tick()
        await turns()
        assert function.got == [b"1", b"2"]
        await edge.stop()

    asyncio.run(scene())
