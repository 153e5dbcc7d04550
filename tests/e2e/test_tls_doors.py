"""TLS at the doors of HTTP and text, certificates that change while the node runs, certificates as names."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.certificates import Authority, Pair
from e2e.conftest import StartBroker
from e2e.device import V5, Device
from e2e.processes import BrokerProcess, millrace
from e2e.test_tls import settings, trusting
from waiting import until

Devices = Callable[..., Device]

TOOL_S_MAX = 15
DOORS = ("mqtts", "wss", "https", "texts")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("broker", server=True)


def every_door(server: Pair, *more: str) -> list[str]:
    return settings(server, *(f"listeners.{door}=127.0.0.1:0" for door in DOORS), *more)


@pytest.fixture(scope="module")
def secure(start_shared: StartBroker, server: Pair) -> BrokerProcess:
    return start_shared(*every_door(server))


def https(
    port: int, authority: Authority, method: str, path: str, pair: Pair | None = None
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TOOL_S_MAX, context=context)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


# --------------------------------------------------------------------------------------- the doors


def test_http_over_tls(secure: BrokerProcess, authority: Authority) -> None:
    status, body = https(secure.ports["https"], authority, "GET", "/status")
    assert status == 200 and b'"node"' in body


def test_the_plain_http_door_stays_beside_it(secure: BrokerProcess) -> None:
    assert millrace("status", "--url", secure.url).returncode == 0


def test_text_over_tls(secure: BrokerProcess, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.file)
    with (
        socket.create_connection(("127.0.0.1", secure.ports["texts"]), timeout=TOOL_S_MAX) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as line,
    ):
        line.sendall(b"SUBSCRIBE|door\nPUBLISH|door|bell\n")
        heard = b""
        while b"MESSAGE|door|bell\n" not in heard:
            chunk = line.recv(4096)
            assert chunk, heard
            heard += chunk
    assert b"SUBACK|door\n" in heard


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("version", "is_spoken"), [("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)])
def test_every_door_speaks_tls_1_2_and_up(
    secure: BrokerProcess, authority: Authority, door: str, version: str, is_spoken: bool
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    command = [openssl, "s_client", "-connect", f"127.0.0.1:{secure.ports[door]}", version]
    command += ["-CAfile", authority.file, "-verify_return_error", "-cipher", "ALL:@SECLEVEL=0"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=TOOL_S_MAX, check=False)
    assert ("Verify return code: 0 (ok)" in done.stdout and done.returncode == 0) is is_spoken, done.stdout


@pytest.mark.parametrize("door", ["https", "texts"])
def test_a_tls_door_without_a_certificate_is_a_clear_error(tmp_path: Path, door: str) -> None:
    done = millrace("config", "--set", f"listeners.{door}=127.0.0.1:0")
    assert done.returncode == 2
    assert f"listeners.{door} needs tls.certificate and tls.key" in done.stderr


# ------------------------------------------------------------------------------ clients over HTTPS


def test_the_command_line_over_https(secure: BrokerProcess, authority: Authority, tmp_path: Path) -> None:
    url = f"https://127.0.0.1:{secure.ports['https']}"
    done = millrace("status", "--url", url, MILLRACE_CA_FILE=authority.file)
    assert done.returncode == 0, done.stderr
    stranger = Authority(tmp_path, "stranger")
    done = millrace("status", "--url", url, MILLRACE_CA_FILE=stranger.file)
    assert done.returncode == 1
    assert "MILLRACE_CA_FILE" in done.stderr, "what to do about a certificate that is not trusted"
    done = millrace("status", "--url", url, MILLRACE_CA_FILE="/nowhere.pem")
    assert done.returncode == 2 and "/nowhere.pem" in done.stderr


def test_the_client_over_https(secure: BrokerProcess, authority: Authority) -> None:
    from millrace.client.http import Http
    from millrace.errors import LocalError

    url = f"https://127.0.0.1:{secure.ports['https']}"
    with Http(url, ca_file=authority.file) as client:
        assert client.get("/livez") == {"status": "ok"}
    with Http(url) as client, pytest.raises(LocalError, match="certificate"):
        client.get("/livez")


# ----------------------------------------------------------------------------- certificates change


class Renewed:
    """A node whose certificate files are replaced while it runs."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        directory.mkdir(exist_ok=True)
        self.authority = authority
        self.pair = Pair(str(directory / "node.pem"), str(directory / "node.key"))
        self._count = 0
        self.renew()

    def renew(self) -> None:
        self._count += 1
        fresh = self.authority.issue(f"node-{self._count}", server=True)
        for source, target in ((fresh.certificate, self.pair.certificate), (fresh.key, self.pair.key)):
            shutil.copy(source, f"{target}.new")
            os.replace(f"{target}.new", target)

    def shown_at(self, port: int) -> str:
        """The name in the certificate that the node shows."""
        context = ssl.create_default_context(cafile=self.authority.file)
        with (
            socket.create_connection(("127.0.0.1", port), timeout=TOOL_S_MAX) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as line,
        ):
            certificate = line.getpeercert() or {}
        return str(dict(pair[0] for pair in certificate["subject"])["commonName"])  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_new_certificate_is_shown_without_dropping_anybody(
    start_broker: StartBroker, devices: Devices, authority: Authority, tmp_path: Path, is_told: bool
) -> None:
    """On SIGHUP, and by itself once the files changed."""
    files = Renewed(tmp_path / "files", authority)
    broker = start_broker(*every_door(files.pair))
    device = trusting(devices(broker.ports["mqtts"]), authority).connect()
    device.subscribe("still/here", 1)
    assert files.shown_at(broker.ports["mqtts"]) == "node-1"
    files.renew()
    if is_told:
        broker.signal(signal.SIGHUP)
    for door in DOORS:
        until(lambda door=door: files.shown_at(broker.ports[door]) == "node-2", f"the new one at {door}")
    device.publish("still/here", b"yes", 1)
    device.expect_payloads(b"yes")
    assert "certificate" in broker.log and "reloaded" in broker.log


