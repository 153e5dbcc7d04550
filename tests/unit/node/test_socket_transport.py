"""Connections that are no transports of the event loop keep the contract of one, on both loops."""

import asyncio
import gc
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from millrace.node.doors import socket_transport
from millrace.node.doors.socket_transport import SocketPoll, SocketTransport
from millrace.node.turn import Turn
from waiting import until_async

LOOPS = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
MakeLoop = Callable[[], asyncio.AbstractEventLoop]
LARGE = os.urandom(4 << 20)


class Recorder:
    """A protocol that remembers what it was told."""

    def __init__(self) -> None:
        self.transport: SocketTransport
        self.received = b""
        self.sizes: list[int] = []
        self.told: list[str] = []
        self.lost: list[Exception | None] = []
        self.is_faulty = False

    def connection_made(self, transport: SocketTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.is_faulty:
            raise ValueError("a fault of ours")
        self.sizes.append(len(data))
        self.received += data

    def eof_received(self) -> bool:
        self.told.append("end")
        return False

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Pair:
    """A connection: the client's socket, and ours with its protocol."""

    def __init__(self, poll: SocketPoll) -> None:
        self.client, ours = socket.socketpair()
        self.client.setblocking(False)
        self.ours = Recorder()
        poll.begin(ours.detach(), ("a client", 1), self.ours)

    @property
    def transport(self) -> SocketTransport:
        return self.ours.transport

    async def read(self) -> bytes:
        """All that comes, to the end."""
        found = bytearray()
        while piece := await asyncio.get_running_loop().sock_recv(self.client, 1 << 16):
            found += piece
        return bytes(found)

    async def until_lost(self) -> None:
        await until_async(lambda: bool(self.ours.lost), "the protocol hears of the end")
        assert len(self.ours.lost) == 1


def run(make_loop: MakeLoop, scenario: Callable[[SocketPoll], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        poll = SocketPoll(asyncio.get_running_loop())
        await scenario(poll)
        poll.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(main(), 20))


@LOOPS
def test_what_the_socket_does_not_take_waits(make_loop: MakeLoop) -> None:
    async def scenario(poll: SocketPoll) -> None:
        pair = Pair(poll)
        pair.transport.write(b"first ")
        pair.transport.write(LARGE)
        pair.transport.write(b" last")
        assert pair.ours.told == ["pause"] and pair.transport.get_write_buffer_size() > 0
        pair.transport.close()
        assert await pair.read() == b"first " + LARGE + b" last"
        await pair.until_lost()
        assert pair.ours.told == ["pause", "resume"] and pair.ours.lost == [None]
        assert pair.transport.get_write_buffer_size() == 0

    run(make_loop, scenario)


@LOOPS
def test_its_own_end_leaves_the_other_side_open(make_loop: MakeLoop) -> None:
    """A client that is told why it has to go may still be sending."""

    async def scenario(poll: SocketPoll) -> None:
        pair = Pair(poll)
        pair.transport.write(LARGE)
        pair.transport.write_eof()
        pair.transport.write(b"too late")
        assert await pair.read() == LARGE
        await asyncio.get_running_loop().sock_sendall(pair.client, b"still here")
        await until_async(lambda: pair.ours.received == b"still here", "what it sends is read")
        pair.client.close()
        await pair.until_lost()
        assert pair.ours.told[-1] == "end"

    run(make_loop, scenario)


@LOOPS
def test_a_pause_holds_what_comes(make_loop: MakeLoop) -> None:
    async def scenario(poll: SocketPoll) -> None:
        pair, other = Pair(poll), Pair(poll)
        pair.transport.pause_reading()
        for one in (pair, other):
            await asyncio.get_running_loop().sock_sendall(one.client, b"hello")
        await until_async(lambda: other.ours.received == b"hello", "the other one is read")
        assert not pair.ours.received
        pair.transport.resume_reading()
        await until_async(lambda: pair.ours.received == b"hello", "it is read again")
        for one in (pair, other):
            one.client.close()
            await one.until_lost()

    run(make_loop, scenario)


@LOOPS
def test_one_that_hangs_up_in_a_pause_keeps_nobody_busy(make_loop: MakeLoop) -> None:
    """The system tells of a lost connection again and again, whether one asks for it or not."""

    async def scenario(poll: SocketPoll) -> None:
        pair, other = Pair(poll), Pair(poll)
        turns = 0

        def serve(served: Callable[[], None] = poll._serve) -> None:
            nonlocal turns
            turns += 1
            served()

        loop = asyncio.get_running_loop()
        loop.add_reader(poll._epoll.fileno(), serve)
        pair.transport.pause_reading()
        pair.client.close()
        await until_async(lambda: turns > 0, "the poll is told of it")
        for number in range(50):
            await loop.sock_sendall(other.client, b"x")
            await until_async(lambda expected=number + 1: len(other.ours.received) == expected, "it is read")
        assert turns < 200 and not pair.ours.lost
        pair.transport.resume_reading()
        await pair.until_lost()
        other.transport.abort()
        await other.until_lost()

    run(make_loop, scenario)


@LOOPS
def test_a_fault_ends_one_connection(make_loop: MakeLoop, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(poll: SocketPoll) -> None:
        pair, other = Pair(poll), Pair(poll)
        pair.ours.is_faulty = True
        for one in (pair, other):
            await asyncio.get_running_loop().sock_sendall(one.client, b"hello")
        await pair.until_lost()
        assert isinstance(pair.ours.lost[0], ValueError) and "a fault of ours" in caplog.text
        assert await pair.read() == b""
        await until_async(lambda: other.ours.received == b"hello", "the other one is served")
        other.transport.abort()
        await other.until_lost()

    run(make_loop, scenario)


@LOOPS
def test_after_the_end_nothing_is_written(make_loop: MakeLoop) -> None:
    async def scenario(poll: SocketPoll) -> None:
        pair = Pair(poll)
        pair.client.close()
        pair.transport.write(b"to nobody")
        pair.transport.write(b"nor this")
        pair.transport.close()
        pair.transport.abort()
        await pair.until_lost()
        assert isinstance(pair.ours.lost[0], BrokenPipeError) and pair.transport.is_closing()

    run(make_loop, scenario)


@LOOPS
def test_what_ended_is_freed_without_a_collection(make_loop: MakeLoop) -> None:
    """Transport and protocol name each other; ten thousand pairs that wait for the collector are memory that
    nobody has."""

    async def scenario(poll: SocketPoll) -> None:
        pair = Pair(poll)
        gone = weakref.ref(pair.ours)
        pair.transport.close()
        await pair.until_lost()
        gc.disable()
        try:
            del pair
            assert gone() is None
        finally:
            gc.enable()

    run(make_loop, scenario)


@LOOPS
def test_the_poll_ends_with_its_last_connection(make_loop: MakeLoop) -> None:
    """Whoever is connected is served on after the door is closed."""

    async def scenario(poll: SocketPoll) -> None:
        pair = Pair(poll)
        descriptor = poll._epoll.fileno()
        poll.close()
        await asyncio.get_running_loop().sock_sendall(pair.client, b"hello")
        await until_async(lambda: pair.ours.received == b"hello", "it is served")
        pair.transport.close()
        await pair.until_lost()
        assert poll._epoll.closed
        with pytest.raises(OSError):
            os.fstat(descriptor)

    run(make_loop, scenario)


@LOOPS
def test_the_turn_ends_behind_the_last_of_several_reads(make_loop: MakeLoop) -> None:
    """And not in between, nor in a round of its own: what both brought leaves together."""
    happened: list[str] = []
    asked: list[Callable[[], None]] = []

    class Busy(Recorder):
        def data_received(self, data: bytes) -> None:
            happened.append("read")
            turn.wake()
            asyncio.get_running_loop().call_soon(happened.append, "next round")

    async def main() -> None:
        nonlocal turn
        loop = asyncio.get_running_loop()
        turn = Turn(lambda: happened.append("end"), asked.append)
        poll = SocketPoll(loop, turn)
        clients = []
        for number in range(2):
            client, ours = socket.socketpair()
            clients.append(client)
            poll.begin(ours.detach(), ("a client", number), Busy())
        for client in clients:
            client.send(b"x")
        await until_async(lambda: happened.count("next round") == 2, "both were read")
        assert happened == ["read", "read", "end", "next round", "next round"] and not asked
        turn.wake()
        assert happened[-1] == "next round", "outside of reads a round of the loop is asked for"
        asked.pop()()
        assert happened[-1] == "end" and not asked
        for client in clients:
            client.close()
        poll.close()

    turn: Turn
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(main(), 20))


@LOOPS
def test_reads_grow_with_what_comes_and_shrink_again(make_loop: MakeLoop) -> None:
    async def scenario(poll: SocketPoll) -> None:
        pair = Pair(poll)
        small = pair.transport.read_bytes
        await asyncio.get_running_loop().sock_sendall(pair.client, LARGE)
        await until_async(lambda: pair.ours.received == LARGE, "all of it came, in its order")
        assert max(pair.ours.sizes) > small
        pair.client.send(b"a little")
        await until_async(lambda: pair.ours.received.endswith(b"a little"), "the rest")
        assert pair.transport.read_bytes == small

    run(make_loop, scenario)


@LOOPS
def test_connections_that_take_long_share_a_turn_and_all_come_to_theirs(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of logins that came at once must not keep everybody else waiting: what one turn has no time
    for is read in the next, before those who have sent more meanwhile. One of them is gone by then."""
    now_s, turns, order = 0.0, 0, list[int]()
    monkeypatch.setattr(socket_transport.time, "monotonic", lambda: now_s)

    class Slow(Recorder):
        def __init__(self, number: int, clients: list[socket.socket]) -> None:
            super().__init__()
            self.number, self.clients = number, clients

        def data_received(self, data: bytes) -> None:
            nonlocal now_s
            now_s += 0.001
            order.append(self.number)
            if self.number < 16 and order.count(self.number) == 1:
                self.clients[self.number].send(b"again")
            if self.number == 0:
                slow[99].transport.abort()

    slow: list[Slow] = []

    async def scenario(poll: SocketPoll) -> None:
        nonlocal turns
        serve = poll._serve

        def counted() -> None:
            nonlocal turns
            before, turns = len(order), turns + 1
            serve()
            assert len(order) - before <= 16

        asyncio.get_running_loop().remove_reader(poll._epoll.fileno())
        asyncio.get_running_loop().add_reader(poll._epoll.fileno(), counted)
        clients = []
        for number in range(100):
            client, ours = socket.socketpair()
            clients.append(client)
            slow.append(Slow(number, clients))
            poll.begin(ours.detach(), ("a client", number), slow[-1])
        for client in clients:
            client.send(b"x")
        await until_async(lambda: len(order) >= 99 + 16, "all are read")
        assert sorted(order[:99]) == list(range(99)) and sorted(order[99:]) == list(range(16))
        assert turns >= 7
        for client in clients:
            client.close()

    run(make_loop, scenario)
