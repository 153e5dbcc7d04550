"""Edge functions: a pool of processes that run a Python callable on messages, off the event loop.

A function is named `module:function` in a stream's definition; the module must be on the list in this node's
own configuration (`edge.modules`), because a definition may come from anywhere in the cluster. A call that
takes too long costs the process that makes it: it is killed and another one takes its place, so the next
message finds a sound one.
"""

import asyncio
import contextlib
import logging
import re
import sys
from typing import Any

import msgspec

from millrace.errors import LocalError
from millrace.limits import EDGE_ANSWER_BYTES_MAX

log = logging.getLogger("millrace.edge")

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_START_S_MAX = 30.0


class EdgeFailed(LocalError):
    """The function raised, took too long, or returned what is no message."""


class EdgeUnavailable(LocalError):
    """The function cannot be run at this node at all."""


class _Worker:
    """One process."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._process: asyncio.subprocess.Process | None = None

    async def call(self, topic: str, payload: bytes, timeout_s: float) -> list[tuple[str, bytes]]:
        await self.start()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._ask(topic, payload)
        except TimeoutError:
            await self.stop()
            raise EdgeFailed(f"{self._function} took more than {timeout_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError):
            await self.stop()
            raise EdgeFailed(f"the process of {self._function} ended in the middle of a message") from None
        except asyncio.CancelledError:
            await self.stop()
            raise
        return [(str(row[0]), bytes(row[1])) for row in answer]

    async def start(self) -> None:
        """Whatever keeps it from starting is no fault of the message that waits."""
        if self._process is not None and self._process.returncode is None:
            return
        try:
            async with asyncio.timeout(_START_S_MAX):
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "millrace.node.edge.worker",
                    self._function,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    # Ctrl-C is for the node; it stops its workers itself.
                    start_new_session=True,
                )
                await self._answer()
        except EdgeFailed as error:
            await self.stop()
            raise EdgeUnavailable(str(error)) from None
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            # A start that takes too long is one of them.
            await self.stop()
            raise EdgeUnavailable(f"the process of {self._function} does not start: {error!r}") from None
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def _ask(self, topic: str, payload: bytes) -> list[Any]:
        assert self._process is not None and self._process.stdin is not None
        frame = msgspec.msgpack.encode([topic, payload])
        self._process.stdin.write(len(frame).to_bytes(4, "big") + frame)
        await self._process.stdin.drain()
        return await self._answer()

    async def _answer(self) -> list[Any]:
        assert self._process is not None and self._process.stdout is not None
        size = int.from_bytes(await self._process.stdout.readexactly(4), "big")
        if size > EDGE_ANSWER_BYTES_MAX:
            raise OSError("an answer out of bounds")
        outcome, value = msgspec.msgpack.decode(await self._process.stdout.readexactly(size))
        if outcome != "ok":
            raise EdgeFailed(f"{self._function}: {value}")
        rows: list[Any] = value
        return rows

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class EdgeFunctions:
    """All edge functions of a node: up to `workers` processes each."""

    def __init__(self, modules: str, workers: int, timeout_s: float) -> None:
        self._modules = frozenset(name.strip() for name in modules.split(",") if name.strip())
        self._count = workers
        self._timeout_s = timeout_s
        self._idle: dict[str, asyncio.Queue[_Worker]] = {}

    def check(self, function: str) -> None:
        """LocalError says why this node would not run it."""
        if not _FUNCTION.fullmatch(function):
            raise EdgeUnavailable(f"{function!r} is not module:function")
        module = function.partition(":")[0]
        if module not in self._modules:
            raise EdgeUnavailable(
                f"the module {module!r} is not allowed here: the node's setting edge.modules must name it"
            )

    async def check_loading(self, function: str) -> None:
        """Load it once in a process of its own; LocalError says why that does not work here."""
        self.check(function)
        worker = _Worker(function)
        try:
            await worker.start()
        finally:
            await worker.stop()

    async def ready(self, function: str) -> None:
        """See to it that one of its processes runs; EdgeUnavailable says why none does. Before messages are
        taken for it: those that it cannot have stay where they are."""
        self.check(function)
        idle = self._pool(function)
        worker = await idle.get()
        try:
            await worker.start()
        finally:
            idle.put_nowait(worker)

    def _pool(self, function: str) -> "asyncio.Queue[_Worker]":
        idle = self._idle.get(function)
        if idle is None:
            idle = self._idle[function] = asyncio.Queue()
            for _ in range(self._count):
                idle.put_nowait(_Worker(function))
        return idle

    async def run(self, function: str, topic: str, payload: bytes) -> list[tuple[str, bytes]]:
        """The messages that it makes of one. EdgeFailed is about this message, EdgeUnavailable about all."""
        self.check(function)
        idle = self._pool(function)
        worker = await idle.get()
        try:
            return await worker.call(topic, payload, self._timeout_s)
        finally:
            if idle is not self._idle.get(function):
                # It was loaded anew meanwhile.
                await worker.stop()
            idle.put_nowait(worker)

    async def reload(self) -> int:
        """Load every function anew with its next message; how many there are."""
        functions = await self._renew()
        log.info("edge functions are loaded anew: %s", ", ".join(functions) or "none is in use")
        return len(functions)

    async def _renew(self) -> list[str]:
        functions, self._idle = self._idle, {}
        for idle in functions.values():
            # Those at work end with their message; whoever waits for one of these gets it fresh.
            for _ in range(idle.qsize()):
                worker = idle.get_nowait()
                await worker.stop()
                idle.put_nowait(worker)
        return list(functions)

    async def stop(self) -> None:
        await self._renew()
