"""Messages to the server: one line that keeps its order, a window of those not acknowledged yet.

Every publish stands in `_waiting` until the window has room, QoS 0 behind the others too, so that what was
published first leaves first. A sent QoS 1 or 2 message stays in `_sent` under its packet id; at QoS 2 PUBREC
moves it to `_released`, where only PUBCOMP is missing and the message itself is safe with the server.

A client whose process started anew finds a session of which it knows nothing; see `Inheritance`.

After a reconnect that finds the session again, the unacknowledged return to the head of the line with their
ids and leave with DUP ([MQTT-4.4.0-1]). Without a session they leave as new messages; what was released is
finished, because the server had taken it over with PUBREC.
"""

from collections import deque
from collections.abc import Iterator

from millrace.client.conversation.events import Published
from millrace.client.conversation.packet_ids import Inheritance, PacketIds
from millrace.errors import ProtocolError
from millrace.limits import CLIENT_WINDOW_MAX
from millrace.reasons import Reason
from millrace.types import Message, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connack, Publish, Pubrel

# MQTT 3.1.1 servers name no bound and have one: mosquitto forwards 20 unfinished QoS 2 messages of a client
# and acknowledges more without ever forwarding them.
_WINDOW_QOS_2_UNTOLD = 20


class _Entry:
    __slots__ = ("message", "packet_id", "ticket", "withdrawn")

    def __init__(self, ticket: int, message: Message) -> None:
        self.ticket = ticket
        self.message = message
        # 0 until it was sent; one that waits with an id is sent again.
        self.packet_id = 0
        self.withdrawn = False


class Outgoing:
    def __init__(self, ids: PacketIds, version: Version) -> None:
        self._ids = ids
        self._version = version
        self._waiting: deque[_Entry] = deque()
        self._sent: dict[int, _Entry] = {}
        self._released: dict[int, _Entry] = {}
        self._by_ticket: dict[int, _Entry] = {}
        self._inheritance: Inheritance | None = None
        self._first_connection = True
        self._server = Connack(reason=Reason.SUCCESS)
        self._window = 0

    def add(self, ticket: int, message: Message) -> None:
        entry = self._by_ticket[ticket] = _Entry(ticket, message)
        self._waiting.append(entry)

    def withdraw(self, ticket: int) -> None:
        """Nobody waits for it any more. What was sent stays in the window until it is acknowledged."""
        entry = self._by_ticket.get(ticket)
        if entry is None:
            return
        entry.withdrawn = True
        if not entry.packet_id:
            # Those that are given up one after the other stand at the head.
            self._waiting.remove(entry)
            del self._by_ticket[ticket]

    def resume(self, connack: Connack) -> Iterator[Pubrel | Published]:
        """A connection is accepted: releases to send again, and publishes that this finishes."""
        self._server = connack
        self._window = min(connack.receive_maximum or CLIENT_WINDOW_MAX, CLIENT_WINDOW_MAX)
        if not connack.session_present:
            self._inheritance = None
        elif self._first_connection:
            self._inheritance = Inheritance()
        self._first_connection = False
        again = [*self._sent.values(), *self._waiting]
        self._sent.clear()
        if connack.session_present:
            self._waiting = deque(again)
            yield from (Pubrel(packet_id=packet_id) for packet_id in self._released)
            if self._inheritance is not None:
                yield from (Pubrel(packet_id=packet_id) for packet_id in self._inheritance.asked)
            return
        for entry in again:
            self._ids.give_back(entry.packet_id)
            entry.packet_id = 0
        self._waiting = deque(again)
        for packet_id in list(self._released):
            yield self._finish(self._released.pop(packet_id), Reason.SUCCESS, None)

    def send_next(self) -> tuple[bytes, Published | None] | None:
        """The next bytes (none if the server would refuse the publish) and, if that ends one, how."""
        waiting = self._waiting
        while waiting and waiting[0].withdrawn and not waiting[0].packet_id:
            del self._by_ticket[waiting.popleft().ticket]
        if not waiting:
            return None
        entry = waiting[0]
        message = entry.message
        qos = message.qos
        if qos:
            untold = qos == 2 and self._version != Version.MQTT_5
            window = min(self._window, _WINDOW_QOS_2_UNTOLD) if untold else self._window
            if len(self._sent) + len(self._released) >= window:
                return None
            if qos == 2 and not entry.packet_id and self._inheritance is not None:
                releases = self._inheritance.ask(self._ids.peek())
                if releases:
                    return b"".join(encode(one, self._version) for one in releases), None
                if self._inheritance.asked:
                    return None
        waiting.popleft()
        again = entry.packet_id != 0
        if qos and not again:
            entry.packet_id = self._ids.take()
        data = encode(Publish(message=message, packet_id=entry.packet_id or None, dup=again), self._version)
        refusal = self._refusal(message, len(data))
        if refusal is not None:
            return b"", self._finish(entry, *refusal)
        if not qos:
            return data, self._finish(entry, Reason.SUCCESS, None)
        self._sent[entry.packet_id] = entry
        return data, None

    def _refusal(self, message: Message, size_bytes: int) -> tuple[Reason, str] | None:
        """What CONNACK said the server will not take: sending it would cost the connection."""
        server = self._server
        if server.maximum_qos is not None and message.qos > server.maximum_qos:
            return Reason.QOS_NOT_SUPPORTED, f"the server takes QoS {server.maximum_qos} at most"
        if message.retain and server.retain_available is False:
            return Reason.RETAIN_NOT_SUPPORTED, "the server keeps no retained messages"
        if server.packet_bytes_max is not None and size_bytes > server.packet_bytes_max:
            return (
                Reason.PACKET_TOO_LARGE,
                f"a packet of {size_bytes} bytes, the server takes {server.packet_bytes_max}",
            )
        return None

    def on_puback(self, packet_id: int, reason: Reason, detail: str | None) -> Published | None:
        entry = self._sent.get(packet_id)
        if entry is None:
            return None
        if entry.message.qos != 1:
            raise ProtocolError("PUBACK for a message of QoS 2")
        return self._finish(self._sent.pop(packet_id), reason, detail)

    def on_pubrec(
        self, packet_id: int, reason: Reason, detail: str | None
    ) -> tuple[Pubrel | None, Published | None]:
        entry = self._sent.get(packet_id)
        if entry is None:
            # [MQTT-4.3.3-4] for one that is released already; 3.6.2.1 for one we know nothing of.
            known = packet_id in self._released
            return Pubrel(
                packet_id=packet_id, reason=Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND
            ), None
        if entry.message.qos != 2:
            raise ProtocolError("PUBREC for a message of QoS 1")
        if reason >= Reason.UNSPECIFIED:
            return None, self._finish(self._sent.pop(packet_id), reason, detail)
        self._released[packet_id] = self._sent.pop(packet_id)
        return Pubrel(packet_id=packet_id), None

    def on_pubcomp(self, packet_id: int) -> Published | None:
        if self._inheritance is not None and self._inheritance.on_pubcomp(packet_id):
            return None
        if packet_id in self._sent:
            raise ProtocolError("PUBCOMP before PUBREC")
        if packet_id not in self._released:
            return None
        # A release that the server does not know any more is as good: it took the message over with PUBREC.
        return self._finish(self._released.pop(packet_id), Reason.SUCCESS, None)

    def _finish(self, entry: _Entry, reason: Reason, detail: str | None) -> Published:
        self._ids.give_back(entry.packet_id)
        del self._by_ticket[entry.ticket]
        return Published(ticket=entry.ticket, reason=reason, detail=detail)
