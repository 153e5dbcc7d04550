"""A node that comes back may need a newcomer before it can serve, and the newcomer needs it."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.broker.entries.meta import PutMember, PutStream
from millrace.broker.meta.members import Member
from millrace.broker.streams.stream import StreamSpec
from millrace.errors import LocalError
from millrace.local_cluster import PortBlock
from millrace.node import config as settings
from millrace.node.peers.messages import Join
from millrace.node.server import Server
from millrace.version import LEVEL

TIMEOUT_S = 20.0


def node(name: str, data: Path, port: int, join: str = "") -> Server:
    values = {
        "node.id": name,
        "node.data": str(data / name),
        "listeners.mqtt": "127.0.0.1:0",
        "listeners.http": "",
        "listeners.peer": f"127.0.0.1:{port}",
        "cluster.join": join,
    }
    secret = {"MILLRACE_CLUSTER__SECRET": "a secret of this test"}
    return Server(settings.load(None, secret, [f"{key}={value}" for key, value in values.items()]))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():
            await asyncio.sleep(0)


async def ended(starting: asyncio.Task[None]) -> None:
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def scene(data: Path, first_port: int, second_port: int) -> None:
    join = f"127.0.0.1:{first_port}"
    first = node("first", data, first_port)
    await first.start()
    # It takes the newcomer's name, and goes before it takes it into a group.
    await first.engine.cluster.stop()
    starting = asyncio.create_task(node("second", data, second_port, join).start())
    await until(lambda: len(first.engine.cluster.members.members) == 2)
    await ended(starting)
    spec = StreamSpec.read({"name": "both", "filters": ["both/#"], "replicas": 2})
    await first.engine.definitions.command(PutStream(spec, create_only=True))
    (shard,) = first.engine.definitions.table.streams["both"].shards
    assert len(first.engine.cluster.members.assignments[shard].replicas) == 2
    await first.stop()

    first, second = node("first", data, first_port), node("second", data, second_port, join)
    both = [asyncio.create_task(one.start()) for one in (first, second)]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*both)
        assert first.engine.shards[shard].group.serving.is_set()
    finally:
        for starting in both:
            await ended(starting)
        for one in (second, first):
            await one.stop()


def test_the_only_voter_of_the_meta_group_comes_back_to_a_shard_that_it_shares_with_a_newcomer(
    tmp_path: Path,
) -> None:
    ports = PortBlock()
    try:
        asyncio.run(scene(tmp_path, ports.take(), ports.take()))
    finally:
        ports.close()


async def unreachable_address(data: Path, port: int) -> None:
    server = node("first", data, port)
    await server.start()
    cluster, newcomer = server.engine.cluster, Member(replica="ff", name="second", peer="node2", level=LEVEL)
    try:
        with pytest.raises(LocalError, match=r"second.*'node2'.*HOST:PORT"):
            await cluster._on_join("ff", Join(newcomer))
        assert len(cluster.members.members) == 1
        # As a node that took it would have put it.
        await server.engine.definitions.command(PutMember(newcomer))
        await until(lambda: {row["state"] for row in cluster.status()["members"]} == {"up", "suspect"})
    finally:
        await server.stop()


def test_a_node_whose_address_cannot_be_read_is_not_taken_in_and_does_not_end_the_review(
    tmp_path: Path,
) -> None:
    ports = PortBlock()
    try:
        asyncio.run(unreachable_address(tmp_path, ports.take()))
    finally:
        ports.close()


async def faulty_review(data: Path, port: int) -> None:
    server = node("first", data, port)
    await server.start()
    rounds: list[int] = []

    async def review() -> None:
        rounds.append(len(rounds))
        raise RuntimeError("a fault")

    try:
        server.engine.cluster._repeat(review)
        await until(lambda: len(rounds) > 1)
    finally:
        await server.stop()


def test_a_fault_in_one_review_is_said_and_the_next_one_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports = PortBlock()
    try:
        asyncio.run(faulty_review(tmp_path, ports.take()))
    finally:
        ports.close()
    assert "RuntimeError: a fault" in caplog.text


def listed(data: Path, ports: list[int]) -> list[Server]:
    """Nodes that all have the same list of addresses."""
    join = ",".join(f"127.0.0.1:{port}" for port in ports)
    return [node(f"n{at}", data, port, join) for at, port in enumerate(ports, 1)]


def start(servers: list[Server]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(server.start()) for server in servers]


def is_waiting_for_the_others(server: Server) -> bool:
    engine = getattr(server, "engine", None)
    return engine is not None and "once all of its nodes have answered" in engine.cluster.joining


async def one_list(data: Path, ports: list[int]) -> None:
    servers = listed(data, ports)
    first, *others = servers
    # The first alone waits for what the others say.
    starting = start([first])
    await until(lambda: is_waiting_for_the_others(first))
    starting += start(others)
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*starting)
    assert {len(server.engine.cluster.members.members) for server in servers} == {3}
    (cluster,) = {server.engine.cluster.members.cluster for server in servers}

    # All three vote before one of them is lost.
    await until(lambda: all(len(group["voters"]) == 3 for group in first.engine.cluster.groups()))

    # It loses its disk and comes back while nobody is there: it does not form another cluster.
    for server in servers:
        await server.stop()
    shutil.rmtree(data / "n1")
    first, *others = listed(data, ports)
    starting = start([first])
    await until(lambda: is_waiting_for_the_others(first))
    starting += start(others)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(*starting)
        assert first.engine.cluster.members.cluster == cluster
    finally:
        for server in (first, *others):
            await server.stop()


def test_nodes_with_one_list_form_one_cluster_and_the_first_of_them_never_a_second(tmp_path: Path) -> None:
    ports = PortBlock()
    try:
        asyncio.run(one_list(tmp_path, [ports.take() for _ in range(3)]))
    finally:
        ports.close()
