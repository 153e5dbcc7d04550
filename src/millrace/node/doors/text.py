"""The text door: an adapter in front of an MQTT connection, as WebSocket is (see `wire/text.py`).

A text client has no packet that says "I am slow", and no session to come back to. So one that does not read
is cut off once more waits for it than a patient reader would ever leave, and one that asks without reading
the answers is not heard until it does. A read may bring a hundred thousand lines: they are taken piece by
piece, as many as a turn of the loop has room for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from millrace.limits import TEXT_UNREAD_BYTES_MAX
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.mqtt_door import PACKET_COST, MqttDoor
from millrace.node.seldom import Seldom
from millrace.wire.text import LineTooLong, SpeaksHttp, Translator

log = logging.getLogger("millrace.text")
log.addFilter(Seldom())

# Somebody who types needs longer for the first line than a program for CONNECT.
_FIRST_LINE_S = 300.0
# About so many lines are taken before it is asked whether there is room for more, and at least so many bytes.
_LINES_AT_ONCE = 128
_PIECE_BYTES_LEAST = 512
# So many lines that mean nothing cost as much as a packet; the others bring packets.
_LINES_AS_A_PACKET = 8

Answer = Callable[[MqttConnection, str], Awaitable[str]]
"""The line that answers a line of JSON of a client of this connection."""


class TextAdapter:
    """A protocol toward the socket and a transport toward the connection inside."""

    def __init__(self, door: MqttDoor, inner: MqttConnection, line_bytes_max: int, answer: Answer) -> None:
        """`answer` is asked for lines of JSON, one after the other."""
        self._door = door
        self._inner = inner
        self._answer = answer
        self._answering: asyncio.Task[None] | None = None
        self._quotas = door.quotas
        self._translator = Translator(line_bytes_max)
        self._transport: Any = None
        self._is_joined = False
        self._is_over = False
        # The client sends nothing more but may still read.
        self._is_ended = False
        # Bytes that were read and not taken yet; perhaps they wait for a later turn.
        self._unread = b""
        self._is_parked = False
        self._is_held = False
        self._is_paused_inside = False
        self._answers: list[bytes] = []
        self._deadline: asyncio.TimerHandle | None = None

    # ----------------------------------------------------------------- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if not self._quotas.admits(self._inner, transport.get_extra_info("peername")):
            self._is_over = True
            transport.abort()
            return
        # The connection inside begins with the first line: its deadline is made for programs.
        self._deadline = asyncio.get_running_loop().call_later(_FIRST_LINE_S, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._is_joined:
            self._inner.connection_lost(error)
        else:
            self._quotas.left(self._inner)

    def eof_received(self) -> bool:
        """As `printf ... | nc -N` leaves it: answers and messages are still wanted."""
        self._is_ended = True
        return self._is_joined and not self._is_over and self._translator.expects

    def pause_writing(self) -> None:
        if self._is_joined:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_joined:
            self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._door.awake:
            self._door.begin_turn()
        self._unread += data
        if not self._is_held:
            self._take()

    def unpark(self) -> None:
        self._is_parked = False
        if not self._is_over:
            self._take()

    def _take(self) -> None:
        """As much of what was read as there is room for."""
        door, data, pos = self._door, self._unread, 0
        lines = data.count(b"\n")
        size = max(_PIECE_BYTES_LEAST, len(data) * _LINES_AT_ONCE // lines) if lines else len(data)
        while pos < len(data) and not (self._is_over or door.is_used_up or self._translator.is_busy):
            piece = data[pos : pos + size]
            pos += size
            door.taken += PACKET_COST * (1 + piece.count(b"\n") // _LINES_AS_A_PACKET)
            self._receive(piece)
        self._unread = data[pos:]
        self._pace()

    def _receive(self, data: bytes) -> None:
        try:
            packets, lines = self._translator.receive(data)
        except (LineTooLong, SpeaksHttp) as error:
            if self._is_joined:
                self._inner.fail(error.reason, error.detail)
            else:
                self._is_over = True
                self._transport.write(f"ERROR|{error.detail}\n".encode())
                self._transport.close()
            return
        if lines:
            self._write(lines)
        if packets:
            if not self._is_joined:
                self._is_joined = True
                if self._deadline is not None:
                    self._deadline.cancel()
                self._inner.connection_made(self)
            self._inner.data_received(packets)
        self._answer_requests()

    def _answer_requests(self) -> None:
        """Once the connection is let in; while one is answered, the client is not read."""
        is_busy = self._answering is not None and not self._answering.done()
        if self._translator.requests and self._translator.is_accepted and not is_busy:
            self._answering = asyncio.get_running_loop().create_task(self._answer_each())

    async def _answer_each(self) -> None:
        requests = self._translator.requests
        while requests and not self._is_over:
            line = await self._answer(self._inner, requests[0])
            requests.popleft()
            if not self._is_over:
                self._write(f"{line}\n".encode())
        if self._is_over:
            return
        self._pace()
        if self._is_ended and not self._translator.expects:
            self.close()

    def _pace(self) -> None:
        """Read as long as the answers keep up, and nothing waits that was read."""
        is_busy = self._translator.is_busy
        if self._unread and not (is_busy or self._is_parked):
            # Not from inside a write: the broker is in the middle of its turn.
            self._is_parked = True
            self._door.parked.append(self)
            self._door.wake()
        is_held = is_busy or bool(self._unread)
        if is_held and not self._is_held:
            self._is_held = True
            self._transport.pause_reading()
        elif self._is_held and not is_held:
            self._is_held = False
            if not self._is_paused_inside:
                self._transport.resume_reading()

    def _write(self, lines: bytes) -> None:
        self._transport.write(lines)
        if self._transport.get_write_buffer_size() > TEXT_UNREAD_BYTES_MAX:
            log.info("closing %s: it does not read", self._transport.get_extra_info("peername"))
            self._is_over = True
            self._transport.abort()

    # ------------------------------------------------------------ called by the connection inside

    def write(self, data: bytes) -> None:
        if self._is_over:
            return
        lines, answers = self._translator.send(data)
        if lines:
            self._write(lines)
        if answers:
            if not self._answers:
                # Not from inside a write: the broker is in the middle of its turn.
                asyncio.get_running_loop().call_soon(self._acknowledge)
            self._answers.append(answers)
        self._answer_requests()
        self._pace()
        if self._is_ended and not self._translator.expects:
            self.close()

    def _acknowledge(self) -> None:
        answers, self._answers = self._answers, []
        if not self._is_over:
            self._inner.data_received(b"".join(answers))

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size

    def close(self) -> None:
        self._is_over = True
        self._transport.close()

    def can_write_eof(self) -> bool:
        return bool(self._transport.can_write_eof())

    def write_eof(self) -> None:
        self._is_over = True
        self._transport.write_eof()

    def abort(self) -> None:
        self._is_over = True
        self._transport.abort()

    def pause_reading(self) -> None:
        self._is_paused_inside = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused_inside = False
        if not self._is_held:
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
