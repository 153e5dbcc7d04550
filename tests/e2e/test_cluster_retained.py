"""Retained messages on three real nodes: the newest at every node, whatever it missed."""

import asyncio
from pathlib import Path

from e2e.test_cluster import TIMEOUT_S, Inbox, name, run
from e2e.test_cluster_members import call
from millrace.client import Client
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause


async def retained_at(node: NodeProcess) -> dict[str, str]:
    """What a fresh subscriber at this node gets; a live message of its own, after SUBACK, closes the list.
    One of an earlier look, late at this node, may come before the retained ones."""
    found: dict[str, str] = {}
    look = name("look")
    async with (
        Client(node.url, client_id=look) as client,
        client.subscribe("kept/#", "end", qos=1) as messages,
    ):
        await client.publish("end", look.encode(), qos=1)
        async with asyncio.timeout(TIMEOUT_S):
            async for message in messages:
                if message.topic != "end":
                    found[message.topic] = message.payload.decode()
                elif message.payload == look.encode():
                    return found
    return found


def test_a_node_that_missed_a_change_of_streams_has_the_newest(tmp_path: Path) -> None:
    """While a node is down, its topics move to other logs, one is replaced there and one deleted there."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        spec = {"name": "kept", "filters": ["kept/#"], "shards": 2}
        await call(first, "POST", "/v1/streams", spec)
        async with Client(first.url, client_id=name("pub")) as publisher:
            for topic in ("kept/same", "kept/replaced", "kept/deleted"):
                await publisher.publish(topic, b"old", qos=1, retain=True)
            await third.kill()
            await call(first, "PATCH", "/v1/streams/kept", {"shards": 3})
            await publisher.publish("kept/replaced", b"new", qos=1, retain=True)
            await publisher.publish("kept/deleted", b"", qos=1, retain=True)
            wanted = {"kept/same": "old", "kept/replaced": "new"}
            async with asyncio.timeout(TIMEOUT_S):
                while await retained_at(second) != wanted:
                    await pause()
            await third.start()

            async def everywhere() -> bool:
                return all([await retained_at(node) == wanted for node in cluster.nodes])

            async with asyncio.timeout(TIMEOUT_S):
                while not await everywhere():
                    await pause()
            await asyncio.gather(*(node.kill() for node in cluster.nodes))
            await asyncio.gather(*(node.start() for node in cluster.nodes))
            async with asyncio.timeout(TIMEOUT_S):
                while not await everywhere():
                    await pause()

    run(body, tmp_path)


def test_two_nodes_that_retain_at_once_agree(tmp_path: Path) -> None:
    """At QoS 0 each node shows its own at once; a moment later all show the one that came last in the log."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        async with (
            Client(first.url, client_id=name("a")) as one,
            Client(second.url, client_id=name("b")) as two,
            Client(third.url, client_id=name("c")) as watcher,
            Inbox(watcher, "end", 1) as inbox,
        ):
            for number in range(20):
                await asyncio.gather(
                    one.publish("kept/race", f"one-{number}".encode(), qos=0, retain=True),
                    two.publish("kept/race", f"two-{number}".encode(), qos=0, retain=True),
                )
            await one.publish("end", b"end", qos=1)
            await two.publish("end", b"end", qos=1)
            await inbox.has(2)

            async def seen() -> set[str]:
                return {(await retained_at(node)).get("kept/race", "") for node in cluster.nodes}

            async with asyncio.timeout(TIMEOUT_S):
                while len(await seen()) != 1:
                    await pause()
            assert (await seen()) <= {"one-19", "two-19"}

    run(body, tmp_path)
