"""The text protocol: lines for people and small programs, the same conversation as MQTT 5 underneath.

    CONNECT|client[|user|password]   optional, first       CONNACK|client
    SUBSCRIBE|filter                                       SUBACK|filter
    UNSUBSCRIBE|filter                                     UNSUBACK|filter
    PUBLISH|topic|message            it may contain |      PUBACK|topic
    {"type": ..., "method": ..., ...}   of the queue       {"success": ..., ...}
                                                           MESSAGE|topic|payload
                                                           ERROR|reason

Lines end with LF; a CR before it is dropped. `Translator` turns lines into packets of one MQTT connection and
that connection's packets into lines, so a text client is a client like any other: the same sessions, access
rules and limits. It publishes and subscribes at QoS 1 and acknowledges what was written, so PUBACK means what
it means to every client: the message is where its stream keeps it. A line of JSON is a request of the queue,
which is no packet: `requests` has it for whoever can answer.

A payload that is not one line of UTF-8, or a topic with | in it, would break the lines: such a message is
sent as `MESSAGE64|topic|payload` with the topic percent-encoded and the payload in base64.
"""

import base64
import re
from collections import deque
from urllib.parse import quote

from millrace.errors import MalformedPacket, MillraceError, RemoteError
from millrace.limits import CONNECT_BYTES_MAX, STRING_BYTES_TOP, TEXT_OPEN_MAX
from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from millrace.wire.mqtt.primitives import check_filter, check_topic

_ID_MAX = 65_535
_BREAKS = ("\n", "\r")
_HTTP = re.compile(r"[A-Za-z-]+ .* HTTP/[0-9](\.[0-9])?\s*\Z", re.DOTALL)


class LineTooLong(RemoteError):
    """The rest of it cannot be told from the next line."""


class SpeaksHttp(RemoteError):
    """The first line is a request of HTTP. A web page can have its browser send one to any port, with lines
    of its own choice behind it."""


