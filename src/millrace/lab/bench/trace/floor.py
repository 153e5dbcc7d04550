"""What the kernel alone takes for what a broker must do: processor time of bare system calls.

    python -m millrace.lab.bench.trace.floor [--directory DIR] [--rounds 2000]

One process makes the calls that no broker can leave out and nothing else: a sync of a log, an answer to a
packet, a connection. The share of the interpreter in it is about a microsecond for each call.
The sums below them are what a durable message or session costs before anything is done with it. A target
beneath such a sum cannot be reached while each promise has a sync of its own.
"""

import argparse
import os
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# A block with one message of `cluster-one`, and an MQTT packet with its acknowledgement.
_BLOCK, _PACKET, _ANSWER = bytes(400), bytes(270), bytes(4)
_SLICES = 10


def sync_us(directory: Path, rounds: int) -> float:
    """A block is appended and synced."""
    with tempfile.TemporaryDirectory(dir=directory) as made:
        log = os.open(Path(made) / "log", os.O_RDWR | os.O_CREAT)
        offset = 0

        def append() -> None:
            nonlocal offset
            os.pwrite(log, _BLOCK, offset)
            os.fdatasync(log)
            offset += len(_BLOCK)

        try:
            return _processor_us(append, rounds)
        finally:
            os.close(log)


def answer_us(rounds: int) -> float:
    """A packet is waited for, read and answered."""
    with _listening() as listener, _child(lambda: _ask(listener.getsockname(), rounds)):
        connection, _ = listener.accept()
        poll = select.epoll()
        poll.register(connection, select.EPOLLIN)

        def answer() -> None:
            poll.poll()
            connection.recv(65_536)
            connection.send(_ANSWER)

        with connection, poll:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _processor_us(answer, rounds)


def connection_us(rounds: int) -> float:
    """A connection is accepted, watched and closed again."""
    with _listening() as listener, _child(lambda: _connect(listener.getsockname(), rounds)):
        poll = select.epoll()
        poll.register(listener, select.EPOLLIN)

        def accept() -> None:
            poll.poll()
            connection, _ = listener.accept()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            poll.register(connection, select.EPOLLIN)
            poll.unregister(connection)
            connection.close()

        with poll:
            return _processor_us(accept, rounds)


def _processor_us(once: Callable[[], None], rounds: int) -> float:
    """Of one call: the median of slices, as a slice in which others pushed in costs more."""
    each = rounds // _SLICES
    found = []
    for _ in range(_SLICES):
        begun_s = time.process_time()
        for _ in range(each):
            once()
        found.append((time.process_time() - begun_s) / each * 1e6)
    return statistics.median(found)


@contextmanager
def _listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener


@contextmanager
def _child(work: Callable[[], None]) -> Iterator[None]:
    """The other side, in a process of its own, whose time is not counted."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.waitpid(pid, 0)


def _ask(address: tuple[str, int], rounds: int) -> None:
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(rounds):
            connection.send(_PACKET)
            connection.recv(65_536)


def _connect(address: tuple[str, int], rounds: int) -> None:
    for _ in range(rounds):
        socket.create_connection(address).close()


def floors(directory: Path, rounds: int) -> dict[str, float]:
    """Microseconds of a processor by what they are for."""
    rounds -= rounds % _SLICES
    sync, answer, connection = sync_us(directory, rounds), answer_us(rounds), connection_us(rounds)
    return {
        "a sync": sync,
        "an answer to a packet": answer,
        "a connection": connection,
        "a durable message, one node": sync + answer,
        # The leader hears the client and two followers, each of them the leader.
        "a durable message, three nodes": 3 * sync + 5 * answer,
        # CONNACK and SUBACK are promises, DISCONNECT is only read.
        "a durable session": connection + 2 * sync + 2 * answer,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk that is meant")
    parser.add_argument("--rounds", type=int, default=2_000, help="of each call")
    given = parser.parse_args()
    for name, cost_us in floors(given.directory, max(_SLICES, given.rounds)).items():
        print(f"{name:<32}{cost_us:8.1f} us")


if __name__ == "__main__":
    main()
