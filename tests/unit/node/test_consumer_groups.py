"""Operations of durable groups while nobody leads the log of their shard, and what a take gives."""

import asyncio
from collections.abc import Sequence
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.entries.consume import Create
from millrace.broker.groups.cursor import Settings
from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.machine import Broker
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.limits import DEFAULT_LIMITS, TAKEN_BYTES_MAX
from millrace.node.shards.shard import Shard
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block
from unit.node.lone_groups import LoneGroups

TURNS = 20
SPEC = DurableGroupSpec(name="g", filters=("t",))


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
        asked = [asyncio.create_task(shard.consumers.do(Create(n, 0, Settings()))) for n in (1, 2)]
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


async def payloads(node: LoneGroups, count: int = 1, lease_s: int = 0, request: str = "") -> list[bytes]:
    return [one.message.payload for one in await node.take("g", count, lease_s, request)]


def test_a_message_that_expires_after_it_was_found_ahead_is_not_given() -> None:
    """[rule 11]: expiry is judged at the delivery. The one behind comes in its place, at once."""

    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(SPEC)
        node.store(b"1", b"2", b"3", expiry_s=1)
        node.store(b"4")
        node.store(b"5", expiry_s=1)
        assert await payloads(node, 1) == [b"1"]
        node.wall_us += 60_000_000
        assert await payloads(node, 1) == [b"4"]
        assert await payloads(node, 1) == []

    asyncio.run(scene())


def test_a_message_that_expired_before_it_comes_again_is_not_given() -> None:
    """It was given back, and nobody asked for long. A request that names itself gets the next one too, and
    the same when it is repeated, though that has expired by then."""

    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(SPEC)
        node.store(b"1", expiry_s=1)
        node.store(b"2", expiry_s=100)
        (first,) = await node.take("g", 1, lease_s=10)
        assert await node.groups.settle("g", "nack", [first.receipt], 0) == [True]
        node.wall_us += 60_000_000
        assert await payloads(node, 1, request="r") == [b"2"]
        node.wall_us += 60_000_000
        assert await payloads(node, 1, request="r") == [b"2"]
        assert not node.cursors[1].items

    asyncio.run(scene())


def test_one_answer_is_bounded_in_bytes() -> None:
    """Also where the messages come again. Nothing is lost without a lease: the rest comes with the next."""

    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(SPEC)
        stored = [bytes([number]) * (TAKEN_BYTES_MAX // 3 - 100) for number in range(4)]
        node.store(*stored)
        assert await payloads(node, 1_000, lease_s=1) == stored[:3]
        assert await payloads(node, 1_000, lease_s=1) == stored[3:]
        node.wall_us += 60_000_000
        assert await payloads(node, 1_000) == stored[:3]
        assert await payloads(node, 1_000) == stored[3:]

    asyncio.run(scene())
