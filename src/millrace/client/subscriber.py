"""A subscriber that holds connections to two brokers at once and sees each message once.

Both brokers send what they have; which one a message came from is told beside it. A message that carries a
producer and a sequence (see `Publisher`, and idempotent publishing) is known by them, so the second copy is
dropped, also across a failover. They are remembered for each topic apart: order holds per topic only, and a
session that is behind is fed one log after the other, so what is old of the producer may still be new of its
topic. What is too old to tell came before if a broker has passed its place. `Producers` bounds how many pairs
of producer and topic are remembered; of one that was forgotten a late copy is handed out again. A message
without them cannot be told from its copy: it is taken from one broker at a time, the primary while it is
connected.

Of two brokers that both say they are primary the one with the lower epoch is refused: its messages are
acknowledged, counted and handed to nobody ([rule 23], `epochs`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from millrace.broker.shards.producers import PRODUCER, SEQUENCE, Producers, Verdict
from millrace.client.client import Client
from millrace.client.conversation.checks import check_options, check_subscription
from millrace.client.conversation.incoming import Message
from millrace.client.epochs import Epochs
from millrace.client.errors import ClientError
from millrace.errors import LocalError
from millrace.limits import PRODUCERS_MAX
from millrace.types import Subscription, Version

log = logging.getLogger("millrace.client")

_WAITING_MAX = 1_000
_PAUSE_S = 0.2
_PAUSE_S_MAX = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A message and where it came from: `primary` or `backup`."""

    message: Message
    source: str


class Subscriber:
    """An asynchronous context manager and iterator of `Sourced` messages."""

    def __init__(
        self,
        primary: str,
        backup: str,
        *filters: str,
        qos: int = 1,
        timeout_s: float = 1.0,
        epochs: Epochs | None = None,
        **options: Any,
    ) -> None:
        """`epochs` may be shared with other clients: what one of them hears, all know."""
        if not filters:
            raise LocalError("a subscriber needs at least one topic filter")
        for filter in filters:
            check_subscription(Subscription(filter=filter, qos=qos), options.get("version", Version.MQTT_5))
        # Made and let go: what is wrong with an address or an option is told now, not by silence later.
        check_options(options, ("reconnect_pause_s_max", "connect_timeout_s"))
        Client((primary, backup), **options)
        self._urls = {"primary": primary, "backup": backup}
        self._filters = filters
        self._qos = qos
        self._timeout_s = timeout_s
        self._options = options
        self._epochs = epochs or Epochs()
        self._clients: dict[str, Client] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[Sourced] = asyncio.Queue(_WAITING_MAX)
        self._seen = Producers()
        # Of a producer, topic and source: the first and the last sequence that came, in order from one to the
        # other. What came last is last.
        self._spans: dict[tuple[bytes, str], tuple[int, int]] = {}
        self._subscribed = {name: asyncio.Event() for name in self._urls}
        self.repeated = 0
        """Second copies that were dropped."""

    @property
    def refused(self) -> int:
        """Messages that a broker delivered under an epoch that is over."""
        return self._epochs.refused_messages

    async def __aenter__(self) -> "Subscriber":
        """Returns once one broker has the subscription; the other is tried for as long as it takes."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(name)) for name in self._urls]
        waits = [loop.create_task(event.wait()) for event in self._subscribed.values()]
        await asyncio.wait([*waits, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        # Give the other a moment: with both there, the primary counts.
        await asyncio.wait(waits, timeout=self._timeout_s)
        for wait in waits:
            wait.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[Sourced]:
        return self

    async def __anext__(self) -> Sourced:
        return await self._queue.get()

    async def get(self, timeout_s: float | None = None) -> Sourced:
        """The next message; TimeoutError when none comes in time."""
        async with asyncio.timeout(timeout_s):
            return await self._queue.get()

    def is_connected(self, source: str) -> bool:
        client = self._clients.get(source)
        return client is not None and client.connected

    # -------------------------------------------------------------------------------- two sources

    async def _follow(self, source: str) -> None:
        """One broker, for as long as the subscriber lives."""
        pause_s = _PAUSE_S
        while True:
            try:
                async with Client(
                    self._urls[source],
                    reconnect_pause_s_max=_PAUSE_S_MAX,
                    connect_timeout_s=self._timeout_s,
                    epochs=None if self._options.get("session_expiry_s") else self._epochs,
                    **self._options,
                ) as client:
                    self._clients[source] = client
                    async with client.subscribe(*self._filters, qos=self._qos) as messages:
                        pause_s = _PAUSE_S
                        self._subscribed[source].set()
                        async for message in messages:
                            await self._take(source, message)
            except ClientError as error:
                log.info("%s %s: %s", source, self._urls[source], error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _take(self, source: str, message: Message) -> None:
        key = _key_of(message)
        if key is None:
            if source != "primary" and self._is_served_by_primary(message.topic):
                self.repeated += 1
                return
        elif self._is_repeat(source, *key):
            self.repeated += 1
            return
        else:
            self._seen.store(*key)
        await self._queue.put(Sourced(message=message, source=source))

    def _is_repeat(self, source: str, producer: bytes, sequence: int) -> bool:
        """What is too old to tell by its sequence came before if one of the brokers has passed its place:
        each sends a topic in order. Otherwise this one is far behind the other, which began later."""
        verdict = self._seen.judge(producer, sequence)
        is_repeat = verdict is Verdict.REPEATED
        if verdict is Verdict.TOO_OLD:
            spans = (self._spans.get((producer, name)) for name in self._urls)
            is_repeat = any(span is not None and span[0] <= sequence <= span[1] for span in spans)
        first, last = self._spans.pop((producer, source), (sequence, sequence))
        if sequence < first:
            first = last = sequence
        self._spans[producer, source] = first, max(last, sequence)
        if len(self._spans) > 2 * PRODUCERS_MAX:
            del self._spans[next(iter(self._spans))]
        return is_repeat

    def _is_served_by_primary(self, topic: str) -> bool:
        return self.is_connected("primary") and not self._clients["primary"].is_behind(topic)


def _key_of(message: Message) -> tuple[bytes, int] | None:
    found = {name: value for name, value in message.properties.user if name in (PRODUCER, SEQUENCE)}
    if len(found) < 2 or not found[SEQUENCE].isascii() or not found[SEQUENCE].isdigit():
        return None
    # A string of MQTT has no U+0000, so no two pairs are one key.
    return f"{found[PRODUCER]}\0{message.topic}".encode(), int(found[SEQUENCE])
