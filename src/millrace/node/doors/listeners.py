"""Open sockets: which connections are kept, and which protocol object a fresh one gets.

A `Listener` accepts by itself and hands what it keeps to the event loop: a loop that accepts takes all that
wait in one go, before anybody could say that there are too many, and the faster one gives up a listener for
good if it finds no descriptor at a bad moment.

Plain TCP connections are `MqttConnection` itself; the PROXY header and WebSocket are small adapters in
front of it. What clients of MQTT open without TLS gets the transport of `socket_transport.py`.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from millrace.errors import ConfigError, RemoteError
from millrace.limits import PROXY_HEADER_BYTES_MAX
from millrace.node.config import Address
from millrace.node.doors.descriptors import Descriptors
from millrace.node.doors.output import SLOW_BYTES, PacedOutput
from millrace.node.doors.port_holder import holder
from millrace.node.doors.socket_transport import IS_AVAILABLE, SocketPoll
from millrace.node.seldom import Seldom
from millrace.node.turn import Turn
from millrace.wire import proxy

# What strangers send.
refused = logging.getLogger("millrace.listeners.refused")
refused.addFilter(Seldom())

_BACKLOG = 4096
# What one turn of the loop accepts; the others have their turn as well.
_ACCEPTS_MAX = 64
_PAUSE_S = 1.0


class Tuned:
    """Sets the transport's bounds, then steps aside: the loop calls the connection directly from then on. It
    knows nothing of a connection, so one serves all of a listener."""

    def __init__(self, make: Callable[[], Any], output_bytes_max: int) -> None:
        self._make = make
        self._slow_bytes = min(SLOW_BYTES, output_bytes_max)

    def connection_made(self, transport: Any) -> None:
        slow_bytes = self._slow_bytes
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
            found = proxy.parse(self._held[:PROXY_HEADER_BYTES_MAX])
        except RemoteError as error:
            refused.info("closing %s: %s", self._transport.get_extra_info("peername"), error)
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


class Listener:
    """Accepts connections on some sockets until it is closed."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], Any],
        descriptors: Descriptors,
        tls: Callable[[], dict[str, Any]] | None,
        turn: Turn | None,
    ) -> None:
        """`tls`: what the loop is told of it for each connection; None without TLS."""
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._factory = factory
        self._descriptors = descriptors
        self._tls = tls
        # Connections that the loop is about to take over, and those on the way: with TLS that takes a while.
        self._fresh: set[socket.socket] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._poll = SocketPoll(self._loop, turn) if tls is None and IS_AVAILABLE else None
        for listening in sockets:
            self._resume(listening)

    def close(self) -> None:
        self._is_closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        if self._poll is not None:
            self._poll.close()
        for task in self._beginning:
            task.cancel()
        for connected in self._fresh:
            connected.close()

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                # As `accept` does it, without a socket object.
                descriptor, peer = listening._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:
                # No descriptor or no memory: it would be the same at once.
                self._descriptors.warn(f"no connection can be accepted: {error.strerror}", self._loop.time())
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self._resume, listening)
                return
            if not self._descriptors.admits(descriptor, self._loop.time()):
                os.close(descriptor)
                continue
            protocol = self._factory()
            if self._poll is not None and isinstance(protocol, Tuned):
                self._poll.begin(descriptor, peer, protocol)
            else:
                self._hand_to_loop(socket.socket(fileno=descriptor), protocol)

    def _hand_to_loop(self, connected: socket.socket, protocol: Any) -> None:
        connected.setblocking(False)
        self._fresh.add(connected)
        task = self._loop.create_task(self._begin(connected, protocol))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connected: socket.socket, protocol: Any) -> None:
        # From here on the loop closes it.
        self._fresh.discard(connected)
        tls = {} if self._tls is None else self._tls()
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connected, **tls)
        except OSError as error:
            refused.debug("a connection ended before it began: %s", error)


async def listen(
    address: Address,
    factory: Callable[[], Any],
    descriptors: Descriptors,
    *,
    context: Callable[[], ssl.SSLContext] | None = None,
    handshake_s: float | None = None,
    is_shared: bool = False,
    turn: Turn | None = None,
) -> tuple[Listener, int]:
    """Listen; returns the listener and the port it got. `context`: the TLS of a new connection, which may be
    another one later. `handshake_s`: how long TLS may take to begin. `is_shared`: other nodes of this machine
    listen on the same port. `turn`: what ends once all that came was read."""
    try:
        sockets = await _bound(address, is_shared)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            who = holder(address.port) or "another process"
            raise ConfigError(
                f"cannot listen on {address}: {who} has this port; stop it, or give this node another address"
            ) from error
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from error

    def tls() -> dict[str, Any]:
        assert context is not None
        return {"ssl": context(), "ssl_handshake_timeout": handshake_s}

    listener = Listener(sockets, factory, descriptors, None if context is None else tls, turn)
    return listener, sockets[0].getsockname()[1]


async def _bound(address: Address, is_shared: bool) -> list[socket.socket]:
    """A listening socket for each address that the host's name stands for."""
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets = []
    try:
        for family, kind, protocol, _, name in dict.fromkeys(found):
            sockets.append(listening := socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # What is accepted inherits it. A client may ask for no keep alive, and a text client cannot.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # So is this: a broker writes once per loop turn already.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET6:
                # Its twin may listen on the same port.
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.setblocking(False)
            listening.bind(name)
            listening.listen(_BACKLOG)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
