"""What happened at this node, for people: a bounded list of events, newest last, each also a line of the log.

`EventLog.record` is the one way in. Clients come and go by the thousand, so what they cause has a ring of its
own and a bound per second: beyond it events are only counted, and the count becomes one event. Elections and
faults are never pushed out by a fleet that reconnects.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from millrace.limits import CLIENT_EVENTS_PER_S_MAX, EVENTS_MAX

log = logging.getLogger("millrace.events")

"""Kept at each node: half of them for what clients cause, half for everything else."""
_FIELD_CHARACTERS_MAX = 1_000

Kind = Literal[
    "election",
    "join",
    "leave",
    "node",
    "link",
    "stream",
    "group",
    "client",
    "access",
    "storage",
    "pipeline",
    "limit",
]
Severity = Literal["info", "warning", "error"]

KINDS: tuple[str, ...] = get_args(Kind)
_NOISY = frozenset(("client", "access", "limit"))
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened. `time_us` is unlike that of every other event of the same node."""

    id: Annotated[str, Meta(description="Unlike that of any other event.")]
    time_us: Annotated[int, Meta(description="When it happened.")]
    node: Annotated[str, Meta(description="The node that noticed it.")]
    kind: Annotated[Kind, Meta(description="What it is about.")]
    severity: Annotated[Severity, Meta(description="How bad it is.")]
    text: Annotated[str, Meta(description="A sentence for people.")]
    fields: Annotated[dict[str, str | int | float], Meta(description="The same for programs.")] = {}


class EventLog:
    """The events of one node. `listeners` hear of each as it is recorded."""

    def __init__(self, node: str, wall_us: Callable[[], int]) -> None:
        self._node = node
        self._wall_us = wall_us
        self._last_us = 0
        self._quiet: deque[Event] = deque(maxlen=EVENTS_MAX // 2)
        self._noise: deque[Event] = deque(maxlen=EVENTS_MAX // 2)
        self._second = 0
        self._taken = 0
        self._left_out = 0
        self.listeners: list[Callable[[Event], None]] = []

    def record(self, kind: Kind, severity: Severity, text: str, **fields: str | int | float | None) -> None:
        """Remember an event and log it, unless clients cause too many at once. Fields that are None are left
        out; texts are cut at a bound."""
        # What an administrator changed about access is no noise of clients.
        is_noisy = kind in _NOISY and (kind, severity) != ("access", "info")
        if is_noisy and not self._has_room():
            return
        level = logging.DEBUG if kind == "client" and severity == "info" else _LEVELS[severity]
        log.log(level, "%s: %s", kind, text)
        shown = {name: _bounded(value) for name, value in fields.items() if value is not None}
        self._add(kind, severity, str(_bounded(text)), shown, self._noise if is_noisy else self._quiet)

    def leaves_out(self) -> bool:
        """Whether an event that a client causes now is only counted, as one more; then it need not be put
        into words."""
        if self._taken < CLIENT_EVENTS_PER_S_MAX or self._wall_us() // 1_000_000 != self._second:
            return False
        self._left_out += 1
        return True

    def _has_room(self) -> bool:
        """Whether another event that a client caused is taken within this second."""
        second = self._wall_us() // 1_000_000
        if second != self._second:
            self.flush()
            self._second, self._taken = second, 0
        self._taken += 1
        if self._taken > CLIENT_EVENTS_PER_S_MAX:
            self._left_out += 1
            return False
        return True

    def flush(self) -> None:
        """Say how many events were left out, if any. Called about once a second."""
        if self._left_out and self._wall_us() // 1_000_000 != self._second:
            count, self._left_out = self._left_out, 0
            text = f"{count} more events of clients within a second are only counted"
            log.info("client: %s", text)
            self._add("client", "info", text, {"count": count}, self._noise)

    def _add(
        self,
        kind: Kind,
        severity: Severity,
        text: str,
        fields: dict[str, str | int | float],
        ring: deque[Event],
    ) -> None:
        self._last_us = max(self._wall_us(), self._last_us + 1)
        event = Event(
            id=f"{self._last_us}-{self._node}",
            time_us=self._last_us,
            node=self._node,
            kind=kind,
            severity=severity,
            text=text,
            fields=fields,
        )
        ring.append(event)
        for listener in list(self.listeners):
            listener(event)

    def newest_first(self) -> Iterator[Event]:
        return merge(reversed(self._quiet), reversed(self._noise), key=order, reverse=True)

    def __len__(self) -> int:
        return len(self._quiet) + len(self._noise)

    def page(
        self,
        limit: int,
        *,
        before: tuple[int, str] | None = None,
        after_us: int | None = None,
        kind: str | None = None,
        search: str = "",
    ) -> list[Event]:
        """The newest events that fit, at most `limit`; `before` is the `order` of the last one seen."""

        def fits(event: Event) -> bool:
            return (
                (before is None or order(event) < before)
                and (after_us is None or event.time_us > after_us)
                and (kind is None or event.kind == kind)
                and (not search or search in event.text)
            )

        return list(islice(filter(fits, self.newest_first()), limit))


def order(event: Event) -> tuple[int, str]:
    """By which the events of all nodes are sorted."""
    return event.time_us, event.node


def newest_of(pages: Iterable[list[Event]], limit: int) -> list[Event]:
    """The newest events of several nodes' pages, each of which is newest first."""
    return list(islice(merge(*pages, key=order, reverse=True), limit))


def _bounded(value: str | int | float) -> str | int | float:
    return value[:_FIELD_CHARACTERS_MAX] if isinstance(value, str) else value


class NoEvents(EventLog):
    """For a door without a node around it, as tests have one."""

    def __init__(self) -> None:
        super().__init__("", lambda: 0)

    def record(self, kind: Kind, severity: Severity, text: str, **fields: str | int | float | None) -> None:
        """Nobody asks for it."""


async def every(interval_s: float, call: Callable[[], None]) -> None:
    """Call something again and again; a fault in it is logged and is not the end."""
    while True:
        try:
            call()
        except Exception:
            # What watches a node must outlive its own mistakes.
            log.exception("a look at the node failed")
        await asyncio.sleep(interval_s)
