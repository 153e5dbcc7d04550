"""Which nodes a command talks to, how errors look to programs, and what the Tab key offers."""

import json
import os
from pathlib import Path

import pytest

from millrace.cli.shared.contexts import mqtt_urls
from millrace.local_cluster import state
from unit.cli.fake_node import FakeNode
from unit.cli.shell import Run

MEMBERS = {
    "members": [
        {"node": "n1", "state": "unreachable", "leads_meta": False, "leads": 0, "mqtt": "10.0.0.1:1883"},
        {"node": "n2", "state": "up", "leads_meta": True, "leads": 1, "mqtt": "0.0.0.0:1884"},
        {"node": "n3", "state": "up", "leads_meta": True, "leads": 1, "mqtt": None},
    ],
    "groups": [],
}


def test_a_context_is_used_until_another_is(millrace: Run, node: FakeNode, tmp_path: Path) -> None:
    node.answers["GET", "/v1/cluster"] = MEMBERS
    assert millrace("context", "add", "lab", f"ann:secret@{node.address}").status == 0
    file = tmp_path / "config" / "millrace" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "n2" in millrace("node", "list").out
    listed = millrace("context", "list").out
    assert "secret" not in listed
    assert f"in force: ann@{node.address}, from context lab" in listed
    assert millrace("context", "use", "other").status == 2
    assert millrace("context", "use", "--none").status == 0
    assert "from the defaults" in millrace("context", "list").out
    assert millrace("context", "remove", "lab").status == 2
    assert millrace("context", "remove", "lab", "--yes").status == 0


def test_the_environment_is_above_the_context_and_the_option_above_both(
    millrace: Run, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.answers["GET", "/v1/cluster"] = MEMBERS
    monkeypatch.setenv("MILLRACE_URL", "127.0.0.1:1")
    millrace("context", "add", "lab", node.address)
    assert millrace("node", "list").status == 1
    # One that does not answer is passed over.
    assert millrace("node", "list", "--url", f"127.0.0.1:1,{node.address}").status == 0


def test_a_local_cluster_that_runs_is_meant_where_nothing_is_said(
    millrace: Run, node: FakeNode, tmp_path: Path
) -> None:
    node.answers["GET", "/v1/cluster"] = MEMBERS
    record = state.NodeRecord(name="n1", number=0, state="running", mqtt="h:1", http=node.address, peer="h:3")
    directory = tmp_path / "millrace-cluster"
    directory.mkdir()
    running = state.process(os.getpid())
    state.write(directory, state.ClusterRecord(base_port=1, nodes=(record,), supervisor=running))
    assert millrace("node", "list").status == 0
    assert mqtt_urls(None) == ["mqtt://h:1"]


@pytest.mark.usefixtures("millrace")
def test_mqtt_ports_are_asked_of_a_node_where_only_its_http_address_is_known(node: FakeNode) -> None:
    node.answers["GET", "/v1/cluster"] = MEMBERS
    expected = ["mqtt://ann@127.0.0.1:1884", "mqtt://ann@10.0.0.1:1883"]
    assert mqtt_urls(f"http://ann@{node.address}") == expected
    assert mqtt_urls(["h:1", "http://x:2"]) == ["mqtt://h:1"]
    assert mqtt_urls(None) == ["mqtt://127.0.0.1:1883"]


def test_an_mqtt_address_is_refused_where_http_is_spoken(millrace: Run) -> None:
    result = millrace("node", "list", "--url", "mqtt://ann:secret@h:1883")
    assert result.status == 2
    assert "this command speaks HTTP" in result.err
    assert "secret" not in result.err


def test_errors_are_json_where_json_is_asked_for(millrace: Run, node: FakeNode) -> None:
    node.answers["GET", "/v1/streams/x"] = [(404, {"detail": "there is no stream 'x'", "status": 404})]
    result = millrace("stream", "show", "x", "--json", "--url", node.address)
    assert result.out == ""
    assert json.loads(result.err) == {
        "detail": "there is no stream 'x'", "status": 404, "error": "there is no stream 'x'",
        "exit_status": 1,
    }  # fmt: skip
    wrong = json.loads(millrace("stream", "show", "--json").err)
    assert wrong["exit_status"] == 2
    assert "Missing argument" in wrong["error"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("strem", "list"), "Did you mean 'stream'?"),
        (("stream", "lst"), "Did you mean 'list'?"),
        (("stream", "list", "--jsn"), "--json"),
    ],
)
def test_what_was_meant_is_guessed(millrace: Run, arguments: tuple[str, ...], expected: str) -> None:
    result = millrace(*arguments)
    assert result.status == 2
    assert expected in result.err


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("stre",), ["stream"]),
        (("cluster", "re"), ["restart", "remove"]),
        (("cluster", "up", "--de"), ["--detach"]),
        (("pub", "--protocol", ""), ["5", "3.1.1"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("pub", "topic", ""), []),
    ],
)
def test_the_tab_key_offers_what_may_come_next(
    millrace: Run, typed: tuple[str, ...], expected: list[str]
) -> None:
    assert millrace("completion", "words", "--", *typed).out.splitlines() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(millrace: Run, shell: str) -> None:
    assert "millrace completion words --" in millrace("completion", shell).out
