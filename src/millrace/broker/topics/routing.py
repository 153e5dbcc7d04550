"""From a topic to everyone who gets its messages, remembered until a subscription changes it.

`Receivers` are sessions for whom the bytes of a delivery are identical: same version, QoS, retain flag and
subscription identifiers [rule 5]. A `Route` is a list of them. Routes with the same receivers are
one object, so that neighbouring packets of different topics join into one span in the scan.

Every access class (`Principal`) has its own table, topic bytes -> Route, because the right to publish is
part of the answer [rule 30]. Where there are many tables, `_holders` knows which of them hold a topic, so a
subscription change touches only the topics it concerns; a few are looked through, and a topic costs the
memory of one entry.
"""

from collections.abc import Iterable
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from millrace.broker.access import Principal
from millrace.broker.groups.share_group import ShareGroup
from millrace.broker.messages.intake import Intake, IntakeTable, NoIntakes
from millrace.broker.sessions.session import Session
from millrace.broker.topics.filters import levels_match, matches
from millrace.broker.topics.subscription_index import Holder, Node, SubscriptionIndex
from millrace.broker.topics.trees import SHARE_PREFIX, has_wildcard, split_share
from millrace.kernels import new_topics
from millrace.kernels.pure import varint
from millrace.limits import ROUTES_CACHED_BYTES_MAX, Limits
from millrace.types import SubscriptionOptions

_IDENTIFIER = 0x0B
# How often a remembered topic may be compared with a changed filter before it is cheaper to find it again.
_COMPARISONS_PER_TOPIC = 8
# Topics that one changed filter is compared with: about half a millisecond of work.
_COMPARED_MAX = 500
# Access classes up to which no more is kept of a topic than its routes.
_TABLES_FEW = 4
# New topics that are looked up at once, of a chunk that may have thousands.
_TOPICS_LEARNT_MAX = 500
# Different sets of filters that topics match. Beyond it they are looked up again.
_MATCHES_MAX = 10_000


class Receivers:
    """Sessions that get the same bytes."""

    __slots__ = ("extra", "individual", "qos", "retain_as_published", "sessions", "v5")

    def __init__(self, v5: bool, qos: int, retain_as_published: bool, extra: bytes, individual: bool) -> None:
        self.v5 = v5
        self.qos = qos
        self.retain_as_published = retain_as_published
        # Subscription identifiers, encoded as properties.
        self.extra = extra
        # Bytes differ from session to session after all: aliases, a maximum packet size, no local.
        self.individual = individual
        self.sessions: list[Session] = []


class Route:
    """Where the messages of a topic go. `plain[v5]` lists sessions that take QoS 0 packets of that version
    untouched; `rest[v5]` the receivers for which they must be rewritten."""

    __slots__ = (
        "__weakref__",
        "allowed",
        "direct",
        "far_groups",
        "groups",
        "has_receivers",
        "intake",
        "lone",
        "no_local",
        "plain",
        "receivers",
        "remotes",
        "rest",
        "simple",
    )

    def __init__(
        self,
        receivers: list[Receivers],
        groups: list[ShareGroup],
        no_local: frozenset[Session],
        allowed: bool,
        intake: Intake | None,
        remotes: tuple[str, ...] = (),
        far_groups: tuple[tuple[str, tuple[str, ...]], ...] = (),
    ) -> None:
        # Shared groups without a member here, each with the nodes that have one.
        self.far_groups = far_groups
        # Other nodes with clients that want these topics: what no log carries there is sent to them.
        self.remotes = remotes
        self.receivers = receivers
        self.groups = groups
        self.no_local = no_local
        self.allowed = allowed
        # The log that keeps these topics, where there is one.
        self.intake = intake
        self.plain: tuple[list[Session], list[Session]] = ([], [])
        self.rest: tuple[list[Receivers], list[Receivers]] = ([], [])
        for r in receivers:
            for version in (0, 1):
                if r.v5 == bool(version) and not r.extra and not r.individual:
                    self.plain[version].extend(r.sessions)
                else:
                    self.rest[version].append(r)
        # True where QoS 0 packets need nothing but `plain`, by version of the publisher.
        self.simple = tuple(
            allowed and not (groups or remotes or far_groups or self.rest[version]) for version in (0, 1)
        )
        # The one session that gets QoS 0 packets of that version, where it is but one and no log wants them.
        keeps_all = intake is not None and intake.captures_all
        self.lone = tuple(
            self.plain[version][0]
            if self.simple[version] and not keeps_all and len(self.plain[version]) == 1
            else None
            for version in (0, 1)
        )
        # The one class of receivers of QoS 1 packets, where it is but one and needs no closer look.
        only = receivers[0] if len(receivers) == 1 else None
        is_direct = allowed and not (groups or remotes or far_groups) and intake is None
        self.direct = only if is_direct and only is not None and only.qos and not only.individual else None
        self.has_receivers = bool(receivers or groups or remotes or far_groups)


