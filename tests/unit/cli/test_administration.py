"""The commands that look at a cluster and steer it, against a node whose answers the test puts in place."""

import json
from typing import Any

import pytest

from millrace.cli.clusters.top_view import TABS, Picture, body, heading, screen
from unit.cli.fake_node import FakeNode
from unit.cli.shell import Run

FIGURES = {
    "version": "0.2.0", "uptime_s": 3700, "clients": 12, "sessions": 3, "subscriptions": 4,
    "retained_messages": 1, "retained_bytes": 10, "cpu_percent": 12.4, "memory_bytes": 80 << 20,
    "disk_used_bytes": 1 << 20,
    "disk_free_bytes": 5 << 30, "loop_lag_ms": 0.4, "in_messages_s": 12_300, "out_messages_s": 4,
    "in_bytes_s": 1, "out_bytes_s": 2, "dropped": 0, "waits_for": "",
    "links": [{"to": "n2", "is_up": False, "rtt_ms": None}],
}  # fmt: skip
OVERVIEW: dict[str, Any] = {
    "time_us": 1_760_000_000_000_000,
    "node": "n1",
    "cluster": "5a38c9528fe79a34",
    "version": "0.2.0",
    "leader": "n1",
    "is_settled": True,
    "nodes": [
        {
            "node": name, "replica": name, "state": "up" if name == "n1" else "unreachable",
            "is_draining": False,
            "leads_meta": name == "n1", "leads": 3, "addresses": {"mqtt": "h:1", "http": "h:2", "peer": None},
            "silent_s": 0.0, "is_answering": name == "n1", "figures": FIGURES if name == "n1" else None,
        }
        for name in ("n1", "n2")
    ],
    "groups": [],
    "streams": [
        {
            "name": "sensors", "replication": "quorum", "filters": ["sensors/#"], "shards": 4, "replicas": 3,
            "capture": "all", "bytes": 1536, "messages": 1_000_000, "in_messages_s": 5.5, "leaders": ["n1"],
            "is_degraded": True, "degraded": "two of three replicas",
        }
    ],
    "totals": {
        "clients": 12, "sessions": 3, "in_messages_s": 12_300, "out_messages_s": 4, "in_bytes_s": 1,
        "out_bytes_s": 2, "stored_bytes": 1536,
    },
}  # fmt: skip
CLIENT: dict[str, Any] = {
    "client_id": "sensor-17", "user": None, "node": "n2", "address": "10.0.0.9:5000", "door": "mqtt",
    "protocol": "5", "connected_us": 1_760_000_000_000_000, "keep_alive_s": 60, "is_durable": True,
    "subscriptions": 1, "in_flight": 0, "queued": 2, "received": 3, "sent": 4,
}  # fmt: skip
FILTER = {
    "filter": "a/#", "qos": 1, "no_local": False, "retain_as_published": False, "retain_handling": 0,
    "identifier": None, "group": None,
}  # fmt: skip
SESSION: dict[str, Any] = {
    "client_id": "sensor-17", "user": None, "owner": "n2", "is_connected": False, "expiry_s": 3600,
    "away_since_us": 1_760_000_000_000_000, "subscriptions": 1, "queued": 1200, "unfinished_qos2": 0,
    "has_will": False,
}  # fmt: skip
GROUP = {
    "name": "workers", "filters": ["jobs/#"], "lag": 7, "in_flight": 2, "deliveries_max": 0,
    "dead_letter": "",
}  # fmt: skip


def test_the_lag_of_a_group_says_where_it_is_an_upper_bound(millrace: Run, node: FakeNode) -> None:
    node.answers["GET", "/v1/groups"] = {"groups": [GROUP]}
    heading, row = millrace("group", "list", "--url", node.address).out.splitlines()
    assert heading.split("  ") and "lag at most" in heading and row.split()[2] == "7"
    assert json.loads(millrace("group", "list", "--json", "--url", node.address).out) == [GROUP]
    shard = {"shard": 16, "stream": "default", "position": 0, "next_offset": 9, "in_flight": 0}
    node.answers["GET", "/v1/groups/workers"] = {
        **GROUP,
        "shards": [{**shard, "lag": 3, "lag_is_exact": True}, {**shard, "lag": 4, "lag_is_exact": False}],
    }
    shown = millrace("group", "show", "workers", "--url", node.address).out
    assert "at most 7" in shown and "at most 4" in shown and "at most 3" not in shown


