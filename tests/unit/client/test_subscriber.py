"""What a `Subscriber` takes for a second copy, and what it must not."""

import asyncio

import pytest

from millrace.client.conversation.incoming import Message
from millrace.client.subscriber import Subscriber
from millrace.errors import ConfigError, LocalError
from millrace.types import Properties

SHARDS = 4
COUNT = 800


def message(topic: str, sequence: int) -> Message:
    user = (("millrace-producer", "p"), ("millrace-sequence", str(sequence)))
    return Message(topic=topic, payload=b"%d" % sequence, qos=1, properties=Properties(user=user))


def one_log_after_the_other() -> list[Message]:
    """How a session that is behind is fed: each log to its end, so that the sequences have gaps."""
    return [
        message(f"t/{shard}", sequence) for shard in range(SHARDS) for sequence in range(shard, COUNT, SHARDS)
    ]


def taken(subscriber: Subscriber) -> list[bytes]:
    return [subscriber._queue.get_nowait().message.payload for _ in range(subscriber._queue.qsize())]


def test_a_session_that_is_behind_in_several_logs_loses_nothing() -> None:
    async def scenario() -> None:
        subscriber = Subscriber("mqtt://a", "mqtt://b", "t/#")
        for one in one_log_after_the_other():
            await subscriber._take("primary", one)
        assert sorted(map(int, taken(subscriber))) == list(range(COUNT))
        assert subscriber.repeated == 0

    asyncio.run(scenario())


def test_the_copies_of_the_other_broker_are_dropped_however_late_they_come() -> None:
    async def scenario() -> None:
        subscriber = Subscriber("mqtt://a", "mqtt://b", "t/#")
        for source in ("primary", "backup"):
            for one in one_log_after_the_other():
                await subscriber._take(source, one)
        assert len(taken(subscriber)) == COUNT
        assert subscriber.repeated == COUNT

    asyncio.run(scenario())


def test_what_can_never_work_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="begins with mqtt://"):
        Subscriber("mqtt://a", "nonsense://b", "t/#")
    with pytest.raises(LocalError, match="not valid"):
        Subscriber("mqtt://a", "mqtt://b", "t/#/x")
    for name in ("connect_timeout_s", "reconnect_pause_s_max"):
        with pytest.raises(LocalError, match=f"{name}.*timeout_s"):
            Subscriber("mqtt://a", "mqtt://b", "t/#", **{name: 5})


def test_what_only_a_broker_far_behind_has_is_handed_out() -> None:
    """The other one was subscribed later, and is far ahead. Every other sequence is of another topic."""
    late = [message("t/1", sequence) for sequence in range(401, 801, 2)]
    early = [message("t/1", sequence) for sequence in range(1, 801, 2)]

    async def scenario() -> None:
        subscriber = Subscriber("mqtt://a", "mqtt://b", "t/#")
        for source, messages in (("backup", late), ("primary", early), ("backup", late), ("primary", early)):
            for one in messages:
                await subscriber._take(source, one)
        assert sorted(map(int, taken(subscriber))) == list(range(1, 801, 2))
        assert subscriber.repeated == 200 + 200 + 400

    asyncio.run(scenario())
