"""The MQTT door: one client connection between the codec and the broker.

`MqttConnection` has the methods that an event loop calls on a protocol object and asks of its transport
only `write`, `get_write_buffer_size`, `close`, `abort`, `pause_reading` and `resume_reading`, and `write_eof`
where it has that; it knows neither sockets nor tasks, so the same code serves TCP, TLS, WebSocket and tests.

A chunk goes through the scan kernel: runs of publishes and acknowledgements reach the broker as they are.
The first packet the kernel does not know is decoded and handled here, then the scan goes on behind it.
An error of the client ends its connection with the reason code the standard names, and touches nobody else.
"""

import logging
from contextlib import suppress
from functools import partial
from typing import Any, assert_never

from msgspec.structs import replace

from millrace.broker.access import Principal
from millrace.broker.entries.sessions import Opened
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.journal import ResumeConnection
from millrace.broker.sessions.session import Session
from millrace.broker.topics.routing import Table
from millrace.errors import ProtocolError, RemoteError
from millrace.kernels import scan
from millrace.kernels.publish import body_start, join_spans
from millrace.limits import CONNECT_BYTES_MAX
from millrace.node.access.identity import NOBODY, Identity
from millrace.node.doors import mqtt_exchange
from millrace.node.doors import mqtt_terms as terms
from millrace.node.doors.duties import AcceptClient, AnswerSubscribe, AnswerUnsubscribe, Duty
from millrace.node.doors.mqtt_door import PACKET_COST, Cancellable, MqttDoor
from millrace.node.doors.mqtt_exchange import Exchange
from millrace.node.doors.output import PacedOutput
from millrace.node.shards import producer_keys as keys
from millrace.reasons import Reason
from millrace.types import Version
from millrace.wire.mqtt.codec import decode, encode
from millrace.wire.mqtt.connection import Inbox, wanted_bytes
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
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

log = logging.getLogger("millrace.mqtt")

# Parked: connected, and what else arrived waits for the next turn of the loop.
_NEW, _AUTHENTICATING, _OPENING, _CONNECTED, _PARKED, _CLOSED = range(6)
_MQTT_5, _NOT_AUTHORIZED = Version.MQTT_5, Reason.NOT_AUTHORIZED
_PING = b"\xc0\x00"
_PONG = b"\xd0\x00"
# [MQTT-3.1.2-22]: one and a half times the keep alive.
_KEEP_ALIVE_GRACE = 1.5
# A topic that was never met costs as much as so many messages.
_TOPIC_COST = 3
# How long a closed connection may take to read its last bytes.
_CLOSING_MS_MAX = 5_000


