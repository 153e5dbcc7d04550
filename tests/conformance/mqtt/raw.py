"""A raw MQTT client for judging a broker: plain sockets, any bytes out, strict reading in.

Nothing happens behind the test's back: no acknowledgement, no ping, no reconnect. Every wait has a deadline
and a failed expectation says what was wanted and what came. What a client told the broker in CONNECT (packet
size, aliases, receive maximum, no problem information) is watched on every packet it receives, so each of
these rules is checked wherever any test reads.

`Lab` is what a test gets: it opens clients, invents client ids and topics that no other test uses, and closes
what is left. `quiet` shows that nothing came: a PINGREQ round trip, which any earlier answer precedes, and
then a short silence for what the broker may deliver on its own account.
"""

import asyncio
import contextlib
import itertools
import secrets
from dataclasses import dataclass
from typing import Any

from conformance.mqtt import wire
from conformance.mqtt.wire import V5, Packet, need

DEADLINE_S = 30.0
SILENCE_S = 0.04
# Names stay unique even when the suite runs twice against the same long-lived broker.
RUN = secrets.token_hex(3)
_numbers = itertools.count(1)


class Closed(AssertionError):
    """The broker closed the connection where a packet was expected."""


class Client:
    """One network connection. `version` decides how both directions are read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version
        self.client_id = ""
        self.connack: Packet | None = None
        self.pending: list[Packet] = []
        self.aliases: dict[int, str] = {}
        self.open_ids: set[int] = set()
        self.asked: dict[str, Any] = {}
        self.next_id = 0
        # 4.13.1: before it closes, a server SHOULD say why. Set where only MUST counts.
        self.must_only = False

    # Out

    async def send(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))
        # The broker may close while we write; what it said is read by the next expectation.
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    def packet_id(self) -> int:
        self.next_id = self.next_id % 65_535 + 1
        return self.next_id

    # In

    async def _read_packet(self, within_s: float) -> Packet:
        try:
            async with asyncio.timeout(within_s):
                first = (await self.reader.readexactly(1))[0]
                length = bytearray()
                while not length or length[-1] & 0x80:
                    need(len(length) < 4, "1.5.5-1", "remaining length longer than four bytes")
                    length += await self.reader.readexactly(1)
                remaining = wire.Reader(bytes(length)).varint()
                body = await self.reader.readexactly(remaining)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Closed("the broker closed the connection") from error
        seen = wire.decode(first, body, 1 + len(length) + remaining, self.version)
        self._check_promises(seen)
        return seen

    def _check_promises(self, seen: Packet) -> None:
        """What this client asked for in CONNECT binds the broker on every packet."""
        limit = self.asked.get("maximum_packet_size")
        need(limit is None or seen.size <= limit, "3.1.2-24", f"{seen.size} bytes, {limit} allowed: {seen}")
        if self.asked.get("request_problem") == 0 and seen.kind not in (
            wire.PUBLISH,
            wire.CONNACK,
            wire.DISCONNECT,
        ):
            need(not seen.props, "3.1.2-29", f"unwanted problem information: {seen}")
        if seen.kind != wire.PUBLISH:
            return
        alias = seen.props.get("topic_alias")
        if alias is not None:
            top = self.asked.get("topic_alias_maximum", 0)
            need(top, "3.1.2-27", f"alias to a client that allows none: {seen}")
            need(1 <= alias <= top, "3.1.2-26", f"alias {alias}, maximum {top}")
            if seen.topic:
                self.aliases[alias] = seen.topic
            need(alias in self.aliases, "3.3.2-7", f"alias {alias} was never set on this connection")
            seen.topic = self.aliases[alias]
        if seen.packet_id is not None:
            # A repeat belongs to a new connection, on which its id is as unused as any.
            rule = "4.4.0-1" if seen.dup else "2.2.1-4"
            need(seen.packet_id not in self.open_ids, rule, f"packet id in use: {seen}")
            self.open_ids.add(seen.packet_id)
            limit = self.asked.get("receive_maximum")
            need(limit is None or len(self.open_ids) <= limit, "3.3.4-9", f"more than {limit} open: {seen}")

    async def receive(self, within_s: float = DEADLINE_S) -> Packet:
        """The next packet, whatever it is."""
        if self.pending:
            return self.pending.pop(0)
        try:
            return await self._read_packet(within_s)
        except TimeoutError:
            raise AssertionError(f"nothing came from the broker within {within_s} s") from None

    async def expect(self, kind: int, within_s: float = DEADLINE_S, **fields: Any) -> Packet:
        """The next packet, which must be of this kind and have these field values."""
        wanted = f"{wire.NAMES[kind]} {fields or ''}"
        try:
            seen = await self.receive(within_s)
        except AssertionError as error:
            raise type(error)(f"wanted {wanted}: {error}") from None
        assert seen.kind == kind, f"wanted {wanted}, got {seen}"
        for name, value in fields.items():
            assert getattr(seen, name) == value, f"wanted {wanted}, got {seen}"
        return seen

    async def take(self, kind: int, **fields: Any) -> Packet:
        """The first packet that fits, wherever it stands; what came before it stays for later."""
        skipped: list[Packet] = []
        try:
            while True:
                seen = await self.receive()
                if seen.kind == kind and all(getattr(seen, name) == value for name, value in fields.items()):
                    return seen
                skipped.append(seen)
        except AssertionError as error:
            came = ", ".join(map(str, skipped)) or "nothing"
            raise type(error)(f"wanted {wire.NAMES[kind]} {fields or ''}, got {came}: {error}") from None
        finally:
            self.pending[:0] = skipped

    async def expect_message(self, topic: str, payload: bytes | None = None, **fields: Any) -> Packet:
        if payload is not None:
            fields["payload"] = payload
        return await self.expect(wire.PUBLISH, topic=topic, **fields)

    async def ping(self) -> list[Packet]:
        """A PINGREQ round trip; gives what arrived before the answer."""
        await self.send(wire.PING)
        before = []
        while (seen := await self.receive()).kind != wire.PINGRESP:
            before.append(seen)
        return before

    async def quiet(self, silence_s: float = SILENCE_S) -> None:
        """Nothing is under way to this client."""
        before = await self.ping()
        assert not before, "wanted nothing, got " + ", ".join(map(str, before))
        try:
            seen = await self._read_packet(silence_s)
        except TimeoutError:
            return
        raise AssertionError(f"wanted nothing, got {seen}")

    async def expect_closed(self, *reasons: int, within_s: float = DEADLINE_S) -> Packet | None:
        """The broker ends this connection; a v5 one with DISCONNECT and one of these reasons before that.

        Without reasons, no packet may come at all.
        """
        told = None
        if reasons and self.version == V5:
            try:
                told = await self.expect(wire.DISCONNECT, within_s)
            except Closed:
                if self.must_only:
                    return None
                raise
            wanted = " or ".join(f"0x{reason:02x}" for reason in reasons)
            assert told.reason in reasons, f"wanted DISCONNECT {wanted}, got {told}"
        await self._expect_end(within_s)
        return told

    async def _expect_end(self, within_s: float = DEADLINE_S) -> None:
        try:
            seen = self.pending.pop(0) if self.pending else await self._read_packet(within_s)
        except Closed:
            return
        except TimeoutError:
            raise AssertionError(f"the broker did not close the connection within {within_s} s") from None
        raise AssertionError(f"wanted the connection closed, got {seen}")

    async def expect_refused(self, *reasons: int, silently: bool = True) -> Packet | None:
        """CONNECT is not accepted: CONNACK with one of these reasons, or `silently` nothing, then the end."""
        try:
            seen = await self.receive()
        except Closed:
            assert silently, "wanted a CONNACK that refuses, got a close"
            return None
        assert seen.kind == wire.CONNACK, f"wanted a CONNACK that refuses or a close, got {seen}"
        wanted = " or ".join(f"0x{reason:02x}" for reason in reasons) or "none"
        assert seen.reason in reasons, f"wanted CONNACK {wanted}, got {seen}"
        assert not seen.session_present, "session present in a refusal [MQTT-3.2.2-6]"
        await self._expect_end()
        return seen

    async def rest(self) -> bytes:
        """Everything that comes until the broker closes, unread: for answers whose version is open."""
        assert not self.pending
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self.reader.read()
        except ConnectionError:
            return b""
        except TimeoutError:
            raise AssertionError(f"the broker did not close the connection within {DEADLINE_S} s") from None

    # Conversations that many tests need

    async def connect(self, client_id: str, **fields: Any) -> Packet:
        """CONNECT, accepted."""
        fields.setdefault("version", self.version)
        self.client_id = client_id
        self.asked = dict(fields.get("props") or {})
        await self.send(wire.connect(client_id, **fields))
        self.connack = await self.expect(wire.CONNACK, reason=0)
        return self.connack

    async def subscribe(self, *filters: tuple[str, int] | str, props: dict[str, Any] | None = None) -> Packet:
        """SUBSCRIBE, every filter granted. A filter is a name (at QoS 2) or (name, options)."""
        pairs = [(item, 2) if isinstance(item, str) else item for item in filters]
        number = self.packet_id()
        await self.send(wire.subscribe(number, *pairs, version=self.version, props=props))
        answer = await self.take(wire.SUBACK, packet_id=number)
        assert len(answer.reasons) == len(pairs), f"[MQTT-3.8.4-6] {len(pairs)} filters, got {answer}"
        assert all(reason < 0x80 for reason in answer.reasons), f"subscription refused: {answer}"
        return answer

    async def unsubscribe(self, *filters: str) -> Packet:
        number = self.packet_id()
        await self.send(wire.unsubscribe(number, *filters, version=self.version))
        return await self.take(wire.UNSUBACK, packet_id=number)

    async def publish(
        self, topic: str | bytes, payload: bytes = b"", qos: int = 0, **fields: Any
    ) -> Packet | None:
        """PUBLISH with its whole handshake. At QoS 0 a ping shows that the broker has taken it."""
        number = self.packet_id() if qos else None
        fields.setdefault("version", self.version)
        await self.send(wire.publish(topic, payload, qos=qos, packet_id=number, **fields))
        if qos == 0:
            self.pending += await self.ping()
            return None
        answer = await self.take(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id=number)
        assert answer.reason < 0x80, f"publish refused: {answer}"
        if number is not None and qos == 2:
            await self.send(wire.ack(wire.PUBREL, number))
            await self.take(wire.PUBCOMP, packet_id=number)
        return answer

    async def acknowledge(self, message: Packet) -> None:
        """Finish what the QoS of a received message asks of its receiver."""
        assert message.packet_id is not None
        if message.qos == 1:
            await self.puback(message)
        elif message.qos == 2:
            await self.send(wire.ack(wire.PUBREC, message.packet_id))
            await self.take(wire.PUBREL, packet_id=message.packet_id)
            await self.pubcomp(message)

    async def puback(self, message: Packet, reason: int | None = None) -> None:
        self.open_ids.discard(message.packet_id or 0)
        await self.send(wire.ack(wire.PUBACK, message.packet_id or 0, reason))

    async def pubcomp(self, message: Packet) -> None:
        self.open_ids.discard(message.packet_id or 0)
        await self.send(wire.ack(wire.PUBCOMP, message.packet_id or 0))

    async def disconnect(self, reason: int | None = None, props: dict[str, Any] | None = None) -> None:
        """A goodbye, and the broker's end of it."""
        await self.send(wire.disconnect(reason, props))
        await self._expect_end()
        await self.drop()

    async def drop(self) -> None:
        """Go without a goodbye: the broker sees the network fail."""
        self.writer.transport.abort()
        await self._closed()

    async def _closed(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the broker under judgement listens, on loopback."""

    port: int
    websocket_port: int | None


class Lab:
    """What one test works with."""

    def __init__(self, endpoint: Endpoint, *, must_only: bool = False) -> None:
        self.must_only = must_only
        self.port = endpoint.port
        self.websocket_port = endpoint.websocket_port
        self.clients: list[Client] = []

    def name(self) -> str:
        """A client id no other test uses: letters and digits, at most 23."""
        return f"c{RUN}{next(_numbers)}"

    def topic(self, tail: str = "") -> str:
        return f"t/{RUN}/{next(_numbers)}{tail}"

    async def open(self, version: int = V5, port: int | None = None) -> Client:
        """A network connection on which nothing was said yet."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port or self.port, limit=1 << 22)
        client = Client(reader, writer, version)
        client.must_only = self.must_only
        self.clients.append(client)
        return client

    async def connect(self, version: int = V5, *, client_id: str | None = None, **fields: Any) -> Client:
        """A connected client; with `resume`, one whose session is kept and taken up again."""
        if fields.pop("resume", False):
            fields["clean"] = False
            if version == V5:
                fields["props"] = {"session_expiry": 300, **(fields.get("props") or {})}
        client = await self.open(version)
        await client.connect(self.name() if client_id is None else client_id, **fields)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.drop()


async def let_time_pass(seconds: float) -> None:
    """For rules about time itself: expiry counts in whole seconds on the broker's own clock."""
    loop = asyncio.get_running_loop()
    passed = loop.create_future()
    loop.call_later(seconds, passed.set_result, None)
    await passed
