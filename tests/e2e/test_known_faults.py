"""Faults that other brokers had, each done to a real node: refused as the standard says, others are served
meanwhile, and memory stays bounded.

Those of access, crashes and web pages are in `test_known_access_faults.py`; long texts, properties, topics
and wildcards over many retained messages in `test_stalls.py`; slow readers in `test_slow_readers.py`; stored
markup in a browser in `tests/browser`.
"""

import ast
import contextlib
import gc
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.mqtt import wire
from e2e.http_calls import call
from e2e.raw_peer import MIB, Peer, others_are_served
from millrace.testing import ThreadedBroker
from waiting import until

GROWTH_BYTES_MAX = 48 * MIB
CONNACK, DISCONNECT = b"\x20", b"\xe0"


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(
        listeners__http="127.0.0.1:0", limits__connect_deadline_ms=1_000, limits__receive_maximum=100
    ) as broker:
        others_are_served(broker)
        yield broker


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    before = resident_bytes()
    yield
    grown = resident_bytes() - before
    assert grown < GROWTH_BYTES_MAX, f"{grown // MIB} MiB more than before"


@pytest.mark.parametrize("claimed", [200_000, 1_000_000, 268_435_455])
def test_a_length_bomb_before_login_cve_2017_7651_cve_2023_0809(broker: ThreadedBroker, claimed: int) -> None:
    """The header of a CONNECT claims more than one may have: closed at once, nothing is kept for it."""
    with bounded_memory():
        for _ in range(50):
            with Peer(broker, connect=False) as peer:
                peer.send(b"\x10" + wire.varint(claimed) + b"x" * 1_000)
                assert peer.until_closed()[:1] in (b"", CONNACK)
        others_are_served(broker)


@pytest.mark.parametrize(
    "data",
    [
        b"\x10\xff\xff\xff\xff\x7f",
        b"\x10\xff\xff\xff\xff\xff",
        b"\x10\x80\x80\x80\x80\x01",
        wire.packet(wire.CONNECT, 0, wire.string("MQTT") + b"\x05\x02\x00\x00\x05"),
        wire.packet(wire.CONNECT, 0, wire.string("MQTT") + b"\x05\x02\x00\x00\x00\xff\xffc"),
        wire.packet(wire.CONNECT, 0, b"\x00\x06MQ"),
        wire.packet(
            wire.CONNECT, 0, wire.string("MQTT") + b"\x05\xc2\x00\x00\x00\x00\x01c\x00\x01u\x00\x09p"
        ),
    ],
    ids=[
        "five bytes",
        "six bytes",
        "padded",
        "no properties",
        "text past the end",
        "name past the end",
        "password",
    ],
)
def test_lengths_that_do_not_fit_cve_2026_21888_cve_2026_25627(broker: ThreadedBroker, data: bytes) -> None:
    with Peer(broker, connect=False) as peer:
        peer.send(data)
        assert peer.until_closed()[:1] in (b"", CONNACK)
    others_are_served(broker)


def test_qos_2_ids_that_are_never_finished_cve_2023_28366(broker: ThreadedBroker) -> None:
    """More of them than the receive maximum end the connection (0x93); repeats take no more room."""
    with bounded_memory(), Peer(broker) as peer:
        for _ in range(20):
            peer.send(*(wire.publish("q2", b"x" * 1_000, qos=2, packet_id=n) for n in range(1, 90)))
        peer.until_ping()
        peer.send(*(wire.publish("q2", b"x", qos=2, packet_id=n) for n in range(1, 200)))
        said = peer.until_closed()
        assert DISCONNECT in said and b"\x93" in said
    others_are_served(broker)


def test_a_flood_of_malformed_packets_cve_2021_22116_cve_2021_33175_cve_2021_33176(
    broker: ThreadedBroker,
) -> None:
    with bounded_memory():
        for number in range(400):
            with Peer(broker, connect=number % 2 == 0) as peer:
                peer.send(bytes((number % 256, 3)) + b"\xff\xff\xff" * 300)
        others_are_served(broker)


