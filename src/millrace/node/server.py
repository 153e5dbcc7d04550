"""One node: opens the doors, turns the clock, and stops cleanly.

The node owns what the pure parts must not: the event loop, sockets, files and time. It decides nothing
about protocols; it wires `Broker` and `MqttDoor` to listeners and timers and tells people what happened.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from random import Random, SystemRandom
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.meta.access import AccessState
from millrace.errors import LocalError, StorageError
from millrace.kernels import ACCELERATED
from millrace.node import tls
from millrace.node.access.authentication import Authentication
from millrace.node.access.hook import Hook
from millrace.node.access.jwt import for_tokens
from millrace.node.admin import audit
from millrace.node.admin.audit import Audit
from millrace.node.admin.events import EventLog
from millrace.node.admin.node_admin import Admin
from millrace.node.cluster import sys_topics
from millrace.node.config import Address, Config
from millrace.node.doors import text_queue
from millrace.node.doors.client_events import ClientEvents
from millrace.node.doors.descriptors import Descriptors
from millrace.node.doors.hosts import Hosts
from millrace.node.doors.http_front.door import Application, HttpDoor
from millrace.node.doors.listeners import ProxyHeader, Tuned
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.node.doors.mqtt_exchange import Methods
from millrace.node.doors.text import TextAdapter
from millrace.node.engine import Engine
from millrace.node.running_clock import RunningClock
from millrace.node.surroundings import SYSTEM, Closeable, Surroundings
from millrace.node.turn import Turn
from millrace.reasons import Reason
from millrace.version import __version__

log = logging.getLogger("millrace.node")

# Session ends, delayed wills and keep alives are due to the second; this is how late they may be noticed.
_TICK_S = 0.1
# While no client is connected, and nothing of one waits to be written.
_IDLE_TICK_S = 0.5
_SWEEP_S = 1.0
# Clients get this long to take their last bytes when the node stops.
_GOODBYE_S = 1.0
_OVER_TLS = frozenset(("mqtts", "wss", "https", "texts"))


class Server:
    """A node. `start` and `stop` once each; `ports` tells where it listens."""

    def __init__(
        self,
        config: Config,
        *,
        random: Random | None = None,
        methods: Methods | None = None,
        surroundings: Surroundings = SYSTEM,
    ) -> None:
        self.config = config
        self.ports: dict[str, int] = {}
        audit.check_topic(config.audit.topic)
        # Nobody may do anything until the rules of the cluster are known here [rule 31].
        self.broker = Broker(config.limits, AccessRules(has_users=True, reserved=config.audit.topic))
        self._jwt = jwt = for_tokens(config.jwt)
        self._hook = Hook.of(config.access)
        self.authentication = Authentication(
            config.access.anonymous,
            wall_us=surroundings.wall_us,
            client_name=config.tls.client_name,
            jwt=None if jwt is None else lambda: jwt.made,
            hook=self._hook,
            scram_iterations=config.access.scram_iterations if config.access.scram else 0,
        )
        self._random = random or SystemRandom()
        self._methods = {**self.authentication.methods, **(methods or {})}
        # Logins are judged by the clock of the machine; everything that a log keeps by one that only runs.
        self.machine_us = surroundings.wall_us
        self.wall_us = RunningClock(surroundings.wall_us, surroundings.running_us)
        self._surroundings = replace(surroundings, wall_us=self.wall_us)
        self.events = EventLog(config.node.id, surroundings.wall_us)
        self.authentication.events = self.events
        self.admin: Admin
        self.descriptors = Descriptors(self.broker.stats)
        self._listeners: list[Closeable] = []
        self._is_idle = False
        self._sweep_due_s = 0.0
        self._rules_generation = 0
        self._users: frozenset[str] = frozenset()
        self._reloading: asyncio.Task[None] | None = None
        self._tls = tls.for_doors(config.tls)
        self._renewal = tls.Renewal(lambda text: self.events.record("node", "info", text))
        self._hosts = Hosts(config)
        self._audit: Audit | None = None
        self._renewing_links: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sys_due_s = self._tick_due_s = 0.0
        self._http: HttpDoor | None = None
        self.engine: Engine
        self.failure: StorageError | None = None
        self.stopping = asyncio.Event()
        self.door: MqttDoor
        self._loop: asyncio.AbstractEventLoop
        self._turn: Turn
        self.started_s = 0.0

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.started_s = self._loop.time()
        self._turn = Turn(self._flush, self._loop.call_soon)
        self.door = MqttDoor(
            self.broker,
            self.config.mqtt,
            now_ms=self._now_ms,
            wake=self._turn.wake,
            authenticate=self.authentication,
            random=self._random,
            methods=self._methods,
        )
        self.door.events = ClientEvents(self.events)
        listeners = self.config.listeners
        self.engine = Engine(
            self.config,
            self.broker,
            random=self._random,
            now_ms=self._now_ms,
            wake=self._turn.wake,
            on_failure=self._on_disk_failure,
            surroundings=self._surroundings,
        )
        self.admin = Admin(
            self.engine,
            self.door,
            self.events,
            node=self.config.node.id,
            wall_us=self.wall_us,
            uptime_s=self.uptime_s,
        )
        self.engine.access.on_change = self._on_access_change
        removal = self.engine.cluster.removal
        removal.on_removed = self._on_removed
        self.door.elsewhere = lambda: " ".join(removal.elsewhere)
        try:
            if listeners.http is not None or listeners.https is not None:
                # First of all: who waits for this node can ask what it waits for.
                await self._open_http()
            await self.engine.start(lambda: self.ports)
            self._join_door_to_engine()
            await self._open_doors()
        except BaseException:
            await self.stop()
            raise
        self._watch_tls_files()
        self._start_audit()
        self._tick()
        self.admin.readiness.is_started = True
        for name, port in self.ports.items():
            log.info("%s on port %d", name, port)

    def _join_door_to_engine(self) -> None:
        """What clients do here concerns other nodes, where there are any."""
        door, engine = self.door, self.engine
        door.when_shared = engine.when_shared
        if self.config.listeners.peer is not None:
            if self.config.cluster.takeover:
                door.tell_others = engine.presence.opened
            door.when_known = engine.interest.when_known
            door.fetch_session = engine.handover.fetch
            door.session_opened = engine.handover.opened
            engine.replicas.flush_clients = self._turn.end

    async def _open_doors(self) -> None:
        listeners = self.config.listeners
        for name, address in (("mqtt", listeners.mqtt), ("mqtts", listeners.mqtts)):
            await self._open(name, address, self._tcp_connection)
        if listeners.ws is not None or listeners.wss is not None:
            import_module("millrace.node.doors.websocket")
        for name, address in (("ws", listeners.ws), ("wss", listeners.wss)):
            await self._open(name, address, self._websocket_connection)
        for name, address in (("text", listeners.text), ("texts", listeners.texts)):
            await self._open(name, address, self._text_connection)

    def _start_audit(self) -> None:
        topic = self.config.audit.topic
        if topic:
            self._audit = Audit(topic, self.config.node.id, self.engine.groups.publishing)
            self._audit.start(self.events)

    def _watch_tls_files(self) -> None:
        self._renewal.watch(self._tls)
        self._renewal.watch(self._jwt)
        links = self.engine.replicas.links
        if links is not None:

            def renew() -> None:
                self._renewing_links = asyncio.create_task(links.renew())

            self._renewal.watch(links.tls, renew)

    def _make_http(self) -> Application:
        # Loaded when a request needs it: it takes longer than everything else.
        loading = self._surroundings.loading
        with loading():
            from millrace.node.doors.http.app import make_app
            from millrace.node.doors.http.serving import Serving

            return Serving(make_app(self, loading), self.broker.stats.door("http"), self.door.quotas)

    async def _open_http(self) -> None:
        listeners = self.config.listeners
        self._http = HttpDoor(
            self._make_http,
            self.admin.readiness,
            self.config.limits,
            self.broker.stats.door("http"),
            self.door.quotas,
        )
        for name, address in (("http", listeners.http), ("https", listeners.https)):
            if address is not None:
                self.ports[name] = await self._http.open(
                    address, self._surroundings.listen, self.descriptors, self._context(name)
                )
        self.admin.start()

    def _context(self, listener: str) -> Callable[[], ssl.SSLContext] | None:
        """What a listener with TLS gets for each connection: what was made of the files last."""
        tls = self._tls if listener in _OVER_TLS else None
        return None if tls is None else lambda: tls.made

    async def stop(self) -> None:
        """Close the doors, tell the clients, and let go of everything. Safe to call twice."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if hasattr(self, "door"):
            self.door.turn_away(Reason.SERVER_SHUTTING_DOWN, "the server is stopping")
            goodbyes = [self._let_clients_go()]
            if self._http is not None:
                self.engine.groups.release()
                self.admin.close()
                http, self._http = self._http, None
                goodbyes.append(http.stop())
            await asyncio.gather(*goodbyes)
        self._renewal.close()
        if self._audit is not None:
            self._audit.close()
        if hasattr(self, "engine"):
            await self.engine.stop()
        self.authentication.close()
        if self._hook is not None:
            await self._hook.stop()

    async def _let_clients_go(self) -> None:
        deadline_s = self._loop.time() + _GOODBYE_S
        # Connections end by themselves, each in its own time.
        while self.door.connections and self._loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for connection in list(self.door.connections):
            connection.transport.abort()

    def reload(self) -> None:
        """Read certificates again (SIGHUP), and load the users file into the cluster again, where the
        configuration says that a node does so. A broken file changes nothing and raises ConfigError."""
        access = self.engine.access
        self._renewal.look(is_asked=True)
        if self.config.access.users_import != "always":
            if not self._renewal.has_files:
                log.info(
                    "nothing to reload: users and rules are changed by `millrace user` and `millrace acl`"
                )
            return
        content = access.read_file()

        async def load() -> None:
            try:
                await access.load(content)
                counts = f"{len(content.hashes)} users, {len(content.rules)} rules"
                self.events.record("access", "info", f"users and access rules reloaded: {counts}")
            except LocalError as error:
                log.error("not reloaded, the old users and rules stay in force: %s", error)

        self._reloading = asyncio.create_task(load())

    def _on_access_change(self, state: AccessState) -> None:
        """Users, rules or tokens changed: whoever would not come in any more goes, and everybody else is
        asked again what the rules allow."""
        self.authentication.reload(state, self.broker.rules)
        if self.broker.rules.generation != self._rules_generation:
            self._rules_generation = self.broker.rules.generation
            for connection in list(self.door.connections):
                connection.reassign()
        # After that: the will of somebody who is sent away is published by the rights of now.
        self._end_stale_logins()
        removed, self._users = self._users - state.users.keys(), frozenset(state.users)
        for session in [one for one in self.broker.sessions.values() if one.username in removed]:
            if session.connection is None:
                # A later user of that name is another one [rule 31].
                self.broker.end(session, self._now_ms())

    def _on_removed(self) -> None:
        """This node is no part of the cluster any more, and its clients must not wait for it [rule 36]."""
        self.events.record("node", "error", self.engine.cluster.removal.why)
        self.door.turn_away(Reason.USE_ANOTHER_SERVER, "this node was removed from the cluster")

    def _end_stale_logins(self, *, by_time: bool = False) -> None:
        """Close what belongs to a login whose user, password, token or role is not valid any more. `by_time`:
        nothing else happened."""
        for connection in list(self.door.connections):
            identity = connection.identity
            if identity is None or (by_time and not identity.ends_by_time):
                continue
            if not self.authentication.is_current(identity, connection.peer):
                connection.fail(Reason.NOT_AUTHORIZED, "the login is not valid any more")
        self.admin.live.end_refused()

    def status(self) -> dict[str, Any]:
        """What this node is and does, for people and programs."""
        broker = self.broker
        return {
            "node": self.config.node.id,
            "version": __version__,
            "accelerated": ACCELERATED,
            "uptime_s": self.uptime_s(),
            "waits_for": self.admin.readiness.waits_for,
            "waits": list(self.admin.readiness.waits.sentences),
            "listeners": dict(self.ports),
            "clients_connected": broker.connected,
            "sessions": len(broker.sessions),
            "subscriptions": broker.subscription_count,
            "retained_messages": len(broker.retained),
            "cluster": self.engine.cluster.status(),
            "streams": self.engine.status(),
            "routed": self.engine.interest.status(),
            "counters": broker.stats.as_dict(),
        }

    def uptime_s(self) -> int:
        return int(self._loop.time() - self.started_s)

    # ------------------------------------------------------------------------------------- wiring

    async def _open(self, name: str, address: Address | None, make: Callable[[str, bool], Any]) -> None:
        if address is None:
            return
        context = self._context(name)
        # A balancer that passes TLS through sends its header before TLS begins, where only it and the
        # kernel could read it: so the header is for the plain listeners.
        is_behind_proxy = self.config.listeners.proxy_protocol and context is None
        output_bytes_max = self.config.limits.output_buffer_bytes_max

        tuned = Tuned(partial(make, name, is_behind_proxy), output_bytes_max)
        listener, self.ports[name] = await self._surroundings.listen(
            address,
            lambda: tuned,
            self.descriptors,
            context=context,
            handshake_s=self.config.limits.connect_deadline_ms / 1000,
            is_shared=self.config.listeners.shared,
            turn=self._turn,
        )
        self._listeners.append(listener)

    def _new_connection(self, listener: str) -> MqttConnection:
        if self._is_idle and self._timer is not None:
            # What its client acknowledges is written ten times a second [rule 8].
            self._is_idle = False
            self.broker.wall_us = self.wall_us()
            self._timer.cancel()
            self._tick_due_s = self._loop.time() + _TICK_S
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        return MqttConnection(self.door, listener)

    def _tcp_connection(self, listener: str, is_behind_proxy: bool) -> Any:
        connection = self._new_connection(listener)
        return self._behind_proxy(connection, connection) if is_behind_proxy else connection

    def _websocket_connection(self, listener: str, is_behind_proxy: bool) -> Any:
        # Loaded where there is such a door; `_open_doors` does it before the node serves.
        from millrace.node.doors.websocket import WebSocketAdapter

        connection = self._new_connection(listener)
        origins = frozenset(o.strip() for o in self.config.listeners.ws_origins.split(",") if o.strip())
        is_secure = listener in _OVER_TLS
        adapter = WebSocketAdapter(self.door, connection, origins, self._hosts, is_secure=is_secure)
        return self._behind_proxy(adapter, connection) if is_behind_proxy else adapter

    def _text_connection(self, listener: str, is_behind_proxy: bool) -> Any:
        connection = self._new_connection(listener)
        limit = self.config.limits.packet_bytes_max
        adapter = TextAdapter(self.door, connection, limit, partial(text_queue.answer, self))
        return self._behind_proxy(adapter, connection) if is_behind_proxy else adapter

    def _behind_proxy(self, outer: Any, connection: MqttConnection) -> Any:
        quotas = self.door.quotas
        quotas.will_be_named(connection)

        def set_peer(source: tuple[str, int]) -> None:
            connection.peer = source
            if not quotas.named(connection, source):
                connection.fail(Reason.QUOTA_EXCEEDED, "too many connections of this address")

        return ProxyHeader(outer, set_peer)

    # -------------------------------------------------------------------------------------- clock

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _flush(self) -> None:
        """The end of a turn."""
        self.engine.cut()
        self.door.flush()
        if self.engine.traces is not None:
            self.engine.traces.flushed()

    def _on_disk_failure(self, error: StorageError) -> None:
        """What is on disk is not known any more: nothing may be acknowledged after this."""
        self.events.record("storage", "error", f"the node stops: {error}")
        log.critical("the node stops: %s", error)
        self.failure = error
        self.stopping.set()

    def _tick(self) -> None:
        now_s = self._loop.time()
        if self._tick_due_s:
            # How much later than asked for the loop comes round.
            self.admin.add_lag(max(0.0, now_s - self._tick_due_s) * 1000)
        broker = self.broker
        self._is_idle = not (self.door.connections or broker.touched or broker.journal.operations)
        delay_s = _IDLE_TICK_S if self._is_idle else _TICK_S
        self._tick_due_s = now_s + delay_s
        self._timer = self._loop.call_later(delay_s, self._tick)
        self.broker.wall_us = self.wall_us()
        self.broker.tick(self._now_ms())
        # QoS 1 cursors: a crash repeats at most what was acknowledged since [rule 8].
        self.broker.checkpoint()
        if now_s > self._sweep_due_s - _TICK_S / 2:
            self._sweep_due_s = now_s + _SWEEP_S
            self.door.sweep()
            self._renewal.look()
            if (jump := self.wall_us.look()) is not None:
                self.events.record("node", "warning", jump)
            if reached := self.broker.limits_reached.take_news():
                log.warning(
                    "limits reached: %s", ", ".join(f"{name} {n} times" for name, n in reached.items())
                )
            # A token that expired; everything else is noticed when it happens.
            self._end_stale_logins(by_time=True)
            if self._http is not None:
                self._http.sweep()
            self.engine.tick()
            if not self.admin.readiness.is_removed:
                self.admin.readiness.waits.look()
            self.engine.interest.note_expired(self.broker.retained.expire_some(self._now_ms()))
        interval_s = self.config.mqtt.sys_interval_s
        if interval_s and self._loop.time() >= self._sys_due_s:
            self._sys_due_s = self._loop.time() + interval_s
            values = sys_topics.figures(self.broker, self.config.node.id, __version__, self.uptime_s())
            sys_topics.publish(self.broker, values, self._now_ms())
        if self.broker.has_work:
            self._turn.wake()

    def publish_sys(self, values: dict[str, str]) -> None:
        """Retained messages of this node's own, below `$SYS`; an empty one forgets."""
        sys_topics.publish(self.broker, values, self._now_ms())
        self._turn.wake()
