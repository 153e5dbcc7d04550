"""A broker without sockets: the real door and the real broker, a clock that is turned by hand, and clients
that speak in packets of the codec. With `keeps_records` the sessions are recorded as on a node with a disk,
and what must wait for the disk waits for the end of the turn.

`House` owns the clock and the loop turn: bytes that a client sends are handled at once, and what the broker
wants to write goes out before the call returns, as it would at the end of a turn. `Wire` is the transport: it
keeps what was written, and with `stall` it behaves as a socket whose peer does not read.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeVar

from millrace.broker.access import AccessRules, Rule
from millrace.broker.entries.sessions import SESSION_ENTRIES, SessionBatch
from millrace.broker.machine import Broker
from millrace.broker.sessions.session_store import SessionStore
from millrace.limits import Limits
from millrace.node.config import Mqtt
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.node.doors.mqtt_exchange import Methods
from millrace.node.sessions.session_group import resume_all
from millrace.reasons import Reason
from millrace.types import Message, Properties, Subscription, Version, Will
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import (
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
from unit.node.stand_ins import tell_waiters

P = TypeVar("P")

TURNS_MAX = 10_000


class Wire:
    """A transport with asyncio's rules of flow control."""

    def __init__(self, high_bytes: int) -> None:
        self.protocol: Any = None
        self.taken = bytearray()
        self.held = bytearray()
        self.high_bytes = high_bytes
        self.is_stalled = False
        self.is_reading = True
        self.is_closing = False
        self.is_aborted = False
        self.is_gone = False
        self._is_paused = False
        self.writes = 0

    def write(self, data: bytes) -> None:
        assert not self.is_gone, "written to after the connection was lost"
        if self.is_closing:
            return
        self.writes += 1
        if not self.is_stalled:
            self.taken += data
            return
        self.held += data
        if len(self.held) > self.high_bytes and not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def stall(self) -> None:
        """The peer stops reading."""
        self.is_stalled = True

    def flow(self) -> None:
        """The peer reads again, all there is."""
        self.is_stalled = False
        self.taken += self.held
        self.held.clear()
        if self._is_paused:
            self._is_paused = False
            self.protocol.resume_writing()

    def close(self) -> None:
        self.is_closing = True
        self.is_reading = False

    def abort(self) -> None:
        self.is_closing = self.is_aborted = True
        self.is_reading = False
        self.held.clear()

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        if not self.is_closing:
            self.is_reading = True

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name == "peername" else default

    def lose(self) -> None:
        """What the loop says once a closed connection has nothing more to write."""
        if not self.is_gone:
            self.is_closing = self.is_gone = True
            self.protocol.connection_lost(None)


