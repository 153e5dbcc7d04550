"""Nodes come and go by command: leaders are spread and moved off, TLS between nodes, status for people."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.certificates import Authority, Pair
from e2e.processes import millrace
from e2e.test_cluster import TIMEOUT_S, Inbox, name, run, whole
from millrace.client import Client
from millrace.client.errors import Refused
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import pause


async def call(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(lambda: Http(node.http_url).call(method, path, body))


async def leaders(node: NodeProcess) -> dict[int, str]:
    return {row["group"]: row["leader"] for row in (await call(node, "GET", "/v1/cluster"))["groups"]}


async def why_not_ready(node: NodeProcess) -> str:
    """What `/readyz` says against the node, empty where it is ready."""
    try:
        await asyncio.to_thread(lambda: Http(node.http_url).get("/readyz"))
    except LocalError as error:
        return str(error)
    return ""


def test_leaders_are_spread_and_leave_a_draining_node(tmp_path: Path) -> None:
    """Every node leads its part; a drained one leads nothing and keeps nothing that counts; it can be stopped
    and removed, nothing is lost, and a newcomer of the same name takes its place."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        spec = {"name": "many", "filters": ["many/#"], "shards": 7, "replicas": 3}
        await call(first, "POST", "/v1/streams", spec)
        async with asyncio.timeout(2 * TIMEOUT_S):
            while not (await call(first, "GET", "/v1/cluster"))["is_spread"]:
                await pause()
        led = list((await leaders(first)).values())
        # 7 shards, the default stream's, the sessions and the cluster's own.
        assert sorted(led.count(node.name) for node in cluster.nodes) == [3, 3, 4]

        async with (
            Client(second.url, client_id=name("pub")) as publisher,
            Client(second.url, client_id=name("sub")) as subscriber,
            Inbox(subscriber, "many/#", 1) as inbox,
        ):
            for number in range(20):
                await publisher.publish(f"many/{number}", b"before", qos=1)
            await call(second, "POST", f"/v1/cluster/nodes/{third.name}/drain", {"draining": True})
            async with asyncio.timeout(TIMEOUT_S):
                while third.name in (await leaders(second)).values() or any(
                    third.name in row["voters"]
                    for row in (await call(second, "GET", "/v1/cluster"))["groups"]
                ):
                    await publisher.publish("many/while", b"while", qos=1)
            await third.stop()
            await call(second, "DELETE", f"/v1/cluster/nodes/{third.name}")
            await asyncio.wait_for(publisher.publish("many/after", b"after", qos=1), TIMEOUT_S)
            async with asyncio.timeout(TIMEOUT_S):
                while "after" not in inbox.got:
                    await pause()
            assert inbox.got.count("before") == 20

    run(body, tmp_path)


def test_nodes_link_over_mutual_tls(tmp_path: Path) -> None:
    """Nodes with certificates of one authority form a cluster; one of another authority, and one without TLS,
    do not get in."""
    authority = Authority(tmp_path, "cluster-ca")
    pair = authority.issue("node", node=True)
    stranger = Authority(tmp_path, "other-ca").issue("stranger", node=True)

    def settings(certificate: str, key: str, ca: str) -> tuple[str, ...]:
        rows = {"tls_cert": certificate, "tls_key": key, "tls_ca": ca}
        return tuple(word for key, value in rows.items() for word in ("--set", f"cluster.{key}={value}"))

    async def body() -> None:
        options = settings(pair.certificate, pair.key, authority.file)
        async with asyncio.timeout(120), LocalCluster(3, tmp_path / "data", options=options) as cluster:
            await whole(cluster)
            first, second, _ = cluster.nodes
            async with (
                Client(first.url, client_id=name("a")) as one,
                Client(second.url, client_id=name("b")) as two,
                Inbox(two, "tls/#", 1) as inbox,
            ):
                await one.publish("tls/x", b"sealed", qos=1)
                await inbox.has(1)
            for options in (settings(stranger.certificate, stranger.key, authority.file), ()):
                cluster._options = options
                outsider = cluster.add()
                starting = asyncio.create_task(outsider.start())
                async with asyncio.timeout(TIMEOUT_S):
                    while not any("cannot join" in line for line in outsider.lines):
                        await pause()
                members = (await call(first, "GET", "/v1/cluster"))["members"]
                assert len(members) == 3
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                await outsider.kill()

    asyncio.run(body())


