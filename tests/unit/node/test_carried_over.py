"""What is retained follows its topic from stream to stream, also through the fall of a node."""

import asyncio
import shutil
from pathlib import Path

from millrace import Broker
from millrace.broker.streams.stream import Replication, StreamSpec
from millrace.types import Message
from waiting import until_async


def test_a_value_that_was_retained_outside_a_log_outlives_the_log_s_older_one(tmp_path: Path) -> None:
    """The topic was in the log of `default`, then in a stream that stores nothing, and came back."""

    def value(broker: Broker) -> bytes | None:
        run = broker.server.broker.retained.get("line/1")
        return None if run is None else run.data[-1:]

    async def publish(broker: Broker, payload: bytes) -> None:
        message = Message(topic="line/1", payload=payload, qos=1, retain=True)
        await broker.server.engine.groups.publishing.publish(message)

    async def scene() -> None:
        async with Broker(node__data=str(tmp_path / "node")) as broker:
            engine = broker.server.engine
            (log,) = engine.shards.values()
            await publish(broker, b"a")
            spec = StreamSpec(name="line", filters=("line/#",), replication=Replication.ROUTED)
            await engine.opening.put(spec, create=True)
            await until_async(lambda: engine.intakes.find("line/1") is None, "the topic to leave its log")
            await publish(broker, b"b")
            await engine.opening.delete("line")
            await until_async(
                lambda: log.state.retained.generation_of("line/1") == engine.definitions.state.generation,
                "the value to be in the log again",
            )
            assert value(broker) == b"b"
            # As the disk is if the node falls now.
            shutil.copytree(tmp_path / "node", tmp_path / "fallen")
        async with Broker(node__data=str(tmp_path / "fallen")) as broker:
            await until_async(lambda: value(broker) is not None, "the log to be applied")
            assert value(broker) == b"b"

    asyncio.run(scene())
