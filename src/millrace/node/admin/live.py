"""What people watch as it happens: an overview every second, and events.

A listener that does not read costs nothing but its bound: of overviews only the newest waits for it, of
events a few; what it misses is counted and told. The overview is made once for all listeners, and only while
there are some.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from millrace.limits import LIVE_EVENTS_WAITING_MAX, LIVE_LISTENERS_MAX
from millrace.node.admin.events import Event

_INTERVAL_S = 1.0
# So long nothing is sent at most: proxies close connections that are silent.
PULSE_S = 10.0

Piece = tuple[str, bytes]
"""Name and JSON of a server-sent event; the name is empty for a sign of life."""


class Listener:
    """One who watches, as long as `may_watch` says so. `next` gives what is due; None at the end."""

    def __init__(self, may_watch: Callable[[], bool]) -> None:
        self.may_watch = may_watch
        self._overview: bytes | None = None
        self._events: deque[bytes] = deque()
        self._skipped = 0
        self._is_over = False
        self._due = asyncio.Event()

    def on_overview(self, data: bytes) -> None:
        self._overview = data
        self._due.set()

    def on_event(self, data: bytes) -> None:
        if len(self._events) >= LIVE_EVENTS_WAITING_MAX:
            self._events.popleft()
            self._skipped += 1
        self._events.append(data)
        self._due.set()

    def end(self) -> None:
        self._is_over = True
        self._due.set()

    async def next(self) -> Piece | None:
        while not self._is_over:
            if self._skipped:
                count, self._skipped = self._skipped, 0
                return "skipped", msgspec.json.encode({"count": count})
            if self._events:
                return "event", self._events.popleft()
            if self._overview is not None:
                data, self._overview = self._overview, None
                return "overview", data
            self._due.clear()
            try:
                async with asyncio.timeout(PULSE_S):
                    await self._due.wait()
            except TimeoutError:
                return "", b""
        return None


class Live:
    """All listeners of a node. `overview` makes the JSON of one; `seen` are events of this node."""

    def __init__(self, overview: Callable[[], Awaitable[tuple[bytes, list[Event]]]]) -> None:
        self._overview = overview
        self.listeners: list[Listener] = []
        self._task: asyncio.Task[None] | None = None

    def join(self, may_watch: Callable[[], bool]) -> Listener | None:
        """A new listener, which `leave` must end; None where there are as many as there may be."""
        if len(self.listeners) >= LIVE_LISTENERS_MAX:
            return None
        listener = Listener(may_watch)
        self.listeners.append(listener)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go_on())
        return listener

    def leave(self, listener: Listener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def end_refused(self) -> None:
        """Users, passwords or roles changed: whoever may not watch any more hears nothing more."""
        for listener in list(self.listeners):
            if not listener.may_watch():
                listener.end()
                self.leave(listener)

    def on_event(self, event: Event) -> None:
        if self.listeners:
            data = msgspec.json.encode(event)
            for listener in self.listeners:
                listener.on_event(data)

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _INTERVAL_S
            data, events = await self._overview()
            for event in events:
                self.on_event(event)
            for listener in self.listeners:
                listener.on_overview(data)
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def close(self) -> None:
        """The node stops: everybody's stream ends."""
        for listener in list(self.listeners):
            listener.end()
            self.leave(listener)


async def written(listener: Listener) -> AsyncIterator[bytes]:
    """What a listener gets, in the form of server-sent events."""
    while (piece := await listener.next()) is not None:
        yield as_sent(*piece)


def as_sent(name: str, data: bytes) -> bytes:
    """One server-sent event. JSON has no line breaks of its own, so one data line holds it."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b": still here\n\n"
