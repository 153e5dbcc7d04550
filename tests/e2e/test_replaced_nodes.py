"""The nodes of a cluster are replaced one after the other, and no message goes that is kept."""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e.test_cluster import whole
from millrace.client import Client
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import until_async

WAIT_S = 60.0
SPEC = {"name": "kept", "filters": ["kept/#"], "shards": 1, "retention_bytes": 512 * 1024}


def payload(number: int) -> str:
    """One that no compression makes small."""
    return random.Random(number).randbytes(1024).hex()


def ask(node: NodeProcess, path: str) -> Any:
    return Http(node.http_url).get(path)


def row(node: NodeProcess) -> dict[str, Any]:
    (found,) = ask(node, "/v1/streams/kept")["shard_list"]
    return dict(found)


def payloads(node: NodeProcess, first: int) -> list[str]:
    """What this node itself has from that offset on."""
    found: list[str] = []
    shown = row(node)
    while first < shown["next_offset"]:
        path = f"/v1/streams/kept/shards/{shown['shard']}/messages?from={first}&limit=1000"
        page = ask(node, path)["messages"]
        assert page and page[0]["offset"] == first
        found += [message["payload"] for message in page]
        first = page[-1]["offset"] + 1
    return found


@pytest.mark.long
def test_every_kept_message_is_at_every_node_after_all_were_replaced(tmp_path: Path) -> None:
    """Retention removed the beginning, so a new node begins from a snapshot; it says that it is settled once
    it has what was before that. At last no node is left that was there when the messages came."""

    async def scenario() -> None:
        async with LocalCluster(3, tmp_path / "data") as cluster:
            await whole(cluster)
            first = cluster.nodes[0]
            await asyncio.to_thread(Http(first.http_url).call, "POST", "/v1/streams", SPEC)
            await whole(cluster)
            count = 0
            async with Client(first.url, client_id="sends") as client:
                while count < 1000:
                    await client.publish("kept/a", payload(count), qos=1)
                    count += 1
            await until_async(lambda: is_trimmed(cluster.nodes), "retention to have done its work", WAIT_S)
            start = (await asyncio.to_thread(row, first))["first_offset"]
            expected = [payload(number) for number in range(start, count)]
            assert len(expected) > 100
            for node in cluster.nodes:
                assert await asyncio.to_thread(payloads, node, start) == expected
            for node in list(cluster.nodes):
                await node.kill()
                shutil.rmtree(node.data)
                node.join_through(next(one for one in cluster.nodes if one is not node))
                await node.start()
                await until_async(node.is_settled, f"{node.name} has everything", WAIT_S)
                await whole(cluster)
                for each in cluster.nodes:
                    assert (await asyncio.to_thread(row, each))["first_offset"] == start, each.name
            for node in cluster.nodes:
                assert await asyncio.to_thread(payloads, node, start) == expected

    asyncio.run(scenario())


def is_trimmed(nodes: list[NodeProcess]) -> bool:
    """The files are gone, and with them the entries with which one that has nothing would begin."""
    rows = [row(node) for node in nodes]
    ends = {(shown["first_offset"], shown["next_offset"]) for shown in rows}
    return len(ends) == 1 and rows[0]["first_offset"] > 100 and max(r["bytes"] for r in rows) < 700 * 1024
