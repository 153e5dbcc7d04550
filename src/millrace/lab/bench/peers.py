"""The brokers under load: this one and its peers, each a real process on a free port of the loopback.

Every start is a fresh process with its own directory, so that no run inherits memory, sessions or queues of
another (mosquitto's in-flight list, for one, grows all through a fan-in run). Peers get the settings that let
them show their best: nothing that queues is bounded.

What is acknowledged here is on disk by default, which no peer does at its defaults. So this broker is
measured twice where it matters: in memory like the peers (the default stream captures nothing), and as it
comes.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millrace.errors import LocalError

MILLRACE = "millrace"
MOSQUITTO = "mosquitto"
NATS = "nats"
PEERS = (MOSQUITTO, NATS)

_HOST = "127.0.0.1"
_START_S_MAX = 120.0
_START_TRIES = 3
_STOP_S_MAX = 5.0
_POLL_S = 0.01
# Debian keeps servers where an ordinary user's PATH does not look.
_SERVER_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin")
_MOSQUITTO_CONFIGURATION = """\
listener {port} {host}
allow_anonymous true
max_inflight_messages 0
max_queued_messages 0
"""


class PeerError(LocalError):
    """A broker did not start; the message holds what it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Free ports for one broker: the one under load, and one to command it by."""

    load: int
    control: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """How to start one broker. `command` gets free ports and an empty directory."""

    name: str
    version: str
    command: Callable[[Ports, Path], list[str]]
    environment: dict[str, str] = field(default_factory=dict)
    # Called once it listens, with what the run asks for: whether acknowledged means on disk.
    prepare: Callable[[Ports, bool], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    port: int
    process: subprocess.Popen[bytes]
    control_port: int = 0
    # The other nodes of a cluster.
    others: tuple[subprocess.Popen[bytes], ...] = ()

    def pids(self) -> list[int]:
        """The broker's processes and all their descendants, for the accounts of CPU and memory."""
        found = [self.process.pid, *(other.pid for other in self.others)]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                try:
                    found += map(int, children.read_text().split())
                except OSError:
                    # The thread ended meanwhile.
                    continue
        return found


def this_broker(kernels: str) -> Broker:
    """Millrace as `millrace start` runs it, with the C or the Python kernels and otherwise its defaults."""
    from millrace.version import __version__

    def command(ports: Ports, directory: Path) -> list[str]:
        doors = ["--mqtt", f"{_HOST}:{ports.load}", "--http", f"{_HOST}:{ports.control}"]
        start = [sys.executable, "-m", "millrace.cli.main", "start"]
        return [*start, "--data", str(directory / "data"), *doors]

    return Broker(
        name=MILLRACE,
        version=__version__,
        command=command,
        environment={"MILLRACE_KERNELS": kernels},
        prepare=_choose_capture,
    )


def _choose_capture(ports: Ports, durable: bool) -> None:
    if not durable:
        _command(ports.control, "PATCH", "/v1/streams/default", {"capture": "none"})


def make_stream(started: Running, name: str, filter: str) -> None:
    """At this broker, which alone has streams."""
    _command(started.control_port, "POST", "/v1/streams", {"name": name, "filters": [filter]})


def _command(port: int, method: str, path: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://{_HOST}:{port}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
        method=method,
    )
    try:
        urllib.request.urlopen(request, timeout=_START_S_MAX).close()
    except (urllib.error.URLError, TimeoutError) as error:
        raise PeerError(f"{MILLRACE} would not {method} {path}: {error}") from error


def find_peer(name: str) -> Broker | None:
    """The peer if it is installed on this machine."""
    if name == MOSQUITTO:
        return _find_mosquitto()
    if name == NATS:
        return _find_nats()
    raise ValueError(f"no such peer: {name}")


def _find_mosquitto() -> Broker | None:
    program = find_program("mosquitto")
    if program is None:
        return None

    def command(ports: Ports, directory: Path) -> list[str]:
        path = directory / "mosquitto.conf"
        path.write_text(_MOSQUITTO_CONFIGURATION.format(port=ports.load, host=_HOST))
        return [program, "-c", str(path)]

    return Broker(name=MOSQUITTO, version=program_version([program, "-h"]), command=command)


def _find_nats() -> Broker | None:
    program = find_program("nats-server")
    if program is None:
        return None

    def command(ports: Ports, directory: Path) -> list[str]:
        return [program, "-a", _HOST, "-p", str(ports.load)]

    return Broker(name=NATS, version=program_version([program, "--version"]), command=command)


def find_program(program: str) -> str | None:
    """A server. Beside our own interpreter first: a wheel that carries one puts it there."""
    directories = (str(Path(sys.executable).parent), os.environ.get("PATH", ""), *_SERVER_DIRECTORIES)
    return shutil.which(program, path=os.pathsep.join(directories))


def program_version(command: list[str]) -> str:
    """What it says first, without what comes before the number."""
    said = subprocess.run(command, capture_output=True, text=True, timeout=_START_S_MAX, check=False).stdout
    return (said.split("\n", 1)[0].split() or ["unknown"])[-1].removeprefix("v")


@contextmanager
def running(broker: Broker, *, durable: bool = False) -> Iterator[Running]:
    """Start the broker, wait until it takes connections, stop it at the end.

    `durable`: what this broker acknowledges is on disk; peers are not changed by it.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        for remaining in reversed(range(_START_TRIES)):
            directory = Path(name) / str(remaining)
            directory.mkdir()
            try:
                started = start(broker, directory, durable)
                break
            except PeerError:
                # Somebody else may have taken the port between our look and the broker's.
                if not remaining:
                    raise
        try:
            yield started
        finally:
            stop(started.process)


def start(broker: Broker, directory: Path, durable: bool) -> Running:
    """Start it in a directory that may hold its data of an earlier start. The caller stops it."""
    ports = _free_ports()
    # A setting of this shell must not change what is measured.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MILLRACE_")}
    said = directory / "output.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            broker.command(ports, directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=inherited | broker.environment,
            # Ctrl-C is for us; the broker is stopped after its last account is read.
            start_new_session=True,
        )
    # Whatever ends the wait, a signal too, must not leave the broker behind.
    try:
        _await_doors(broker, ports, process, said)
        if broker.prepare is not None:
            broker.prepare(ports, durable)
    except BaseException:
        stop(process)
        raise
    return Running(port=ports.load, process=process, control_port=ports.control)


def _await_doors(broker: Broker, ports: Ports, process: subprocess.Popen[bytes], said: Path) -> None:
    wanted = [ports.load] if broker.prepare is None else [ports.load, ports.control]
    deadline_s = time.monotonic() + _START_S_MAX
    while not all(_listens(port) for port in wanted):
        if process.poll() is not None or time.monotonic() > deadline_s:
            last = said.read_text(errors="replace").strip().rpartition("\n")[2]
            raise PeerError(f"{broker.name} did not start: {last or 'it said nothing'}")
        time.sleep(_POLL_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Politely, then not."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports() -> Ports:
    # Both are held until both are known, so that they differ.
    with socket.socket() as load, socket.socket() as control:
        load.bind((_HOST, 0))
        control.bind((_HOST, 0))
        return Ports(load=load.getsockname()[1], control=control.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0
