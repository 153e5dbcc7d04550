"""The broker as a process: how it starts, what it says, where it stops, and how it goes."""

import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.device import V5, V311, Device, both, unique
from e2e.processes import BrokerProcess, complaint, millrace
from waiting import until

Devices = Callable[..., Device]

ANSWER_S_MAX = 10.0


def get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
        return answer.status, answer.read().decode()


# ---------------------------------------------------------------------------------------- stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_clients_are_told(
    start_broker: StartBroker, devices: Devices, number: signal.Signals
) -> None:
    """Exit 0; MQTT 5 clients hear 0x8B, on TCP and WebSocket; wills are not published."""
    broker = start_broker("--ws", "127.0.0.1:0")
    topic = unique("will")
    plain = devices(broker.port, version=V5, will=(f"{topic}/plain", b"gone", 0, False)).connect()
    page = devices(broker.ports["ws"], transport="websockets", will=(f"{topic}/page", b"gone", 0, False))
    page.connect()
    old = devices(broker.port, version=V311).connect()
    for device in (plain, page, old):
        device.subscribe(f"{topic}/+")
    broker.signal(number)
    assert broker.wait_exit() == 0
    assert plain.wait_closed().value == 0x8B
    assert page.wait_closed().value == 0x8B
    assert old.wait_closed().is_failure
    assert [device.waiting for device in (plain, page, old)] == [0, 0, 0]


def test_a_client_that_does_not_read_cannot_hold_it_up(start_broker: StartBroker, devices: Devices) -> None:
    """Its buffers are full, so it can be told nothing; the broker still goes."""
    broker = start_broker("--set", "limits.output_buffer_bytes_max=1200000")
    topic = unique("flood")
    with socket.create_connection(("127.0.0.1", broker.port)) as deaf:
        deaf.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04deaf")
        deaf.sendall(bytes((0x82, 5 + len(topic), 0, 1, 0, len(topic))) + topic.encode() + b"\x00")
        sender = devices(broker.port).connect()
        until(lambda: status(broker)["subscriptions"] == 1, "the subscription")

        def is_full() -> bool:
            sender.publish(topic, b"x" * 500_000)
            return bool(status(broker)["counters"]["dropped_qos0"])

        until(is_full, "the output to the client to be full")
        broker.signal(signal.SIGTERM)
        assert broker.wait_exit() == 0


def test_a_client_that_keeps_publishing_is_told_too(start_broker: StartBroker, devices: Devices) -> None:
    """Its bytes are under way when the broker closes; that must not cost it the reason."""
    broker = start_broker()
    sender = devices(broker.port).connect()
    window = threading.Semaphore(20)
    sender.paho.on_publish = lambda *_: window.release()

    def publish_until_closed() -> None:
        while sender.closed is None:
            if window.acquire(timeout=0.1):
                sender.paho.publish("busy", b"x" * 50_000, 1)

    busy = threading.Thread(target=publish_until_closed)
    busy.start()
    until(lambda: status(broker)["counters"]["received"] > 100, "traffic")
    broker.signal(signal.SIGTERM)
    assert broker.wait_exit() == 0
    assert sender.wait_closed().value == 0x8B
    busy.join()


# ------------------------------------------------------------------------------- refusing to start


@pytest.mark.parametrize("door", ["mqtt", "http"])
def test_a_second_broker_on_a_port_says_so(broker: BrokerProcess, tmp_path: Path, door: str) -> None:
    """One line that names the address, exit 2; the first broker goes on."""
    address = f"127.0.0.1:{broker.ports[door]}"
    others = {"mqtt": "127.0.0.1:0", "http": "127.0.0.1:0"} | {door: address}
    words = [word for name, value in others.items() for word in (f"--{name}", value)]
    done = millrace("start", "--data", str(tmp_path), *words)
    assert done.returncode == 2
    assert f"cannot listen on {address}" in complaint(done)
    assert get(f"{broker.url}/livez")[0] == 200


