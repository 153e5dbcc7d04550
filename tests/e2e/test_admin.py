"""The administration of one real broker: clients, sessions, events, live views, tails, login, and names that
mean harm."""

import base64
import json
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from e2e.conftest import StartBroker
from e2e.device import V311, Device, unique
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess, millrace
from e2e.sent_events import SentEvents
from waiting import until

HOSTILE = 'a"\n<script>alert(1)</script>\x7f\u2028/ö'
DASHBOARD = {"X_Requested_With": "millrace-dashboard"}
MakeDevice = Callable[..., Device]


@pytest.fixture(scope="module")
def door(broker: BrokerProcess) -> MqttDoor:
    return MqttDoor(broker.ports["http"])


# ------------------------------------------------------------------------------------ clients, sessions


def test_clients_are_listed_found_and_paged(
    broker: BrokerProcess, door: MqttDoor, devices: MakeDevice
) -> None:
    stem = unique("paged")
    made = [devices(broker.port, client_id=f"{stem}-{number}").connect() for number in range(5)]
    made[0].subscribe("paged/#", qos=1)
    seen, cursor = [], ""
    while True:
        more = f"&cursor={quote(cursor)}" if cursor else ""
        page = door("GET", f"/v1/clients?limit=2&search={stem}{more}").json
        seen += [row["client_id"] for row in page["items"]]
        assert page["missing"] == []
        if page["next"] is None:
            break
        cursor = page["next"]
    assert seen == [f"{stem}-{number}" for number in range(5)]
    row = door("GET", f"/v1/clients?search={stem}-0").json["items"][0]
    assert row["door"] == "mqtt" and row["protocol"] == "5" and row["keep_alive_s"] == 60
    assert row["subscriptions"] == 1 and row["is_durable"] is False and row["user"] is None
    detail = door("GET", f"/v1/clients/{stem}-0").json
    assert detail["filters"][0]["filter"] == "paged/#" and detail["filters"][0]["qos"] == 1
    made[1].publish("paged/x", b"1", qos=1)
    made[0].expect()
    assert door("GET", f"/v1/clients/{stem}-1").json["received"] == 1
    assert door("GET", f"/v1/clients/{stem}-0").json["sent"] == 1
    assert door("GET", "/v1/clients?cursor=x").status == 400
    assert door("GET", "/v1/clients?limit=0").status == 422


def test_a_client_is_disconnected_by_an_administrator(
    broker: BrokerProcess, door: MqttDoor, devices: MakeDevice
) -> None:
    name = unique("kicked")
    device = devices(broker.port, client_id=name).connect()
    assert door("POST", f"/v1/clients/{name}/disconnect", {}).status == 204
    assert device.wait_closed().value == 0x98
    answer = door("POST", f"/v1/clients/{name}/disconnect", {})
    assert answer.status == 404 and name in answer.json["detail"]
    texts = [event["text"] for event in door("GET", f"/v1/events?kind=client&search={name}").json["items"]]
    assert any("connected from" in text for text in texts)
    assert any("disconnected by an administrator" in text for text in texts)


def test_durable_sessions_are_listed_and_deleted(
    broker: BrokerProcess, door: MqttDoor, devices: MakeDevice
) -> None:
    name = unique("kept")
    device = devices(broker.port, client_id=name, clean=False, expiry_s=600).connect()
    device.subscribe("kept/#", qos=1)
    row = door("GET", f"/v1/sessions?search={name}").json["items"][0]
    assert row["is_connected"] is True and row["expiry_s"] == 600 and row["subscriptions"] == 1
    device.disconnect()
    until(lambda: not door("GET", f"/v1/sessions/{name}").json["is_connected"], "the session to be away")
    door("POST", "/v1/publish", {"topic": "kept/1", "payload": "x"})
    detail = door("GET", f"/v1/sessions/{name}").json
    assert detail["away_since_us"] > 0 and detail["filters"][0]["filter"] == "kept/#"
    assert detail["queued"] >= 1 and detail["cursors"]
    assert door("DELETE", f"/v1/sessions/{name}").status == 204
    assert door("GET", f"/v1/sessions/{name}").status == 404
    assert door("DELETE", f"/v1/sessions/{name}").status == 404
    again = devices(broker.port, client_id=name, clean=False, expiry_s=600).connect()
    again.subscribe("kept/other")
    assert door("GET", f"/v1/sessions/{name}").json["subscriptions"] == 1, "nothing is left of the old one"
    assert door("DELETE", f"/v1/sessions/{name}").status == 204
    assert again.wait_closed().value == 0x98


