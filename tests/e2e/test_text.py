"""The text door of a real broker: a socket, netcat, the same rules and the same messages as MQTT."""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.device import Device, unique
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess, millrace
from millrace.limits import CONNECT_BYTES_MAX
from waiting import until

_SILENCE_S_MAX = 10.0


class Lines:
    """A text client."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), _SILENCE_S_MAX)
        self._file = self.socket.makefile("rb")

    def say(self, *lines: str) -> None:
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode())

    def hear(self) -> str:
        """The next line; empty when the broker closed."""
        return self._file.readline().decode().removesuffix("\n")

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture(scope="module")
def text_broker(start_shared: StartBroker) -> BrokerProcess:
    return start_shared("--text", "127.0.0.1:0")


@contextmanager
def client(broker: BrokerProcess, *first: str) -> Iterator[Lines]:
    lines = Lines(broker.ports["text"])
    if first:
        lines.say(*first)
        assert lines.hear().startswith("CONNACK|")
    try:
        yield lines
    finally:
        lines.close()


def test_the_conversation_as_the_requirements_write_it(text_broker: BrokerProcess) -> None:
    topic = unique("weather")
    with client(text_broker, "CONNECT|tom") as reader, client(text_broker, f"SUBSCRIBE|{topic}/x") as writer:
        assert writer.hear() == f"SUBACK|{topic}/x"
        reader.say(f"SUBSCRIBE|{topic}/#")
        assert reader.hear() == f"SUBACK|{topic}/#"
        writer.say(f"PUBLISH|{topic}/vienna|rain | wind", f"PUBLISH|{topic}/rome|")
        assert (writer.hear(), writer.hear()) == (f"PUBACK|{topic}/vienna", f"PUBACK|{topic}/rome")
        assert reader.hear() == f"MESSAGE|{topic}/vienna|rain | wind"
        assert reader.hear() == f"MESSAGE|{topic}/rome|"
        reader.say(f"UNSUBSCRIBE|{topic}/#", "NONSENSE")
        # What is wrong with a line is said at once; an answer waits for the broker.
        assert reader.hear().startswith("ERROR|'NONSENSE' is no command")
        assert reader.hear() == f"UNSUBACK|{topic}/#"


def test_text_and_mqtt_clients_share_their_topics(
    text_broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    topic = unique("shared")
    device = devices(text_broker.port).connect()
    device.subscribe(topic, qos=1)
    with client(text_broker, f"SUBSCRIBE|{topic}") as lines:
        assert lines.hear() == f"SUBACK|{topic}"
        lines.say(f"PUBLISH|{topic}|from text")
        assert {lines.hear(), lines.hear()} == {f"PUBACK|{topic}", f"MESSAGE|{topic}|from text"}
        device.expect_payloads(b"from text")
        for payload, line in ((b"from mqtt", "MESSAGE|{}|from mqtt"), (b"\xff\n", "MESSAGE64|{}|/wo=")):
            device.publish(topic, payload, qos=1)
            assert lines.hear() == line.format(topic)


@pytest.mark.parametrize("reader", ["netcat", "pipe"])
def test_netcat_publishes_and_goes_once_it_has_the_answer(text_broker: BrokerProcess, reader: str) -> None:
    """`pipe` is the same without netcat: a client that ends its own side and reads to the end."""
    topic = unique("nc")
    said = f"PUBLISH|{topic}|hello\nPUBLISH|{topic}|world\n".encode()
    if reader == "netcat":
        netcat = shutil.which("nc.openbsd")
        if netcat is None:
            pytest.skip("no netcat here: apt-get install netcat-openbsd")
        port = str(text_broker.ports["text"])
        done = subprocess.run(
            [netcat, "-N", "127.0.0.1", port], input=said, capture_output=True, timeout=20, check=False
        )
        heard = done.stdout
    else:
        with client(text_broker) as lines:
            lines.socket.sendall(said)
            lines.socket.shutdown(socket.SHUT_WR)
            heard = lines._file.read()
    assert heard.decode().splitlines()[1:] == [f"PUBACK|{topic}"] * 2


def test_the_same_access_rules_hold(start_broker: StartBroker, tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    added = millrace("user", "add", "ann", "--password-stdin", "--users", str(users), stdin="secret\n")
    assert added.returncode == 0
    assert millrace("acl", "add", "*", "allow", "all", "home/%u/#", "--users", str(users)).returncode == 0
    rules = ("--set", f"access.users_file={users}", "--set", "access.anonymous=never")
    broker = start_broker("--text", "127.0.0.1:0", *rules)
    with client(broker) as stranger:
        stranger.say("SUBSCRIBE|home/ann/x")
        assert stranger.hear().startswith("ERROR|CONNECT: not authorized")
        assert stranger.hear() == ""
    with client(broker) as wrong:
        wrong.say("CONNECT|a|ann|guess")
        assert wrong.hear().startswith("ERROR|CONNECT: ")
    with client(broker, "CONNECT|a|ann|secret") as ann:
        ann.say("PUBLISH|home/bob/x|1", "SUBSCRIBE|#", "PUBLISH|home/ann/x|1")
        assert [ann.hear() for _ in range(3)] == [
            "ERROR|home/bob/x: not authorized (0x87)",
            "ERROR|#: not authorized (0x87)",
            "PUBACK|home/ann/x",
        ]


def test_a_line_that_never_ends_is_cut_and_hurts_nobody(text_broker: BrokerProcess) -> None:
    with client(text_broker, "CONNECT|good") as good, client(text_broker, "CONNECT|bad") as bad:
        filler = b"x" * (1 << 20)
        with pytest.raises(OSError):
            while True:
                bad.socket.sendall(filler)
        good.say("PUBLISH|still/there|1")
        assert good.hear() == "PUBACK|still/there"


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_client_that_nobody_knows_yet_is_kept_no_longer_line_than_a_connect(
    text_broker: BrokerProcess, end: bytes
) -> None:
    """Thousands of strangers may wait with their first lines, each with as much as this."""
    with socket.create_connection(("127.0.0.1", text_broker.ports["text"]), timeout=5) as stranger:
        stranger.sendall(b"PUBLISH|t|" + b"x" * CONNECT_BYTES_MAX + end)
        assert b"at most" in stranger.recv(65_536)
        with suppress(ConnectionResetError):
            assert stranger.recv(65_536) == b""


@pytest.mark.long
def test_a_reader_that_does_not_read_is_cut_off(
    text_broker: BrokerProcess, devices: Callable[..., Device]
) -> None:
    topic = unique("flood")
    with client(text_broker, "CONNECT|sleeper", f"SUBSCRIBE|{topic}") as sleeper:
        assert sleeper.hear() == f"SUBACK|{topic}"
        device = devices(text_broker.port).connect()
        payload = b"x" * 200_000

        def is_gone() -> bool:
            device.publish(topic, payload, qos=1)
            return "does not read" in text_broker.log

        until(is_gone, "the sleeper to be cut off", 30.0)
        device.publish(unique("after"), b"", qos=1)


# -------------------------------------------------------------------------------------- the queue


def ask(lines: Lines, type: str, method: str, **more: str) -> object:
    lines.say(json.dumps({"type": type, "method": method, **more}))
    return json.loads(lines.hear())


def test_a_line_of_json_is_a_request_of_the_queue(text_broker: BrokerProcess) -> None:
    """The request form of the queue's first clients [G7], with the answers of `POST /`."""
    topic = unique("form")
    with client(text_broker, "CONNECT|clerk") as lines:
        assert ask(lines, "message", "PUT", topic=topic, message="x") == {
            "success": False,
            "reason": "no such topic: make it with PUT /topic",
        }
        assert ask(lines, "topic", "PUT", topic=topic) == {"success": True}
        assert ask(lines, "topic", "PUT", topic=topic) == {"success": False, "reason": "exists"}
        topics = ask(lines, "topic", "GET")
        assert isinstance(topics, dict) and topics["success"] and topic in topics["topics"]
        assert ask(lines, "message", "PUT", topic=topic, message="one\nline") == {"success": True}
        lines.say(f"PUBLISH|{topic}|two")
        assert lines.hear() == f"PUBACK|{topic}"
        assert ask(lines, "message", "GET", topic=topic) == {"success": True, "message": "one\nline"}
        assert MqttDoor(text_broker.ports["http"]).get(topic) == {"success": True, "message": "two"}
        assert ask(lines, "message", "GET", topic=topic) == {"success": False, "reason": "empty"}


