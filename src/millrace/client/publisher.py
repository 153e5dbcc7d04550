"""A publisher with a steady beat and two brokers: what a failure may cost it is bounded by what it keeps.

It publishes on an interval and keeps its last N messages. A broker that does not answer in time, or goes, is
left for the other one, and there the last N are sent again, acknowledged before or not: the first broker may
have acknowledged what it could not pass on [rule 23]. Each message carries the producer's name and a
sequence, so what a broker has already is not stored again [rule 3]. While no broker answers, messages
go on being kept; one that is pushed out and was not acknowledged by any broker is given up, and counted.

A refusal is not a failure of the broker. A message that may not be published, or that is too large for the
broker, is given up at once. Other refusals may pass, or be of that broker only, and are answered by going to
the next one; but one of their reasons (0x83) also says that a sequence is too old to tell, which stays so
everywhere. So a message that is refused again and again is given up as well.

A broker that is cut off from its partner may go on as primary of an epoch that is over, and acknowledge. So
the publisher listens at the other brokers as well: as soon as one of them says a higher epoch, the one in use
is left, and the last N are sent again [rule 23]. What such a broker acknowledged before that and what
is no longer among the last N goes with it.
"""

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any

from millrace.broker.shards.producers import PRODUCER, SEQUENCE
from millrace.client.client import Client
from millrace.client.conversation.checks import check_message, check_options
from millrace.client.epochs import Epochs
from millrace.client.errors import ClientError, Outdated, Refused
from millrace.errors import LocalError
from millrace.limits import PUBLISHER_KEPT_MAX
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Message, Properties, Version

log = logging.getLogger("millrace.client")

_PAUSE_S = 0.1
# With the pause between two brokers some seconds: longer than it takes to choose a leader.
_REFUSALS_MAX = 30
# Refusals that another broker, or another time, would not change.
_ABOUT_THE_MESSAGE = frozenset(
    (
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_TOO_LARGE,
        Reason.PAYLOAD_FORMAT_INVALID,
        Reason.QOS_NOT_SUPPORTED,
    )
)
_WATCH_PAUSE_S_MAX = 1.0
# Of one connection only: those that merely listen have a name of their own and leave nothing behind.
_NOT_TO_WATCH = ("client_id", "will", "clean_start", "session_expiry_s")


class _Kept:
    """A message that may be sent again."""

    __slots__ = ("is_acknowledged", "is_given_up", "payload", "refusals", "sequence", "topic")

    def __init__(self, sequence: int, topic: str, payload: bytes) -> None:
        self.sequence = sequence
        self.topic = topic
        self.payload = payload
        self.is_acknowledged = False
        self.is_given_up = False
        self.refusals = 0