class MqttConnection(PacedOutput):
    __slots__ = (
        "__weakref__",
        "_aliases",
        "_client_bytes_max",
        "_door",
        "_exchange",
        "_inbox",
        "_is_welcome",
        "_packet_bytes_max",
        "_parked",
        "_state",
        "_table",
        "_v5",
        "connected_us",
        "deadline_ms",
        "identity",
        "listener",
        "login",
        "peer",
        "received",
        "seen_ms",
        "session",
        "since_ms",
        "traffic",
        "username",
        "version",
    )

    def __init__(self, door: MqttDoor, listener: str = "mqtt") -> None:
        super().__init__(door.output)
        self._door = door
        self._state = _NEW
        self._inbox = Inbox()
        # CONNACK is out.
        self._is_welcome = False
        self._parked: list[bytes] | None = None
        self._packet_bytes_max = min(CONNECT_BYTES_MAX, door.limits.packet_bytes_max)
        self._client_bytes_max = 0
        self._table: Table = {}
        self._v5 = False
        self._aliases: dict[int, str] | None = None
        self._exchange: Exchange | None = None
        self.version = Version.MQTT_3_1_1
        self.session: Session | None = None
        self.username: str | None = None
        self.identity: Identity | None = None
        self.login: Cancellable | None = None
        self.peer: Any = None
        # For people: by which door it came, since when its session is open, messages from it.
        self.listener, self.connected_us, self.received = listener, 0, 0
        self.traffic = door.broker.stats.door(listener)
        # Heard last; and the beginning of the time before the session, or after it.
        self.seen_ms = self.since_ms = door.now_ms()
        # Silence allowed: the CONNECT deadline first, then the keep alive; 0 is for ever.
        self.deadline_ms = door.limits.connect_deadline_ms

    # ----------------------------------------------------------------- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self.begin_output(transport)
        self.peer = self.peer or transport.get_extra_info("peername")
        self._door.connections[self] = None
        if not self._door.quotas.admits(self, self.peer):
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        door = self._door
        door.connections.pop(self, None)
        door.quotas.left(self)
        session, self.session = self.session, None
        self._state = _CLOSED
        self._give_up_login()
        self.end_output()
        if session is not None and session.connection is self:
            door.broker.disconnect(session, door.now_ms(), will=True)
            door.events.left(session, self.peer, "the connection was lost")
        self._wake()

    def eof_received(self) -> bool:
        return False

    def _block(self) -> None:
        """The client does not read: send nothing more, and take nothing more that would need an answer."""
        if self.session is not None:
            self.session.blocked = True
        self.transport.pause_reading()

    def _unblock(self) -> None:
        if self._state == _CLOSED:
            return
        self.transport.resume_reading()
        self.seen_ms = self._door.now_ms()
        if self.session is not None:
            self._door.broker.unblock(self.session, self.seen_ms)
            self.unpark()
            self._wake()

    def data_received(self, data: bytes) -> None:
        door = self._door
        if not door.awake:
            door.begin_turn()
        pause_ms = door.turn_ms - self.seen_ms
        self.seen_ms = now_ms = door.turn_ms
        broker = door.broker
        self.traffic.bytes_received += len(data)
        if self._state == _CONNECTED and self._inbox.parts is None:
            session = self.session
            assert session is not None
            pos, spans = scan(data, 0, self._table, self._v5, self._packet_bytes_max)
            if len(spans) == 5 and pos == len(data):
                # One read, one span: the common case of unbatched traffic.
                first, subject, _, _, count = spans
                if first < 0x40:
                    self._heard(count, pos)
                    broker.publish_runs(session, first, subject, data, count, now_ms, pause_ms)
                    if first != 0x30:
                        self._check_bounds(first, count)
                else:
                    try:
                        broker.on_acks(session, first, subject, count, now_ms)
                    except RemoteError as error:
                        self._on_fault(error)
            else:
                self._receive(data, pos, spans)
        elif self._parked is not None:
            self._parked.append(data)
        else:
            if data := self._inbox.join(data):
                self._receive(data, 0, [])

    def is_late(self, now_ms: int) -> bool:
        """Bytes that do not make a CONNECT buy no time: only a session is kept alive by being heard."""
        if self._state == _PARKED and self.session is not None and not self.session.blocked:
            # It is us who do not listen.
            return False
        begin_ms = self.since_ms if self.session is None else self.seen_ms
        return 0 < self.deadline_ms < now_ms - begin_ms

    def expire(self) -> None:
        if self._state == _CLOSED:
            # It does not take its last bytes; they must not be kept for it.
            self.transport.abort()
        else:
            self.fail(Reason.KEEP_ALIVE_TIMEOUT, "nothing was heard within the time agreed")

    # --------------------------------------------------------------------------- incoming packets

    def _receive(self, data: bytes, pos: int, spans: list[Any]) -> None:
        """Handle a chunk whose first part, up to `pos`, is already scanned into `spans`."""
        size = len(data)
        try:
            while True:
                while pos < size and self._state == _CONNECTED and self._learn(data, pos):
                    pos, more = scan(data, pos, self._table, self._v5, self._packet_bytes_max)
                    join_spans(spans, more)
                    if self._door.is_used_up:
                        self._park()
                if spans:
                    self._on_spans(data, spans)
                if self._parked is not None:
                    self._parked.append(data[pos:])
                    return
                if self._state == _CLOSED or pos == size:
                    return
                if self._state == _OPENING or (self._state == _AUTHENTICATING and self._exchange is None):
                    # What follows CONNECT waits until we know whether the client may say it.
                    self._inbox.keep(data, pos, self._door.limits.packet_bytes_max)
                    self.transport.pause_reading()
                    return
                end = pos + wanted_bytes(data[pos : pos + 5], self._packet_bytes_max)
                if end > size:
                    self._inbox.keep(data, pos, self._packet_bytes_max)
                    return
                pos = self._on_packet(data, pos, end)
                self._door.taken += PACKET_COST
                if self._state == _CONNECTED and self._door.is_used_up:
                    self._park()
                if self._state == _CONNECTED:
                    pos, spans = scan(data, pos, self._table, self._v5, self._packet_bytes_max)
                else:
                    spans = []
        except RemoteError as error:
            self._on_fault(error)

    def _on_fault(self, error: RemoteError) -> None:
        self._door.broker.stats.protocol_errors += 1
        if error.reason in (Reason.PACKET_TOO_LARGE, Reason.QUOTA_EXCEEDED):
            self._door.broker.limits_reached.count("packet" if self.session is not None else "connect_bytes")
        self.fail(error.reason, error.detail)

    def _learn(self, data: bytes, pos: int) -> bool:
        """Whether the packet that the scan stopped at may be scanned now, because its topic was met here for
        the first time and its route is known from now on, as are those of new topics behind it. Whatever else
        is unusual is left to the codec."""
        door = self._door
        assert self.session is not None
        learnt = door.broker.router.learn(self.session.principal, self._table, data, pos, door.limits)
        door.taken += _TOPIC_COST * learnt
        return learnt > 0

    def _on_spans(self, data: bytes, spans: list[Any]) -> None:
        session = self.session
        assert session is not None
        broker, now_ms = self._door.broker, self.seen_ms
        for at in range(0, len(spans), 5):
            first, subject, start, end, count = spans[at : at + 5]
            if first < 0x40:
                self._heard(count, end - start)
                broker.publish_runs(session, first, subject, data[start:end], count, now_ms, 0)
                if first != 0x30:
                    self._check_bounds(first, count)
                    if self._state == _CLOSED:
                        return
            else:
                broker.on_acks(session, first, subject, count, now_ms)

    def _heard(self, count: int, size_bytes: int) -> None:
        """Messages from this client; one that is too fast is not heard for a while."""
        self.received += count
        quotas = self._door.quotas
        is_fast = quotas.paces and quotas.published(self, self.username, count, size_bytes)
        if is_fast and self._parked is None:
            self._park()

    def _check_bounds(self, first: int, count: int) -> None:
        """After messages at QoS 1 or 2: those unfinished, those of this turn, those not in the log yet."""
        door, session = self._door, self.session
        assert session is not None
        if first == 0x34 and session.v5 and len(session.received or ()) > door.limits.receive_maximum:
            self.fail(Reason.RECEIVE_MAXIMUM_EXCEEDED, "too many unfinished QoS 2 messages")
            return
        door.taken += count
        if (door.is_used_up or door.is_overloaded) and self._parked is None:
            self._park()

    def _on_packet(self, data: bytes, pos: int, end: int) -> int:
        """Handle the packet from `pos` to `end`; returns `end`, or where that of what it took with it is."""
        if end - pos == 2 and data[pos:end] == _PING and self._state == _CONNECTED:
            assert self.session is not None
            self._door.broker.outbound.put(self.session, _PONG)
            return end
        first, body = data[pos], body_start(data, pos)
        if first == 0x31 and self._state == _CONNECTED and self._door.settings.retain:
            assert self.session is not None
            broker, where = self._door.broker, (data, pos, self._packet_bytes_max)
            count, after = terms.accept_retained(broker, self.session, self._table, *where, self.seen_ms)
            if count:
                self._heard(count, after - pos)
                self._door.taken += PACKET_COST * (count - 1)
                return after
        if self._state == _NEW:
            # [MQTT-3.1.0-1]: the first packet is CONNECT.
            if first >> 4 != 1:
                raise ProtocolError("the first packet is not CONNECT")
            self._on_connect_bytes(first, data[body:end])
        else:
            self._on_decoded(decode(first, data[body:end], self.version))
        return end

    def _on_decoded(self, packet: Packet) -> None:
        session = self.session
        match packet:
            case Auth():
                self._on_auth(packet)
            case _ if session is None:
                raise ProtocolError("a packet before the connection is accepted")
            case Publish():
                self._on_publish(session, packet)
            case Subscribe():
                self._on_subscribe(session, packet)
            case Unsubscribe():
                self._on_unsubscribe(session, packet)
            case Pingreq():
                self._door.broker.outbound.put(session, _PONG)
            case Disconnect():
                self._on_disconnect(session, packet)
            case Puback() | Pubrec() | Pubrel() | Pubcomp():
                self._on_answer(session, packet)
            case Connect():
                # [MQTT-3.1.0-2]
                raise ProtocolError("a second CONNECT")
            case Connack() | Suback() | Unsuback() | Pingresp():
                raise ProtocolError(f"{type(packet).__name__.upper()} is sent by servers only")
            case _:
                assert_never(packet)

    def _on_answer(self, session: Session, packet: Puback | Pubrec | Pubrel | Pubcomp) -> None:
        """An acknowledgement with a reason code or properties."""
        broker, now_ms = self._door.broker, self.seen_ms
        if isinstance(packet, Puback | Pubrec) and packet.reason >= Reason.UNSPECIFIED:
            broker.on_refused(session, packet.packet_id, 1 if isinstance(packet, Puback) else 2, now_ms)
        else:
            broker.on_acks(session, terms.ANSWER_FIRST_BYTES[type(packet)], packet.packet_id, 1, now_ms)

    def _park(self) -> None:
        """Let the others have a turn, and the logs catch up, before this client is heard again."""
        self._state, self._parked = _PARKED, []
        self.transport.pause_reading()
        self._door.parked.append(self)
        self._door.wake()

    def unpark(self) -> None:
        if self._state != _PARKED or self.session is None or self.session.blocked:
            return
        door = self._door
        is_paced = door.quotas.holds(self, self.username)
        if is_paced or door.is_used_up or door.is_overloaded:
            # Also for one that reads again just now, and would be read.
            self.transport.pause_reading()
            (door.paced if is_paced else door.parked).append(self)
            return
        assert self._parked is not None
        self.seen_ms = self._door.now_ms()
        data, self._parked = b"".join(self._parked), None
        self._state = _CONNECTED
        self.transport.resume_reading()
        if data:
            self._receive(data, 0, [])
        self._wake()

    # --------------------------------------------------------------------------------- publishing

    def _on_publish(self, session: Session, packet: Publish) -> None:
        door, message = self._door, packet.message
        if message.properties.subscription_ids:
            # [MQTT-3.3.4-6]
            raise ProtocolError("a PUBLISH from a client carries no subscription identifier")
        topic = message.topic
        if message.properties.topic_alias is not None:
            self._aliases = self._aliases or {}
            topic = terms.aliased_topic(message, self._aliases, door.limits)
        if not terms.is_topic_within(door.limits, topic):
            raise ProtocolError("the topic has too many levels or bytes", Reason.TOPIC_NAME_INVALID)
        if message.retain and not door.settings.retain:
            raise ProtocolError("retained messages are off here", Reason.RETAIN_NOT_SUPPORTED)
        packet_id = packet.packet_id or 0
        key = keys.key_of(message.properties, self.username)
        run = terms.run_of(message, topic, packet_id, self._v5, self.seen_ms)
        self._heard(1, len(run.data))
        if message.qos == 2 and session.received and packet_id in session.received:
            door.broker.inbound.repeat(session, topic, run, packet_id, key)
            return
        if not door.broker.inbound.accept(session, topic, run, packet_id, self.seen_ms, key):
            self.fail(Reason.QUOTA_EXCEEDED, "no room for another retained message")
        elif message.qos:
            self._check_bounds(0x30 | message.qos << 1, 1)

    # ------------------------------------------------------------------------------ subscriptions

    def _on_subscribe(self, session: Session, packet: Subscribe) -> None:
        broker = self._door.broker
        results = broker.subscribe_all(session, packet.subscriptions)
        if denied := [one.filter for one, reason, _ in results if reason is _NOT_AUTHORIZED]:
            self._door.events.denied(session, denied)
        duty = AnswerSubscribe(session=session, packet_id=packet.packet_id, results=results)
        self._once_written(session, duty)
        # A subscription costs what is kept here, not what it takes to ask.
        self._park()

    def _on_unsubscribe(self, session: Session, packet: Unsubscribe) -> None:
        broker = self._door.broker
        reasons = tuple([broker.unsubscribe(session, filter) for filter in packet.filters])
        duty = AnswerUnsubscribe(session=session, packet_id=packet.packet_id, reasons=reasons)
        self._once_written(session, duty)

    def _suback(self, duty: AnswerSubscribe) -> None:
        session = duty.session
        if session.connection is not self:
            return
        reasons = tuple([reason for _, reason, _ in duty.results])
        self._send(session, Suback(packet_id=duty.packet_id, reasons=reasons))
        self._door.broker.subscribed(session, duty.results, self.seen_ms)

    # ------------------------------------------------------------------- what waits for the disk

    def _once_written(self, session: Session, duty: Duty) -> None:
        """Do this once what the session has to record is on disk; at once where it has no record."""
        journal = self._door.broker.journal
        if not (session.is_recorded and journal.after(ResumeConnection(self, duty))):
            self.resume(duty)

    def resume(self, duty: Duty) -> None:
        """The operations that this waited for are on disk."""
        door = self._door
        match duty:
            case AcceptClient():
                client_id = duty.request.client_id
                if door.opening.get(client_id) is self:
                    del door.opening[client_id]
                    if door.broker.belongs_to_another(client_id, self.username):
                        self._refuse(*terms.OF_ANOTHER_USER)
                    else:
                        self._open(duty.packet, duty.request, duty.answer, is_opened=True)
            case AnswerSubscribe(shared=[_, *_] as shared):
                # A member takes part from a position that every node knows [rules 9, 13].
                door.when_shared(shared, lambda: door.when_known(lambda: self._suback(duty)))
            case AnswerSubscribe():
                # Whoever publishes after SUBACK, at whatever node, reaches this client.
                door.when_known(lambda: self._suback(duty))
            case AnswerUnsubscribe():
                if duty.session.connection is self:
                    self._send(duty.session, Unsuback(packet_id=duty.packet_id, reasons=duty.reasons))
            case _:
                assert_never(duty)

    # --------------------------------------------------------------------------------- connecting

    def _on_connect_bytes(self, first: int, body: bytes) -> None:
        try:
            packet = decode(first, body, 0)
        except RemoteError as error:
            self._door.broker.stats.protocol_errors += 1
            self._v5 = terms.level_of(body) >= Version.MQTT_5
            self.version = Version.MQTT_5 if self._v5 else Version.MQTT_3_1_1
            # A CONNACK is an answer to a CONNECT that could be read that far.
            if self._v5 or error.reason in (Reason.UNSUPPORTED_VERSION, Reason.CLIENT_ID_NOT_VALID):
                self._refuse(error.reason, error.detail)
            else:
                self._close(error.detail)
            return
        assert isinstance(packet, Connect)
        self.version = packet.version
        self._client_bytes_max = packet.packet_bytes_max or 0
        self._v5 = packet.version == _MQTT_5
        if packet.authentication_method is not None:
            self._begin_exchange(packet)
            return
        self._state = _AUTHENTICATING
        # Read on, as long as nothing comes: a client that hangs up must not cost the check of its password.
        self._door.authenticate(self, packet, partial(self._authenticated, packet))

    def _authenticated(self, packet: Connect, allowed: bool, *, is_busy: bool = False, why: str = "") -> None:
        """The answer of the authenticator, perhaps later and perhaps after the client went away."""
        if self._state != _AUTHENTICATING:
            return
        if not allowed:
            self._refuse(*terms.refused_login(packet, is_busy, why))
            return
        self.transport.resume_reading()
        self._accept(packet, None)

    def _resume_input(self) -> None:
        data = self._inbox.join(b"")
        if data:
            self._receive(data, 0, [])
        self._wake()

    def _accept(self, packet: Connect, authentication_data: bytes | None) -> None:
        door = self._door
        limits, broker = door.limits, door.broker
        client_id = packet.client_id or door.assigned_id()
        principal = self._principal(client_id)
        name, address = self.username, door.quotas.address(self)
        refused = door.turned_away or terms.refused_client(packet, client_id, name, address, door)
        refused = refused or terms.refused_will(packet.will, principal, door.settings, limits)
        if refused is not None:
            self._refuse(*refused)
            return
        who = client_id, principal, name, address
        request = terms.request_of(packet, *who, limits, self.seen_ms, self.listener)
        assigned = None if packet.client_id else client_id
        answer = terms.connack(packet, request, door.settings, limits, assigned, authentication_data)
        if self._client_bytes_max and len(encode(answer, self.version)) > self._client_bytes_max:
            # [MQTT-3.1.2-24]: what it says cannot be left out, and a client must not wait for it in vain.
            self._close("the client takes no packet as large as the answer to CONNECT")
            return
        operation = broker.opening(request, self.username)
        if operation is None:
            self._open(packet, request, answer, is_opened=False)
        else:
            self._open_recorded(packet, request, answer, operation)

    def _open_recorded(
        self, packet: Connect, request: ConnectRequest, answer: Connack, operation: Opened
    ) -> None:
        """Whoever leaves something behind is accepted once that is on disk [rules 7, 10]."""
        door, client_id = self._door, request.client_id
        self._state = _OPENING
        # Of two connections of one client that both wait the later one counts, whosever messages are fetched
        # first: the earlier one would take the record of the later one for its own.
        earlier = door.opening.get(client_id)
        door.opening[client_id] = self
        if earlier is not None:
            earlier.supersede()

        def begin() -> None:
            if self._state != _OPENING:
                # It went away, or was superseded, while its messages were fetched.
                return
            duty = AcceptClient(packet=packet, request=request, answer=answer)
            door.broker.journal.add(operation, ResumeConnection(self, duty))
            self._wake()

        if request.clean_start:
            begin()
        else:
            door.fetch_session(client_id, self.username, begin)
        if self._state == _OPENING:
            self.transport.pause_reading()
            self._wake()

    def _open(self, packet: Connect, request: ConnectRequest, answer: Connack, *, is_opened: bool) -> None:
        """The client is accepted: open the session, answer, and go on with what it sent meanwhile."""
        door = self._door
        broker = door.broker
        session, present, displaced = broker.connect(request, self, self.seen_ms, is_opened=is_opened)
        if displaced is not None:
            displaced.fail(Reason.SESSION_TAKEN_OVER, "the client connected again")
        # What came along is queued before anything that comes from now on, and kept if the client goes.
        session.blocked = True
        door.session_opened(session, present)
        if self._state == _CLOSED:
            # It went away while its record was written.
            broker.disconnect(session, self.seen_ms, will=True)
            return
        door.tell_others(session)
        door.quotas.accepted(self)
        self.connected_us = broker.wall_us
        door.events.came(session, self.peer, self.listener, self.username)
        was_waiting = self._state == _OPENING
        self.session = session
        self._table = broker.router.table(request.principal)
        self._state = _CONNECTED
        self._packet_bytes_max = door.limits.packet_bytes_max
        if request.principal.generation != broker.rules.generation:
            # The access rules changed while its record was written.
            self.reassign()
        keep_alive_s = terms.keep_alive_s(packet, door.settings, door.limits)
        self.deadline_ms = int(keep_alive_s * 1000 * _KEEP_ALIVE_GRACE)
        if present and packet.version != Version.MQTT_3_1:
            answer = replace(answer, session_present=True)
        if present and was_waiting:
            # What is published after CONNACK, at whatever node, reaches a session that moved here.
            door.when_known(partial(self._welcome, session, answer, was_waiting))
        else:
            self._welcome(session, answer, was_waiting)

    def _welcome(self, session: Session, answer: Connack, was_waiting: bool) -> None:
        """Answer CONNECT, and go on with what the client sent meanwhile."""
        if self.session is not session:
            return
        session.blocked = False
        self._is_welcome = True
        self._send(session, answer)
        self._door.broker.resume(session, self.seen_ms)
        if was_waiting:
            self.transport.resume_reading()
        if not self._inbox.is_empty:
            self._resume_input()
        self._wake()

    # ------------------------------------------------------------------- enhanced authentication

    def _begin_exchange(self, packet: Connect) -> None:
        self._exchange = exchange = mqtt_exchange.begin(self._door.methods, packet, self.peer)
        if exchange is None:
            method = packet.authentication_method
            self._refuse(Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method!r} is not known")
            return
        self._state = _AUTHENTICATING
        self._after_step(exchange, *exchange.step(packet.authentication_data))

    def _on_auth(self, packet: Auth) -> None:
        exchange = self._exchange
        if exchange is None:
            # [MQTT-4.12.0-7]
            raise ProtocolError("AUTH without an exchange", Reason.PROTOCOL_ERROR)
        self._after_step(exchange, *exchange.on_auth(packet, is_connected=self._state == _CONNECTED))

    def _after_step(
        self, exchange: Exchange, verdict: bool | None, data: bytes | None, identity: Identity | None
    ) -> None:
        is_connected = self._state == _CONNECTED
        if verdict and is_connected and (identity is None or identity.username != self.username):
            # The session, and what it may do, belong to the user of CONNECT.
            verdict = False
        if verdict is False:
            if is_connected:
                self.fail(Reason.NOT_AUTHORIZED, "re-authentication failed")
            else:
                self._refuse(Reason.NOT_AUTHORIZED, "authentication failed")
            return
        if verdict:
            self.identity = identity
            if not is_connected:
                self.username = None if identity is None else identity.username
                self._accept(exchange.connect, data)
                return
        reason = Reason.SUCCESS if verdict else Reason.CONTINUE_AUTHENTICATION
        answer = Auth(reason=reason, authentication_method=exchange.method, authentication_data=data)
        self.write(encode(answer, self.version))

    # ------------------------------------------------------------------------------------ leaving

    def _on_disconnect(self, session: Session, packet: Disconnect) -> None:
        door = self._door
        if packet.session_expiry_s is not None:
            if packet.session_expiry_s and not session.expiry_s:
                # [MQTT-3.14.2-2] and 3.14.2.2.2
                raise ProtocolError("a session expiry on DISCONNECT of a session that had none")
            session.expiry_s = min(packet.session_expiry_s, door.limits.session_expiry_s_max)
        keeps_will = packet.reason is not Reason.SUCCESS
        self.session = None
        self.hand_out(session)
        self._end()
        door.broker.disconnect(session, self.seen_ms, will=keeps_will)
        door.events.left(session, self.peer, "it said goodbye", packet.reason)
        self._wake()

    def fail(self, reason: Reason, detail: str) -> None:
        """End this connection from our side and, where the version allows, say why."""
        if self._state == _CLOSED:
            return
        log.info("closing %s of %s: %s (0x%02x)", self.peer, self._name(), detail, reason)
        if self._state not in (_CONNECTED, _PARKED):
            if self._state == _OPENING:
                # Its record could not be written in time [rule 7].
                self._refuse(*(self._door.turned_away or terms.NO_MAJORITY))
            elif self._v5 and self._state == _AUTHENTICATING:
                self._refuse(reason, detail)
            else:
                self._end()
            return
        session, self.session = self.session, None
        if session is not None and session.connection is self:
            self.hand_out(session)
        # Before CONNACK nothing else may be sent ([MQTT-3.2.0-1]).
        is_told = self._v5 and self._is_welcome
        if is_told:
            self._write_bounded(*terms.goodbye(reason, detail, self._door.elsewhere()))
        self._end(told=is_told)
        if session is not None and session.connection is self:
            self._door.broker.disconnect(session, self._door.now_ms(), will=True)
        if session is not None:
            self._door.events.left(session, self.peer, detail, reason)
        self._wake()

    def supersede(self) -> None:
        """The same client is being let in by another connection."""
        if self._state != _CLOSED:
            self._close("the client connected again")

    def hand_out(self, session: Session) -> None:
        """What was answered before the end still arrives."""
        out, session.out = session.out, []
        if out:
            self.write(b"".join(out))

    def reassign(self) -> None:
        """The access rules changed: ask again who this client is to them."""
        session = self.session
        if session is not None:
            broker = self._door.broker
            principal = self._principal(session.client_id)
            broker.reassign(session, principal, self._door.now_ms())
            self._table = broker.router.table(principal)
            self._wake()

    def _principal(self, client_id: str) -> Principal:
        return (self.identity or NOBODY).principal(self._door.broker.rules, self.username, client_id)

    def _give_up_login(self) -> None:
        if self.login is not None:
            self.login.cancel()
            self.login = None

    def _refuse(self, reason: Reason, detail: str) -> None:
        """No to a CONNECT."""
        log.info("refused %s: %s (0x%02x)", self.peer, detail, reason)
        self._door.broker.stats.connects_refused[reason.name] += 1
        self._door.events.refused(self.peer, detail, reason)
        self._write_bounded(*terms.refusal(reason, detail if self._v5 else None, self._door.elsewhere()))
        self._end(told=True)

    def _close(self, detail: str) -> None:
        log.info("closing %s: %s", self.peer, detail)
        self._end()

    def _end(self, *, told: bool = False) -> None:
        """Close once the client took what was written; `expire` sees to it that this is not for ever.

        `told`: it was given a reason. A socket closed with bytes unread is reset, and a client that is still
        sending would not see the reason. So, where the transport can, our side ends alone; what the client
        sends until it ends too is dropped.
        """
        self._state, self._parked = _CLOSED, None
        self._give_up_login()
        self.write_by_transport()
        self.since_ms = self._door.now_ms()
        self.deadline_ms = _CLOSING_MS_MAX
        can_write_eof = getattr(self.transport, "can_write_eof", None)
        if told and can_write_eof is not None and can_write_eof():
            self.transport.resume_reading()
            # A client that hung up has no end to be told; whoever ends it may be serving another one.
            with suppress(OSError):
                self.transport.write_eof()
                return
        self.transport.close()

    # ------------------------------------------------------------------------------------- output

    def _send(self, session: Session, packet: Packet) -> None:
        data = encode(packet, self.version)
        if session.packet_bytes_max and len(data) > session.packet_bytes_max:
            # [MQTT-3.1.2-25]: leave out what is optional rather than exceed the client's bound.
            return
        self._door.broker.outbound.put(session, data)

    def _write_bounded(self, *packets: Packet) -> None:
        """The first of these that the client has room for ([MQTT-3.2.2-19], [MQTT-3.14.2-3])."""
        for data in (encode(packet, self.version) for packet in packets):
            if not self._client_bytes_max or len(data) <= self._client_bytes_max:
                self.write(data)
                return

    def _wake(self) -> None:
        if self._door.broker.has_work:
            self._door.wake()

    def _name(self) -> str:
        return self.session.client_id if self.session is not None else "a client not connected yet"
