"""The administration of three real nodes: any of them answers for all, also while the leader is dead."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.http_calls import Answer, call
from e2e.sent_events import SentEvents
from e2e.test_cluster import TIMEOUT_S, Inbox, name, run
from millrace.client import Client
from millrace.lab.demo.stage import leader
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause


async def ask(node: NodeProcess, path: str, method: str = "GET", body: Any = None) -> Answer:
    return await asyncio.to_thread(call, node.http_port, method, path, body)


async def get(node: NodeProcess, path: str) -> Any:
    answer = await ask(node, path)
    assert answer.status == 200, answer
    return answer.json


async def eventually(node: NodeProcess, path: str, holds: Callable[[Any], object]) -> Any:
    """The answer, once it is as wanted."""
    seen: Any = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                seen = await get(node, path)
                if holds(seen):
                    return seen
                await pause()
    except TimeoutError:
        raise AssertionError(f"{path} of {node.name} is still {seen}") from None


def test_every_node_tells_of_all_also_while_the_leader_is_dead(tmp_path: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        for node in cluster.nodes:
            seen = await eventually(node, "/v1/overview", lambda seen: len(seen["nodes"]) == 3)
            assert seen["node"] == node.name
            assert all(row["is_answering"] and row["figures"] for row in seen["nodes"])
            assert sum(row["leads_meta"] for row in seen["nodes"]) == 1
            meta = next(row for row in seen["groups"] if row["group"] == 0)
            assert sorted(meta["voters"]) == ["n1", "n2", "n3"] and meta["leader"] == seen["leader"]
            roles = sorted(row["role"] for row in meta["replicas"])
            assert roles == ["follower", "follower", "leader"]
            assert not any(stream["is_degraded"] for stream in seen["streams"])
        await eventually(
            cluster.nodes[0],
            "/v1/overview",
            lambda seen: all(
                link["is_up"] and link["rtt_ms"] is not None
                for row in seen["nodes"]
                for link in row["figures"]["links"]
            ),
        )
        old = await leader(cluster.nodes)
        others = [node for node in cluster.nodes if node is not old]
        with await asyncio.to_thread(SentEvents, others[0].http_port, "/v1/live") as live:
            await asyncio.to_thread(live.take, "overview")
            await old.kill()
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            while True:
                seen = await asyncio.to_thread(live.take, "overview")
                row = next(row for row in seen["nodes"] if row["node"] == old.name)
                if not row["is_answering"] and row["state"] != "up":
                    break
                assert loop.time() - began_s < 10, "a killed node is shown soon"
            assert row["figures"] is None
            assert any(stream["is_degraded"] for stream in seen["streams"])
        for node in others:
            seen = await eventually(node, "/v1/overview", lambda seen: seen["leader"] not in (None, old.name))
            assert old.name in next(s for s in seen["streams"] if s["name"] == "default")["degraded"]
            events = await eventually(
                node,
                "/v1/events?limit=1000",
                lambda page: {"election", "node", "link"} <= {event["kind"] for event in page["items"]},
            )
            assert events["missing"] == [old.name]
            elections = [event for event in events["items"] if event["kind"] == "election"]
            assert any(event["node"] == seen["leader"] for event in elections)
            assert any(
                event["kind"] == "node" and event["fields"]["member"] == old.name for event in events["items"]
            )
            times = [event["time_us"] for event in events["items"]]
            assert times == sorted(times, reverse=True)

    run(scenario, tmp_path)


def test_clients_of_all_nodes_are_seen_and_steered_from_any(tmp_path: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        stem = name("steered")
        async with (
            Client(first.url, client_id=f"{stem}-1") as one,
            Client(second.url, client_id=f"{stem}-2"),
            Client(third.url, client_id=f"{stem}-3", session_expiry_s=600, clean_start=False) as kept,
            Inbox(one, "steer/#", 1),
            Inbox(kept, "steer/kept", 1),
        ):
            page = await get(second, f"/v1/clients?search={stem}")
            assert [(row["client_id"][-1], row["node"]) for row in page["items"]] == [
                ("1", "n1"),
                ("2", "n2"),
                ("3", "n3"),
            ]
            only = await get(first, f"/v1/clients?search={stem}&node=n3")
            assert [row["node"] for row in only["items"]] == ["n3"]
            detail = await get(third, f"/v1/clients/{stem}-1")
            assert [row["filter"] for row in detail["filters"]] == ["steer/#"]
            trace = await get(second, "/v1/trace?topic=steer/kept")
            assert {(row["client_id"], row["node"]) for row in trace["receivers"]} == {
                (f"{stem}-1", "n1"),
                (f"{stem}-3", "n3"),
            }
            assert (await ask(third, f"/v1/clients/{stem}-2/disconnect", "POST", {})).status == 204
            await eventually(first, "/v1/events?kind=client", lambda page: _tells(page, f"{stem}-2"))
            seen = await eventually(
                first, f"/v1/sessions?search={stem}", lambda page: len(page["items"]) == 1
            )
            assert (seen["items"][0]["owner"], seen["items"][0]["is_connected"]) == ("n3", True)
            assert (await ask(first, f"/v1/sessions/{stem}-3", "DELETE")).status == 204
            for node in cluster.nodes:
                await eventually(node, f"/v1/sessions?search={stem}", lambda page: not page["items"])
                assert (await ask(node, f"/v1/sessions/{stem}-3")).status == 404

    def _tells(page: Any, client_id: str) -> bool:
        return any(
            event["fields"].get("client_id") == client_id and "by an administrator" in event["text"]
            for event in page["items"]
        )

    run(scenario, tmp_path)


def test_a_tail_hears_what_is_published_at_other_nodes(tmp_path: Path) -> None:
    """Also of a routed stream, which sends to those nodes only that have somebody who wants it."""

    async def scenario(cluster: LocalCluster) -> None:
        first, second, _ = cluster.nodes
        body = {"name": "fast", "filters": ["fast/#"], "replication": "routed"}
        assert (await ask(first, "/v1/streams", "POST", body)).status == 201
        await eventually(second, "/v1/streams", lambda seen: len(seen["streams"]) == 2)
        path = "/v1/tail?filter=fast/%23&filter=kept/%23"
        with await asyncio.to_thread(SentEvents, second.http_port, path) as tail:
            tail.comment()
            async with Client(first.url) as client:
                heard: list[str] = []

                async def read() -> None:
                    while {"fast/a", "kept/a"} - set(heard):
                        heard.append((await asyncio.to_thread(tail.take, "message"))["topic"])

                reading = asyncio.create_task(read())
                # Until the other node knows that somebody wants it, QoS 0 goes nowhere.
                while not reading.done():
                    await client.publish("fast/a", b"1", qos=0)
                    await client.publish("kept/a", b"1", qos=1)
                    await pause()
                await reading

    run(scenario, tmp_path)


def test_a_node_that_waits_for_the_others_says_so(tmp_path: Path) -> None:
    """After a stop of all, one comes back alone: its HTTP answers, and says whom it waits for. And one that
    loses the others while it serves says so after a few seconds."""

    async def scenario(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        assert (await ask(first, "/readyz")).status == 200
        await asyncio.gather(second.kill(), third.kill())
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await ask(first, "/readyz")).status == 200:
                await pause()
        assert answer.status == 503
        assert "n2, n3 do not answer" in answer.json["detail"]
        assert (await ask(first, "/livez")).status == 200
        assert (await get(first, "/status"))["waits_for"] == answer.json["detail"]
        await first.kill()
        starting = asyncio.create_task(first.start())
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                await pause()
                try:
                    answer = await ask(first, "/readyz")
                except OSError:
                    continue
                assert answer.status == 503, answer
                if "do not answer" in answer.json["detail"]:
                    break
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["detail"].startswith("waiting for a majority of the nodes that keep group 0: ")
        assert (await ask(first, "/livez")).json == {"status": "ok"}
        refused = await ask(first, "/v1/overview")
        assert refused.status == 503 and "waiting for a majority" in refused.json["detail"]
        assert not starting.done()
        await asyncio.gather(starting, second.start(), third.start())
        for node in cluster.nodes:
            async with asyncio.timeout(TIMEOUT_S):
                while (await ask(node, "/readyz")).status != 200:
                    await pause()
        assert (await ask(second, "/v1/cluster/nodes/n3/drain", "POST", {})).status == 200
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await ask(third, "/readyz")).status == 200:
                await pause()
        assert "drained" in answer.json["detail"]

    run(scenario, tmp_path)