class Publisher:
    """An asynchronous context manager. `urls` are the brokers in order of preference, the primary first."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        interval_s: float = 0.1,
        keep_last: int = 5,
        timeout_s: float | None = None,
        producer: str | None = None,
        properties: Properties = NO_PROPERTIES,
        on_switch: Callable[[str], None] | None = None,
        epochs: Epochs | None = None,
        **options: Any,
    ) -> None:
        """`epochs` may be shared with other clients: what one of them hears, all know."""
        if interval_s <= 0 or not 1 <= keep_last <= PUBLISHER_KEPT_MAX:
            raise LocalError(
                f"a publisher has an interval above 0 and keeps 1 to {PUBLISHER_KEPT_MAX} messages"
            )
        if not urls:
            raise LocalError("a publisher needs the URL of at least one broker")
        # Made and let go: what is wrong with an address or an option is told now, not at the first failover.
        check_options(options, ("reconnect", "reconnect_pause_s_max", "connect_timeout_s"))
        Client(urls, **options)
        self._urls = list(urls)
        self._interval_s = interval_s
        self._timeout_s = timeout_s or max(1.0, 3 * interval_s)
        self.producer = producer or f"publisher-{secrets.token_hex(8)}"
        self._properties = properties
        self._on_switch = on_switch
        self._options = options
        self._epochs = epochs or Epochs()
        self._watching: list[asyncio.Task[None]] = []
        # Whatever goes on beside publishing: listening at others, saying goodbye.
        self._beside: set[asyncio.Task[None]] = set()
        self._connected_s = 0.0
        self._at = 0
        self._client: Client | None = None
        self._switching: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._kept: deque[_Kept] = deque(maxlen=keep_last)
        self._next = 1
        self.acknowledged = 0
        """Messages that some broker acknowledged."""
        self.given_up = 0
        """Messages that no broker acknowledged and that are not sent again: pushed out, or refused."""
        self.switches = 0
        self.refused = 0
        """Acknowledgements that did not count: their broker's epoch was over."""

    async def __aenter__(self) -> "Publisher":
        await self._connect(patience_s=self._timeout_s * len(self._urls))
        self._epochs.listen(self, self._compare)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._epochs.unlisten(self)
        for task in [*self._sending, *self._watching, *([self._switching] if self._switching else [])]:
            task.cancel()
        await asyncio.gather(*self._sending, *self._beside, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    @property
    def address(self) -> str:
        """The broker in use."""
        return self._urls[self._at]

    @property
    def unacknowledged(self) -> int:
        """Messages among the last N that no broker acknowledged yet."""
        return sum(not kept.is_acknowledged and not kept.is_given_up for kept in self._kept)

    async def run(self, topic: str, payloads: AsyncIterable[bytes]) -> None:
        """Publish these on the interval, whatever happens to the brokers, and wait for the last answers."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        async for payload in payloads:
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            due_s += self._interval_s
            self.publish(topic, payload)
        await self.settled()

    def publish(self, topic: str, payload: bytes) -> int:
        """Send one message now, or as soon as a broker is there; its sequence. LocalError says what is wrong
        with it."""
        kept = _Kept(self._next, topic, payload)
        keyed = self._keyed(kept.sequence)
        check_message(
            Message(topic=topic, payload=payload, qos=1, properties=keyed),
            self._options.get("version", Version.MQTT_5),
        )
        self._next += 1
        if len(self._kept) == self._kept.maxlen:
            self._give_up(self._kept[0])
        self._kept.append(kept)
        if self._client is not None and self._switching is None:
            self._start(self._client, kept)
        return kept.sequence

    async def settled(self) -> None:
        """Return when every message of the last N is acknowledged or given up."""
        while self._sending or self._switching is not None:
            tasks = {*self._sending, *([self._switching] if self._switching is not None else [])}
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    # ----------------------------------------------------------------------------------- sending

    def _start(self, client: Client, kept: _Kept) -> None:
        task = asyncio.get_running_loop().create_task(self._send(client, kept))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, client: Client, kept: _Kept) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await client.publish(kept.topic, kept.payload, qos=1, properties=self._keyed(kept.sequence))
        except Outdated as error:
            self.refused += 1
            self._leave(client, str(error))
            return
        except Refused as error:
            self._on_refused(client, kept, error)
            return
        except (ClientError, TimeoutError) as error:
            self._leave(client, str(error) or f"no answer within {self._timeout_s:g} s")
            return
        if not kept.is_acknowledged:
            kept.is_acknowledged = True
            self.acknowledged += 1
            if kept.is_given_up:
                # Pushed out while its answer was on the way.
                kept.is_given_up = False
                self.given_up -= 1

    def _on_refused(self, client: Client, kept: _Kept, error: Refused) -> None:
        """The broker is there, and does not take this one."""
        kept.refusals += 1
        if error.reason not in _ABOUT_THE_MESSAGE and kept.refusals <= _REFUSALS_MAX:
            self._leave(client, str(error))
            return
        log.warning("%s: %s", self.address, error)
        self._give_up(kept)

    def _give_up(self, kept: _Kept) -> None:
        if not kept.is_acknowledged and not kept.is_given_up:
            kept.is_given_up = True
            self.given_up += 1

    def _keyed(self, sequence: int) -> Properties:
        user = (*self._properties.user, (PRODUCER, self.producer), (SEQUENCE, str(sequence)))
        given = {name: getattr(self._properties, name) for name in self._properties.__slots__}
        return Properties(**{**given, "user": user})

    # ---------------------------------------------------------------------------------- switching

    def _leave(self, client: Client, why: str) -> None:
        """Go to the other broker, unless somebody noticed before."""
        if client is not self._client or self._switching is not None:
            return
        log.warning("%s: %s", self.address, why)
        self._switching = asyncio.get_running_loop().create_task(self._switch(client))

    async def _switch(self, client: Client) -> None:
        try:
            self._client = None
            # Aside: a broker that says nothing may take its time to say goodbye as well.
            self._aside(self._close(client))
            self._at = (self._at + 1) % len(self._urls)
            if asyncio.get_running_loop().time() - self._connected_s < _PAUSE_S:
                # Each of two brokers may be behind for a part of the topics: no wild going to and fro.
                await asyncio.sleep(_PAUSE_S)
            await self._connect(patience_s=None)
            self.switches += 1
        finally:
            self._switching = None

    @staticmethod
    async def _close(client: Client) -> None:
        with contextlib.suppress(ClientError, OSError):
            await client.close()

    def _aside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    def _compare(self) -> None:
        """A higher epoch was heard of: is the broker in use behind?"""
        client = self._client
        if client is not None and any(client.is_behind(kept.topic) for kept in self._kept):
            self._leave(client, "it is primary of an epoch that is over")

    def _is_of_use(self, client: Client) -> bool:
        """Whether the broker counts for any of what is kept: it may be behind for a part of the topics."""
        return not self._kept or not all(client.is_behind(kept.topic) for kept in self._kept)

    async def _watch(self, url: str) -> None:
        """Listen at a broker that is not in use for its word on epochs."""
        options = {name: value for name, value in self._options.items() if name not in _NOT_TO_WATCH}
        while True:
            with contextlib.suppress(ClientError):
                async with Client(
                    url,
                    reconnect_pause_s_max=_WATCH_PAUSE_S_MAX,
                    connect_timeout_s=self._timeout_s,
                    epochs=self._epochs,
                    **options,
                ):
                    await asyncio.get_running_loop().create_future()
            await asyncio.sleep(_WATCH_PAUSE_S_MAX)

    def _watch_others(self) -> None:
        for task in self._watching:
            task.cancel()
        others = [url for url in self._urls if url != self.address]
        self._watching = [self._aside(self._watch(url)) for url in others]

    async def _connect(self, patience_s: float | None) -> None:
        """Find a broker that answers, this one first, and send it the last N."""
        loop = asyncio.get_running_loop()
        end_s = None if patience_s is None else loop.time() + patience_s
        for tried in itertools.count(1):
            # Within the timeout: a broker that accepts and says nothing is as good as none.
            client = Client(
                self.address,
                reconnect=False,
                connect_timeout_s=self._timeout_s,
                epochs=None if self._options.get("session_expiry_s") else self._epochs,
                **self._options,
            )
            try:
                await client.__aenter__()
                if self._is_of_use(client):
                    break
                await client.close()
            except ClientError:
                # The pauses, or a slow machine, may use the time up before the last broker was asked.
                if end_s is not None and loop.time() > end_s and tried >= len(self._urls):
                    raise
            self._at = (self._at + 1) % len(self._urls)
            await asyncio.sleep(_PAUSE_S)
        self._client = client
        self._connected_s = loop.time()
        self._watch_others()
        if self._on_switch is not None:
            self._on_switch(self.address)
        for kept in self._kept:
            if not kept.is_given_up:
                self._start(client, kept)
