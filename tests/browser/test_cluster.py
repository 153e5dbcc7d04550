"""The dashboard of three real nodes in a real browser, and, slow, with a real pipeline.

`dashboard/e2e/real.mjs` drives Chromium and prints what it found, one JSON line a check; it asks the test to
kill the leader. MILLRACE_SCREENSHOTS names a folder for a photograph of every page.
"""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from browser.test_dashboard import (
    CHROMIUM,
    DASHBOARD,
    NODE,
    needs_build,
    needs_chromium,
    needs_packages,
)
from e2e.http_calls import call
from e2e.test_cluster import three_nodes
from millrace.client import Client
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause

pytestmark = [needs_packages, needs_chromium, needs_build, pytest.mark.long]

_SCRIPT = "<img src=x onerror=\"window.hacked='{}'\">"
CLIENT = _SCRIPT.format("client")
TOPIC = f"sensors/{_SCRIPT.format('topic')}"
PAYLOAD = _SCRIPT.format("payload")
ERROR = _SCRIPT.format("error")

_PIPELINE = """
def build(flow):
    rows = flow.source("sensors").selectExpr("'counted/' || shard AS topic", "payload")
    flow.sink("copies", rows, stream="counted")
"""


def make(node: NodeProcess, path: str, **form: Any) -> None:
    answer = call(node.http_port, "POST", path, form)
    assert answer.status in (200, 201), answer


def define(node: NodeProcess) -> None:
    """One stream of each replication, a group, and a pipeline that failed with a hostile error."""
    make(node, "/v1/streams", name="sensors", filters=["sensors/#"])
    make(node, "/v1/streams", name="counted", filters=["counted/#"])
    make(node, "/v1/streams", name="orders", filters=["orders/#"], replication="primary-backup", replicas=2)
    make(node, "/v1/streams", name="logs", filters=["logs/#"], replication="leaderless")
    make(node, "/v1/streams", name="chat", filters=["chat/#"], replication="routed")
    make(node, "/v1/groups", name="audit", filters=["sensors/#"])
    make(node, "/v1/publish", topic=TOPIC, payload=PAYLOAD, qos=1)
    answer = call(node.http_port, "PUT", "/v1/pipelines/broken", {"state": "failed", "error": ERROR})
    assert answer.status == 200, answer


def shard_of(node: NodeProcess, topic: str) -> int:
    """Where the hostile message is."""
    (row,) = [
        row for row in call(node.http_port, "GET", "/v1/streams").json["streams"] if row["name"] == "sensors"
    ]
    for one in row["shard_list"]:
        shard: int = one["shard"]
        found = call(node.http_port, "GET", f"/v1/streams/sensors/shards/{shard}/messages").json
        if any(message["topic"] == topic for message in found["messages"]):
            return shard
    raise AssertionError("the message is in no shard")


