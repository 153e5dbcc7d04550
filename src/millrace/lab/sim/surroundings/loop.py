"""An event loop of asyncio on the virtual clock: one for each simulated host, all on one queue of calls.

The code under test cannot tell it from a real loop: tasks, futures, timers, servers and connections work, on
the network of `sockets`. A host that crashes is a loop that is dead: whatever it still had to run is dropped,
its tasks never go on, and what they try in their last moments reaches nobody. A host that is paused keeps
everything that falls due and runs it, in order, when it goes on.

There are no threads: work for an executor is a call of the clock a little later.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from contextvars import Context
from math import ceil
from typing import Any, ParamSpec, TypeVar

from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.lab.sim.surroundings.sockets import Server, Sockets

_P = ParamSpec("_P")
_T = TypeVar("_T")
_WORK_US_MIN, _WORK_US_MAX = 50, 2_000

Trouble = Callable[["SimLoop", BaseException], None]


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(
        self, address: str, *, clock: Clock, sockets: Sockets, rng: random.Random, trouble: Trouble
    ) -> None:
        self.address = address
        self.rng = rng
        self.is_dead = False
        self.is_paused = False
        self._clock = clock
        self._sockets = sockets
        self._trouble = trouble
        self._deferred: list[asyncio.Handle] = []
        # The loop of a dead host keeps its tasks, so that no collector ends them at a moment of its own.
        self._tasks: list[asyncio.Task[Any]] = []

    # -------------------------------------------------------------------------------------- the host

    def die(self) -> None:
        self.is_dead = True
        self._deferred.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for handle in deferred:
            self._clock.after(0, self._run, handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if self.is_dead or handle.cancelled():
            return
        if self.is_paused:
            self._deferred.append(handle)
            return
        self.inside(handle._run)

    def inside(self, call: Callable[[], _T]) -> _T:
        """Call something that asks for the running loop."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return call()
        finally:
            asyncio._set_running_loop(outer)

    def bury(self) -> None:
        """At the end of the world: what never ended ends now, unheard."""
        self.die()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    self.inside(task.get_coro().close)
        self._tasks.clear()

    # ----------------------------------------------------------------------------------------- calls

    def time(self) -> float:
        return self._clock.now_us / US_PER_S

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        if not self.is_dead:
            self._clock.after(0, self._run, handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            # Never too early by a rounding: whoever waits for a moment would find it not there yet, for ever.
            self._clock.after(max(0, ceil(when * US_PER_S) - self._clock.now_us), self._run, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The clock forgets nothing; a cancelled call is passed over when its time comes."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, _T], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[_T]":
        task: asyncio.Task[_T] = asyncio.Task(coro, loop=self, name=name, context=context)
        if len(self._tasks) > 1000:
            self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> "asyncio.Future[_T]":
        return asyncio.wrap_future(SimExecutor(self).submit(func, *args), loop=self)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Nobody sends signals here."""

    # ---------------------------------------------------------------------------------------- network

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        server: Server = self._sockets.listen(self, str(host), int(port), protocol_factory)
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        transport = await self._sockets.connect(self, str(host), int(port))
        protocol = protocol_factory()
        transport.begin(protocol)
        return transport, protocol

    # ------------------------------------------------------------------------------------------ state

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Nothing in the product may raise into the loop: the world ends the run."""
        error = context.get("exception")
        if error is not None and not self.is_dead:
            self._trouble(self, error)


class SimExecutor(Executor):
    """Workers of a host: each piece of work is done at one moment, a little after it was handed in."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> "Future[_T]":
        future: Future[_T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  as every executor does
                future.set_exception(error)
            else:
                future.set_result(result)

        delay_us = self._loop.rng.randint(_WORK_US_MIN, _WORK_US_MAX)
        self._loop.call_later(delay_us / US_PER_S, work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing runs beside the loop."""