@pytest.mark.parametrize("source", ["option", "file"])
def test_a_wrong_key_names_the_nearest(tmp_path: Path, source: str) -> None:
    words = ["start", "--data", str(tmp_path / "data"), "--mqtt", "127.0.0.1:0", "--http", ""]
    if source == "option":
        words += ["--set", "limits.conections_max=5"]
    else:
        path = tmp_path / "millrace.toml"
        path.write_text("[limits]\nconections_max = 5\n")
        words += ["--config", str(path)]
    done = millrace(*words)
    assert done.returncode == 2
    assert "the nearest is limits.connections_max" in complaint(done)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--mqtt", "nonsense"], "HOST:PORT"),
        (["--set", "access.users_file=/nowhere/users.toml"], "/nowhere/users.toml"),
    ],
)
def test_wrong_use_is_exit_2_with_a_sentence(tmp_path: Path, words: list[str], reason: str) -> None:
    done = millrace("start", "--data", str(tmp_path), "--mqtt", "127.0.0.1:0", "--http", "", *words)
    assert done.returncode == 2
    assert reason in complaint(done)


# ------------------------------------------------------------------------------- what it tells us


def status(broker: BrokerProcess) -> dict:  # type: ignore[type-arg]
    return json.loads(get(f"{broker.url}/status")[1])