DENIED = Route([], [], frozenset(), False, None)

Table = dict[bytes, Route]

Hit = Holder[Session] | Node[Session, ShareGroup]
"""What a filter that takes a topic leads to."""

Remotes = tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]
"""Nodes whose clients want a topic, and groups with the nodes that have a member of each."""


class RemoteInterest(Protocol):
    """What clients of other nodes want, as the router asks for it."""

    def wanted_by(self, topic: str) -> Remotes: ...


class _NoRemotes:
    """There are no other nodes."""

    def wanted_by(self, topic: str) -> Remotes:
        return (), ()


def merge(subscriptions: Iterable[SubscriptionOptions]) -> tuple[int, bool, bytes]:
    """Overlapping subscriptions of one session: one copy, the highest QoS, all identifiers (3.3.4)."""
    qos, retain, ids = 0, False, []
    for s in subscriptions:
        qos = max(qos, s.qos)
        retain = retain or s.retain_as_published
        if s.identifier is not None:
            ids.append(s.identifier)
    return qos, retain, b"".join(bytes((_IDENTIFIER,)) + varint(i) for i in sorted(set(ids)))


def _subscribers(hit: Hit) -> Iterable[tuple[Session, SubscriptionOptions]]:
    return ((hit.subscriber, hit.options),) if isinstance(hit, Holder) else hit.subscribers.items()


def taking(session: Session, topic: str) -> list[tuple[str, SubscriptionOptions]]:
    """The plain subscriptions of a session that take a topic; shared ones have their own cursor."""
    own = session.subscriptions.items()
    return [one for one in own if not one[0].startswith(SHARE_PREFIX) and matches(one[0], topic)]


