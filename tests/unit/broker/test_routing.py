"""Cached routes are right at every moment: after any change a publish reaches exactly who should get it."""

from random import Random

import pytest

from millrace.broker.access import AccessRules, Action, Effect, Principal, Rule
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.session import Session
from millrace.broker.topics.routing import Table
from millrace.limits import ROUTES_CACHED_BYTES_MAX, Limits
from millrace.reasons import Reason
from millrace.types import Subscription
from millrace.wire.mqtt.codec import encode_publish
from unit.broker.test_topic import takes

TOPICS = ("a", "b", "a/b", "a/b/c", "b/a", "$x/a")
FILTERS = ("a", "a/#", "+/b", "#", "a/+", "+/+/c", "b/#", "$share/g/a", "$share/g/#", "$share/h/a/+")
USERS = (None, "u")
RULES = (
    Rule(user="u", effect=Effect.DENY, action=Action.PUBLISH, filter="b/#"),
    Rule(user="*", effect=Effect.DENY, action=Action.SUBSCRIBE, filter="a/b/c"),
    Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="#"),
)


def request(
    client_id: str, principal: Principal, *, v5: bool = True, clean_start: bool = True
) -> ConnectRequest:
    return ConnectRequest(
        client_id=client_id,
        clean_start=clean_start,
        expiry_s=0 if clean_start else 1000,
        v5=v5,
        window=1000,
        packet_bytes_max=0,
        alias_max=0,
        principal=principal,
        will=None,
    )


class Exchange:
    """A broker with sessions that are always connected, and a record of who subscribed to what."""

    def __init__(
        self, random: Random, rules: tuple[Rule, ...] = RULES, routes_cached_max: int = 1_000
    ) -> None:
        self.random = random
        self.rules = AccessRules(rules)
        self.broker = Broker(Limits(routes_cached_max=routes_cached_max), self.rules)
        self.sessions: list[Session] = []
        for number in range(5):
            principal = self.rules.principal(random.choice(USERS), f"c{number}")
            session, _, _ = self.broker.connect(
                request(f"c{number}", principal, v5=number % 2 == 0), object(), 0
            )
            self.sessions.append(session)

    def change(self) -> None:
        session = self.random.choice(self.sessions)
        filter = self.random.choice(FILTERS)
        if self.random.random() < 0.6:
            self.broker.subscribe(session, Subscription(filter=filter, qos=self.random.randint(0, 2)))
        else:
            self.broker.unsubscribe(session, filter)

    def expected(self, publisher: Session, topic: str) -> tuple[set[Session], set[tuple[str, str]]]:
        """Who gets it, by walking every subscription of every session."""
        if not publisher.principal.may_publish(topic):
            return set(), set()
        plain: set[Session] = set()
        groups: set[tuple[str, str]] = set()
        for session in self.sessions:
            for filter in session.subscriptions:
                _, name, inner = filter.split("/", 2) if filter.startswith("$share/") else ("", "", filter)
                if not takes(inner, topic):
                    continue
                if name:
                    groups.add((name, inner))
                elif session.principal.may_receive(topic):
                    plain.add(session)
        return plain, groups

    def routed(self, publisher: Session, topic: str) -> tuple[set[Session], set[tuple[str, str]]]:
        """Who gets it, by the route that the fast path would use."""
        table = self.broker.router.table(publisher.principal)
        route = table.get(topic.encode()) or self.broker.resolve(publisher, topic)
        sessions = [session for receivers in route.receivers for session in receivers.sessions]
        assert len(sessions) == len(set(sessions)), "a session stands on a route twice"
        for version in (0, 1):
            split = [*route.plain[version], *(s for r in route.rest[version] for s in r.sessions)]
            assert sorted(map(id, split)) == sorted(map(id, sessions))
            assert route.simple[version] == (route.allowed and not route.groups and not route.rest[version])
        return set(sessions), {(group.name, group.filter) for group in route.groups}


@pytest.mark.parametrize("cached_max", [1_000, 2])
@pytest.mark.parametrize("seed", range(6))
def test_cached_routes_equal_a_walk_over_all_subscriptions(seed: int, cached_max: int) -> None:
    """Random changes between publishes, with room for all routes and with room for two."""
    exchange = Exchange(Random(seed), routes_cached_max=cached_max)
    for _ in range(400):
        if exchange.random.random() < 0.4:
            exchange.change()
        publisher, topic = exchange.random.choice(exchange.sessions), exchange.random.choice(TOPICS)
        assert exchange.routed(publisher, topic) == exchange.expected(publisher, topic), (seed, topic)


@pytest.mark.parametrize("seed", range(3))
def test_routes_follow_a_session_that_comes_back_as_somebody_else(seed: int) -> None:
    """Version and user name change at a reconnect, the subscriptions stay."""
    random = Random(seed)
    exchange = Exchange(random)
    for session in exchange.sessions:
        session.expiry_s = 1000
    for _ in range(150):
        exchange.change()
        position = random.randrange(5)
        session = exchange.sessions[position]
        principal = exchange.rules.principal(random.choice(USERS), session.client_id)
        back, present, _ = exchange.broker.connect(
            request(session.client_id, principal, v5=random.random() < 0.5, clean_start=False), object(), 0
        )
        assert present and back is session
        for topic in TOPICS:
            publisher = random.choice(exchange.sessions)
            assert exchange.routed(publisher, topic) == exchange.expected(publisher, topic)


