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