def test_requests_of_the_queue_are_answered_in_their_order(text_broker: BrokerProcess) -> None:
    """Also where the first line of all is one, and where its client sends nothing more."""
    topic = unique("order")
    form = {"type": "message", "method": "PUT", "topic": topic}
    said = [{"type": "topic", "method": "PUT", "topic": topic}]
    said += [{**form, "message": str(number)} for number in range(50)]
    said += [{**form, "method": "GET"} for _ in range(51)]
    with client(text_broker) as lines:
        lines.say(*map(json.dumps, said))
        lines.socket.shutdown(socket.SHUT_WR)
        first, *heard = lines._file.read().decode().splitlines()
    assert first.startswith("CONNACK|")
    answers = [json.loads(line) for line in heard]
    assert answers[:51] == [{"success": True}] * 51
    assert [one.get("message") for one in answers[51:]] == [*map(str, range(50)), None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "the line is not JSON"),
        ('{"type": "topic", "method": "PUT"}', "give topic"),
        ('{"type": "message", "method": "PUT", "topic": "t"}', "give message"),
        ('{"type": "message", "method": "DELETE", "topic": "t"}', "method: "),
        ('{"method": "GET", "topic": "t"}', "type: Field required"),
        ('{"type": "topic", "method": "PUT", "topic": "a/#"}', "is a filter, not a topic"),
        ('{"type": ' + "[" * 5000, "nested too deeply"),
        ('{"type": [' + "1," * 200_000 + "1]}", "values"),
    ],
    ids=["cut", "no topic", "no message", "method", "no type", "filter", "nested", "many"],
)
def test_what_is_wrong_with_a_request_is_its_answer(
    text_broker: BrokerProcess, line: str, reason: str
) -> None:
    with client(text_broker, "CONNECT|clumsy") as lines:
        lines.say(line)
        answer = json.loads(lines.hear())
        assert answer["success"] is False and reason in answer["reason"]
        assert ask(lines, "topic", "GET")


