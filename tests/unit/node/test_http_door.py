"""Whom the HTTP door cuts off: who keeps it waiting, and nobody who waits for it; and what it does before
there is an application."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.broker.limits_reached import LimitsReached
from millrace.broker.stats import DoorTraffic, Stats
from millrace.limits import DEFAULT_LIMITS
from millrace.node.config import Address
from millrace.node.doors.descriptors import Descriptors
from millrace.node.doors.http.serving import HttpConnection, Serving
from millrace.node.doors.http_front.door import HttpDoor
from millrace.node.doors.listeners import listen
from millrace.node.doors.quotas import Quotas
from waiting import until_async

HEAD_S = DEFAULT_LIMITS.connect_deadline_ms / 1000
GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
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


class Told:
    """A node that serves, or says why not."""

    def __init__(self, waits_for: str) -> None:
        self.waits_for = waits_for

    def answer(self) -> dict[str, Any]:
        return {"status": "ok", "waits": [], "is_settled": True}


def no_quotas() -> Quotas:
    return Quotas(DEFAULT_LIMITS, LimitsReached())


def no_application(traffic: DoorTraffic) -> Serving:
    raise ImportError("no framework")


def run(
    scenario: Scenario, make: Callable[[DoorTraffic], Serving] | None = None, waits_for: str = ""
) -> None:
    traffic = DoorTraffic("http")

    async def bounded() -> None:
        quotas = no_quotas()
        door = HttpDoor(
            lambda: make(traffic) if make else Serving(app, traffic, quotas),  # type: ignore[arg-type]
            Told(waits_for),
            DEFAULT_LIMITS,
            traffic,
            quotas,
        )
        port = await door.open(Address("127.0.0.1", 0), listen, Descriptors(Stats()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(20):
                await scenario(door, reader, writer)
        finally:
            writer.close()
            for connection in connections(door):
                if connection.cycle is not None:
                    connection.cycle.disconnected = True
            if door._application is not None:
                for task in serving(door)._server.server_state.tasks:
                    task.cancel()
            await door.stop()
        await until_async(lambda: traffic.open == 0, "the end of all connections")

    asyncio.run(bounded())
    assert traffic.connects == 1


def serving(door: HttpDoor) -> Serving:
    assert isinstance(door._application, Serving)
    return door._application


def connections(door: HttpDoor) -> list[HttpConnection]:
    if door._application is None:
        return []
    found = serving(door)._server.server_state.connections
    return [one for one in found if isinstance(one, HttpConnection)]


def is_late_after(door: HttpDoor, seconds: float) -> bool:
    (one,) = connections(door)
    return one.is_late(asyncio.get_running_loop().time() + seconds, HEAD_S)


def test_a_head_that_does_not_come() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST[:20])
        await until_async(lambda: connections(door), "the connection")
        assert not is_late_after(door, HEAD_S - 2)
        assert is_late_after(door, HEAD_S + 1)

    run(scenario)


def test_a_body_that_stays_away() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST % b"x" + b"ab")
        await until_async(lambda: connections(door) and connections(door)[0].cycle, "the head")
        assert not is_late_after(door, 50)
        assert is_late_after(door, 61)
        writer.write(b"cd")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_who_waits_for_an_answer_is_not_late() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(POST % b"wait" + b"abcd")
        await until_async(
            lambda: [one for one in connections(door) if one.cycle and not one.cycle.more_body],
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
            return sum(int(one.transport.get_write_buffer_size()) for one in connections(door))

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


# ---------------------------------------------------------------------------- before there is an application


def test_probes_need_no_application() -> None:
    """Also where the request comes in pieces; and the answer is the last on its connection."""

    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in GET % b"livez":
            writer.write(bytes((byte,)))
            await writer.drain()
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b'\r\n\r\n{"status":"ok"}')
        assert door._application is None and door._making is None

    run(scenario, make=no_application)


def test_a_node_that_waits_says_for_what() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET % b"readyz")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and b"\r\nRetry-After: 1\r\n" in head
        assert json.loads(body)["detail"] == "waiting for others"

    run(scenario, make=no_application, waits_for="waiting for others")


@pytest.mark.parametrize(
    "request_",
    [
        GET % b"livez?a=b",
        GET % b"elsewhere",
        POST % b"livez" + b"abcd",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET /livez HTTP/1.0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 5000 + b"\r\n\r\n",
    ],
    ids=["query", "path", "post", "body", "version", "long"],
)
def test_every_other_request_is_for_the_application(request_: bytes) -> None:
    """Whole, and once; also where it comes in pieces."""
    body = b"abcd" if b"abcd" in request_ else b""
    for bytes_at_once in (1, len(request_)):
        ((_, path, found),) = seen_by_the_application(request_, bytes_at_once)
        assert path in ("/livez", "/elsewhere") and found == body


def test_requests_that_come_at_once_are_for_the_application() -> None:
    both = GET % b"livez" + POST % b"elsewhere" + b"abcd"
    seen = seen_by_the_application(both, len(both))
    assert seen == [("GET", "/livez", b""), ("POST", "/elsewhere", b"abcd")]


def seen_by_the_application(requests: bytes, bytes_at_once: int) -> list[tuple[str, str, bytes]]:
    seen: list[tuple[str, str, bytes]] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (part := await receive())["more_body"]:
            body += part["body"]
        seen.append((scope["method"], scope["path"], body + part["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"application"})

    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(requests), bytes_at_once):
            writer.write(requests[start : start + bytes_at_once])
            await asyncio.sleep(0)
        for _ in range(requests.count(b" HTTP/")):
            await reader.readuntil(b"application")

    run(scenario, make=lambda traffic: Serving(noting, traffic, no_quotas()))  # type: ignore[arg-type]
    return seen


def test_a_head_that_does_not_come_needs_no_application() -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((GET % b"livez")[:15])
        await until_async(lambda: [one for one in door._early if one._held], "the beginning of a head")
        door.sweep()
        (early,) = door._early
        assert not early.transport.is_closing()
        door._head_s = 0
        door.sweep()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        await until_async(lambda: not door._early, "it to be forgotten")

    run(scenario, make=no_application)


def test_an_application_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET % b"elsewhere")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 500 ") and b"application/problem+json" in answer
        assert door._making is None

    run(scenario, make=no_application)
    assert "no framework" in caplog.text


def test_a_client_that_goes_before_there_is_an_application() -> None:
    may_go_on = threading.Event()

    def make(traffic: DoorTraffic) -> Serving:
        may_go_on.wait()
        return Serving(app, traffic, no_quotas())  # type: ignore[arg-type]

    async def scenario(door: HttpDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(GET % b"elsewhere")
            await until_async(lambda: door._waiting, "the request")
            writer.transport.abort()
        finally:
            may_go_on.set()
        await until_async(lambda: door._application, "the application")

    run(scenario, make=make)
