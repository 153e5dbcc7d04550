"""One connection to a broker: bytes in and out over TCP or TLS; WebSocket is built on it beside.

A link is what the event loop calls; it hands bytes and endings to its owner and knows nothing of MQTT. The
owner writes without waiting: `on_writable` says when to stop and when to go on.
"""

import asyncio
import contextlib
import ssl
from typing import Any, Protocol

from millrace.client.address import BrokerAddress
from millrace.errors import ConfigError

# Written and not taken by the kernel; beyond it publishes wait.
_OUTPUT_BYTES_MAX = 256 * 1024


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

    def finish(self) -> None:
        """Nothing more will be written: let the other side read to the end and close.

        A socket closed with bytes unread resets the connection, and the reset may overtake our last words.
        """
        if self._open:
            self.set_reading(True)
            self._open = False
            if self._transport.can_write_eof():
                # The server may have closed already, which is what this is for.
                with contextlib.suppress(OSError):
                    self._transport.write_eof()

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


async def open_link(address: BrokerAddress, owner: Owner, context: ssl.SSLContext | None) -> Link:
    """Connect; raises OSError where that fails."""

    def make() -> Link:
        if not address.websocket:
            return Link(owner)
        # On first use: most clients never need it, and it takes longer to load than to connect.
        from millrace.client.websocket_link import WebSocketLink

        return WebSocketLink(owner, address)

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
    """The client's side of TLS; raises ConfigError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
