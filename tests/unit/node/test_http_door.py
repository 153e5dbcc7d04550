"""Whom the HTTP door cuts off: who keeps it waiting, and nobody who waits for it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millrace.broker.stats import DoorTraffic, Stats
from millrace.limits import DEFAULT_LIMITS
from millrace.node.config import Address
from millrace.node.doors.descriptors import Descriptors
from millrace.node.doors.http.door import HttpConnection, HttpDoor
from millrace.node.doors.listeners import listen
from waiting import until_async

HEAD_S = DEFAULT_LIMITS.connect_deadline_ms / 1000
POST = b"POST /%b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
# More than the system takes for a client that does not read.
LARGE = bytes(32 << 20)

Scenario = Callable[[HttpDoor, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, waits where it is asked to, answers much."""
    while (await receive())["more_body"]:
        pass
    if scope["path"] == "/wait":
        await asyncio.Event().wait()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": LARGE if scope["path"] == "/large" else b"ok"})


def run(scenario: Scenario) -> None:
    async def bounded() -> None:
        door = HttpDoor(app, DEFAULT_LIMITS, DoorTraffic("http"))  # type: ignore[arg-type]
        await door.start()
        port = await door.open(Address("127.0.0.1", 0), listen, Descriptors(Stats()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(20):
                await until_async(lambda: connections(door), "the connection")
                await scenario(door, reader, writer)
        finally:
            writer.close()
            for task in door._server.server_state.tasks:
                task.cancel()
            await door.stop()

    asyncio.run(bounded())


def connections(door: HttpDoor) -> list[HttpConnection]:
    return [one for one in door._server.server_state.connections if isinstance(one, HttpConnection)]


def is_late_after(door: HttpDoor, seconds: float) -> bool:
    (one,) = connections(door)
    return one.is_late(asyncio.get_running_loop().time() + seconds, HEAD_S)


def test_a_head_that_does_not_come() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST[:20])
        await writer.drain()
        assert not is_late_after(door, HEAD_S - 2)
        assert is_late_after(door, HEAD_S + 1)

    run(scenario)


def test_a_body_that_stays_away() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST % b"x" + b"ab")
        await until_async(lambda: connections(door)[0].cycle is not None, "the head")
        assert not is_late_after(door, 50)
        assert is_late_after(door, 61)
        writer.write(b"cd")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_who_waits_for_an_answer_is_not_late() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST % b"wait" + b"abcd")
        await until_async(
            lambda: connections(door)[0].cycle is not None and not connections(door)[0].cycle.more_body,
            "the request",
        )
        assert not is_late_after(door, 100_000)

    run(scenario)


def test_an_answer_that_is_not_taken() -> None:
    """Taken slowly it is as good as taken."""

    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(POST % b"large" + b"abcd")

        def unsent() -> int:
            return int(connections(door)[0].transport.get_write_buffer_size())

        await until_async(unsent, "an answer that is stuck")
        left = unsent()
        assert not is_late_after(door, 0)
        assert not is_late_after(door, 59)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while unsent() == left:
            await reader.read(1 << 16)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert not is_late_after(door, 61)
        # What the system still has room for may go on leaving for a moment.
        later_s = iter(range(122, 100_000, 61))
        await until_async(lambda: is_late_after(door, next(later_s)), "the end of patience")

    run(scenario)
