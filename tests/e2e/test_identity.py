"""Who a client is, proved by a JSON web token, by SCRAM or by a function of the operator's own."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import StartBroker
from e2e.device import V5, Device
from e2e.http_calls import call
from e2e.processes import BrokerProcess, complaint, millrace
from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Subscribe,
)
from unit.access.test_jwt import packed, signature
from unit.access.test_scram import answer
from waiting import until

Devices = Callable[..., Device]

SECRET = "a secret of more than thirty-two bytes\n"
METHOD = "SCRAM-SHA-256"
NOT_AUTHORIZED, BAD_PASSWORD = 0x87, 0x86


def jwt(user: str, *, life_s: float = 60, **claims: Any) -> str:
    body = {"sub": user, "exp": time.time() + life_s, **claims}
    text = f"{packed({'alg': 'HS256'})}.{packed(body)}".encode()
    return (text + b"." + packed(signature("HS256", text, SECRET.strip().encode())).encode()).decode()


def users_file(directory: Path) -> str:
    users = str(directory / "users.toml")
    for name in ("root", "ann"):
        done = millrace("user", "add", name, "--password-stdin", "--users", users, stdin=f"{name}-pw\n")
        assert done.returncode == 0, done.stderr
    for rule in (("root", "allow", "all", "#"), ("*", "allow", "all", "home/%u/#")):
        assert millrace("acl", "add", *rule, "--users", users).returncode == 0
    return users


def options(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


class Admin:
    """root, with the program."""

    def __init__(self, broker: BrokerProcess) -> None:
        url = f"http://root@127.0.0.1:{broker.ports['http']}"
        self._variables = {"MILLRACE_URL": url, "MILLRACE_PASSWORD": "root-pw"}

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = millrace(*words, stdin=stdin, **self._variables)
        assert done.returncode == 0, done.stderr
        return done.stdout


# ---------------------------------------------------------------------------------- JSON web tokens


@pytest.fixture(scope="module")
def trusting_jwt(start_shared: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    directory = tmp_path_factory.mktemp("jwt")
    keys = directory / "jwt.key"
    keys.write_text(SECRET)
    return start_shared(
        *options(
            f"access.users_file={users_file(directory)}",
            f"jwt.keys_file={keys}",
            "jwt.audience=millrace",
            "jwt.rules_claim=may",
            "jwt.roles_claim=roles",
            "listeners.text=127.0.0.1:0",
        )
    )


@pytest.mark.parametrize("name", ["ann", "token"])
def test_a_token_is_a_password(trusting_jwt: BrokerProcess, devices: Devices, name: str) -> None:
    device = devices(trusting_jwt.port, version=V5, user=(name, jwt("ann", aud="millrace"))).connect()
    assert device.subscribe("home/ann/door", 1) == 1
    assert device.subscribe("home/root/door") == NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("user", "token"),
    [
        ("root", jwt("ann", aud="millrace")),
        ("ann", jwt("ann", aud="others")),
        ("ann", jwt("ann", aud="millrace", life_s=-100)),
        ("nobody", jwt("nobody", aud="millrace")),
        ("ann", jwt("ann", aud="millrace")[:-4] + "AAAA"),
    ],
)
def test_a_token_that_proves_something_else_is_refused(
    trusting_jwt: BrokerProcess, devices: Devices, user: str, token: str
) -> None:
    assert devices(trusting_jwt.port, user=(user, token)).try_connect().value == BAD_PASSWORD


def test_a_token_is_a_bearer_token(trusting_jwt: BrokerProcess) -> None:
    port = trusting_jwt.ports["http"]
    for claims, status in (({}, 403), ({"roles": ["observer"]}, 200)):
        token = jwt("ann", aud="millrace", **claims)
        assert call(port, "GET", "/v1/users", Authorization=f"Bearer {token}").status == status
    assert call(port, "GET", "/v1/users", Authorization=f"Bearer {jwt('ann')}").status == 401


def test_rules_in_a_token_are_granted_beside_those_of_the_user(
    trusting_jwt: BrokerProcess, devices: Devices
) -> None:
    token = jwt("ann", aud="millrace", may=["subscribe:news/%u/#"])
    device = devices(trusting_jwt.port, version=V5, user=("ann", token)).connect()
    assert device.subscribe("news/ann/today", 1) == 1
    assert device.subscribe("home/ann/door", 1) == 1
    assert device.subscribe("news/root/today") == NOT_AUTHORIZED
    assert device.publish("news/ann/today", b"x", 1) == NOT_AUTHORIZED


def test_a_connection_ends_with_its_token(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    keys = tmp_path / "jwt.key"
    keys.write_text(SECRET)
    broker = start_broker(
        *options(f"access.users_file={users_file(tmp_path)}", f"jwt.keys_file={keys}", "jwt.clock_skew_s=0")
    )
    device = devices(broker.port, version=V5, user=("ann", jwt("ann", life_s=2))).connect()
    assert device.wait_closed().value == NOT_AUTHORIZED


def test_new_keys_come_into_force_while_the_node_runs(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    keys = tmp_path / "jwt.key"
    keys.write_text("another secret of more than thirty-two bytes\n")
    broker = start_broker(*options(f"access.users_file={users_file(tmp_path)}", f"jwt.keys_file={keys}"))
    assert devices(broker.port, user=("ann", jwt("ann"))).try_connect().value == BAD_PASSWORD
    keys.write_text(SECRET)
    until(lambda: "reloaded: the keys of jwt.keys_file" in broker.log, "the new keys")
    devices(broker.port, user=("ann", jwt("ann"))).connect()


def test_names_that_are_no_users_come_in_where_the_setting_says_so(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    keys = tmp_path / "jwt.key"
    keys.write_text(SECRET)
    settings = (f"access.users_file={users_file(tmp_path)}", f"jwt.keys_file={keys}")
    broker = start_broker(*options(*settings, "jwt.known_users_only=false"))
    device = devices(broker.port, version=V5, user=("sensor-7", jwt("sensor-7"))).connect()
    assert device.subscribe("home/sensor-7/door", 1) == 1
    assert device.subscribe("home/ann/door") == NOT_AUTHORIZED


def test_a_file_without_keys_keeps_the_node_from_starting(tmp_path: Path) -> None:
    keys = tmp_path / "jwt.key"
    keys.write_text("short")
    done = millrace("start", "--data", str(tmp_path / "d"), *options(f"jwt.keys_file={keys}"))
    assert done.returncode == 2 and "at least 32 bytes" in complaint(done)


# --------------------------------------------------------------------------------------------- SCRAM


class ScramClient:
    """MQTT 5 by hand: no client library at hand speaks AUTH."""

    def __init__(self, port: int, user: str, password: bytes) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._user, self._password = user, password
        self._rest = b""

    def close(self) -> None:
        self._socket.close()

    def send(self, packet: Packet) -> None:
        self._socket.sendall(encode(packet, Version.MQTT_5))

    def read(self) -> Packet | None:
        while (found := split(self._rest, 0)) is None:
            chunk = self._socket.recv(65_536)
            if not chunk:
                return None
            self._rest += chunk
        _, body, end = found
        packet = decode(self._rest[0], self._rest[body:end], Version.MQTT_5)
        self._rest = self._rest[end:]
        return packet

    def begin(self, client_id: str) -> tuple[str, bytes]:
        """Ask for a login; what was said first, and the challenge."""
        first = f"n={self._user},r=clientnonce0"
        connect = Connect(
            client_id=client_id,
            version=Version.MQTT_5,
            authentication_method=METHOD,
            authentication_data=f"n,,{first}".encode(),
        )
        self.send(connect)
        challenge = self.read()
        assert isinstance(challenge, Auth) and challenge.authentication_data is not None
        return first, challenge.authentication_data

    def go_on(self, data: bytes) -> Packet | None:
        reason = Reason.CONTINUE_AUTHENTICATION
        self.send(Auth(reason=reason, authentication_method=METHOD, authentication_data=data))
        return self.read()

    def log_in(self, client_id: str, *, again: bool = False) -> tuple[Packet | None, bytes]:
        """The last word of the broker, and what it has to say if it knows the password."""
        first = f"n={self._user},r=clientnonce0"
        data = f"n,,{first}".encode()
        if again:
            self.send(
                Auth(reason=Reason.REAUTHENTICATE, authentication_method=METHOD, authentication_data=data)
            )
        else:
            self.send(
                Connect(
                    client_id=client_id,
                    version=Version.MQTT_5,
                    authentication_method=METHOD,
                    authentication_data=data,
                )
            )
        challenge = self.read()
        if not isinstance(challenge, Auth) or challenge.authentication_data is None:
            return challenge, b""
        last, expected = answer(self._password, first, challenge.authentication_data)
        self.send(
            Auth(
                reason=Reason.CONTINUE_AUTHENTICATION,
                authentication_method=METHOD,
                authentication_data=last,
            )
        )
        return self.read(), expected


@contextmanager
def scram(broker: BrokerProcess, user: str, password: bytes) -> Iterator[ScramClient]:
    client = ScramClient(broker.port, user, password)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module")
def keyed(start_shared: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    users = users_file(tmp_path_factory.mktemp("scram"))
    broker = start_shared(*options(f"access.users_file={users}", "access.scram_iterations=4096"))
    Admin(broker)("user", "add", "bob", "--password-stdin", stdin="builder\n")
    return broker


def test_scram_proves_both_sides(keyed: BrokerProcess, devices: Devices) -> None:
    with scram(keyed, "bob", b"builder") as client:
        answer_, expected = client.log_in("b1")
        assert isinstance(answer_, Connack) and answer_.reason is Reason.SUCCESS
        assert answer_.authentication_method == METHOD and answer_.authentication_data == expected
        wanted = Subscription(filter="home/bob/#", qos=1), Subscription(filter="home/ann/#", qos=1)
        client.send(Subscribe(packet_id=1, subscriptions=wanted))
        suback = client.read()
        assert isinstance(suback, Suback) and [int(r) for r in suback.reasons] == [1, NOT_AUTHORIZED]
    devices(keyed.port, user=("bob", "builder")).connect()


@pytest.mark.parametrize(
    ("user", "password"), [("bob", b"wrong"), ("nobody", b"builder"), ("ann", b"ann-pw")]
)
def test_scram_refuses_all_alike(keyed: BrokerProcess, user: str, password: bytes) -> None:
    """A wrong password, a name that is nobody, and a user whose password came from a file, without keys."""
    with scram(keyed, user, password) as client:
        answer_, _ = client.log_in("b2")
        assert isinstance(answer_, Connack) and answer_.reason is Reason.NOT_AUTHORIZED


def test_scram_again_on_a_live_connection(keyed: BrokerProcess) -> None:
    with scram(keyed, "bob", b"builder") as client:
        client.log_in("b3")
        answer_, expected = client.log_in("b3", again=True)
        assert isinstance(answer_, Auth) and answer_.reason is Reason.SUCCESS
        assert answer_.authentication_data == expected
        client.send(Pingreq())
        assert client.read() is not None
        # Nobody becomes another user on the way.
        client._user, client._password = "carl", b"carl-pw"
        Admin(keyed)("user", "add", "carl", "--password-stdin", stdin="carl-pw\n")
        answer_, _ = client.log_in("b3", again=True)
        assert isinstance(answer_, Disconnect) and answer_.reason is Reason.NOT_AUTHORIZED


def test_scram_left_half_way_lets_nobody_do_anything(keyed: BrokerProcess, devices: Devices) -> None:
    """Between the challenge and the proof a client is a stranger: any other packet ends the connection."""
    seen = devices(keyed.port, user=("bob", "builder"))
    seen.connect()
    seen.subscribe("home/bob/#", qos=1)
    wanted = (Subscription(filter="home/bob/#", qos=1),)
    for packet in (
        Publish(message=Message(topic="home/bob/door", payload=b"open")),
        Subscribe(packet_id=1, subscriptions=wanted),
        Pingreq(),
    ):
        with scram(keyed, "bob", b"builder") as client:
            client.begin("b4")
            client.send(packet)
            answer_ = client.read()
            is_refused = isinstance(answer_, Connack) and answer_.reason is not Reason.SUCCESS
            assert answer_ is None or isinstance(answer_, Disconnect) or is_refused
    seen.publish("home/bob/door", b"the only one", qos=1)
    seen.expect_payloads(b"the only one")


def test_a_proof_of_another_exchange_proves_nothing(keyed: BrokerProcess) -> None:
    """Who listened to one login has nothing for the next: the broker's part of the nonce is another one."""
    with scram(keyed, "bob", b"builder") as client:
        first, challenge = client.begin("b5")
        last, _ = answer(b"builder", first, challenge)
        answer_ = client.go_on(last)
        assert isinstance(answer_, Connack) and answer_.reason is Reason.SUCCESS
    with scram(keyed, "bob", b"builder") as client:
        _, again = client.begin("b5")
        assert again != challenge
        answer_ = client.go_on(last)
        assert isinstance(answer_, Connack) and answer_.reason is Reason.NOT_AUTHORIZED