@asynccontextmanager
async def traffic(node: NodeProcess) -> AsyncIterator[None]:
    """A client with a hostile name that publishes, and a durable session that is served."""

    async def publish(client: Client) -> None:
        number = 0
        while True:
            number += 1
            await client.publish(f"sensors/meter-{number % 5}", json.dumps({"n": number}), qos=1)
            await pause()

    async with (
        Client(node.url, client_id=CLIENT) as talker,
        Client(node.url, client_id="reporter", session_expiry_s=600, clean_start=False) as kept,
        kept.subscribe("sensors/#", qos=1),
    ):
        task = asyncio.create_task(publish(talker))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def pipeline(cluster: LocalCluster, folder: Path) -> AsyncIterator[None]:
    """A supervised pipeline that copies what is measured."""
    file = folder / "copies.py"
    file.write_text(_PIPELINE)
    urls = ",".join(node.http_url for node in cluster.nodes)
    command = ["-m", "millrace.cli.main", "pipeline", "run", str(file), "--url", urls, "--master", "local[1]"]
    command += ["--trigger", "1s", "--state", str(folder / "state")]
    with (folder / "pipeline.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=log, stderr=log)
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


class Driver:
    """The script in the browser, and what it found."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._nodes = {node.name: node for node in cluster.nodes}
        self.rows: dict[str, dict[str, Any]] = {}

    async def run(self, plan: dict[str, Any]) -> None:
        process = await asyncio.create_subprocess_exec(
            str(NODE),
            "e2e/real.mjs",
            json.dumps(plan),
            cwd=DASHBOARD,
            env={**os.environ, "CHROMIUM": str(CHROMIUM), "NO_COLOR": "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            async for line in process.stdout:
                row = json.loads(line)
                if "kill" in row:
                    await self._nodes[row["kill"]].kill()
                    process.stdin.write(b"%d\n" % (time.time() * 1000))
                else:
                    self.rows[row["name"]] = row
            await process.wait()
            # A script that ends in the middle has found less than it looks.
            assert "hostile/nothing ran" in self.rows, (await process.stderr.read()).decode()
        finally:
            if process.returncode is None:
                process.kill()


def plan_of(node: NodeProcess, cluster: LocalCluster) -> dict[str, Any]:
    shard = shard_of(node, TOPIC)
    messages = f"#/messages?stream=sensors&shard={shard}&from=0"
    pages = [
        ("cluster", "#/cluster", "Cluster"),
        ("node", f"#/cluster/{node.name}", node.name),
        ("streams", "#/streams", "Streams"),
        ("stream-quorum", "#/streams/sensors", "sensors"),
        ("stream-primary-backup", "#/streams/orders", "orders"),
        ("stream-leaderless", "#/streams/logs", "logs"),
        ("stream-routed", "#/streams/chat", "chat"),
        ("messages", messages, "Messages"),
        ("tail", "#/messages/tail?filter=%23", "Messages"),
        ("clients", "#/clients", "Clients and sessions"),
        ("sessions", "#/sessions", "Clients and sessions"),
        ("session", "#/sessions/reporter", "reporter"),
        ("groups", "#/groups", "Groups"),
        ("group", "#/groups/audit", "audit"),
        ("pipelines", "#/pipelines", "Pipelines"),
        ("events", "#/events", "Events"),
        ("publish", "#/publish", "Publish"),
    ]
    texts = [
        ("client id", "#/clients", CLIENT),
        ("topic", messages, TOPIC),
        ("payload", messages, PAYLOAD),
        ("error of a pipeline", "#/pipelines", ERROR),
    ]
    return {
        "base": node.http_url,
        "pages": pages,
        "texts": texts,
        # Who serves the page instead, where this node itself leads when the leader is to die.
        "others": {node.name: next(one.http_url for one in cluster.nodes if one is not node)},
        "pipeline": "",
        "screenshots": os.environ.get("MILLRACE_SCREENSHOTS", ""),
    }


async def judged(folder: Path, *, has_pipeline: bool) -> dict[str, dict[str, Any]]:
    """What the browser found at a cluster of three nodes."""
    async with asyncio.timeout(420), three_nodes(folder) as cluster:
        node = cluster.nodes[1]
        await asyncio.to_thread(define, node)
        async with traffic(node):
            driver = Driver(cluster)
            plan = await asyncio.to_thread(plan_of, node, cluster)
            if not has_pipeline:
                await driver.run(plan)
                return driver.rows
            pages = [page for page in plan["pages"] if page[0] == "pipelines"]
            async with pipeline(cluster, folder):
                await driver.run({**plan, "pages": pages, "texts": [], "pipeline": "copies"})
            return driver.rows


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return asyncio.run(judged(tmp_path_factory.mktemp("cluster"), has_pipeline=False))


def faults(checks: dict[str, dict[str, Any]], beginning: str) -> list[str]:
    rows = [row for name, row in checks.items() if name.startswith(beginning)]
    assert rows
    return [f"{row['name']}: {row['detail']}" for row in rows if not row["ok"]]


def test_every_page_loads_without_a_word_on_the_console(checks: dict[str, dict[str, Any]]) -> None:
    assert faults(checks, "loads/") == []


def test_axe_finds_nothing_serious(checks: dict[str, dict[str, Any]]) -> None:
    assert faults(checks, "axe/") == []


def test_hostile_names_and_payloads_are_shown_as_text(checks: dict[str, dict[str, Any]]) -> None:
    assert faults(checks, "text/") == []
    assert faults(checks, "hostile/") == []


def test_figures_move_and_a_dead_leader_is_seen_within_two_seconds(checks: dict[str, dict[str, Any]]) -> None:
    assert faults(checks, "live/") == []


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("java") is None, reason="Java is not installed; Spark needs Java 17 or later"
)
def test_the_rows_of_a_real_pipeline_grow_before_the_eyes(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")
    found = asyncio.run(judged(tmp_path, has_pipeline=True))
    assert faults(found, "loads/") == []
    assert faults(found, "live/") == []
