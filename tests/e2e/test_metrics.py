"""/metrics of three real nodes: every metric of the table is there, and its values are right."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from e2e.http_calls import MqttDoor, call
from e2e.staged import Writer
from e2e.test_cluster import TIMEOUT_S, Inbox, run
from millrace.client import Client
from millrace.lab.demo.stage import leader
from millrace.local_cluster import LocalCluster, NodeProcess
from millrace.node.metrics.table import METRICS
from waiting import pause

# Only while something is wrong with the disk, or where a limit was reached, is there a series of these.
_MAY_BE_ABSENT = {"millrace_publishes_refused_total"}


class Scrape:
    """One answer to Prometheus."""

    def __init__(self, port: int) -> None:
        answer = call(port, "GET", "/metrics")
        assert answer.status == 200, answer
        self.body = answer.body
        self.names: set[str] = set()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in text_string_to_metric_families(answer.body.decode()):
            suffix = "_total" if family.type == "counter" else ""
            self.names.add(family.name + suffix)
            for sample in family.samples:
                self._values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def get(self, name: str, **labels: str) -> float:
        """The sum of all series that have these labels."""
        wanted = set(labels.items())
        found = [v for (n, have), v in self._values.items() if n == name and wanted <= set(have)]
        assert found, f"{name}{labels} is not among {sorted(key for key in self._values if key[0] == name)}"
        return sum(found)

    def check(self) -> None:
        """Let Prometheus' own tool look for faults, where it is there."""
        if shutil.which("promtool") is not None:
            command = ["promtool", "check", "metrics"]
            done = subprocess.run(command, input=self.body, capture_output=True, check=False)
            assert done.stdout + done.stderr == b"", done.stderr.decode()


async def scrape(node: NodeProcess) -> Scrape:
    return await asyncio.to_thread(Scrape, node.http_port)


async def eventually(node: NodeProcess, holds: Callable[[Scrape], bool], what: str) -> Scrape:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            seen = await scrape(node)
            if holds(seen):
                return seen
            await pause()
    raise AssertionError(what)


async def fill(cluster: LocalCluster, door: MqttDoor) -> None:
    """A group with a backlog, a leaderless one, staged rows, a report of a pipeline."""

    def work() -> None:
        for form in (
            {"name": "orders", "filters": ["orders/#"]},
            {"name": "loose", "filters": ["loose/#"], "replication": "leaderless"},
        ):
            assert door("POST", "/v1/streams", form).status == 201
        assert door("POST", "/v1/groups", {"name": "billing", "filters": ["orders/+"]}).status == 201
        assert door("POST", "/v1/groups", {"name": "idle", "filters": ["orders/none/+"]}).status == 201
        both = {"name": "both", "filters": ["loose/#", "orders/b"]}
        assert door("POST", "/v1/groups", both).status == 201
        report = {
            "state": "running",
            "restarts": 2,
            "queries": [
                {
                    "name": "q",
                    "batch": 1,
                    "rows": 10,
                    "rows_per_s": 1.5,
                    "lag": 3,
                    "batch_ms": 250,
                    "offset": 7,
                    "retries": 2,
                }
            ],
        }
        assert door("PUT", "/v1/pipelines/averages", report).status == 200
        Writer("w", [cluster.nodes[0].http_url], "orders").stage(0, "a", range(4))

    await asyncio.to_thread(work)


def test_every_metric_is_there_and_right(tmp_path: Path) -> None:
    """Of the whole table each metric is shown by some node; traffic, leaders, followers, groups, peers and
    pipelines have the values that they should; promtool finds nothing to say."""

    async def scenario(cluster: LocalCluster) -> None:
        first = cluster.nodes[0]
        door = MqttDoor(first.http_port)
        await fill(cluster, door)
        before = [await scrape(node) for node in cluster.nodes]
        async with (
            Client(first.url, client_id="metrics-in") as publisher,
            Client(cluster.nodes[1].url, client_id="metrics-out") as subscriber,
            Inbox(subscriber, "orders/#", 1) as inbox,
        ):
            for number in range(5):
                await publisher.publish("orders/a", str(number), qos=1)
            await publisher.publish("loose/a", "x", qos=1)
            await publisher.publish("nowhere/a", "x", qos=0)
            await inbox.has(5)
            here, there = await scrape(first), await scrape(cluster.nodes[1])
            assert here.get("millrace_messages_received_total", door="mqtt", qos="1") == 6
            assert here.get("millrace_messages_received_total", door="mqtt", qos="0") == 1
            assert there.get("millrace_messages_sent_total", door="mqtt", qos="1") == 5
            assert here.get("millrace_connections", door="mqtt") == 1
            assert here.get("millrace_publish_ack_seconds_count") == 6
            assert here.get("millrace_received_bytes_total", door="mqtt") > 0
            assert here.get("millrace_sent_bytes_total", door="http") > len(before[0].body)
        # What an ended connection was sent stays counted.
        there = await eventually(
            cluster.nodes[1], lambda seen: seen.get("millrace_connections", door="mqtt") == 0, "the goodbye"
        )
        assert there.get("millrace_messages_sent_total", door="mqtt", qos="1") == 5
        await shown_by_all(cluster)

    run(scenario, tmp_path)