def test_a_changed_password_ends_what_came_by_scram(keyed: BrokerProcess) -> None:
    admin = Admin(keyed)
    admin("user", "add", "dora", "--password-stdin", stdin="one\n")
    with scram(keyed, "dora", b"one") as client:
        client.log_in("d1")
        admin("user", "passwd", "dora", "--password-stdin", stdin="two\n")
        gone = client.read()
        assert isinstance(gone, Disconnect) and gone.reason is Reason.NOT_AUTHORIZED
    with scram(keyed, "dora", b"one") as client:
        answer_, _ = client.log_in("d1")
        assert isinstance(answer_, Connack) and answer_.reason is Reason.NOT_AUTHORIZED

    def is_let_in() -> bool:
        with scram(keyed, "dora", b"two") as client:
            answer_, _ = client.log_in("d1")
            return isinstance(answer_, Connack) and answer_.reason is Reason.SUCCESS

    # The failures of this and other tests slow their address down: an attempt may have to wait a while.
    until(is_let_in, "the new password is taken")


# ---------------------------------------------------------------------------------------- the hook

HOOK = """
import time

def check(login):
    if login["user"] == "asked":
        return {"user": "asked", "rules": ["all:asked/#"]}
    if login["user"] == "slow":
        time.sleep(60)
    if login["user"] == "broken":
        raise RuntimeError("no database")
    if login["user"] == "banned":
        return False
    if login["user"] == "named":
        return login["password"] == b"right" and login["client_id"] != "" and login["door"] == "mqtt"
    return None
"""


