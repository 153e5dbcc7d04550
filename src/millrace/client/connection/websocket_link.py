"""MQTT in binary WebSocket frames (MQTT 5, section 6); a packet may lie across frames in any way."""

import asyncio
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import RemoteProtocolError

from millrace.client.connection.address import BrokerAddress
from millrace.client.connection.link import Link, Owner

# [MQTT-6.0.0-3]
_SUBPROTOCOL = "mqtt"
_NORMAL = 1000


class WebSocketLink(Link):
    """The handshake, then the stream inside the frames."""

    def __init__(self, owner: Owner, address: BrokerAddress) -> None:
        super().__init__(owner)
        self._address = address
        self._frames = WSConnection(ConnectionType.CLIENT)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def opened(self) -> None:
        await self._accepted

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        request = Request(
            host=self._address.authority, target=self._address.path, subprotocols=[_SUBPROTOCOL]
        )
        transport.write(self._frames.send(request))

    def connection_lost(self, error: Exception | None) -> None:
        self._refuse("the connection was closed during the WebSocket handshake")
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._on_event(event)
        except RemoteProtocolError as error:
            self._refuse(f"not a WebSocket: {error}")
            self.abort()

    def _on_event(self, event: Event) -> None:
        match event:
            case AcceptConnection():
                if event.subprotocol == _SUBPROTOCOL:
                    self._accepted.set_result(None)
                else:
                    self._refuse("the WebSocket server does not speak MQTT")
                    self.abort()
            case RejectConnection() | RejectData():
                status = f" with status {event.status_code}" if isinstance(event, RejectConnection) else ""
                self._refuse(f"the WebSocket was refused{status}")
                self.abort()
            case BytesMessage():
                if event.data:
                    super().data_received(bytes(event.data))
            case TextMessage():
                self.abort()  # [MQTT-6.0.0-1]: binary frames only
            case Ping():
                super().write(self._frames.send(event.response()))
            case CloseConnection():
                if self._open:
                    super().write(self._frames.send(event.response()))
                self._open = False
                self._transport.close()
            case _:
                pass

    def _refuse(self, detail: str) -> None:
        if not self._accepted.done():
            self._accepted.set_exception(ConnectionError(detail))
            # Nobody may be waiting any more.
            self._accepted.exception()

    def write(self, data: bytes) -> None:
        if self._open:
            super().write(self._frames.send(BytesMessage(data=data)))

    def finish(self) -> None:
        self._say_goodbye()
        super().finish()

    def close(self) -> None:
        self._say_goodbye()
        super().close()

    def _say_goodbye(self) -> None:
        if self._open and self._accepted.done():
            super().write(self._frames.send(CloseConnection(code=_NORMAL)))