@pytest.mark.parametrize(
    "filter", ["$share", "$share/", "$share//t", "$share/g", "$share/g/", "$share/+/t", "$share/g#/t"]
)
def test_share_grammar_cve_2025_68699(broker: ThreadedBroker, filter: str) -> None:
    """A name that is no share name is refused or is a filter like any other; nothing falls."""
    with Peer(broker) as peer:
        peer.send(wire.subscribe(1, (filter, 1)), wire.PING)
        peer.socket.settimeout(10)
        data = b""
        while b"\xd0\x00" not in data and (chunk := peer.socket.recv(4096)):
            data += chunk
    others_are_served(broker)


def test_wills_of_clients_that_vanish(broker: ThreadedBroker) -> None:
    """A will is kept once for each client and goes with its session: a storm of them leaves nothing."""
    with bounded_memory():
        for number in range(300):
            will = wire.Will(topic=f"will/{number % 3}", payload=b"x" * 60_000)
            with Peer(broker, connect=False) as peer:
                peer.send(wire.connect(f"will{number % 10}", will=will))
                peer.socket.recv(100)
        others_are_served(broker)


@pytest.mark.parametrize(
    "properties",
    [b"\x21\x00\x05", b"\x7f\x01", b"\x18\x00\x00\x00\x01\x18\x00\x00\x00\x01", b"\x26\x00\x01a"],
    ids=["of CONNECT", "unknown", "twice", "cut off"],
)
def test_wills_with_wrong_properties_cve_2023_3592(broker: ThreadedBroker, properties: bytes) -> None:
    """Refused, and what came before them in the packet is not kept."""
    will = wire.varint(len(properties)) + properties + wire.string("w") + wire.string(b"x" * 60_000)
    packet = wire.connect("wrong", flags=0x06, payload=wire.string("wrong") + will)
    with bounded_memory():
        for _ in range(1_500):
            with Peer(broker, connect=False) as peer:
                peer.send(packet)
                answer = peer.until_closed()
                assert answer == b"" or (answer[:1] == CONNACK and answer[3] >= 0x80), answer
        others_are_served(broker)


@pytest.mark.parametrize("name", ["+", "#", "a/b", "+/x", "$SYS", "%u", "../../etc", "a\nb", "x" * 1_000])
def test_client_ids_of_any_characters_are_text(broker: ThreadedBroker, name: str) -> None:
    """They name one session."""
    with Peer(broker, connect=False) as peer:
        peer.send(wire.connect(name, clean=False, props={"session_expiry": 60}))
        answer = peer.socket.recv(200)
        assert answer[:1] == CONNACK and answer[3] == 0
        rows = call(broker.ports["http"], "GET", "/v1/sessions?limit=1000").json["items"]
        assert [row["client_id"] for row in rows].count(name) == 1
    others_are_served(broker)


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$share/g/t", "$millrace/x", "$"])
def test_internal_topics_are_not_published_to_cve_2026_33217(broker: ThreadedBroker, topic: str) -> None:
    with Peer(broker) as peer:
        peer.send(wire.publish(topic, b"forged", qos=1, packet_id=7))
        answer = peer.until_ping()
        assert b"\x40\x03\x00\x07\x87" in answer or b"\x40\x04\x00\x07\x87\x00" in answer


def test_a_storm_of_takeovers_cve_2026_22040(broker: ThreadedBroker) -> None:
    peers: list[Peer] = []
    with bounded_memory():
        for number in range(500):
            peer = Peer(broker, connect=False)
            peer.send(wire.connect("taken over", clean=number % 2 == 0, props={"session_expiry": 60}))
            peers.append(peer)
        others_are_served(broker)
        for peer in peers[:-1]:
            assert peer.until_closed() is not None
        peers[-1].until_ping()
    for peer in peers:
        peer.socket.close()


