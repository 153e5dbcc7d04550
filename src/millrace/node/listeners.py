"""Open sockets: which protocol object a fresh connection gets.

Plain TCP connections are `MqttConnection` itself; the PROXY header and WebSocket are small adapters in
front of it. (Both event loops switch Nagle off; a broker writes once per loop turn already.)
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from millrace.errors import ConfigError, RemoteError
from millrace.node.config import Address, Tls
from millrace.node.output import SLOW_BYTES, PacedOutput
from millrace.wire import proxy

log = logging.getLogger("millrace.listeners")

_BACKLOG = 4096
# What can still be meant as a header; anything longer without one is refused by the parser before.
_PROXY_BYTES_MAX = 4096


class Tuned:
    """Sets the transport's bounds, then steps aside: the loop calls the connection directly from then on."""

    def __init__(self, make: Callable[[], Any], output_bytes_max: int) -> None:
        self._make = make
        self._output_bytes_max = output_bytes_max

    def connection_made(self, transport: Any) -> None:
        slow_bytes = min(SLOW_BYTES, self._output_bytes_max)
        transport.set_write_buffer_limits(high=slow_bytes, low=slow_bytes // 4)
        inner = self._make()
        transport.set_protocol(inner)
        inner.connection_made(transport)
        if isinstance(inner, PacedOutput):
            # Nothing stands between it and the socket.
            inner.write_straight()

    def data_received(self, data: bytes) -> None:
        raise AssertionError("the connection was handed over when it was made")

    def connection_lost(self, error: Exception | None) -> None:
        """Lost before it was made."""


class ProxyHeader:
    """Reads the PROXY header, then hands the connection on with the client's address."""

    def __init__(self, inner: Any, set_peer: Callable[[tuple[str, int]], None]) -> None:
        self._inner = inner
        self._set_peer = set_peer
        self._held = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        try:
            found = proxy.parse(self._held[:_PROXY_BYTES_MAX])
        except RemoteError as error:
            log.info("closing %s: %s", self._transport.get_extra_info("peername"), error)
            self._transport.abort()
            return
        if found is None:
            return
        used, source = found
        rest, self._held = self._held[used:], b""
        if source is not None:
            self._set_peer(source)
        self._transport.set_protocol(self._inner)
        if rest:
            self._inner.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


async def listen(
    address: Address, factory: Callable[[], Any], context: ssl.SSLContext | None
) -> tuple[asyncio.Server, int]:
    """Listen; returns the server and the port it got."""
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            factory, address.host, address.port, ssl=context, backlog=_BACKLOG, reuse_address=True
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {address}: {reason}; is another broker running there?"
        ) from error
    return server, server.sockets[0].getsockname()[1]


def tls_context(settings: Tls) -> ssl.SSLContext:
    """The server's side of TLS, from files that the configuration names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca:
            context.load_verify_locations(settings.client_ca)
            required = settings.require_client_certificate
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error}") from error
    return context