def test_a_broken_certificate_leaves_the_old_one_in_force(
    start_broker: StartBroker, authority: Authority, tmp_path: Path
) -> None:
    files = Renewed(tmp_path / "files", authority)
    broker = start_broker(*every_door(files.pair))
    Path(files.pair.certificate).write_text("no certificate\n")
    until(lambda: "the certificate of tls.certificate stays as it was" in broker.log, "the complaint")
    assert files.shown_at(broker.ports["https"]) == "node-1"
    files.renew()
    until(lambda: files.shown_at(broker.ports["https"]) == "node-2", "the one that is right again")
    assert broker.log.count("stays as it was") <= 3, "not once for every look"


# ------------------------------------------------------------------------------- certificates as names


@pytest.fixture(scope="module")
def named(
    start_shared: StartBroker, server: Pair, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> BrokerProcess:
    """alice is a user who may use home/alice; a certificate names whoever it names in its common name."""
    users = str(tmp_path_factory.mktemp("named") / "users.toml")
    for words in (("user", "add", "alice"), ("user", "add", "root")):
        done = millrace(*words, "--password-stdin", "--users", users, stdin="secret\n")
        assert done.returncode == 0, done.stderr
    assert millrace("acl", "add", "root", "allow", "all", "#", "--users", users).returncode == 0
    assert millrace("acl", "add", "*", "allow", "all", "home/%u/#", "--users", users).returncode == 0
    more = [f"tls.client_ca={authority.file}", f"access.users_file={users}"]
    return start_shared(*every_door(server, *more))


def test_a_certificate_names_a_user(named: BrokerProcess, devices: Devices, authority: Authority) -> None:
    alice = devices(named.ports["mqtts"], version=V5)
    trusting(alice, authority, authority.issue("alice")).connect()
    assert alice.subscribe("home/alice/door", 1) == 1
    assert alice.subscribe("home/root/door") == 0x87


def test_a_certificate_of_a_name_that_is_no_user_is_refused(
    named: BrokerProcess, devices: Devices, authority: Authority
) -> None:
    mallory = trusting(devices(named.ports["mqtts"], version=V5), authority, authority.issue("mallory"))
    assert mallory.try_connect().value == 0x87
    until(lambda: "the certificate names no user: 'mallory'" in named.log, "the reason in the log")


def test_a_certificate_names_the_caller_over_https(named: BrokerProcess, authority: Authority) -> None:
    port = named.ports["https"]
    status, body = https(port, authority, "GET", "/v1/me", authority.issue("root"))
    assert status == 200 and b'"admin"' in body and b'"root"' in body
    status, body = https(port, authority, "GET", "/v1/users", authority.issue("mallory"))
    assert status == 401 and b"the certificate names no user" in body
    assert https(port, authority, "GET", "/v1/users")[0] == 401


def test_a_removed_user_loses_the_connection_that_came_by_certificate(
    named: BrokerProcess, devices: Devices, authority: Authority
) -> None:
    admin = {"MILLRACE_URL": f"http://root@127.0.0.1:{named.ports['http']}", "MILLRACE_PASSWORD": "secret"}
    done = millrace("user", "add", "brief", "--password-stdin", stdin="x\n", **admin)
    assert done.returncode == 0, done.stderr
    device = trusting(devices(named.ports["mqtts"], version=V5), authority, authority.issue("brief"))
    device.connect()
    done = millrace("user", "remove", "brief", "--yes", **admin)
    assert done.returncode == 0, done.stderr
    assert device.wait_closed().value == 0x87


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("san-dns", {"dns": "alice"}),
        ("san-email", {"email": "alice@example.org"}),
        ("san-uri", {"uri": "urn:alice"}),
    ],
)
def test_the_field_that_names_the_user_is_a_setting(
    start_broker: StartBroker,
    devices: Devices,
    server: Pair,
    authority: Authority,
    tmp_path: Path,
    field: str,
    names: dict[str, str],
) -> None:
    """Names that no user can have are taken where there are no users: rules may hold for everybody."""
    users = str(tmp_path / "users.toml")
    assert millrace("acl", "add", "*", "allow", "all", "home/%u/#", "--users", users).returncode == 0
    more = [f"tls.client_ca={authority.file}", f"access.users_file={users}", f"tls.client_name={field}"]
    broker = start_broker(*every_door(server, *more, "access.anonymous=never"))
    device = trusting(devices(broker.ports["mqtts"], version=V5), authority, authority.issue("x", **names))
    device.connect()
    name = next(iter(names.values()))
    assert device.subscribe(f"home/{name}/door", 1) == 1
    assert device.subscribe("home/x/door") == 0x87
    nameless = trusting(devices(broker.ports["mqtts"], version=V5), authority, authority.issue("alice"))
    assert nameless.try_connect().value == 0x87


def test_plain_bytes_at_the_https_door_harm_nobody(secure: BrokerProcess, authority: Authority) -> None:
    with socket.create_connection(("127.0.0.1", secure.ports["https"]), timeout=TOOL_S_MAX) as plain:
        plain.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    assert https(secure.ports["https"], authority, "GET", "/livez")[0] == 200