def test_hostile_names_come_back_as_text_and_never_as_lines(
    broker: BrokerProcess, door: MqttDoor, devices: MakeDevice
) -> None:
    name = HOSTILE + unique("x")
    devices(broker.port, client_id=name, version=V311).connect()
    path = f"/v1/clients/{quote(name, safe='')}"
    answer = door("GET", path)
    assert answer.json["client_id"] == name
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert [row["client_id"] for row in door("GET", f"/v1/clients?search={quote(name)}").json["items"]] == [
        name
    ]
    assert door("POST", f"{path}/disconnect", {}).status == 204
    events = door("GET", "/v1/events?kind=client").json["items"]
    assert any(event["fields"].get("client_id") == name for event in events)
    until(lambda: "disconnected by an administrator" in broker.log, "the log to tell")
    for line in broker.log.splitlines():
        assert line[:2].isdigit(), f"a line that nobody logged: {line!r}"


# --------------------------------------------------------------------------------------- overview, live


def test_an_overview_has_figures(door: MqttDoor) -> None:
    seen = door("GET", "/v1/overview").json
    (node,) = seen["nodes"]
    assert node["state"] == "up" and node["is_answering"] and node["leads_meta"]
    assert seen["leader"] == node["node"] == seen["node"]
    figures = node["figures"]
    assert figures["memory_bytes"] > 0 and figures["disk_free_bytes"] > 0 and figures["waits_for"] == ""
    assert [stream["name"] for stream in seen["streams"]] == ["default"]
    assert {group["keeps"] for group in seen["groups"]} == {"cluster", "sessions", "stream default"}


def test_a_live_view_moves(broker: BrokerProcess, door: MqttDoor, devices: MakeDevice) -> None:
    with SentEvents(broker.ports["http"], "/v1/live") as live:
        assert live.headers["content-type"].startswith("text/event-stream")
        first = live.take("overview")
        name = unique("live")
        devices(broker.port, client_id=name).connect()
        event = live.take("event")
        assert event["kind"] == "client" and event["fields"]["client_id"] == name
        assert live.take("overview")["time_us"] > first["time_us"]


def test_a_tail_shows_messages_and_counts_what_it_leaves_out(
    broker: BrokerProcess, door: MqttDoor, devices: MakeDevice
) -> None:
    device = devices(broker.port).connect()
    with SentEvents(broker.ports["http"], "/v1/tail?filter=tail/%23&limit_per_s=5") as tail:
        assert tail.comment() == ": listening"
        device.publish("tail/a", b"\xff\x00", qos=1)
        shown = tail.take("message")
        assert (shown["topic"], shown["encoding"]) == ("tail/a", "base64")
        assert base64.b64decode(shown["payload"]) == b"\xff\x00"
        for number in range(50):
            device.publish("tail/b", str(number).encode())
        assert tail.take("skipped")["count"] > 0
    until(
        lambda: (
            door("GET", "/status").json["subscriptions"]
            == sum(row["subscriptions"] for row in door("GET", "/v1/clients?limit=1000").json["items"])
        ),
        "the subscription to end with its reader",
    )


def test_a_tail_is_no_client(broker: BrokerProcess, door: MqttDoor) -> None:
    before = door("GET", "/v1/overview").json["totals"]["clients"]
    with SentEvents(broker.ports["http"], "/v1/tail?filter=x") as tail:
        tail.comment()
        assert door("GET", "/v1/overview").json["totals"]["clients"] == before
        listed = door("GET", "/v1/clients?limit=1000").json["items"]
        assert not any(row["client_id"].startswith("$tail") for row in listed)
    assert door("GET", "/v1/tail?filter=a/%23/b").status == 400
    assert door("GET", "/v1/tail").status == 422


