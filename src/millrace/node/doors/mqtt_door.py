"""What all MQTT connections of a node share: the broker, the clock, and the one flush of each loop turn.

A read of any connection begins the turn; at its end everything that gathered for every client leaves, one
write per connection. Connections that used up their part of a turn, or that the logs cannot follow, wait
here and go on in a later one.
"""

import logging
from collections.abc import Callable
from random import Random
from typing import Any, Protocol
from weakref import WeakValueDictionary

from millrace.broker.machine import Broker
from millrace.broker.sessions.session import Session
from millrace.errors import MillraceError
from millrace.limits import UNCOMMITTED_BYTES_PAUSE
from millrace.node.access.identity import Identity
from millrace.node.admin.events import NoEvents
from millrace.node.config import Mqtt
from millrace.node.doors.client_events import ClientEvents
from millrace.node.doors.mqtt_exchange import Methods
from millrace.node.doors.output import OutputBudget
from millrace.node.doors.quotas import Quotas
from millrace.node.seldom import Seldom
from millrace.reasons import Reason
from millrace.wire.mqtt.packets import Connect

log = logging.getLogger("millrace.door")
# Of its connections.
logging.getLogger("millrace.mqtt").addFilter(Seldom())


# Connections that one turn of the loop closes.
_EXPIRED_AT_ONCE = 32
# What one turn of the loop takes in before it turns to the others, counted in messages at QoS 1 and 2.
_TURN_MESSAGES_MAX = 10_000
# A packet that the scan leaves to the codec costs as much as so many that it takes, and so do a frame of
# WebSocket and a piece of text.
PACKET_COST = 25


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Connection(Protocol):
    """What the door and the server ask of a connection: `mqtt_connection.MqttConnection` is one."""

    peer: Any
    listener: str
    transport: Any
    username: str | None
    identity: Identity | None
    """Who the client proved to be; None before."""
    login: Cancellable | None
    """The check of its password that is under way."""
    session: Session | None

    def write(self, data: bytes) -> None: ...

    def end_output(self) -> None: ...

    def unpark(self) -> None: ...

    def is_late(self, now_ms: int) -> bool: ...

    def expire(self) -> None: ...

    def reassign(self) -> None: ...

    def fail(self, reason: Reason, detail: str) -> None: ...

    def supersede(self) -> None: ...


class Parked(Protocol):
    """What waits for a later turn of the loop with what it has read."""

    def unpark(self) -> None:
        """Go on. Where this turn is used up already, it puts itself behind the others again."""


class Decide(Protocol):
    """What an authenticator calls with its decision."""

    def __call__(self, allowed: bool, /, *, is_busy: bool = False, why: str = "") -> None:
        """`is_busy`: nothing was decided, because too many others wait. `why`: what to tell a client that
        came without a user name."""


