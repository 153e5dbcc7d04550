"""A subscription as the application holds it: an asynchronous iterator over a bounded buffer.

QoS 1 and 2 messages are acknowledged when they are handed out or, with `manual_ack`, when the application
says so. A full buffer stops the reading of the socket, and with it the server. While the application waits
for an answer of its own (a publish inside the loop over messages, say) the socket has to be read all the
same; then QoS 0 beyond the buffer is dropped and counted, and QoS 1 and 2 stay within the receive maximum,
because the server is given no answer for them.
"""

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import Protocol

from millrace.client.conversation.incoming import Message
from millrace.client.errors import ClientError, Closed
from millrace.errors import LocalError, MillraceError
from millrace.types import Subscription as Filter

# Bytes of payload in a buffer that count as full, whatever the number of messages.
_BUFFER_BYTES_MAX = 16 * 1024 * 1024


class SubscriptionOwner(Protocol):
    """What a subscription asks of the client that made it; private to this package."""

    @property
    def durable(self) -> bool:
        """Whether the session outlives the connection."""

    def _next_number(self) -> int:
        """A number that no other subscription of the client has."""

    async def _open_subscription(self, subscription: "Subscription", number: int) -> None:
        """Subscribe at the server; raises if that is refused."""

    async def _leave(self, subscription: "Subscription", *, unsubscribe: bool) -> None:
        """Deliver no more messages; `unsubscribe` ends the subscription at the server too."""

    def _take(self, message: Message) -> None:
        """The application has this message: it may be acknowledged."""

    def _taken_from(self, subscription: "Subscription") -> None:
        """The buffer of the subscription has become shorter."""


class Subscription:
    """Made by `Client.subscribe`. Several tasks may iterate over one subscription and share its messages.

    Leaving the context ends the subscription. In a session that outlives the connection
    (`session_expiry_s`) it stands instead, so that messages go on collecting; `unsubscribe` ends it there.
    """

    def __init__(
        self,
        client: SubscriptionOwner,
        filters: tuple[Filter, ...],
        *,
        manual_ack: bool,
        buffer_messages: int,
    ) -> None:
        if buffer_messages < 1:
            raise LocalError("buffer_messages is at least 1")
        self.filters = filters
        # QoS 0 messages that did not fit the buffer while an answer was awaited.
        self.dropped = 0
        self._client = client
        self._manual_ack = manual_ack
        self._buffer_messages = buffer_messages
        self._buffer: deque[Message] = deque()
        self._buffer_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Handed out with manual_ack and not acknowledged yet.
        self._held: dict[int, Message] = {}
        self._number: int | None = None
        self._ended = False
        self._error: MillraceError | None = None

    async def __aenter__(self) -> "Subscription":
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        message = await self.take()
        if message is None:
            raise StopAsyncIteration
        return message

    async def get(self, timeout_s: float | None = None) -> Message:
        """The next message; TimeoutError if none comes in time, Closed when the subscription has ended."""
        async with asyncio.timeout(timeout_s):
            message = await self.take()
        if message is None:
            raise Closed("the subscription has ended")
        return message

    def ack(self, message: Message) -> None:
        """Acknowledge a message of a subscription with `manual_ack`. A second time does nothing.

        Answers leave in the order in which messages came: one that is never acknowledged holds up those
        after it.
        """
        if self._held.pop(id(message), None) is not None:
            self._client._take(message)

    async def close(self) -> None:
        """End the subscription, or leave it standing in a session that outlives the connection."""
        if not self._ended:
            # Whatever stops the client stops the subscription too, and was told where it mattered.
            with contextlib.suppress(ClientError):
                await self._client._leave(self, unsubscribe=not self._client.durable)

    async def unsubscribe(self) -> None:
        """End the subscription, also in a session that outlives the connection."""
        if not self._ended:
            await self._client._leave(self, unsubscribe=True)

    @property
    def buffered(self) -> int:
        """Messages that came and were not handed out yet."""
        return len(self._buffer)

    # ------------------------------------------------------------------------- for the client's use

    @property
    def number(self) -> int | None:
        return self._number

    @property
    def is_full(self) -> bool:
        return len(self._buffer) >= self._buffer_messages or self._buffer_bytes >= _BUFFER_BYTES_MAX

    @property
    def is_half_empty(self) -> bool:
        return (
            len(self._buffer) <= self._buffer_messages // 2 and self._buffer_bytes <= _BUFFER_BYTES_MAX // 2
        )

    def put(self, message: Message) -> None:
        if not message.qos and self.is_full:
            self.dropped += 1
            return
        self._buffer.append(message)
        self._buffer_bytes += len(message.payload)
        self._wake_one()

    def end(self, error: MillraceError | None) -> tuple[list[Message], list[Message]]:
        """No more messages. Returns those not handed out and those not acknowledged."""
        self._ended = True
        self._error = error
        buffered, self._buffer = list(self._buffer), deque()
        self._buffer_bytes = 0
        while self._waiters:
            self._wake_one()
        return buffered, list(self._held.values())

    # -------------------------------------------------------------------------------------- inside

    async def _open(self) -> None:
        if self._ended:
            raise Closed("the subscription has ended; subscribe again for a new one")
        if self._number is None:
            self._number = self._client._next_number()
            await self._client._open_subscription(self, self._number)

    async def take(self) -> Message | None:
        """The next message, None when the subscription has ended."""
        if self._number is None:
            await self._open()
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif self._buffer:
                    # It was this waiter's turn; the message is for the next one.
                    self._wake_one()
                raise
        message = self._buffer.popleft()
        self._buffer_bytes -= len(message.payload)
        if self._manual_ack and message.qos:
            self._held[id(message)] = message
        else:
            self._client._take(message)
        self._client._taken_from(self)
        return message

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
