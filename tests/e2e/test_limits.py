"""Bounds of one address, one user and one node: whoever runs into one is told or closed, others are served,
and the count is in the metrics."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conformance.mqtt import wire
from e2e.http_calls import call
from e2e.raw_peer import MIB, Peer
from millrace.testing import ThreadedBroker
from waiting import until

OTHER_ADDRESS = "127.0.0.7"


def reached(broker: ThreadedBroker, bound: str) -> int:
    """What the metrics say of a bound."""
    counts: dict[str, int] = broker._broker.server.broker.limits_reached.counts
    return counts.get(bound, 0)


def said(data: bytes) -> int | None:
    """The reason of a CONNACK."""
    return data[3] if data[:1] == b"\x20" else None


class Visitor:
    """A client by its bytes, from any address of this machine."""

    def __init__(self, broker: ThreadedBroker, address: str = "127.0.0.1", door: str = "mqtt") -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", broker.ports[door]), 10, source_address=(address, 0)
        )

    def connect(self, client_id: str, user: str | None = None, **fields: Any) -> int | None:
        """The reason of its CONNACK; None where it is closed without one."""
        named = {} if user is None else {"username": user, "password": "pw"}
        try:
            self.socket.sendall(wire.connect(client_id, **named, **fields))
            return said(self.socket.recv(1_000))
        except ConnectionError:
            return None

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Visitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def visitors() -> Iterator[list[Visitor]]:
    made: list[Visitor] = []
    yield made
    for one in made:
        one.close()


def come(visitors: list[Visitor], broker: ThreadedBroker, *at: str, **more: Any) -> int | None:
    visitors.append(Visitor(broker, *at))
    return visitors[-1].connect(f"c{len(visitors)}", **more)


def test_connections_of_one_address(visitors: list[Visitor]) -> None:
    """HTTP counts as well; a place that becomes free is given again."""
    with ThreadedBroker(limits__address_connections_max=3, listeners__http="127.0.0.1:0") as broker:
        assert [come(visitors, broker) for _ in range(3)] == [0, 0, 0]
        assert come(visitors, broker) is None
        with pytest.raises(OSError):
            call(broker.ports["http"], "GET", "/livez")
        assert come(visitors, broker, OTHER_ADDRESS) == 0
        assert reached(broker, "address_connections") == 2
        visitors[0].close()
        until(lambda: come(visitors, broker) == 0, "the place to be free")


def test_connects_of_one_address_in_a_second(visitors: list[Visitor]) -> None:
    with ThreadedBroker(limits__address_connects_per_s_max=5) as broker:
        answers = [come(visitors, broker) for _ in range(20)]
        assert answers.count(0) >= 5 and answers.count(None) >= 5
        assert come(visitors, broker, OTHER_ADDRESS) == 0
        until(lambda: come(visitors, broker) == 0, "the next second")
        assert reached(broker, "address_connects_per_s") >= 5


def test_connects_of_a_node_in_a_second(visitors: list[Visitor]) -> None:
    with ThreadedBroker(limits__connects_per_s_max=5) as broker:
        answers = [come(visitors, broker, f"127.0.0.{n + 1}") for n in range(20)]
        assert answers.count(None) >= 5
        assert reached(broker, "connects_per_s") >= 5


def test_unfinished_connects_of_one_address(visitors: list[Visitor]) -> None:
    """Whoever connects and says nothing keeps nobody of another address out."""
    with ThreadedBroker(limits__connect_deadline_ms=60_000) as broker:
        quotas = broker._broker.server.door.quotas
        for _ in range(1_030):
            visitors.append(Visitor(broker))
        until(lambda: reached(broker, "address_unfinished_connects") >= 6, "the bound", 30)
        assert come(visitors, broker, OTHER_ADDRESS) == 0
        for one in visitors:
            one.close()
        until(lambda: not quotas._connections and not quotas._unfinished, "all to be forgotten", 30)


def test_unfinished_text_clients_of_one_address(visitors: list[Visitor]) -> None:
    """They may take minutes for their first line, and count from the first moment on."""
    with ThreadedBroker(listeners__text="127.0.0.1:0") as broker:
        quotas = broker._broker.server.door.quotas
        for _ in range(1_030):
            visitors.append(Visitor(broker, door="text"))
        until(lambda: reached(broker, "address_unfinished_connects") >= 6, "the bound", 30)
        visitors.append(Visitor(broker, OTHER_ADDRESS, door="text"))
        visitors[-1].socket.sendall(b"PUBLISH|a|b|1\n")
        assert visitors[-1].socket.recv(100)
        for one in visitors:
            one.close()
        until(lambda: not quotas._connections and not quotas._unfinished, "all to be forgotten", 30)


NAMES = ("ann", "bob", "cid", "dan", "eve")


@contextmanager
def broker_with_users(**bounds: int) -> Iterator[ThreadedBroker]:
    """Users that may do everything, and a stream of messages that wait in memory."""
    named = {f"limits__{name}": value for name, value in bounds.items()}
    with ThreadedBroker(listeners__http="127.0.0.1:0", **named) as broker:
        first = {"name": "root", "password": "pw", "roles": ["admin"]}
        assert call(broker.ports["http"], "POST", "/v1/users", first).status == 201
        for name in NAMES:
            assert ask(broker, "POST", "/v1/users", {"name": name, "password": "pw"}).status == 201
        rule = {"user": "*", "effect": "allow", "action": "all", "filter": "#"}
        assert ask(broker, "POST", "/v1/rules", rule).status == 201
        for stream in (
            {"name": "r", "filters": ["r/#"], "replication": "routed"},
            {"name": "logged", "filters": ["logged/#"]},
        ):
            assert ask(broker, "POST", "/v1/streams", stream).status == 201
        yield broker


@pytest.fixture(scope="module")
def guarded() -> Iterator[ThreadedBroker]:
    bounds = {"user_connections_max": 2, "user_sessions_max": 3, "user_queued_bytes_max": 50_000}
    with broker_with_users(**bounds, user_publishes_per_s_max=100) as broker:
        yield broker


def ask(broker: ThreadedBroker, method: str, path: str, body: Any = None, user: str = "root") -> Any:
    from base64 import b64encode

    name = "Basic " + b64encode(f"{user}:pw".encode()).decode()
    return call(broker.ports["http"], method, path, body, Authorization=name)


def test_connections_of_one_user(guarded: ThreadedBroker, visitors: list[Visitor]) -> None:
    """0x97, whatever address they come from; who takes over the own client id is no other connection."""
    assert come(visitors, guarded, "127.0.0.1", user="ann") == 0
    assert come(visitors, guarded, OTHER_ADDRESS, user="ann") == 0
    assert come(visitors, guarded, "127.0.0.8", user="ann") == 0x97
    assert come(visitors, guarded, user="bob") == 0
    visitors.append(Visitor(guarded))
    assert visitors[-1].connect("c1", user="ann") == 0
    assert reached(guarded, "user_connections") == 1


def test_sessions_of_one_user(guarded: ThreadedBroker, visitors: list[Visitor]) -> None:
    """Those that are away count; one that ended gives its place back, and the own one may be resumed."""
    kept = {"clean": False, "props": {"session_expiry": 600}, "user": "cid"}
    for number in range(3):
        visitor = Visitor(guarded)
        assert visitor.connect(f"kept{number}", **kept) == 0
        visitor.socket.sendall(wire.disconnect())
        assert visitor.socket.recv(10) == b""
    assert come(visitors, guarded, **kept) == 0x97
    visitors.append(Visitor(guarded))
    assert visitors[-1].connect("kept1", **kept) == 0
    assert ask(guarded, "DELETE", "/v1/sessions/kept0").status == 204
    assert come(visitors, guarded, **kept) == 0
    assert reached(guarded, "user_sessions") == 1


def test_bytes_that_wait_for_one_user(guarded: ThreadedBroker) -> None:
    """Two sessions of a user are away, and messages for them are kept in memory, up to the bound of both."""
    kept = {"clean": False, "props": {"session_expiry": 600}, "username": "dan", "password": "pw"}
    for number in range(2):
        with Peer(guarded, connect=False) as peer:
            peer.send(wire.connect(f"sleeper{number}", **kept), wire.subscribe(1, ("r/#", 1)))
            peer.until_ping()
    share = guarded._broker.server.broker.shares.join("dan")
    with Peer(guarded, connect=False) as peer:
        peer.send(wire.connect("sender", username="bob", password="pw"))
        # One by one: what comes in one piece waits as a whole or not at all.
        for number in range(1, 60):
            peer.send(wire.publish("r/x", b"x" * 1_000, qos=1, packet_id=number))
            peer.until_ping()
    until(lambda: reached(guarded, "user_queued_bytes") > 0, "the bound")
    assert 40_000 < share.queued_bytes <= 50_000
    for number in range(2):
        assert ask(guarded, "DELETE", f"/v1/sessions/sleeper{number}").status == 204
    assert share.queued_bytes == 0


def test_messages_of_one_user_in_a_second(guarded: ThreadedBroker) -> None:
    """Nothing is lost: a client that is too fast is read later. A request of HTTP is told to come again."""
    with Peer(guarded, connect=False) as fast, Peer(guarded, connect=False) as other:
        fast.send(wire.connect("fast", username="eve", password="pw"))
        other.send(wire.connect("other", username="bob", password="pw"))
        other.until_ping()
        fast.send(*(wire.publish("x", b"x", qos=1, packet_id=n) for n in range(1, 251)))
        until(lambda: reached(guarded, "user_publishes_per_s") > 0, "the bound")
        answer = ask(guarded, "POST", "/v1/publish", {"topic": "x", "payload": "x"}, user="eve")
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        other.send(wire.publish("x", b"x", qos=1, packet_id=1))
        other.until_ping()
        assert ask(guarded, "POST", "/v1/publish", {"topic": "x", "payload": "x"}, user="bob").status == 200
        acknowledged = b""
        while acknowledged.count(b"\x40") < 250:
            acknowledged += fast.socket.recv(65_536)
    until(
        lambda: ask(guarded, "POST", "/v1/publish", {"topic": "x", "payload": "x"}, user="eve").status == 200,
        "the user to be heard again",
        30,
    )


def test_retained_bytes_of_a_node() -> None:
    """0x97 for what finds no room."""
    with ThreadedBroker(limits__retained_bytes_max=10_000) as broker, Peer(broker) as peer:
        answer = b""
        for number in range(1, 15):
            peer.send(wire.publish(f"kept/{number}", b"x" * 1_000, qos=1, packet_id=number, retain=True))
            while bytes((0, number)) not in answer:
                answer += peer.socket.recv(MIB)
        assert b"\x97" in answer
        assert reached(broker, "retained") > 0


@pytest.mark.parametrize("whose", ["", "address_", "user_"])
def test_bytes_of_messages_in_a_second(whose: str) -> None:
    """As the count of messages: nothing is lost, retained messages count as well, HTTP is told to come again,
    and other addresses and users are served."""
    bound = f"{whose}publish_bytes_per_s"
    with broker_with_users(**{f"{bound}_max": 20_000}) as broker, Peer(broker, connect=False) as fast:
        fast.send(wire.connect("fast", username="eve", password="pw"))
        for retain in (False, True):
            told = reached(broker, bound)
            packets = [
                wire.publish("x", b"x" * 1_000, qos=1, packet_id=n, retain=retain) for n in range(1, 41)
            ]
            fast.send(*packets)
            until(lambda told=told: reached(broker, bound) > told, "the bound")
            answer = ask(broker, "POST", "/v1/publish", {"topic": "x", "payload": "x"}, user="eve")
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            if whose:
                with Visitor(broker, OTHER_ADDRESS) as other:
                    assert other.connect("other", user="bob") == 0
                    other.socket.sendall(wire.publish("x", b"x", qos=1, packet_id=1))
                    assert other.socket.recv(10)[:1] == b"\x40"
            acknowledged = b""
            while acknowledged.count(b"\x40\x02") < 40:
                acknowledged += fast.socket.recv(65_536)
        assert broker._broker.server.broker.retained.get("x") is not None


def test_retained_messages_at_qos_0_count_for_the_bound_of_messages() -> None:
    """They go by a way of their own."""
    with ThreadedBroker(limits__publishes_per_s_max=100) as broker, Peer(broker) as peer:
        peer.send(*(wire.publish("x", b"x", retain=True) for _ in range(150)))
        until(lambda: reached(broker, "publishes_per_s") > 0, "the bound")


@pytest.mark.parametrize(("version", "code"), [(5, 0x9F), (4, 0x03)])
def test_connects_of_one_user_in_a_second(visitors: list[Visitor], version: int, code: int) -> None:
    """Only those with the right password count: nobody keeps a user out by the name."""
    with broker_with_users(user_connects_per_s_max=5) as broker:
        for _ in range(10):
            visitors.append(Visitor(broker))
            wrong = wire.connect("c", username="ann", password="wrong", version=version)
            visitors[-1].socket.sendall(wrong)
            assert said(visitors[-1].socket.recv(1_000)) not in (0, code)
        answers = [come(visitors, broker, user="ann", version=version) for _ in range(20)]
        assert answers.count(0) >= 5 and answers.count(code) >= 5 and set(answers) == {0, code}
        assert come(visitors, broker, user="bob", version=version) == 0
        until(lambda: come(visitors, broker, user="ann", version=version) == 0, "the next second")
        assert reached(broker, "user_connects_per_s") >= 5


def test_sessions_of_one_address(visitors: list[Visitor]) -> None:
    """Those that are away count for where they began last; one that is resumed elsewhere counts there."""
    kept = {"clean": False, "props": {"session_expiry": 600}}
    with ThreadedBroker(limits__address_sessions_max=3) as broker:
        for number in range(3):
            with Visitor(broker) as one:
                assert one.connect(f"kept{number}", **kept) == 0
                one.socket.sendall(wire.disconnect())
                assert one.socket.recv(10) == b""
        assert come(visitors, broker, **kept) == 0x97
        visitors.append(Visitor(broker))
        assert visitors[-1].connect("kept1", **kept) == 0, "its own may be resumed"
        visitors.append(Visitor(broker, OTHER_ADDRESS))
        assert visitors[-1].connect("kept0", **kept) == 0
        assert come(visitors, broker) == 0
        assert come(visitors, broker) == 0x97
        visitors[-2].close()
        until(lambda: come(visitors, broker) == 0, "the place of one that ended")
        assert reached(broker, "address_sessions") >= 2


@pytest.mark.parametrize("whose", ["address", "user"])
def test_filters_of_one_address_and_of_one_user(whose: str) -> None:
    """By their weight, over all sessions; what is given up is free again, whoever gives it up."""

    def subscribe(who: Visitor, *filters: str) -> list[int]:
        who.socket.sendall(wire.subscribe(7, *((filter, 0) for filter in filters)))
        answer = who.socket.recv(1_000)
        assert answer[:1] == b"\x90"
        return list(answer[-len(filters) :])

    with broker_with_users(**{f"{whose}_filter_bytes_max": 2_000}) as broker:
        with Visitor(broker) as first, Visitor(broker) as second, Visitor(broker, OTHER_ADDRESS) as other:
            assert first.connect("first", user="ann") == second.connect("second", user="ann") == 0
            assert other.connect("other", user="bob") == 0
            assert subscribe(first, "a" * 800, "b" * 800) == [0, 0]
            assert subscribe(second, "c" * 800, "d") == [0x97, 0]
            assert subscribe(other, "c" * 800) == [0]
            first.socket.sendall(wire.unsubscribe(8, "a" * 800))
            assert first.socket.recv(100)[:1] == b"\xb0"
            assert subscribe(second, "c" * 800) == [0]
            assert subscribe(second, "e" * 800) == [0x97]
            first.socket.sendall(wire.disconnect())
            assert first.socket.recv(10) == b""
            assert subscribe(second, "e" * 800) == [0]
        assert reached(broker, f"{whose}_filter_bytes") == 2
        shares = broker._broker.server.broker.shares
        until(lambda: not shares._by_address and not shares.total.filter_bytes, "all to be forgotten")


@pytest.mark.parametrize("topic", ["kept/", "logged/"])
def test_retained_bytes_of_one_user(topic: str) -> None:
    """0x97, by HTTP 503, a will goes out without being retained; what is replaced or deleted, by whomever, is
    free again."""
    with broker_with_users(user_retained_bytes_max=5_000) as broker, Peer(broker, connect=False) as peer:
        retained = broker._broker.server.broker.retained

        def leave(number: int, text: bytes = b"x" * 1_000) -> int:
            """The reason of its PUBACK."""
            packet = wire.publish(f"{topic}{number}", text, qos=1, packet_id=number, retain=True)
            peer.send(packet)
            answer = peer.socket.recv(100)
            assert answer[:1] == b"\x40" and answer[3] == number
            return answer[4] if answer[1] > 2 else 0

        def leave_by_http(user: str, name: str, text: str) -> int:
            message = {"topic": topic + name, "payload": text, "qos": 1, "retain": True}
            return int(ask(broker, "POST", "/v1/publish", message, user=user).status)

        peer.send(wire.connect("c", username="ann", password="pw"))
        peer.until_ping()
        assert [leave(n) for n in range(1, 7)] == [0, 0, 0, 0, 0x97, 0x97]
        assert leave(1) == 0, "one that takes the place of the own one"
        assert leave_by_http("ann", "http", "x" * 1_000) == 503
        assert leave_by_http("bob", "http", "x" * 1_000) == 200
        will = wire.Will(topic=topic + "will", payload=b"x" * 1_000, retain=True)
        with Peer(broker, connect=False) as dying:
            dying.send(wire.connect("dying", username="ann", password="pw", will=will))
            dying.until_ping()
        until(lambda: "dying" not in broker._broker.server.broker.sessions, "the will")
        assert retained.get(topic + "will") is None
        assert leave(2, b"") == 0
        assert leave_by_http("bob", "3", "y" * 1_000) == 200, "another user's now"
        assert [leave(n) for n in (5, 6, 7)] == [0, 0, 0x97]
        assert reached(broker, "user_retained_bytes") >= 4


def test_bounds_that_are_off_cost_nothing(guarded: ThreadedBroker) -> None:
    """Nobody keeps accounts of addresses and of owners where they have no bounds."""
    inner = guarded._broker.server.broker
    assert inner.retained._owners is None
    assert not inner.shares._by_address
    with ThreadedBroker() as broker:
        assert not broker._broker.server.door.quotas.paces


def test_what_was_reached_is_in_the_metrics(visitors: list[Visitor]) -> None:
    with broker_with_users(user_connections_max=1) as broker:

        def told() -> dict[str, float]:
            page = ask(broker, "GET", "/metrics").body.decode()
            counts = re.findall(r'^millrace_limits_reached_total{limit="(user_\w+)"} ([\d.]+)$', page, re.M)
            return {bound: float(count) for bound, count in counts}

        assert told() == {}
        assert [come(visitors, broker, user="ann") for _ in range(3)] == [0, 0x97, 0x97]
        assert told() == {"user_connections": 2}
