"""The command line: what is printed, what the users file holds afterwards, and the exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from millrace.broker.streams.pair_spec import PairSpec
from millrace.broker.streams.stream import StreamSpec
from millrace.cli.main import FAMILIES, app
from millrace.cli.shared.tables import printable
from millrace.errors import LocalError
from millrace.node.access.passwords import matches
from millrace.node.access.users import load
from millrace.node.config import Config, describe
from unit.cli.shell import Result, Run

USERS = Path("millrace-data/users.toml")
FILE = ("--data", "millrace-data")


def add_user(millrace: Run, name: str, *arguments: str, password: bytes = b"secret\n") -> None:
    done = millrace("user", "add", name, "--password-stdin", *(arguments or FILE), stdin=password)
    assert done.status == 0


def test_a_user_is_added_with_the_first_line_of_the_input_as_password(millrace: Run) -> None:
    result = millrace("user", "add", "ann", "--password-stdin", *FILE, stdin=b"se cret\r\nrest")
    assert result == Result(0, f"added user ann in {USERS}\n", "")
    assert matches(load(USERS, missing_ok=False).hashes["ann"], b"se cret")


def test_a_password_may_come_from_a_file_and_never_from_an_argument(millrace: Run, tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"se cret\nrest")
    assert millrace("user", "add", "ann", "--password-file", "password", *FILE).status == 0
    assert matches(load(USERS, missing_ok=False).hashes["ann"], b"se cret")
    assert millrace("user", "add", "bob", "--password", "x", *FILE).status == 2
    assert "No such file" in millrace("user", "add", "bob", "--password-file", "absent", *FILE).err


def test_a_password_is_changed(millrace: Run) -> None:
    add_user(millrace, "ann")
    assert millrace("user", "passwd", "ann", "--password-stdin", *FILE, stdin=b"other").status == 0
    stored = load(USERS, missing_ok=False).hashes["ann"]
    assert matches(stored, b"other") and not matches(stored, b"secret")


def test_users_are_listed_and_removed(millrace: Run) -> None:
    assert json.loads(millrace("user", "list", "--json", *FILE).out) == []
    add_user(millrace, "ann")
    add_user(millrace, "bob", password=b"x")
    assert millrace("acl", "add", "ann", "allow", "all", "a/#", *FILE).status == 0
    expected = [{"user": "ann", "rules": 1}, {"user": "bob", "rules": 0}]
    assert json.loads(millrace("user", "list", "--json", *FILE).out) == expected
    table = [line.split() for line in millrace("user", "list", *FILE).out.splitlines()]
    assert table == [["user", "rules"], ["ann", "1"], ["bob", "0"]]
    removed = millrace("user", "remove", "ann", "--yes", "--json", *FILE)
    assert json.loads(removed.out) == {"user": "ann", "rules_removed": 1, "file": str(USERS)}
    assert json.loads(millrace("user", "list", "--json", *FILE).out) == expected[1:]


def test_rules_are_added_listed_and_removed_by_number(millrace: Run) -> None:
    add_user(millrace, "ann")
    for arguments in (
        ("ann", "allow", "publish", "a/#"),
        ("*", "deny", "subscribe", "secret/#"),
        ("anonymous", "allow", "all", "home/%c/#"),
    ):
        assert millrace("acl", "add", *arguments, *FILE).status == 0
    table = [line.split() for line in millrace("acl", "list", *FILE).out.splitlines()]
    assert table == [
        ["number", "user", "effect", "action", "filter"],
        ["1", "ann", "allow", "publish", "a/#"],
        ["2", "*", "deny", "subscribe", "secret/#"],
        ["3", "anonymous", "allow", "all", "home/%c/#"],
    ]
    removed = millrace("acl", "remove", "1", "--yes", *FILE)
    assert removed == Result(0, "removed rule 1: ann allow publish a/#\n", "")
    assert json.loads(millrace("acl", "list", "--user", "*", "--json", *FILE).out) == [
        {"number": 1, "user": "*", "effect": "deny", "action": "subscribe", "filter": "secret/#"}
    ]


def test_a_long_filter_is_not_cut_in_a_pipe(millrace: Run) -> None:
    long = "/".join(["level"] * 60)
    assert millrace("acl", "add", "*", "allow", "all", long, *FILE).status == 0
    assert long in millrace("acl", "list", *FILE).out


def test_the_file_is_found_by_users_data_and_config(millrace: Run, tmp_path: Path) -> None:
    add_user(millrace, "by-users", "--users", "u.toml")
    add_user(millrace, "by-data", "--data", "d")
    (tmp_path / "m.toml").write_text('[access]\nusers_file = "c.toml"\n')
    add_user(millrace, "by-config", "--config", "m.toml")
    for path, name in (("u.toml", "by-users"), ("d/users.toml", "by-data"), ("c.toml", "by-config")):
        assert list(load(tmp_path / path, missing_ok=False).hashes) == [name]


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("user", "remove", "ann", *FILE), 1, "there is no user 'ann'"),
        (("user", "passwd", "ann", "--password-stdin", *FILE), 1, "the password is empty"),
        (("user", "add", "ann"), 2, "use --password-stdin"),
        (("user", "add"), 2, "Missing argument"),
        (("user", "list", "--users", "absent"), 2, "absent: no such file"),
        (("user", "bogus"), 2, "No such command"),
        (("bogus",), 2, "No such command"),
        (("user", "add", "ann", "--role", "admin", *FILE), 2, "a users file has no roles"),
        (("user", "add", "ann", "--role", "king"), 2, "'king'"),
        (("token", "create", "--name", "t", "--user", "u", "--expires", "soon"), 2, "'soon' is not a time"),
        (("acl", "add", "*", "permit", "all", "a"), 2, "'permit'"),
        (("acl", "add", "*", "allow", "all", "a/#/b"), 2, "'a/#/b' is not a topic filter"),
        (("acl", "add", "ann", "allow", "all", "a", *FILE), 1, "there is no user 'ann'"),
        (("acl", "remove", "1", *FILE), 1, "there is no rule 1; there are 0"),
        (("config", "--config", "absent"), 2, "absent: No such file"),
        (("config", "--set", "log.lvl=info"), 2, "the nearest is log.level"),
    ],
)
def test_errors_go_to_standard_error_with_their_status(
    millrace: Run, arguments: tuple[str, ...], status: int, expected: str
) -> None:
    result = millrace(*arguments)
    assert result.status == status
    assert expected in result.err
    assert result.out == ""


def test_a_name_for_a_user_is_refused_with_what_it_may_hold(millrace: Run) -> None:
    result = millrace("user", "add", "bad name:!", "--password-stdin", *FILE, stdin=b"secret\n")
    assert result.status == 1
    assert "letters, digits and . _ - @" in result.err


def test_config_prints_the_effective_configuration(
    millrace: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert millrace("config").out == describe(Config())
    (tmp_path / "m.toml").write_text('[log]\nlevel = "debug"\nformat = "json"\n')
    monkeypatch.setenv("MILLRACE_LOG__LEVEL", "error")
    arguments = ("config", "--config", "m.toml", "--set", "node.id=n7", "--json")
    table = json.loads(millrace(*arguments).out)
    assert table["log"] == {"level": "error", "format": "json"}
    assert table["node"]["id"] == "n7"


def leaves() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    root = typer.main.get_command(app)
    for name in FAMILIES:
        command = root.get_command(None, name)  # type: ignore[attr-defined]
        children = getattr(command, "commands", None)
        found += [(name, child) for child in children] if children else [(name,)]
    return found


@pytest.mark.parametrize("path", leaves(), ids=" ".join)
def test_every_command_has_help_with_an_example(millrace: Run, path: tuple[str, ...]) -> None:
    result = millrace(*path, "--help")
    assert result.status == 0
    assert f"Example:\n    millrace {path[0]}" in result.out
    # Those that only run until they are stopped print a log, not a result.
    assert "--json" in result.out or path[0] in {"start", "pub", "demo", "cluster", "pipeline", "completion"}


def test_the_list_of_commands_names_every_family(millrace: Run) -> None:
    out = millrace("--help").out
    for name in FAMILIES:
        assert f"\n  {name} " in out


def test_the_version_is_shown_without_loading_the_broker() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "millrace.cli.main", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.startswith("millrace 0.")
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "typer" in loaded
    for heavy in ("rich.console", "argon2", "asyncio", "millrace.node", "millrace.broker", "msgspec"):
        assert heavy not in loaded


def test_optimised_python_is_refused() -> None:
    result = subprocess.run(
        [sys.executable, "-O", "-m", "millrace.cli.main", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "run without -O" in result.stderr
    assert result.stdout == ""


def test_names_and_topics_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31m\n\udcffé") == "a\\x1b[31m\\n\\udcffé"


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon", "", "1e999"])
@pytest.mark.parametrize("option", ["publisher", "failover"])
def test_a_bound_is_a_duration(millrace: Run, option: str, value: str) -> None:
    result = millrace("stream", "create", "s", "s/#", f"--{option}-bound", value)
    assert result.status == 2
    sentence = f"stream 's': {option}_ms = {value!r}: expected milliseconds from 0 "
    assert result.err.startswith(f"millrace: {sentence}")


@pytest.mark.parametrize("family", ["stream", "group"])
def test_a_change_of_nothing_is_wrong_use_and_names_the_options(millrace: Run, family: str) -> None:
    result = millrace(family, "alter", "s")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("millrace: say what to change, with one or more of: --filter, --")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--shards", "0"),
        ("--shards", "many"),
        ("--replicas", "0"),
        ("--capture", "most"),
        ("--retention-age", "7 days"),
        ("--retention-bytes", "1e9"),
        ("--check-interval", "1"),
        ("--edge", "nonsense"),
    ],
)
def test_an_option_is_refused_with_the_sentence_of_the_setting(
    millrace: Run, option: str, value: str
) -> None:
    """The same at the command line as at every other door."""
    tables = (StreamSpec, PairSpec)
    field = next(one for kind in tables for one in kind.fields().values() if one.option == option)
    with pytest.raises(LocalError) as caught:
        field.read(field.from_text(value))
    result = millrace("stream", "alter", "s", option, value)
    assert (result.status, result.err) == (2, f"millrace: stream 's': {caught.value}\n")
