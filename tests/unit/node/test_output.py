"""Bounds on what clients that do not read hold: each by itself, and all together."""

import socket
from collections.abc import Iterator

import pytest

from millrace.errors import MalformedPacket
from millrace.limits import Limits
from millrace.node.doors.output import OutputBudget, PacedOutput
from unit.node.house import House, Wire

ONE_BYTES_MAX, ALL_BYTES_MAX = 1_200_000, 3_000_000
CHUNK = bytes(100_000)


class Transport:
    """Takes nothing until it is told to; asyncio's rules with a mark of nothing."""

    def __init__(self) -> None:
        self.held = 0

    def write(self, data: bytes) -> None:
        self.held += len(data)

    def get_write_buffer_size(self) -> int:
        return self.held


class Connection(PacedOutput):
    def __init__(self, budget: OutputBudget) -> None:
        super().__init__(budget)
        self.calls: list[str] = []
        self.begin_output(Transport())

    def _block(self) -> None:
        self.calls.append("block")

    def _unblock(self) -> None:
        self.calls.append("unblock")

    def fill(self) -> int:
        """Write until blocked; the bytes held then."""
        self.write(CHUNK)
        self.pause_writing()
        for _ in range(100):
            if self.calls and self.calls[-1] == "block":
                break
            self.write(CHUNK)
        held: int = self.transport.held
        return held

    def drain(self) -> None:
        self.transport.held = 0
        self.resume_writing()


def budget() -> OutputBudget:
    return OutputBudget(Limits(output_buffer_bytes_max=ONE_BYTES_MAX, output_total_bytes_max=ALL_BYTES_MAX))


def test_one_slow_client_has_its_own_bound() -> None:
    connection = Connection(budget())
    assert connection.fill() == ONE_BYTES_MAX
    assert connection.calls == ["block"]


def test_many_slow_clients_share_what_all_may_hold() -> None:
    """Those who come when all is given away are blocked at once, with no more than the mark."""
    common = budget()
    held = [Connection(common).fill() for _ in range(20)]
    assert held[:3] == [ONE_BYTES_MAX, ONE_BYTES_MAX, ALL_BYTES_MAX - 2 * ONE_BYTES_MAX]
    assert held[3:] == [len(CHUNK)] * 17


def test_what_a_client_took_or_left_behind_is_free_again() -> None:
    common = budget()
    first, second, third, late = (Connection(common) for _ in range(4))
    for connection in (first, second, third):
        connection.fill()
    first.drain()
    assert first.calls == ["block", "unblock"]
    second.end_output()
    assert common.held_bytes == third.transport.held
    assert late.fill() == ONE_BYTES_MAX
    first.write(CHUNK)
    assert common.held_bytes == third.transport.held + late.transport.held, "a quick client is not counted"


def test_a_slow_client_that_was_never_blocked_is_not_unblocked() -> None:
    connection = Connection(budget())
    connection.write(CHUNK)
    connection.pause_writing()
    connection.drain()
    assert connection.calls == []


class OverSocket:
    """A transport over one end of a real pair of sockets, which keeps what it is given."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.setblocking(False)
        self.kept = b""

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self.ours if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def write(self, data: bytes) -> None:
        self.kept += data

    def taken(self) -> bytes:
        """What the client finds, everything that the transport keeps sent after it."""
        found = b""
        while True:
            try:
                found += self.theirs.recv(1 << 20)
            except BlockingIOError:
                break
        return found + self.kept

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def over_socket() -> Iterator[tuple[PacedOutput, OverSocket]]:
    connection, transport = PacedOutput(OutputBudget(Limits())), OverSocket()
    connection.begin_output(transport)
    connection.write_straight()
    yield connection, transport
    transport.close()


def test_what_is_written_is_with_the_client_before_the_turn_ends(
    over_socket: tuple[PacedOutput, OverSocket],
) -> None:
    connection, transport = over_socket
    connection.write(b"one")
    connection.write(b"two")
    assert transport.kept == b"" and transport.taken() == b"onetwo"


def test_nothing_overtakes_what_the_transport_keeps(over_socket: tuple[PacedOutput, OverSocket]) -> None:
    connection, transport = over_socket
    sent = b""
    while not transport.kept:
        piece = len(sent).to_bytes(8, "big") * 10_000
        connection.write(piece)
        sent += piece
    connection.write(b"behind")
    assert transport.taken() == sent + b"behind"


def test_from_its_end_on_the_transport_alone_writes(over_socket: tuple[PacedOutput, OverSocket]) -> None:
    connection, transport = over_socket
    connection.write_by_transport()
    connection.write(b"last words")
    assert transport.kept == b"last words"
    connection.end_output()
    connection.write_by_transport()
    connection.write(b"after the end")
    assert transport.kept == b"last words"


class Untranslatable(Wire):
    """As an adapter that cannot say a packet in its own words."""

    def write(self, data: bytes) -> None:
        raise MalformedPacket("there are no words for this")


def test_a_connection_that_cannot_be_written_to_is_closed_and_the_others_get_theirs() -> None:
    house = House()
    readers = [house.connect(name) for name in ("before", "broken", "after")]
    for reader in readers:
        reader.subscribe("t")
    before, broken, after = readers
    wire = Untranslatable(high_bytes=1)
    wire.protocol = broken.connection
    broken.connection.begin_output(wire)
    house.wires.append(wire)
    publisher = house.connect("p")
    for payload in (b"1", b"2"):
        publisher.publish("t", payload)
    assert wire.is_aborted
    assert (before.payloads(), after.payloads()) == ([b"1", b"2"], [b"1", b"2"])
