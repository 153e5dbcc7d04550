"""The audit stream: logins, refusals and changes are read like other messages, and forged by nobody."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import StartBroker
from e2e.device import V5, Device
from e2e.http_calls import call
from e2e.processes import BrokerProcess, complaint, millrace
from waiting import until

Devices = Callable[..., Device]

ROOT = ("root", "root-secret-1")


@pytest.fixture
def audited(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    config = tmp_path / "millrace.toml"
    config.write_text('[audit]\ntopic = "audit"\n[streams.audit]\nfilters = ["audit/#"]\n')
    broker = start_broker("--config", str(config))
    words = ("user", "add", "root", "--role", "admin", "--password-stdin", "--url", broker.url)
    done = millrace(*words, stdin=f"{ROOT[1]}\n")
    assert done.returncode == 0, done.stderr
    return broker


def admin(broker: BrokerProcess, *words: str, stdin: str = "") -> str:
    url = broker.url.replace("//", "//root@")
    done = millrace(*words, stdin=stdin, MILLRACE_URL=url, MILLRACE_PASSWORD=ROOT[1])
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(broker: BrokerProcess) -> list[dict[str, Any]]:
    from millrace.client.http import Http

    with Http(broker.url.replace("//", "//root@"), password=ROOT[1]) as http:
        shards = http.get("/v1/streams/audit")["shard_list"]
        page = http.messages("audit", shards[0]["shard"], "earliest")
    return [json.loads(row["payload"]) for row in page["messages"]]


def test_logins_refusals_and_changes_are_in_the_stream(audited: BrokerProcess, devices: Devices) -> None:
    admin(audited, "user", "add", "ann", "--password-stdin", stdin="ann-secret-2\n")
    admin(audited, "acl", "add", "ann", "allow", "all", "a/#")
    ann = devices(audited.port, version=V5, user=("ann", "ann-secret-2")).connect()
    ann.subscribe("b/#")
    devices(audited.port, version=V5, user=("ann", "wrong-secret-3")).try_connect()
    devices(audited.port, version=V5).try_connect()
    wanted = (
        ("access", "'root' added user ann", "root"),
        ("access", "added the rule ann allow all a/#", "root"),
        ("client", "connected from", "ann"),
        ("access", "may not subscribe to 'b/#'", "ann"),
        ("access", "wrong password for user 'ann'", "ann"),
        ("access", "anonymous clients may not connect", None),
    )

    def is_told(kind: str, text: str, user: str | None) -> bool:
        return any(
            row["kind"] == kind and text in row["text"] and row["fields"].get("user") == user
            for row in told(audited)
        )

    for kind, text, user in wanted:
        until(lambda kind=kind, text=text, user=user: is_told(kind, text, user), text)
    assert not re.search("secret-[123]", json.dumps(told(audited)))


def test_nobody_forges_or_reads_it_without_a_rule(audited: BrokerProcess, devices: Devices) -> None:
    admin(audited, "user", "add", "ann", "--password-stdin", stdin="ann\n")
    admin(audited, "acl", "add", "ann", "allow", "all", "a/#")
    root = devices(audited.port, version=V5, user=ROOT).connect()
    assert root.publish("audit/n1/access", b"forged", 1) == 0x87, "not even an administrator"
    assert root.subscribe("audit/#", 1) == 1
    ann = devices(audited.port, version=V5, user=("ann", "ann")).connect()
    assert ann.subscribe("audit/#") == 0x87 and ann.publish("audit/x", b"", 1) == 0x87
    admin(audited, "acl", "add", "ann", "allow", "subscribe", "audit/#")
    assert ann.subscribe("audit/#", 1) == 1


def ask(broker: BrokerProcess, user: tuple[str, str], method: str, path: str, body: Any = None) -> int:
    from base64 import b64encode

    name = "Basic " + b64encode(":".join(user).encode()).decode()
    return call(broker.ports["http"], method, path, body, Authorization=name).status


def test_an_operator_forges_nothing_by_dead_letters(audited: BrokerProcess) -> None:
    """What a group gives up is republished by the node; below the audit nothing is."""
    admin(audited, "user", "add", "ops", "--role", "operator", "--password-stdin", stdin="pw\n")
    ops = ("ops", "pw")
    dead = {"deliveries_max": 1, "dead_letter": "audit/n1/access"}
    made = {"name": "g", "filters": ["jobs/#"]}
    assert ask(audited, ops, "POST", "/v1/groups", {**made, **dead}) == 400
    assert ask(audited, ops, "PUT", "/topic", {"topic": "jobs/x", **dead}) == 400
    assert ask(audited, ops, "POST", "/v1/groups", made) == 201
    assert ask(audited, ops, "PATCH", "/v1/groups/g", dead) == 400


def test_dead_letters_wait_where_their_topic_became_that_of_the_audit(tmp_path: Path) -> None:
    """The group is older than the audit, or was made at a node without one."""
    dead = {"deliveries_max": 1, "dead_letter": "audit/n1/access"}
    broker = BrokerProcess(tmp_path / "data").wait_ready()
    try:
        port = broker.ports["http"]
        made = {"name": "g", "filters": ["jobs/#"], **dead}
        assert call(port, "POST", "/v1/groups", made).status == 201
        assert call(port, "POST", "/v1/publish", {"topic": "jobs/x", "payload": "forged"}).status == 200
        broker.stop()
        broker = BrokerProcess(tmp_path / "data", "--set", "audit.topic=audit").wait_ready()
        port = broker.ports["http"]
        form = {"ack": "manual", "lease_ms": 60_000, "wait_ms": 10_000}
        (taken,) = call(port, "POST", "/v1/groups/g/take", form).json["messages"]
        nack = {"receipts": [taken["receipt"]]}
        assert call(port, "POST", "/v1/groups/g/nack", nack).status == 200
        until(lambda: "dead letters of group g wait" in broker.log, "the group to be told")
        assert call(port, "POST", "/v1/groups", {"name": "d", "filters": ["dead"]}).status == 201
        assert call(port, "PATCH", "/v1/groups/g", {"dead_letter": "dead"}).status == 200
        (dead_one,) = call(port, "POST", "/v1/groups/d/take", form).json["messages"]
        assert dead_one["payload"] == "forged"
    finally:
        broker.stop()


def test_only_administrators_change_the_stream_of_the_audit(audited: BrokerProcess) -> None:
    """An operator neither empties it, nor lets it keep nothing, nor makes another stream in front of it."""
    admin(audited, "user", "add", "ops", "--role", "operator", "--password-stdin", stdin="pw\n")
    ops = ("ops", "pw")
    for method, path, body in (
        ("POST", "/v1/streams", {"name": "void", "filters": ["audit/n1/#"], "replication": "routed"}),
        ("POST", "/v1/streams", {"name": "void", "filters": ["+/n1/access"], "capture": "none"}),
        ("PATCH", "/v1/streams/audit", {"retention_age_s": 1}),
        ("PATCH", "/v1/streams/audit", {"filters": ["elsewhere/#"]}),
        ("POST", "/v1/streams/audit/purge", {}),
        ("DELETE", "/v1/streams/audit", None),
    ):
        assert ask(audited, ops, method, path, body) == 403, (method, path)
    other = {"name": "other", "filters": ["other/#"]}
    assert ask(audited, ops, "POST", "/v1/streams", other) == 201
    assert ask(audited, ops, "PATCH", "/v1/streams/other", {"filters": ["audit/#"]}) == 403
    assert ask(audited, ops, "DELETE", "/v1/streams/other") == 204
    assert ask(audited, ROOT, "PATCH", "/v1/streams/audit", {"retention_age_s": 1_000}) == 200


def test_a_stream_that_takes_nothing_holds_up_no_login(start_broker: StartBroker, devices: Devices) -> None:
    """No disk is left, so the log refuses: clients come in all the same."""
    broker = start_broker(
        "--set",
        "audit.topic=audit",
        "--set",
        f"storage.free_bytes_min={2**50}",
        "--set",
        "limits.connections_max=5000",
    )
    for _ in range(20):
        devices(broker.port).connect()


def test_a_topic_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    for topic in ("$audit", "a/#", "/"):
        done = millrace("start", "--data", str(tmp_path), "--set", f"audit.topic={topic}")
        assert done.returncode == 2 and "audit.topic" in complaint(done), (topic, done.stderr)
