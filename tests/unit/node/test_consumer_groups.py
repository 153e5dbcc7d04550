"""Operations of durable groups while nobody leads the log of their shard."""

import asyncio
from collections.abc import Sequence
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.stream import DEFAULT_SPEC, Stream
from millrace.limits import DEFAULT_LIMITS
from millrace.node.shard import Shard
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block

TURNS = 20


class Line:
    """In place of a replication group: keeps what is proposed until the test applies it."""

    def __init__(self) -> None:
        self.serving = asyncio.Event()
        self.entries: list[tuple[Block, Any]] = []

    @property
    def is_serving(self) -> bool:
        return self.serving.is_set()

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        assert self.is_serving, "proposed to nobody"
        self.entries += zip(blocks, tokens, strict=True)
        return True


async def turns() -> None:
    """Whatever can go on without time passing."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_what_is_asked_for_during_an_election_waits_for_its_end() -> None:
    """Also with a planned change of leader: a refused acknowledgement makes the message come again. The time
    in the entry is that of its proposal, so that a lease does not run while nobody leads."""
    wall_us = 1_000

    async def scene() -> None:
        nonlocal wall_us
        broker, line = Broker(DEFAULT_LIMITS, AccessRules(())), Line()
        stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
        shard = Shard(16, stream, broker, now_ms=lambda: 0, wall_us=lambda: wall_us, wake=lambda: None)
        shard.group = line  # type: ignore[assignment]
        asked = [asyncio.create_task(shard.consumers.do(["create", n, 0, [0, 10]])) for n in (1, 2)]
        await turns()
        assert not line.entries and not any(task.done() for task in asked)
        wall_us = 9_000
        line.serving.set()
        await turns()
        ((block, token),) = line.entries
        shard.apply(block, token)
        assert await asyncio.gather(*asked) == [True, True]
        assert [cursor.used_us for cursor in shard.consumers.state.cursors.values()] == [9_000, 9_000]

    asyncio.run(scene())
