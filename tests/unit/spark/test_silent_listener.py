"""A listener that accepts connections and never answers, beside a node that does: it costs its time-out once.

The times are those of the options, so that a call that waits longer than it may takes ten times as long."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from millrace.client import http as http_module
from millrace.client import http_node
from millrace.client.http_node import SilentNodes
from millrace.spark.reading import ClusterReader
from millrace.spark.writing import ClusterWriter

LONG_S = 60.0
SHORT_S = 0.5


def stream(name: str, *, role: str, replicas: int = 1) -> dict[str, Any]:
    row = {"shard": 17, "first_offset": 0, "next_offset": 5, "bytes": 9, "sealed": False, "role": role}
    return {
        "name": name,
        "replication": "quorum",
        "capture": "all",
        "shards": 1,
        "replicas": replicas,
        "shard_list": [row],
    }


class Node(BaseHTTPRequestHandler):
    """Answers as a node does that holds a shard of one stream."""

    protocol_version = "HTTP/1.1"
    role = "leader"

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        one = stream("s", role=self.role, replicas=3)
        fields: Any = one if self.path.endswith("/s") else {"streams": [one], "visible": True}
        body = json.dumps(fields).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _serve

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def start_node() -> Iterator[Callable[[str], str]]:
    servers = []

    def start(role: str) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("One", (Node,), {"role": role}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SilentNodes()
    monkeypatch.setattr(http_node, "SILENT_NODES", known)
    monkeypatch.setattr(http_module, "SILENT_NODES", known)


def seconds(call: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


def test_planning_waits_for_it_once_and_then_for_nobody(
    silent: str, start_node: Callable[[str], str]
) -> None:
    """Two addresses, of which one is silent: the answer of the other is no majority, so the first planning
    waits. Every other planning in the process, by whatever client, does not."""
    urls = (silent, start_node("leader"))
    first = seconds(lambda: ClusterReader(urls, request_s=SHORT_S).extents("s"))
    assert SHORT_S <= first < LONG_S
    for _ in range(3):
        assert seconds(lambda: ClusterReader(urls, request_s=LONG_S).extents("s")) < LONG_S / 2


def test_planning_does_not_wait_at_all_for_what_adds_nothing(
    silent: str, start_node: Callable[[str], str]
) -> None:
    """A majority of the nodes has answered, and the leader is one of them."""
    urls = (silent, start_node("leader"), start_node("follower"))
    assert seconds(lambda: ClusterReader(urls, request_s=LONG_S).extents("s")) < LONG_S / 2


def test_planning_waits_for_a_leader(silent: str, start_node: Callable[[str], str]) -> None:
    """Followers may lag behind: without the leader their answers are taken when the time is over."""
    urls = (silent, start_node("follower"), start_node("follower"))
    assert seconds(lambda: ClusterReader(urls, request_s=SHORT_S).extents("s")) >= SHORT_S


def test_a_sink_does_not_wait_for_it(silent: str, start_node: Callable[[str], str]) -> None:
    """Whoever answers first says which streams there are, and takes the rows. The process that commits is
    another one and hears from the tasks which node took them."""
    urls = (silent, start_node("leader"))
    writer = ClusterWriter(urls, request_s=LONG_S)

    def write() -> None:
        writer.streams()
        writer.stage("s", "w", 0, "a", b"")

    assert seconds(write) < LONG_S / 2
    other = ClusterWriter(urls, request_s=LONG_S)
    other.http.prefer(writer.http.urls[0])
    assert seconds(lambda: other.commit("w", 0, {})) < LONG_S / 2
