"""The HTTP client: what a caller hears when a node fails, and how several nodes stand in for each other."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from millrace.client import http as http_module
from millrace.client import http_node
from millrace.client.http import Http, HttpError, NobodyAnswers, Timeouts
from millrace.client.http_node import HttpNode, NoAnswer, SilentNodes, TimeLimit
from millrace.errors import ConfigError, LocalError

NOBODY = "http://127.0.0.1:1"
SHORT = Timeouts(connect_s=1.0, switch_s=0.2, answer_s=5.0)
HEADS = {
    "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc",
    "a problem": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 1000\r\n\r\nabc",
    "no HTTP": b"\x00\x01\r\n",
}


class Node(BaseHTTPRequestHandler):
    """Answers with what its server was given, and counts requests and connections."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1  # type: ignore[attr-defined]

    def _serve(self) -> None:
        server: Any = self.server
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.requests.append((self.command, self.path))
        status, fields = server.answer
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def start_node() -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def start(status: int = 200, fields: Any = None) -> Any:
            server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Node)
            server.answer, server.requests, server.connections = (status, fields or {}), [], 0
            server.daemon_threads = True
            server.url = f"http://127.0.0.1:{server.server_port}"
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> SilentNodes:
    """Each test begins without nodes that stayed silent."""
    silent = SilentNodes()
    monkeypatch.setattr(http_node, "SILENT_NODES", silent)
    monkeypatch.setattr(http_module, "SILENT_NODES", silent)
    return silent


