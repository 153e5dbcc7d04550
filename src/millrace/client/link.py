"""One connection to a broker: bytes in and out over TCP, TLS or WebSocket.

A link is what the event loop calls; it hands bytes and endings to its owner and knows nothing of MQTT. The
owner writes without waiting: `on_writable` says when to stop and when to go on.
"""

import asyncio
import ssl
from typing import Any, Protocol

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

from millrace.client.address import BrokerAddress

# Written and not taken by the kernel; beyond it publishes wait.
_OUTPUT_BYTES_MAX = 256 * 1024
# [MQTT-6.0.0-3]
_SUBPROTOCOL = "mqtt"


class Owner(Protocol):
    """Who uses a link."""

    def on_data(self, link: "Link", data: bytes) -> None: ...
    def on_writable(self, link: "Link", writable: bool) -> None: ...
    def on_lost(self, link: "Link", error: Exception | None) -> None: ...


class Link(asyncio.Protocol):
    """TCP or TLS: the stream as it is."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: Any = None
        self._open = False
        self._reading = True
        # The loop has said that the connection is no more.
        self.gone = False

    async def opened(self) -> None:
        """Returns when bytes may be written."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._open = True
        transport.set_write_buffer_limits(high=_OUTPUT_BYTES_MAX)

    def connection_lost(self, error: Exception | None) -> None:
        self._open = False
        self.gone = True
        self._owner.on_lost(self, error)

    def data_received(self, data: bytes) -> None:
        self._owner.on_data(self, data)

    def pause_writing(self) -> None:
        self._owner.on_writable(self, False)

    def resume_writing(self) -> None:
        self._owner.on_writable(self, True)

    def write(self, data: bytes) -> None:
        if self._open:
            self._transport.write(data)

    def set_reading(self, reading: bool) -> None:
        if self._open and reading is not self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Write what is left, then close."""
        if self._open:
            # A paused transport does not notice that the other side is gone.
            self.set_reading(True)
            self._open = False
            self._transport.close()

    def abort(self) -> None:
        self._open = False
        if not self.gone and self._transport is not None:
            self._transport.abort()


class WebSocketLink(Link):
    """MQTT in binary frames (MQTT 5, section 6); a packet may lie across frames in any way."""

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
                super().write(self._frames.send(event.response()))
                super().close()
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

    def close(self) -> None:
        if self._open and self._accepted.done():
            super().write(self._frames.send(CloseConnection(code=1000)))
        super().close()


async def open_link(address: BrokerAddress, owner: Owner, context: ssl.SSLContext | None) -> Link:
    """Connect; raises OSError where that fails."""

    def make() -> Link:
        return WebSocketLink(owner, address) if address.websocket else Link(owner)

    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(
        make, address.host, address.port, ssl=context if address.tls else None
    )
    try:
        await link.opened()
    except BaseException:
        link.abort()
        raise
    return link


def tls_context(
    *, ca_file: str | None, cert_file: str | None, key_file: str | None, insecure: bool
) -> ssl.SSLContext:
    """The client's side of TLS; raises OSError or ssl.SSLError for files that cannot be used."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context
