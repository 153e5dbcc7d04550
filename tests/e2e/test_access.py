"""Users and access rules as an operator sets them: the command line, a running broker, SIGHUP."""

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.device import V5, Device, both, unique
from e2e.processes import BrokerProcess, millrace

Devices = Callable[..., Device]

NOT_AUTHORIZED, BAD_PASSWORD, SUBACK_FAILURE = 0x87, 0x86, 0x80


class Keeper:
    """The operator of one broker: changes its users file with the program."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "users.toml"
        # How a broker is started that uses the file and wants a name of everybody.
        self.settings = ("--set", f"access.users_file={self.file}", "--set", "access.anonymous=never")

        # The same for one that loads the file again on SIGHUP.
        self.reloading = (*self.settings, "--set", "access.users_import=always")

    def run(self, *words: str, stdin: str = "") -> str:
        done = millrace(*words, "--users", str(self.file), stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def user(self, name: str, password: str) -> None:
        self.run("user", "add", name, "--password-stdin", stdin=f"{password}\n")

    def allow(self, user: str, action: str, filter: str) -> None:
        self.run("acl", "add", user, "allow", action, filter)


@pytest.fixture(scope="module")
def guarded(start_shared: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """alice and bob, each at home in home/NAME; a public board; nobody without a name."""
    keeper = Keeper(tmp_path_factory.mktemp("guarded"))
    keeper.user("alice", "wonder land")
    keeper.user("bob", "builder")
    keeper.run("acl", "add", "bob", "deny", "publish", "board/closed")
    keeper.allow("*", "all", "home/%u/#")
    keeper.allow("*", "all", "board/#")
    return start_shared(*keeper.settings)


@pytest.fixture
def as_user(guarded: BrokerProcess, devices: Devices) -> Callable[..., Device]:
    passwords = {"alice": "wonder land", "bob": "builder"}

    def connect(name: str, **options: object) -> Device:
        return devices(guarded.port, user=(name, passwords[name]), **options).connect()

    return connect


# ------------------------------------------------------------------------------------- who comes in


@both
@pytest.mark.parametrize(
    ("user", "code"),
    [
        (("alice", "wonder land"), 0),
        (("alice", "wonderland"), BAD_PASSWORD),
        (("alice", ""), BAD_PASSWORD),
        (("mallory", "builder"), BAD_PASSWORD),
        (None, NOT_AUTHORIZED),
    ],
)
def test_the_door_asks_for_a_name_and_its_password(
    guarded: BrokerProcess, devices: Devices, version: int, user: tuple[str, str] | None, code: int
) -> None:
    assert devices(guarded.port, version=version, user=user).try_connect().value == code


def test_users_may_be_added_before_the_first_start(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    """As the README shows it: without another file, users live in the data directory of the node."""
    data = str(tmp_path / "data")
    done = millrace("user", "add", "alice", "--password-stdin", "--data", data, stdin="one\n")
    assert done.returncode == 0, done.stderr
    broker = start_broker("--data", data, "--set", "access.anonymous=never")
    devices(broker.port, user=("alice", "one")).connect()
    assert devices(broker.port).try_connect().value == NOT_AUTHORIZED


# -------------------------------------------------------------------------------------- who may what


@both
def test_everyone_has_a_home(as_user: Callable[..., Device], version: int) -> None:
    """%u is the user's own name: alice reads and writes her topics and cannot hear bob's."""
    alice, bob = as_user("alice", version=version), as_user("bob", version=version)
    refused = NOT_AUTHORIZED if version == V5 else SUBACK_FAILURE
    assert alice.subscribe("home/alice/#", 1) == 1
    assert alice.subscribe("home/bob/#", 1) == refused
    assert alice.subscribe("home/+/door", 1) == refused, "a filter is granted whole or not at all"
    assert alice.subscribe("#", 1) == refused
    assert alice.subscribe("$share/group/home/bob/#", 1) == refused, "the inner filter counts"
    # MQTT 3.1.1 has no way to say no to a publish.
    no = NOT_AUTHORIZED if version == V5 else 0
    assert bob.publish("home/alice/door", b"knock", 1) == no
    # paho releases a QoS 2 message though it was refused, and reports the answer to that.
    assert bob.publish("home/alice/door", b"knock", 2) == 0
    assert bob.publish("home/alice/door", b"knock", 1, retain=True) == no
    bob.paho.publish("home/alice/door", b"knock", 0)
    bob.publish("home/bob/door", b"after", 1)
    assert alice.publish("home/alice/door", b"mine", 1) == 0
    alice.expect_payloads(b"mine")
    late = as_user("alice", version=version)
    late.subscribe("home/alice/door")
    assert late.publish("home/alice/door", b"end", 1) == 0
    late.expect_payloads(b"end")


@both
def test_a_users_own_rule_goes_before_the_rule_for_all(as_user: Callable[..., Device], version: int) -> None:
    alice, bob = as_user("alice", version=version), as_user("bob", version=version)
    assert bob.subscribe("board/closed", 1) == 1, "only publishing is denied"
    assert bob.publish("board/closed", b"no", 1) == (NOT_AUTHORIZED if version == V5 else 0)
    assert alice.publish("board/closed", b"yes", 1) == 0
    bob.expect_payloads(b"yes")


@both
def test_a_will_needs_the_right_to_publish(guarded: BrokerProcess, devices: Devices, version: int) -> None:
    def bob_with_will(topic: str) -> Device:
        return devices(
            guarded.port, version=version, user=("bob", "builder"), will=(topic, b"gone", 1, False)
        )

    assert bob_with_will("home/alice/door").try_connect().value == NOT_AUTHORIZED
    bob_with_will("board/open").connect()


# ------------------------------------------------------------------------------- what belongs to whom


@both
@pytest.mark.parametrize("is_away", [False, True], ids=["connected", "away"])
def test_another_user_with_the_same_client_id_is_refused_and_disturbs_nobody(
    guarded: BrokerProcess, as_user: Callable[..., Device], devices: Devices, version: int, is_away: bool
) -> None:
    """A session belongs to the user who made it: nobody else takes it up, ends it or reads what waits in it
    [rule 31]."""
    name = unique("owned")
    alice = as_user("alice", version=version, client_id=name, clean=False, expiry_s=3600)
    alice.subscribe("home/alice/#", 1)
    if is_away:
        alice.disconnect()
        as_user("alice", version=version).publish("home/alice/door", b"kept", 1)
    for clean in (True, False):
        bob = devices(guarded.port, version=version, user=("bob", "builder"), client_id=name, clean=clean)
        assert bob.try_connect().value == NOT_AUTHORIZED
    if is_away:
        alice = as_user("alice", version=version, client_id=name, clean=False, expiry_s=3600)
        alice.expect_payloads(b"kept")
    assert alice.publish("home/alice/door", b"still here", 1) == 0
    alice.expect_payloads(b"still here")


def test_a_producer_and_its_numbers_are_those_of_one_user(as_user: Callable[..., Device]) -> None:
    """Another user's number swallows nothing: both messages are stored and delivered [rule 31]."""
    alice, bob = as_user("alice", version=V5), as_user("bob", version=V5)
    alice.subscribe("board/#", 1)
    key = [("millrace-producer", "meter"), ("millrace-sequence", "1")]
    for sender, payload in ((bob, b"from bob"), (alice, b"from alice")):
        assert sender.publish("board/meter", payload, 1, UserProperty=key) == 0
    assert bob.publish("board/meter", b"repeated", 1, UserProperty=key) == 0
    assert alice.publish("board/end", b"end", 1) == 0
    alice.expect_payloads(b"from bob", b"from alice", b"end")


