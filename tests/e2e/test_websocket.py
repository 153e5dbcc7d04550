"""MQTT over WebSocket: paho's own WebSocket client, and handshakes that a browser or a scanner would send."""

import base64
import hashlib
import socket
from collections.abc import Callable

import pytest

from e2e.conftest import StartBroker
from e2e.device import Device, both, unique
from e2e.processes import BrokerProcess

Devices = Callable[..., Device]

ANSWER_S_MAX = 10.0
KEY = base64.b64encode(b"sixteen bytes ok").decode()
# RFC 6455, 1.3
MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@pytest.fixture(scope="module")
def strict(start_shared: StartBroker) -> BrokerProcess:
    """A broker that lets the pages of one other site in."""
    return start_shared("--ws", "127.0.0.1:0", "--set", "listeners.ws_origins=https://panel.example.org")


def over_websocket(devices: Devices, broker: BrokerProcess, version: int, **headers: str) -> Device:
    device = devices(broker.ports["ws"], version=version, transport="websockets")
    device.paho.ws_set_options("/mqtt", headers or None)
    return device


def handshake(broker: BrokerProcess, **changes: str | None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and the rest of the answer to an upgrade request; None leaves a header out."""
    port = broker.ports["ws"]
    headers: dict[str, str | None] = {
        "Host": f"127.0.0.1:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX) as sock:
        sock.sendall("\r\n".join(["GET /mqtt HTTP/1.1", *lines, "", ""]).encode())
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = sock.recv(4096)
            assert chunk, f"closed after {data!r}"
            data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    status, *fields = head.decode("latin-1").split("\r\n")
    pairs = (field.partition(":") for field in fields)
    return int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, rest


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_cross_between_websocket_and_tcp(
    broker: BrokerProcess, devices: Devices, version: int, qos: int
) -> None:
    topic = unique("ws")
    page = over_websocket(devices, broker, version).connect()
    device = devices(broker.port, version=version).connect()
    page.subscribe(f"{topic}/down", qos)
    device.subscribe(f"{topic}/up", qos)
    page.publish(f"{topic}/up", b"up", qos)
    device.expect_payloads(b"up")
    device.publish(f"{topic}/down", b"down", qos)
    page.expect_payloads(b"down")


@both
@pytest.mark.parametrize("size_bytes", [0, 125, 126, 65_535, 65_536, 1_000_000])
def test_every_length_of_frame_comes_through(
    broker: BrokerProcess, devices: Devices, version: int, size_bytes: int
) -> None:
    """On both sides of where WebSocket changes the way it writes a length."""
    topic, payload = unique("ws"), b"x" * size_bytes
    page = over_websocket(devices, broker, version).connect()
    page.subscribe(topic, 1)
    page.publish(topic, payload, 1)
    page.expect_payloads(payload)


@both
def test_a_will_and_a_session_work_over_websocket(
    broker: BrokerProcess, devices: Devices, version: int
) -> None:
    topic, name = unique("ws"), unique("page")
    observer = devices(broker.port, version=version).connect()
    observer.subscribe(f"{topic}/will", 1)
    kept = {"client_id": name, "clean": False, "expiry_s": 60}
    options = {"version": version, "transport": "websockets", **kept}
    page = devices(broker.ports["ws"], will=(f"{topic}/will", b"gone", 1, False), **options).connect()
    page.subscribe(topic, 1)
    # The same name at another door: the first page is gone without a goodbye.
    second = devices(broker.ports["ws"], **options).connect()
    observer.expect_payloads(b"gone")
    assert second.session_present
    observer.publish(topic, b"x", 1)
    second.expect_payloads(b"x")


@both
def test_a_page_of_another_site_is_refused(strict: BrokerProcess, devices: Devices, version: int) -> None:
    """Its browser names the site in Origin; the broker's own page and a listed site are let in."""
    page = over_websocket(devices, strict, version, Origin="https://evil.example.org")
    with pytest.raises(OSError, match="WebSocket handshake error"):
        page.try_connect()
    over_websocket(devices, strict, version, Origin="https://panel.example.org").connect()
    over_websocket(devices, strict, version, Origin=f"http://127.0.0.1:{strict.ports['ws']}").connect()


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 101),
        ("https://panel.example.org", 101),
        ("https://panel.example.org.evil.net", 403),
        ("http://panel.example.org", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_origins_are_compared_whole(strict: BrokerProcess, origin: str | None, status: int) -> None:
    assert handshake(strict, Origin=origin)[0] == status


def test_the_handshake_is_answered_as_the_standard_says(broker: BrokerProcess) -> None:
    """[MQTT-6.0.0-4]: the subprotocol of the answer is mqtt; the key shows that the request was read."""
    status, headers, _ = handshake(broker, Sec_WebSocket_Protocol="chat, mqtt")
    assert status == 101
    assert headers["sec-websocket-protocol"] == "mqtt"
    expected = base64.b64encode(hashlib.sha1((KEY + MAGIC).encode()).digest()).decode()
    assert headers["sec-websocket-accept"] == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"Sec_WebSocket_Protocol": None},
        {"Sec_WebSocket_Protocol": "chat"},
        {"Upgrade": None},
        {"Sec_WebSocket_Key": None},
    ],
    ids=["no-subprotocol", "other-subprotocol", "no-upgrade", "no-key"],
)
def test_what_is_not_mqtt_over_websocket_is_refused(
    broker: BrokerProcess, devices: Devices, changes: dict[str, str | None]
) -> None:
    """With a status, and the door goes on serving."""
    assert 400 <= handshake(broker, **changes)[0] < 500
    over_websocket(devices, broker, 5).connect()
