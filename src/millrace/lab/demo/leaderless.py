"""`leaderless`: three nodes without a leader, two groups; a member moves, a node dies, a silence ends."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable

from millrace.client import Client
from millrace.client.http import Http
from millrace.lab.demo.stage import TIMEOUT_S, Listener, cluster_of, ready
from millrace.lab.demo.story import Story
from millrace.local_cluster import LocalCluster, NodeProcess

_EACH = 6


async def run(story: Story) -> None:
    story.title("Every node takes messages; two groups share them, wherever their members are")
    async with cluster_of(story, 3) as cluster:
        one, two, three = cluster.nodes
        await _make_stream(story, cluster)
        sent: list[str] = []
        audit = await _member(story, "audit", three, "$share/audit/jobs/#")
        first = await _member(story, "billing-1", one, "$share/billing/jobs/#")
        second = await _member(story, "billing-2", two, "$share/billing/jobs/#")
        sent += await _publish(story, cluster, [one, two, three], "a")
        await _until(lambda: len(first.received) + len(second.received) >= len(sent))
        await audit.has(len(sent))
        calm = Counter(first.received + second.received)
        shares = (len(first.received), len(second.received))

        story.title("A member moves from n2 to n3")
        await second.client.__aexit__(None, None, None)
        await second.stop()
        moved = await _member(story, "billing-2", three, "$share/billing/jobs/#")
        sent += await _publish(story, cluster, [two], "b")
        await _until(lambda: len(first.received) + len(moved.received) + shares[1] >= len(sent))

        story.title("Node n1 dies, and with it a member of billing")
        await one.kill()
        story.say(one.name, "kill -9", "red")
        sent += await _publish(story, cluster, [two, three], "c")

        def billing() -> list[str]:
            return first.received + second.received + moved.received

        await _until(lambda: set(billing()) >= set(sent))
        await first.stop()
        await one.start()
        story.say(one.name, "is back with its data")
        await ready(story, cluster, 3)

        story.title("Node n2 falls silent while others go on; then it is heard again")
        two.signal(signal.SIGSTOP)
        story.say(two.name, "frozen: to the others it is on the far side of a partition", "red")
        sent += await _publish(story, cluster, [one, three], "d")
        await _until(lambda: set(billing()) >= set(sent))
        two.signal(signal.SIGCONT)
        story.say(two.name, "heard again")
        sent += await _publish(story, cluster, [two], "e")
        await _until(lambda: set(billing()) >= set(sent) and set(audit.received) >= set(sent))
        logs = await _logs(cluster)
        for listener in (audit, moved):
            await listener.client.__aexit__(None, None, None)
            await listener.stop()
    story.say("stage", f"{len(sent)} messages acknowledged; shares of the first part: {shares}")
    story.proved(
        {
            "while nothing failed, each message went to one member of billing": set(calm.values()) == {1},
            "both nodes with members took their share": min(shares) > 0,
            "every acknowledged message reached a member of billing": set(sent) <= set(billing()),
            "and one of audit": set(sent) <= set(audit.received),
            "all nodes hold the same logs at the end": len({str(row) for row in logs}) == 1,
        }
    )


async def _make_stream(story: Story, cluster: LocalCluster) -> None:
    stream = {"name": "jobs", "filters": ["jobs/#"], "replication": "leaderless"}
    await asyncio.to_thread(Http(cluster.nodes[0].http_url).call, "POST", "/v1/streams", stream)
    story.say("stage", "stream jobs: leaderless, acknowledged by a majority")
    await _logs(cluster)


class _Member(Listener):
    client: Client


async def _member(story: Story, name: str, node: NodeProcess, filter: str) -> _Member:
    client = Client(node.url, client_id=name)
    await client.__aenter__()
    member = _Member(story, name, client, filter)
    member.client = client
    await member.start()
    return member


async def _publish(story: Story, cluster: LocalCluster, nodes: list[NodeProcess], part: str) -> list[str]:
    """Some messages at each of these nodes; those that were acknowledged."""
    sent: list[str] = []
    for node in nodes:
        async with Client(node.url, client_id=f"device-{node.name}") as device:
            for number in range(_EACH):
                text = f"{part}{number}@{node.name}"
                await asyncio.wait_for(device.publish("jobs/1", text.encode(), qos=1), TIMEOUT_S)
                sent.append(text)
        story.say(node.name, f"took {_EACH} messages")
    return sent


async def _logs(cluster: LocalCluster) -> list[dict[int, int]]:
    """Where the logs end, as each node has them, once they agree."""
    found: list[dict[int, int]] = []
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = []
            for node in cluster.nodes:
                streams = await asyncio.to_thread(Http(node.http_url).streams)
                rows = [row for stream in streams if stream["name"] == "jobs" for row in stream["shard_list"]]
                if rows:
                    found.append({row["shard"]: row["next_offset"] for row in rows if row["next_offset"]})
            if len(found) == len(cluster.nodes) and found.count(found[0]) == len(found):
                return found
            await asyncio.sleep(0.1)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not done():
            await asyncio.sleep(0.02)
