"""A look at messages as they pass: a subscriber inside the node, at QoS 0, whose messages become JSON.

It is a clean session of this node's own with a connection that is no socket. So routing, access rules and
what other nodes send here work as for any subscriber. It takes so many messages a second; then its session is
blocked for the rest of the second, and what the broker drops for it meanwhile is counted and told. A reader
that does not keep up fills a bounded queue, which has the same effect.
"""

import asyncio
import base64
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from millrace.broker.access import Principal
from millrace.broker.machine import Broker
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.session import Session
from millrace.errors import LocalError, RemoteError
from millrace.kernels.publish import body_start, packet_bounds
from millrace.node.access.identity import Identity
from millrace.node.admin.live import PULSE_S, Piece
from millrace.node.admin.shapes import Skipped, Tailed
from millrace.node.doors.mqtt_door import Cancellable, MqttDoor
from millrace.reasons import Reason
from millrace.types import Message, RetainHandling, Subscription, Version
from millrace.wire.mqtt.codec import decode
from millrace.wire.mqtt.packets import Publish

_PAYLOAD_BYTES_MAX = 64 * 1024
_WAITING_BYTES_MAX = 4 * 1024 * 1024
_WINDOW = 100


class _NoTransport:
    """What the door asks of a connection's transport."""

    def abort(self) -> None:
        """There is no socket to cut."""


class Tail:
    """Implements `Connection` of the MQTT door. `close` ends it; `next` gives what is due, None at the
    end."""

    def __init__(
        self, door: MqttDoor, identity: Identity, peer: Any, wall_us: Callable[[], int], per_s: int
    ) -> None:
        self._door = door
        self._broker: Broker = door.broker
        self._wall_us = wall_us
        self._per_s = per_s
        self._left = per_s
        self._second = 0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._skipped = 0
        self._is_over = False
        self._due = asyncio.Event()
        self.peer = peer
        self.transport = _NoTransport()
        self.identity: Identity | None = identity
        self.login: Cancellable | None = None
        self.username = identity.username
        self._scope = identity.scope
        self.session: Session | None = None
        self.listener = ""

    def open(self, filters: Iterable[str]) -> None:
        """Subscribe; LocalError says which filter is refused, and nothing is left behind."""
        door, broker = self._door, self._broker
        client_id = f"$tail-{secrets.token_hex(8)}"
        request = ConnectRequest(
            client_id=client_id,
            clean_start=True,
            expiry_s=0,
            v5=True,
            window=_WINDOW,
            packet_bytes_max=0,
            alias_max=0,
            principal=self._principal(),
            will=None,
            username=self.username,
            door="tail",
        )
        self.session, _, _ = broker.connect(request, self, door.now_ms(), is_opened=False)
        door.connections[self] = None
        for filter in filters:
            subscription = Subscription(
                filter=filter, qos=0, retain_as_published=True, retain_handling=RetainHandling.DO_NOT_SEND
            )
            reason, _ = broker.subscribe(self.session, subscription)
            if reason >= Reason.UNSPECIFIED:
                self.close()
                raise LocalError(f"{filter!r} is refused: {reason.name.lower().replace('_', ' ')}")
        door.wake()

    def _principal(self) -> Principal:
        return self._broker.rules.principal(self.username, "http", self._scope)

    def close(self) -> None:
        session, self.session = self.session, None
        self._door.connections.pop(self, None)
        self._is_over = True
        self._due.set()
        if session is not None and session.connection is self:
            self._broker.disconnect(session, self._door.now_ms(), will=False)
            self._door.wake()

    # --------------------------------------------------------------------- called by the MQTT door

    def write(self, data: bytes) -> None:
        """Packets for this subscriber."""
        for start, end in packet_bounds(data):
            self._begin_second()
            if self._left <= 0 or self._waiting_bytes > _WAITING_BYTES_MAX:
                self._skipped += 1
                self._block()
                continue
            body = body_start(data, start)
            try:
                packet = decode(data[start], data[body:end], Version.MQTT_5)
            except RemoteError:
                continue
            if isinstance(packet, Publish):
                self._left -= 1
                made = msgspec.json.encode(tailed(packet.message, self._wall_us()))
                self._waiting.append(made)
                self._waiting_bytes += len(made)
        self._due.set()

    def _begin_second(self) -> None:
        second = self._wall_us() // 1_000_000
        if second != self._second:
            self._second, self._left = second, self._per_s

    def _block(self) -> None:
        if self.session is not None:
            self.session.blocked = True

    def tick(self) -> None:
        """About four times a second: go on, and count what was dropped meanwhile."""
        session = self.session
        if session is None:
            return
        if session.dropped:
            # Nobody lost anything: what this one did not take is no figure of the broker.
            self._broker.stats.dropped_qos0 -= session.dropped
            self._skipped += session.dropped
            session.dropped = 0
            self._due.set()
        self._begin_second()
        if session.blocked and self._left > 0 and self._waiting_bytes <= _WAITING_BYTES_MAX:
            session.blocked = False

    def end_output(self) -> None:
        self.close()

    def hand_out(self, session: Session) -> None:
        """What waits for a session that is given up is not for people any more."""

    def unpark(self) -> None:
        """It sends nothing, so nothing of it waits."""

    def is_late(self, now_ms: int) -> bool:
        return False

    def expire(self) -> None:
        self.close()

    def fail(self, reason: Reason, detail: str) -> None:
        self.close()

    def supersede(self) -> None:
        self.close()

    def reassign(self) -> None:
        """The access rules changed: what may not be subscribed to any more is not shown any more."""
        if self.session is not None:
            principal = self._principal()
            self._broker.reassign(self.session, principal, self._door.now_ms())
            if not all(principal.may_subscribe(filter) for filter in self.session.subscriptions):
                self.close()

    # ----------------------------------------------------------------------------- for the reader

    async def next(self) -> Piece | None:
        while not self._is_over:
            if self._waiting:
                made = self._waiting.popleft()
                self._waiting_bytes -= len(made)
                return "message", made
            if self._skipped:
                count, self._skipped = self._skipped, 0
                return "skipped", msgspec.json.encode(Skipped(count=count))
            self._due.clear()
            try:
                async with asyncio.timeout(PULSE_S):
                    await self._due.wait()
            except TimeoutError:
                return "", b""
        return None


def tailed(message: Message, time_us: int) -> Tailed:
    """A message as it is shown, its payload cut where it is long."""
    payload = bytes(message.payload)
    shown = payload[:_PAYLOAD_BYTES_MAX]
    encoding: Any = "utf-8"
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        if len(shown) < len(payload) and error.start > len(shown) - 4:
            # The cut went through a character.
            text = shown[: error.start].decode()
        else:
            text, encoding = base64.b64encode(shown).decode(), "base64"
    return Tailed(
        time_us=time_us,
        topic=message.topic,
        payload=text,
        encoding=encoding,
        qos=message.qos,
        retain=message.retain,
        publisher=None,
        content_type=message.properties.content_type,
        user_properties=tuple(message.properties.user),
        payload_bytes=len(payload),
    )