def test_clients_are_listed_page_by_page(millrace: Run, node: FakeNode) -> None:
    node.answers["GET", "/v1/clients"] = [
        (200, {"items": [CLIENT], "next": "more", "missing": []}),
        (200, {"items": [{**CLIENT, "client_id": "x\x1b[2J"}], "next": None, "missing": ["n3"]}),
    ]
    result = millrace("client", "list", "--search", "sensor", "--url", node.address)
    assert result.status == 0
    assert "sensor-17" in result.out
    # What a client calls itself does not steer the terminal.
    assert "x\\x1b[2J" in result.out
    assert "no answer from n3" in result.err
    assert [query for _, _, query, _ in node.asked] == [
        {"limit": ["100"], "search": ["sensor"]},
        {"limit": ["99"], "search": ["sensor"], "cursor": ["more"]},
    ]


def test_a_client_is_shown_with_its_filters_and_kicked(millrace: Run, node: FakeNode) -> None:
    path = "/v1/clients/a%2Fb"
    node.answers["GET", path] = {
        **CLIENT, "filters": [FILTER], "will_topic": None, "session_expiry_s": 3600,
    }  # fmt: skip
    node.answers["POST", f"{path}/disconnect"] = None
    shown = millrace("client", "show", "a/b", "--url", node.address).out
    assert "session expiry  1h" in shown
    assert "a/#" in shown
    refused = millrace("client", "kick", "a/b", "--url", node.address)
    assert (refused.status, node.asked[-1][0]) == (2, "GET")
    kicked = millrace("client", "kick", "a/b", "--yes", "--url", node.address)
    assert kicked.out == "disconnected client a/b\n"
    assert node.asked[-1][:2] == ("POST", f"{path}/disconnect")


def test_a_session_is_listed_shown_and_deleted_after_a_question(millrace: Run, node: FakeNode) -> None:
    node.answers["GET", "/v1/sessions"] = {"items": [SESSION], "next": None, "missing": []}
    node.answers["GET", "/v1/sessions/sensor-17"] = {
        **SESSION, "filters": [FILTER], "cursors": [{"shard": 16, "offset": 5, "lag": 1200}],
    }  # fmt: skip
    node.answers["DELETE", "/v1/sessions/sensor-17"] = None
    assert json.loads(millrace("session", "list", "--json", "--url", node.address).out) == [SESSION]
    assert "1200" in millrace("session", "show", "sensor-17", "--url", node.address).out
    asked = millrace("session", "delete", "sensor-17", "--url", node.address)
    assert asked.status == 2
    assert "1,200 messages that wait in it" in asked.err
    assert "say --yes" in asked.err
    assert millrace("session", "delete", "sensor-17", "-y", "--url", node.address).status == 0
    assert node.asked[-1][:2] == ("DELETE", "/v1/sessions/sensor-17")


def test_a_log_of_a_leaderless_stream_is_shown_with_its_node(millrace: Run, node: FakeNode) -> None:
    row = {"shard": 17, "first_offset": 0, "next_offset": 9, "bytes": 99, "role": "copy", "origin": "n2"}
    node.answers["GET", "/v1/streams/s"] = {"name": "s", "replication": "leaderless", "shard_list": [row]}
    result = millrace("stream", "show", "s", "--url", node.address)
    assert result.status == 0
    head, line = (line.split() for line in result.out.splitlines()[-2:])
    assert line[head.index("node")] == "n2"


def test_events_come_with_the_newest_at_the_end(millrace: Run, node: FakeNode) -> None:
    event = {
        "time_us": 1_760_000_000_000_000,
        "node": "n1",
        "kind": "election",
        "severity": "info",
        "fields": {},
    }
    node.answers["GET", "/v1/events"] = {
        "items": [{**event, "id": "2", "text": "n1 leads"}, {**event, "id": "1", "text": "n2 died"}],
        "next": None,
        "missing": [],
    }
    lines = millrace("events", "--kind", "election", "--url", node.address).out.splitlines()
    assert [line.split("election  ")[1] for line in lines] == ["n2 died", "n1 leads"]
    assert node.asked[-1][2] == {"limit": ["50"], "kind": ["election"]}


