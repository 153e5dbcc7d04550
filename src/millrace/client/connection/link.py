"""One connection to a broker over TCP or TLS; `websocket_link` builds on it, `connect` opens both.

The event loop calls the link; the link hands bytes and the end of the connection to its owner and knows
nothing of MQTT. The owner writes without waiting: `on_writable` says when to stop and when to go on.
"""

import asyncio
import contextlib
from typing import Any, Protocol

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
