"""Plain TCP connections of clients: transports that are little more than a descriptor, and one poll for all.

A transport of the event loop takes more than a kilobyte of memory and a task of its own to begin. Most
connections of a broker are idle most of the time, so here all connections of a listener share one epoll
descriptor, which is all that the event loop sees of them. A connection is written to straight, and what the
socket does not take waits in a list.

A transport here does what `asyncio.Transport` says of the methods that it has. Where the system has no epoll,
and for TLS, the event loop's own transports serve.
"""

import asyncio
import logging
import os
import select
import socket
import time
from contextlib import suppress
from typing import Any

from millrace.node.turn import Turn

log = logging.getLogger("millrace.listeners")

IS_AVAILABLE = hasattr(select, "epoll")

# What one read asks for, and what it asks for behind one that filled it. The C library takes a buffer of the
# first size from its own store, whatever it was told.
_READ_BYTES, _BULK_BYTES = 64 * 1024, 256 * 1024
# Of one turn of the loop; timers and the other descriptors have theirs then. Events may cost more than one
# would think, such as hundreds of logins at once, so after every few of them the time is looked at.
_EVENTS_MAX = 512
_EVENTS_AT_ONCE = 16
_TURN_S = 0.005
# Pieces that are given to the system at once.
_PIECES_MAX = 64
_SLOW_BYTES, _QUICK_BYTES = 64 * 1024, 16 * 1024
_OPEN, _CLOSING, _CLOSED = range(3)
_READABLE = getattr(select, "EPOLLIN", 1)
_WRITABLE = getattr(select, "EPOLLOUT", 4)
# Errors and ends count as both.
_NOT_READABLE, _NOT_WRITABLE = ~_READABLE, ~_WRITABLE
_FAULT = "closing %s: its client cannot be served"


