"""MQTT clients of a simulated cluster, and what they saw.

Each is the client's protocol core on a connection of the simulated network. A client connects to any node,
gives a connection up when nothing moves on it, and goes to another; its session, where it is durable, goes on
there. The `History` collects what the checks at the end need: what was acknowledged and who received what.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millrace.client.conversation.events import (
    Connected,
    ConnectRefused,
    Delivered,
    Disconnected,
    Event,
    Published,
    Subscribed,
    Unsubscribed,
)
from millrace.client.conversation.incoming import Message as ClientMessage
from millrace.client.conversation.protocol import Options, Protocol, State
from millrace.errors import LocalError
from millrace.lab.sim.cluster.host import MQTT_PORT
from millrace.lab.sim.surroundings.loop import SimLoop
from millrace.lab.sim.violation import Violation
from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version

_DIAL_S = 4.0
_SILENT_S_MAX = 8.0
_TURN_S = 0.25
_WINDOW = 20
_KEEP_ALIVE_S = 4
_SESSION_S = 100_000
_RECEIVE_MAXIMA = (1, 3, 20, 100)
# Of a slow subscriber, in each turn.
_SLOW_READS, _SLOW_LEAVES, _SLOW_RETURNS = 0.25, 0.08, 0.6


@dataclass(slots=True)
class Sent:
    """A message as its publisher knows it."""

    publisher: str
    number: int
    topic: str
    qos: int
    is_acknowledged: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class History:
    sent: dict[bytes, Sent] = field(default_factory=dict)
    received: dict[str, list[bytes]] = field(default_factory=dict)
    """By durable subscriber, in the order of arrival."""
    seen: set[bytes] = field(default_factory=set)
    """By any subscriber."""
    roots: set[str] = field(default_factory=set)
    """First levels of the topics that this is the history of; a wide filter takes others' too."""

    def acknowledged(self) -> list[bytes]:
        return [payload for payload, sent in self.sent.items() if sent.is_acknowledged]