def test_trace_says_where_a_message_goes(millrace: Run, node: FakeNode) -> None:
    node.answers["GET", "/v1/trace"] = {
        "topic": "a/b", "stream": "default", "replication": "quorum", "shard": 16, "leader": "n2",
        "next_offset": 41, "is_captured": {"0": False, "1": True, "2": True}, "receivers": [],
        "retained": False,
    }  # fmt: skip
    out = millrace("trace", "a/b", "--url", node.address).out
    assert "next offset  41" in out
    assert "stored       with QoS 1, 2" in out
    assert "nobody receives it" in out
    assert millrace("trace", "--url", node.address).status == 2
    receiver = {"client_id": "c", "node": "n1", "filter": "a/#", "qos": 1, "kind": "session"}
    node.answers["GET", "/v1/trace"] = {"receivers": [receiver], "missing": ["n3"]}
    result = millrace("trace", "--client", "c", "--url", node.address)
    assert result.out.splitlines()[1].split() == ["c", "n1", "a/#", "1", "session"]
    assert "no answer from n3" in result.err


@pytest.mark.parametrize(
    "arguments", [("client", "list"), ("session", "list"), ("events",), ("trace", "a"), ("top", "--once")]
)
def test_a_node_without_the_interface_is_reported_as_such(
    millrace: Run, node: FakeNode, arguments: tuple[str, ...]
) -> None:
    result = millrace(*arguments, "--url", node.address)
    assert result.status == 1
    assert "it is of an older version" in result.err


def test_top_prints_one_picture(millrace: Run, node: FakeNode) -> None:
    node.answers["GET", "/v1/overview"] = OVERVIEW
    node.answers["GET", "/v1/clients"] = {"items": [CLIENT], "next": None, "missing": []}
    node.answers["GET", "/v1/groups"] = {"groups": [GROUP]}
    out = millrace("top", "--once", "--url", node.address).out
    for expected in ("1 of 2 nodes up", "n1*", "12.3k", "two of three replicas", "sensor-17", "workers"):
        assert expected in out
    assert "top needs a terminal" in millrace("top", "--url", node.address).err


@pytest.mark.parametrize("tab", TABS)
def test_the_picture_fits_eighty_columns_and_the_height(tab: str) -> None:
    clients = [{**CLIENT, "client_id": f"a-client-with-a-long-name-{number}"} for number in range(100)]
    picture = Picture(overview=OVERVIEW, clients=clients, groups=[GROUP], trouble="no answer " * 20)
    lines = screen(picture, tab, 30, 80, 24)
    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 80
    assert f"[{tab}]" in lines[3]
    if tab == "clients":
        assert any("name-30" in line for line in lines)
        assert "31-" in lines[-1]


def test_the_picture_of_nothing_is_drawn() -> None:
    assert heading(Picture(), 80) == []
    assert body(Picture(), "groups", 80)[-1] == "(none)"


def test_messages_are_taken_acknowledged_and_given_back(millrace: Run, node: FakeNode) -> None:
    message = {"topic": "jobs/1", "payload": "aGVsbG8=", "encoding": "base64", "receipt": "r1"}
    node.answers["POST", "/v1/groups/workers/take"] = {"messages": [message]}
    node.answers["POST", "/v1/groups/workers/ack"] = {"results": [True]}
    node.answers["POST", "/v1/groups/workers/nack"] = {"results": [False]}
    taken = millrace("group", "take", "workers", "--lease", "1m", "--ack", "--url", node.address)
    assert taken.out.splitlines()[1].split() == ["jobs/1", "hello", "r1"]
    assert node.asked[0][3]["lease_ms"] == 60_000
    assert node.asked[1][1:] == ("/v1/groups/workers/ack", {}, {"receipts": ["r1"]})
    late = millrace("group", "nack", "workers", "r1", "--delay", "5s", "--url", node.address)
    assert late.status == 1
    assert "1 were no longer ours" in late.out
    assert node.asked[-1][3]["delay_ms"] == 5000


