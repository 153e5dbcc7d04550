"""Two-step publishing over three real nodes, with the node that matters killed between the steps."""

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from e2e.staged import Writer, contents, staged_bytes
from e2e.test_cluster import run, whole
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause, until_async

pytestmark = pytest.mark.slow

_STREAM = "out"
_S_MAX = 60.0


async def begin(cluster: LocalCluster) -> Writer:
    first = Http(cluster.nodes[0].http_url)
    fields = {"name": _STREAM, "filters": [f"{_STREAM}/#"], "shards": 2}
    await asyncio.to_thread(first.call, "POST", "/v1/streams", fields)
    await whole(cluster)
    return Writer("w", [node.http_url for node in cluster.nodes], _STREAM, patience_s=_S_MAX)


async def shard_leader(cluster: LocalCluster, position: int) -> NodeProcess:
    """The node that leads a shard of the stream."""
    while True:
        for node in cluster.nodes:
            if node.is_running:
                http = Http(node.http_url)
                with suppress(LocalError):
                    rows = (await asyncio.to_thread(http.get, f"/v1/streams/{_STREAM}"))["shard_list"]
                    if rows[position]["role"] == "leader":
                        return node
        await pause()


async def all_nodes_have(cluster: LocalCluster, wanted: Counter[int]) -> None:
    """Every replica has the same rows, once each, and nothing staged is left."""
    for node in cluster.nodes:
        http = Http(node.http_url)
        await until_async(lambda http=http: staged_bytes(http, _STREAM) == 0, "nothing staged", _S_MAX)
        assert await asyncio.to_thread(contents, http, _STREAM) == wanted


def test_killed_nodes_between_stage_and_commit_and_after(tmp_path: Path) -> None:
    """The shard's leader dies with staged blocks; the next one rolls forward what is decided. Then the leader
    dies while it rolls forward. Every row is there once, at every node."""

    async def body(cluster: LocalCluster) -> None:
        writer = await begin(cluster)
        staged = await asyncio.to_thread(writer.stage, 0, "a", range(1_000), 4)
        victim = await shard_leader(cluster, 0)
        await victim.kill()
        assert await asyncio.to_thread(lambda: writer.commit(0, a=staged)) is False
        await victim.start()
        total = 1_000
        for batch in range(1, 4):
            numbers = range(total, total + 3_000)
            total += 3_000
            name = f"b{batch}"
            staged = await asyncio.to_thread(writer.stage, batch, name, numbers, 20)
            victim = await shard_leader(cluster, batch % 2)
            committing = asyncio.create_task(
                asyncio.to_thread(lambda b=batch, n=name, s=staged: writer.commit(b, **{n: s}))
            )
            await asyncio.sleep(0)
            await victim.kill()
            await committing
            await victim.start()
            # The answer may have been lost with the node; asking again is harmless.
            assert await asyncio.to_thread(lambda b=batch, n=name, s=staged: writer.commit(b, **{n: s}))
        await all_nodes_have(cluster, Counter(range(total)))

    run(body, tmp_path)