def test_status_as_json_and_as_a_table(broker: BrokerProcess, devices: Devices) -> None:
    before = status(broker)
    device = devices(broker.port).connect()
    device.subscribe(unique("status"), 1)
    device.publish(unique("status"), b"x", 1, retain=True)
    done = millrace("status", "--url", broker.url, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["clients_connected"] == before["clients_connected"] + 1
    assert found["subscriptions"] == before["subscriptions"] + 1
    assert found["retained_messages"] == before["retained_messages"] + 1
    assert found["counters"]["received"] == before["counters"]["received"] + 1
    assert found["listeners"] == broker.ports
    table = millrace("status", "--url", broker.url)
    assert table.returncode == 0
    assert "clients connected" in table.stdout


def test_status_of_a_node_that_is_not_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = millrace("status", "--url", f"http://127.0.0.1:{port}")
    assert done.returncode == 1
    assert "no answer from" in complaint(done)


def test_probes_and_metrics(broker: BrokerProcess, devices: Devices) -> None:
    """Prometheus reads every line; counters move with traffic."""
    assert get(f"{broker.url}/livez") == (200, '{"status":"ok"}')
    assert get(f"{broker.url}/readyz")[0] == 200

    def read() -> dict[str, float]:
        text = get(f"{broker.url}/metrics")[1]
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    before = read()
    topic = unique("metrics")
    device = devices(broker.port).connect()
    device.subscribe(topic, 1)
    for _ in range(5):
        device.publish(topic, b"x", 1)
    device.expect(5)
    after = read()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown('millrace_messages_received_total{door="mqtt",qos="1"}') == 5
    assert grown('millrace_messages_sent_total{door="mqtt",qos="1"}') == 5
    assert grown('millrace_connections{door="mqtt"}') == 1


@both
def test_sys_topics(broker: BrokerProcess, devices: Devices, version: int) -> None:
    """Retained figures for who asks; # does not ask for them; nobody else may write them."""
    watcher, all_topics = (devices(broker.port, version=version).connect() for _ in range(2))
    all_topics.subscribe("#")
    watcher.subscribe("$SYS/#")
    figures: dict[str, bytes] = {}

    def is_complete() -> bool:
        figures.update((got.topic, got.payload) for got in watcher.expect(watcher.waiting))
        wanted = ("version", "uptime", "clients/connected", "messages/received", "retained/count")
        return all(f"$SYS/broker/{name}" in figures for name in wanted)

    until(is_complete, "the figures")
    assert figures["$SYS/broker/version"].startswith(b"millrace ")
    assert int(figures["$SYS/broker/clients/connected"]) >= 0
    code = watcher.publish("$SYS/broker/version", b"forged", 1, retain=True)
    assert code == (0x87 if version == V5 else 0)
    late = devices(broker.port, version=version).connect()
    late.subscribe("$SYS/broker/version")
    assert late.expect()[0].payload.startswith(b"millrace ")
    arrival_number = all_topics.expect(all_topics.waiting)
    assert not [got for got in arrival_number if got.topic.startswith("$")]


# ---------------------------------------------------------------------------------- limits reached


@pytest.fixture(scope="module")
def narrow(start_shared: StartBroker) -> BrokerProcess:
    """A broker with little room."""
    limits = {
        "connections_max": 3,
        "packet_bytes_max": 4096,
        "subscriptions_max": 2,
        "retained_messages_max": 5,
        "queued_messages_max": 10,
        "connect_deadline_ms": 1000,
    }
    words = [word for name, value in limits.items() for word in ("--set", f"limits.{name}={value}")]
    # Its own figures are retained messages too, and would take their part of the room.
    return start_shared(*words, "--set", "mqtt.sys_interval_s=0")


@pytest.fixture
def alone(narrow: BrokerProcess) -> Iterator[BrokerProcess]:
    """The narrow broker with nobody connected."""
    until(lambda: status(narrow)["clients_connected"] == 0, "the clients of the test before to be gone")
    yield narrow


@both
def test_one_connection_too_many(alone: BrokerProcess, devices: Devices, version: int) -> None:
    """0x97, or in MQTT 3.1.1 "server unavailable"; those that are there are left alone."""
    first, *_ = [devices(alone.port, version=version).connect() for _ in range(3)]
    extra = devices(alone.port, version=version)
    answer = extra.try_connect()
    # paho translates the return code 3 of MQTT 3.1.1 into the reason code of that name.
    assert answer.value == (0x97 if version == V5 else 0x88)
    assert status(alone)["clients_connected"] == 3
    first.disconnect()
    devices(alone.port, version=version).connect()


@both
def test_a_packet_too_large(alone: BrokerProcess, devices: Devices, version: int) -> None:
    """The bound is told in CONNACK; one byte more closes with 0x95 and reaches nobody."""
    topic = unique("size")
    observer = devices(alone.port).connect()
    observer.subscribe(topic, 1)
    sender = devices(alone.port, version=version).connect()
    if version == V5:
        assert sender.connack_properties.MaximumPacketSize == 4096
    overhead = 1 + 2 + 2 + len(topic) + 2 + (1 if version == V5 else 0)
    sender.publish(topic, b"x" * (4096 - overhead), 1)
    assert len(observer.expect()[0].payload) == 4096 - overhead
    sender.paho.publish(topic, b"x" * (4096 - overhead + 1), 1)
    reason = sender.wait_closed()
    if version == V5:
        assert reason.value == 0x95
    assert observer.nothing_came()


@both
def test_one_subscription_too_many(alone: BrokerProcess, devices: Devices, version: int) -> None:
    device = devices(alone.port, version=version).connect()
    topics = [unique("subscription") for _ in range(3)]
    assert [device.subscribe(topic, 1) for topic in topics] == [1, 1, 0x97 if version == V5 else 0x80]
    assert device.subscribe(topics[0], 0) == 0, "to change one is not to add one"
    device.unsubscribe(topics[0])
    assert device.subscribe(topics[2], 1) == 1


def test_one_retained_message_too_many(alone: BrokerProcess, devices: Devices) -> None:
    """0x97; what is kept already can still be replaced, and one deleted makes room for one."""
    device = devices(alone.port).connect()
    topics = [unique("retained") for _ in range(6)]
    assert {device.publish(topic, b"x", 1, retain=True) for topic in topics[:-1]} == {0}
    assert device.publish(topics[-1], b"x", 1, retain=True) == 0x97
    assert device.publish(topics[0], b"y", 1, retain=True) == 0
    assert device.publish(topics[0], b"", 1, retain=True) == 0
    assert device.publish(topics[-1], b"x", 1, retain=True) == 0


def test_a_connection_that_says_nothing_is_closed(alone: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", alone.port), timeout=ANSWER_S_MAX) as sock:
        assert sock.recv(1) == b""


@both
def test_a_client_that_falls_silent_is_closed(broker: BrokerProcess, devices: Devices, version: int) -> None:
    """Keep alive of one second: the will is published after one and a half, though the socket is open."""
    topic = unique("silent")
    observer = devices(broker.port).connect()
    observer.subscribe(topic)
    flags, level = 0x06, version
    body = b"\x00\x04MQTT" + bytes((level, flags, 0, 1)) + (b"\x00" if version == V5 else b"")
    body += b"\x00\x00" + (b"\x00" if version == V5 else b"")
    body += len(topic).to_bytes(2, "big") + topic.encode() + b"\x00\x04gone"
    with socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_S_MAX) as sock:
        sock.sendall(bytes((0x10, len(body))) + body)
        assert sock.recv(1) == b"\x20"
        observer.expect_payloads(b"gone")


# -------------------------------------------------------------------------------- PROXY protocol


@pytest.fixture(scope="module")
def behind(start_shared: StartBroker) -> BrokerProcess:
    return start_shared("--set", "listeners.proxy_protocol=true")


def line(source: str) -> bytes:
    return f"PROXY TCP4 {source} 127.0.0.1 40000 1883\r\n".encode()


def binary(source: str) -> bytes:
    addresses = socket.inet_aton(source) + socket.inet_aton("127.0.0.1") + b"\x9c\x40\x07\x5b"
    extension = b"\x04\x00\x03abc"
    return b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + bytes((0, 12 + len(extension))) + addresses + extension


SIX = b"PROXY TCP6 2001:db8::9 ::1 40000 1883\r\n"
UNKNOWN = b"PROXY UNKNOWN\r\n"
LOCAL = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00"


def through_balancer(devices: Devices, broker: BrokerProcess, header: bytes, version: int = V5) -> Device:
    device = devices(broker.port, version=version)
    device.paho.on_socket_open = lambda _, __, sock: sock.sendall(header)
    return device


@both
@pytest.mark.parametrize("make", [line, binary], ids=["v1", "v2"])
def test_the_client_is_the_one_the_balancer_names(
    behind: BrokerProcess, devices: Devices, make: Callable[[str], bytes], version: int
) -> None:
    """Anonymous is for this machine only: 203.0.113.9 is refused though the balancer stands here."""
    through_balancer(devices, behind, make("127.0.0.1"), version).connect()
    stranger = through_balancer(devices, behind, make("203.0.113.9"), version)
    assert stranger.try_connect().value == 0x87
    assert "refused ('203.0.113.9', 40000)" in behind.log


def test_an_ipv6_client_behind_the_balancer(behind: BrokerProcess, devices: Devices) -> None:
    assert through_balancer(devices, behind, SIX).try_connect().value == 0x87


@pytest.mark.parametrize("header", [UNKNOWN, LOCAL], ids=["v1", "v2"])
def test_the_balancer_may_speak_for_itself(behind: BrokerProcess, devices: Devices, header: bytes) -> None:
    device = through_balancer(devices, behind, header).connect()
    topic = unique("proxy")
    device.subscribe(topic, 1)
    device.publish(topic, b"x", 1)
    device.expect_payloads(b"x")


@pytest.mark.parametrize("header", [b"", b"PROXY TCP4 nonsense\r\n", b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0"])
def test_without_a_good_header_there_is_no_answer(
    behind: BrokerProcess, devices: Devices, header: bytes
) -> None:
    device = through_balancer(devices, behind, header)
    assert device.try_connect().is_failure
    assert device.answer is None


def test_a_header_may_come_in_pieces(behind: BrokerProcess) -> None:
    """Byte by byte, with the CONNECT behind it."""
    with socket.create_connection(("127.0.0.1", behind.port), timeout=ANSWER_S_MAX) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in binary("127.0.0.1") + b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01p":
            sock.sendall(bytes((byte,)))
        assert sock.recv(4) == b"\x20\x02\x00\x00"
