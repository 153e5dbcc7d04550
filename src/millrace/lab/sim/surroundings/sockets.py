"""Connections between simulated hosts: streams of bytes that keep their order and break as TCP's do.

Inside a connection that lives no byte is lost or overtaken. Bytes take their time and may arrive in other
portions than they were sent in. A direction between two hosts may be blocked: bytes wait and arrive after the
cut has healed, unless the connection was given up meanwhile. What ends a connection:

- `close`: the other side reads to the end and then sees the end;
- `abort`, or a process that dies: the other side sees a reset, and bytes under way are gone;
- a machine that loses its power: the other side sees nothing. It learns when what it sent meets the machine
  again, up but knowing nothing of the connection; or from its own timers.

Dialing a host that is up without a listener is refused; one that is cut off or without power does not answer
until the caller gives up, or until it is back.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from zlib import crc32

from millrace.lab.sim.surroundings.clock import US_PER_S, Clock

_LATENCY_US_MIN, _LATENCY_US_MAX = 50, 1_500
_STRAGGLER_RATE, _STRAGGLER_US_MAX = 0.01, 80_000
_SPLIT_RATE = 0.1
_DIAL_AGAIN_US = 500_000
_DIAL_US_MAX = 8 * US_PER_S
_WRITE_BYTES_HIGH = 64 * 1024
# Given up by its own timers, a cut connection ends within this time.
_GIVE_UP_US_MAX = 12 * US_PER_S
_CONNECTIONS_MAX = 10_000


class HostLoop(Protocol):
    """What the network needs of a host's event loop: `loop.SimLoop` is one."""

    address: str
    is_dead: bool

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any: ...

    def create_future(self) -> "asyncio.Future[Any]": ...


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, sockets: "Sockets", loop: HostLoop, peer_address: str) -> None:
        super().__init__()
        self._sockets = sockets
        self.loop = loop
        self.peer_address = peer_address
        self.peer: Transport | None = None
        """The other end; None once it knows nothing of this connection any more."""
        self.protocol: Any = None
        # What is on its way to us; None is the end of the stream.
        self._incoming: deque[bytes | None] = deque()
        self._arrived = 0
        self._free_us = 0
        self._unread_bytes = 0
        self._is_reading = True
        self._is_closing = False
        self._is_ended = False
        self._is_lost = False
        self._is_write_paused = False
        self._high = _WRITE_BYTES_HIGH
        self._low = _WRITE_BYTES_HIGH // 4
        self.has_unanswered = False
        """Wrote to a peer that is gone: it will learn so when the machine there is back."""

    def begin(self, protocol: Any) -> None:
        self.protocol = protocol
        is_reset = self._is_closing
        protocol.connection_made(self)
        if is_reset:
            # The reset overtook the answer to the dialer. As in asyncio, its protocol learns both.
            self.loop.call_soon(self._lose, ConnectionResetError("connection reset by peer"))
        self.loop.call_soon(self._read)

    # ------------------------------------------------------------------------------ asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer_address, 0) if name == "peername" else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.loop.call_soon(self._read)

    def is_reading(self) -> bool:
        return self._is_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _WRITE_BYTES_HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.peer._unread_bytes if self.peer is not None else 0

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self._is_ended or self.loop.is_dead or not data:
            return
        if self.peer is None or self.peer._is_lost:
            self.has_unanswered = True
            self._sockets.ask_the_void(self)
            return
        self.peer._send_here(bytes(data))
        if self.peer._unread_bytes > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._is_ended and not self._is_closing and self.peer is not None and not self.loop.is_dead:
            self._is_ended = True
            self.peer._send_here(None)

    def close(self) -> None:
        if not self._is_closing and not self.loop.is_dead:
            self.write_eof()
            self._is_closing = True
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost and not self.loop.is_dead:
            self._is_closing = True
            peer = self.forsake()
            if peer is not None:
                peer.reset_later()
            self.loop.call_soon(self._lose, None)

    # ------------------------------------------------------------------------------------ the network

    def forsake(self) -> "Transport | None":
        """This end knows nothing of the connection any more; returns the other."""
        self._sockets.drop(self)
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.peer = None
            peer._incoming.clear()
            peer._arrived = peer._unread_bytes = 0
        return peer

    def reset_later(self, delay_us: int = 0) -> None:
        self._sockets.after_latency(self._reset, delay_us)

    def _reset(self) -> None:
        if not self.loop.is_dead and not self._is_lost:
            self._is_closing = True
            self.forsake()
            self.loop.call_soon(self._lose, ConnectionResetError("connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost or self.protocol is None:
            # Without a protocol nobody can be told; `begin` tells the one that comes.
            return
        self._is_lost = True
        self._sockets.drop(self)
        self.protocol.connection_lost(error)

    def _send_here(self, data: bytes | None) -> None:
        self._incoming.append(data)
        self._unread_bytes += len(data or b"")
        self._free_us = self._sockets.arrival_us(self._free_us)
        self._sockets.at(self._free_us, self._arrive)

    def _arrive(self) -> None:
        if self.peer is None and not self._incoming:
            return
        self._arrived += 1
        self.loop.call_soon(self._read)

    def after_heal(self) -> None:
        if self._arrived:
            self._sockets.after_latency(self._read_soon, 0)

    def _read_soon(self) -> None:
        self.loop.call_soon(self._read)

    def _read(self) -> None:
        """As far as bytes have arrived and the protocol takes them."""
        while self._arrived and self._incoming and self._is_reading and not self._is_closing:
            if self.protocol is None or self._sockets.is_blocked(self.peer_address, self.loop.address):
                return
            self._arrived -= 1
            data = self._incoming.popleft()
            if data is None:
                self._at_end()
                return
            self._unread_bytes -= len(data)
            data = self._portion(data)
            self._sockets.note_bytes(self, data)
            if self.peer is not None:
                self.peer.has_drained()
            self.protocol.data_received(data)

    def _portion(self, data: bytes) -> bytes:
        """Sometimes only a part of it, and the rest with the next read."""
        rng = self._sockets.rng
        if len(data) > 1 and rng.random() < _SPLIT_RATE:
            cut = rng.randint(1, len(data) - 1)
            self._incoming.appendleft(data[cut:])
            self._unread_bytes += len(data) - cut
            self._sockets.at(self._sockets.arrival_us(0), self._arrive)
            return data[:cut]
        return data

    def _at_end(self) -> None:
        keeps_open = self.protocol.eof_received()
        if not keeps_open:
            self.close()

    def has_drained(self) -> None:
        if self._is_write_paused and self.peer is not None and self.peer._unread_bytes <= self._low:
            self.loop.call_soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if self._is_write_paused and not self._is_lost:
            self._is_write_paused = False
            self.protocol.resume_writing()


class _Socket:
    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class Server:
    """A listener, as far as a node uses one."""

    def __init__(self, sockets: "Sockets", loop: HostLoop, name: tuple[str, int], factory: Any) -> None:
        self._sockets = sockets
        self.loop = loop
        self.factory = factory
        self.name = name
        self.sockets = (_Socket(name),)

    def close(self) -> None:
        self._sockets.unlisten(self)


class Sockets:
    """The network of a world. A host is an address; `power` says which machines have none."""

    def __init__(
        self, *, clock: Clock, rng: random.Random, note: Callable[[str, str, str], None] | None
    ) -> None:
        self.rng = rng
        self.delivered = 0
        self._clock = clock
        self._note = note
        self._listeners: dict[tuple[str, int], Server] = {}
        # Dicts where only the keys count: their order is that of insertion in every process.
        self._transports: dict[Transport, None] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._without_power: dict[str, None] = {}

    # ---------------------------------------------------------------------------------------- sockets

    def listen(self, loop: HostLoop, host: str, port: int, factory: Any) -> Server:
        name = (host, port)
        if name in self._listeners:
            raise OSError(98, "Address already in use")
        server = self._listeners[name] = Server(self, loop, name, factory)
        return server

    def unlisten(self, server: Server) -> None:
        if self._listeners.get(server.name) is server:
            del self._listeners[server.name]

    async def connect(self, loop: HostLoop, host: str, port: int) -> Transport:
        """A connection that the other side has accepted. OSError as the system would say."""
        answer: asyncio.Future[Transport] = loop.create_future()
        self.after_latency(lambda: self._dial(loop, host, port, answer, self._clock.now_us + _DIAL_US_MAX), 0)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                # The answer came in the moment in which the caller gave up: nobody will own the connection.
                answer.result().abort()
            raise

    def _dial(
        self, loop: HostLoop, host: str, port: int, answer: "asyncio.Future[Transport]", until_us: int
    ) -> None:
        if answer.done() or loop.is_dead:
            return
        is_cut = self.is_blocked(loop.address, host) or self.is_blocked(host, loop.address)
        if is_cut or host in self._without_power:
            if self._clock.now_us >= until_us:
                loop.call_soon(_fail, answer, TimeoutError(110, "Connection timed out"))
            else:
                self._clock.after(_DIAL_AGAIN_US, self._dial, loop, host, port, answer, until_us)
            return
        server = self._listeners.get((host, port))
        if server is None:
            loop.call_soon(_fail, answer, ConnectionRefusedError(111, "Connection refused"))
            return
        assert len(self._transports) < _CONNECTIONS_MAX
        ours = Transport(self, loop, host)
        theirs = Transport(self, server.loop, loop.address)
        ours.peer, theirs.peer = theirs, ours
        self._transports[ours] = self._transports[theirs] = None
        server.loop.call_soon(lambda: theirs.begin(server.factory()))
        self.after_latency(lambda: loop.call_soon(_succeed, answer, ours), 0)

    def drop(self, transport: Transport) -> None:
        self._transports.pop(transport, None)

    # ------------------------------------------------------------------------------------------- time

    def arrival_us(self, not_before_us: int) -> int:
        high = _STRAGGLER_US_MAX if self.rng.random() < _STRAGGLER_RATE else _LATENCY_US_MAX
        return max(not_before_us, self._clock.now_us + self.rng.randint(_LATENCY_US_MIN, high))

    def at(self, when_us: int, call: Callable[[], None]) -> None:
        self._clock.after(when_us - self._clock.now_us, call)

    def after_latency(self, call: Callable[[], None], delay_us: int) -> None:
        self.at(self.arrival_us(0) + delay_us, call)

    def note_bytes(self, transport: Transport, data: bytes) -> None:
        self.delivered += 1
        if self._note is not None:
            text = f"{len(data)}B {crc32(data):08x}"
            self._note(transport.peer_address, transport.loop.address, text)

    # ----------------------------------------------------------------------------------------- faults

    def is_blocked(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._blocked

    def block(self, senders: Iterable[str], receivers: Iterable[str], *, is_short: bool = False) -> None:
        """One way. Some of the connections there are given up by the timers of their ends, unless it is too
        short for that."""
        targets = tuple(receivers)
        for sender in senders:
            for receiver in targets:
                if sender != receiver:
                    self._blocked[sender, receiver] = None
        for transport in list(self._transports) if not is_short else ():
            if self.is_blocked(transport.peer_address, transport.loop.address) and self.rng.random() < 0.5:
                transport.reset_later(self.rng.randint(0, _GIVE_UP_US_MAX))

    def heal(self) -> None:
        self._blocked.clear()
        for transport in list(self._transports):
            transport.after_heal()

    def host_ends(self, address: str, *, is_power_loss: bool) -> None:
        """All processes of a host are gone; with the power, nobody is told."""
        for name in [name for name in self._listeners if name[0] == address]:
            del self._listeners[name]
        if is_power_loss:
            self._without_power[address] = None
        for transport in [t for t in self._transports if t.loop.address == address]:
            peer = transport.forsake()
            if peer is not None and not is_power_loss:
                peer.reset_later()

    def host_begins(self, address: str) -> None:
        self._without_power.pop(address, None)
        for transport in list(self._transports):
            if transport.peer is None and transport.peer_address == address and transport.has_unanswered:
                transport.reset_later(self.rng.randint(0, US_PER_S))

    def ask_the_void(self, transport: Transport) -> None:
        if transport.peer_address not in self._without_power:
            transport.reset_later(self.rng.randint(0, US_PER_S))

    def reset_some(self, address: str, rate: float) -> int:
        """Break connections of a host, as a balancer or a flood would; returns how many."""
        chosen = [t for t in self._transports if t.loop.address == address and self.rng.random() < rate]
        for transport in chosen:
            peer = transport.forsake()
            transport.reset_later()
            if peer is not None:
                peer.reset_later()
        return len(chosen)


def _fail(answer: "asyncio.Future[Transport]", error: OSError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: "asyncio.Future[Transport]", transport: Transport) -> None:
    if answer.done():
        transport.abort()
    else:
        answer.set_result(transport)