def address(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def answer_once(listening: socket.socket, head: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(head)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("head", HEADS)
def test_a_node_that_dies_in_the_middle_of_an_answer_is_an_error_in_words(
    listener: socket.socket, head: str
) -> None:
    node = answer_once(listener, HEADS[head])
    with pytest.raises(LocalError, match=address(listener)) as raised:
        Http(address(listener)).get("/status")
    node.join()
    assert isinstance(raised.value, HttpError) == (head == "a problem")


@pytest.mark.parametrize("url", ["", ",", "mqtt://host", "http://", "http://ann:secret@host:port"])
def test_a_wrong_address_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Http(url)
    assert "secret" not in str(raised.value)


def test_the_reason_of_a_problem_document_is_the_error(start_node: Callable[..., Any]) -> None:
    node = start_node(409, {"detail": "there is a stream 's'", "next_offset": 7})
    with pytest.raises(HttpError, match="there is a stream 's'") as raised:
        Http(node.url).call("POST", "/v1/streams", {})
    assert (raised.value.status, raised.value.fields["next_offset"]) == (409, 7)


def test_a_connection_is_kept_and_one_that_the_node_closed_is_not_used(
    start_node: Callable[..., Any],
) -> None:
    node = start_node()
    http = Http(node.url)
    for _ in range(3):
        http.call("POST", "/x", {})
    assert node.connections == 1
    kept = http._nodes[0]._idle[0]
    kept.sock.shutdown(socket.SHUT_RD)
    http.call("POST", "/x", {})
    assert (node.connections, len(node.requests)) == (2, 4)
    http.close()


def test_a_dead_node_is_passed_over_and_the_living_one_asked_first_from_then_on(
    start_node: Callable[..., Any],
) -> None:
    node = start_node(200, {"a": 1})
    http = Http(f"{NOBODY}, {node.url}")
    assert http.call("POST", "/x", {}) == {"a": 1}
    assert http.urls == (node.url, NOBODY)


def test_a_node_that_is_not_able_to_serve_is_passed_over_for_what_may_be_repeated(
    start_node: Callable[..., Any],
) -> None:
    away, good = start_node(503, {"detail": "no leader"}), start_node(200, {"a": 1})
    assert Http([away.url, good.url]).get("/x") == {"a": 1}
    with pytest.raises(HttpError, match="no leader"):
        Http([away.url, good.url]).call("POST", "/x", {})
    with pytest.raises(HttpError, match="no leader"):
        Http([away.url, NOBODY]).get("/x")


def test_what_must_not_happen_twice_does_not_go_to_another_node(
    listener: socket.socket, start_node: Callable[..., Any]
) -> None:
    other = start_node()
    for is_repeatable in (False, True):
        node = answer_once(listener, b"HTTP/1.1 2")
        http = Http([address(listener), other.url])
        if is_repeatable:
            http.call("POST", "/x", {}, is_repeatable=True)
        else:
            with pytest.raises(LocalError, match=address(listener)):
                http.call("POST", "/x", {})
        node.join()
        assert len(other.requests) == is_repeatable


def test_a_silent_listener_costs_a_short_time_once(
    listener: socket.socket, start_node: Callable[..., Any]
) -> None:
    """The kernel accepts the connection and nobody answers, as for a node that is stopped. The next client
    of the process asks the other node first."""
    node = start_node(200, {"a": 1})
    urls = [address(listener), node.url]
    begun_s = time.monotonic()
    assert Http(urls, timeouts=SHORT).get("/x") == {"a": 1}
    assert 0.2 <= time.monotonic() - begun_s < SHORT.answer_s
    listener.settimeout(0)
    listener.accept()[0].close()
    for ask in (lambda: Http(urls, timeouts=SHORT).get("/x"), lambda: every(Http(urls, timeouts=SHORT))):
        ask()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_node_that_stayed_silent_is_not_waited_for_again(
    listener: socket.socket, start_node: Callable[..., Any], nothing_remembered: SilentNodes
) -> None:
    """Once its time is over it is asked beside the others, and the answers of the others are enough."""
    node = start_node(200, {"a": 1})
    silent = address(listener)
    nothing_remembered._avoided[silent] = (0.0, 10.0)
    assert not nothing_remembered.is_silent(silent) and nothing_remembered.is_suspect(silent)
    patient = Timeouts(connect_s=30.0, switch_s=30.0, answer_s=30.0)
    begun_s = time.monotonic()
    assert every(Http([silent, node.url], timeouts=patient)) == [{"a": 1}]
    assert Http([silent, node.url], timeouts=patient).get("/x") == {"a": 1}
    assert time.monotonic() - begun_s < patient.switch_s
    listener.settimeout(10)
    listener.accept()[0].close()


def test_answers_that_suffice_end_the_waiting(
    listener: socket.socket, start_node: Callable[..., Any]
) -> None:
    """A listener that never answers costs nothing, and the node that answered is asked first from then on."""
    node = start_node(200, {"a": 1})
    http = Http([address(listener), node.url], timeouts=Timeouts(switch_s=30.0, answer_s=30.0))
    begun_s = time.monotonic()
    answers = http.every(lambda node, limit: node.get(limit, "/x").json(), what="x", suffices=bool)
    assert list(answers) == [{"a": 1}] and http.urls[0] == node.url
    assert time.monotonic() - begun_s < 30.0


def every(http: Http) -> list[Any]:
    return list(http.every(lambda node, limit: node.get(limit, "/x").json(), what="x"))


def test_every_node_is_asked_and_those_that_fail_are_left_out(
    listener: socket.socket, start_node: Callable[..., Any]
) -> None:
    one, other = start_node(200, {"a": 1}), start_node(200, {"a": 2})
    http = Http([one.url, NOBODY, address(listener), other.url], timeouts=SHORT)
    assert sorted(answer["a"] for answer in every(http)) == [1, 2]


def test_silent_nodes_are_asked_when_there_are_no_others(
    start_node: Callable[..., Any], nothing_remembered: SilentNodes
) -> None:
    node = start_node(200, {"a": 1})
    nothing_remembered.stayed_silent(node.url)
    assert every(Http([node.url, NOBODY])) == [{"a": 1}]
    assert not nothing_remembered.is_silent(node.url)


def test_nodes_without_an_answer_are_asked_again_for_a_while(start_node: Callable[..., Any]) -> None:
    node = start_node()
    asked: list[str] = []

    def ask(node: HttpNode, limit: TimeLimit) -> int:
        asked.append(node.url)
        if len(asked) < 4:
            raise NoAnswer("it lags behind")
        return node.get(limit, "/x").status

    http = Http([node.url, NOBODY], timeouts=Timeouts(patience_s=20.0))
    assert http.first(ask, what="it") == 200
    assert asked == [node.url, NOBODY, node.url, NOBODY, node.url][: len(asked)]
    with pytest.raises(NobodyAnswers, match=f"no node has an answer for it: {NOBODY}: .*refused"):
        Http(NOBODY).first(lambda node, limit: node.get(limit, "/x"), what="it")


def test_a_call_ends_by_its_deadline_though_bytes_still_come(listener: socket.socket) -> None:
    stopping = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
            try:
                while not stopping.wait(0.01):
                    connection.sendall(bytes(1 << 20))
            except OSError:
                return

    node = threading.Thread(target=drip)
    node.start()
    begun_s = time.monotonic()
    with pytest.raises(LocalError, match="timed out"):
        Http(address(listener)).call("GET", "/x", timeout_s=0.3)
    assert time.monotonic() - begun_s < 5.0
    stopping.set()
    node.join()


def test_an_answer_is_put_into_the_room_of_the_caller(start_node: Callable[..., Any]) -> None:
    node, room = start_node(200, {"a": 1}), bytearray(100)
    limit = TimeLimit(connect_s=1.0, silence_s=5.0, silence_once_s=5.0)
    answer = HttpNode(node.url).get(limit, "/x", room)
    assert bytes(room[: len(answer.body)]) == bytes(answer.body) == b'{"a": 1}'
    small = HttpNode(node.url).request(limit, "POST", "/x", [b"ab", memoryview(b"c")], room=bytearray(3))
    assert small.json() == {"a": 1}
