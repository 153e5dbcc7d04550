"""Waiting for what a node applies: by the moment in which it changes, not by looking again and again."""

import asyncio
from typing import Any

import pytest

from millrace import Broker
from millrace.broker.access import AccessRules
from millrace.broker.freezing import finished
from millrace.broker.meta.state import MetaState
from millrace.broker.shards.staging import AttemptKey, BlockKey
from millrace.kernels.blocks import Run
from millrace.node.replicas.moment import Moment
from millrace.node.streams.definitions import Definitions
from millrace.storage.block import Block, Codec, keyed_block

ANYBODY = AccessRules().principal(None, "c")
PACKET = b"\x32\x06\0\1t\0\1x"


async def waits(task: "asyncio.Task[Any]") -> bool:
    """Whether it still does after everything that is due has had its turn."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


def test_a_moment_wakes_all_who_wait_and_nobody_who_comes_later() -> None:
    async def scene() -> None:
        moment = Moment()
        moment.come()
        early = [asyncio.create_task(moment.next()) for _ in range(3)]
        assert await waits(early[0])
        moment.come()
        late = asyncio.create_task(moment.next())
        await asyncio.gather(*early)
        assert await waits(late)
        moment.come()
        await late

    asyncio.run(scene())


@pytest.mark.parametrize("what", ["snapshot", "lead"])
def test_a_snapshot_and_a_new_leader_are_changes_of_the_definitions(what: str) -> None:
    """A node that joins may get the cluster's members by a snapshot, with no entry behind it."""

    async def scene() -> None:
        replicas: Any = None
        definitions = Definitions(replicas)
        waiting = asyncio.create_task(definitions.next_change())
        assert await waits(waiting)
        if what == "snapshot":
            finished(definitions._app.load(MetaState().to_bytes(), ()))
        else:
            definitions._app.begin_term()
        await waiting

    asyncio.run(scene())


def staged(number: int) -> tuple[BlockKey, Block]:
    """A block of the only attempt."""
    key = BlockKey(AttemptKey("w", 1, "a"), number)
    return key, keyed_block([Run(packets=PACKET, version=4)], key.encode(), Codec.NONE)


def test_a_commit_that_is_ahead_of_what_is_staged_here_goes_on_once_that_is_applied() -> None:
    """Two blocks, of which the second comes late."""

    async def scene() -> None:
        async with asyncio.timeout(30), Broker() as broker:
            engine = broker.server.engine
            number, shard = next(iter(engine.shards.items()))
            await shard.staging.stage([staged(0)], "")
            task = asyncio.create_task(engine.writing.commit("w", 1, {"a": {number: 2}}, "", ANYBODY))
            assert await waits(task)
            await shard.staging.stage([staged(1)], "")
            assert await task == (False, True)
            assert shard.next_offset == 2

    asyncio.run(scene())


def test_a_commit_goes_on_once_the_log_in_which_it_is_staged_is_opened_here() -> None:
    async def scene() -> None:
        async with asyncio.timeout(30), Broker() as broker:
            engine = broker.server.engine
            number, shard = next(iter(engine.shards.items()))
            await shard.staging.stage([staged(0)], "")
            del engine.shards[number]
            task = asyncio.create_task(engine.writing.commit("w", 1, {"a": {number: 1}}, "", ANYBODY))
            assert await waits(task)
            engine.shards[number] = shard
            engine.opening.on_staged()
            assert await task == (False, True)

    asyncio.run(scene())
