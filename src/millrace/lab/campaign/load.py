"""Clients that put load on a cluster and remember what they were told.

A publisher sends numbered messages at a steady pace, one topic per shard in turn, with a bounded window.
What was acknowledged is a promise; what was refused or never answered is open and may be in the log or not.
Three kinds: plain QoS 1 (may be stored again after a reconnect), QoS 2 in a durable session, and QoS 1 with
a key of its own (producer, sequence): the last two are stored exactly once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Protocol

from millrace.client import Client, ClientError, Refused
from millrace.lab.campaign.stage import PREFIX, Stage
from millrace.types import NO_PROPERTIES, Properties

KINDS = ("qos1", "qos2", "keyed")
EXACT = ("qos2", "keyed")
SUBSCRIBER = "subscriber"
SESSION_S = 3600
_WINDOW = 100
_BEHIND_S_MAX = 0.5
# Long enough for a busy machine, short enough that clients of a frozen node look elsewhere.
_KEEP_ALIVE_S = 5
_CONNECT_S = 3.0

OnAck = Callable[[int, float, float], None]
"""Position of the shard, when the message was handed to the client, when it was acknowledged."""


class AnyClient(Protocol):
    """What a load asks of a client, whoever wrote it (see `foreign.py`)."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *error: Any) -> None: ...

    def publish(
        self, topic: str, payload: bytes, *, qos: int, properties: Properties = NO_PROPERTIES
    ) -> Coroutine[Any, Any, Any]: ...


MakeClient = Callable[[str, list[str], str], Any]
"""A client by its kind, the nodes in the order in which it asks them, and its name. A kind is one of `KINDS`,
or `subscriber`."""


def own_client(kind: str, urls: list[str], name: str) -> Client:
    durable = kind in ("qos2", SUBSCRIBER)
    return Client(
        urls,
        client_id=name,
        session_expiry_s=SESSION_S if durable else 0,
        keep_alive_s=_KEEP_ALIVE_S,
        connect_timeout_s=_CONNECT_S,
        reconnect_pause_s_max=0.5,
    )


class Publisher:
    def __init__(self, name: str, kind: str, client: AnyClient, topics: list[str], on_ack: OnAck) -> None:
        self.name = name
        self.kind = kind
        self.topics = topics
        self.client = client
        self._on_ack = on_ack
        self.sent = [0] * len(topics)
        self.acknowledged: list[set[int]] = [set() for _ in topics]
        self.refused: Counter[str] = Counter()
        self.latencies_s: list[float] = []
        self._window = asyncio.Semaphore(_WINDOW)
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, size: int) -> None:
        """Until cancelled; what is under way then is left to `settle`."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        position = 0
        while True:
            # A pause is not made up for by a flood.
            due_s = max(due_s + 1 / rate, loop.time() - _BEHIND_S_MAX)
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await self._window.acquire()
            number = self.sent[position]
            self.sent[position] += 1
            task = asyncio.create_task(self._publish(position, number, size))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            position = (position + 1) % len(self.topics)

    async def _publish(self, position: int, number: int, size: int) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        properties = NO_PROPERTIES
        if self.kind == "keyed":
            # Each topic is its own producer: its numbers follow each other in one shard.
            producer = f"{self.name}/{position}"
            user = (("millrace-producer", producer), ("millrace-sequence", str(number)))
            properties = Properties(user=user)
        payload = str(number).encode().ljust(size, b" ")
        try:
            qos = 2 if self.kind == "qos2" else 1
            await self.client.publish(self.topics[position], payload, qos=qos, properties=properties)
        except Refused as error:
            self.refused[error.reason.name] += 1
        except ClientError as error:
            self.refused[type(error).__name__] += 1
        else:
            self.acknowledged[position].add(number)
            now_s = loop.time()
            self.latencies_s.append(now_s - began_s)
            self._on_ack(position, began_s, now_s)
        finally:
            self._window.release()

    async def settle(self, timeout_s: float) -> int:
        """Wait for the answers to what is under way; how many never came."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=timeout_s)
        open_ones = list(self._waiting)
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)
        return len(open_ones)


class Subscriber:
    """A durable session that takes everything, and remembers numbers by topic in the order of arrival."""

    def __init__(self, name: str, qos: int, client: Any) -> None:
        self.name = name
        self.qos = qos
        self.client = client
        self.received: dict[str, list[int]] = {}
        self.count = 0

    async def run(self, is_ready: asyncio.Event) -> None:
        async with self.client.subscribe(f"{PREFIX}/#", qos=self.qos) as messages:
            is_ready.set()
            async for message in messages:
                self.received.setdefault(message.topic, []).append(int(message.payload))
                self.count += 1