class Client:
    """A client that keeps itself connected, somewhere."""

    def __init__(
        self,
        name: str,
        loop: SimLoop,
        *,
        rng: random.Random,
        nodes: list[str],
        history: History,
        note: Callable[[str, str], None],
        is_durable: bool,
        version: Version,
        is_wandering: bool,
    ) -> None:
        self.name = name
        self.loop = loop
        self._rng = rng
        self._nodes = nodes
        self._history = history
        self._note = note
        self._is_durable = is_durable
        options = Options(
            client_id=name,
            version=version,
            clean_start=not is_durable,
            session_expiry_s=_SESSION_S if is_durable else 0,
            keep_alive_s=_KEEP_ALIVE_S,
        )
        self.protocol = Protocol(options)
        self._address = ""
        self._transport: Any = None
        self._moved_s = 0.0
        self._has_session = False
        self.is_wandering = is_wandering
        """Leaves a connection for another node now and then."""
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        self.loop.create_task(self._keep_connected())
        self.loop.call_later(_TURN_S, self._turn)

    @property
    def is_connected(self) -> bool:
        return self.protocol.state is State.CONNECTED

    # ------------------------------------------------------------------------------------ connections

    async def _keep_connected(self) -> None:
        while True:
            if self._transport is None:
                address = self._address = self._next_node()
                try:
                    async with asyncio.timeout(_DIAL_S):
                        await self.loop.create_connection(lambda: _Wire(self), address, MQTT_PORT)
                except OSError as error:
                    self._note(self.name, f"cannot reach {address}: {type(error).__name__}")
            await asyncio.sleep(0.05 + self._rng.random() * 0.5)

    def _next_node(self) -> str:
        return self._rng.choice(self._nodes)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._moved_s = self.loop.time()
        # With less room than before, some of what it has not answered must wait to be sent again.
        window = self._rng.choice(_RECEIVE_MAXIMA)
        self.protocol.connect(self.loop.time(), receive_maximum=window)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._moved_s = self.loop.time()
        self.protocol.receive_data(data, self.loop.time())
        self._pump()

    def connection_lost(self) -> None:
        self._transport = None
        self.protocol.connection_lost()
        self._note(self.name, "is disconnected")

    def leave(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _turn(self) -> None:
        self.loop.call_later(_TURN_S, self._turn)
        now_s = self.loop.time()
        if self._transport is None:
            return
        self.protocol.tick(now_s)
        is_stuck = now_s - self._moved_s > _SILENT_S_MAX
        if is_stuck or (self.is_wandering and self._rng.random() < 0.01):
            self._note(self.name, "gives up its connection" if is_stuck else "leaves its node")
            self.leave()
            return
        self._work()
        self._pump()

    def _work(self) -> None:
        """What this client does besides answering."""

    def _pump(self) -> None:
        while (event := self.protocol.next_event()) is not None:
            self._on_event(event)
        self._flush()

    def _flush(self) -> None:
        if self._transport is not None:
            while data := self.protocol.data_to_send(self.loop.time()):
                self._transport.write(data)
        while self.protocol.has_events:
            event = self.protocol.next_event(decode=False)
            assert event is not None
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        match event:
            case Connected(connack=connack):
                self._note(
                    self.name, f"is connected, session {'found' if connack.session_present else 'new'}"
                )
                if self._is_durable and self._has_session and not connack.session_present:
                    raise Violation("session lost", f"{self.name} came back and its session was not there")
                self._has_session = True
                self._on_connected()
            case ConnectRefused() | Disconnected():
                self._note(self.name, f"{type(event).__name__}: {event.reason.name} {event.detail or ''}")
                is_silence = event.reason is Reason.KEEP_ALIVE_TIMEOUT
                if isinstance(event, Disconnected) and not event.by_server and not is_silence:
                    raise Violation("protocol", f"{self.name} was sent what it must not be: {event.detail}")
                self._flush_and_close()
            case Published():
                self._on_published(event)
            case Delivered():
                self._on_delivered(event)
            case Subscribed() | Unsubscribed():
                self._on_subscribed(event)

    def _flush_and_close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _on_connected(self) -> None:
        pass

    def _on_published(self, event: Published) -> None:
        raise AssertionError("nothing was published")

    def _on_delivered(self, event: Delivered) -> None:
        raise AssertionError("nothing was subscribed to")

    def _on_subscribed(self, event: Event) -> None:
        raise AssertionError("nothing was subscribed to")


class _Wire(asyncio.Protocol):
    def __init__(self, client: Client) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._client.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connection_lost()


class Publisher(Client):
    """Publishes numbered messages at one QoS to two topics in turn, with a durable session."""

    def __init__(self, name: str, loop: SimLoop, *, topic: str, qos: int, count: int, **more: Any) -> None:
        super().__init__(name, loop, is_durable=True, **more)
        self._topic = topic
        self._history.roots.add(topic)
        self._qos = qos
        self._left = count
        self._waiting: dict[int, bytes] = {}
        self._number = 0
        self.may_publish = False

    @property
    def is_done(self) -> bool:
        return not self._left and not self._waiting

    def describe(self) -> str:
        return f"{len(self._waiting)} unanswered, {self._left} to come, {self.protocol.state.value}"

    def _work(self) -> None:
        if not self.may_publish or self._rng.random() < 0.3:
            return
        for _ in range(min(self._left, _WINDOW - len(self._waiting), self._rng.randint(1, 4))):
            number = self._number
            self._number += 1
            self._left -= 1
            topic = f"{self._topic}/{self.name}/{number % 2}"
            payload = f"{self.name}:{number}".encode()
            self._waiting[number] = payload
            self._history.sent[payload] = Sent(self.name, number, topic, self._qos)
            self.protocol.publish(number, self._message(topic, payload))

    def _message(self, topic: str, payload: bytes) -> Message:
        return Message(topic=topic, payload=payload, qos=self._qos)

    def _on_published(self, event: Published) -> None:
        payload = self._waiting.pop(event.ticket)
        sent = self._history.sent[payload]
        if event.reason < Reason.UNSPECIFIED:
            sent.is_acknowledged = True
            self._note(self.name, f"{payload.decode()} is acknowledged")
        else:
            sent.is_refused = True
            self._note(self.name, f"{payload.decode()} is refused: {event.reason.name}")


class Subscriber(Client):
    """Subscribes once to one filter and takes everything that comes."""

    def __init__(
        self, name: str, loop: SimLoop, *, filter: str, qos: int, is_durable: bool, **more: Any
    ) -> None:
        super().__init__(name, loop, is_durable=is_durable, **more)
        self.filter = filter
        self.qos = qos
        # Reads now and then: what it was sent when its connection broke may be many messages, none of which
        # it has.
        self._is_slow = self._rng.random() < 0.5
        self._unread: list[bytes] = []
        self._held: list[ClientMessage] = []
        self.is_subscribed = False
        self._is_asked = False
        if is_durable:
            self._history.received[name] = []

    def data_received(self, data: bytes) -> None:
        if self._unread or (self._is_slow and self.is_wandering):
            self._moved_s = self.loop.time()
            self._unread.append(data)
        else:
            super().data_received(data)

    def _next_node(self) -> str:
        """A slow one mostly comes back to the node that it left."""
        is_back = self._is_slow and self._address and self._rng.random() < _SLOW_RETURNS
        return self._address if is_back else super()._next_node()

    def connection_lost(self) -> None:
        self._unread.clear()
        super().connection_lost()

    def _work(self) -> None:
        if self._is_slow and self.is_wandering:
            if self._rng.random() < _SLOW_LEAVES:
                self.leave()
                return
            if self._rng.random() > _SLOW_READS:
                return
        # Answered now, as far as it came on this connection. The others are told apart by packet id and DUP
        # when they come again: a message that comes under the id of another is lost.
        held, self._held = self._held, []
        for message in held:
            self.protocol.take(message)
        unread, self._unread = self._unread, []
        for data in unread:
            super().data_received(data)

    def _on_connected(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self.protocol.subscribe(0, 1, (Subscription(filter=self.filter, qos=self.qos),))

    def _on_subscribed(self, event: Event) -> None:
        if not isinstance(event, Subscribed) or any(r >= Reason.UNSPECIFIED for r in event.reasons):
            raise LocalError(f"{self.name} was not subscribed: {event}")
        self.is_subscribed = True

    def _on_delivered(self, event: Delivered) -> None:
        topic, payload = event.message.topic, bytes(event.message.payload)
        known = self._history.sent.get(payload)
        if topic.partition("/")[0] not in self._history.roots:
            self.protocol.take(event.message)
            return
        if known is None or known.topic != topic:
            raise Violation("invented", f"{self.name} received {payload!r} on {topic}")
        self._history.seen.add(payload)
        if self._is_durable:
            self._history.received[self.name].append(payload)
        self._note(self.name, f"received {payload.decode()}")
        if self._is_slow and self.is_wandering:
            self._held.append(event.message)
        else:
            self.protocol.take(event.message)