async def shown_by_all(cluster: LocalCluster) -> None:
    first = cluster.nodes[0]
    await eventually(first, lambda seen: "millrace_peer_round_trip_seconds" in seen.names, "round trips")
    seen = [await scrape(node) for node in cluster.nodes]
    for metric in ("is_leader", "term", "commit_index", "apply_index", "last_index"):
        assert all(one.get(f"millrace_replication_{metric}", stream="orders") >= 0 for one in seen)
    assert sum(one.get("millrace_replication_is_leader", stream="$cluster") for one in seen) == 1
    assert all(one.get("millrace_replication_has_leader", stream="$cluster") == 1 for one in seen)
    leading = cluster.nodes.index(await leader(cluster.nodes))
    for peer in {node.name for node in cluster.nodes} - {cluster.nodes[leading].name}:
        lag = seen[leading].get("millrace_replication_follower_lag_entries", stream="$cluster", peer=peer)
        assert lag >= 0
        assert seen[leading].get("millrace_peer_up", peer=peer) == 1
        assert seen[leading].get("millrace_peer_received_bytes_total", peer=peer) > 0
    having = [one for one in seen if "millrace_group_depth_messages" in one.names]
    depth = sum(one.get("millrace_group_depth_messages", group="billing") for one in having)
    assert depth == 5
    ages = [one.get("millrace_group_oldest_age_seconds", group="billing") for one in having]
    assert 0 < max(ages) < 240
    assert max(one.get("millrace_group_oldest_age_seconds", group="idle") for one in having) == 0
    assert seen[0].get("millrace_pipeline_state", pipeline="averages", state="running") == 1
    assert seen[0].get("millrace_pipeline_lag_offsets", pipeline="averages", query="q") == 3
    assert seen[0].get("millrace_pipeline_offset", pipeline="averages", query="q") == 7
    assert seen[0].get("millrace_pipeline_batch_seconds", pipeline="averages", query="q") == 0.25
    assert seen[0].get("millrace_pipeline_query_retries", pipeline="averages", query="q") == 2
    assert seen[0].get("millrace_pipeline_owned", pipeline="averages") == 0
    assert sum(one.get("millrace_messages_staged_total") for one in seen) == 4
    assert seen[0].get("millrace_staged_bytes", stream="orders") > 0
    assert seen[0].get("millrace_storage_sync_seconds_count") > 0
    assert seen[0].get("millrace_storage_free_bytes") > 0
    assert seen[0].get("millrace_event_loop_lag_seconds_count") > 0
    assert set(METRICS) - set[str]().union(*(one.names for one in seen)) <= _MAY_BE_ABSENT
    assert set[str]().union(*(one.names for one in seen)) <= set(METRICS)
    for one in seen:
        await asyncio.to_thread(one.check)


def test_a_dead_leader_shows_in_the_metrics_of_the_others(tmp_path: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        old = await leader(cluster.nodes)
        others = [node for node in cluster.nodes if node is not old]
        before = await scrape(others[0])
        has_leader = "millrace_replication_has_leader"
        await old.kill()
        for node in others:
            await eventually(node, lambda seen: seen.get("millrace_peer_up", peer=old.name) == 0, "silence")
            await eventually(node, lambda seen: seen.get(has_leader, stream="$cluster") == 1, "a leader")
        after = [await scrape(node) for node in others]
        assert sum(one.get("millrace_replication_is_leader", stream="$cluster") for one in after) == 1
        assert sum(one.get("millrace_replication_elections_total", stream="$cluster") for one in after) >= 1
        changes = "millrace_replication_leader_changes_total"
        assert after[0].get(changes, stream="$cluster") > before.get(changes, stream="$cluster")
        assert after[0].get("millrace_replication_term", stream="$cluster") > before.get(
            "millrace_replication_term", stream="$cluster"
        )

    run(scenario, tmp_path)