@pytest.fixture(scope="module")
def hooked(start_shared: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    directory = tmp_path_factory.mktemp("hook")
    (directory / "gatekeeper.py").write_text(HOOK)
    return start_shared(
        *options(
            f"access.users_file={users_file(directory)}",
            "access.hook=gatekeeper:check",
            "access.hook_timeout_ms=1000",
        ),
        PYTHONPATH=str(directory),
    )


@pytest.mark.parametrize(
    ("user", "password", "code"),
    [
        ("asked", "x", 0),
        ("named", "right", 0),
        ("named", "wrong", BAD_PASSWORD),
        ("banned", "x", BAD_PASSWORD),
        ("broken", "x", BAD_PASSWORD),
        ("ann", "ann-pw", 0),
        ("ann", "wrong", BAD_PASSWORD),
    ],
)
def test_a_function_of_the_operator_decides(
    hooked: BrokerProcess, devices: Devices, user: str, password: str, code: int
) -> None:
    assert devices(hooked.port, version=V5, user=(user, password)).try_connect().value == code


def test_rules_of_the_hook_hold(hooked: BrokerProcess, devices: Devices) -> None:
    device = devices(hooked.port, version=V5, user=("asked", "x")).connect()
    assert device.subscribe("asked/x", 1) == 1 and device.subscribe("other/x") == NOT_AUTHORIZED


def test_a_hook_that_hangs_holds_up_nobody(hooked: BrokerProcess, devices: Devices) -> None:
    """Its login is refused in time, and others are served meanwhile."""
    here = devices(hooked.port, version=V5, user=("ann", "ann-pw")).connect()
    here.subscribe("home/ann/x", 1)
    slow = devices(hooked.port, version=V5, user=("slow", "x"))
    assert slow.try_connect().value == BAD_PASSWORD
    here.publish("home/ann/x", b"still", 1)
    here.expect_payloads(b"still")
    assert devices(hooked.port, version=V5, user=("asked", "x")).try_connect().value == 0


def test_the_hook_is_asked_over_http(hooked: BrokerProcess) -> None:
    done = millrace(
        "stream",
        "list",
        "--json",
        MILLRACE_URL=f"http://asked@127.0.0.1:{hooked.ports['http']}",
        MILLRACE_PASSWORD="x",
    )
    assert done.returncode == 0 and json.loads(done.stdout) is not None, done.stderr
