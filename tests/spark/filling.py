"""Putting messages into a stream quickly: MQTT 3.1.1 at QoS 1, written by hand, a window at a time."""

import socket
from collections.abc import Iterable

_WINDOW = 1_000
_PUBACK_BYTES = 4
_TIMEOUT_S = 60.0


def _varint(value: int) -> bytes:
    data = b""
    while True:
        value, low = divmod(value, 128)
        data += bytes((low | (128 if value else 0),))
        if not value:
            return data


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _varint(len(body)) + body


def text(word: str) -> bytes:
    data = word.encode()
    return len(data).to_bytes(2, "big") + data


def read(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return data


def fill(port: int, messages: Iterable[tuple[str, bytes]], client_id: str = "filler") -> int:
    """Publish these and return how many, once every one of them is acknowledged."""
    count = 0
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as link:
        link.sendall(packet(0x10, text("MQTT") + bytes((4, 2, 0, 0)) + text(client_id)))
        assert read(link, 4)[3] == 0
        waiting: list[bytes] = []
        for topic, payload in messages:
            count += 1
            packet_id = len(waiting) + 1
            waiting.append(packet(0x32, text(topic) + packet_id.to_bytes(2, "big") + payload))
            if len(waiting) == _WINDOW:
                link.sendall(b"".join(waiting))
                read(link, _PUBACK_BYTES * len(waiting))
                waiting = []
        if waiting:
            link.sendall(b"".join(waiting))
            read(link, _PUBACK_BYTES * len(waiting))
        link.sendall(b"\xe0\0")
    return count
