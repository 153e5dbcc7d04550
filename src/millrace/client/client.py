"""The asynchronous client: one logical connection to a broker that survives the real ones.

    async with Client("mqtt://127.0.0.1:1883") as client:
        await client.publish("a/b", b"hello")
        async with client.subscribe("a/#") as messages:
            async for message in messages:
                ...

All protocol is in `Protocol`; this class moves its bytes, keeps its time and answers the tasks that wait.
`_turn` is the heart: write what is due, hand out what came, stop or start reading; it runs once per loop
turn however many publishes were made in it, so they leave in one write.

When the connection is lost, `_keep_connected` tries the addresses in turn with growing pauses. Publishes
wait meanwhile and are sent again; subscriptions are made again if the server lost them. A refusal that
trying again cannot change (credentials, a session taken over) ends the client: every waiting task and
iterator raises it.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import random
import re
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import assert_never

from millrace.broker.meta.pairs import PAIRS_TOPIC
from millrace.client.connection.address import BrokerAddress, parse
from millrace.client.connection.connect import open_link
from millrace.client.connection.link import Link
from millrace.client.connection.tls import tls_context
from millrace.client.conversation.checks import check_message
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
from millrace.client.conversation.incoming import Message
from millrace.client.conversation.protocol import Options, Protocol, State
from millrace.client.epochs import Epochs, Standing
from millrace.client.errors import (
    CannotConnect,
    ClientError,
    Closed,
    ConnectionLost,
    Outdated,
    Refused,
    explain,
)
from millrace.client.subscription import Subscription
from millrace.errors import ConfigError, LocalError, MillraceError
from millrace.limits import CLIENT_WINDOW_MAX, KEEP_ALIVE_S_TOP, PACKET_ID_TOP, SESSION_EXPIRY_S_NEVER
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Properties, RetainHandling, Version, Will
from millrace.types import Message as PlainMessage
from millrace.types import Subscription as Filter

log = logging.getLogger("millrace.client")

DEFAULT_URL = "mqtt://127.0.0.1:1883"

# Publishes in the queue and in the window together; further callers wait for their turn in order.
_PUBLISHES_MAX = 2 * CLIENT_WINDOW_MAX
# The first pause before a reconnect; it doubles with every round over the addresses.
_PAUSE_S_MIN = 0.1
# A cluster without a majority may grant a connection this long after it was asked for.
_SHADOW_S = 60.0
_SHADOWS_MAX = 16
# The server gets this long to take our last bytes.
_GOODBYE_S = 1.0

# Refusals and goodbyes after which trying again, perhaps elsewhere, may help.
_PASSING = frozenset(
    {
        Reason.SUCCESS,
        Reason.UNSPECIFIED,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.SERVER_UNAVAILABLE,
        Reason.SERVER_BUSY,
        Reason.SERVER_SHUTTING_DOWN,
        Reason.KEEP_ALIVE_TIMEOUT,
        Reason.MESSAGE_RATE_TOO_HIGH,
        Reason.QUOTA_EXCEEDED,
        Reason.ADMINISTRATIVE_ACTION,
        Reason.USE_ANOTHER_SERVER,
        Reason.SERVER_MOVED,
        Reason.CONNECTION_RATE_EXCEEDED,
        Reason.MAXIMUM_CONNECT_TIME,
    }
)


class Client:
    """Use as an asynchronous context manager, once.

    `url` is one URL or a list of them: mqtt://, mqtts://, ws:// or wss://, with user:password@ where wanted;
    `username` and `password` go before what a URL says. With `session_expiry_s` the session outlives the
    connection: the server keeps subscriptions and messages for this `client_id`, and `clean_start` decides
    whether an older session goes on (by default it does).

    With `epochs` the client hears of which primary-backup shards a broker is primary, and refuses what one
    delivers or acknowledges under an epoch that is over: see `millrace.client.epochs`.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        client_id: str | None = None,
        username: str | None = None,
        password: str | bytes | None = None,
        version: Version = Version.MQTT_5,
        clean_start: bool | None = None,
        session_expiry_s: int = 0,
        keep_alive_s: int = 60,
        receive_maximum: int = 1_000,
        packet_bytes_max: int | None = None,
        will: Will | None = None,
        reconnect: bool = True,
        reconnect_pause_s_max: float = 10.0,
        connect_timeout_s: float = 10.0,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        insecure: bool = False,
        epochs: Epochs | None = None,
    ) -> None:
        _check_session(client_id, session_expiry_s, epochs)
        _require_range("keep_alive_s", keep_alive_s, 0, KEEP_ALIVE_S_TOP)
        _require_range("receive_maximum", receive_maximum, 1, PACKET_ID_TOP)
        if will is not None:
            check_message(will.message, version)
        self._addresses = [parse(one) for one in ([url] if isinstance(url, str) else url)]
        if not self._addresses:
            raise ConfigError("a client needs the URL of at least one broker")
        self._username = username
        self._password = password.encode() if isinstance(password, str) else password
        for name, secret in map(self._credentials, self._addresses):
            if secret is not None and name is None and version != Version.MQTT_5:
                raise ConfigError("a password without a user name needs MQTT 5")
        self._tls: ssl.SSLContext | None = None
        if any(address.tls for address in self._addresses):
            self._tls = tls_context(
                ca_file=ca_file, cert_file=cert_file, key_file=key_file, insecure=insecure
            )
        self.client_id = client_id or f"millrace-{secrets.token_hex(8)}"
        self._core = Protocol(
            Options(
                client_id=self.client_id,
                version=version,
                clean_start=session_expiry_s == 0 if clean_start is None else clean_start,
                session_expiry_s=session_expiry_s,
                keep_alive_s=keep_alive_s,
                receive_maximum=receive_maximum,
                packet_bytes_max=packet_bytes_max,
                will=will,
            )
        )
        self.durable = session_expiry_s > 0
        self._standing = None if epochs is None else Standing(epochs)
        self._reconnect = reconnect
        self._pause_s_max = reconnect_pause_s_max
        self._connect_timeout_s = connect_timeout_s
        self._prepare()

    def _prepare(self) -> None:
        """What changes while the client lives."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: Link | None = None
        self._address = self._addresses[0]
        self._accepted: asyncio.Future[None] | None = None
        self._lost = asyncio.Event()
        self._goodbye: Disconnected | None = None
        # When attempts were given up that the server may still grant.
        self._abandoned: deque[float] = deque(maxlen=_SHADOWS_MAX)
        self._link_error: Exception | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn_due = False
        # Why nothing can be done any more.
        self._final: MillraceError | None = None

        self._tickets = itertools.count(1)
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Published | Subscribed | Unsubscribed]] = {}
        # Where epochs count: the subscription to what brokers say, and the topics of publishes.
        self._words = 0
        self._topics: dict[int, str] = {}
        self._slots = asyncio.Semaphore(_PUBLISHES_MAX)
        self._subscriptions: dict[int, Subscription] = {}
        self._full: set[Subscription] = set()

    # ------------------------------------------------------------------------------- opening, closing

    async def __aenter__(self) -> "Client":
        if self._loop is not None:
            raise LocalError("a client is opened once; make another one")
        self._loop = asyncio.get_running_loop()
        await self._connect_somewhere(self._addresses)
        self._keeper = asyncio.create_task(self._keep_connected(), name="millrace-client")
        if self._standing is not None:
            try:
                await self._hear_words()
            except BaseException:
                await self.close()
                raise
        return self

    async def _hear_words(self) -> None:
        """Before anything else is subscribed to or published: what the broker says of itself comes first."""
        ticket, self._words = next(self._tickets), self._next_number()
        try:
            answer = self._expect(ticket)
            self._core.subscribe(ticket, self._words, (Filter(filter=PAIRS_TOPIC, qos=0),))
            self._wake()
            async with asyncio.timeout(self._connect_timeout_s):
                event = await answer
        except TimeoutError:
            raise CannotConnect(f"{self._address} does not answer a subscription") from None
        finally:
            self._answered(ticket)
        assert isinstance(event, Subscribed)
        if any(reason >= Reason.UNSPECIFIED for reason in event.reasons):
            log.info("%s: %s cannot be read, epochs are not compared", self._address, PAIRS_TOPIC)

    def is_behind(self, topic: str) -> bool:
        """Whether the broker acts for this topic as primary of an epoch that is over; needs `epochs`."""
        return self._standing is not None and self._standing.is_behind(topic)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Say goodbye and let go of everything. What waits for an answer raises `Closed`."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        self._lost.clear()
        link = self._link
        if link is not None:
            self._core.disconnect()
            self._turn()
            link.finish()
            try:
                async with asyncio.timeout(_GOODBYE_S):
                    await self._lost.wait()
            except TimeoutError:
                link.abort()
        self._end(Closed("the client is closed"))

    @property
    def connected(self) -> bool:
        """Whether there is a connection just now."""
        return self._core.state is State.CONNECTED

    @property
    def address(self) -> str:
        """The broker in use, or tried last."""
        return str(self._address)

    # ------------------------------------------------------------------------------------- publishing

    async def publish(
        self,
        topic: str,
        payload: bytes | bytearray | memoryview | str = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> Reason:
        """Publish and wait for the acknowledgement; at QoS 0 until the message is on its way.

        Any number of tasks may publish at once: messages leave in the order of the calls, as many
        unacknowledged as the server allows. Raises `Refused` with the reason code of the server, `Outdated`
        where its epoch is over. A call that is cancelled takes its message back unless it was sent already.
        """
        data = payload.encode() if isinstance(payload, str) else memoryview(payload).tobytes()
        message = PlainMessage(topic=topic, payload=data, qos=qos, retain=retain, properties=properties)
        async with self._slots:
            ticket = next(self._tickets)
            try:
                answer = self._expect(ticket)
                if self._standing is not None:
                    self._topics[ticket] = topic
                self._core.publish(ticket, message)
                self._wake()
                event = await answer
            except asyncio.CancelledError:
                self._core.withdraw(ticket)
                raise
            finally:
                self._answered(ticket)
                self._topics.pop(ticket, None)
        assert isinstance(event, Published)
        if event.reason >= Reason.UNSPECIFIED:
            raise Refused(f"the publish to {topic}", event.reason, event.detail)
        return event.reason

    # ---------------------------------------------------------------------------------- subscriptions

    def subscribe(
        self,
        *filters: str,
        qos: int = 1,
        group: str | None = None,
        manual_ack: bool = False,
        buffer_messages: int = 1_000,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: RetainHandling = RetainHandling.SEND,
    ) -> Subscription:
        """Messages that match any of the filters: `async with` it, then `async for`.

        `group` makes the subscription a shared one: each message goes to one of the clients that subscribe
        with the same group and filter. Where a group of that name was made by command, this joins it, and
        with `manual_ack` a message is done when it is acknowledged here. A client holds a filter once.
        """
        wanted = tuple(
            Filter(
                filter=text if group is None else f"$share/{group}/{text}",
                qos=qos,
                no_local=no_local,
                retain_as_published=retain_as_published,
                retain_handling=retain_handling,
            )
            for text in filters
        )
        if group is not None and "/" in group:
            raise LocalError("the name of a group has no /")
        return Subscription(self, wanted, manual_ack=manual_ack, buffer_messages=buffer_messages)

    def _next_number(self) -> int:
        return next(self._numbers)

    async def _open_subscription(self, subscription: Subscription, number: int) -> None:
        ticket = next(self._tickets)
        try:
            answer = self._expect(ticket)
            self._core.subscribe(ticket, number, subscription.filters)
            self._subscriptions[number] = subscription
            self._wake()
            event = await answer
        except MillraceError as error:
            subscription.end(error)
            raise
        except asyncio.CancelledError:
            self._forget(subscription, discard=False)
            self._core.unsubscribe(ticket, number)
            self._wake()
            raise
        finally:
            self._answered(ticket)
        assert isinstance(event, Subscribed)
        refusal = _refusal(subscription, event)
        if refusal is not None:
            self._forget(subscription, discard=True, error=refusal)
            raise refusal

    async def _leave(self, subscription: Subscription, *, unsubscribe: bool) -> None:
        number = subscription.number
        if number not in self._subscriptions:
            subscription.end(None)
            return
        # A group's messages that were not handed out are for its other members, once we are gone.
        shared = any(wanted.filter.startswith("$share/") for wanted in subscription.filters)
        self._forget(subscription, discard=unsubscribe and not shared)
        if not unsubscribe:
            self._core.leave(number)
            self._wake()
            return
        ticket = next(self._tickets)
        try:
            answer = self._expect(ticket)
            self._core.unsubscribe(ticket, number)
            self._wake()
            event = await answer
        finally:
            self._answered(ticket)
        assert isinstance(event, Unsubscribed)
        refused = [reason for reason in event.reasons if reason >= Reason.UNSPECIFIED]
        if refused:
            raise Refused(f"unsubscribing from {_names(subscription)}", refused[0], event.detail)

    def _forget(
        self, subscription: Subscription, *, discard: bool, error: MillraceError | None = None
    ) -> None:
        """The subscription gets no more messages; `discard`: nobody else shall have what it did not take."""
        if subscription.number is not None:
            self._subscriptions.pop(subscription.number, None)
        self._full.discard(subscription)
        buffered, held = subscription.end(error)
        for message in held:
            self._core.put_aside(message)
        for message in buffered:
            if discard:
                self._core.take(message)
            else:
                self._core.give_back(message)

    def _take(self, message: Message) -> None:
        if message.receipt is not None:
            self._core.take(message)
            self._wake()

    def _taken_from(self, subscription: Subscription) -> None:
        if subscription in self._full and subscription.is_half_empty:
            self._full.discard(subscription)
            self._wake()

    # ---------------------------------------------------------------------------------------- answers

    def _expect(self, ticket: int) -> "asyncio.Future[Published | Subscribed | Unsubscribed]":
        if self._final is not None:
            raise self._final
        if self._loop is None:
            raise LocalError("open the client first: async with Client(...) as client")
        answer = self._answers[ticket] = self._loop.create_future()
        return answer

    def _answered(self, ticket: int) -> None:
        self._answers.pop(ticket, None)
        if self._full:
            # Perhaps this was the last answer for which the socket was read.
            self._wake()

    # --------------------------------------------------------------------------------------- the turn

    def _wake(self) -> None:
        if not self._turn_due and self._loop is not None:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    @property
    def _stalled(self) -> bool:
        """The application does not take what is there, and waits for nothing else."""
        return bool(self._full) and not self._answers

    def _turn(self) -> None:
        """Hand out what came and write what is due, until there is neither."""
        self._turn_due = False
        assert self._loop is not None
        core, now_s = self._core, self._loop.time()
        while True:
            while (event := core.next_event(decode=not self._stalled)) is not None:
                self._on_event(event)
            if self._timer is None:
                due_s = core.tick(now_s, reading=not self._stalled)
                if due_s is not None:
                    self._timer = self._loop.call_at(due_s, self._tick)
            data = core.data_to_send(now_s)
            if data and self._link is not None:
                self._link.write(data)
            if not data and not core.has_events:
                break
        link = self._link
        if link is None:
            return
        if core.state is State.ENDED:
            if self._goodbye is not None:
                link.close()
                self._loop.call_later(_GOODBYE_S, link.abort)
        else:
            link.set_reading(not self._stalled)

    def _tick(self) -> None:
        self._timer = None
        self._turn()

    def _on_event(self, event: Event) -> None:
        match event:
            case Delivered():
                self._on_delivered(event)
            case Published():
                self._on_published(event)
            case Unsubscribed():
                self._answer(event.ticket, event)
            case Subscribed():
                if event.ticket is not None:
                    self._answer(event.ticket, event)
                else:
                    self._on_subscribed_again(event)
            case Connected():
                if self._accepted is not None and not self._accepted.done():
                    self._accepted.set_result(None)
            case ConnectRefused():
                if self._accepted is not None and not self._accepted.done():
                    subject = f"the connection to {self._address}"
                    self._accepted.set_exception(Refused(subject, event.reason, event.detail))
            case Disconnected():
                self._goodbye = event
            case _:
                assert_never(event)

    def _answer(self, ticket: int, event: Published | Subscribed | Unsubscribed) -> None:
        answer = self._answers.get(ticket)
        if answer is not None and not answer.done():
            answer.set_result(event)

    def _on_published(self, event: Published) -> None:
        """Judged as it comes: the next packet may say that the broker is primary no more."""
        standing, topic = self._standing, self._topics.get(event.ticket)
        answer = self._answers.get(event.ticket)
        if standing is None or topic is None or answer is None or answer.done():
            self._answer(event.ticket, event)
        elif standing.is_behind(topic):
            standing.epochs.refused_publishes += 1
            answer.set_exception(
                Outdated(f"{self._address} acknowledged {topic} as primary of an epoch that is over")
            )
        else:
            answer.set_result(event)

    def _on_delivered(self, event: Delivered) -> None:
        standing = self._standing
        if standing is not None:
            message = event.message
            if self._words in event.numbers:
                standing.hear(message.payload)
            elif standing.is_behind(message.topic):
                # Answered, so that the broker need not keep it, and handed to nobody.
                standing.epochs.refused_messages += 1
                for _ in event.numbers:
                    self._core.take(message)
                return
        for number in event.numbers:
            subscription = self._subscriptions.get(number)
            if subscription is None:
                self._core.give_back(event.message)
                continue
            subscription.put(event.message)
            if subscription.is_full:
                self._full.add(subscription)

    def _on_subscribed_again(self, event: Subscribed) -> None:
        subscription = self._subscriptions.get(event.number)
        if subscription is not None:
            refusal = _refusal(subscription, event)
            if refusal is not None:
                self._forget(subscription, discard=True, error=refusal)

    # ------------------------------------------------------------------------------- called by the link

    def on_data(self, link: Link, data: bytes) -> None:
        if link is self._link:
            assert self._loop is not None
            self._core.receive_data(data, self._loop.time())
            self._turn()

    def on_writable(self, link: Link, writable: bool) -> None:
        if link is self._link:
            self._core.writable = writable
            if writable:
                self._wake()

    def on_lost(self, link: Link, error: Exception | None) -> None:
        if link is not self._link:
            return
        self._link_error = error
        self._drop_link()
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_exception(ConnectionError("the connection was closed before CONNACK"))
        self._lost.set()
        self._turn()

    # -------------------------------------------------------------------------------------- connecting

    def _credentials(self, address: BrokerAddress) -> tuple[str | None, bytes | None]:
        name = address.username if self._username is None else self._username
        if self._password is not None:
            return name, self._password
        return name, None if address.password is None else address.password.encode()

    async def _connect(self, address: BrokerAddress) -> None:
        """Open a link to one address and wait for CONNACK."""
        assert self._loop is not None
        self._address = address
        self._goodbye = None
        self._lost.clear()
        accepted = self._accepted = self._loop.create_future()
        is_asked = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                link = self._link = await open_link(address, self, self._tls)
                if link.gone:
                    raise ConnectionError("the connection was closed at once")
                self._core.connect(self._loop.time(), *self._credentials(address))
                self._turn()
                is_asked = True
                await accepted
        except TimeoutError:
            if self._core.state is State.CONNECTED:
                # Accepted in the very moment in which patience ended.
                return
            self._abandoned.append(self._loop.time())
            raise CannotConnect(
                f"cannot connect to {address}: no answer within {self._connect_timeout_s:g} s"
            ) from None
        except (OSError, UnicodeError) as error:
            if is_asked:
                # The node may have passed it on before it fell.
                self._abandoned.append(self._loop.time())
            # UnicodeError: a host name that cannot be one.
            if self._goodbye is not None:
                detail = explain(self._goodbye.reason, self._goodbye.detail)
            else:
                detail = _why(error)
            raise CannotConnect(f"cannot connect to {address}: {detail}") from error
        finally:
            self._accepted = None
            if accepted.done() and not accepted.cancelled():
                accepted.exception()
            if self._core.state is not State.CONNECTED:
                self._drop_link()
                # It may have been accepted and lost again before this task came to run.
                self._lost.set()

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._standing is not None:
            self._standing.lost()
        if self._core.state is not State.IDLE:
            self._core.connection_lost()

    async def _connect_somewhere(self, addresses: Sequence[BrokerAddress]) -> None:
        """One round over the addresses. Raises what the last one said, or at once what is final."""
        errors: list[ClientError] = []
        for address in addresses:
            try:
                await self._connect(address)
                return
            except Refused as error:
                if error.reason not in _PASSING:
                    raise
                errors.append(error)
            except CannotConnect as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        raise CannotConnect("; ".join(map(str, errors)))

    def _is_own_shadow(self, reason: Reason | None) -> bool:
        """Whether what took the session over may be an attempt of our own at another node that we gave up,
        or that broke, and that was granted late. Once for each: two clients of one name must not chase each
        other."""
        if reason is not Reason.SESSION_TAKEN_OVER:
            return False
        assert self._loop is not None
        # Older ones were never granted.
        while self._abandoned and self._loop.time() - self._abandoned[0] >= _SHADOW_S:
            self._abandoned.popleft()
        if not self._abandoned:
            return False
        self._abandoned.popleft()
        return True

    async def _keep_connected(self) -> None:
        """Runs while the client is open: after each loss connects again, or ends the client."""
        assert self._loop is not None
        rounds = 0
        while True:
            since_s = self._loop.time()
            await self._lost.wait()
            if self._loop.time() - since_s > self._pause_s_max:
                rounds = 0
            lost = self._loss()
            told = self._goodbye is not None and self._goodbye.by_server
            is_final = told and lost.reason not in _PASSING and not self._is_own_shadow(lost.reason)
            if not self._reconnect or is_final:
                self._end(lost)
                return
            log.warning("%s; connecting again", lost)
            while True:
                pause_s = min(_PAUSE_S_MIN * 2**rounds, self._pause_s_max)
                # Many clients lose a server at once and must not come back all together.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                rounds = min(rounds + 1, 16)
                at = self._addresses.index(self._address) + 1
                try:
                    await self._connect_somewhere(self._addresses[at:] + self._addresses[:at])
                    break
                except Refused as error:
                    if error.reason not in _PASSING:
                        self._end(error)
                        return
                    log.info("%s", error)
                except CannotConnect as error:
                    log.info("%s", error)
            log.info("connected to %s again", self._address)

    def _loss(self) -> ConnectionLost:
        """What ended the connection."""
        goodbye = self._goodbye
        subject = f"the connection to {self._address} was lost"
        if goodbye is not None:
            who = "the server said " if goodbye.by_server else ""
            return ConnectionLost(
                f"{subject}: {who}{explain(goodbye.reason, goodbye.detail)}", goodbye.reason
            )
        error = self._link_error
        return ConnectionLost(f"{subject}: {'it was closed' if error is None else _why(error)}")

    def _end(self, error: MillraceError) -> None:
        """Nothing works any more: tell everyone who waits. A clean close merely ends the iterators."""
        if self._final is not None:
            return
        self._final = error
        self._drop_link()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        for subscription in list(self._subscriptions.values()):
            self._subscriptions.pop(subscription.number or 0, None)
            subscription.end(None if isinstance(error, Closed) else error)
        self._full.clear()
        if not isinstance(error, Closed):
            log.warning("%s", error)


def _check_session(client_id: str | None, session_expiry_s: int, epochs: Epochs | None) -> None:
    """Raises ConfigError where a session is asked for that could not be kept."""
    if epochs is not None and session_expiry_s:
        # A session that goes on is not told what stands retained, so it could not judge a new broker.
        raise ConfigError("epochs are for clients without session_expiry_s")
    _require_range("session_expiry_s", session_expiry_s, 0, SESSION_EXPIRY_S_NEVER)
    if session_expiry_s and not client_id:
        raise ConfigError("session_expiry_s needs a client_id by which to find the session again")


def _require_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}; it must be from {low} to {high}")


def _why(error: Exception) -> str:
    """An operating system error in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    text = str(error)
    # Several addresses of one name are reported together.
    numbers = set(re.findall(r"\[Errno (\d+)\]", text))
    if len(numbers) == 1:
        return os.strerror(int(numbers.pop())).lower()
    return text or type(error).__name__


def _names(subscription: Subscription) -> str:
    return ", ".join(wanted.filter for wanted in subscription.filters)


def _refusal(subscription: Subscription, event: Subscribed) -> Refused | None:
    """The error for a subscription of which any filter was refused."""
    refused = [
        (wanted.filter, reason)
        for wanted, reason in zip(subscription.filters, event.reasons, strict=True)
        if reason >= Reason.UNSPECIFIED
    ]
    if not refused:
        return None
    names = ", ".join(name for name, _ in refused)
    return Refused(f"the subscription to {names}", refused[0][1], event.detail)