class Load:
    """All clients of a campaign: an asynchronous context manager that runs them."""

    def __init__(
        self,
        stage: Stage,
        *,
        rate: float,
        size: int,
        publishers: int,
        subscribers: int,
        name: str = "",
        urls: list[str] | None = None,
        make_client: MakeClient = own_client,
    ) -> None:
        """`name` tells the clients of one load from those of another; the judge looks at those without.
        `urls` are where nodes may be, if there may be others than now."""
        self._stage = stage
        self._rate = rate
        self._size = size
        urls = urls or [node.url for node in stage.nodes]
        turned = [urls[at:] + urls[:at] for at in range(len(urls))]
        self.publishers = [
            Publisher(
                f"{name}p{i}",
                KINDS[i % 3],
                make_client(KINDS[i % 3], turned[i % len(urls)], f"{name}p{i}"),
                stage.topics(f"{name}p{i}"),
                self._on_ack,
            )
            for i in range(publishers)
        ]
        # The first is at QoS 2: exactly once to the end.
        self.subscribers = [
            Subscriber(
                f"{name}s{i}",
                1 if i % 2 else 2,
                make_client(SUBSCRIBER, turned[-1 - i % len(urls)], f"{name}s{i}"),
            )
            for i in range(subscribers)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []
        self._clients = AsyncExitStack()
        self._since_s = float("inf")
        self._first: dict[int, float] = {}
        self.answers_missing = 0
        self._acked_s = 0.0
        self.longest_gap_s = 0.0
        """For so long nothing was acknowledged to anybody."""

    async def __aenter__(self) -> "Load":
        for client in (*(p.client for p in self.publishers), *(s.client for s in self.subscribers)):
            await self._clients.enter_async_context(client)
        ready = [asyncio.Event() for _ in self.subscribers]
        for subscriber, is_ready in zip(self.subscribers, ready, strict=True):
            self._tasks.append(asyncio.create_task(subscriber.run(is_ready)))
        for is_ready in ready:
            await is_ready.wait()
        each = self._rate / max(1, len(self.publishers))
        self._publishing = [asyncio.create_task(p.run(each, self._size)) for p in self.publishers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._publishing, *self._tasks):
            task.cancel()
        await asyncio.gather(*self._publishing, *self._tasks, return_exceptions=True)
        await self._clients.aclose()

    def _on_ack(self, position: int, began_s: float, acked_s: float) -> None:
        if self._acked_s:
            self.longest_gap_s = max(self.longest_gap_s, acked_s - self._acked_s)
        self._acked_s = acked_s
        if began_s >= self._since_s:
            self._first.setdefault(position, acked_s - self._since_s)

    def mark(self) -> None:
        """A fault happens now: note for every shard the first message sent after it that is acknowledged."""
        self._first = {}
        self._since_s = asyncio.get_running_loop().time()

    def recovered(self) -> dict[int, float]:
        """Position of the shard -> seconds from the mark to that acknowledgement, where there was one."""
        return dict(self._first)

    def crashed(self) -> list[str]:
        """Clients that gave up, which none should."""
        ended = [task for task in (*self._publishing, *self._tasks) if task.done() and not task.cancelled()]
        return [repr(task.exception()) for task in ended]

    async def finish(self, timeout_s: float = 30.0) -> None:
        """Stop publishing, wait for every answer, then for the subscribers to have what was acknowledged."""
        for task in self._publishing:
            task.cancel()
        await asyncio.gather(*self._publishing, return_exceptions=True)
        missing = await asyncio.gather(*(p.settle(timeout_s) for p in self.publishers))
        self.answers_missing = sum(missing)
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while asyncio.get_running_loop().time() < deadline_s:
            if all(self._has_all(subscriber) for subscriber in self.subscribers):
                return
            await asyncio.sleep(0.1)

    def _has_all(self, subscriber: Subscriber) -> bool:
        return all(
            acknowledged <= set(subscriber.received.get(topic, ()))
            for publisher in self.publishers
            for topic, acknowledged in zip(publisher.topics, publisher.acknowledged, strict=True)
        )

    @property
    def acknowledged_count(self) -> int:
        return sum(len(numbers) for p in self.publishers for numbers in p.acknowledged)