class House:
    def __init__(
        self,
        *,
        rules: Iterable[Rule] = (),
        settings: Mqtt | None = None,
        keeps_records: bool = False,
        methods: Methods | None = None,
        **limits: int,
    ) -> None:
        self.now_ms = 1_000_000
        self.limits = Limits(**limits)
        self.broker = Broker(self.limits, AccessRules(rules))
        self.is_awake = False
        # What an authenticator would answer; a test may keep the answers back in `undecided`.
        self.decides_later = False
        self.undecided: list[Callable[[bool], None]] = []
        self.door = MqttDoor(
            self.broker,
            settings or Mqtt(),
            now_ms=lambda: self.now_ms,
            wake=self._wake,
            authenticate=self._authenticate,
            random=Random(0),
            methods=methods,
        )
        self.wires: list[Wire] = []
        # What a disk would hold of the sessions; written once per turn.
        self.store = SessionStore()
        self.broker.journal.is_on = keeps_records
        self.broker.records = self.store

    def _wake(self) -> None:
        self.is_awake = True

    def _authenticate(
        self, connection: MqttConnection, packet: Connect, done: Callable[[bool], None]
    ) -> None:
        connection.username = packet.username
        if self.decides_later:
            self.undecided.append(done)
        else:
            done(packet.password != b"wrong")

    def turn(self) -> None:
        """Everything that the loop would do before it sleeps."""
        for _ in range(TURNS_MAX):
            for wire in self.wires:
                if wire.is_closing and not wire.is_gone and not wire.held:
                    wire.lose()
            self.wires = [wire for wire in self.wires if not wire.is_gone]
            if not self.is_awake:
                return
            self.is_awake = False
            # There are no other nodes to tell.
            self.broker.take_interest_changes()
            self.broker.inbound.take_retained()
            # And nobody takes from the logs for groups that were made by command.
            self.broker.joined_need_feeding = False
            operations, waiting = self.broker.journal.take()
            written = SESSION_ENTRIES.encode([SessionBatch(self.broker.node, operations)])
            for batch in SESSION_ENTRIES.decode(written):
                self.store.apply(batch)
            resume_all(self.broker, waiting)
            tell_waiters(self.broker)
            self.door.flush()
        raise AssertionError("the broker does not come to rest")

    def pass_s(self, seconds: float) -> None:
        """Let time pass, in the steps in which a node looks at its clock."""
        end_ms = self.now_ms + int(seconds * 1000)
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + 1000)
            self.broker.tick(self.now_ms)
            self.door.sweep()
            self.broker.retained.expire_some(self.now_ms)
            if self.broker.outbound.dirty or self.broker.inbound.outcomes:
                self._wake()
            self.turn()

    def open(self, high_bytes: int | None = None) -> "Client":
        """A connection on which nothing was said."""
        return Client(self, self.limits.output_buffer_bytes_max if high_bytes is None else high_bytes)

    def connect(
        self, client_id: str = "", *, v5: bool = True, resume: bool = False, **fields: Any
    ) -> "Client":
        """A connected client; `resume` keeps the session for a day and takes it up again."""
        fields.setdefault("version", Version.MQTT_5 if v5 else Version.MQTT_3_1_1)
        if resume:
            fields.setdefault("clean_start", False)
            if fields["version"] == Version.MQTT_5:
                fields.setdefault("session_expiry_s", 86_400)
        client = self.open()
        client.connect(client_id or f"c{id(client)}", **fields)
        assert client.connack.reason is Reason.SUCCESS, client.connack
        return client


