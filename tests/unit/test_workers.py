"""`start --workers`: what each worker is told."""

import pytest

from millrace.errors import ConfigError
from millrace.local_cluster.workers import worker_settings
from millrace.node.config import load


def told(count: int, *overrides: str) -> list[dict[str, str]]:
    rows = worker_settings(load(None, {}, overrides), count)
    return [dict(one.split("=", 1) for one in row) for row in rows]


def test_the_first_worker_is_the_node_that_start_would_run_alone() -> None:
    """So one more worker on a directory with data finds that data."""
    first, second = told(2, "node.data=d", "node.id=mill")
    assert "node.id" not in first and "node.data" not in first and "cluster.join" not in first
    assert (second["node.id"], second["node.data"]) == ("mill-2", "d/workers/2")
    assert second["cluster.join"] == first["listeners.peer"]


def test_workers_share_the_doors_of_devices_and_have_their_own_for_http_and_peers() -> None:
    first, second = told(2, "listeners.http=127.0.0.1:9001")
    assert (first["listeners.http"], second["listeners.http"]) == ("127.0.0.1:9001", "127.0.0.1:9011")
    assert first["listeners.peer"] != second["listeners.peer"]
    for row in (first, second):
        assert row["listeners.shared"] == "true" and row["node.host"] == "n1"
        assert not {"listeners.mqtt", "listeners.text"} & row.keys()


def test_workers_join_the_cluster_that_the_machine_joins() -> None:
    rows = told(
        2,
        "cluster.join=10.0.0.9:18832",
        "listeners.peer=10.0.0.1:18832",
        "cluster.secret_file=s",
        "cluster.advertise=10.0.0.7:700",
    )
    assert "cluster.join" not in rows[0]
    assert rows[1]["cluster.join"] == "10.0.0.9:18832,10.0.0.7:700"
    assert [row["cluster.advertise"] for row in rows] == ["10.0.0.7:700", "10.0.0.7:710"]
    assert all("cluster.secret_file" not in row for row in rows)


def test_a_port_that_nobody_named_cannot_be_shared() -> None:
    with pytest.raises(ConfigError, match=r"listeners\.mqtt: with --workers name a port"):
        told(2, "listeners.mqtt=127.0.0.1:0")
