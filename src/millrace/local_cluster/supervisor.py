"""Keeps a local cluster running: starts its nodes, says at once when one dies, does what commands ask.

There is one supervisor for each data directory, held by a lock: `millrace cluster up` in the foreground, or
the process that `--detach` leaves behind. Its nodes end with it, however it ends, so what `cluster.json` says
of a supervisor that is gone holds for its nodes too.
"""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.errors import ConfigError, LocalError
from millrace.local_cluster import control, logs, state
from millrace.local_cluster.nodes import LocalCluster, NodeProcess
from millrace.local_cluster.ports import check_free

_LOCK_FILE = "cluster.lock"
_PAUSE_S_LEAST, _PAUSE_S_MOST = 1.0, 30.0
# A node that ran for so long is started again without a long pause.
_STEADY_S = 60.0
_SETTLE_S = 30.0
# After so long it is said why a node that was started does not serve.
_PATIENCE_S = 20.0

Say = Callable[[str, str], None]
"""Is told what happens: the node (or `cluster`), and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    directory: Path
    numbers: tuple[int, ...]
    base_port: int
    settings: tuple[str, ...] = ()
    restarts: bool = False


@dataclass(slots=True, kw_only=True)
class _Watched:
    """A node and what became of it."""

    node: NodeProcess
    state: str = "starting"
    since_s: float = field(default_factory=time.time)
    restarts: int = 0
    why: str = ""
    pause_s: float = _PAUSE_S_LEAST
    is_leaving: bool = False
    """Its end is wanted: nobody need hear of it."""
    watch: asyncio.Task[None] | None = None
    serving: asyncio.Task[None] | None = None
    """Ends once the node serves."""


class Supervisor:
    """`run` returns after `stop`, or LocalError says why the cluster did not start."""

    def __init__(self, plan: Plan, say: Say, on_line: Callable[[str, str], None]) -> None:
        self._plan = plan
        self._directory = plan.directory
        self._tell = say
        self._show_line = on_line
        self._log_files: dict[str, logs.LogFile] = {}
        self._nodes: dict[str, _Watched] = {}
        self._is_ready = False
        self._stopping = asyncio.Event()
        # One change at a time.
        self._turn = asyncio.Lock()
        self._actions: dict[str, Callable[[str], Coroutine[Any, Any, str]]] = {
            "stop": self._on_stop,
            "restart": self._on_restart,
            "kill": self._on_kill,
            "add": self._on_add,
            "forget": self._on_forget,
        }

    def stop(self) -> None:
        self._stopping.set()

    def _say(self, node: str, sentence: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        self._log(logs.SUPERVISOR, f"{stamp}.{int(time.time() * 1000) % 1000:03d} {node}: {sentence}")
        self._tell(node, sentence)

    def _log(self, name: str, line: str) -> None:
        if name not in self._log_files:
            self._log_files[name] = logs.LogFile(self._directory, name)
        self._log_files[name].write(line)

    def _heard(self, node: str, line: str) -> None:
        self._log(node, line)
        self._show_line(node, line)

    async def run(self, on_ready: Callable[[LocalCluster], None]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with _locked(self._directory):
            self._cluster = LocalCluster(
                0,
                self._directory,
                self._plan.base_port,
                options=tuple(part for one in self._plan.settings for part in ("--set", one)),
                on_line=self._heard,
            )
            for number in self._plan.numbers:
                node = self._cluster.add(number)
                self._nodes[node.name] = _Watched(node=node)
            check_free([port for node in self._cluster.nodes for port in node.ports])
            state.remember(self._directory)
            server = await control.serve(self._directory, self._on_request)
            try:
                await self._start()
                if not self._stopping.is_set():
                    self._is_ready = True
                    self._write()
                    on_ready(self._cluster)
                    await self._stopping.wait()
            finally:
                server.close()
                await self._end()

    async def _start(self) -> None:
        """Start all nodes, unless somebody says stop meanwhile."""
        self._write()
        starting = asyncio.create_task(self._start_whole())
        asked = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                for watched in self._nodes.values():
                    self._runs(watched)
        finally:
            starting.cancel()
            asked.cancel()
            await asyncio.gather(starting, asked, return_exceptions=True)

    async def _start_whole(self) -> None:
        """Whoever is told that the cluster is up may kill a node at once: each log has its copies by then."""
        await self._cluster.start()
        if not await self._cluster.settle(_SETTLE_S):
            self._say("cluster", "serves, but not every log has all its copies yet: see `millrace status`")

    async def _end(self) -> None:
        for watched in self._nodes.values():
            watched.is_leaving = True
            _let_go(watched)
        await self._cluster.stop()
        for watched in self._nodes.values():
            self._becomes(watched, "stopped")
        self._is_ready = False
        self._write(is_running=False)
        (self._directory / control.SOCKET_FILE).unlink(missing_ok=True)
        for file in self._log_files.values():
            file.close()
        self._log_files.clear()

    # ---------------------------------------------------------------------------------- one node

    def _becomes(self, watched: _Watched, name: str, why: str = "") -> None:
        watched.state, watched.since_s, watched.why = name, time.time(), why
        self._write()

    def _runs(self, watched: _Watched) -> None:
        watched.is_leaving = False
        self._becomes(watched, "running")
        watched.watch = asyncio.create_task(self._watch(watched))

    async def _watch(self, watched: _Watched) -> None:
        """Say how the node ended, and start it again if that is wanted."""
        node = watched.node
        why = await node.wait()
        if watched.serving is not None:
            watched.serving.cancel()
        if watched.is_leaving or self._stopping.is_set():
            return
        if time.time() - watched.since_s >= _STEADY_S:
            watched.pause_s = _PAUSE_S_LEAST
        if not self._plan.restarts:
            self._becomes(watched, "dead", why)
            self._say(node.name, f"died ({why}); start it again: millrace cluster restart {node.name}")
            return
        self._becomes(watched, "waiting", why)
        self._say(node.name, f"died ({why}); it is started again in {watched.pause_s:g} s")
        await asyncio.sleep(watched.pause_s)
        watched.pause_s = min(2 * watched.pause_s, _PAUSE_S_MOST)
        async with self._turn:
            if watched.state == "waiting":
                await self._start_again(watched)

    async def _start_again(self, watched: _Watched) -> None:
        """Start its process. Nobody waits here until it serves: it may need others that are started next."""
        await watched.node.launch()
        watched.restarts += 1
        watched.is_leaving = False
        self._becomes(watched, "starting")
        watched.watch = asyncio.create_task(self._watch(watched))
        watched.serving = asyncio.create_task(self._serve(watched))

    async def _serve(self, watched: _Watched) -> None:
        """Until the node serves; what it waits for is said meanwhile."""
        node, told = watched.node, False
        while not await node.serves_within(_PATIENCE_S):
            if not node.is_running:
                return
            watched.why = await asyncio.to_thread(node.waits_for)
            self._write()
            if not told and watched.why:
                told = True
                self._say(node.name, f"runs, and does not serve yet: {watched.why}")
        self._becomes(watched, "running")
        self._say(node.name, "runs again")

    # ---------------------------------------------------------------------------------- what commands ask

    async def _on_request(self, do: str, node: str) -> str:
        if do not in self._actions:
            raise LocalError(
                f"the supervisor of this cluster does not know {do!r}; is it of another version?"
            )
        if do == "stop":
            return await self._on_stop(node)
        if not self._is_ready:
            raise LocalError("the cluster is still starting; try again in a moment")
        async with self._turn:
            said = await self._actions[do](node)
        return await self._served(node) if do == "restart" else said

    def _named(self, node: str) -> _Watched:
        if node not in self._nodes:
            raise LocalError(f"there is no node {node!r}; there are: {', '.join(self._nodes)}")
        return self._nodes[node]

    async def _on_stop(self, _: str) -> str:
        self._stopping.set()
        return "the cluster is stopping"

    async def _on_restart(self, name: str) -> str:
        watched = self._named(name)
        watched.is_leaving = True
        await watched.node.stop()
        _let_go(watched)
        await self._start_again(watched)
        return ""

    async def _served(self, name: str) -> str:
        """What became of a node that was started again. Others may be started meanwhile."""
        watched = self._named(name)
        node, serving = watched.node, watched.serving
        assert serving is not None
        await asyncio.wait((serving,), timeout=_PATIENCE_S)
        if serving.done() and node.is_running:
            return f"{name} runs again"
        why = await asyncio.to_thread(node.waits_for)
        if not node.is_running:
            raise LocalError(f"{name} did not start: {node.last_words()}")
        return f"{name} runs, and does not serve yet: {why or 'it does not answer'}"

    async def _on_kill(self, name: str) -> str:
        watched = self._named(name)
        if not watched.node.is_running:
            raise LocalError(f"{name} is not running")
        await watched.node.kill()
        return f"{name} is killed" + ("; it will be started again" if self._plan.restarts else "")

    async def _on_add(self, _: str) -> str:
        node = self._cluster.add(
            next_number(self._directory, [one.node.number for one in self._nodes.values()])
        )
        try:
            check_free(node.ports)
            watched = self._nodes[node.name] = _Watched(node=node)
            self._write()
            await node.start()
        except LocalError:
            self._nodes.pop(node.name, None)
            self._cluster.nodes.remove(node)
            self._write()
            raise
        self._runs(watched)
        self._say(node.name, f"joined; MQTT {node.url}, HTTP {node.http_url}")
        return f"{node.name} joined; MQTT {node.url}, HTTP {node.http_url}"

    async def _on_forget(self, name: str) -> str:
        watched = self._named(name)
        watched.is_leaving = True
        _let_go(watched)
        await watched.node.stop()
        del self._nodes[name]
        self._cluster.nodes.remove(watched.node)
        self._write()
        self._say(name, "is removed")
        return f"{name} is stopped; its data is kept in {watched.node.data}"

    # ---------------------------------------------------------------------------------- the record

    def _write(self, *, is_running: bool = True) -> None:
        state.write(
            self._directory,
            state.ClusterRecord(
                base_port=self._plan.base_port,
                settings=self._plan.settings,
                restarts=self._plan.restarts,
                supervisor=state.process(os.getpid()) if is_running else None,
                is_ready=self._is_ready,
                nodes=tuple(_record(watched) for watched in self._nodes.values()),
            ),
        )


def _let_go(watched: _Watched) -> None:
    """Nobody waits for its end or its beginning any more."""
    for task in (watched.watch, watched.serving):
        if task is not None:
            task.cancel()


def known_numbers(directory: Path) -> list[int]:
    """The numbers of all nodes that ever kept data in this directory, those that were removed included."""
    names = (path.name for path in directory.glob("n*") if (path / "FORMAT").exists())
    return sorted(int(name[1:]) - 1 for name in names if name[1:].isdigit())


def next_number(directory: Path, numbers: Sequence[int]) -> int:
    """The number of a node to add: not that of one that was removed, whose data is still there."""
    return max((*numbers, *known_numbers(directory)), default=-1) + 1


def _record(watched: _Watched) -> state.NodeRecord:
    node = watched.node
    return state.NodeRecord(
        name=node.name,
        number=node.number,
        state=watched.state,
        mqtt=f"{node.host}:{node.mqtt_port}",
        http=f"{node.host}:{node.http_port}",
        peer=f"{node.host}:{node.peer_port}",
        process=state.process(node.pid) if node.is_running else None,
        since_s=watched.since_s,
        restarts=watched.restarts,
        why=watched.why,
    )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory against a second supervisor; the lock ends with the process."""
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"the cluster in {directory} is running already: see `millrace cluster status`, "
                "stop it with `millrace cluster down`"
            ) from None
        yield
    finally:
        os.close(descriptor)