class Client:
    def __init__(self, house: House, high_bytes: int) -> None:
        self.house = house
        self.version = Version.MQTT_3_1_1
        self.wire = Wire(high_bytes)
        self.connection = MqttConnection(house.door)
        self.wire.protocol = self.connection
        self.connection.connection_made(self.wire)
        house.wires.append(self.wire)
        self.connack: Connack
        self._aliases: dict[int, str] = {}
        self._unread: list[Packet] = []
        self._next_id = 0

    # Out

    def send_bytes(self, data: bytes) -> None:
        """Bytes of the client, if the broker still reads."""
        if not self.wire.is_closing:
            assert self.wire.is_reading, "the broker does not read now"
            self.connection.data_received(data)
        self.house.turn()

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def packet_id(self) -> int:
        self._next_id = self._next_id % 65_535 + 1
        return self._next_id

    def connect(self, client_id: str, **fields: Any) -> None:
        packet = Connect(client_id=client_id, **fields)
        self.version = packet.version
        self.send(packet)
        found = self.take(Connack)
        if found:
            self.connack = found[0]

    def subscribe(self, *filters: str | Subscription, qos: int = 2, **options: Any) -> Suback:
        """Returns the SUBACK; retained messages that follow it are kept for `read`."""
        subscriptions = tuple(
            f if isinstance(f, Subscription) else Subscription(filter=f, qos=qos, **options) for f in filters
        )
        number = self.packet_id()
        self.send(Subscribe(packet_id=number, subscriptions=subscriptions))
        return self._answer(Suback, number)

    def unsubscribe(self, *filters: str) -> Unsuback:
        number = self.packet_id()
        self.send(Unsubscribe(packet_id=number, filters=filters))
        return self._answer(Unsuback, number)

    def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 0, retain: bool = False, **properties: Any
    ) -> Packet | None:
        """PUBLISH with its whole handshake; the first answer is returned."""
        message = Message(
            topic=topic, payload=payload, qos=qos, retain=retain, properties=Properties(**properties)
        )
        number = self.packet_id() if qos else None
        self.send(Publish(message=message, packet_id=number))
        if number is None:
            return None
        if qos == 1:
            return self._answer(Puback, number)
        answer = self._answer(Pubrec, number)
        if answer.reason < Reason.UNSPECIFIED:
            self.send(Pubrel(packet_id=number))
            self._answer(Pubcomp, number)
        return answer

    def acknowledge(self, packet: Publish) -> None:
        """All that the QoS of a received message asks for."""
        if packet.packet_id is None:
            return
        if packet.message.qos == 1:
            self.send(Puback(packet_id=packet.packet_id))
        else:
            self.send(Pubrec(packet_id=packet.packet_id))
            self._answer(Pubrel, packet.packet_id)
            self.send(Pubcomp(packet_id=packet.packet_id))

    def ping(self) -> None:
        self.send(Pingreq())
        assert self.take(Pingresp), "no PINGRESP"

    def disconnect(self, reason: Reason = Reason.SUCCESS, session_expiry_s: int | None = None) -> None:
        self.send(Disconnect(reason=reason, session_expiry_s=session_expiry_s))
        assert self.is_closed

    def drop(self) -> None:
        """The network fails."""
        self.wire.lose()
        self.house.turn()

    # In

    def read(self) -> list[Packet]:
        """Everything that came and was not read yet, in order; topic aliases are put back."""
        self._pull()
        packets, self._unread = self._unread, []
        return packets

    def _pull(self) -> None:
        data = bytes(self.wire.taken)
        self.wire.taken.clear()
        pos = 0
        while pos < len(data):
            found = split(data, pos)
            assert found is not None, f"a packet is cut: {data[pos:]!r}"
            first_byte, start, pos = found
            self._unread.append(self._without_alias(decode(first_byte, data[start:pos], self.version)))

    def _without_alias(self, packet: Packet) -> Packet:
        if isinstance(packet, Publish) and (alias := packet.message.properties.topic_alias) is not None:
            if packet.message.topic:
                self._aliases[alias] = packet.message.topic
            else:
                message = packet.message
                message = Message(
                    topic=self._aliases[alias],
                    payload=message.payload,
                    qos=message.qos,
                    retain=message.retain,
                    properties=message.properties,
                )
                return Publish(message=message, packet_id=packet.packet_id, dup=packet.dup)
        return packet

    def take(self, kind: type[P], number: int | None = None) -> list[P]:
        """Packets of this kind (and this packet id) among what came; the others stay for later."""
        self._pull()
        found: list[P] = []
        rest: list[Packet] = []
        for packet in self._unread:
            if isinstance(packet, kind) and number in (None, getattr(packet, "packet_id", None)):
                found.append(packet)
            else:
                rest.append(packet)
        self._unread = rest
        return found

    def _answer(self, kind: type[P], number: int) -> P:
        found = self.take(kind, number)
        assert len(found) == 1, f"wanted one {kind.__name__} {number}, got {found} beside {self._unread}"
        return found[0]

    def messages(self) -> list[Publish]:
        return self.take(Publish)

    def payloads(self) -> list[bytes]:
        return [packet.message.payload for packet in self.messages()]

    @property
    def is_closed(self) -> bool:
        return self.wire.is_closing

    def reason_of_close(self) -> Reason | None:
        """The reason the broker gave before it closed; None where it gave none."""
        assert self.is_closed, "the connection is open"
        told = self.take(Disconnect)
        return told[-1].reason if told else None


def will(topic: str, payload: bytes = b"", *, delay_s: int = 0, qos: int = 0, retain: bool = False) -> Will:
    return Will(message=Message(topic=topic, payload=payload, qos=qos, retain=retain), delay_s=delay_s)
