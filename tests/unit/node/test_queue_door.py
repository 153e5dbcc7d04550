"""`PUT /message` while the stream of its topic changes."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.entries.meta import PutStream
from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.streams.stream import Capture, StreamSpec
from millrace.errors import LocalError
from millrace.node.doors.http.queue import MessageForm, put_message
from unit.node.lone_groups import LoneGroups


def test_a_message_whose_topic_loses_its_log_on_the_way_is_not_reported_as_stored() -> None:
    """It went out from memory: whoever put it must know that it is on no disk."""

    async def scene() -> None:
        node = LoneGroups()
        await node.groups.create(DurableGroupSpec(name="queue:t", filters=("t",)))

        def lose_the_log() -> None:
            spec = StreamSpec(name="fast", filters=("t",), capture=Capture.NONE)
            node.meta.apply(PutStream(spec, create_only=True))
            node.definitions.table = node.meta.table

        node.on_wake = lose_the_log
        server = SimpleNamespace(engine=SimpleNamespace(groups=node.groups), wall_us=lambda: node.wall_us)
        request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(server=server)))
        caller: Any = SimpleNamespace(must_publish=lambda topic: None, must_be_slow=lambda *_: None)
        with pytest.raises(LocalError, match="stored nowhere"):
            await put_message(request, MessageForm(topic="t", message="m"), caller)

    asyncio.run(scene())
