"""The queue: topics that keep messages until somebody takes them, first in first out.

The durable group `queue` of a topic holds its messages; what comes by MQTT is there too. Every answer has
`success`; whether a topic exists or is empty is not an error, and where `success` is false a `reason` says
why. A caller who may not do what is asked raises `Denied`, a node that cannot do it now a `LocalError`.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millrace.broker.access import Role
from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.errors import LocalError
from millrace.node.access.caller import Caller, Denied, ServingNode
from millrace.node.admin.events import EventLog
from millrace.node.engine import Engine
from millrace.node.groups.consumer_groups import GroupExists, NoSuchGroup, Taken, queue_name
from millrace.types import Message

if TYPE_CHECKING:
    # What reads forms takes long to load: whoever has one has loaded it.
    from millrace.node.queue.forms import QueueRequest

_EXISTS = "exists"
_EMPTY = "empty"
_NO_TOPIC = "no such topic: make it with PUT /topic"
_STALE = "a receipt is not good any more: its lease ended and the message went to somebody else, or is done"

Answer = dict[str, Any]


class QueueNode(ServingNode, Protocol):
    engine: Engine
    events: EventLog


def no(reason: str) -> Answer:
    return {"success": False, "reason": reason}


EMPTY = no(_EMPTY)


class Queue:
    """The queues of a node, asked by one caller."""

    def __init__(self, node: QueueNode, caller: Caller) -> None:
        self._node = node
        self._caller = caller
        self._groups = node.engine.groups

    async def make(self, topic: str, deliveries_max: int = 0, dead_letter: str = "") -> Answer:
        """Make the queue of a topic; `success` is false if there is one."""
        self._caller.must_be(Role.OPERATOR)
        if "+" in topic or "#" in topic:
            raise Denied(400, f"{topic!r} is a filter, not a topic")
        spec = DurableGroupSpec(
            name=queue_name(topic),
            filters=(topic,),
            deliveries_max=deliveries_max,
            dead_letter=dead_letter or (f"dead-letter/{topic}" if deliveries_max else ""),
        )
        try:
            await self._groups.create(spec)
        except GroupExists:
            return no(_EXISTS)
        except LocalError:
            if spec.name in self._groups.by_name:
                return no(_EXISTS)
            raise
        return {"success": True}

    def topics(self) -> Answer:
        """The topics that have a queue."""
        groups = self._groups.by_name.values()
        topics = sorted(group.spec.filters[0] for group in groups if group.spec.is_queue)
        return {"success": True, "topics": [topic for topic in topics if self._may_see(topic)]}

    def _may_see(self, topic: str) -> bool:
        return self._caller.principal.may_receive(topic)

    async def remove(self, topic: str) -> Answer:
        """Remove the queue of a topic; its messages stay in the log for other readers."""
        self._caller.must_be(Role.OPERATOR)
        try:
            await self._groups.delete(queue_name(topic))
        except NoSuchGroup:
            return no(_NO_TOPIC)
        return {"success": True}

    async def put(self, topic: str, sizes: Sequence[int], make: Callable[[], list[Message]]) -> Answer:
        """Put messages in order, on disk. They have these sizes, and are made once the caller may put them.
        Where no log keeps the topic any more, nothing is put."""
        self._caller.must_publish(topic)
        queue = self._groups.by_name.get(queue_name(topic))
        if queue is None:
            return no(_NO_TOPIC)
        self._groups.check_stored(queue.spec)
        self._caller.must_be_slow(self._node, len(sizes), sum(sizes))
        messages = make()
        publishing = self._groups.publishing
        for message in messages:
            publishing.check(message)
        published = await asyncio.gather(*(publishing.publish(message) for message in messages))
        if any(one.offset is None for one in published):
            # The stream may have lost its log since it was asked for.
            self._groups.check_stored(queue.spec)
        return {"success": True}

    async def take(
        self, topic: str, *, count: int = 1, lease_us: int = 0, wait_ms: int = 0, request_id: str = ""
    ) -> list[Taken] | Answer:
        """The next messages, or why there is none. Without a lease they are done with the answer: one that
        gets lost is a lost message, unless the request has an id and is repeated."""
        caller = self._caller
        caller.must_subscribe(topic)
        try:
            taken = await self._groups.take(
                queue_name(topic),
                count=count,
                lease_us=lease_us,
                wait_ms=wait_ms,
                request=caller.key(request_id),
                check=lambda group: caller.now(self._node).must_subscribe(topic),
            )
        except NoSuchGroup:
            return no(_NO_TOPIC)
        self._node.broker.stats.read += len(taken)
        return taken or EMPTY

    async def settle(self, topic: str, how: str, receipts: list[str], *extra: int) -> Answer:
        """Say of leased messages that they are done, or given back, or go on; `results` tells each."""
        self._caller.must_subscribe(topic)
        try:
            results = await self._groups.settle(queue_name(topic), how, receipts, *extra)
        except NoSuchGroup:
            return {**no(_NO_TOPIC), "results": [False] * len(receipts)}
        if not all(results):
            return {**no(_STALE), "results": results}
        return {"success": True, "results": results}

    async def answer(
        self, form: "QueueRequest", make: Callable[[str, str], Message], request_id: str = ""
    ) -> Answer:
        """Any of the four requests in one form. `make` makes a message of a topic and a text."""
        topic, text = form.topic or "", form.message or ""
        match form.type, form.method:
            case "topic", "PUT":
                return await self.make(topic)
            case "topic", _:
                return self.topics()
            case _, "PUT":
                return await self.put(topic, [len(text)], lambda: [make(topic, text)])
            case _:
                taken = await self.take(topic, request_id=request_id)
                return shown(taken[0]) if isinstance(taken, list) else taken


def shown(taken: Taken, *, is_leased: bool = False) -> Answer:
    """The answer with one message."""
    return {"success": True, **one_of_many(taken, is_leased=is_leased)}


def one_of_many(taken: Taken, *, is_leased: bool) -> Answer:
    """A message among others in an answer."""
    row: Answer = readable("message", taken.message.payload)
    if is_leased:
        row |= {"receipt": taken.receipt, "deliveries": taken.delivery}
    return row


def readable(name: str, data: bytes) -> dict[str, str]:
    """A payload in JSON: text where it is UTF-8, otherwise base64."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), "encoding": "base64"}
