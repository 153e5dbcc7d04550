"""`millrace pub` and `millrace sub` as a shell runs them: output, exit status, and every way to end."""

import base64
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from e2e.processes import MILLRACE, environment
from millrace.broker.access import Action, Effect, Rule
from millrace.cli.main import run
from millrace.client import blocking
from millrace.node.access.passwords import hash_password
from millrace.node.access.users import change
from millrace.testing import ThreadedBroker
from millrace.types import Properties

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    with ThreadedBroker(listeners__ws="127.0.0.1:0") as running:
        yield running


class Result(NamedTuple):
    status: int
    out: bytes
    err: bytes


Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Call:
    """Runs the program in this process, as the shell would: most tests are not about processes."""

    def run_program(*arguments: str, stdin: bytes = b"", password: str | None = None) -> Result:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        monkeypatch.delenv("MILLRACE_PASSWORD", raising=False)
        if password is not None:
            monkeypatch.setenv("MILLRACE_PASSWORD", password)
        capfdbinary.readouterr()
        try:
            status = run()
        except SystemExit as stop:
            status = int(stop.code or 0)
        sys.stdout.flush()
        return Result(status, *capfdbinary.readouterr())

    return run_program


def spawn(*arguments: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """Runs the program as a process of its own."""
    return subprocess.run(
        [MILLRACE, *arguments],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )


@contextmanager
def subscriber(
    *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A running `millrace sub`; ended with its test."""
    process = subprocess.Popen(
        [MILLRACE, "sub", *arguments], stdout=stdout, stderr=subprocess.PIPE, env=environment()
    )
    with process:
        try:
            yield process, process.stdout  # type: ignore[misc]
        finally:
            process.kill()


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit status and what was complained about."""
    assert process.stderr is not None
    status = process.wait(PATIENCE_S)
    return status, process.stderr.read()


# -------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("scheme", "protocol", "qos"), [("mqtt", "5", "2"), ("mqtt", "3.1.1", "1"), ("ws", "5", "1")]
)
def test_what_is_published_is_printed(
    broker: ThreadedBroker, call: Call, scheme: str, protocol: str, qos: str
) -> None:
    topic = f"print/{scheme}/{protocol}"
    options = ("--url", f"{scheme}://127.0.0.1:{broker.ports[scheme]}", "--protocol", protocol, "-q", qos)
    done = call("pub", f"{topic}/a", "21.5 °C", "--retain", *options)
    assert done == Result(0, f"published 1 message to {topic}/a, acknowledged\n".encode(), b"")
    shown = call("sub", f"{topic}/#", "-v", "--count", "1", *options)
    assert shown == Result(0, f"{topic}/a 21.5 °C\n".encode(), b"")


def test_a_file_is_published_and_printed_in_a_format_of_ones_own(
    broker: ThreadedBroker, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "message").write_bytes(b"from a\xff file")
    address = broker.url.removeprefix("mqtt://")
    assert call("pub", "file/a", "-f", str(tmp_path / "message"), "--retain", "--url", address).status == 0
    shown = call(
        "sub",
        "file/#",
        "-n",
        "1",
        "--format",
        "{qos}\\t{topic}: {payload} {{{bytes}}} {hex}",
        "--url",
        address,
    )
    assert shown.out == b"1\tfile/a: from a\\xff file {12} 66726f6d2061ff2066696c65\n"


def test_a_message_is_repeated_for_a_time(broker: ThreadedBroker, call: Call) -> None:
    done = call("pub", "repeated", "x", "--every", "20ms", "--for", "200ms", "--json", "--url", broker.url)
    assert done.status == 0
    assert 2 <= json.loads(done.out)["acknowledged"] <= 10


def test_a_subscriber_prints_as_messages_come(broker: ThreadedBroker, call: Call) -> None:
    url = ("--url", broker.url)
    with blocking.Client(broker.url) as client:
        client.publish("stream/ready", "ready", retain=True)
        with subscriber("stream/#", "--count", "7", *url) as (process, out):
            # What is retained comes once the subscription stands.
            assert out.readline() == b"ready\n"
            assert spawn("pub", "stream/a", "-", *url, stdin=b"two\nlines").returncode == 0
            assert [out.readline(), out.readline()] == [b"two\n", b"lines\n"]
            done = call("pub", "stream/a", "-", "--lines", "--json", *url, stdin=b"one\r\n\ntwo")
            assert [out.readline() for _ in range(3)] == [b"one\n", b"\n", b"two\n"]
            assert json.loads(done.out) == {
                "topic": "stream/a",
                "messages": 3,
                "bytes": 6,
                "qos": 1,
                "retain": False,
            }
            assert call("pub", "stream/a", "again", "--repeat", "2", "-q", "0", *url).status == 0
            assert [out.readline(), out.readline()] == [b"again\n"] * 2
            assert end_of(process) == (0, b"")


def test_many_lines_leave_in_order(broker: ThreadedBroker) -> None:
    with blocking.Client(broker.url) as client, client.subscribe("many") as messages:
        lines = b"".join(b"%d\n" % at for at in range(1500))
        done = spawn("pub", "many", "-", "--lines", "--url", broker.url, stdin=lines)
        assert done.stdout == b"published 1500 messages to many, acknowledged\n"
        got = [int(messages.get(PATIENCE_S).payload) for _ in range(1500)]
        assert got == list(range(1500))


def test_json_lines_say_everything(broker: ThreadedBroker, call: Call) -> None:
    with blocking.Client(broker.url) as client:
        properties = Properties(content_type="x", user=(("k", "v"),), correlation_data=b"\xff")
        client.publish("json/1", "text ü", retain=True, properties=properties)
        client.publish("json/2", b"\xff\x00", retain=True, qos=0)
    shown = call("sub", "json/1", "json/2", "--json", "--count", "2", "--url", broker.url)
    assert shown.status == 0
    rows = sorted((json.loads(line) for line in shown.out.splitlines()), key=lambda row: str(row["topic"]))
    assert rows == [
        {
            "topic": "json/1",
            "payload": "text ü",
            "qos": 1,
            "retain": True,
            "content_type": "x",
            "correlation_data": base64.b64encode(b"\xff").decode(),
            "user": [["k", "v"]],
        },
        {
            "topic": "json/2",
            "payload": base64.b64encode(b"\xff\x00").decode(),
            "encoding": "base64",
            "qos": 0,
            "retain": True,
        },
    ]


def test_a_group_shares_and_leaves_the_rest_to_the_others(broker: ThreadedBroker) -> None:
    url = ("--url", broker.url)
    with blocking.Client(broker.url) as client, client.subscribe("shared", group="g") as mine:
        with subscriber("shared", "--group", "g", "--count", "1", *url) as (process, out):
            # Turns alternate: one of the two gets there as soon as it is a member.
            sent, end_s = 0, time.monotonic() + PATIENCE_S
            while process.poll() is None and time.monotonic() < end_s:
                client.publish("shared", str(sent))
                sent += 1
            assert end_of(process) == (0, b"")
            theirs = out.read().split()
        assert len(theirs) == 1
        own = [mine.get(PATIENCE_S).payload for _ in range(sent - 1)]
        assert sorted([*own, *theirs], key=int) == [b"%d" % at for at in range(sent)]


def test_a_message_cannot_steer_the_terminal(broker: ThreadedBroker) -> None:
    with blocking.Client(broker.url) as client:
        client.publish("terminal", b"\x1b[31mred\xff", retain=True)
    ours, theirs = pty.openpty()
    try:
        with subscriber("terminal", "-v", "--count", "1", "--url", broker.url, stdout=theirs) as (process, _):
            assert end_of(process) == (0, b"")
            assert os.read(ours, 1000) == b"terminal \\x1b[31mred\\xff\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


# ---------------------------------------------------------------------------------------------------- endings


def test_time_is_up(broker: ThreadedBroker, call: Call) -> None:
    arguments = ("sub", "silence", "--timeout", "0.1", "--url", broker.url)
    assert call(*arguments) == Result(0, b"", b"")
    complaint = b"millrace: 0 of 2 messages came within 0.1 s\n"
    assert call(*arguments, "--count", "2") == Result(1, b"", complaint)


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--count", "5"), 1)])
def test_an_interrupt_ends_quietly(broker: ThreadedBroker, arguments: tuple[str, ...], status: int) -> None:
    with blocking.Client(broker.url) as client:
        client.publish("interrupt", "ready", retain=True)
    with subscriber("interrupt", *arguments, "--url", broker.url) as (process, out):
        assert out.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert end_of(process) == (status, b"")


def test_a_reader_that_has_enough_ends_it_quietly(broker: ThreadedBroker) -> None:
    with blocking.Client(broker.url) as client:
        client.publish("enough", "first", retain=True)
        with subscriber("enough", "--url", broker.url) as (process, out):
            assert out.readline() == b"first\n"
            out.close()
            client.publish("enough", "second")
            assert end_of(process) == (0, b"")


def test_a_publisher_can_be_interrupted(broker: ThreadedBroker) -> None:
    with blocking.Client(broker.url) as client, client.subscribe("endless") as messages:
        process = subprocess.Popen(
            [MILLRACE, "pub", "endless", "-", "--lines", "--url", broker.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        with process:
            assert process.stdin is not None
            process.stdin.write(b"one\n")
            process.stdin.flush()
            assert messages.get(PATIENCE_S).payload == b"one", "a line does not wait for the next"
            process.send_signal(signal.SIGINT)
            assert end_of(process) in (
                (1, b"millrace: interrupted; 1 of 1 messages were published\n"),
                # Others may see a message before its publisher hears of it.
                (1, b"millrace: interrupted; 0 of 1 messages were published\n"),
            )


# ----------------------------------------------------------------------------------------------------- errors


def test_nobody_listens(call: Call) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"mqtt://127.0.0.1:{unused.getsockname()[1]}"
        for arguments in (("pub", "a", "b"), ("sub", "a")):
            complaint = (
                f"millrace: cannot connect to {url}: connection refused; "
                "start a broker with `millrace start`, or name one with --url\n"
            )
            assert call(*arguments, "--url", url) == Result(1, b"", complaint.encode())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("pub", "a"), "give the message"),
        (("pub", "a", "b", "-f", "c"), "one of them"),
        (("pub", "a", "-f", "/no/such/file"), "/no/such/file: No such file"),
        (("pub", "a", "b", "--for", "soon"), "'soon' is not a time"),
        (("sub", "a", "--format", "{topic.__class__}"), "--format does not know {topic.__class__}"),
        (("sub", "a", "--format", "{topic"), "a brace is written twice"),
        (("pub", "a", "b", "-q", "3"), "Invalid value for '-q'"),
        (("pub", "a", "b", "--lines"), "put - in place of the message"),
        (("pub", "a", "-", "--lines", "--repeat", "2"), "does not go together"),
        (("pub", "a/#", "b"), "wildcard"),
        (("pub", "a/#", "b", "--every", "10ms", "--repeat", "2"), "wildcard"),
        (("pub", "a", "b", "--every", "10ms", "--repeat", "2", "--backup", "x://y"), "begins with mqtt://"),
        (("sub", "a", "--backup", "x://y"), "begins with mqtt://"),
        (("sub", "a/#/b", "--backup", "mqtt://127.0.0.1:1"), "not valid"),
        (("pub", "a", "b", "--url", "ftp://localhost:1883"), "begins with mqtt://"),
        (("sub",), "Missing argument"),
        (("sub", "a/#/b"), "not valid"),
        (("sub", "a", "--group", "x/y"), "has no /"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_use_is_status_2(
    broker: ThreadedBroker, call: Call, arguments: tuple[str, ...], complaint: str
) -> None:
    url = () if "--url" in arguments else ("--url", broker.url)
    done = call(*arguments, *url)
    assert (done.status, done.out) == (2, b"")
    assert complaint in done.err.decode()


ALLOW_ALL = Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="#")


def test_on_an_interval_what_may_not_be_published_is_given_up_and_is_status_1(
    tmp_path: Path, call: Call
) -> None:
    users = tmp_path / "users.toml"
    rules = [
        Rule(user="*", effect=Effect.DENY, action=Action.PUBLISH, filter="no/#"),
        ALLOW_ALL,
    ]
    for rule in rules:
        change(users, lambda content, rule=rule: content.with_rule(rule))
    with ThreadedBroker(access__users_file=str(users)) as broker:
        pace = ("--every", "10ms", "--repeat", "2", "--json", "--url", broker.url)
        for topic, status, given_up in (("yes/a", 0, 0), ("no/a", 1, 2)):
            done = call("pub", topic, "x", *pace)
            assert (done.status, json.loads(done.out)["given_up"]) == (status, given_up)


def test_commands_that_ask_a_node_know_the_user_by_environment(tmp_path: Path, call: Call) -> None:
    users = tmp_path / "users.toml"
    change(users, lambda content: content.with_user("ann", hash_password(b"s/ecret")).with_rule(ALLOW_ALL))
    settings = {"access__users_file": str(users), "access__anonymous": "never"}
    with ThreadedBroker(listeners__http="127.0.0.1:0", **settings) as broker:
        url = f"http://ann@127.0.0.1:{broker.ports['http']}"
        for command in (("status",), ("node", "list")):
            assert call(*command, "--url", url, password="s/ecret").status == 0
            assert call(*command, "--url", url, password="wrong").status == 1


def test_users_are_known_by_url_or_by_environment(tmp_path: Path, call: Call) -> None:
    users = tmp_path / "users.toml"
    change(users, lambda content: content.with_user("ann", hash_password(b"s/ecret")).with_rule(ALLOW_ALL))
    with ThreadedBroker(access__users_file=str(users), access__anonymous="never") as broker:
        address = f"127.0.0.1:{broker.port}"
        assert call("pub", "a", "b", "--url", f"mqtt://ann:s%2Fecret@{address}").status == 0
        assert call("pub", "a", "b", "--url", f"mqtt://ann@{address}", password="s/ecret").status == 0
        for url in (f"mqtt://{address}", f"mqtt://ann:wrong@{address}"):
            done = call("pub", "a", "b", "--url", url)
            assert done.status == 1
            assert b"was refused" in done.err and b"MILLRACE_PASSWORD" in done.err
            assert b"wrong@" not in done.err
