"""MQTT over TLS and secure WebSocket, with certificates made for the test."""

import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.certificates import Authority, Pair
from e2e.conftest import StartBroker
from e2e.device import V5, Device, both, unique
from e2e.processes import BrokerProcess, complaint, millrace, tool

Devices = Callable[..., Device]

TOOL_S_MAX = 15


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody here trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("broker", server=True)


def settings(server: Pair, *more: str) -> list[str]:
    values = [f"tls.certificate={server.certificate}", f"tls.key={server.key}", *more]
    return [word for value in values for word in ("--set", value)]


@pytest.fixture(scope="module")
def secure(start_shared: StartBroker, server: Pair) -> BrokerProcess:
    """TLS without client certificates, on both doors."""
    doors = settings(server, "listeners.wss=127.0.0.1:0")
    return start_shared("--mqtts", "127.0.0.1:0", *doors)


@pytest.fixture(scope="module")
def mutual(
    start_shared: StartBroker, server: Pair, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> BrokerProcess:
    """Only clients with a certificate of the authority; each may use topics under its own name."""
    users = str(tmp_path_factory.mktemp("mutual") / "users.toml")
    assert millrace("acl", "add", "*", "allow", "all", "home/%u/#", "--users", users).returncode == 0
    more = [f"tls.client_ca={authority.file}", "tls.require_client_certificate=true"]
    more += [f"access.users_file={users}", "access.anonymous=never"]
    return start_shared("--mqtts", "127.0.0.1:0", *settings(server, *more))


def trusting(device: Device, authority: Authority, pair: Pair | None = None) -> Device:
    if pair is None:
        device.paho.tls_set(authority.file)
    else:
        device.paho.tls_set(authority.file, pair.certificate, pair.key)
    return device


def round_trip(sender: Device, receiver: Device, topic: str) -> None:
    receiver.subscribe(topic, 2)
    for qos in (0, 1, 2):
        sender.publish(topic, b"%d" % qos, qos)
        receiver.expect_payloads(b"%d" % qos)


@both
def test_messages_cross_between_tls_and_plain(
    secure: BrokerProcess, devices: Devices, authority: Authority, version: int
) -> None:
    topic = unique("tls")
    inside = trusting(devices(secure.ports["mqtts"], version=version), authority).connect()
    outside = devices(secure.port, version=version).connect()
    round_trip(inside, outside, topic)
    round_trip(outside, inside, f"{topic}/back")


@both
def test_a_megabyte_crosses_tls(
    secure: BrokerProcess, devices: Devices, authority: Authority, version: int
) -> None:
    """Many records of TLS, and more than one read, make one packet."""
    payload = bytes(range(256)) * 4096
    device = trusting(devices(secure.ports["mqtts"], version=version), authority).connect()
    topic = unique("tls")
    device.subscribe(topic, 1)
    device.publish(topic, payload, 1)
    device.expect_payloads(payload)


@both
def test_secure_websocket(
    secure: BrokerProcess, devices: Devices, authority: Authority, version: int
) -> None:
    device = devices(secure.ports["wss"], version=version, transport="websockets")
    trusting(device, authority).connect()
    round_trip(device, device, unique("wss"))


def test_a_client_refuses_a_broker_of_another_authority(
    secure: BrokerProcess, devices: Devices, stranger: Authority
) -> None:
    device = trusting(devices(secure.ports["mqtts"]), stranger)
    with pytest.raises(ssl.SSLCertVerificationError):
        device.try_connect()


def test_plain_bytes_at_the_tls_door_are_closed(secure: BrokerProcess, devices: Devices) -> None:
    """And the door goes on serving."""
    device = devices(secure.ports["mqtts"])
    assert device.try_connect().is_failure
    assert device.answer is None


@both
def test_a_client_certificate_is_a_name(
    mutual: BrokerProcess, devices: Devices, authority: Authority, version: int
) -> None:
    """The common name is the user of access rules: home/%u is hers, home/bob is not."""
    alice = devices(mutual.ports["mqtts"], version=version)
    trusting(alice, authority, authority.issue("alice")).connect()
    round_trip(alice, alice, "home/alice/door")
    assert alice.subscribe("home/bob/#") == (0x87 if version == V5 else 0x80)


def test_a_client_without_a_certificate_is_refused(
    mutual: BrokerProcess, devices: Devices, authority: Authority
) -> None:
    assert refused(trusting(devices(mutual.ports["mqtts"]), authority))


def test_a_certificate_of_another_authority_is_refused(
    mutual: BrokerProcess, devices: Devices, authority: Authority, stranger: Authority
) -> None:
    """Though it claims to be alice."""
    device = trusting(devices(mutual.ports["mqtts"]), authority, stranger.issue("alice"))
    assert refused(device)


def refused(device: Device) -> bool:
    """In TLS 1.3 the client may finish the handshake before the broker has said no."""
    try:
        return device.try_connect().is_failure and device.answer is None
    except (ssl.SSLError, ConnectionError):
        return True


def test_a_certificate_does_not_help_at_the_plain_door(mutual: BrokerProcess, devices: Devices) -> None:
    assert devices(mutual.port).try_connect().value == 0x87


@pytest.mark.parametrize("protocol", ["mqttv311", "mqttv5"])
def test_mosquitto_clients_over_mutual_tls(
    mutual: BrokerProcess, authority: Authority, protocol: str
) -> None:
    pair = authority.issue("mosquitto")
    topic = f"home/mosquitto/{unique('tls')}"
    common = ["-h", "127.0.0.1", "-p", str(mutual.ports["mqtts"]), "-V", protocol, "-t", topic, "-q", "1"]
    common += ["--cafile", authority.file, "--cert", pair.certificate, "--key", pair.key]
    for name, more in (("mosquitto_pub", ["-r", "-m", "safe"]), ("mosquitto_sub", ["-C", "1", "-W", "10"])):
        command = [tool(name), *common, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "safe\n"


def test_a_missing_certificate_is_a_clear_error(tmp_path: Path) -> None:
    files = settings(Pair("/nowhere.pem", "/nowhere.key"))
    done = millrace(
        "start", "--mqtt", "", "--http", "", "--mqtts", "127.0.0.1:0", "--data", str(tmp_path), *files
    )
    assert done.returncode == 2
    assert "the TLS files cannot be used" in complaint(done)


def test_a_client_that_does_not_finish_the_handshake_holds_up_nobody(
    secure: BrokerProcess, devices: Devices, authority: Authority
) -> None:
    with socket.create_connection(("127.0.0.1", secure.ports["mqtts"])) as silent:
        silent.sendall(b"\x16\x03\x01")
        device = trusting(devices(secure.ports["mqtts"]), authority).connect()
        round_trip(device, device, unique("tls"))