def test_a_reader_that_does_not_read_costs_little(broker: BrokerProcess, devices: MakeDevice) -> None:
    """Its socket is full, and the messages go on: the broker drops for it and serves the others."""
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(("127.0.0.1", broker.ports["http"]))
    stuck.sendall(b"GET /v1/tail?filter=flood/%23&limit_per_s=10000 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert stuck.recv(10)
    try:
        reader = devices(broker.port).connect()
        reader.subscribe("flood/end", qos=1)
        sender = devices(broker.port).connect()
        memory = _memory_bytes(broker)
        for _ in range(60):
            sender.publish("flood/x", b"x" * 1_000_000, qos=1)
        sender.publish("flood/end", b"end", qos=1)
        reader.expect_payloads(b"end")
        assert _memory_bytes(broker) - memory < 60_000_000
    finally:
        stuck.close()


def _memory_bytes(broker: BrokerProcess) -> int:
    for line in Path(f"/proc/{broker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_a_trace_names_the_log_and_the_receivers(
    broker: BrokerProcess, door: MqttDoor, devices: MakeDevice
) -> None:
    name = unique("trace")
    device = devices(broker.port, client_id=name).connect()
    device.subscribe("trace/+", qos=1)
    device.subscribe("$share/g/trace/#")
    assert door("POST", "/v1/groups", {"name": "tracers", "filters": ["trace/1"]}).status == 201
    found = door("GET", "/v1/trace?topic=trace/1").json
    assert (found["stream"], found["replication"], found["leader"]) == ("default", "quorum", found["leader"])
    assert found["is_captured"] == {"0": False, "1": True, "2": True}
    assert found["shard"] == 16 and found["next_offset"] >= 0 and not found["retained"]
    rows = {(row["client_id"], row["kind"], row["filter"]) for row in found["receivers"]}
    assert rows == {
        (name, "session", "trace/+"),
        (name, "group", "$share/g/trace/#"),
        ("tracers", "group", "trace/1"),
    }
    assert len(door("GET", f"/v1/trace?client={name}").json["receivers"]) == 2
    assert door("GET", "/v1/trace?topic=$SYS/x").json["stream"] is None
    assert door("GET", "/v1/trace").status == 400
    assert door("GET", "/v1/trace?topic=a/%2B").status == 400


# ------------------------------------------------------------------------------------------------ login


@pytest.fixture(scope="module")
def guarded(start_shared: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> BrokerProcess:
    """With the users ann, who may do everything, and bob, who may publish and hear below in/."""
    users = str(tmp_path_factory.mktemp("users") / "users.toml")
    for name in ("ann", "bob"):
        done = millrace("user", "add", name, "--password-stdin", "--users", users, stdin="pw\n")
        assert done.returncode == 0, done.stderr
    for rule in (("ann", "allow", "all", "#"), ("bob", "allow", "subscribe", "in/#")):
        assert millrace("acl", "add", *rule, "--users", users).returncode == 0
    return start_shared("--set", f"access.users_file={users}", "--set", "access.anonymous=never")


def _login(door: MqttDoor, user: str) -> str:
    answer = door("POST", "/v1/login", {"user": user, "password": "pw"}, **DASHBOARD)
    assert answer.status == 200, answer
    cookie = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part.lower() in cookie.lower()
    return cookie.partition(";")[0]


def test_a_page_logs_in_and_out(guarded: BrokerProcess) -> None:
    door = MqttDoor(guarded.ports["http"])
    own = f"http://127.0.0.1:{guarded.ports['http']}"
    assert door("GET", "/v1/me").json == {
        "user": None,
        "is_admin": False,
        "roles": [],
        "login_needed": True,
    }
    wrong = door("POST", "/v1/login", {"user": "ann", "password": "no"}, **DASHBOARD)
    assert wrong.status == 401 and "set-cookie" not in wrong.headers
    cookie = _login(door, "ann")
    me = door("GET", "/v1/me", Cookie=cookie).json
    assert me == {"user": "ann", "is_admin": True, "roles": ["admin"], "login_needed": False}
    assert door("PUT", "/topic", {"topic": "in/q"}, Cookie=cookie, Origin=own).status == 200
    assert door("GET", "/status", Cookie=cookie, Origin="http://evil.example").status == 401
    assert door("GET", "/status", Cookie=cookie, Sec_Fetch_Site="cross-site").status == 401
    evil = door("PUT", "/topic", {"topic": "in/q2"}, Cookie=cookie, Origin="http://evil.example")
    assert evil.status == 403
    assert door("POST", "/v1/logout", Cookie=cookie).status == 204
    assert door("GET", "/status", Cookie=cookie).status == 401
    assert door("GET", "/status", Cookie="millrace_login=x").status == 401


def test_the_dashboard_is_not_challenged(guarded: BrokerProcess) -> None:
    """On a challenge the browser would open its own dialog over the page that asks."""
    door = MqttDoor(guarded.ports["http"])
    assert "www-authenticate" in door("GET", "/status").headers
    answer = door("GET", "/status", **DASHBOARD)
    assert answer.status == 401 and "www-authenticate" not in answer.headers
    assert "pw" not in door("POST", "/v1/login", {"user": "ann", "password": "pw"}).body.decode()


def test_another_password_ends_the_login(guarded: BrokerProcess) -> None:
    door = MqttDoor(guarded.ports["http"])
    cookie = _login(door, "bob")
    assert door("GET", "/v1/me", Cookie=cookie).json["user"] == "bob"
    ann = _login(door, "ann")
    assert door("PATCH", "/v1/users/bob", {"password": "pw"}, Cookie=ann).status == 200
    assert door("GET", "/v1/me", Cookie=cookie).json["user"] is None


def test_a_page_sees_no_more_than_its_user_may_see_now(guarded: BrokerProcess) -> None:
    """Roles count at once, for a login that stands and for what is being watched; a user who is removed is
    logged out, and every change is an event."""
    door = MqttDoor(guarded.ports["http"])
    ann = {"Cookie": _login(door, "ann")}
    cat = {"name": "cat", "password": "pw", "roles": ["observer"]}
    assert door("POST", "/v1/users", cat, **ann).status == 201
    rule = {"user": "cat", "effect": "allow", "action": "subscribe", "filter": "in/#"}
    assert door("POST", "/v1/rules", rule, **ann).status == 201
    cookie = {"Cookie": _login(door, "cat")}
    assert door("GET", "/v1/me", **cookie).json["roles"] == ["observer"]
    assert door("POST", "/v1/streams", {"name": "s", "filters": ["s/#"]}, **cookie).status == 403
    port = guarded.ports["http"]
    with (
        SentEvents(port, "/v1/live", **cookie) as live,
        SentEvents(port, "/v1/tail?filter=in/a", **cookie) as tail,
    ):
        live.take("overview")
        tail.comment()
        assert door("PATCH", "/v1/users/cat", {"roles": []}, **ann).status == 200
        with pytest.raises(EOFError):
            live.take("nothing has this name")
        for path in (
            "/v1/overview",
            "/v1/live",
            "/v1/events",
            "/v1/clients",
            "/v1/trace?topic=a",
            "/metrics",
        ):
            assert door("GET", path, **cookie).status == 403, path
        assert door("GET", "/v1/me", **cookie).json == {
            "user": "cat",
            "is_admin": False,
            "roles": [],
            "login_needed": False,
        }
        assert door("DELETE", "/v1/users/cat", **ann).status == 200
        with pytest.raises(EOFError):
            tail.take("nothing has this name")
    assert door("GET", "/v1/me", **cookie).json["user"] is None
    told = [event["text"] for event in door("GET", "/v1/events?kind=access", **ann).json["items"]]
    for text in ("added user cat", "changed the roles of cat", "removed user cat"):
        assert f"'ann' {text}" in told


def test_a_tail_of_a_token_hears_what_the_token_may(guarded: BrokerProcess) -> None:
    door = MqttDoor(guarded.ports["http"])
    ann = {"Cookie": _login(door, "ann")}
    form = {"name": "ear", "user": "ann", "allow": ["subscribe:in/a"]}
    token = {"Authorization": f"Bearer {door('POST', '/v1/tokens', form, **ann).json['token']}"}
    assert door("GET", "/v1/tail?filter=in/%23", **token).status == 403
    with SentEvents(guarded.ports["http"], "/v1/tail?filter=in/a", **token) as tail:
        tail.comment()
        assert door("DELETE", "/v1/tokens/ear", **ann).status == 204
        with pytest.raises(EOFError):
            tail.take("nothing has this name")


def test_a_tail_hears_what_its_user_may(guarded: BrokerProcess) -> None:
    door = MqttDoor(guarded.ports["http"])
    bob, ann = _login(door, "bob"), _login(door, "ann")
    assert door("GET", "/v1/tail?filter=%23", Cookie=bob).status == 403
    assert door("GET", "/v1/tail?filter=in/x&filter=out/x", Cookie=bob).status == 403
    with SentEvents(guarded.ports["http"], "/v1/tail?filter=in/%23", Cookie=bob) as tail:
        tail.comment()
        for topic in ("out/a", "in/a"):
            body = {"topic": topic, "payload": "x"}
            assert door("POST", "/v1/publish", body, Cookie=ann).status == 200
        assert tail.take("message")["topic"] == "in/a"
    name = unique("nobody")
    assert door("POST", f"/v1/clients/{name}/disconnect", {}, Cookie=bob).status == 403
    assert door("DELETE", f"/v1/sessions/{name}", Cookie=bob).status == 403
    assert door("POST", "/v1/login", {"user": "ann", "password": "no"}, **DASHBOARD).status == 401
    refused = door("GET", "/v1/events?kind=access", Cookie=ann).json["items"]
    assert any("refused POST" in event["text"] for event in refused)
    assert any("wrong password" in event["text"] for event in refused)


def test_everything_of_the_administration_needs_a_name(guarded: BrokerProcess) -> None:
    door = MqttDoor(guarded.ports["http"])
    document = door("GET", "/openapi.json").json
    for path, operations in document["paths"].items():
        if "administration" not in json.dumps(operations) or path in ("/v1/login", "/v1/logout", "/v1/me"):
            continue
        for method in operations:
            shown = path.replace("{client_id}", "x")
            assert door(method.upper(), shown).status == 401, f"{method} {path}"
