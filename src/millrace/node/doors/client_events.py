"""What the MQTT doors tell of their clients: who came, who left and why, who was refused."""

from typing import Any

from millrace.broker.sessions.session import Session
from millrace.node.admin.events import EventLog
from millrace.node.admin.people import address_of
from millrace.reasons import Reason

_LIMITS = frozenset((Reason.QUOTA_EXCEEDED, Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE))
_ACCESS = frozenset(
    (Reason.NOT_AUTHORIZED, Reason.BAD_USER_OR_PASSWORD, Reason.BAD_AUTHENTICATION_METHOD, Reason.BANNED)
)


class ClientEvents:
    def __init__(self, events: EventLog) -> None:
        self._events = events

    def came(self, session: Session, peer: Any, listener: str, username: str | None) -> None:
        if self._events.leaves_out():
            return
        address = address_of(peer)
        self._events.record(
            "client",
            "info",
            f"{session.client_id!r} connected from {address} by {listener}",
            client_id=session.client_id,
            address=address,
            door=listener,
            user=username,
        )

    def left(self, session: Session, peer: Any, why: str, reason: Reason = Reason.SUCCESS) -> None:
        if self._events.leaves_out():
            return
        self._events.record(
            "client",
            "info",
            f"{session.client_id!r} is gone: {why}",
            client_id=session.client_id,
            address=address_of(peer),
            reason=int(reason),
        )

    def refused(self, peer: Any, why: str, reason: Reason) -> None:
        """No to a CONNECT."""
        address = address_of(peer)
        kind: Any = "access" if reason in _ACCESS else "limit" if reason in _LIMITS else "client"
        text = f"refused a client from {address}: {why}"
        self._events.record(kind, "warning", text, address=address, reason=int(reason))

    def denied(self, session: Session, filters: list[str]) -> None:
        """Subscriptions that the access rules do not allow."""
        names = ", ".join(map(repr, filters))
        self._events.record(
            "access",
            "warning",
            f"{session.client_id!r} may not subscribe to {names}",
            client_id=session.client_id,
            user=session.username,
        )