def test_half_open_connections_are_dropped_cve_2020_13849(broker: ThreadedBroker) -> None:
    """Half a CONNECT, byte by byte or not at all: the deadline counts from the beginning."""
    silent = [Peer(broker, connect=False) for _ in range(200)]
    for number, peer in enumerate(silent):
        if number % 2:
            peer.send(b"\x10\x20\x00")
    others_are_served(broker)
    for peer in silent:
        assert peer.until_closed()[:1] in (b"", CONNACK)
        peer.socket.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/streams/../../../etc/passwd",
        "/dashboard/../../../etc/passwd",
        "/v1/streams/%2e%2e%2f",
        "/docs/..%2f",
    ],
)
def test_paths_of_http_that_leave_their_folder(broker: ThreadedBroker, path: str) -> None:
    answer = call(broker.ports["http"], "GET", path)
    assert answer.status in (307, 400, 404, 405, 422)
    assert b"root:" not in answer.body


def test_names_of_streams_and_groups_open_no_other_file_cve_2022_26652(broker: ThreadedBroker) -> None:
    for name in ("../x", "a/b", "..", "x\u0000y", "a" * 10_000):
        for kind in ("streams", "groups"):
            answer = call(broker.ports["http"], "POST", f"/v1/{kind}", {"name": name, "filters": ["t/#"]})
            assert 400 <= answer.status < 500, (kind, answer)


def test_nothing_is_unpickled_cve_2024_50050() -> None:
    """No module of the program uses what runs code that it reads."""
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    found = []
    for path in (Path(__file__).parents[2] / "src" / "millrace").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [node.func.id] if node.func.id in ("eval", "exec") else []
            found += [(path.name, name) for name in names if name in {*forbidden, "eval", "exec"}]
    assert found == []


def test_a_flood_of_headers(broker: ThreadedBroker) -> None:
    sock = socket.create_connection(("127.0.0.1", broker.ports["http"]), timeout=30)
    with sock, bounded_memory(), contextlib.suppress(ConnectionError):
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        for number in range(20_000):
            sock.sendall(b"X-%d: %s\r\n" % (number, b"x" * 50))
        sock.sendall(b"\r\n")
        sock.recv(1_000)
    others_are_served(broker)


def test_the_log_is_not_flooded_by_refusals(broker: ThreadedBroker, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        with Peer(broker, connect=False) as peer:
            peer.send(wire.connect("c" * 2_000))
            peer.until_closed()
    until(lambda: "client_id_bytes" in caplog.text, "the refusals to be logged")
    assert caplog.text.count("limits reached") <= 5


def test_the_log_is_not_flooded_by_what_is_no_http(
    broker: ThreadedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody can send it, as often as they like: it is answered, and no line is written for each."""
    call(broker.ports["http"], "GET", "/status")
    caplog.clear()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", broker.ports["http"]), timeout=30) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\x00\r\n\r\n")
            assert sock.recv(1_000).startswith(b"HTTP/1.1 400 ")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 1


@pytest.mark.parametrize(
    ("method", "path", "form"),
    [
        ("POST", "/v1/streams/default/purge", {"before": 2**64}),
        ("POST", "/v1/streams/default/purge", {"shard": 2**64}),
        ("PUT", "/topic", {"topic": "large", "deliveries_max": 2**100}),
        ("PUT", "/topic", {"topic": "large", "deliveries_max": -(2**100)}),
        ("POST", "/v1/groups", {"name": "large", "filters": ["a"], "deliveries_max": 2**64}),
        ("POST", "/v1/publish", {"topic": "a", "payload": "x", "delay_ms": 2**64}),
    ],
)
def test_numbers_that_no_log_can_hold(
    broker: ThreadedBroker, method: str, path: str, form: dict[str, object]
) -> None:
    assert call(broker.ports["http"], method, path, form).status in (400, 422)
