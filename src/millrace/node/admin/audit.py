"""The audit: who came, who was refused and who changed what, as messages in a stream of their own.

What `EventLog` tells people about access, clients, streams, groups and nodes is published as JSON below the
topic of the setting `audit.topic`, and is kept and read like any other messages: by whatever stream captures
the topic, by whom the rules allow. Clients may not publish there.

Nothing waits for it. Events go into a bounded queue; where the log does not take them for so long that the
queue is full, the oldest are dropped, and their number is told in the first that follows. Beyond its bound
per second the event log itself only counts what clients cause.
"""

import asyncio
import logging
from collections import deque

import msgspec

from millrace.broker.topics.filters import is_valid
from millrace.errors import ConfigError, LocalError
from millrace.limits import AUDIT_WAITING_MAX
from millrace.node.admin.events import Event, EventLog
from millrace.node.shards.publishing import Publishing
from millrace.types import Message

log = logging.getLogger("millrace.audit")

_KINDS = frozenset(("access", "client", "stream", "group", "join", "leave", "limit"))
_AGAIN_S = 1.0


def check_topic(topic: str) -> None:
    """ConfigError for what cannot be the setting `audit.topic`."""
    if topic and (not is_valid(topic) or set(topic) & set("+#") or topic.startswith(("$", "/"))):
        raise ConfigError(f"audit.topic = {topic!r} is not a topic to publish below")


class Audit:
    def __init__(self, topic: str, node: str, publishing: Publishing) -> None:
        self._topic = f"{topic}/{node}"
        self._publishing = publishing
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._is_due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, events: EventLog) -> None:
        events.listeners.append(self._on_event)
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _on_event(self, event: Event) -> None:
        if event.kind not in _KINDS:
            return
        if len(self._waiting) >= AUDIT_WAITING_MAX:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(event)
        self._is_due.set()

    async def _run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            while self._waiting:
                event, dropped = self._waiting[0], self._dropped
                try:
                    await self._publishing.publish(self._message(event, dropped))
                except LocalError as error:
                    log.warning("audit events wait: %s", error)
                    await asyncio.sleep(_AGAIN_S)
                    continue
                self._dropped -= dropped
                if self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()

    def _message(self, event: Event, dropped: int) -> Message:
        fields = msgspec.to_builtins(event)
        if dropped:
            fields["dropped_before"] = dropped
        return Message(topic=f"{self._topic}/{event.kind}", payload=msgspec.json.encode(fields), qos=1)