class Translator:
    """One connection, both ways."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        # The pieces of a line that is not whole yet, and their size.
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._partial = b""
        self._next_id = 0
        # Packet id -> what its answer names.
        self._open: dict[int, str] = {}
        self._filters: set[str] = set()
        self._client = ""
        self.is_connected = False
        self.is_accepted = False
        """Whether the connection was let in."""
        self.requests: deque[str] = deque()
        """Lines of JSON, in order. Whoever answers one takes it away then."""

    @property
    def expects(self) -> bool:
        """Whether anything may still come for this client if it sends nothing more."""
        return bool(self._open or self._filters or self.requests)

    @property
    def is_busy(self) -> bool:
        """Whether it waits for so many answers, or for such work, that it should not be read."""
        return len(self._open) >= TEXT_OPEN_MAX or bool(self.requests)

    # ------------------------------------------------------------------------------- lines to packets

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """The packets that these bytes mean, and lines that answer. Raises LineTooLong, SpeaksHttp."""
        self._rest.append(data)
        self._rest_bytes += len(data)
        lines: list[bytes] = []
        # A long line may come byte by byte: it is put together once, when its end is there.
        if b"\n" in data:
            *lines, rest = b"".join(self._rest).split(b"\n")
            self._rest, self._rest_bytes = [rest], len(rest)
        packets: list[bytes] = []
        answers: list[str] = []
        for line in lines:
            self._check(len(line))
            try:
                text = line.removesuffix(b"\r").decode()
            except UnicodeDecodeError:
                answers.append("ERROR|the line is not UTF-8")
                continue
            if _HTTP.match(text) and not self.is_connected:
                raise SpeaksHttp(Reason.PROTOCOL_ERROR, "this door speaks lines of text, not HTTP")
            if not text:
                continue
            if text.startswith("{"):
                if not self.is_connected:
                    packets.append(encode(self._connect(""), Version.MQTT_5))
                    self.is_connected = True
                self.requests.append(text)
                continue
            try:
                packets += [encode(packet, Version.MQTT_5) for packet in self._packets(text)]
            except MillraceError as error:
                # What no packet can say, a name that is too long, is the client's fault here.
                answers.append(f"ERROR|{error}")
                continue
            # The first line that means something brings CONNECT with it, or is one.
            self.is_connected = True
        self._check(self._rest_bytes)
        return b"".join(packets), _lines(answers)

    def _check(self, size: int) -> None:
        """Of whom nobody knows who it is, the first line is no longer than a CONNECT."""
        which, most = "a line", self._line_bytes_max
        if not self.is_connected and most > CONNECT_BYTES_MAX:
            which, most = "the first line", CONNECT_BYTES_MAX
        if size > most:
            raise LineTooLong(Reason.PACKET_TOO_LARGE, f"{which} has at most {most} bytes")

    def _packets(self, line: str) -> list[Packet]:
        command, _, rest = line.partition("|")
        if command == "CONNECT":
            if self.is_connected:
                raise RemoteError(Reason.PROTOCOL_ERROR, "CONNECT comes first, and once")
            return [self._connect(*rest.split("|", 2))]
        opening: list[Packet] = [] if self.is_connected else [self._connect("")]
        match command:
            case "PUBLISH":
                topic, found, payload = rest.partition("|")
                if not found:
                    raise RemoteError(Reason.PROTOCOL_ERROR, "PUBLISH|topic|message has two |")
                check_topic(topic)
                _check_characters(topic)
                message = Message(topic=topic, payload=payload.encode(), qos=1)
                return [*opening, Publish(message=message, packet_id=self._ask(topic))]
            case "SUBSCRIBE":
                check_filter(rest)
                _check_characters(rest)
                wanted = Subscription(filter=rest, qos=1)
                return [*opening, Subscribe(packet_id=self._ask(rest), subscriptions=(wanted,))]
            case "UNSUBSCRIBE":
                check_filter(rest)
                _check_characters(rest)
                return [*opening, Unsubscribe(packet_id=self._ask(rest), filters=(rest,))]
        raise RemoteError(
            Reason.PROTOCOL_ERROR,
            f"{command[:20]!r} is no command: CONNECT, SUBSCRIBE, UNSUBSCRIBE or PUBLISH, then | and a topic",
        )

    def _connect(self, client: str, user: str | None = None, password: str | None = None) -> Connect:
        self._client = client
        return Connect(
            client_id=client,
            version=Version.MQTT_5,
            username=user,
            password=None if password is None else password.encode(),
        )

    def _ask(self, subject: str) -> int:
        while True:
            self._next_id = self._next_id % _ID_MAX + 1
            if self._next_id not in self._open:
                self._open[self._next_id] = subject
                return self._next_id

    # ------------------------------------------------------------------------------- packets to lines

    def send(self, data: bytes) -> tuple[bytes, bytes]:
        """The lines that the connection's packets mean, and the packets that answer them."""
        data = self._partial + data
        lines: list[str] = []
        answers: list[bytes] = []
        pos = 0
        while (found := split(data, pos)) is not None:
            _, body, end = found
            packet = decode(data[pos], data[body:end], Version.MQTT_5)
            lines += self._say(packet)
            if isinstance(packet, Publish) and packet.packet_id is not None:
                answers.append(encode(Puback(packet_id=packet.packet_id), Version.MQTT_5))
            pos = end
        self._partial = data[pos:]
        return _lines(lines), b"".join(answers)

    def _say(self, packet: Packet) -> list[str]:
        match packet:
            case Publish():
                return [_message(packet.message)]
            case Connack():
                if packet.reason is not Reason.SUCCESS:
                    return [_refusal("CONNECT", packet.reason)]
                self.is_accepted = True
                return [f"CONNACK|{packet.assigned_client_id or self._client}"]
            case Puback():
                return [self._answer("PUB", packet.packet_id, packet.reason)]
            case Suback():
                return [self._answer("SUB", packet.packet_id, packet.reasons[0])]
            case Unsuback():
                return [self._answer("UNSUB", packet.packet_id, packet.reasons[0])]
            case Disconnect():
                return [f"ERROR|{packet.reason_string or _words(packet.reason)}"]
        return []

    def _answer(self, what: str, packet_id: int, reason: Reason) -> str:
        subject = self._open.pop(packet_id, "")
        if reason >= Reason.UNSPECIFIED:
            return _refusal(subject, reason)
        if what == "SUB":
            self._filters.add(subject)
        elif what == "UNSUB":
            self._filters.discard(subject)
        return f"{what}ACK|{subject}"


def _message(message: Message) -> str:
    if not any(mark in message.topic for mark in ("|", *_BREAKS)):
        try:
            payload = message.payload.decode()
        except UnicodeDecodeError:
            pass
        else:
            if not any(mark in payload for mark in _BREAKS):
                return f"MESSAGE|{message.topic}|{payload}"
    return f"MESSAGE64|{quote(message.topic)}|{base64.b64encode(message.payload).decode()}"


def _refusal(subject: str, reason: Reason) -> str:
    return f"ERROR|{subject}: {_words(reason)}"


def _words(reason: Reason) -> str:
    return f"{reason.name.lower().replace('_', ' ')} (0x{reason:02x})"


def _check_characters(text: str) -> None:
    if "\0" in text or len(text.encode()) > STRING_BYTES_TOP:
        raise MalformedPacket(f"{text[:80]!r} is too long for a topic, or holds a null character")


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
