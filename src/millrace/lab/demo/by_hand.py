"""An MQTT client that acknowledges only when it is told to, to show what happens to messages under way."""

import asyncio

from millrace.types import Subscription, Version
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
)

_TIMEOUT_S = 20.0


class HandClient:
    """One connection of a durable session."""

    def __init__(self, port: int, client_id: str, *, receive_maximum: int = 65_535) -> None:
        self._port = port
        self._client_id = client_id
        self._receive_maximum = receive_maximum
        self._held = b""
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self) -> bool:
        """True where the broker knows the session."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._send(
            Connect(
                version=Version.MQTT_5,
                client_id=self._client_id,
                clean_start=False,
                session_expiry_s=3600,
                receive_maximum=self._receive_maximum,
            )
        )
        answer = await self.packet()
        assert isinstance(answer, Connack) and answer.reason < 0x80, answer
        return answer.session_present

    async def subscribe(self, filter: str, qos: int) -> None:
        self._send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=filter, qos=qos),)))
        assert isinstance(await self.packet(), Suback)

    async def publish(self) -> Publish:
        """The next message, not acknowledged."""
        while True:
            packet = await self.packet()
            if isinstance(packet, Publish):
                return packet
            if isinstance(packet, Pubrel):
                self._send(Pubcomp(packet_id=packet.packet_id))

    def acknowledge(self, packet: Publish) -> None:
        if packet.packet_id:
            answer = Puback if packet.message.qos == 1 else Pubrec
            self._send(answer(packet_id=packet.packet_id))

    async def ping(self) -> None:
        """Wait until the broker has read all that was sent."""
        self._send(Pingreq())
        while not isinstance(await self.packet(), Pingresp):
            pass

    async def ended(self) -> Disconnect | None:
        """Wait for the end of the connection; the broker's word, where it gave one."""
        said: Disconnect | None = None
        try:
            while True:
                packet = await self.packet()
                said = packet if isinstance(packet, Disconnect) else said
        except (ConnectionError, EOFError):
            return said

    def drop(self) -> None:
        """Gone, without a goodbye."""
        self._writer.transport.abort()

    def _send(self, packet: Packet) -> None:
        self._writer.write(encode(packet, Version.MQTT_5))

    async def packet(self) -> Packet:
        async with asyncio.timeout(_TIMEOUT_S):
            while (cut := split(self._held)) is None:
                data = await self._reader.read(65_536)
                if not data:
                    raise EOFError
                self._held += data
        first, start, end = cut
        body, self._held = self._held[start:end], self._held[end:]
        return decode(first, body, Version.MQTT_5)
