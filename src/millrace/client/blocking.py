"""The client for scripts: the same methods, blocking, over an event loop in a thread of its own.

    with Client("mqtt://127.0.0.1:1883") as client:
        client.publish("a/b", b"hello")
        with client.subscribe("a/#") as messages:
            for message in messages:
                ...

Any thread may call any method. `submit` publishes without waiting, for many messages in flight from one
thread.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from millrace.client import client as asynchronous
from millrace.client import subscription as asynchronous_subscription
from millrace.client.conversation.incoming import Message
from millrace.client.errors import Closed
from millrace.errors import LocalError
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Properties

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Call(Generic[Result]):
    """One coroutine that runs on the loop while another thread waits for its end.

    Ctrl-C may reach the waiting thread between any two instructions, also while it holds a lock. The loop's
    thread takes the lock of a `concurrent.futures.Future` as well, so an interrupt there could stop the loop
    for ever. Here the waiting thread takes one lock, which the loop's thread only releases.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._make = make
        self._task: asyncio.Task[Result] | None = None
        self._is_cancelled = False
        self._ended = threading.Lock()
        self._ended.acquire()

    def begin(self) -> None:
        """On the loop."""
        if self._is_cancelled:
            return
        self._task = asyncio.get_running_loop().create_task(self._make())
        self._task.add_done_callback(lambda _task: self._ended.release())

    def cancel(self) -> None:
        """On the loop: an interrupted call must not go on by itself."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> Result:
        """On the other thread: what came of it, or what it raised."""
        self._ended.acquire()
        assert self._task is not None
        if self._task.cancelled():
            # What `concurrent.futures.Future.result` raises: to the caller no task of its own was cancelled.
            raise concurrent.futures.CancelledError
        return self._task.result()


class Client:
    """Takes the arguments of `millrace.client.Client`. Use as a context manager, once."""

    def __init__(self, url: Any = asynchronous.DEFAULT_URL, **options: Any) -> None:
        self._client = asynchronous.Client(url, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="millrace-client", daemon=True)
        # Kept here: an interrupt in the middle of `is_alive` makes Python take a thread that runs for ended.
        self._is_running = False

    def __enter__(self) -> "Client":
        if self._thread.ident is not None:
            raise LocalError("a client is opened once; make another one")
        self._thread.start()
        self._is_running = True
        try:
            self._run(self._client.__aenter__)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and let go of everything."""
        if self._is_running:
            try:
                self._run(self._client.close)
            finally:
                self._stop()
        elif not self._loop.is_closed():
            self._loop.close()

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def connected(self) -> bool:
        return self._client.connected

    @property
    def address(self) -> str:
        return self._client.address

    def publish(
        self,
        topic: str,
        payload: bytes | bytearray | memoryview | str = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> Reason:
        """Publish and wait for the acknowledgement."""
        return self._run(self._client.publish, topic, payload, qos=qos, retain=retain, properties=properties)

    def submit(
        self,
        topic: str,
        payload: bytes | bytearray | memoryview | str = b"",
        *,
        qos: int = 1,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> "concurrent.futures.Future[Reason]":
        """Publish in the order of the calls; the future has the result. How many wait is for you to bound."""
        if not self._is_running:
            raise Closed("the client is not open")
        publish = self._client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        return asyncio.run_coroutine_threadsafe(publish, self._loop)

    def subscribe(self, *filters: str, **options: Any) -> "Subscription":
        """As `millrace.client.Client.subscribe`: use it in a `with`, then iterate."""
        return Subscription(self, self._client.subscribe(*filters, **options))

    # -------------------------------------------------------------------------------------- inside

    def _run(
        self,
        function: Callable[Arguments, Coroutine[Any, Any, Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Call `function` on the loop and wait for what comes of it."""
        if not self._is_running:
            raise Closed("the client is not open")
        call = _Call(lambda: function(*args, **kwargs))
        try:
            self._loop.call_soon_threadsafe(call.begin)
            return call.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(call.cancel)
            raise

    def _call(self, function: Callable[[Message], None], message: Message) -> None:
        if not self._is_running:
            raise Closed("the client is not open")
        self._loop.call_soon_threadsafe(function, message)

    def _stop(self) -> None:
        self._run(_finish)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._is_running = False
        self._thread.join()
        self._loop.close()


async def _finish() -> None:
    """End what still runs on this loop: calls of other threads, and publishes nobody waited for."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class Subscription:
    """Iterate over messages; see `millrace.client.subscription.Subscription`."""

    def __init__(self, client: Client, subscription: asynchronous_subscription.Subscription) -> None:
        self._client = client
        self._subscription = subscription

    def __enter__(self) -> "Subscription":
        self._client._run(self._subscription.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> "Subscription":
        return self

    def __next__(self) -> Message:
        message = self._client._run(self._subscription.take)
        if message is None:
            raise StopIteration
        return message

    def get(self, timeout_s: float | None = None) -> Message:
        """The next message; TimeoutError if none comes in time, Closed when the subscription has ended."""
        return self._client._run(self._subscription.get, timeout_s)

    def ack(self, message: Message) -> None:
        """Acknowledge a message of a subscription with `manual_ack`; does not wait."""
        self._client._call(self._subscription.ack, message)

    @property
    def dropped(self) -> int:
        return self._subscription.dropped

    def close(self) -> None:
        self._client._run(self._subscription.close)

    def unsubscribe(self) -> None:
        self._client._run(self._subscription.unsubscribe)
