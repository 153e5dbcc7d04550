"""Which connections a door keeps, on both event loops, and what it does when none can be accepted."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from millrace.broker.stats import Stats
from millrace.errors import ConfigError
from millrace.node.config import Address
from millrace.node.doors.descriptors import Descriptors, raise_limit
from millrace.node.doors.listeners import listen
from waiting import until_async

LOOPS = pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
MakeLoop = Callable[[], asyncio.AbstractEventLoop]
HERE = Address("127.0.0.1", 0)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def run(make_loop: MakeLoop, scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(asyncio.wait_for(scenario, 20))


def client() -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    return made


async def is_served(port: int, connected: socket.socket | None = None) -> bool:
    loop = asyncio.get_running_loop()
    with connected or client() as one:
        try:
            if connected is None:
                await loop.sock_connect(one, ("127.0.0.1", port))
            await loop.sock_sendall(one, b"x")
            return await loop.sock_recv(one, 1) == b"x"
        except ConnectionError:
            return False


@contextmanager
def no_descriptors() -> Iterator[None]:
    """All that the process may have are taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@LOOPS
def test_a_socket_in_the_reserve_is_closed_and_counted(
    make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        stats = Stats()
        descriptors = Descriptors(stats)
        listener, port = await listen(HERE, Echo, descriptors)
        assert await is_served(port)
        descriptors.open_to_clients = 0
        assert [await is_served(port) for _ in range(3)] == [False] * 3
        assert stats.sockets_refused == 3
        assert caplog.text.count("closed at once") == 1
        descriptors.open_to_clients = descriptors.limit
        assert await is_served(port)
        listener.close()
        with pytest.raises(OSError):
            await asyncio.get_running_loop().sock_connect(client(), ("127.0.0.1", port))

    run(make_loop, scenario())


@LOOPS
def test_a_door_without_descriptors_opens_again(
    make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """It neither spins nor gives up."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listener, port = await listen(HERE, Echo, Descriptors(Stats()))
        early = client()
        with no_descriptors():
            await loop.sock_connect(early, ("127.0.0.1", port))
            await until_async(lambda: "no connection can be accepted" in caplog.text, "a word about it")
        assert await is_served(port, early)
        assert await is_served(port)
        assert caplog.text.count("no connection can be accepted") == 1
        listener.close()

    run(make_loop, scenario())


@LOOPS
def test_a_port_that_is_taken(make_loop: MakeLoop) -> None:
    async def scenario() -> None:
        listener, port = await listen(HERE, Echo, Descriptors(Stats()))
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{port}: process {os.getpid()} .* has this port"
        ):
            await listen(Address("127.0.0.1", port), Echo, Descriptors(Stats()))
        listener.close()

    run(make_loop, scenario())


def test_the_limit_is_raised_to_what_the_system_grants() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        raise_limit()
        assert Descriptors(Stats()).limit == min(before[1], 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("limit", "for_clients"), [(256, 192), (1024, 768), (18_000, 13_904)])
def test_a_quarter_is_kept_up_to_a_bound(limit: int, for_clients: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < limit:
        pytest.skip(f"this process may have {before[1]} descriptors at most")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        assert Descriptors(Stats()).open_to_clients == for_clients
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