def test_new_certificates_of_nodes_come_into_force_while_they_run(tmp_path: Path) -> None:
    """A new authority is trusted beside the old one, then certificates of it are shown: the links that were
    there stay, and a node that starts again with the new certificate alone gets in."""
    old, new = Authority(tmp_path, "old-ca"), Authority(tmp_path, "new-ca")
    first_pair, second_pair = old.issue("old-node", node=True), new.issue("new-node", node=True)
    files = {name: tmp_path / f"cluster-{name}.pem" for name in ("cert", "key", "ca")}

    def install(pair: Pair, *authorities: Authority) -> None:
        files["ca"].write_text("".join(Path(one.file).read_text() for one in authorities))
        files["key"].write_text(Path(pair.key).read_text())
        files["cert"].write_text(Path(pair.certificate).read_text())

    async def reloaded(cluster: LocalCluster, times: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            for node in cluster.nodes:
                while sum("reloaded: the certificate of cluster" in line for line in node.lines) < times:
                    await pause()

    async def body() -> None:
        options = tuple(
            word for key, path in files.items() for word in ("--set", f"cluster.tls_{key}={path}")
        )
        async with asyncio.timeout(120), LocalCluster(3, tmp_path / "data", options=options) as cluster:
            await whole(cluster)
            before = len(cluster.nodes[0].lines)
            install(first_pair, old, new)
            await reloaded(cluster, 1)
            install(second_pair, new)
            await reloaded(cluster, 2)
            first, _, third = cluster.nodes
            async with Client(first.url, client_id=name("a")) as one:
                await asyncio.wait_for(one.publish("tls/x", b"sealed", qos=1), TIMEOUT_S)
                # Two nodes that dial each other at the start give one of the two links up.
                assert not any("link with" in line and "lost" in line for line in first.lines[before:])
                await third.kill()
                await third.start()
                await whole(cluster)
                await asyncio.wait_for(one.publish("tls/y", b"sealed", qos=1), TIMEOUT_S)

    install(first_pair, old)
    asyncio.run(body())


def test_status_shows_members_and_groups(tmp_path: Path) -> None:
    """`millrace status` and `/v1/cluster` at any node: who is there, who leads what, and how far each is."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        shown = await asyncio.to_thread(millrace, "status", "--url", second.http_url)
        assert shown.returncode == 0, shown.stderr
        for word in ("n1", "n2", "n3", "sessions", "stream default", "silent s", "applied", "lag"):
            assert word in shown.stdout
        await third.kill()

        async def state() -> str:
            members = (await call(first, "GET", "/v1/cluster"))["members"]
            return next(m["state"] for m in members if m["node"] == third.name)

        seen = set()
        async with asyncio.timeout(TIMEOUT_S):
            while "unreachable" not in seen:
                seen.add(await state())
                await pause()
        assert "suspect" in seen
        async with asyncio.timeout(TIMEOUT_S):
            while not set((await leaders(first)).values()) <= {first.name, second.name}:
                await pause()
        answer = await asyncio.to_thread(millrace, "status", "--json", "--url", first.http_url)
        cluster_seen = json.loads(answer.stdout)["cluster"]
        gone = next(m for m in cluster_seen["members"] if m["node"] == third.name)
        assert gone["silent_s"] >= 5.0 and gone["state"] == "unreachable"
        for row in cluster_seen["groups"]:
            assert row["leader"] in (first.name, second.name)
            assert third.name in row["voters"], "the quorum never shrinks by itself"
            assert row["applied"] <= row["commit"] <= row["last"]

    run(body, tmp_path)


def test_a_node_waits_for_the_others_and_can_be_stopped_meanwhile(tmp_path: Path) -> None:
    """After a power loss the first node that is back says what it waits for; it stops when told, and with a
    second one it serves."""

    async def body(cluster: LocalCluster) -> None:
        first, second, _ = cluster.nodes
        async with Client(first.url, client_id=name("pub")) as publisher:
            await publisher.publish("kept", b"before", qos=1, retain=True)
        await asyncio.gather(*(node.kill() for node in cluster.nodes))
        for is_stopped in (True, False):
            first.lines.clear()
            starting = asyncio.create_task(first.start())
            async with asyncio.timeout(TIMEOUT_S):
                while not any("waiting for a majority" in line for line in first.lines):
                    await pause()
            if is_stopped:
                await first.stop()
                assert not first.is_running
                await asyncio.gather(starting, return_exceptions=True)
        await asyncio.gather(starting, second.start())
        async with (
            Client(first.url, client_id=name("sub")) as client,
            Inbox(client, "kept", 1) as inbox,
        ):
            await inbox.has(1)
            assert inbox.got == ["before"]

    run(body, tmp_path)


def test_a_frozen_node_is_noticed_and_comes_back_with_its_clients(tmp_path: Path) -> None:
    """Its connections look well, but nothing comes over them. Others look after its sessions meanwhile; when
    it is back its client connects again by itself and misses nothing."""

    async def body(cluster: LocalCluster) -> None:
        first, _, third = cluster.nodes

        async def state() -> str:
            members = (await call(first, "GET", "/v1/cluster"))["members"]
            return next(str(m["state"]) for m in members if m["node"] == third.name)

        async with (
            Client(first.url, client_id=name("pub")) as publisher,
            Client(third.url, client_id=name("durable"), session_expiry_s=600) as client,
            Inbox(client, "frozen", 1) as inbox,
        ):
            await publisher.publish("frozen", b"before", qos=1)
            await inbox.has(1)
            third.signal(signal.SIGSTOP)
            async with asyncio.timeout(TIMEOUT_S):
                while await state() != "unreachable":
                    await publisher.publish("other", b"", qos=1)
            await publisher.publish("frozen", b"meanwhile", qos=1)
            third.signal(signal.SIGCONT)
            async with asyncio.timeout(TIMEOUT_S):
                while await state() != "up":
                    await pause()
            await publisher.publish("frozen", b"after", qos=1)
            async with asyncio.timeout(TIMEOUT_S):
                while not {"before", "meanwhile", "after"} <= set(inbox.got):
                    await pause()

    run(body, tmp_path)


def test_a_node_that_is_removed_while_it_runs_says_so_and_sends_its_clients_away(tmp_path: Path) -> None:
    """At every door: DISCONNECT and CONNACK with 0x9C, 503, the log; and by `node remove --now` only, for
    otherwise it is drained first [rule 36]."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        client_id = name("moves")
        async with Client([third.url, first.url], client_id=client_id, session_expiry_s=100) as client:
            done = await asyncio.to_thread(
                millrace, "node", "remove", third.name, "--yes", "--now", "--url", first.http_url
            )
            assert done.returncode == 0, done.stderr
            # It goes on by itself, at the other address.
            await asyncio.wait_for(client.publish("removed/1", b"x", qos=1), TIMEOUT_S)
        # A member tells it, and it takes as long as a message takes; until then it serves.
        async with asyncio.timeout(TIMEOUT_S):
            while "removed from the cluster" not in await why_not_ready(third):
                await pause()
        with pytest.raises(LocalError, match="removed from the cluster"):
            await call(third, "POST", "/v1/streams", {"name": "late", "filters": ["late/#"]})
        assert "removed from the cluster" in (await call(third, "GET", "/status"))["waits_for"]
        assert [row["node"] for row in (await call(second, "GET", "/v1/cluster"))["members"]] == [
            first.name,
            second.name,
        ]
        with pytest.raises(Refused, match="removed from the cluster"):
            async with asyncio.timeout(TIMEOUT_S), Client(third.url, client_id=name("late"), reconnect=False):
                pass
        said = [line for line in third.lines if "node: this node was removed from the cluster" in line]
        assert len(said) == 1

    run(body, tmp_path)
