"""What a caller hears when a node's HTTP door fails in the middle."""

import socket
import threading
from collections.abc import Iterator

import pytest

from millrace.client.http import Http, HttpError
from millrace.errors import LocalError

HEADS = {
    "an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc",
    "a problem": b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 1000\r\n\r\nabc",
    "no HTTP": b"\x00\x01\r\n",
}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.mark.parametrize("head", HEADS)
def test_a_node_that_dies_in_the_middle_of_an_answer_is_an_error_in_words(
    listener: socket.socket, head: str
) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(HEADS[head])

    node = threading.Thread(target=serve)
    node.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(LocalError, match=url) as raised:
        Http(url).get("/status")
    node.join()
    assert isinstance(raised.value, HttpError) == (head == "a problem")