def test_a_drain_is_waited_for(millrace: Run, node: FakeNode) -> None:
    def state(leads: int, voters: list[str]) -> dict[str, Any]:
        return {"members": [{"node": "n3", "leads": leads}], "groups": [{"voters": voters}]}

    node.answers["POST", "/v1/cluster/nodes/n3/drain"] = {}
    node.answers["GET", "/v1/cluster"] = [(200, state(1, ["n1", "n3"])), (200, state(0, ["n1"]))]
    result = millrace("node", "drain", "n3", "--wait", "--url", node.address)
    assert result.status == 0
    assert result.err == "n3 leads 1 and votes in 1 replication groups\n"
    assert result.out == "n3 is empty and can be stopped\n"


def of_two(state: str, voters: list[str]) -> dict[str, Any]:
    rows = [{"node": "n2", "state": "up", "leads": 1}, {"node": "n3", "state": state, "leads": 0}]
    return {"members": rows, "groups": [{"voters": voters}]}


def test_a_node_that_is_up_is_drained_before_it_is_removed(millrace: Run, node: FakeNode) -> None:
    node.answers["POST", "/v1/cluster/nodes/n3/drain"] = {}
    node.answers["DELETE", "/v1/cluster/nodes/n3"] = None
    states = [of_two("up", ["n2", "n3"]), of_two("draining", ["n2", "n3"]), of_two("draining", ["n2"])]
    node.answers["GET", "/v1/cluster"] = [(200, state) for state in states]
    result = millrace("node", "remove", "n3", "--yes", "--url", node.address)
    assert (result.status, result.out) == (0, "n3 is removed\n")
    assert [method for method, *_ in node.asked] == ["GET", "POST", "GET", "GET", "DELETE"]


def test_a_node_that_cannot_be_emptied_is_not_removed_and_the_way_out_is_said(
    millrace: Run, node: FakeNode
) -> None:
    node.answers["POST", "/v1/cluster/nodes/n3/drain"] = {}
    node.answers["GET", "/v1/cluster"] = of_two("up", ["n2", "n3"])
    result = millrace("node", "remove", "n3", "--yes", "--timeout", "1ms", "--url", node.address)
    assert result.status == 1
    assert "It was not removed; remove it as it is with --now" in result.err


@pytest.mark.parametrize(("state", "options"), [("unreachable", ()), ("up", ("--now",))])
def test_a_node_that_is_gone_is_removed_as_it_is(
    millrace: Run, node: FakeNode, state: str, options: tuple[str, ...]
) -> None:
    node.answers["DELETE", "/v1/cluster/nodes/n3"] = None
    node.answers["GET", "/v1/cluster"] = of_two(state, ["n2", "n3"])
    assert millrace("node", "remove", "n3", "--yes", *options, "--url", node.address).status == 0
    assert [method for method, *_ in node.asked] == ["GET", "DELETE"]


SHARDS = [
    {"shard": 16, "first_offset": 10, "next_offset": 1510},
    {"shard": 17, "first_offset": 0, "next_offset": 5},
]


@pytest.mark.parametrize(
    ("arguments", "path", "answer", "question"),
    [
        (("stream", "delete", "s"), "/v1/streams/s", {"shard_list": SHARDS}, "with 1,505 messages in it"),
        (
            ("stream", "purge", "s", "--before", "11"),
            "/v1/streams/s",
            {"shard_list": SHARDS},
            "Purge 6 messages",
        ),
        (("group", "delete", "g"), "/v1/groups/g", GROUP, "7 messages wait in it"),
        (("group", "reset", "g", "--to", "latest"), "/v1/groups/g", GROUP, "2 are with its members"),
        (("node", "remove", "n3"), "/v1/cluster", {"members": [{"node": "n3", "leads": 4}]}, "It leads 4"),
    ],
)
def test_what_destroys_is_refused_without_a_terminal_and_without_yes(
    millrace: Run, node: FakeNode, arguments: tuple[str, ...], path: str, answer: Any, question: str
) -> None:
    node.answers["GET", path] = answer
    result = millrace(*arguments, "--url", node.address)
    assert result.status == 2
    assert question in result.err
    assert "There is no terminal to ask at: say --yes" in result.err
    assert [method for method, *_ in node.asked] == ["GET"]
