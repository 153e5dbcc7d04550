"""The processes of a local cluster and their ports.

Node i of a cluster with base port P has MQTT P+10i, HTTP P+10i+1, peer P+10i+2, text P+10i+3, WebSocket
P+10i+4 and MQTT over TLS P+10i+5. The first node forms the cluster, the others join it; a node that has data
comes back as what it was. No node outlives the program that started it, whatever ends that; one that is
paused ends when it goes on.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from millrace.client.http import Http, Timeouts
from millrace.client.http_node import HttpError
from millrace.errors import LocalError
from millrace.node.peers.secret import make_secret_file

_READY_S = 60.0
_LOOK_S = 0.05
_ASK_S = 5.0
_LAST_WORDS_S = 1.0
# How the program begins the sentence with which it ends.
_ERROR_PREFIX = "millrace: "
_STOP_S = 5.0
_HOST = "127.0.0.1"
SECRET_FILE = "cluster.secret"
PROGRAM = ("-m", "millrace.cli.main")

# Below the ports that the kernel hands to outgoing connections: those would take one while a node is down.
_PORT_BLOCKS = range(20_000, 32_700, 100)


def names_secret(environment: Mapping[str, str]) -> bool:
    """Whether the environment says by which secret the nodes know each other."""
    return "MILLRACE_CLUSTER__SECRET" in environment or "MILLRACE_CLUSTER__SECRET_FILE" in environment


class PortBlock:
    """A hundred ports for processes that come and go, held against everybody else who asks in this way.

    Its last port stays bound for as long as the block is held, so that two test runs or demos that look at
    the same moment never settle on the same block.
    """

    def __init__(self) -> None:
        for base in _PORT_BLOCKS:
            held = socket.socket()
            try:
                held.bind((_HOST, base + 99))
                for port in range(base, base + 99):
                    with socket.socket() as probe:
                        probe.bind((_HOST, port))
            except OSError:
                held.close()
                continue
            self.base = base
            self._held = held
            self._taken = 0
            return
        raise LocalError(f"no hundred free ports between {_PORT_BLOCKS.start} and {_PORT_BLOCKS.stop}")

    def take(self) -> int:
        """One port nobody got from this block before."""
        assert self._taken < 99
        self._taken += 1
        return self.base + self._taken - 1

    def close(self) -> None:
        self._held.close()


class NodeProcess:
    """One node, started, killed, paused and started again at will."""

    def __init__(
        self,
        number: int,
        data: Path,
        base_port: int,
        secret_file: Path,
        *,
        join: str | None,
        host: str = _HOST,
        wrap: tuple[str, ...] = (),
        program: tuple[str, ...] = PROGRAM,
        options: tuple[str, ...] = (),
        on_line: Callable[[str, str], None] | None = None,
    ) -> None:
        self.host = host
        # What runs the node: a command that puts it somewhere else, such as a network of its own.
        self._wrap = wrap
        self._program = program
        self.number = number
        self.name = f"n{number + 1}"
        self.data = data / self.name
        port = base_port + 10 * number
        self.mqtt_port, self.http_port, self.peer_port = port, port + 1, port + 2
        self.text_port, self.ws_port = port + 3, port + 4
        self._join = join
        self._secret_file = secret_file
        self._options = options
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self.ports = tuple(range(port, port + 5))
        """Every port that it listens on."""
        self.lines: list[str] = []

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.mqtt_port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.host}:{self.http_port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_settled(self) -> bool:
        """Whether it serves and says that every log has its copies. Blocks while it is asked."""
        timeouts = Timeouts(connect_s=_ASK_S, switch_s=_ASK_S, answer_s=_ASK_S)
        with contextlib.suppress(LocalError), Http(self.http_url, timeouts=timeouts) as http:
            return bool(http.get("/readyz")["is_settled"])
        return False

    async def start(self) -> None:
        """Start it and wait until it serves; it is stopped again where that takes too long."""
        await self.launch()
        if not await self.serves_within(_READY_S):
            late = f" within {_READY_S:.0f} s" if self.is_running else ""
            await self.stop()
            raise LocalError(f"{self.name} did not start{late}: {self.last_words()}")

    async def launch(self) -> None:
        """Start its process."""
        self._ready.clear()
        command = [*self._wrap, sys.executable, *self._program, "start", "--node-id", self.name]
        # Of this pipe nothing is ever written: it ends when we do, also by kill -9, and the node with it.
        command += ["--end-with-input", "--data", str(self.data), "--mqtt", f"{self.host}:{self.mqtt_port}"]
        command += ["--http", f"{self.host}:{self.http_port}", "--peer", f"{self.host}:{self.peer_port}"]
        command += ["--text", f"{self.host}:{self.text_port}", "--ws", f"{self.host}:{self.ws_port}"]
        if self._join is not None:
            command += ["--join", self._join]
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *self._options,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            # Ctrl-C is for us; we stop the nodes in our own way.
            start_new_session=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(self._process.stdout)),
            asyncio.create_task(self._read(self._process.stderr)),
        ]

    async def serves_within(self, seconds: float) -> bool:
        """Whether it serves before it ends, and before this time is over."""
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        ready = asyncio.create_task(self._ready.wait())
        done, pending = await asyncio.wait(
            (ended, ready), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if ended in done:
            # What it said last may still be in the pipe.
            await asyncio.wait(self._readers, timeout=_LAST_WORDS_S)
        return ended not in done and ready in done

    def waits_for(self) -> str:
        """Why it does not serve, as it says it; empty if it does or does not answer. Blocks while it is
        asked."""
        timeouts = Timeouts(connect_s=_ASK_S, switch_s=_ASK_S, answer_s=_ASK_S)
        try:
            with Http(self.http_url, timeouts=timeouts) as http:
                http.get("/readyz")
        except HttpError as error:
            return str(error)
        except LocalError:
            pass
        return ""

    def join_through(self, member: "NodeProcess") -> None:
        """Whom it asks from its next start on, if it has no data: the first would form another cluster."""
        self._join = f"{member.host}:{member.peer_port}"

    def run_with(self, wrap: tuple[str, ...]) -> None:
        """The command that runs it from its next start on."""
        self._wrap = wrap

    def last_words(self) -> str:
        """The sentence by which the program says why it ended; its last line where there is none."""
        said = [line for line in self.lines if line.startswith(_ERROR_PREFIX)]
        if said:
            return said[-1].removeprefix(_ERROR_PREFIX)
        return self.lines[-1] if self.lines else "it said nothing"

    async def wait(self) -> str:
        """Wait until the process has ended; how it ended, in words."""
        assert self._process is not None
        code = await self._process.wait()
        if code < 0:
            try:
                return f"killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"killed by signal {-code}"
        await asyncio.wait(self._readers, timeout=_LAST_WORDS_S)
        return f"ended with status {code}" + (f": {self.last_words()}" if code else "")

    def _environment(self) -> dict[str, str]:
        """A secret that the caller's environment names is the cluster's, so that nodes elsewhere can join."""
        if names_secret(os.environ):
            return dict(os.environ)
        return {**os.environ, "MILLRACE_CLUSTER__SECRET_FILE": str(self._secret_file)}

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # The reader let go of what it held, and must go on: a node stops where its pipe is full.
                line = b"(a line too long to show)"
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            if " ready: " in text:
                self._ready.set()
            self.lines.append(text)
            del self.lines[:-1000]
            if self._on_line is not None:
                self._on_line(self.name, text)

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(number)

    async def kill(self) -> None:
        """kill -9: no goodbye, no last write."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def stop(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_S)
        except TimeoutError:
            await self.kill()
        for reader in self._readers:
            reader.cancel()


