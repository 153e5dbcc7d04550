"""The majority of a cluster is lost for good, and a node that is left goes on with what it has."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import millrace
from e2e.test_cluster import whole
from millrace.client import Client
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster
from waiting import until_async

WAIT_S = 60.0
# No stamp is further ahead of the time.
STAMP_LEADS_US = 1_000_000


def numbers_of(http: Http, row: dict[str, Any]) -> list[int]:
    """All of a shard, page by page: a busy node gives less at once than it was asked for."""
    found: list[int] = []
    offset = 0
    while offset < row["next_offset"]:
        page = http.get(f"/v1/streams/s/shards/{row['shard']}/messages", **{"from": offset, "limit": 1000})
        found += [int(message["payload"]) for message in page["messages"]]
        assert page["next_offset"] > offset
        offset = page["next_offset"]
    return found


@pytest.mark.long
def test_what_the_last_node_has_is_served_again_and_others_join_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalCluster(3, tmp_path / "data") as cluster:
            await whole(cluster)
            first, *lost = cluster.nodes
            spec = {"name": "s", "filters": ["s/#"], "shards": 2}
            await asyncio.to_thread(Http(first.http_url).call, "POST", "/v1/streams", spec)
            await whole(cluster)
            began_us = time.time_ns() // 1000
            async with Client(first.url, client_id="keeps", session_expiry_s=3600) as client:
                for number in range(50):
                    await client.publish(f"s/{number % 7}", str(number), qos=1)
            await whole(cluster)
            for node in lost:
                await node.kill()
                shutil.rmtree(node.data)
                cluster.nodes.remove(node)
            directory = str(first.data)
            refused = millrace("node", "force-quorum", directory, "--yes")
            assert refused.returncode != 0 and "is held by" in refused.stderr, "a node runs on it"
            # In good order, as the page on recovery says: its snapshots reach to the end of its logs.
            await first.stop()
            stopped_us = time.time_ns() // 1000

            rehearsal = millrace("node", "force-quorum", directory, "--dry-run")
            assert rehearsal.returncode == 0, rehearsal.stderr
            assert "stream s): 3 voters" in rehearsal.stdout
            forced = millrace("node", "force-quorum", directory, "--yes")
            assert forced.returncode == 0, forced.stderr
            noted = json.loads(first.data.with_name("n1.force-quorum.json").read_text())
            assert len(noted["others"]) == 2
            assert all(row["is_forced"] and len(row["voters"]) == 3 for row in noted["groups"])
            times_us = [row["last_time_us"] for row in noted["groups"] if row["holds"] == "stream s"]
            assert len(times_us) == 2
            assert all(began_us < time_us <= stopped_us + STAMP_LEADS_US for time_us in times_us)

            await first.start()
            http = Http(first.http_url)
            rows = (await asyncio.to_thread(http.get, "/v1/streams/s"))["shard_list"]
            found = [number for row in rows for number in await asyncio.to_thread(numbers_of, http, row)]
            assert sorted(found) == list(range(50))
            async with Client(first.url, client_id="keeps", session_expiry_s=3600) as client:
                await asyncio.wait_for(client.publish("s/1", "after", qos=2), WAIT_S)
            for name in ("n2", "n3"):
                removed = await asyncio.to_thread(
                    millrace, "node", "remove", name, "--yes", "--url", first.http_url
                )
                assert removed.returncode == 0, removed.stderr
            joined = cluster.add(3)
            await joined.start()
            await until_async(joined.is_settled, "the new node has everything", WAIT_S)
            await whole(cluster)

    asyncio.run(scenario())


def test_a_directory_that_has_no_other_nodes_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "no").mkdir()
    refused = millrace("node", "force-quorum", str(tmp_path / "no"), "--yes")
    assert refused.returncode != 0 and "not a data directory" in refused.stderr
