"""Three nodes under load: this broker, and NATS JetStream with and without a sync before its answer.

Each cluster is made of real processes on ports of the loopback that are held for it, starts empty, and counts
as ready once the log under load has all its replicas. The load goes to the node that leads that log, so that
nobody pays for forwarding; CPU is counted over all nodes.

JetStream acknowledges at its defaults what a majority has in memory; with `sync_interval: always` what it has
on disk, as this broker always does. Its stream keeps 1 GB and drops the oldest, which no run reaches.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from millrace.lab.bench.peers import MILLRACE, PeerError, Running, find_program, program_version, stop
from millrace.local_cluster import PortBlock

JETSTREAM = "jetstream"
JETSTREAM_SYNC = "jetstream-sync"
CLUSTER_PEERS = (JETSTREAM_SYNC, JETSTREAM)

_TOPIC = "bench"  # what the generator's topics begin with; the stream of JetStream takes it

_HOST = "127.0.0.1"
_NODES = 3
_READY_S_MAX = 60.0
_ANSWER_S_MAX = 2.0
_POLL_S = 0.05
_STREAM_BYTES_MAX = 1 << 30
_STREAM = "BENCH"
_NATS_CONFIGURATION = """\
server_name: n{number}
listen: {host}:{port}
jetstream {{ store_dir: "{directory}"{sync} }}
cluster {{ name: bench, listen: {host}:{peer_port}, routes: [{routes}] }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One process of a cluster: `command_port` answers questions about who leads."""

    process: subprocess.Popen[bytes]
    port: int
    command_port: int
    said: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKind:
    """How to start one kind of cluster."""

    name: str
    version: str
    start: Callable[[Path, PortBlock, ExitStack], list[Node]]
    # The nodes to the one that leads the log under load; None while that is not settled.
    find_leader: Callable[[list[Node]], Node | None]


def this_cluster(kernels: str, program: Sequence[str] = ("-m", "millrace.cli.main")) -> ClusterKind:
    """Millrace as `millrace start` runs it, three times. `program`: what Python runs."""
    from millrace.version import __version__

    def start(directory: Path, ports: PortBlock, stack: ExitStack) -> list[Node]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MILLRACE_")}
        environment = kept | {"MILLRACE_KERNELS": kernels, "MILLRACE_CLUSTER__SECRET": os.urandom(16).hex()}
        nodes: list[Node] = []
        first_peer = 0
        for number in range(_NODES):
            mqtt, http, peer = ports.take(), ports.take(), ports.take()
            first_peer = first_peer or peer
            command = [sys.executable, *program, "start", "--node-id", f"n{number + 1}"]
            command += ["--data", str(directory / f"n{number + 1}"), "--mqtt", f"{_HOST}:{mqtt}"]
            command += ["--http", f"{_HOST}:{http}", "--peer", f"{_HOST}:{peer}"]
            command += ["--join", f"{_HOST}:{first_peer}"] if number else []
            node = _launch(command, environment, directory / f"n{number + 1}.log", mqtt, http, stack)
            nodes.append(node)
            # Whom the others join must be there.
            _until(partial(_answers, node), nodes, MILLRACE)
        return nodes

    return ClusterKind(name=MILLRACE, version=__version__, start=start, find_leader=_millrace_leader)


def _answers(node: Node) -> bool:
    return _status(node) is not None


def _status(node: Node) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(
            f"http://{_HOST}:{node.command_port}/status", timeout=_ANSWER_S_MAX
        ) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
        return None


def _millrace_leader(nodes: list[Node]) -> Node | None:
    leader = None
    for node in nodes:
        status = _status(node)
        if status is None or not status["cluster"]["is_settled"]:
            return None
        if any(shard["role"] == "leader" for shard in status["streams"]):
            leader = node
    return leader


def find_jetstream(name: str) -> ClusterKind | None:
    """JetStream if it is installed here."""
    program = find_program("nats-server")
    if program is None:
        return None
    sync = ", sync_interval: always" if name == JETSTREAM_SYNC else ""

    def start(directory: Path, ports: PortBlock, stack: ExitStack) -> list[Node]:
        taken = [(ports.take(), ports.take()) for _ in range(_NODES)]
        routes = ", ".join(f'"nats://{_HOST}:{peer}"' for _, peer in taken)
        nodes = []
        for number, (port, peer_port) in enumerate(taken, 1):
            path = directory / f"n{number}.conf"
            path.write_text(
                _NATS_CONFIGURATION.format(
                    number=number,
                    host=_HOST,
                    port=port,
                    directory=directory / f"n{number}",
                    sync=sync,
                    peer_port=peer_port,
                    routes=routes,
                )
            )
            nodes.append(
                _launch(
                    [program, "-c", str(path)],
                    dict(os.environ),
                    directory / f"n{number}.log",
                    port,
                    port,
                    stack,
                )
            )
        return nodes

    version = program_version([program, "--version"])
    return ClusterKind(name=name, version=version, start=start, find_leader=_jetstream_leader)


def _jetstream_leader(nodes: list[Node]) -> Node | None:
    """Make the stream once the servers have found each other; then ask who leads it."""
    definition = {
        "name": _STREAM,
        "subjects": [f"{_TOPIC}.>"],
        "storage": "file",
        "retention": "limits",
        "num_replicas": _NODES,
        "max_bytes": _STREAM_BYTES_MAX,
        "discard": "old",
    }
    info = _ask_nats(nodes[0].port, f"$JS.API.STREAM.INFO.{_STREAM}", {})
    if info is None or "error" in info:
        _ask_nats(nodes[0].port, f"$JS.API.STREAM.CREATE.{_STREAM}", definition)
        return None
    cluster = info.get("cluster", {})
    replicas = cluster.get("replicas", [])
    if len(replicas) != _NODES - 1 or not all(replica.get("current") for replica in replicas):
        return None
    names = [f"n{number}" for number in range(1, _NODES + 1)]
    return nodes[names.index(cluster["leader"])] if cluster.get("leader") in names else None


def _ask_nats(port: int, subject: str, what: dict[str, Any]) -> dict[str, Any] | None:
    """One request over a connection of its own; None where nobody answers in time."""
    body = json.dumps(what).encode()
    try:
        with socket.create_connection((_HOST, port), timeout=_ANSWER_S_MAX) as connection:
            asked = b'CONNECT {"verbose":false}\r\nSUB _INBOX.bench 1\r\n'
            asked += b"PUB %s _INBOX.bench %d\r\n%s\r\n" % (subject.encode(), len(body), body)
            connection.sendall(asked)
            stream = connection.makefile("rb")
            while line := stream.readline():
                if line.startswith(b"MSG "):
                    found: dict[str, Any] = json.loads(stream.read(int(line.split()[-1])))
                    return found
    except (OSError, ValueError):
        pass
    return None


def _launch(
    command: list[str],
    environment: dict[str, str],
    said: Path,
    port: int,
    command_port: int,
    stack: ExitStack,
) -> Node:
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            # Ctrl-C is for us; the nodes are stopped after their last account is read.
            start_new_session=True,
        )
    stack.callback(stop, process)
    return Node(process=process, port=port, command_port=command_port, said=said)


def _until(is_so: Callable[[], bool], nodes: list[Node], name: str) -> None:
    deadline_s = time.monotonic() + _READY_S_MAX
    while not is_so():
        for node in nodes:
            if node.process.poll() is not None:
                last = node.said.read_text(errors="replace").strip().rpartition("\n")[2]
                raise PeerError(f"a node of {name} ended: {last or 'it said nothing'}")
        if time.monotonic() > deadline_s:
            raise PeerError(f"{name} was not ready after {_READY_S_MAX:.0f} s")
        time.sleep(_POLL_S)


@contextmanager
def running(kind: ClusterKind) -> Iterator[Running]:
    """Start three nodes, wait until the log has its replicas, stop them at the end."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-")))
        ports = PortBlock()
        stack.callback(ports.close)
        nodes = kind.start(directory, ports, stack)
        leader: list[Node] = []

        def is_settled() -> bool:
            found = kind.find_leader(nodes)
            leader.extend([found] if found is not None else [])
            return bool(leader)

        _until(is_settled, nodes, kind.name)
        others = tuple(node.process for node in nodes if node is not leader[0])
        yield Running(port=leader[0].port, process=leader[0].process, others=others)
