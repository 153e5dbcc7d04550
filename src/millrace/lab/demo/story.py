"""What the demos share: a log that reads like a story, and a broker process that can be killed."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from millrace.errors import LocalError

_READY_S = 20.0

Lasting = TypeVar("Lasting")


class Story:
    """Lines with time, who, and what."""

    def __init__(self, *, keep: bool = False) -> None:
        """`keep`: what the demo started goes on after its end, until somebody stops it."""
        self._console = Console(highlight=False)
        self._started_s = time.monotonic()
        self._keep = keep
        self._kept: list[contextlib.AsyncExitStack] = []
        self._dashboard = ""

    @contextlib.asynccontextmanager
    async def lasting(
        self, context: contextlib.AbstractAsyncContextManager[Lasting]
    ) -> AsyncIterator[Lasting]:
        """The same context, whose end waits for `end` where the story is kept and nothing went wrong."""
        async with contextlib.AsyncExitStack() as stack:
            yield await stack.enter_async_context(context)
            if self._keep:
                self._kept.append(stack.pop_all())

    def shows(self, url: str) -> None:
        """Where the dashboard of what runs is."""
        self._dashboard = url
        self.say("stage", f"dashboard while it runs: {url}")

    async def end(self) -> None:
        """The end of a demo: say where to look; where the story is kept, wait until somebody had enough."""
        if not self._keep:
            if self._dashboard:
                self.say(
                    "stage", "all of it is stopped now; with --keep it goes on, and its dashboard too", "dim"
                )
            return
        try:
            enough = asyncio.Event()
            loop = asyncio.get_running_loop()
            # Before anybody is told of Ctrl-C.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, enough.set)
            self.say("stage", f"everything goes on; dashboard: {self._dashboard}  (Ctrl-C ends it)", "bold")
            await enough.wait()
            self.say("stage", "stopping")
        finally:
            await self.let_go()

    async def let_go(self) -> None:
        """Stop what was kept, in the order in which it would have been stopped."""
        kept, self._kept = self._kept, []
        for stack in kept:
            await stack.aclose()

    def say(self, who: str, what: str, style: str = "") -> None:
        elapsed_s = time.monotonic() - self._started_s
        self._console.print(f"[dim]{elapsed_s:6.2f}s[/dim]  [bold]{who:<10}[/bold] ", end="")
        self._console.print(what, style=style or None, markup=False)

    def title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]")

    def proved(self, claims: dict[str, bool]) -> None:
        """The end: what was shown. Raises where a claim does not hold."""
        self._console.print()
        for claim, holds in claims.items():
            mark = "[green]yes[/green]" if holds else "[red]NO[/red] "
            self._console.print(f"  {mark}  {claim}")
        if not all(claims.values()):
            raise LocalError("the demo did not show what it should")


async def perform(run: Callable[[Story], Awaitable[None]], *, keep: bool) -> None:
    """A demo from its beginning to its end."""
    story = Story(keep=keep)
    try:
        await run(story)
        await story.end()
    finally:
        await story.let_go()


class BrokerProcess:
    """A node as a process of its own, on free ports, that may be killed and started again."""

    def __init__(self, data: Path, node_id: str = "n1") -> None:
        self._data = data
        self._node_id = node_id
        self._process: asyncio.subprocess.Process | None = None
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        wanted = self.ports or {"mqtt": 0, "http": 0}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "millrace.cli.main",
            "start",
            "--node-id",
            self._node_id,
            "--data",
            str(self._data),
            "--mqtt",
            f"127.0.0.1:{wanted['mqtt']}",
            "--http",
            f"127.0.0.1:{wanted['http']}",
            "--set",
            "log.level=warning",
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), _READY_S)
        if b" ready: " not in line:
            raise LocalError("the broker did not start; its message stands above")
        for word in line.decode().split(" ready: ")[1].split():
            name, _, port = word.partition("=")
            self.ports[name] = int(port)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.ports['mqtt']}"

    async def kill(self) -> None:
        """kill -9: no goodbye, no last write."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