def test_topics_with_the_same_receivers_share_one_route() -> None:
    """Packets of different topics join into one span only if their routes are the same object."""
    exchange = Exchange(Random(0), rules=())
    one, two = exchange.sessions[:2]
    exchange.broker.subscribe(one, Subscription(filter="a/#"))
    assert exchange.broker.resolve(two, "a/b") is exchange.broker.resolve(two, "a/c")
    exchange.broker.subscribe(one, Subscription(filter="a/b", qos=1))
    assert exchange.broker.resolve(two, "a/b") is not exchange.broker.resolve(two, "a/c")


def test_a_change_forgets_only_the_topics_it_concerns() -> None:
    exchange = Exchange(Random(0), rules=())
    one = exchange.sessions[0]
    table = exchange.broker.router.table(one.principal)
    exchange.broker.resolve(one, "a/b")
    exchange.broker.resolve(one, "c")
    exchange.broker.subscribe(one, Subscription(filter="a/+"))
    assert set(table) == {b"c"}


def _entries(tables: list[Table]) -> int:
    return sum(map(len, tables))


def test_the_cache_is_bounded_over_all_access_classes() -> None:
    """A class of its own for each client (%c) must not multiply the bound."""
    exchange = Exchange(
        Random(0),
        rules=(Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="%c/#"),),
        routes_cached_max=50,
    )
    tables = [exchange.broker.router.table(session.principal) for session in exchange.sessions]
    assert len({id(table) for table in tables}) == 5
    for number in range(200):
        for session in exchange.sessions:
            exchange.broker.resolve(session, f"a/{number}")
            assert _entries(tables) <= 50


def test_access_classes_that_are_gone_leave_nothing_behind() -> None:
    """Clients with classes of their own come, publish to one topic and go: the cache does not grow."""
    rules = AccessRules((Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="%c/#"),))
    broker = Broker(Limits(), rules)
    staying = [rules.principal(None, f"stays{number}") for number in range(10)]
    for principal in staying:
        broker.router.table(principal)
    for number in range(300):
        name = f"c{number}"
        session, _, _ = broker.connect(request(name, rules.principal(None, name)), object(), 0)
        broker.resolve(session, "everyone")
        broker.disconnect(session, 0, will=False)
    assert broker.router._holders is not None, "there are many tables"
    assert len(broker.router._holders[b"everyone"]) < 30


def test_of_few_access_classes_those_that_are_gone_do_not_fill_the_cache() -> None:
    """Clients with classes of their own come, publish and go: the route of the one that stays is kept."""
    rules = AccessRules((Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="%c/#"),))
    broker = Broker(Limits(routes_cached_max=20), rules)
    stays, _, _ = broker.connect(request("stays", rules.principal(None, "stays")), object(), 0)
    broker.resolve(stays, "stays/here")
    for number in range(300):
        name = f"c{number}"
        session, _, _ = broker.connect(request(name, rules.principal(None, name)), object(), 0)
        broker.resolve(session, "everyone")
        broker.disconnect(session, 0, will=False)
    assert b"stays/here" in broker.router.table(stays.principal)


def test_long_topics_cost_the_cache_what_they_hold() -> None:
    """A topic may have 64 KiB; the bound on topics alone would let them fill the memory."""
    exchange = Exchange(Random(0), rules=(), routes_cached_max=100_000)
    session = exchange.sessions[0]
    table = exchange.broker.router.table(session.principal)
    for number in range(600):
        exchange.broker.resolve(session, f"{number}/" + "x" * 65_000)
        assert sum(map(len, table)) <= ROUTES_CACHED_BYTES_MAX + 65_536


def test_a_subscription_costs_no_walk_over_many_topics() -> None:
    """Each topic that is remembered pays for a few comparisons with filters. When they are spent everything
    is forgotten, so a thousand filters cost no more than the topics did."""
    exchange = Exchange(Random(0), rules=(), routes_cached_max=100_000)
    session = exchange.sessions[0]
    router = exchange.broker.router
    for number in range(400):
        exchange.broker.resolve(session, f"{number}/x")
    for number in range(7):
        exchange.broker.subscribe(session, Subscription(filter=f"+/y{number}"))
    assert len(router.table(session.principal)) == 400, "none of these filters concerns a topic"
    for number in range(7, 20):
        exchange.broker.subscribe(session, Subscription(filter=f"+/y{number}"))
    assert not router.table(session.principal)
    for number in range(2_000):
        exchange.broker.resolve(session, f"{number}/x")
    exchange.broker.subscribe(session, Subscription(filter="+/z"))
    assert not router.table(session.principal), "too many to be compared at all"


def test_a_topic_that_may_not_be_published_to_has_a_route_that_says_so() -> None:
    exchange = Exchange(Random(1))
    session = exchange.sessions[0]
    session.principal = exchange.rules.principal("u", "c0")
    assert not exchange.broker.resolve(session, "b/a").allowed
    run = Run(encode_publish(b"b/a", b"x", 0x30, 0, b""), 1, 0, False)
    assert exchange.broker.publish(session, "b/a", run, 0) is Reason.NOT_AUTHORIZED
