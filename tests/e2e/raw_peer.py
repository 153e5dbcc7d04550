"""A blocking connection that sends any bytes to a broker, for attacks."""

import socket

from conformance.mqtt import wire
from millrace.testing import ThreadedBroker

ANSWER_S_MAX = 60.0
MIB = 1024 * 1024


class Peer:
    """A blocking connection that sends any bytes."""

    def __init__(
        self, broker: ThreadedBroker, door: str = "mqtt", *, connect: bool = True, **fields: object
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.ports[door]), timeout=ANSWER_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        if door == "mqtt" and connect:
            self.send(wire.connect(f"stall{id(self)}", **fields))  # type: ignore[arg-type]

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *packets: bytes) -> None:
        self.socket.sendall(b"".join(packets))

    def until_ping(self) -> bytes:
        """PINGREQ; what comes up to its answer, and perhaps more: what waits for the disk comes behind it."""
        self.send(wire.PING)
        data, position = b"", 0
        while True:
            # Packet by packet: the bytes of an answer may stand in a message too.
            while (end := _packet_end(data, position)) is not None:
                if data[position] == 0xD0:
                    return data
                position = end
            chunk = self.socket.recv(MIB)
            assert chunk, f"closed after {data[-100:]!r}"
            data += chunk

    def until_closed(self) -> bytes:
        data = b""
        try:
            while chunk := self.socket.recv(MIB):
                data += chunk
        except ConnectionError:
            pass
        return data


def _packet_end(data: bytes, position: int) -> int | None:
    """Where the packet that begins here ends; None where it is not all there."""
    size = shift = 0
    for at in range(position + 1, min(position + 5, len(data))):
        size |= (data[at] & 127) << shift
        shift += 7
        if data[at] < 128:
            end = at + 1 + size
            return end if end <= len(data) else None
    return None


def others_are_served(broker: ThreadedBroker) -> None:
    with Peer(broker) as other:
        other.until_ping()