# ------------------------------------------------------------------------------------------- SIGHUP


def test_a_running_broker_takes_changes_on_sighup(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    """A new user comes in, a new rule ends what an old one allowed, for clients that are connected."""
    keeper = Keeper(tmp_path)
    keeper.user("alice", "one")
    keeper.allow("*", "all", "news/#")
    broker = start_broker(*keeper.reloading)
    alice = devices(broker.port, user=("alice", "one")).connect()
    assert alice.subscribe("news/#", 1) == 1

    keeper.user("carol", "two")
    newcomer = ("carol", "two")
    assert devices(broker.port, user=newcomer).try_connect().value == BAD_PASSWORD
    broker.reload()
    carol = devices(broker.port, user=newcomer).connect()
    carol.publish("news/local", b"1", 1)
    alice.expect_payloads(b"1")

    # In front of the rule for everybody: the user's own rules are asked first.
    keeper.run("acl", "add", "alice", "deny", "subscribe", "news/secret")
    broker.reload()
    assert carol.publish("news/secret", b"2", 1) == 0
    assert carol.publish("news/local", b"3", 1) == 0
    alice.expect_payloads(b"3")

    keeper.run("user", "passwd", "carol", "--password-stdin", stdin="three\n")
    broker.reload()
    assert devices(broker.port, user=newcomer).try_connect().value == BAD_PASSWORD
    devices(broker.port, user=("carol", "three")).connect()


def test_a_broken_file_changes_nothing(start_broker: StartBroker, devices: Devices, tmp_path: Path) -> None:
    """The broker says so and keeps the users and rules it has; a good file is taken again."""
    keeper = Keeper(tmp_path)
    keeper.user("alice", "one")
    broker = start_broker(*keeper.reloading)
    good = keeper.file.read_text()
    keeper.file.write_text("rules = [ { user = 1 } ]\n[users]\n")
    broker.reload()
    assert "the old users and rules stay in force" in broker.log
    devices(broker.port, user=("alice", "one")).connect()
    assert devices(broker.port).try_connect().value == NOT_AUTHORIZED
    keeper.file.unlink()
    broker.reload()
    devices(broker.port, user=("alice", "one")).connect()
    keeper.file.write_text(good)
    broker.reload()
    assert "reloaded: 1 users" in broker.log
