"""The end of a turn: what arrived goes to its logs, each for itself."""

import asyncio
from contextlib import suppress

from millrace import Broker
from millrace.broker.streams.stream import StreamSpec
from millrace.node.shards.publishing import Publishing
from millrace.types import Message


def test_a_fault_in_one_log_strands_nothing_on_its_way_to_another() -> None:
    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with Broker() as broker:
            engine = broker.server.engine
            publishing: Publishing = engine.groups.publishing

            async def publish(name: str) -> None:
                await publishing.publish(Message(topic=name, payload=b"x", qos=1))

            for name in ("a", "b"):
                await engine.opening.put(StreamSpec(name=name, filters=(name,)), create=True)
            broken = engine.shards[engine.definitions.table.streams["a"].shards[0]]
            whole, broken.cut = broken.cut, lambda *_: 1 // 0  # type: ignore[method-assign]
            # In one turn, in this order.
            first, second = [asyncio.create_task(publish(name)) for name in ("a", "b")]
            try:
                async with asyncio.timeout(5):
                    await second
            finally:
                broken.cut = whole  # type: ignore[method-assign]
                first.cancel()
            with suppress(asyncio.CancelledError):
                await first

    asyncio.run(scene())