def test_the_queue_asks_who_is_connected(start_broker: StartBroker, tmp_path: Path) -> None:
    """The same rules and roles as by HTTP, of the user of the connection."""
    users = tmp_path / "users.toml"
    for name in ("ann", "bob"):
        added = millrace("user", "add", name, "--password-stdin", "--users", str(users), stdin="secret\n")
        assert added.returncode == 0, added.stderr
    # Who may do everything becomes an administrator.
    for rule in (("ann", "allow", "all", "#"), ("bob", "allow", "publish", "q/#")):
        assert millrace("acl", "add", *rule, "--users", str(users)).returncode == 0
    rules = ("--set", f"access.users_file={users}", "--set", "access.anonymous=never")
    broker = start_broker("--text", "127.0.0.1:0", *rules)
    with client(broker, "CONNECT|a|ann|secret") as ann, client(broker, "CONNECT|b|bob|secret") as bob:
        refused = ask(bob, "topic", "PUT", topic="q/1")
        assert isinstance(refused, dict) and "role operator" in refused["reason"]
        assert ask(ann, "topic", "PUT", topic="q/1") == {"success": True}
        assert ask(bob, "message", "PUT", topic="q/1", message="x") == {"success": True}
        assert ask(bob, "message", "GET", topic="q/1") == {
            "success": False,
            "reason": "you may not subscribe to 'q/1'",
        }
        assert ask(bob, "topic", "GET") == {"success": True, "topics": []}
        assert ask(ann, "message", "GET", topic="q/1") == {"success": True, "message": "x"}
    with client(broker) as stranger:
        stranger.say('{"type": "topic", "method": "GET"}')
        assert stranger.hear().startswith("ERROR|CONNECT: not authorized")
        assert stranger.hear() == ""
