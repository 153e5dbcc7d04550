"""A relay between a client and a broker that a test can cut or freeze, on the test's own event loop."""

import asyncio
from collections.abc import Sequence
from types import TracebackType


class Relay:
    """Passes bytes both ways between its own port and the broker's.

    `cuts` are numbers of bytes: after so many, counted both ways, every connection is cut, wherever in a
    packet that is; then the next number counts.
    """

    def __init__(self, broker_port: int, cuts: Sequence[int] = ()) -> None:
        self._cuts = list(cuts)
        self._broker_port = broker_port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections = 0
        # From and to the client, over all connections.
        self.bytes_up = 0
        self.bytes_down = 0
        self.port = 0

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End every connection at once, both ways, as a broken cable would."""
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Connections stay, but nothing passes any more."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        for source, sink, up in ((reader, far_writer, True), (far_reader, writer, False)):
            task = asyncio.create_task(self._pass(source, sink, up))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool) -> None:
        try:
            while data := await source.read(65_536):
                await self._flowing.wait()
                if up:
                    self.bytes_up += len(data)
                else:
                    self.bytes_down += len(data)
                if self._cuts:
                    piece = data[: self._cuts[0]]
                    self._cuts[0] -= len(piece)
                    sink.write(piece)
                    if not self._cuts[0]:
                        del self._cuts[0]
                        self.cut()
                        return
                else:
                    sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)
