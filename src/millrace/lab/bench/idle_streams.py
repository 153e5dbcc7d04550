"""What streams cost that nobody uses: at a node alone, and on each of three nodes, which also start again."""

import asyncio
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.lab.bench import peers
from millrace.lab.bench.accounts import Account, Cost, exact_cpu_s, memory_bytes
from millrace.local_cluster import LocalCluster

_WATCHED_S = 10.0
# Longer than groups need to come to rest.
_REST_S = 5.0
_NODES = 3
_SETTLE_S = 120.0
_ASKED_AT_ONCE = 16


def at_one_node(broker: peers.Broker, count: int) -> Cost:
    """The CPU time is that of one second of one of them. The first one is not counted: with it the HTTP
    application is loaded."""
    with peers.running(broker, durable=True) as started:
        account = Account(started)
        peers.make_stream(started, "first", "first/#")
        before_bytes = account.memory_bytes()
        for number in range(count):
            peers.make_stream(started, f"idle-{number}", f"idle/{number}/#")
        account.still_cpu_s()
        before_s, begin_s = account.exact_cpu_s(), time.monotonic()
        time.sleep(_WATCHED_S)
        seconds = time.monotonic() - begin_s
        return Cost(
            row="idle-streams",
            broker=broker.name,
            units=count,
            cpu_us=(account.exact_cpu_s() - before_s) / seconds / count * 1e6,
            memory_bytes=max(0, account.memory_bytes() - before_bytes) / count,
            seconds=seconds,
        )


def at_three_nodes(broker: peers.Broker, count: int) -> Cost:
    """CPU time and memory are those of one stream at one node; the seconds are those until all three nodes,
    which were stopped, serve again."""
    return asyncio.run(_at_three_nodes(broker, count))


async def _at_three_nodes(broker: peers.Broker, count: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as directory:
        options = ("--set", "log.level=warning")
        async with LocalCluster(_NODES, Path(directory), options=options) as cluster:
            await _settled(cluster)
            pids = [node.pid for node in cluster.nodes]
            before_bytes = memory_bytes(pids)
            await asyncio.to_thread(_make_streams, cluster.nodes[0].http_url, count)
            await _settled(cluster)
            await asyncio.sleep(_REST_S)
            grown_bytes = max(0, memory_bytes(pids) - before_bytes)
            before_s, begin_s = exact_cpu_s(pids), time.monotonic()
            await asyncio.sleep(_WATCHED_S)
            cpu_s, watched_s = exact_cpu_s(pids) - before_s, time.monotonic() - begin_s
            await asyncio.gather(*(node.stop() for node in cluster.nodes))
            begin_s = time.monotonic()
            await cluster.start()
            start_s = time.monotonic() - begin_s
    return Cost(
        row="idle-streams-of-three",
        broker=broker.name,
        units=count,
        cpu_us=cpu_s / watched_s / count / _NODES * 1e6,
        memory_bytes=grown_bytes / count / _NODES,
        seconds=start_s,
    )


async def _settled(cluster: LocalCluster) -> None:
    if not await cluster.settle(_SETTLE_S):
        raise LocalError("three nodes did not find together in time")


def _make_streams(url: str, count: int) -> None:
    def make(number: int) -> None:
        stream = {"name": f"idle-{number}", "filters": [f"idle/{number}/#"]}
        Http(url).call("POST", "/v1/streams", stream)

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        list(pool.map(make, range(count)))
