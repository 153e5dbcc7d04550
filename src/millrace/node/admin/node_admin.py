"""The administration of a node: what it says of itself, what it asks the others, what it does for people.

Each question is asked of every node at the same time (`asking.py`), and its answer is made of theirs. The
doors turn what comes back into JSON; nothing here knows HTTP.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from millrace.broker.entries.sessions import Discarded
from millrace.errors import LocalError
from millrace.limits import TAILS_MAX
from millrace.node.access.identity import Identity
from millrace.node.admin import figures, people
from millrace.node.admin.asking import Answers, Asking
from millrace.node.admin.events import Event, EventLog, every, newest_of, order
from millrace.node.admin.live import Live
from millrace.node.admin.logins import PageLogins
from millrace.node.admin.overview import Builder, groups_here, names_of, stored_offsets
from millrace.node.admin.people import Place, Sessions
from millrace.node.admin.readiness import Readiness
from millrace.node.admin.shapes import (
    Client,
    ClientDetail,
    Figures,
    Link,
    Overview,
    Receiver,
    SelfReport,
    Session,
    SessionDetail,
    Trace,
)
from millrace.node.admin.tail import Tail
from millrace.node.admin.trace import durable_groups, receivers_here, trace
from millrace.node.admin.watch import LOOK_S, Watch
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.node.engine import Engine
from millrace.node.replicas.replicas import FrameApp
from millrace.reasons import Reason
from millrace.storage.disk import DiskFull
from millrace.version import __version__

_PING_S = 2.0
_NEWS_MAX = 100
_GONE_S = 5.0
_GONE_STEP_S = 0.02

Row = TypeVar("Row")


class Gone(LocalError):
    """Nobody knows what was asked for."""


class Busy(LocalError):
    """There is no room for another one, or no answer right now."""


@dataclass(slots=True)
class Page(Generic[Row]):
    """Some rows, and where to go on."""

    items: list[Row]
    next: Place | None = None
    missing: list[str] = field(default_factory=list)


class Admin:
    """`start` once the doors are being opened, `close` when the node stops."""

    def __init__(
        self,
        engine: Engine,
        door: MqttDoor,
        events: EventLog,
        *,
        node: str,
        wall_us: Callable[[], int],
        uptime_s: Callable[[], int],
    ) -> None:
        self.node = node
        self._engine = engine
        self._door = door
        self._broker = door.broker
        self._wall_us = wall_us
        self._uptime_s = uptime_s
        self.events = events
        self.logins = PageLogins()
        self.readiness = Readiness(engine, events)
        self._watch = Watch(engine, self._broker.stats, events, node)
        self._sampler = figures.Sampler(lambda: asyncio.get_running_loop().time())
        self.lag_times, self.add_lag = self._sampler.lag_times, self._sampler.add_lag
        self._builder = Builder(engine, node, __version__, self._sampler)
        self._sessions = Sessions(
            lambda: engine.sessions.store.records,
            self._broker.sessions,
            self._broker.log_ends,
            lambda replica: names_of(engine).get(replica),
        )
        self._rtt_ms: dict[str, float | None] = {}
        self._tails: list[Tail] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._making: asyncio.Task[Overview] | None = None
        self._news: list[Event] = []
        # Node -> the time of the last event that was heard from it.
        self._heard_us: dict[str, int] = {}
        self.live = Live(self._live_overview)
        events.listeners.append(self.live.on_event)
        self._asking = Asking(node, engine.replicas, engine.definitions)
        self._asking.answer_with(
            {
                "ping": lambda fields: None,
                "report": self._answer_report,
                "clients": self._answer_clients,
                "client": self._answer_client,
                "disconnect": lambda fields: self._disconnect_here(fields["client_id"]),
                "end_session": lambda fields: self._end_here(fields["client_id"]),
                "events": self._answer_events,
                "receivers": self._answer_receivers,
                "frame": self._answer_frame,
            }
        )

    def start(self) -> None:
        """Begin to look at the node. Without it, the answers to other nodes lack rates."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(every(LOOK_S, self._look)),
            loop.create_task(every(figures.SAMPLE_S, self._sample)),
            loop.create_task(self._ping()),
        ]

    def close(self) -> None:
        """Let go of everybody who watches."""
        for task in self._tasks:
            task.cancel()
        self.live.close()
        for tail in list(self._tails):
            tail.close()

    def _look(self) -> None:
        self.readiness.look()
        for tail in self._tails:
            tail.tick()
        if self.readiness.is_started:
            self._watch.look()

    def _sample(self) -> None:
        counters = figures.traffic(self._broker.stats)
        if self.readiness.is_started:
            counters |= stored_offsets(self._engine)
        self._sampler.sample(counters)

    async def _ping(self) -> None:
        while True:
            links = self._engine.replicas.links
            peers = links.peers() if links is not None and self.readiness.is_started else []
            times = await asyncio.gather(*(self._asking.rtt_ms(peer) for peer in peers))
            self._rtt_ms = dict(zip(peers, times, strict=True))
            await asyncio.sleep(_PING_S)

    def rtt_s(self, replica: str) -> float | None:
        """How long the last answer of that node took; None where there was none."""
        rtt_ms = self._rtt_ms.get(replica)
        return None if rtt_ms is None else rtt_ms / 1000

    # --------------------------------------------------------------------------------- the cluster

    def figures(self) -> Figures:
        """What this node says of itself."""
        engine = self._engine
        replicas = engine.replicas
        used = sum(group.replica_log.log.size_bytes for group in replicas.groups.values())
        used += sum(log.replica_log.log.size_bytes for log in engine.leaderless.logs.values())
        try:
            free = replicas.directory.free_bytes() if replicas.is_open else 0
        except DiskFull:
            free = 0
        links = replicas.links
        return Figures(
            version=__version__,
            uptime_s=self._uptime_s(),
            clients=self._broker.connected - len(self._tails),
            disk_used_bytes=used,
            disk_free_bytes=free,
            waits_for=self.readiness.waits_for or "; ".join(self.readiness.waits.sentences),
            links=tuple(
                Link(
                    to=name,
                    is_up=links is not None and links.is_heard(replica),
                    rtt_ms=self._rtt_ms.get(replica),
                )
                for replica, name in sorted(self._asking.others().items(), key=lambda item: item[1])
            ),
            **figures.of_broker(self._broker, self._sampler, len(self._tails)),
        )

    def _answer_report(self, fields: dict[str, Any]) -> Any:
        report = SelfReport(
            figures=self.figures(),
            groups=groups_here(self._engine),
            news=tuple(self.events.page(_NEWS_MAX, after_us=fields.get("after", {}).get(self.node))),
        )
        return msgspec.to_builtins(report)

    async def overview(self) -> Overview:
        """Those who ask at the same time get the same."""
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make_overview())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, task: "asyncio.Task[Overview]") -> None:
        self._making = None

    async def _make_overview(self) -> Overview:
        answers = await self._asking.everybody("report", after=self._heard_us)
        reports = {node: msgspec.convert(said, SelfReport) for node, said in answers.by_node.items()}
        for node, report in reports.items():
            if node == self.node:
                continue
            is_first = node not in self._heard_us
            if report.news:
                self._heard_us[node] = report.news[0].time_us
                # What happened before anybody watched is asked for by page.
                if self.live.listeners and not is_first:
                    self._news += reversed(report.news)
            elif is_first:
                self._heard_us[node] = 0
        del self._news[:-_NEWS_MAX]
        return self._builder.put_together(self._wall_us(), reports)

    async def _live_overview(self) -> tuple[bytes, list[Event]]:
        made = await self.overview()
        news, self._news = self._news, []
        return msgspec.json.encode(made), news

    # ------------------------------------------------------------------------------------- clients

    def _connections(self) -> list[MqttConnection]:
        found = [c for c in self._door.connections if isinstance(c, MqttConnection)]
        return [c for c in found if c.session is not None]

    def _find_connection(self, client_id: str) -> MqttConnection | None:
        session = self._broker.sessions.get(client_id)
        connection = None if session is None else session.connection
        return connection if isinstance(connection, MqttConnection) and connection.session else None

    def _answer_clients(self, fields: dict[str, Any]) -> Any:
        search, after = fields["search"], fields["after"]
        rows = (
            people.client_row(connection, connection.session, self.node)
            for connection in self._connections()
            if connection.session is not None
            and people.finds(
                search,
                connection.session.client_id,
                connection.username,
                people.address_of(connection.peer),
            )
        )
        place = None if after is None else (after[0], after[1])
        return msgspec.to_builtins(people.page_of(rows, fields["limit"], place, people.place_of))

    def _answer_client(self, fields: dict[str, Any]) -> Any:
        connection = self._find_connection(fields["client_id"])
        if connection is None or connection.session is None:
            return None
        return msgspec.to_builtins(people.client_detail(connection, connection.session, self.node))

    async def clients(
        self, *, limit: int, after: Place | None, search: str, node: str | None
    ) -> Page[Client]:
        answers = await self._asking.everybody(
            "clients", only=node, limit=limit + 1, after=after, search=search
        )
        found = [row for rows in answers.by_node.values() for row in msgspec.convert(rows, list[Client])]
        return _cut(sorted(found, key=people.place_of), limit, people.place_of, answers.missing)

    async def client(self, client_id: str) -> ClientDetail:
        answers = await self._asking.everybody("client", client_id=client_id)
        for said in answers.by_node.values():
            if said is not None:
                return msgspec.convert(said, ClientDetail)
        raise _not_found(f"no client {client_id!r} is connected", answers)

    def _disconnect_here(self, client_id: str) -> bool:
        connection = self._find_connection(client_id)
        if connection is None:
            return False
        connection.fail(Reason.ADMINISTRATIVE_ACTION, "disconnected by an administrator")
        return True

    async def disconnect(self, client_id: str, by: str) -> None:
        answers = await self._asking.everybody("disconnect", client_id=client_id)
        if not any(answers.by_node.values()):
            raise _not_found(f"no client {client_id!r} is connected", answers)
        self.events.record(
            "client", "warning", f"{by} disconnected {client_id!r}", client_id=client_id, user=by
        )

    # ------------------------------------------------------------------------------------ sessions

    def sessions(self, *, limit: int, after: Place | None, search: str, node: str | None) -> Page[Session]:
        found = self._sessions.page(limit + 1, after, search, node)
        return _cut(found, limit, people.place_of, [])

    def session(self, client_id: str) -> SessionDetail:
        record = self._sessions.find(client_id)
        if record is None:
            raise Gone(f"there is no durable session of {client_id!r}")
        return self._sessions.detail(record)

    def _end_here(self, client_id: str) -> bool:
        session = self._broker.sessions.get(client_id)
        if session is None:
            return False
        connection = session.connection
        # What is not durable ends with its connection.
        session.expiry_s = 0
        if isinstance(connection, MqttConnection):
            connection.fail(Reason.ADMINISTRATIVE_ACTION, "the session was deleted by an administrator")
        else:
            self._broker.end(session, self._door.now_ms())
        self._door.wake()
        return True

    async def delete_session(self, client_id: str, by: str) -> None:
        """End a session wherever it is; returns once its record is gone here."""
        record = self._sessions.find(client_id)
        if record is None:
            raise Gone(f"there is no durable session of {client_id!r}")
        owner = names_of(self._engine).get(record.owner)
        try:
            is_told = owner is not None and await self._asking.one(owner, "end_session", client_id=client_id)
        except (LocalError, TimeoutError):
            is_told = False
        if not is_told:
            # Whoever looks after it is gone, or does not know of it: its record ends without it.
            self._broker.journal.add(Discarded(client_id, record.epoch))
            self._door.wake()
        await self._record_gone(client_id, record.epoch)
        text = f"{by} deleted the session of {client_id!r}"
        self.events.record("client", "warning", text, client_id=client_id, user=by)

    async def _record_gone(self, client_id: str, epoch: int) -> None:
        for _ in range(int(_GONE_S / _GONE_STEP_S)):
            found = self._sessions.find(client_id)
            if found is None or found.epoch != epoch:
                return
            await asyncio.sleep(_GONE_STEP_S)
        raise Busy("no majority of the nodes that keep sessions answered; it may still happen")

    # -------------------------------------------------------------------------------------- events

    def _answer_events(self, fields: dict[str, Any]) -> Any:
        before = fields["before"]
        found = self.events.page(
            fields["limit"],
            before=None if before is None else (before[0], before[1]),
            after_us=fields["after_us"],
            kind=fields["kind"],
            search=fields["search"],
        )
        return msgspec.to_builtins(found)

    async def event_page(
        self,
        *,
        limit: int,
        before: tuple[int, str] | None,
        after_us: int | None,
        kind: str | None,
        search: str,
        node: str | None,
    ) -> tuple[list[Event], tuple[int, str] | None, list[str]]:
        """Events of all nodes, newest first, where to go on, and who did not answer."""
        answers = await self._asking.everybody(
            "events",
            only=node,
            limit=limit + 1,
            before=before,
            after_us=after_us,
            kind=kind,
            search=search,
        )
        pages = [msgspec.convert(rows, list[Event]) for rows in answers.by_node.values()]
        found = newest_of(pages, limit + 1)
        return found[:limit], order(found[limit - 1]) if len(found) > limit else None, answers.missing

    # --------------------------------------------------------------------------------------- trace

    def _answer_receivers(self, fields: dict[str, Any]) -> Any:
        found = receivers_here(self._broker, self._engine, self.node, fields["topic"], fields["client_id"])
        return msgspec.to_builtins(found)

    def _answer_frame(self, fields: dict[str, Any]) -> Any:
        shard = self._engine.shards.get(fields["shard"])
        return shard.shown() if isinstance(shard, FrameApp) else {}

    async def frame_figures(self, primary: str, shard: int) -> dict[str, Any]:
        """What the primary counts of a shard under the schedule `frame`; empty where it does not answer."""
        with suppress(LocalError, TimeoutError):
            return dict(await self._asking.one(primary, "frame", shard=shard) or {})
        return {}

    async def trace(self, topic: str | None, client_id: str | None) -> Trace:
        answers = await self._asking.everybody("receivers", topic=topic, client_id=client_id)
        found = [row for rows in answers.by_node.values() for row in msgspec.convert(rows, list[Receiver])]
        if topic is not None and client_id is None:
            found += durable_groups(self._engine, self.node, topic)
        is_retained = topic is not None and self._broker.retained.get(topic) is not None
        return trace(self._engine, topic, found, answers.missing, retained=is_retained)

    # ---------------------------------------------------------------------------------------- tail

    def tail(self, filters: list[str], identity: Identity, peer: Any, per_s: int) -> Tail:
        """Begin a tail of a caller, which `end_tail` must end."""
        if len(self._tails) >= TAILS_MAX:
            raise Busy(f"{TAILS_MAX} tails are open at this node, the most; ask another node")
        tail = Tail(self._door, identity, peer, self._wall_us, per_s)
        tail.open(filters)
        self._tails.append(tail)
        return tail

    def end_tail(self, tail: Tail) -> None:
        tail.close()
        if tail in self._tails:
            self._tails.remove(tail)


def _cut(rows: list[Row], limit: int, place: Callable[[Row], Place], missing: list[str]) -> Page[Row]:
    return Page(rows[:limit], place(rows[limit - 1]) if len(rows) > limit else None, missing)


def _not_found(text: str, answers: Answers) -> LocalError:
    if answers.missing:
        return Busy(f"{text} at the nodes that answer; {', '.join(answers.missing)} did not")
    return Gone(text)