class Router:
    """Routes are found anew rather than mended: a topic costs a few microseconds to find again, so what must
    be bounded is the work of forgetting. A filter without wildcards concerns one topic. One with wildcards is
    compared with the topics remembered where they are few, and no more than a few times with each; else all
    routes are forgotten at once."""

    def __init__(self, cached_max: int, cached_bytes_max: int = ROUTES_CACHED_BYTES_MAX) -> None:
        self.index: SubscriptionIndex[Session, ShareGroup] = SubscriptionIndex()
        self._cached_max = cached_max
        self._cached_bytes_max = cached_bytes_max
        # The tables that hold a topic: the one, or a list where there are several. None while there are so
        # few tables that each is asked.
        self._holders: dict[bytes, Table | list[Table]] | None = None
        # Entries of all tables together, and the bytes of their topics, which the tables share.
        self._remembered = self._held_bytes = 0
        # Comparisons that topics remembered since have paid for.
        self._comparisons = 0
        self._tables: WeakKeyDictionary[Principal, Table] = WeakKeyDictionary()
        self._routes: WeakValueDictionary[tuple[object, ...], Route] = WeakValueDictionary()
        # Routes by what their topics match, where nothing else counts. Forgotten with every change.
        self._by_match: dict[tuple[object, ...], Route] = {}
        self._deliveries: Table = {}
        # Raised with every change: what was routed before one and waits for its commit is routed again.
        self.generation = 0
        # Both are the node's to set, and after any change in them routes must be forgotten.
        self.intakes: IntakeTable = NoIntakes()
        self.interest: RemoteInterest = _NoRemotes()

    def table(self, principal: Principal) -> Table:
        """The routes known for this access class. Connections hold the dict itself and scan with it."""
        table = self._tables.get(principal)
        if table is None:
            table = self._tables[principal] = {}
            if self._holders is None and len(self._tables) > _TABLES_FEW:
                self.forget_all()
                self._holders = {}
        return table

    def resolve(self, principal: Principal, table: Table, topic: str) -> Route:
        """Find the route of a topic for this access class and remember it in its table."""
        key = topic.encode()
        if not principal.may_publish(topic):
            route = DENIED
        else:
            # Where messages of other nodes were delivered before their publishers came here, it is known.
            route = self._deliveries.get(key) or self._intern(topic)
        self._remember(table, key, route)
        return route

    def learn(self, principal: Principal, table: Table, data: bytes, pos: int, limits: Limits) -> int:
        """As `resolve`, for the topics of packets from `pos` on that the table does not have, where the first
        is such a one; see `new_topics`. Returns how many there were; the first one is known then."""
        topics = new_topics(
            data, pos, table, limits.topic_levels_max, limits.topic_bytes_max, _TOPICS_LEARNT_MAX
        )
        for topic in topics:
            self.resolve(principal, table, topic)
        if topics and topics[0].encode() not in table:
            # All were forgotten while these were learnt.
            self.resolve(principal, table, topics[0])
        return len(topics)

    def _remember(self, table: Table, key: bytes, route: Route) -> None:
        if key not in table:
            if self._is_full() and (self._holders is not None or self._is_full_of_live()):
                self.forget_all()
            self._remembered += 1
            if self._holders is None:
                self._held_bytes += len(key)
                self._comparisons += _COMPARISONS_PER_TOPIC
            else:
                self._hold(self._holders, table, key)
        table[key] = route

    def _is_full(self) -> bool:
        return self._remembered >= self._cached_max or self._held_bytes >= self._cached_bytes_max

    def _is_full_of_live(self) -> bool:
        """As `_is_full`, without the tables of access classes that are gone."""
        tables = self._all_tables()
        remembered = sum(map(len, tables))
        if remembered < self._remembered:
            self._remembered = remembered
            self._held_bytes = sum(sum(map(len, table)) for table in tables)
        return self._is_full()

    def _hold(self, holders: dict[bytes, Table | list[Table]], table: Table, key: bytes) -> None:
        held = holders.get(key)
        if held is None:
            holders[key] = table
            self._held_bytes += len(key)
            self._comparisons += _COMPARISONS_PER_TOPIC
        elif isinstance(held, dict):
            holders[key] = [held, table]
        else:
            if len(held) > 2 * len(self._tables) + 1:
                self._drop_dead(held)
            held.append(table)

    def _drop_dead(self, held: list[Table]) -> None:
        """Leave out the tables of access classes that are gone."""
        live = {id(known) for known in self._all_tables()}
        kept = [holder for holder in held if id(holder) in live]
        self._remembered -= len(held) - len(kept)
        held[:] = kept

    @property
    def deliveries(self) -> Table:
        """Routes of messages that came in at another node, for the scan; see `delivery_route`."""
        return self._deliveries

    def delivery_route(self, topic: bytes) -> Route:
        """The route of messages that came in at another node, where the right to publish was checked."""
        route = self._deliveries.get(topic)
        if route is None:
            route = self._intern(topic.decode())
            self._remember(self._deliveries, topic, route)
        return route

    def learn_deliveries(self, data: bytes, pos: int) -> None:
        """As `delivery_route`, for the topics of packets from `pos` on that are not known, as far as they are
        plain: a node that takes over from another meets all its topics in one moment."""
        unbounded = len(data)
        for topic in new_topics(data, pos, self._deliveries, unbounded, unbounded, _TOPICS_LEARNT_MAX):
            self.delivery_route(topic.encode())

    def route(self, topic: str) -> Route:
        """The route for a message of the broker itself: no access class, nothing remembered."""
        return self._intern(topic)

    def changed(self, filters: Iterable[str]) -> None:
        """Subscriptions to these filters changed: forget the routes of the topics they take."""
        self.generation += 1
        self._by_match.clear()
        for filter in filters:
            if not self._remembered:
                return
            self._forget_taken(split_share(filter)[1])

    def _forget_taken(self, inner: str) -> None:
        """Forget the topics that this filter takes."""
        if not has_wildcard(inner):
            self._forget(inner.encode())
            return
        count = self._remembered if self._holders is None else len(self._holders)
        if count > min(self._comparisons, _COMPARED_MAX):
            self.forget_all()
            return
        self._comparisons -= count
        levels = inner.split("/")
        for keys in self._all_tables() if self._holders is None else (self._holders,):
            for key in [key for key in keys if levels_match(levels, key.decode().split("/"))]:
                self._forget(key)

    def _forget(self, key: bytes) -> None:
        if self._holders is None:
            for table in self._all_tables():
                if table.pop(key, None) is not None:
                    self._remembered -= 1
                    self._held_bytes -= len(key)
            return
        held = self._holders.pop(key, None)
        if held is None:
            return
        tables = (held,) if isinstance(held, dict) else held
        self._held_bytes -= len(key)
        self._remembered -= len(tables)
        for table in tables:
            table.pop(key, None)

    def _all_tables(self) -> tuple[Table, ...]:
        return (self._deliveries, *self._tables.values())

    def forget_all(self) -> None:
        """Forget every route (access rules or streams changed, or too many are remembered)."""
        self.generation += 1
        for table in self._all_tables():
            table.clear()
        self._by_match.clear()
        if self._holders is not None:
            self._holders.clear()
        self._remembered = self._held_bytes = self._comparisons = 0

    def matches(
        self, topic: str
    ) -> tuple[dict[Session, list[tuple[str, SubscriptionOptions]]], list[ShareGroup]]:
        """Plain subscriptions per session and shared groups that take this topic."""
        found, groups = self._receivers(topic, self.index.match(topic))
        return {session: taking(session, topic) for session in found}, groups

    @staticmethod
    def _receivers(
        topic: str, hits: list[Hit]
    ) -> tuple[dict[Session, list[SubscriptionOptions]], list[ShareGroup]]:
        found: dict[Session, list[SubscriptionOptions]] = {}
        groups: list[ShareGroup] = []
        for hit in hits:
            for session, options in _subscribers(hit):
                if session.principal.may_receive(topic):
                    found.setdefault(session, []).append(options)
            if isinstance(hit, Node) and hit.groups:
                groups.extend(hit.groups.values())
        return found, groups

    def _intern(self, topic: str) -> Route:
        hits = self.index.match(topic)
        intake = self.intakes.find(topic)
        remotes, elsewhere = self.interest.wanted_by(topic)
        match = (*hits, intake, remotes, elsewhere)
        route = self._by_match.get(match)
        if route is None:
            route, is_same_for_all = self._made(topic, hits, intake, remotes, elsewhere)
            if is_same_for_all:
                if len(self._by_match) >= _MATCHES_MAX:
                    self._by_match.clear()
                self._by_match[match] = route
        return route

    def _made(
        self,
        topic: str,
        hits: list[Hit],
        intake: Intake | None,
        remotes: tuple[str, ...],
        elsewhere: tuple[tuple[str, tuple[str, ...]], ...],
    ) -> tuple[Route, bool]:
        """A route of these receivers, and whether it is that of every topic with the same matches."""
        found, groups = self._receivers(topic, hits)
        here = {group.key for group in groups}
        far_groups = tuple(found for found in elsewhere if found[0] not in here)
        classes: dict[tuple[bool, int, bool, bytes, bool], Receivers] = {}
        no_local: set[Session] = set()
        for session, subscriptions in found.items():
            qos, retain, extra = merge(subscriptions)
            own = any(s.no_local for s in subscriptions)
            if own:
                no_local.add(session)
            if not session.v5:
                extra = b""
            individual = bool(own or session.alias_max or session.packet_bytes_max)
            key = (session.v5, qos, retain, extra, individual)
            if key not in classes:
                classes[key] = Receivers(*key)
            classes[key].sessions.append(session)
        # No local asks which of the session's subscriptions took this very topic, so it is not shared.
        if no_local:
            receivers = list(classes.values())
            return Route(receivers, groups, frozenset(no_local), True, intake, remotes, far_groups), False
        identity = (
            tuple((key, tuple(r.sessions)) for key, r in sorted(classes.items())),
            tuple(groups),
            intake,
            remotes,
            far_groups,
        )
        route = self._routes.get(identity)
        if route is None:
            route = Route(list(classes.values()), groups, frozenset(), True, intake, remotes, far_groups)
            self._routes[identity] = route
        # Whoever has rules may get one of these topics and not another.
        is_open = all(session.principal.unrestricted for hit in hits for session, _ in _subscribers(hit))
        return route, is_open