class LocalCluster:
    """Several nodes, at free ports unless told which; an asynchronous context manager stops them."""

    def __init__(
        self,
        count: int,
        data: Path,
        base_port: int | None = None,
        *,
        program: tuple[str, ...] = PROGRAM,
        options: tuple[str, ...] = (),
        on_line: Callable[[str, str], None] | None = None,
        place: Callable[[int], tuple[str, tuple[str, ...]]] | None = None,
    ) -> None:
        """`place` says for a node's number which host it has and what command runs it there; `program` is
        what Python runs, in place of `millrace`."""
        self._place = place or (lambda number: (_HOST, ()))
        self._data = data
        self._ports: PortBlock | None = None
        if base_port is None:
            self._ports = PortBlock()
            base_port = self._ports.base
        self._base_port = base_port
        self._program = program
        self._options = options
        self._on_line = on_line
        data.mkdir(parents=True, exist_ok=True)
        self.secret_file = data.absolute() / SECRET_FILE
        """What a node needs that is to join from elsewhere: `--set cluster.secret_file=...`."""
        make_secret_file(self.secret_file)
        self.nodes: list[NodeProcess] = []
        for _ in range(count):
            self.add()

    def add(self, number: int | None = None) -> NodeProcess:
        """One more node, not started yet. Its number is the next one unless said."""
        if number is None:
            number = max((node.number for node in self.nodes), default=-1) + 1
        host, wrap = self._place(number)
        member = next((node for node in self.nodes if node.is_running), self.nodes[0] if self.nodes else None)
        node = NodeProcess(
            number,
            self._data,
            self._base_port,
            self.secret_file,
            join=f"{member.host}:{member.peer_port}" if member is not None else None,
            host=host,
            wrap=wrap,
            program=self._program,
            options=self._options,
            on_line=self._on_line,
        )
        self.nodes.append(node)
        return node

    async def start(self) -> None:
        """Start all nodes at the same time. Those that have data must come back together, because a majority
        serves; new ones ask the first until it answers, which takes less time than to begin after it."""
        await asyncio.gather(*(node.start() for node in self.nodes if not node.is_running))

    async def settle(self, patience_s: float) -> bool:
        """Wait until every log has its copies: before that, losing one node may be losing a majority of some.
        False if it takes longer."""
        running = [node for node in self.nodes if node.is_running]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                # Other processes, which set no event of ours.
                while not all([await asyncio.to_thread(node.is_settled) for node in running]):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
                return True
        return False

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes))
        if self._ports is not None:
            self._ports.close()

    async def __aenter__(self) -> "LocalCluster":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
