"""Who is calling is asked before anything that a caller sends is read."""

import socket

import pytest

from e2e.http_calls import MqttDoor
from millrace.limits import HTTP_BODY_BYTES_MAX
from millrace.testing import ThreadedBroker


@pytest.mark.parametrize("length", [f"Content-Length: {HTTP_BODY_BYTES_MAX}", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("request_line", ["POST /v1/publish", "GET /message"])
def test_a_body_of_nobody_is_not_read(request_line: str, length: str) -> None:
    """Sixteen megabytes of JSON cost as much again in objects, for anybody who can connect."""
    with ThreadedBroker(access__anonymous="never", listeners__http="127.0.0.1:0") as broker:
        head = f"{request_line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", broker.ports["http"]), timeout=5) as client:
            client.sendall(head.encode())
            assert client.recv(65_536).startswith(b"HTTP/1.1 401 ")
        assert MqttDoor(broker.ports["http"])("GET", "/livez").status == 200


def raw(broker: ThreadedBroker, request: bytes) -> bytes:
    """Everything that is answered until the connection is closed."""
    answer = b""
    with socket.create_connection(("127.0.0.1", broker.ports["http"]), timeout=5) as client:
        client.sendall(request)
        while more := client.recv(65_536):
            answer += more
    return answer


def test_two_lengths_of_one_body_are_refused_and_nothing_behind_them_is_read() -> None:
    """A proxy may go by the other one: what it took for a body would be a request here, in another's name
    (RFC 9112, 6.1 and 6.3)."""
    hidden = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head = b"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    with ThreadedBroker(listeners__http="127.0.0.1:0") as broker:
        answer = raw(broker, head % (5 + len(hidden)) + b"0\r\n\r\n" + hidden)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("name", ["Authorization", "Origin", "Content-Type", "Sec-Fetch-Site"])
def test_a_header_that_says_who_asks_stands_there_once(name: str) -> None:
    """Of two, whoever is in front of the node may have looked at the other one."""
    lines = f"{name}: a\r\n{name}: b\r\n".encode()
    with ThreadedBroker(listeners__http="127.0.0.1:0") as broker:
        answer = raw(
            broker, b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n"
        )
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert name.lower().encode() in answer
