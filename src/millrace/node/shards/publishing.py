"""Publishing for those who are not MQTT sessions: a message in, its place in the log out.

A message of a captured stream is answered once it is committed, like any other [rule 1]; one that no
log keeps is delivered from memory and has no offset. A key (producer, sequence) makes a repeat known.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from millrace.broker.machine import Broker
from millrace.broker.messages.inbound import Key, Outcome
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.topics.filters import is_valid
from millrace.errors import LocalError
from millrace.limits import UNCOMMITTED_BYTES_MAX
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Message
from millrace.wire.mqtt.codec import encode_properties, encode_publish

# Before the topic and the properties of a packet: its head and lengths.
_HEAD_BYTES_MAX = 16
_ANY_PACKET_ID = 1


class NotStored(LocalError):
    """The log did not take the message."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Where a message stands; shard and offset are None for a repeat and where no log keeps it."""

    shard: int | None
    offset: int | None
    is_repeat: bool = False


class Publishing:
    def __init__(self, broker: Broker, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._wake = wake

    def check(self, message: Message) -> None:
        """LocalError says what is wrong with the message."""
        limits, topic = self._broker.limits, message.topic
        if not is_valid(topic) or "+" in topic or "#" in topic or topic.startswith("$"):
            raise LocalError(f"{topic!r} is not a topic to publish to")
        if topic.count("/") >= limits.topic_levels_max or len(topic.encode()) > limits.topic_bytes_max:
            raise LocalError(f"the topic has more than {limits.topic_levels_max} levels or too many bytes")
        response = message.properties.response_topic
        if response is not None and (not is_valid(response) or "+" in response or "#" in response):
            # [MQTT-3.3.2-14]: once stored, nobody could read it.
            raise LocalError(f"{response!r} is not a topic to respond to")
        if len(message.payload) + len(topic.encode()) + _HEAD_BYTES_MAX > limits.packet_bytes_max:
            raise NotStored(Reason.PACKET_TOO_LARGE, f"more than {limits.packet_bytes_max} bytes")

    async def publish(
        self, message: Message, key: Key | None = None, username: str | None = None
    ) -> Published:
        """Store and deliver a message that was checked, of a user if of one. NotStored where the log does not
        take it."""
        broker = self._broker
        if broker.inbound.uncommitted_bytes > UNCOMMITTED_BYTES_MAX:
            raise NotStored(Reason.SERVER_BUSY, "too much is waiting for the disk; try again")
        now_ms = self._now_ms()
        run = make_run(message, now_ms)
        is_empty = not message.payload
        if message.retain and not is_empty and not broker.retained.has_room(message.topic, run, username):
            raise NotStored(Reason.QUOTA_EXCEEDED, "there is no room for another retained message")
        broker.stats.door("http").received[message.qos] += 1
        route = broker.router.route(message.topic)
        if route.intake is None:
            broker.inbound.enter(message.topic, run, now_ms)
            if message.retain:
                broker.retained.own(message.topic, username)
            self._wake()
            return Published(shard=None, offset=None)
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        arrival = Arrival(None, route, broker.router.generation, run, message.topic, b"")
        if key is not None:
            arrival.producer, arrival.sequence = key
            arrival.is_doubtful = True
        arrival.waiter = answer
        broker.inbound.enter(message.topic, run, now_ms, arrival)
        self._wake()
        offset = await answer
        if offset is None:
            raise _not_stored(arrival.reason or Reason.SERVER_BUSY)
        if message.retain:
            broker.retained.own(message.topic, username)
        if arrival.run is None:
            return Published(shard=None, offset=None, is_repeat=True)
        return Published(shard=run.shard or None, offset=offset if run.shard else None)

    @staticmethod
    def answer(outcomes: list[Outcome]) -> None:
        """Tell those who wait in `publish` what became of their messages."""
        for arrival, offset in outcomes:
            if not arrival.waiter.done():
                arrival.waiter.set_result(offset)


def _not_stored(reason: Reason) -> NotStored:
    details = {
        Reason.QUOTA_EXCEEDED: "the disk of the node is full; nothing is stored until there is room",
        Reason.IMPLEMENTATION_SPECIFIC: "the sequence is below what is remembered of this producer",
    }
    return NotStored(reason, details.get(reason, "the log accepts no messages right now; try again"))


def make_run(message: Message, now_ms: int) -> Run:
    """The message in the framing of runs: MQTT 5 where it has properties."""
    given = message.properties
    v5 = given != NO_PROPERTIES
    data = encode_publish(
        message.topic.encode(),
        message.payload,
        0x30 | message.qos << 1,
        _ANY_PACKET_ID if message.qos else 0,
        encode_properties(given) if v5 else b"",
    )
    expires_ms = None if given.message_expiry_s is None else now_ms + given.message_expiry_s * 1000
    return Run(data, 1, message.qos, v5, message.retain, expires_ms)
