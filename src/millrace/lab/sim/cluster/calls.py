"""Calls of a simulated world's people at a node, as the HTTP door would make them: bounded, never trusted.

A call runs as a task of the node's own loop. If the node dies, is paused or hangs, the caller sees a time-out
and does not know whether it happened, as over a network.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.surroundings.loop import SimLoop

if TYPE_CHECKING:
    from millrace.node.server import Server

Trouble = Callable[[SimLoop, BaseException], None]


class NoAnswer(Exception):
    """The node refused, or nobody answered in time; the text says what was heard."""


async def call(
    loop: SimLoop,
    host: Host,
    make: "Callable[[Server], Coroutine[Any, Any, Any]]",
    seconds: float,
    trouble: Trouble,
) -> Any:
    """The result of a coroutine of `host`'s server, asked for from `loop`. NoAnswer if there is none."""
    there, server = host.loop, host.server
    if there is None or server is None or not host.is_up:
        raise NoAnswer(f"{host.name} does not serve")
    answer: asyncio.Future[Any] = loop.create_future()

    async def work() -> None:
        try:
            result = await make(server)
        except MillraceError as error:
            loop.call_soon(_fail, answer, NoAnswer(str(error)))
        except Exception as error:  # noqa: BLE001  anything else is a fault of the product, and ends the run
            trouble(there, error)
        else:
            loop.call_soon(_succeed, answer, result)

    there.call_soon(lambda: there.create_task(work()))
    try:
        return await asyncio.wait_for(answer, seconds)
    except TimeoutError:
        raise NoAnswer(f"{host.name} did not answer within {seconds:.0f} s") from None


def _succeed(answer: "asyncio.Future[Any]", result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: "asyncio.Future[Any]", error: NoAnswer) -> None:
    if not answer.done():
        answer.set_exception(error)
