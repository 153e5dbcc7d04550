"""Examples of the administration's answers, for the OpenAPI document."""

from typing import Any

_TIME_US = 1_795_000_000_000_000

_FIGURES: dict[str, Any] = {
    "version": "0.2.0",
    "uptime_s": 86_400,
    "clients": 1_200,
    "sessions": 1_350,
    "subscriptions": 2_700,
    "retained_messages": 1_200,
    "retained_bytes": 96_000,
    "cpu_percent": 12.5,
    "memory_bytes": 96_468_992,
    "disk_used_bytes": 734_003_200,
    "disk_free_bytes": 53_687_091_200,
    "loop_lag_ms": 1.2,
    "in_messages_s": 5_000.0,
    "out_messages_s": 10_000.0,
    "in_bytes_s": 600_000.0,
    "out_bytes_s": 1_200_000.0,
    "dropped": 0,
    "waits_for": "",
    "links": [{"to": "n2", "is_up": True, "rtt_ms": 0.4}],
}

OVERVIEW: dict[str, Any] = {
    "time_us": _TIME_US,
    "node": "n1",
    "cluster": "6f1d5c0b9a3e7d42",
    "version": "0.2.0",
    "leader": "n1",
    "is_settled": True,
    "nodes": [
        {
            "node": "n1",
            "replica": "b4a0d6c2",
            "state": "up",
            "is_draining": False,
            "leads_meta": True,
            "leads": 2,
            "addresses": {"mqtt": "10.0.0.1:1883", "http": "10.0.0.1:18831", "peer": "10.0.0.1:18832"},
            "host": "",
            "silent_s": 0.0,
            "is_answering": True,
            "figures": _FIGURES,
        }
    ],
    "groups": [
        {
            "group": 16,
            "keeps": "stream default",
            "leader": "n1",
            "term": 3,
            "commit": 812,
            "applied": 812,
            "voters": ["n1", "n2", "n3"],
            "learners": [],
            "replicas": [{"node": "n2", "role": "follower", "applied": 810, "lag": 2}],
        }
    ],
    "streams": [
        {
            "name": "sensors",
            "replication": "quorum",
            "filters": ["plant/#"],
            "shards": 4,
            "replicas": 3,
            "capture": "all",
            "bytes": 734_003_200,
            "messages": 6_000_000,
            "in_messages_s": 5_000.0,
            "leaders": ["n1", "n2"],
            "is_degraded": False,
            "degraded": "",
        }
    ],
    "totals": {
        "clients": 3_600,
        "sessions": 4_050,
        "in_messages_s": 15_000.0,
        "out_messages_s": 30_000.0,
        "in_bytes_s": 1_800_000.0,
        "out_bytes_s": 3_600_000.0,
        "stored_bytes": 734_003_200,
    },
}

CLIENT: dict[str, Any] = {
    "client_id": "press-7",
    "user": "plant",
    "node": "n1",
    "address": "10.0.3.17:50214",
    "door": "mqtts",
    "protocol": "5",
    "connected_us": _TIME_US,
    "keep_alive_s": 60,
    "is_durable": True,
    "subscriptions": 2,
    "in_flight": 0,
    "queued": 0,
    "received": 1_200,
    "sent": 300,
}

_SUBSCRIPTION: dict[str, Any] = {
    "filter": "plant/7/commands/#",
    "qos": 1,
    "no_local": False,
    "retain_as_published": False,
    "retain_handling": 0,
    "identifier": None,
    "group": None,
}

CLIENT_DETAIL = {
    **CLIENT,
    "filters": [_SUBSCRIPTION],
    "will_topic": "plant/7/state",
    "session_expiry_s": 3_600,
}

SESSION: dict[str, Any] = {
    "client_id": "press-7",
    "user": "plant",
    "owner": "n1",
    "is_connected": False,
    "expiry_s": 3_600,
    "away_since_us": _TIME_US,
    "subscriptions": 1,
    "queued": 12,
    "unfinished_qos2": 0,
    "has_will": False,
}

SESSION_DETAIL = {
    **SESSION,
    "filters": [_SUBSCRIPTION],
    "cursors": [{"shard": 16, "offset": 800, "lag": 12}],
}

EVENT: dict[str, Any] = {
    "id": f"{_TIME_US}-n2",
    "time_us": _TIME_US,
    "node": "n2",
    "kind": "election",
    "severity": "info",
    "text": "n2 leads group 16 (stream default) in term 4",
    "fields": {"group": 16, "term": 4, "role": "leader", "leader": "n2"},
}

TRACE: dict[str, Any] = {
    "topic": "plant/7/temperature",
    "stream": "sensors",
    "replication": "quorum",
    "shard": 17,
    "leader": "n2",
    "next_offset": 1_500_000,
    "is_captured": {"0": True, "1": True, "2": True},
    "receivers": [
        {"client_id": "wall", "node": "n3", "filter": "plant/+/temperature", "qos": 1, "kind": "session"}
    ],
    "retained": True,
    "missing": [],
}

ME: dict[str, Any] = {"user": "ann", "is_admin": True, "roles": ["admin"], "login_needed": False}
LOGGED_IN: dict[str, Any] = {"user": "ann", "roles": ["admin"]}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None, "missing": []}
