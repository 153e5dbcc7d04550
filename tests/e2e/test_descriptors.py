"""More sockets than a node has descriptors: it keeps some for its own files, and says so."""

import json
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.certificates import Authority
from e2e.conftest import StartBroker
from e2e.device import V5, Device, unique
from e2e.http_calls import call
from e2e.processes import BrokerProcess
from waiting import until

Devices = Callable[..., Device]

LIMIT = 256
# As a service manager would start it, soft and hard.
SCARCE = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")
SILENT = 300
PAYLOAD = bytes(200_000)
DEADLINE_S = 1.0


class Silent:
    """Sockets that connect and say nothing, or little."""

    def __init__(self) -> None:
        self.open: list[socket.socket] = []

    def connect(self, port: int, count: int, said: bytes = b"") -> None:
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port), timeout=10)
            self.open.append(one)
            if said:
                one.sendall(said)

    def left(self) -> int:
        """How many the other side has not closed."""
        poll = select.poll()
        for one in self.open:
            poll.register(one, select.POLLIN)
        heard = {number for number, _ in poll.poll(0)}
        for one in [one for one in self.open if one.fileno() in heard]:
            if _is_ended(one):
                one.close()
                self.open.remove(one)
        return len(self.open)

    def close(self) -> None:
        for one in self.open:
            one.close()
        self.open.clear()


def _is_ended(one: socket.socket) -> bool:
    try:
        return not one.recv(65_536)
    except ConnectionError:
        return True


@pytest.fixture
def silent() -> Iterator[Silent]:
    made = Silent()
    yield made
    made.close()


def _counter(broker: BrokerProcess, name: str) -> int:
    return int(json.loads(call(broker.ports["http"], "GET", "/status").body)["counters"][name])


@pytest.mark.parametrize("door", ["http", "mqtt", "mqtts", "ws", "text"])
def test_silent_sockets_do_not_take_what_the_log_needs(
    start_broker: StartBroker, devices: Devices, silent: Silent, tmp_path: Path, door: str
) -> None:
    """Who is connected publishes on, through checkpoints of the index; whoever comes too late is closed at
    once; when the silent ones leave there is room again."""
    pair = Authority(tmp_path, "authority").issue("broker", server=True)
    broker = start_broker(
        *("--ws", "127.0.0.1:0", "--text", "127.0.0.1:0", "--mqtts", "127.0.0.1:0"),
        *("--set", f"tls.certificate={pair.certificate}", "--set", f"tls.key={pair.key}"),
        *("--set", "limits.connect_deadline_ms=60000"),
        under=SCARCE,
    )
    device = devices(broker.port, version=V5).connect()
    topic = unique("descriptors")
    silent.connect(broker.ports[door], SILENT)
    until(lambda: silent.left() <= LIMIT * 3 // 4, "those beyond the reserve to be closed")
    for _ in range(30):
        assert device.publish(topic, PAYLOAD, qos=1) == 0
    assert silent.left() > LIMIT // 2
    assert broker.process.poll() is None
    silent.close()
    until(lambda: devices(broker.port).try_connect() == 0, "a new client to be served")
    assert _counter(broker, "sockets_refused") >= SILENT - LIMIT * 3 // 4
    assert "descriptors" in broker.log and "Traceback" not in broker.log
    assert broker.log.count("are closed at once") == 1


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ("http", b""),
        ("http", b"GET /livez HTTP/1.1\r\nHost: x\r\n"),
        ("http", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("mqtts", b""),
    ],
    ids=["http", "half a head", "half a second head", "tls"],
)
def test_silence_has_an_end(
    start_broker: StartBroker, silent: Silent, tmp_path: Path, door: str, said: bytes
) -> None:
    """A connection that keeps the node waiting for the beginning of anything is closed."""
    pair = Authority(tmp_path, "authority").issue("broker", server=True)
    broker = start_broker(
        *("--mqtts", "127.0.0.1:0", "--set", f"limits.connect_deadline_ms={DEADLINE_S * 1000:.0f}"),
        *("--set", f"tls.certificate={pair.certificate}", "--set", f"tls.key={pair.key}"),
    )
    silent.connect(broker.ports[door], 3, said)
    if b"\r\n\r\n" in said:
        for one in silent.open:
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
            one.sendall(b"GET /livez")
    until(lambda: silent.left() == 0, "the silent ones to be closed")
    assert call(broker.ports["http"], "GET", "/livez").status == 200


def test_a_long_poll_is_not_silence(start_broker: StartBroker) -> None:
    broker = start_broker("--set", "limits.connect_deadline_ms=500")
    port = broker.ports["http"]
    topic = unique("poll")
    assert call(port, "PUT", "/topic", {"topic": topic}).json["success"]
    answer = call(port, "POST", f"/message?topic={topic}&wait_ms=2000")
    assert answer.status == 200 and not answer.json["success"]
