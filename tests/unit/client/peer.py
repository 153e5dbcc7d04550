"""The other end of a client core, by hand: what the core sends is decoded, what it gets is encoded."""

from typing import Any

from millrace.client.conversation.events import Connected, Delivered, Event
from millrace.client.conversation.incoming import Message
from millrace.client.conversation.protocol import Options, Protocol
from millrace.reasons import Reason
from millrace.types import Message as PlainMessage
from millrace.types import Properties, Subscription, Version
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import Connack, Connect, Packet, Publish, Suback, Subscribe


class Peer:
    """A server by hand. Time stands still unless a test moves `now_s`."""

    def __init__(self, **options: Any) -> None:
        self.options = Options(client_id="c", **options)
        self.core = Protocol(self.options)
        self.now_s = 100.0
        self._tickets = 1000

    def connect(self, **connack: Any) -> list[Packet]:
        """A whole handshake; returns what the core sent after CONNACK."""
        self.core.connect(self.now_s)
        (connect,) = self.sent()
        assert isinstance(connect, Connect)
        first, *rest = self.feed(Connack(reason=Reason.SUCCESS, **connack))
        assert isinstance(first, Connected)
        self.leftover = rest
        return self.sent()

    def reconnect(self, **connack: Any) -> list[Packet]:
        self.core.connection_lost()
        return self.connect(**connack)

    def subscribe(self, number: int, *filters: str, qos: int = 2) -> None:
        """A granted subscription."""
        self._tickets += 1
        self.core.subscribe(self._tickets, number, tuple(Subscription(filter=f, qos=qos) for f in filters))
        (packet,) = self.sent()
        assert isinstance(packet, Subscribe)
        self.feed(Suback(packet_id=packet.packet_id, reasons=tuple(Reason(qos) for _ in filters)))

    def sent(self) -> list[Packet]:
        """Everything the core wants to send now."""
        data = b""
        while piece := self.core.data_to_send(self.now_s):
            data += piece
        packets: list[Packet] = []
        pos = 0
        while pos < len(data):
            found = split(data, pos)
            assert found is not None, "half a packet was sent"
            first, start, end = found
            packets.append(decode(first, data[start:end], self.options.version))
            pos = end
        return packets

    def feed(self, *packets: Packet) -> list[Event]:
        self.core.receive_data(b"".join(encode(p, self.options.version) for p in packets), self.now_s)
        return self.events()

    def events(self) -> list[Event]:
        found: list[Event] = []
        while (event := self.core.next_event()) is not None:
            found.append(event)
        return found

    def deliver(self, text: str, *, qos: int = 1, packet_id: int | None = None, **more: Any) -> list[Message]:
        """A publish on topic `a` from the server; returns the messages that this gave the application."""
        properties = Properties(subscription_ids=more.pop("ids", ()))
        packet = Publish(
            message=PlainMessage(
                topic=more.pop("topic", "a"), payload=text.encode(), qos=qos, properties=properties
            ),
            packet_id=packet_id,
            dup=more.pop("dup", False),
        )
        assert not more
        return [event.message for event in self.feed(packet) if isinstance(event, Delivered)]


def message(text: str, *, qos: int = 1, topic: str = "t", retain: bool = False) -> PlainMessage:
    return PlainMessage(topic=topic, payload=text.encode(), qos=qos, retain=retain)


def texts(packets: list[Packet]) -> list[str]:
    """The payloads of the publishes among these packets, a `!` behind those with DUP."""
    return [p.message.payload.decode() + ("!" if p.dup else "") for p in packets if isinstance(p, Publish)]


BOTH = (Version.MQTT_5, Version.MQTT_3_1_1)
