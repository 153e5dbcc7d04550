"""Leaderless streams on three real nodes: every node takes messages, groups share them, and nothing is lost
when nodes are killed in turns."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from e2e.test_cluster import Inbox, name, run, whole
from millrace.client import CannotConnect, Client
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause, until_async

TIMEOUT_S = 60.0
GROUP = "$share/work/jobs/#"


async def call(node: NodeProcess, method: str, path: str, body: object = None) -> object:
    return await asyncio.to_thread(Http(node.http_url).call, method, path, body)


async def make_stream(cluster: LocalCluster, **settings: object) -> None:
    spec = {"name": "jobs", "filters": ["jobs/#"], "replication": "leaderless", **settings}
    await call(cluster.nodes[0], "POST", "/v1/streams", spec)

    async def is_there(node: NodeProcess) -> bool:
        streams = await call(node, "GET", "/v1/streams")
        assert isinstance(streams, dict)
        return any(row["name"] == "jobs" and row["shard_list"] for row in streams["streams"])

    for node in cluster.nodes:
        async with asyncio.timeout(TIMEOUT_S):
            while not await is_there(node):
                await pause()


def test_every_node_takes_messages_and_every_subscriber_gets_each_once(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        await make_stream(cluster)
        clients = [Client(node.url, client_id=name("c")) for node in cluster.nodes]
        async with (
            clients[0],
            clients[1],
            clients[2],
            Inbox(clients[0], "jobs/+", 1) as here,
            Inbox(clients[1], "jobs/#", 2) as there,
        ):
            for turn in range(5):
                for number, client in enumerate(clients):
                    for qos in (0, 1, 2):
                        await client.publish(f"jobs/{number}", f"{number}.{turn}.{qos}", qos=qos)
            await here.has(45)
            await there.has(45)
            for inbox in (here, there):
                assert max(Counter(inbox.got).values()) == 1
                for number in range(3):
                    own = [text for text in inbox.got if text.startswith(f"{number}.") and text[-1] == "1"]
                    assert own == [f"{number}.{turn}.1" for turn in range(5)], "the order of an origin"
        rows: list[dict[str, int]] = []
        async with asyncio.timeout(TIMEOUT_S):
            while sum(row["next_offset"] for row in rows) < 45:
                found = await call(cluster.nodes[2], "GET", "/v1/streams/jobs")
                assert isinstance(found, dict)
                rows = found["shard_list"]
        assert sum(row["next_offset"] for row in rows) == 45
        shard = next(row["shard"] for row in rows if row["next_offset"])
        found = await call(cluster.nodes[1], "GET", f"/v1/streams/jobs/shards/{shard}/messages?from=0")
        assert isinstance(found, dict) and len(found["messages"]) == 15

    run(body, tmp_path)


@pytest.mark.long
def test_a_node_that_is_alone_serves_clean_sessions_and_sends_durable_ones_away(tmp_path: Path) -> None:
    """What the page on leaderless streams says about whom a node without a majority serves."""

    async def body(cluster: LocalCluster) -> None:
        await make_stream(cluster, ack="local")
        alone, *others = cluster.nodes
        async with (
            Client(alone.url, client_id=name("clean")) as clean,
            Client(alone.url, client_id=name("durable"), session_expiry_s=3600) as durable,
            Inbox(clean, "jobs/#", 2) as inbox,
        ):
            for node in others:
                await node.kill()
            for qos in (0, 1, 2):
                await clean.publish("jobs/1", f"clean {qos}", qos=qos)
            await durable.publish("jobs/1", "durable 1", qos=1)
            # Its packet id is never written, so it is not taken; with that the durable sessions are ended.
            waiting = asyncio.create_task(durable.publish("jobs/1", "durable 2", qos=2))
            await until_async(lambda: not durable.connected, "the durable session is sent away", TIMEOUT_S)
            with pytest.raises(CannotConnect):
                late = Client(alone.url, client_id=name("late"), session_expiry_s=3600, connect_timeout_s=2)
                async with late:
                    pass
            for qos in (0, 1, 2):
                await clean.publish("jobs/1", f"still {qos}", qos=qos)
            await inbox.has(7)
            assert "durable 2" not in inbox.got and not waiting.done()
            for node in others:
                await node.start()
            await asyncio.wait_for(waiting, TIMEOUT_S)
            await inbox.has(8)
            assert inbox.got.count("durable 2") == 1

    run(body, tmp_path)


def test_a_group_shares_messages_over_nodes_and_a_member_moves(tmp_path: Path) -> None:
    """Each message reaches one member of each group, once, wherever the members are; also the first ones,
    which come before the nodes know each other in this stream."""

    async def body(cluster: LocalCluster) -> None:
        await make_stream(cluster)
        first, second, third = cluster.nodes
        publisher = Client(third.url, client_id=name("p"))
        one, two = Client(first.url, client_id=name("m")), Client(second.url, client_id=name("m"))
        audit = Client(first.url, client_id=name("audit"))
        async with publisher, audit, Inbox(audit, "$share/audit/jobs/#", 1) as all_of_them:
            async with one, two:
                async with Inbox(one, GROUP, 1) as a, Inbox(two, GROUP, 1) as b:
                    for number in range(60):
                        await publisher.publish("jobs/x", str(number), qos=1)
                    await until_async(
                        lambda: set(map(int, a.got + b.got)) == set(range(60)), "60 in the group", TIMEOUT_S
                    )
                    assert a.got and b.got
                    await until_idle(cluster, GROUP)
                    assert len(a.got) + len(b.got) == 60, Counter(a.got + b.got).most_common(5)
                moved = Client(third.url, client_id=name("m"))
                async with moved, Inbox(moved, GROUP, 1) as c:
                    for number in range(60, 90):
                        await publisher.publish("jobs/x", str(number), qos=1)
                    await until_async(
                        lambda: set(map(int, c.got)) >= set(range(60, 90)), "30 at the new place", TIMEOUT_S
                    )
                    await until_idle(cluster, GROUP)
                    assert sorted(map(int, c.got)) == list(range(60, 90))
            await until_async(
                lambda: set(map(int, all_of_them.got)) == set(range(90)), "90 in the other group", TIMEOUT_S
            )
            await until_idle(cluster, "$share/audit/jobs/#")
            assert len(all_of_them.got) == 90

    run(body, tmp_path)


def test_killing_nodes_in_turn_loses_nothing_acknowledged_at_majority(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        await make_stream(cluster)
        acknowledged: list[str] = []
        for victim in cluster.nodes:
            others = [node for node in cluster.nodes if node is not victim]
            async with Client(others[0].url, client_id=name("p")) as publisher:
                await victim.kill()
                for number in range(20):
                    text = f"{victim.name}.{number}"
                    await publisher.publish("jobs/k", text, qos=1)
                    acknowledged.append(text)
            await victim.start()
            await whole(cluster)
        assert len(acknowledged) == 60
        for node in cluster.nodes:
            found: list[str] = []
            async with asyncio.timeout(TIMEOUT_S):
                # It was down while others took messages, and catches up by itself.
                while not set(acknowledged) <= set(found):
                    found = await payloads(node)
            assert len(found) == len(set(found)), node.name

    run(body, tmp_path)


async def payloads(node: NodeProcess) -> list[str]:
    """Everything that the node has of the stream."""
    rows = await call(node, "GET", "/v1/streams/jobs")
    assert isinstance(rows, dict)
    found: list[str] = []
    for row in rows["shard_list"]:
        answer = await call(node, "GET", f"/v1/streams/jobs/shards/{row['shard']}/messages?from=0")
        assert isinstance(answer, dict)
        found += [message["payload"] for message in answer["messages"]]
    return found


def test_sessions_groups_by_command_and_retained_messages(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        await make_stream(cluster)
        await call(second, "POST", "/v1/groups", {"name": "crew", "filters": ["jobs/#"]})
        mover, pair = name("mover"), name("pair")
        for client_id, filter in ((mover, "jobs/#"), (pair, "$share/team/jobs/#")):
            async with Client(first.url, client_id=client_id, session_expiry_s=600) as client:
                await client.subscribe(filter, qos=1).__aenter__()
        wanted = [str(number) for number in range(5)]
        async with Client(second.url, client_id=name("pub")) as publisher:
            # The node must have heard of the group before what it is to collect.
            await until_known(cluster, "group/crew")
            for text in wanted:
                await publisher.publish("jobs/x", text, qos=1)
            await publisher.publish("jobs/kept", "old", qos=1, retain=True)
        async with Client(third.url, client_id=name("pub")) as publisher:
            await publisher.publish("jobs/kept", "new", qos=1, retain=True)
        async with (
            Client(third.url, client_id=mover, session_expiry_s=600) as client,
            Inbox(client, "jobs/#", 1) as inbox,
        ):
            # The session was there before: it gets what was retained too, and what it missed.
            await inbox.has(8)
            assert [text for text in inbox.got if text in wanted] == wanted
            assert Counter(inbox.got)["old"] == 1
        async with (
            Client(second.url, client_id=pair, session_expiry_s=600) as client,
            Inbox(client, "$share/team/jobs/#", 1) as inbox,
        ):
            await inbox.has(7)
            assert sorted(inbox.got) == sorted([*wanted, "old", "new"])
        async with (
            Client(first.url, client_id=name("m")) as client,
            Inbox(client, "$share/crew/jobs/#", 1) as inbox,
        ):
            await inbox.has(7)
            assert sorted(inbox.got) == sorted([*wanted, "old", "new"])
        for node in cluster.nodes:
            async with (
                Client(node.url, client_id=name("late")) as client,
                Inbox(client, "jobs/kept", 1) as inbox,
            ):
                await inbox.has(1)
                assert inbox.got == ["new"]

    run(body, tmp_path)


def test_a_node_that_stood_still_takes_up_its_share_without_giving_anything_twice(tmp_path: Path) -> None:
    """It was left out and does not know it. What the other gave meanwhile is not given again."""

    async def body(cluster: LocalCluster) -> None:
        await make_stream(cluster)
        first, second, third = cluster.nodes
        one, two = Client(first.url, client_id=name("m")), Client(second.url, client_id=name("m"))
        async with (
            Client(third.url, client_id=name("p")) as publisher,
            one,
            two,
            Inbox(one, GROUP, 1) as a,
            Inbox(two, GROUP, 1) as b,
        ):

            async def publish(numbers: range) -> None:
                for number in numbers:
                    await publisher.publish("jobs/x", str(number), qos=1)

            await publish(range(20))
            await until_async(lambda: len(a.got) + len(b.got) >= 20, "20 in the group", TIMEOUT_S)
            await until_idle(cluster, GROUP)
            assert a.got and b.got
            second.signal(signal.SIGSTOP)
            await publish(range(20, 50))
            await until_async(
                lambda: set(map(int, a.got)) >= set(range(20, 50)),
                "the share of the one that stands",
                TIMEOUT_S,
            )
            second.signal(signal.SIGCONT)
            before = len(b.got)
            async with asyncio.timeout(TIMEOUT_S):
                at = 50
                while len(b.got) == before:
                    await publish(range(at, at + 5))
                    at += 5
            await until_async(
                lambda: set(map(int, a.got + b.got)) == set(range(at)), "all in the group", TIMEOUT_S
            )
            await until_idle(cluster, GROUP)
            assert len(a.got) + len(b.got) == at, Counter(a.got + b.got).most_common(5)

    run(body, tmp_path)


async def until_idle(cluster: LocalCluster, group: str) -> None:
    """Every node knows that the group is done with everything: nobody has anything to give any more."""
    for node in cluster.nodes:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found = await call(node, "GET", "/v1/streams/jobs")
                assert isinstance(found, dict)
                if found["groups"].get(group, {"lag": 1})["lag"] == 0:
                    break
                await pause()


async def until_known(cluster: LocalCluster, group: str) -> None:
    for node in cluster.nodes:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found = await call(node, "GET", "/v1/streams/jobs")
                assert isinstance(found, dict)
                if group in found["groups"]:
                    break
                await pause()


def test_a_stream_in_memory_is_filled_again_by_the_others(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        first, second, _ = cluster.nodes
        await make_stream(cluster, storage="memory", ack="all")
        for node in (first, second):
            async with Client(node.url, client_id=name("p")) as publisher:
                for number in range(5):
                    await publisher.publish("jobs/x", f"{node.name}.{number}", qos=1)
        await second.kill()
        await second.start()

        async def ends() -> dict[str, int]:
            found = await call(second, "GET", "/v1/streams/jobs")
            assert isinstance(found, dict)
            rows = found["shard_list"]
            return {
                f"{row['origin']}/{row['term']}": row["next_offset"] for row in rows if row["next_offset"]
            }

        async with asyncio.timeout(TIMEOUT_S):
            while await ends() != {f"{first.name}/1": 5, f"{second.name}/1": 5}:
                await pause()
        async with Client(second.url, client_id=name("p")) as publisher:
            await publisher.publish("jobs/x", "again", qos=1)
        assert (await ends())[f"{second.name}/2"] == 1

    run(body, tmp_path)