class SocketPoll:
    """The connections of one listener. Once that is closed and the last one is gone, it ends itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: Turn | None = None) -> None:
        self.loop = loop
        self._turn = Turn(_nothing, loop.call_soon) if turn is None else turn
        self._transports: dict[int, SocketTransport] = {}
        self._epoll = select.epoll()
        # Events that the last turn had no time for.
        self._left: list[tuple[int, int]] = []
        self._is_ending = False
        loop.add_reader(self._epoll.fileno(), self._serve)

    def begin(self, descriptor: int, peer: Any, protocol: Any) -> None:
        """A connection that was accepted. From here on its transport closes the descriptor."""
        os.set_blocking(descriptor, False)
        transport = self._transports[descriptor] = SocketTransport(self, descriptor, peer, protocol)
        self._epoll.register(descriptor, _READABLE)
        try:
            protocol.connection_made(transport)
        except Exception as error:
            log.exception(_FAULT, peer)
            transport.lose(error)

    def close(self) -> None:
        """No connection begins any more."""
        self._is_ending = True
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._is_ending and not self._transports and not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def forget(self, descriptor: int) -> None:
        del self._transports[descriptor]
        self._end_if_over()

    def watch(self, descriptor: int, before: int, wanted: int) -> None:
        """What to hear of: nothing at all where `wanted` is 0, for the system tells of a lost connection
        whether one asks for it or not."""
        if not before:
            self._epoll.register(descriptor, wanted)
        elif wanted:
            self._epoll.modify(descriptor, wanted)
        else:
            self._epoll.unregister(descriptor)

    def _serve(self) -> None:
        turn = self._turn
        turn.is_reading = True
        try:
            self._read_all()
        finally:
            turn.is_reading = False
        turn.end()

    def _read_all(self) -> None:
        # What is left would be reported again, but behind whoever has sent more meanwhile.
        found, self._left = self._left or self._epoll.poll(0, _EVENTS_MAX), []
        if len(found) <= _EVENTS_AT_ONCE:
            self._read(found)
            return
        end_s = time.monotonic() + _TURN_S
        for start in range(0, len(found), _EVENTS_AT_ONCE):
            if start and time.monotonic() > end_s:
                self._left = found[start:]
                return
            self._read(found[start : start + _EVENTS_AT_ONCE])

    def _read(self, found: list[tuple[int, int]]) -> None:
        find = self._transports.get
        for descriptor, events in found:
            # One that another in this list has ended may be gone, and its descriptor another's.
            transport = find(descriptor)
            if transport is None:
                continue
            if events != _READABLE:
                if events & _NOT_READABLE:
                    transport.write_on()
                if not events & _NOT_WRITABLE:
                    continue
            if not transport.is_reading:
                # Only now: most pauses end before anything comes.
                transport.watch()
                continue
            try:
                data = os.read(descriptor, transport.read_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                transport.lose(error)
                continue
            try:
                if data:
                    transport.protocol.data_received(data)
                else:
                    transport.on_end()
            except Exception as error:
                # Ours: it ends this connection and nothing else.
                log.exception(_FAULT, transport.get_extra_info("peername"))
                transport.lose(error)
            if len(data) >= _READ_BYTES:
                transport.read_bytes = _BULK_BYTES
            elif transport.read_bytes != _READ_BYTES:
                transport.read_bytes = _READ_BYTES


class SocketTransport:
    __slots__ = (
        "_descriptor",
        "_events",
        "_is_ended",
        "_is_full",
        "_peer",
        "_poll",
        "_quick_bytes",
        "_slow_bytes",
        "_state",
        "_unsent",
        "_unsent_bytes",
        "is_reading",
        "protocol",
        "read_bytes",
    )

    def __init__(self, poll: SocketPoll, descriptor: int, peer: Any, protocol: Any) -> None:
        self._poll = poll
        self._descriptor = descriptor
        self._peer = peer
        self.protocol = protocol
        self.is_reading = True
        self.read_bytes = _READ_BYTES
        self._state = _OPEN
        # What the poll tells of it now; it was told to when the transport was made.
        self._events = _READABLE
        self._unsent: list[bytes] | None = None
        self._unsent_bytes = 0
        # The protocol was told to pause.
        self._is_full = False
        # Our side ends once everything is sent.
        self._is_ended = False
        self._slow_bytes, self._quick_bytes = _SLOW_BYTES, _QUICK_BYTES

    # ------------------------------------------------------------------------- asked by the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "descriptor":
            return self._descriptor
        return self._peer if name == "peername" else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._slow_bytes, self._quick_bytes = high, low

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def is_closing(self) -> bool:
        return self._state != _OPEN

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        if self._state == _OPEN:
            self.is_reading = True
            if not self._events & _READABLE:
                self.watch()

    def write(self, data: bytes) -> None:
        if self._state != _OPEN or self._is_ended:
            return
        if self._unsent is None:
            try:
                sent = os.write(self._descriptor, data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.lose(error)
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._unsent = []
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self.watch()
        if self._unsent_bytes > self._slow_bytes and not self._is_full:
            self._is_full = True
            self.protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """OSError where the other side is gone."""
        if self._state == _OPEN and not self._is_ended:
            self._is_ended = True
            if self._unsent is None:
                self._shut_down()

    def close(self) -> None:
        """Once everything is sent."""
        if self._state == _OPEN:
            self._state, self.is_reading = _CLOSING, False
            if self._unsent is None:
                self.lose(None)
            else:
                self.watch()

    def abort(self) -> None:
        self.lose(None)

    # ---------------------------------------------------------------------------- told by the poll

    def watch(self) -> None:
        """Hear of what this connection waits for."""
        wanted = (_READABLE if self.is_reading else 0) | (_WRITABLE if self._unsent else 0)
        if wanted != self._events and self._state != _CLOSED:
            self._poll.watch(self._descriptor, self._events, wanted)
            self._events = wanted

    def on_end(self) -> None:
        """The other side sends nothing more."""
        if self.protocol.eof_received():
            self.is_reading = False
            self.watch()
        else:
            self.close()

    def write_on(self) -> None:
        if self._unsent is None or self._state == _CLOSED:
            return
        try:
            sent = os.writev(self._descriptor, self._unsent[:_PIECES_MAX])
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(error)
            return
        self._unsent_bytes -= sent
        self._unsent = _without(self._unsent, sent) or None
        if self._unsent is None:
            self._all_sent()
        if self._is_full and self._unsent_bytes <= self._quick_bytes:
            self._is_full = False
            try:
                self.protocol.resume_writing()
            except Exception as error:
                log.exception(_FAULT, self._peer)
                self.lose(error)

    def _all_sent(self) -> None:
        self.watch()
        if self._state == _CLOSING:
            self.lose(None)
        elif self._is_ended:
            with suppress(OSError):
                self._shut_down()

    def _shut_down(self) -> None:
        ours = socket.socket(fileno=self._descriptor)
        try:
            ours.shutdown(socket.SHUT_WR)
        finally:
            ours.detach()

    def lose(self, error: Exception | None) -> None:
        """The connection is over; the protocol hears of it in the next turn."""
        if self._state == _CLOSED:
            return
        self.is_reading, self._unsent, self._unsent_bytes = False, None, 0
        self.watch()
        self._state = _CLOSED
        self._poll.loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        os.close(self._descriptor)
        self._poll.forget(self._descriptor)
        protocol, self.protocol = self.protocol, None
        try:
            protocol.connection_lost(error)
        except Exception:
            log.exception("what followed the end of %s failed", self._peer)


def _nothing() -> None:
    """Nobody waits for the end of the turn."""


def _without(pieces: list[bytes], count: int) -> list[bytes]:
    """What is left of these after so many bytes."""
    for position, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[position + 1 :]]
        count -= len(piece)
    return []
