"""`millrace start --workers N`: all cores of a machine, as N nodes of one cluster.

Each worker is a whole node in a process of its own. The doors for devices (MQTT, WebSocket, text) are one set
of ports, and the system gives each connection to one of the workers. HTTP and the links between nodes belong
to a single node, so each worker has its own: metrics, logins of pages and readiness are those of one process.

The first worker is the node that `start` would run alone, with its name and its data; the others are made
beside it. All carry the label of their machine, so no two of them keep replicas of the same shard as voters.
A worker that dies is started again; all end with this process, however it ends.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from millrace.errors import ConfigError, LocalError
from millrace.node.config import Address, Config
from millrace.node.peers.secret import make_secret_file

# How far apart the ports are that each worker has for itself, as in `millrace cluster up`.
_PORT_STEP = 10
_PEER = Address("127.0.0.1", 18832)
_PAUSE_S_LEAST, _PAUSE_S_MOST = 0.5, 30.0
# A worker that ran for so long is started again without a long pause.
_STEADY_S = 60.0
_STOP_S = 15.0
_SECRET_FILE = "cluster.secret"
_SHARED = ("mqtt", "mqtts", "ws", "wss", "text", "texts")
_OWN = ("http", "https")


def run(config: Config, options: Sequence[str], overrides: Sequence[str], count: int) -> None:
    """Run the workers until SIGTERM or Ctrl-C. `options` and `overrides` are those by which this process was
    configured. Raises ConfigError or LocalError where a worker does not start."""
    commands = [
        [*options, *(part for one in (*overrides, *settings) for part in ("--set", one))]
        for settings in worker_settings(config, count)
    ]
    if not (config.cluster.secret or config.cluster.secret_file or config.cluster.tls_cert):
        Path(config.node.data).mkdir(parents=True, exist_ok=True)
        make_secret_file(Path(config.node.data) / _SECRET_FILE)
    asyncio.run(_Workers(commands).run())


def worker_settings(config: Config, count: int) -> Iterator[list[str]]:
    """What each worker is told beside the configuration that all of them read."""
    listeners, cluster, data = config.listeners, config.cluster, Path(config.node.data)
    for name in (*_SHARED, *_OWN):
        address = getattr(listeners, name)
        if address is not None and not address.port:
            raise ConfigError(f"listeners.{name}: with --workers name a port; {address} is any free one")
    peer = listeners.peer or _PEER
    if not peer.port:
        raise ConfigError(f"listeners.peer: with --workers name a port; {peer} is any free one")
    for number in range(count):
        said = {
            "node.host": config.node.host or config.node.id,
            "listeners.shared": "true",
            "listeners.peer": _shifted(peer, number),
        }
        for name in _OWN:
            if (address := getattr(listeners, name)) is not None:
                said[f"listeners.{name}"] = _shifted(address, number)
        if cluster.advertise is not None:
            said["cluster.advertise"] = _shifted(cluster.advertise, number)
        if not (cluster.secret or cluster.secret_file or cluster.tls_cert):
            said["cluster.secret_file"] = str(data / _SECRET_FILE)
        if number:
            first = cluster.advertise or peer
            said["node.id"] = f"{config.node.id}-{number + 1}"
            said["node.data"] = str(data / "workers" / str(number + 1))
            said["cluster.join"] = ",".join(filter(None, (cluster.join, str(first))))
        yield [f"{key}={value}" for key, value in said.items()]


def _shifted(address: Address, number: int) -> str:
    return str(Address(address.host, address.port + _PORT_STEP * number))


class _Workers:
    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._failure: LocalError | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        watches = [asyncio.create_task(self._keep(number)) for number in range(len(self._commands))]
        await self._stopping.wait()
        self._pass_on(signal.SIGTERM)
        _, late = await asyncio.wait(watches, timeout=_STOP_S)
        if late:
            self._pass_on(signal.SIGKILL)
        await asyncio.gather(*watches)
        if self._failure is not None:
            raise self._failure

    async def _keep(self, number: int) -> None:
        """Run a worker, again and again. One that never served says that something is wrong with all."""
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S_LEAST
        has_served = False
        while not self._stopping.is_set():
            began_s = loop.time()
            has_served = await self._run_once(number) or has_served
            if self._stopping.is_set():
                return
            status = self._processes[number].returncode
            if not has_served:
                self._failure = LocalError(f"worker {number + 1} ended with status {status} before it served")
                self._stopping.set()
                return
            if loop.time() - began_s >= _STEADY_S:
                pause_s = _PAUSE_S_LEAST
            _say(f"worker {number + 1} ended with status {status}; it is started again in {pause_s:g} s")
            try:
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            except TimeoutError:
                pause_s = min(2 * pause_s, _PAUSE_S_MOST)

    async def _run_once(self, number: int) -> bool:
        """Run a worker until it ends; whether it served."""
        process = self._processes[number] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "millrace.cli.main", "start", "--end-with-input"),
            *self._commands[number],
            # Nothing is ever written to it: it ends with this process, and the worker with it.
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C is for this process, which stops the workers in its own way.
            start_new_session=True,
        )
        assert process.stdout is not None
        has_served = False
        async for line in process.stdout:
            has_served = has_served or b" ready: " in line
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
        await process.wait()
        return has_served

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                os.kill(process.pid, number)


def _say(sentence: str) -> None:
    sys.stderr.write(f"millrace: {sentence}\n")
    sys.stderr.flush()
