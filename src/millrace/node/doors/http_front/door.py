"""The HTTP door: open from the node's first moment on, with an application that is made at the first request
that needs one.

A web framework takes longer to load than the rest of the node, and many nodes are asked for nothing but
whether they serve. So the application is loaded in a thread while the node goes on, and requests wait for it.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from millrace.broker.stats import DoorTraffic
from millrace.limits import Limits
from millrace.node.config import Address
from millrace.node.doors.descriptors import Descriptors
from millrace.node.doors.http_front.early import EarlyConnection, Readiness
from millrace.node.doors.quotas import Quotas
from millrace.node.surroundings import Closeable, Listen

log = logging.getLogger("millrace.http")


class Application(Protocol):
    """What serves the requests: `millrace.node.doors.http.serving.Serving` is one."""

    async def start(self) -> None: ...

    def connection(self) -> Any:
        """The protocol of one more connection; `take_over` begins with one that was counted before."""

    def sweep(self, now_s: float, head_s: float) -> None: ...

    async def stop(self) -> None: ...


class HttpDoor:
    """`make` is called in a thread, at most once at a time."""

    def __init__(
        self,
        make: Callable[[], Application],
        readiness: Readiness,
        limits: Limits,
        traffic: DoorTraffic,
        quotas: Quotas,
    ) -> None:
        self._quotas = quotas
        self._make = make
        self._readiness = readiness
        self._traffic = traffic
        self._head_s = limits.connect_deadline_ms / 1000
        self._now_s = asyncio.get_running_loop().time
        self._listeners: list[Closeable] = []
        self._application: Application | None = None
        self._making: asyncio.Task[None] | None = None
        self._early: set[EarlyConnection] = set()
        self._waiting: list[EarlyConnection] = []

    async def open(
        self,
        address: Address,
        listen: Listen,
        descriptors: Descriptors,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> int:
        """Serve at one more address; returns the port."""
        listener, port = await listen(
            address, self._connection, descriptors, context=context, handshake_s=self._head_s
        )
        self._listeners.append(listener)
        return port

    def _connection(self) -> Any:
        if self._application is not None:
            return self._application.connection()
        early = EarlyConnection(
            self._traffic, self._quotas, self._readiness, self._hand_over, self._early.discard, self._now_s
        )
        self._early.add(early)
        return early

    def _hand_over(self, early: EarlyConnection) -> None:
        self._early.discard(early)
        if self._application is not None:
            early.pass_to(self._application.connection())
            return
        self._waiting.append(early)
        if self._making is None:
            self._making = asyncio.create_task(self._make_application())

    async def _make_application(self) -> None:
        try:
            application = await asyncio.to_thread(self._make)
            await application.start()
        except Exception:
            # Our fault, or a package that is not installed: the next request tries again.
            log.exception("the HTTP application cannot be made")
            self._making = None
            waiting, self._waiting = self._waiting, []
            for early in waiting:
                early.fail("the node failed at this; its log says more")
            return
        self._application = application
        waiting, self._waiting = self._waiting, []
        for early in waiting:
            early.pass_to(application.connection())

    def sweep(self) -> None:
        """Cut off who keeps us waiting. Called about once a second."""
        now_s = self._now_s()
        for early in list(self._early):
            if early.transport is not None and early.is_late(now_s, self._head_s):
                early.transport.abort()
        if self._application is not None:
            self._application.sweep(now_s, self._head_s)

    async def stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        for early in self._early:
            if early.transport is not None:
                early.transport.abort()
        if self._making is not None:
            await self._making
        if self._application is not None:
            await self._application.stop()
