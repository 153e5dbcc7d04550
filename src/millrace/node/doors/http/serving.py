"""uvicorn without its own signal handling and its own sockets: the node decides when to stop, and which
connections are kept (`http_front`).

uvicorn closes a connection that is silent between two requests, and no other. So the node looks at all of
them now and then: one that we wait for, and which does not send or take what it should, is cut off.

And it reads all that came at once, before anything is known of who sent it. The chunks of a body may have six
bytes, so what has many lines is given to it piece by piece, one in a turn of the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from millrace.broker.stats import DoorTraffic
from millrace.node.doors.http.context import CERTIFICATE
from millrace.node.doors.quotas import Quotas

_GOODBYE_S = 1.0
_DATE_S = 1.0
# How long a body may stay away in the middle, or an answer be left where it is.
_STILL_S = 60.0
# Lines of HTTP, of which a small chunk has two, that are read in one turn of the loop. A body that is no
# text has one in 64 KiB by chance.
_LINES_AT_ONCE = 512
_PIECE_BYTES = 4096


class _CountedTransport:
    """A transport that counts what is written to it, and is not read while it is held. `wanted` is called
    when more is asked for meanwhile."""

    def __init__(self, transport: Any, traffic: DoorTraffic, wanted: Callable[[], None]) -> None:
        self._transport = transport
        self._traffic = traffic
        self._wanted = wanted
        self.is_held = False
        self.is_paused = False

    def hold(self) -> None:
        self.is_held = True
        self._transport.pause_reading()

    def release(self) -> None:
        self.is_held = False
        if not self.is_paused:
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        self.is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self.is_paused = False
        if self.is_held:
            self._wanted()
        else:
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        self._traffic.bytes_sent += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Knows since when it waits for its client, and counts for its door; that sets `traffic` and `quotas`."""

    traffic: DoorTraffic
    quotas: Quotas

    def connection_made(self, transport: Any) -> None:
        self.traffic.connects += 1
        self.traffic.open += 1
        self.take_over(transport)
        if not self.quotas.admits(transport, transport.get_extra_info("peername"), is_finished=True):
            transport.abort()

    def take_over(self, transport: Any) -> None:
        """Begin with a connection that the door counted when it was made."""
        self._counted = transport
        self._unread, self._is_reading_on = b"", False
        super().connection_made(_CountedTransport(transport, self.traffic, self._read_soon))
        # Each request gets a copy of this state.
        self.app_state: dict[str, Any] = {**self.app_state, CERTIFICATE: transport.get_extra_info("peercert")}
        self._free_s = self._moved_s = self.loop.time()
        self._unsent_bytes = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self.quotas.left(self._counted)
        self.traffic.open -= 1
        self._unread = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved_s = self.loop.time()
        self.traffic.bytes_received += len(data)
        if self._unread:
            self._unread += data
        elif data.count(b"\r\n") > _LINES_AT_ONCE:
            self._unread = data
            self.transport.hold()
            self._read_soon()
        else:
            super().data_received(data)

    def _read_soon(self) -> None:
        if not self._is_reading_on:
            self._is_reading_on = True
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """One piece, unless whoever serves the request wants no more for now."""
        self._is_reading_on = False
        if not self._unread or self.transport.is_paused or self.transport.is_closing():
            return
        piece, self._unread = self._unread[:_PIECE_BYTES], self._unread[_PIECE_BYTES:]
        super().data_received(piece)
        if self._unread:
            self._read_soon()
        else:
            self.transport.release()

    def on_response_complete(self) -> None:
        self._free_s = self.loop.time()
        super().on_response_complete()

    def is_late(self, now_s: float, head_s: float) -> bool:
        """Bytes that do not make the head of a request buy no time."""
        unsent_bytes, before = self.transport.get_write_buffer_size(), self._unsent_bytes
        self._unsent_bytes = unsent_bytes
        if unsent_bytes != before:
            self._free_s = self._moved_s = now_s
        cycle = self.cycle
        if unsent_bytes == 0 and (cycle is None or cycle.response_complete):
            return bool(now_s - self._free_s > head_s)
        is_ours = unsent_bytes == 0 and (not cycle.more_body or self.flow.read_paused)
        return not is_ours and now_s - self._moved_s > _STILL_S


class Serving:
    """The application and its connections."""

    def __init__(self, app: FastAPI, traffic: DoorTraffic, quotas: Quotas) -> None:
        self._traffic, self._quotas = traffic, quotas
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=HttpConnection,
            ws="none",
            server_header=False,
        )
        # It warns of each request that is none, and of others that anybody may send: a way to fill a disk.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._config.load()
        self._server = uvicorn.Server(self._config)
        self._server.lifespan = self._config.lifespan_class(self._config)
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.startup(sockets=[])
        self._loop_task = asyncio.create_task(self._keep_date())

    async def _keep_date(self) -> None:
        """The date in the head of answers. uvicorn would come round ten times as often, to see whether it is
        to end."""
        while True:
            await self._server.on_tick(0)
            await asyncio.sleep(_DATE_S)

    def connection(self) -> HttpConnection:
        connection = HttpConnection(
            config=self._config,
            server_state=self._server.server_state,
            app_state=self._server.lifespan.state,
        )
        connection.traffic, connection.quotas = self._traffic, self._quotas
        return connection

    def sweep(self, now_s: float, head_s: float) -> None:
        """Cut off who keeps us waiting."""
        for connection in list(self._server.server_state.connections):
            if isinstance(connection, HttpConnection) and connection.is_late(now_s, head_s):
                connection.transport.abort()

    async def stop(self) -> None:
        if self._loop_task is None:
            return
        # Whoever waits for a message was told that the node stops; the answers may leave first.
        answering = set(self._server.server_state.tasks)
        if answering:
            await asyncio.wait(answering, timeout=_GOODBYE_S)
        self._server.should_exit = True
        self._server.force_exit = True
        self._loop_task.cancel()
        await self._server.shutdown()