class MqttDoor:
    """What all MQTT connections of a node share."""

    def __init__(
        self,
        broker: Broker,
        settings: Mqtt,
        *,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        authenticate: Callable[[Connection, Connect, Decide], None],
        random: Random,
        methods: Methods | None = None,
    ) -> None:
        self.broker = broker
        self.settings = settings
        self.limits = broker.limits
        self.output = OutputBudget(broker.limits)
        self.quotas = Quotas(broker.limits, broker.limits_reached)
        self.now_ms = now_ms
        # Called when sessions have output: the node then calls `flush` once per loop turn.
        self.wake = wake
        self.authenticate = authenticate
        self.random = random
        self.methods = methods or {}
        # Tells people who comes and goes. Set by the node.
        self.events = ClientEvents(NoEvents())
        # A dict for its order: who came first is swept first, the same in every run.
        self.connections: dict[Connection, None] = {}
        # A client is connected here: other nodes end theirs of it. Set by the node.
        self.tell_others: Callable[[Session], None] = _tell_nobody
        # Calls back once other nodes send what clients here want. Set by the node.
        self.when_known: Callable[[Callable[[], None]], None] = _known_to_all
        # Calls back once what a client left under way at another node is here. Set by the node.
        self.fetch_session: Callable[[str, str | None, Callable[[], None]], None] = _nothing_elsewhere
        # A session is open and not yet resumed: give it what came along. Set by the node.
        self.session_opened: Callable[[Session, bool], None] = _nothing_came
        # The connection by which a client is being let in, while its record is written.
        self.opening: WeakValueDictionary[str, Connection] = WeakValueDictionary()
        # Calls back once all nodes know of this node's members of these groups. Set by the node.
        self.when_shared: Callable[[list[str], Callable[[], None]], None] = _at_once
        # Why nobody is served here any more.
        self.turned_away: tuple[Reason, str] | None = None
        # Where clients find other nodes (Server Reference, 4.11); empty if nowhere. Set by the node.
        self.elsewhere: Callable[[], str] = str
        # Connections whose further input waits for a later turn, and messages taken in this one.
        self.parked: list[Parked] = []
        # Those that have nothing left in this second.
        self.paced: list[Parked] = []
        # Those that were silent for too long and are not closed yet.
        self.late: list[Connection] = []
        # Whether a flush is due at the end of this loop turn, and the time at which the turn began.
        self.awake = False
        self.turn_ms = 0
        self.taken = 0

    def begin_turn(self) -> None:
        """The first read of a loop turn: what it and the others bring leaves at the end of the turn."""
        self.awake = True
        self.turn_ms = self.now_ms()
        self.wake()

    def flush(self) -> None:
        """Write what gathered, one write per connection."""
        self.awake = False
        if self.late:
            self._expire_some()
        broker = self.broker
        outbound = broker.outbound
        if broker.replay.ready:
            broker.replay.turn(self.now_ms())
        dirty, outbound.dirty = outbound.dirty, []
        for session in dirty:
            session.dirty = False
            out = session.out
            if not out:
                continue
            session.out_bytes = 0
            connection = session.connection
            if connection is None:
                session.out = []
                continue
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            session.traffic.bytes_sent += len(data)
            try:
                connection.write(data)
            except MillraceError as error:
                # Those that follow in the list are marked as being in it: nobody would put them there again.
                log.warning("closing %s: what is for it cannot be written: %s", connection.peer, error)
                connection.end_output()
                connection.transport.abort()
                continue
            if session.queue or session.lag or session.resending:
                outbound.pump(session, self.now_ms())
        self.taken = 0
        if self.parked:
            parked, self.parked = self.parked, []
            for connection in parked:
                connection.unpark()
            if self.parked and not self.is_overloaded:
                self.wake()
        if broker.has_work:
            self.wake()

    @property
    def is_used_up(self) -> bool:
        """Whether this turn of the loop took in as much as it should [rule 33]."""
        return self.taken > _TURN_MESSAGES_MAX

    @property
    def is_overloaded(self) -> bool:
        """Whether the logs are behind: nothing more is read for them [rule 1]."""
        return self.broker.inbound.uncommitted_bytes > UNCOMMITTED_BYTES_PAUSE

    def turn_away(self, reason: Reason, detail: str) -> None:
        """End all connections, and let nobody in any more. Wills are not published: this node serves nobody
        any more, and its clients are not gone (MQTT 5, 3.1.2.5)."""
        # 3.2.2.2 has no "shutting down" for those whose CONNECT is not answered yet.
        refusal = Reason.SERVER_UNAVAILABLE if reason is Reason.SERVER_SHUTTING_DOWN else reason
        self.turned_away = refusal, detail
        for connection in list(self.connections):
            if connection.session is not None:
                connection.session.will = None
            connection.fail(reason, detail)

    def sweep(self) -> None:
        """Close connections that were silent for too long. Called about once a second."""
        self.quotas.begin_second()
        paced, self.paced = self.paced, []
        self.parked += paced
        if self.parked:
            self.wake()
        now_ms = self.now_ms()
        self.late = [connection for connection in self.connections if connection.is_late(now_ms)]
        self._expire_some()

    def _expire_some(self) -> None:
        """Close some of those; thousands at once would keep everybody else waiting [rule 33]."""
        now_ms = self.now_ms()
        some, self.late = self.late[:_EXPIRED_AT_ONCE], self.late[_EXPIRED_AT_ONCE:]
        for connection in some:
            if connection in self.connections and connection.is_late(now_ms):
                connection.expire()
        if self.late:
            self.wake()

    def assigned_id(self) -> str:
        return f"auto-{self.random.getrandbits(64):016x}"


def _tell_nobody(session: Session) -> None:
    """There are no other nodes."""


def _known_to_all(then: Callable[[], None]) -> None:
    """There are no other nodes."""
    then()


def _nothing_elsewhere(client_id: str, username: str | None, then: Callable[[], None]) -> None:
    """There are no other nodes."""
    then()


def _nothing_came(session: Session, is_present: bool) -> None:
    """There are no other nodes."""


def _at_once(groups: list[str], then: Callable[[], None]) -> None:
    """There are no other nodes."""
    then()
