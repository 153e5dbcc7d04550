"""The client's side of MQTT without any input or output of its own.

The caller moves bytes and time: `receive_data` in, `data_to_send` out, `tick` when it says so. Everything
else that happens comes out of `next_event`, one packet at a time, so a caller that stops asking stops the
decoding and may stop reading its socket: nothing piles up here beyond one chunk.

A `Protocol` outlives its connections. `connect` begins one, `connection_lost` ends it; publishes that wait
for an answer, received ids and subscriptions carry over, and CONNACK decides whether they go on in the old
session or start again (MQTT 5, 4.4). Publishes are encoded by `data_to_send`, as far as the server's window
and the caller's `writable` allow.

Requests of the caller carry a ticket of its choice, which comes back in the event that answers it.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from millrace.client.conversation.checks import check_message, check_subscription
from millrace.client.conversation.events import (
    Connected,
    ConnectRefused,
    Delivered,
    Disconnected,
    Event,
    Subscribed,
    Unsubscribed,
)
from millrace.client.conversation.incoming import Incoming, Message, Receipt
from millrace.client.conversation.outgoing import Outgoing
from millrace.client.conversation.packet_ids import PacketIds
from millrace.client.conversation.routes import Route, Routes
from millrace.errors import LocalError, ProtocolError, RemoteError
from millrace.kernels.publish import body_start
from millrace.limits import PACKET_BYTES_TOP
from millrace.reasons import Reason
from millrace.types import Message as PlainMessage
from millrace.types import Subscription, Version, Will
from millrace.wire.mqtt.codec import decode, encode
from millrace.wire.mqtt.connection import Inbox, wanted_bytes
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

# What one call of `data_to_send` encodes of waiting publishes: large enough for one full write.
_SEND_BYTES_MAX = 64 * 1024
# SUBSCRIBE and UNSUBSCRIBE without an answer.
_REQUESTS_MAX = 1_000
# Messages that no subscription claims, where the version gives no receive maximum.
_UNCLAIMED_MAX = 10_000
# Silence after which to ping, and the wait for the answer, as a part of the keep alive. A server waits one
# and a half times the keep alive ([MQTT-3.1.2-22]); together these find a dead server in that time too.
_PING_PART = 0.75


class State(Enum):
    IDLE = "idle"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    # Said goodbye, or the server did: nothing more is read or sent on this connection.
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the client tells the server about itself; the same for every connection, but for the receive
    maximum, which `connect` may be given another one of."""

    client_id: str
    version: Version = Version.MQTT_5
    clean_start: bool = True
    session_expiry_s: int = 0
    keep_alive_s: int = 60
    receive_maximum: int = 1_000
    packet_bytes_max: int | None = None
    will: Will | None = None

    @property
    def durable(self) -> bool:
        """Whether the session outlives a connection."""
        return self.session_expiry_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A SUBSCRIBE or UNSUBSCRIBE that waits for its answer; without a ticket nobody else does."""

    ticket: int | None
    route: Route
    unsubscribe: bool = False
    # Told when the part of a subscription that was granted is taken back.
    verdict: Subscribed | None = None


class Protocol:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._version = options.version
        self._five = options.version == Version.MQTT_5
        self.state = State.IDLE
        # The caller's transport takes more bytes; publishes wait while it does not.
        self.writable = True
        self._events: deque[Event] = deque()
        self._out: list[bytes] = []
        self._chunks: deque[bytes] = deque()
        self._data = b""
        self._pos = 0
        self._inbox = Inbox()

        ids = self._ids = PacketIds()
        self._outgoing = Outgoing(ids, options.version)
        self._incoming = Incoming()
        self._routes = Routes()
        # QoS 1 and 2 that came for no subscription of now; the next one that matches gets them.
        self._unclaimed: deque[Message] = deque()
        self._requests: dict[int, _Request] = {}
        self._queued_requests: list[_Request] = []
        # Of the first connection the caller decides whether an old session goes on; later ones try to.
        self._clean_start = options.clean_start
        self._identifiers = self._five
        self._ping_after_s = 0.0
        self._sent_s = 0.0
        self._heard_s = 0.0
        self._ping_s: float | None = None
        # QoS 0 that came for nobody, and QoS 1 and 2 beyond what is kept for nobody.
        self.unclaimed_dropped = 0

    # -------------------------------------------------------------------------------- connections

    def connect(
        self,
        now_s: float,
        username: str | None = None,
        password: bytes | None = None,
        *,
        receive_maximum: int | None = None,
    ) -> None:
        """Begin on a fresh connection. `receive_maximum`: that of this connection, where it is not that of
        the options."""
        assert self.state is State.IDLE
        options = self._options
        receive_maximum = receive_maximum or options.receive_maximum
        self._incoming.receive_maximum = receive_maximum if self._five else None
        five = self._five
        self.state = State.CONNECTING
        self.writable = True
        self._heard_s = self._sent_s = now_s
        self._send(
            Connect(
                version=options.version,
                client_id=options.client_id,
                # 3.1.1 has one flag for both: start clean, and keep nothing.
                clean_start=self._clean_start if five else self._clean_start or not options.durable,
                keep_alive_s=options.keep_alive_s,
                username=username,
                password=password,
                will=options.will,
                session_expiry_s=options.session_expiry_s or None if five else None,
                receive_maximum=receive_maximum if five else None,
                packet_bytes_max=options.packet_bytes_max if five else None,
            )
        )

    def connection_lost(self) -> None:
        """The transport is gone. What it brought and was not decoded goes with it."""
        self.state = State.IDLE
        self._out.clear()
        self._chunks.clear()
        self._data, self._pos, self._inbox = b"", 0, Inbox()
        self._ping_s = None
        self._incoming.connection_lost()
        for packet_id, request in self._requests.items():
            self._ids.give_back(packet_id)
            self._queued_requests.append(request)
        self._requests.clear()
        if not self._options.durable:
            # The session ended with the connection, and with it what was to be unsubscribed.
            done = [request for request in self._queued_requests if request.unsubscribe]
            self._queued_requests = [request for request in self._queued_requests if not request.unsubscribe]
            for request in done:
                self._unsubscribed(request, (Reason.SUCCESS,), None)

    def disconnect(self, reason: Reason = Reason.SUCCESS, detail: str | None = None) -> None:
        """Say goodbye, after everything that is already due."""
        if self.state is State.CONNECTED:
            self._send(Disconnect(reason=reason, reason_string=detail))
        self.state = State.ENDED

    # --------------------------------------------------------------------------------- publishing

    def publish(self, ticket: int, message: PlainMessage) -> None:
        """Answered by `Published`. Raises LocalError for what could never be sent."""
        check_message(message, self._version)
        self._outgoing.add(ticket, message)

    def withdraw(self, ticket: int) -> None:
        """The caller gave up on a publish: one that was not sent yet will not be."""
        self._outgoing.withdraw(ticket)

    # ------------------------------------------------------------------------------ subscriptions

    def subscribe(self, ticket: int, number: int, subscriptions: tuple[Subscription, ...]) -> None:
        """Answered by `Subscribed`. Messages may come before that; `number` tells whose they are."""
        if not subscriptions:
            raise LocalError("a subscription needs a topic filter")
        if len(self._requests) + len(self._queued_requests) >= _REQUESTS_MAX:
            raise LocalError(f"more than {_REQUESTS_MAX} subscriptions wait for an answer")
        for subscription in subscriptions:
            check_subscription(subscription, self._version)
        route = Route(number, subscriptions)
        self._routes.add(route)
        self._request(_Request(ticket=ticket, route=route))
        self._claim_for(route)

    def unsubscribe(self, ticket: int, number: int) -> None:
        """Answered by `Unsubscribed`. No message comes for this number from now on."""
        route = self._routes.get(number)
        if route is None or route.leaving:
            self._events.append(Unsubscribed(ticket=ticket, reasons=()))
            return
        route.leaving = True
        self._queued_requests = [queued for queued in self._queued_requests if queued.route is not route]
        request = _Request(ticket=ticket, route=route, unsubscribe=True)
        if self.state is not State.CONNECTED and not self._options.durable:
            self._unsubscribed(request, (Reason.SUCCESS,), None)
        else:
            self._request(request)

    def leave(self, number: int) -> None:
        """Stop taking messages for this number, but let the subscription stand in the session."""
        route = self._routes.get(number)
        if route is not None:
            self._routes.remove(route)

    def _request(self, request: _Request) -> None:
        if self.state is not State.CONNECTED:
            self._queued_requests.append(request)
            return
        packet_id = self._ids.take()
        self._requests[packet_id] = request
        route = request.route
        if request.unsubscribe:
            filters = tuple(s.filter for s in route.subscriptions)
            self._send(Unsubscribe(packet_id=packet_id, filters=filters))
            return
        identifier = route.number if self._identifiers else None
        subscriptions = tuple(
            Subscription(
                filter=s.filter,
                qos=s.qos,
                no_local=s.no_local,
                retain_as_published=s.retain_as_published,
                retain_handling=s.retain_handling,
                identifier=identifier,
            )
            for s in route.subscriptions
        )
        self._send(Subscribe(packet_id=packet_id, subscriptions=subscriptions))

    def _unsubscribed(self, request: _Request, reasons: tuple[Reason, ...], detail: str | None) -> None:
        self._routes.remove(request.route)
        if request.verdict is not None:
            self._events.append(request.verdict)
        elif request.ticket is not None:
            self._events.append(Unsubscribed(ticket=request.ticket, reasons=reasons, detail=detail))

    # ------------------------------------------------------------------------------------ answers

    def take(self, message: Message) -> None:
        """A subscription has taken the message; QoS 1 and 2 are answered when all of them have."""
        receipt = message.receipt
        if receipt is not None:
            self._incoming.take(receipt)
            self._answer(receipt)

    def give_back(self, message: Message) -> None:
        """A subscription ends and leaves this message untaken, for another one or another connection."""
        if message.receipt is not None and self._incoming.give_back(message.receipt):
            self._keep_unclaimed(message)
        self._answer(None)

    def put_aside(self, message: Message) -> None:
        """The application has the message and may never take it: later answers do not wait for it."""
        if message.receipt is not None:
            self._incoming.put_aside(message.receipt)
            self._answer(None)

    def _answer(self, receipt: Receipt | None) -> None:
        if self.state is not State.CONNECTED:
            return
        if receipt is not None and receipt.aside:
            late = self._incoming.answer_late(receipt)
            if late is not None:
                self._send(late)
        for answer in self._incoming.answers():
            self._send(answer)

    def _claim_for(self, route: Route) -> None:
        unclaimed, self._unclaimed = self._unclaimed, deque()
        for message in unclaimed:
            if route.takes(message.topic.split("/")):
                assert message.receipt is not None
                self._incoming.claim(message.receipt, 1)
                self._events.append(Delivered(message=message, numbers=(route.number,)))
            else:
                self._unclaimed.append(message)

    def _keep_unclaimed(self, message: Message) -> None:
        assert message.receipt is not None
        if len(self._unclaimed) < _UNCLAIMED_MAX:
            self._unclaimed.append(message)
        else:
            self.unclaimed_dropped += 1
            self._incoming.forget(message.receipt)

    # ------------------------------------------------------------------------------ bytes and time

    def receive_data(self, data: bytes, now_s: float) -> None:
        """Bytes from the server; ask `next_event` what they mean."""
        if self.state is not State.ENDED:
            self._heard_s = now_s
            self._chunks.append(data)

    def data_to_send(self, now_s: float) -> bytes:
        """The next bytes for the server, b"" when there are none now. Call until it is empty."""
        if self.state is State.CONNECTED and self.writable:
            size_bytes = sum(map(len, self._out))
            while size_bytes < _SEND_BYTES_MAX:
                sent = self._outgoing.send_next()
                if sent is None:
                    break
                data, finished = sent
                if data:
                    self._out.append(data)
                    size_bytes += len(data)
                if finished is not None:
                    self._events.append(finished)
        if not self._out:
            return b""
        self._sent_s = now_s
        out, self._out = self._out, []
        return b"".join(out)

    def tick(self, now_s: float, *, reading: bool = True) -> float | None:
        """Ping or give up, as is due; returns when to call again. `reading`: the socket is being read."""
        if self.state is not State.CONNECTED or not self._ping_after_s:
            return None
        if self._ping_s is not None:
            if not reading:
                # The answer may lie in the socket.
                self._ping_s = now_s
            elif now_s >= self._ping_s + self._ping_after_s:
                self._break(Reason.KEEP_ALIVE_TIMEOUT, "the server does not answer a ping")
                return None
            return self._ping_s + self._ping_after_s
        # Traffic one way proves nothing about the other.
        due_s = min(self._sent_s, self._heard_s) + self._ping_after_s
        if now_s < due_s:
            return due_s
        self._ping_s = now_s
        self._send(Pingreq())
        return now_s + self._ping_after_s

    @property
    def has_events(self) -> bool:
        """Whether `next_event` has something even without decoding."""
        return bool(self._events)

    def next_event(self, *, decode: bool = True) -> Event | None:
        """What happened next, None for nothing more. Without `decode` received bytes are left alone."""
        while not self._events:
            if not decode or not self._decode_one():
                return None
        return self._events.popleft()

    def _decode_one(self) -> bool:
        """Handle the next whole packet; false if there is none."""
        if self.state not in (State.CONNECTING, State.CONNECTED):
            return False
        bytes_max = self._options.packet_bytes_max or PACKET_BYTES_TOP
        try:
            while True:
                data, pos = self._data, self._pos
                if pos < len(data):
                    if self.state is State.CONNECTING and data[pos] >> 4 != PacketType.CONNACK:
                        # At once: a server of another kind may never send what looks like a whole packet.
                        raise ProtocolError("the server does not answer with CONNACK; is it an MQTT broker?")
                    end = pos + wanted_bytes(data[pos : pos + 5], bytes_max)
                    if end <= len(data):
                        self._pos = end
                        self._on_bytes(data, pos, end)
                        return True
                    self._inbox.keep(data, pos, bytes_max)
                    self._data, self._pos = b"", 0
                if not self._chunks:
                    return False
                self._data, self._pos = self._inbox.join(self._chunks.popleft()), 0
        except RemoteError as error:
            self._break(error.reason, error.detail)
            return True

    def _break(self, reason: Reason, detail: str) -> None:
        """The server broke the protocol: tell it (MQTT 5, 4.13) and leave."""
        if self.state is State.CONNECTED and self._five:
            self._send(Disconnect(reason=reason, reason_string=detail))
        self.state = State.ENDED
        self._events.append(Disconnected(reason=reason, detail=detail, by_server=False))

    def _send(self, packet: Packet) -> None:
        self._out.append(encode(packet, self._version))

    # ----------------------------------------------------------------------------- received packets

    def _on_bytes(self, data: bytes, pos: int, end: int) -> None:
        packet = decode(data[pos], data[body_start(data, pos) : end], self._version)
        if self.state is State.CONNECTING:
            assert isinstance(packet, Connack)
            self._on_connack(packet)
        else:
            self._on_packet(packet)

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._on_publish(packet)
            case Puback():
                finished = self._outgoing.on_puback(packet.packet_id, packet.reason, packet.reason_string)
                if finished is not None:
                    self._events.append(finished)
            case Pubrec():
                release, finished = self._outgoing.on_pubrec(
                    packet.packet_id, packet.reason, packet.reason_string
                )
                if release is not None:
                    self._send(release)
                if finished is not None:
                    self._events.append(finished)
            case Pubcomp():
                finished = self._outgoing.on_pubcomp(packet.packet_id)
                if finished is not None:
                    self._events.append(finished)
            case Pubrel():
                known = self._incoming.on_pubrel(packet.packet_id)
                reason = Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND
                self._send(Pubcomp(packet_id=packet.packet_id, reason=reason))
            case Suback() | Unsuback():
                self._on_request_answer(packet)
            case Pingresp():
                self._ping_s = None
            case Disconnect():
                if not self._five:
                    raise ProtocolError("DISCONNECT from a server needs MQTT 5")
                self.state = State.ENDED
                self._events.append(
                    Disconnected(reason=packet.reason, detail=packet.reason_string, by_server=True)
                )
            case Connack():
                raise ProtocolError("a second CONNACK")  # [MQTT-3.2.0-2]
            case Auth():
                raise ProtocolError("AUTH without an authentication method")  # [MQTT-4.12.0-6]
            case Connect() | Subscribe() | Unsubscribe() | Pingreq():
                raise ProtocolError(f"{type(packet).__name__.upper()} is sent by clients only")
            case _:
                assert_never(packet)

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason is not Reason.SUCCESS:
            self.state = State.ENDED
            self._events.append(ConnectRefused(reason=packet.reason, detail=packet.reason_string))
            return
        self.state = State.CONNECTED
        self._identifiers = self._five and packet.subscription_ids_available is not False
        keep_alive_s = packet.server_keep_alive_s
        self._ping_after_s = (
            self._options.keep_alive_s if keep_alive_s is None else keep_alive_s
        ) * _PING_PART
        self._clean_start = not self._options.durable
        self._events.append(Connected(connack=packet))
        self._incoming.resume(packet.session_present)
        queued, self._queued_requests = self._queued_requests, []
        if not packet.session_present:
            self._unclaimed.clear()
            for route in self._routes:
                if route.granted and not route.leaving:
                    self._request(_Request(ticket=None, route=route))
        for request in queued:
            # Subscriptions made again by themselves are covered above.
            if request.unsubscribe or request.ticket is not None or packet.session_present:
                self._request(request)
        for item in self._outgoing.resume(packet):
            if isinstance(item, Pubrel):
                self._send(item)
            else:
                self._events.append(item)

    def _on_publish(self, packet: Publish) -> None:
        plain = packet.message
        if plain.properties.topic_alias is not None:
            # [MQTT-3.1.2-26]: this client allows none.
            raise ProtocolError("a topic alias that was not allowed", Reason.TOPIC_ALIAS_INVALID)
        receipt = None
        if plain.qos:
            receipt, answer = self._incoming.on_publish(packet)
            if answer is not None:
                self._send(answer)
            if receipt is None:
                self._answer(None)
                return
        message = Message(
            topic=plain.topic,
            payload=plain.payload,
            qos=plain.qos,
            retain=plain.retain,
            properties=plain.properties,
            receipt=receipt,
        )
        found = self._routes.find(message.topic, message.properties.subscription_ids)
        numbers = tuple(route.number for route in found if not route.leaving)
        if numbers:
            if receipt is not None:
                self._incoming.claim(receipt, len(numbers))
            self._events.append(Delivered(message=message, numbers=numbers))
        elif receipt is None:
            self.unclaimed_dropped += 1
        elif found and not any(route.shared for route in found):
            # Its last subscription is being ended, so nobody is to have it.
            self._incoming.claim(receipt, 1)
            self.take(message)
        else:
            self._keep_unclaimed(message)

    def _on_request_answer(self, packet: Suback | Unsuback) -> None:
        request = self._requests.pop(packet.packet_id, None)
        if request is None or request.unsubscribe != isinstance(packet, Unsuback):
            raise ProtocolError("an answer to a request that was not made")
        self._ids.give_back(packet.packet_id)
        route = request.route
        if isinstance(packet, Unsuback):
            self._unsubscribed(request, packet.reasons, packet.reason_string)
            return
        if len(packet.reasons) != len(route.subscriptions):
            raise ProtocolError("SUBACK with another number of reason codes than filters")
        granted = [reason < Reason.UNSPECIFIED for reason in packet.reasons]
        route.granted = all(granted)
        verdict = Subscribed(
            ticket=request.ticket,
            number=route.number,
            reasons=packet.reasons,
            detail=packet.reason_string,
        )
        if any(granted) and not route.granted:
            # All or nothing: a caller who is told no must not go on receiving a part.
            route.leaving = True
            self._request(_Request(ticket=None, route=route, unsubscribe=True, verdict=verdict))
            return
        if not route.granted:
            self._routes.remove(route)
        self._events.append(verdict)
