"""What a web page in somebody's browser can do to a node that the browser reaches: nothing that counts."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.device import V5, Device
from e2e.http_calls import Answer, call
from e2e.processes import BrokerProcess, millrace

Devices = Callable[..., Device]


@pytest.fixture(scope="module")
def node(start_shared: StartBroker) -> BrokerProcess:
    doors = [f"listeners.{door}=127.0.0.1:0" for door in ("ws", "text")]
    return start_shared(*(word for door in doors for word in ("--set", door)))


def exchange(port: int, sent: bytes) -> bytes:
    """Everything that comes back until the other side closes."""
    heard = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(sent)
        while chunk := line.recv(65_536):
            heard += chunk
    return heard


# ----------------------------------------------------------------------------------- DNS rebinding


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:18831",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "[::1].evil.example",
        "",
    ],
)
def test_rebinding_reads_nothing_over_http(node: BrokerProcess, host: str) -> None:
    """A page of evil.example, whose name points here by now, is of the same origin to a browser."""
    for path in ("/v1/streams", "/status", "/v1/clients", "/"):
        answer = call(node.ports["http"], "GET", path, Host=host)
        assert answer.status == 421 and b"listeners.hosts" in answer.body, (path, answer)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:5", "[::1]:5", "10.1.2.3", "broker", "localhost."],
)
def test_own_names_and_numbers_are_served(node: BrokerProcess, host: str) -> None:
    assert call(node.ports["http"], "GET", "/v1/streams", Host=host).status == 200


def test_probes_may_call_by_any_name(node: BrokerProcess) -> None:
    for path in ("/livez", "/readyz"):
        assert call(node.ports["http"], "GET", path, Host="node.cluster.example").status == 200


def test_probes_are_answered_alike_before_and_after_the_first_request(start_broker: StartBroker) -> None:
    """Until a request needs the application, the door answers them by itself."""
    port = start_broker().ports["http"]

    def probes() -> list[Answer]:
        return [call(port, "GET", path) for path in ("/livez", "/readyz")]

    before = probes()
    assert {answer.headers.pop("connection") for answer in before} == {"close"}
    assert call(port, "GET", "/status").status == 200
    after = probes()
    assert all("connection" not in answer.headers for answer in after)
    for answer in (*before, *after):
        assert answer.headers.pop("date").endswith(" GMT")
    assert before == after


def upgrade(host: str) -> bytes:
    return (
        f"GET /mqtt HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


def test_rebinding_opens_no_websocket(node: BrokerProcess) -> None:
    assert exchange(node.ports["ws"], upgrade("evil.example")).startswith(b"HTTP/1.1 403")
    with socket.create_connection(("127.0.0.1", node.ports["ws"]), timeout=10) as line:
        line.sendall(upgrade(f"127.0.0.1:{node.ports['ws']}"))
        assert line.recv(100).startswith(b"HTTP/1.1 101")


def test_other_names_are_a_setting(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "listeners.hosts=broker.example, *.inside.example")
    port = broker.ports["http"]
    for host, status in (
        ("broker.example", 200),
        ("Broker.Example:18831", 200),
        ("n1.inside.example", 200),
        ("evil.example", 421),
        ("evilinside.example", 421),
    ):
        assert call(port, "GET", "/v1/streams", Host=host).status == status, host
    broker = start_broker("--set", "listeners.hosts=*")
    assert call(broker.ports["http"], "GET", "/v1/streams", Host="any.example").status == 200


# ------------------------------------------------------------------------------------ the text door


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "OPTIONS", "X-OWN"])
def test_a_page_cannot_drive_the_text_door(node: BrokerProcess, devices: Devices, method: str) -> None:
    """fetch("http://127.0.0.1:PORT", {method: "POST", body: "PUBLISH|..."}): a request, and lines."""
    witness = devices(node.port).connect()
    witness.subscribe("text/#", 1)
    body = f"\nPUBLISH|text/{method}|forged\n"
    request = f"{method} /x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    heard = exchange(node.ports["text"], request.encode())
    assert heard.startswith(b"ERROR|") and b"PUBACK" not in heard and b"HTTP" in heard
    for at in range(1, len(request) - 1, 7):
        # However the bytes are cut.
        with socket.create_connection(("127.0.0.1", node.ports["text"]), timeout=10) as line:
            line.sendall(request[:at].encode())
            line.sendall(request[at:].encode()) if at % 2 else None
    witness.publish("text/end", b"end", 1)
    witness.expect_payloads(b"end")


def test_a_person_may_mistype(node: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", node.ports["text"]), timeout=10) as line:
        line.sendall(b"HELLO\nPUBLISH|text/typed|GET / HTTP/1.1\n")
        heard = b""
        while b"PUBACK" not in heard:
            chunk = line.recv(4096)
            assert chunk, heard
            heard += chunk


# ------------------------------------------------------------------------------------- GET /message


def test_a_link_takes_no_message(node: BrokerProcess) -> None:
    port = node.ports["http"]
    assert call(port, "PUT", "/topic", {"topic": "links"}).json == {"success": True}
    assert call(port, "PUT", "/message", {"topic": "links", "messages": ["a", "b", "c", "d"]}).status == 200
    # What a browser sends for <a href>, <img> or an address that is typed.
    for headers in ({}, {"Accept": "text/html"}, {"Sec_Fetch_Site": "none"}, {"Authorization": "Basic eDp5"}):
        answer = call(port, "GET", "/message?topic=links", **headers)
        assert answer.status == 405 and b"POST /message" in answer.body, (headers, answer)
        assert answer.headers["allow"] == "POST, PUT"
    assert call(port, "POST", "/message?topic=links").json["message"] == "a"
    assert call(port, "POST", "/message", {"topic": "links"}).json["message"] == "b"
    assert call(port, "GET", "/message", {"topic": "links"}).json["message"] == "c"
    assert call(port, "GET", "/message?topic=links", Millrace_Request_Id="r").json["message"] == "d"


# ------------------------------------------------------------------------------------------ deep JSON


@pytest.mark.parametrize(
    "method_path",
    [
        ("POST", "/v1/publish"),
        ("PUT", "/message"),
        ("GET", "/message"),
        ("POST", "/v1/users"),
        ("POST", "/v1/login"),
    ],
)
@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"topic":' + b"[" * 50_000 + b"]" * 50_000 + b"}"]
)
def test_deep_json_is_a_bad_request(node: BrokerProcess, method_path: tuple[str, str], body: bytes) -> None:
    method, path = method_path
    answer = call(node.ports["http"], method, path, raw=body, Content_Type="application/json")
    assert answer.status in (400, 413, 422), answer
    assert "Traceback" not in node.log


# --------------------------------------------------------------------------------- users are a wall


def test_with_users_this_machine_is_not_let_in_without_a_name(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    """Everybody behind a proxy on this machine comes from loopback."""
    broker = start_broker("--set", "listeners.text=127.0.0.1:0", "--set", "listeners.ws=127.0.0.1:0")
    url, port = broker.url, broker.ports["http"]
    early = devices(broker.port, version=V5).connect()
    done = millrace("user", "add", "root", "--role", "admin", "--password-stdin", "--url", url, stdin="pw\n")
    assert done.returncode == 0, done.stderr
    assert early.wait_closed().value == 0x87, "who came before is gone as well"
    assert devices(broker.port, version=V5).try_connect().value == 0x87
    for method, path in (
        ("GET", "/v1/streams"),
        ("GET", "/status"),
        ("GET", "/metrics"),
        ("POST", "/v1/publish"),
        ("GET", "/v1/live"),
        ("GET", "/v1/tail?filter=%23"),
    ):
        body = {"topic": "a", "payload": "x"} if method == "POST" else None
        assert call(port, method, path, body).status == 401, path
    assert exchange(broker.ports["text"], b"PUBLISH|a|b\n").startswith(b"ERROR|")

    as_root = {"MILLRACE_URL": url.replace("//", "//root@"), "MILLRACE_PASSWORD": "pw"}

    def admin(*words: str, stdin: str = "") -> None:
        done = millrace(*words, stdin=stdin, **as_root)
        assert done.returncode == 0, done.stderr

    admin("user", "add", "ann", "--password-stdin", stdin="ann\n")
    admin("acl", "add", "ann", "allow", "all", "a/#")
    ann = devices(broker.port, version=V5, user=("ann", "ann")).connect()
    assert ann.subscribe("a/x", 1) == 1
    admin("acl", "remove", "1", "--yes")
    # The last rule is gone, and nothing is open.
    assert ann.subscribe("a/y", 1) == 0x87 and ann.publish("a/x", b"", 1) == 0x87
    assert devices(broker.port, version=V5).try_connect().value == 0x87
    admin("user", "passwd", "ann", "--password-stdin", stdin="other\n")
    assert ann.wait_closed().value == 0x87
    ann = devices(broker.port, version=V5, user=("ann", "other")).connect()
    admin("user", "remove", "ann", "--yes")
    assert ann.wait_closed().value == 0x87
