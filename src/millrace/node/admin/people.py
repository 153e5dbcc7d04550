"""Clients that are connected and sessions that are kept, as rows for people, page by page.

Clients are where they are connected, so every node is asked. Records of durable sessions are at every node,
so the one that is asked tells of all of them. Pages are in the order of client ids, which a cursor remembers:
who comes or goes between two pages is on one or none of them, and nobody else is left out or shown twice.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, Protocol, TypeVar

from millrace.broker.entries.sessions import SavedSubscription
from millrace.broker.sessions.session import Session as LiveSession
from millrace.broker.sessions.session_store import Record
from millrace.broker.topics.trees import split_share
from millrace.node.admin.shapes import (
    Client,
    ClientDetail,
    Session,
    SessionCursor,
    SessionDetail,
    SubscriptionRow,
)
from millrace.types import SubscriptionOptions, Version

Place = tuple[str, str]
"""Where a row stands in the order of pages: client id and node."""

_VERSIONS = {Version.MQTT_3_1: "3.1", Version.MQTT_3_1_1: "3.1.1", Version.MQTT_5: "5"}
Row = TypeVar("Row", Client, Session)


class ConnectedClient(Protocol):
    """What is told of a connection: `mqtt_connection.MqttConnection` is one."""

    peer: Any
    listener: str
    version: Version
    username: str | None
    session: LiveSession | None
    connected_us: int
    deadline_ms: int
    received: int


def address_of(peer: Any) -> str:
    """HOST:PORT; a Unix socket has neither."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return ""
    host = f"[{peer[0]}]" if ":" in str(peer[0]) else str(peer[0])
    return f"{host}:{peer[1]}"


def page_of(rows: Iterable[Row], limit: int, after: Place | None, place: Callable[[Row], Place]) -> list[Row]:
    """The first rows behind `after`, in order, at most `limit`."""
    return nsmallest(limit, (row for row in rows if after is None or place(row) > after), key=place)


def place_of(row: Client | Session) -> Place:
    return row.client_id, row.node if isinstance(row, Client) else ""


def finds(search: str, *texts: str | None) -> bool:
    return not search or any(search in text for text in texts if text)


# ----------------------------------------------------------------------------------------------- clients


def client_row(connection: ConnectedClient, session: LiveSession, node: str) -> Client:
    return Client(**_client_fields(connection, session, node))


def client_detail(connection: ConnectedClient, session: LiveSession, node: str) -> ClientDetail:
    return ClientDetail(
        **_client_fields(connection, session, node),
        filters=tuple(subscription_row(filter, one) for filter, one in session.subscriptions.items()),
        will_topic=None if session.will is None else session.will.topic,
        session_expiry_s=session.expiry_s,
    )


def _client_fields(connection: ConnectedClient, session: LiveSession, node: str) -> dict[str, Any]:
    is_text = connection.listener == "text"
    return {
        "client_id": session.client_id,
        "user": connection.username,
        "node": node,
        "address": address_of(connection.peer),
        "door": connection.listener,
        "protocol": "text" if is_text else _VERSIONS[connection.version],
        "connected_us": connection.connected_us,
        # The deadline is one and a half times what was agreed.
        "keep_alive_s": connection.deadline_ms // 1_500,
        "is_durable": session.is_durable,
        "subscriptions": len(session.subscriptions),
        "in_flight": session.inflight_count,
        "queued": session.queued_messages,
        "received": connection.received,
        "sent": session.sent,
    }


def subscription_row(filter: str, subscription: SubscriptionOptions | SavedSubscription) -> SubscriptionRow:
    name, inner = split_share(filter)
    return SubscriptionRow(
        filter=inner,
        qos=subscription.qos,
        no_local=subscription.no_local,
        retain_as_published=subscription.retain_as_published,
        retain_handling=int(subscription.retain_handling),
        identifier=subscription.identifier,
        group=name or None,
    )


# ---------------------------------------------------------------------------------------------- sessions


class Sessions:
    """The records of durable sessions, seen from one node."""

    def __init__(
        self,
        records: Callable[[], Mapping[str, Record]],
        live: dict[str, LiveSession],
        log_ends: dict[int, int],
        name_of: Callable[[str], str | None],
    ) -> None:
        self._records = records
        self._live = live
        self._log_ends = log_ends
        self._name_of = name_of

    def find(self, client_id: str) -> Record | None:
        record = self._records().get(client_id)
        return record if record is not None and record.expiry_s else None

    def page(self, limit: int, after: Place | None, search: str, owner: str | None) -> list[Session]:
        fitting = (
            record
            for record in self._records().values()
            if record.expiry_s
            and finds(search, record.client_id, record.username)
            and (owner is None or self._name_of(record.owner) == owner)
        )
        chosen = nsmallest(
            limit,
            (record for record in fitting if after is None or (record.client_id, "") > after),
            key=lambda record: record.client_id,
        )
        return [Session(**self._fields(record)) for record in chosen]

    def detail(self, record: Record) -> SessionDetail:
        return SessionDetail(
            **self._fields(record),
            filters=tuple(subscription_row(filter, one) for filter, one in record.subscriptions.items()),
            cursors=tuple(
                SessionCursor(shard=shard, offset=cursor.position, lag=self._lag(shard, cursor.position))
                for shard, cursor in sorted(record.cursors.items())
            ),
        )

    def _lag(self, shard: int, offset: int) -> int:
        return max(0, self._log_ends.get(shard, offset) - offset)

    def _fields(self, record: Record) -> dict[str, Any]:
        is_connected = record.away_us is None
        live = self._live.get(record.client_id)
        queued: int | None
        if live is not None and live.is_recorded and live.connection is not None:
            behind = sum(self._lag(shard, offset) for shard, offset in (live.lag or {}).items())
            queued = live.queued_messages + behind
        elif is_connected:
            # The node where it is connected knows what it was sent.
            queued = None
        else:
            queued = sum(self._lag(shard, cursor.position) for shard, cursor in record.cursors.items())
        return {
            "client_id": record.client_id,
            "user": record.username,
            "owner": self._name_of(record.owner),
            "is_connected": is_connected,
            "expiry_s": record.expiry_s,
            "away_since_us": record.away_us,
            "subscriptions": len(record.subscriptions),
            "queued": queued,
            "unfinished_qos2": len(record.received) + len(record.sent) + len(record.released),
            "has_will": record.will is not None,
        }
