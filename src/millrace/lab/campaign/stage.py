"""The cluster under test: processes, what they say of themselves, and waiting for what they should become."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.kernels.checksum import crc32c
from millrace.local_cluster import LocalCluster, NodeProcess

STREAM = "load"
PREFIX = "load"
_ASK_S = 2.0
# A new shard chooses its leader before the answer.
_COMMAND_S = 30.0
_POLL_S = 0.05
_WHOLE_S = 120.0


class Late(Exception):
    """Something that must happen did not, within its time."""


async def until(
    condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float, pause_s: float = _POLL_S
) -> float:
    """Wait for a condition; how long it took. `Late` where it took too long."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while not await condition():
        if loop.time() - began_s > timeout_s:
            raise Late(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(pause_s)
    return loop.time() - began_s


class Stage:
    """A cluster with one stream of several shards, whose leaders are found and harmed."""

    def __init__(self, cluster: LocalCluster, *, shards: int, replicas: int, is_made: bool = False) -> None:
        """`is_made`: the stream stands in the nodes' configuration."""
        self.cluster = cluster
        self._is_made = is_made
        self._shards_wanted = shards
        self._replicas = replicas
        self.shards: list[int] = []
        """Numbers of the stream's shards, in order."""

    @property
    def nodes(self) -> list[NodeProcess]:
        return self.cluster.nodes

    def named(self, name: str) -> NodeProcess:
        return next(node for node in self.nodes if node.name == name)

    async def set_up(self) -> None:
        """Wait for the cluster, make the stream, wait until all nodes keep it."""
        await self.whole()
        if self._is_made:
            made = await self._call(self.nodes[0], "GET", f"/v1/streams/{STREAM}")
        else:
            spec = {
                "name": STREAM,
                "filters": [f"{PREFIX}/#"],
                "shards": self._shards_wanted,
                "replicas": self._replicas,
            }
            made = await self._call(self.nodes[0], "POST", "/v1/streams", spec)
        self.shards = sorted(row["shard"] for row in made["shard_list"])
        await self.whole()

    async def _call(self, node: NodeProcess, method: str, path: str, body: Any = None, **query: Any) -> Any:
        timeout_s = _ASK_S if method == "GET" else _COMMAND_S
        return await asyncio.to_thread(
            lambda: Http(node.http_url).call(method, path, body, timeout_s=timeout_s, **query)
        )

    async def ask(self, node: NodeProcess) -> dict[str, Any] | None:
        """`/v1/cluster` of a node; None where it does not answer."""
        try:
            answer: dict[str, Any] = await self._call(node, "GET", "/v1/cluster")
        except LocalError:
            return None
        return answer

    async def command(self, node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
        return await self._call(node, method, path, body)

    async def groups(self, node: NodeProcess) -> dict[int, dict[str, Any]]:
        """Every replication group as this node sees it, by its number; empty where it does not answer."""
        answer = await self.ask(node)
        return {} if answer is None else {row["group"]: row for row in answer["groups"]}

    async def leaders(self, among: list[NodeProcess] | None = None) -> dict[int, str]:
        """Who leads which group, by the word of the one with the highest term."""
        best: dict[int, tuple[int, str]] = {}
        answers = await asyncio.gather(*(self.groups(node) for node in among or self.running()))
        for rows in answers:
            for number, row in rows.items():
                if row["leader"] is not None and row["term"] > best.get(number, (-1, ""))[0]:
                    best[number] = (row["term"], row["leader"])
        return {number: leader for number, (_, leader) in best.items()}

    async def shard_leader(self, shard: int, among: list[NodeProcess] | None = None) -> NodeProcess:
        """The node that leads this shard."""
        found: list[NodeProcess] = []

        async def known() -> bool:
            name = (await self.leaders(among)).get(shard)
            found[:] = [node for node in self.nodes if node.name == name and node.is_running]
            return bool(found)

        await until(known, f"shard {shard} has a leader", _WHOLE_S)
        return found[0]

    def running(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.is_running]

    async def whole(self, timeout_s: float = _WHOLE_S) -> float:
        """Wait until every node runs, sees all others up, and every group is where it should be and level."""

        async def is_whole() -> bool:
            return all(await asyncio.gather(*(self._is_level(node) for node in self.nodes)))

        return await until(is_whole, "the cluster is whole", timeout_s)

    async def _is_level(self, node: NodeProcess) -> bool:
        answer = await self.ask(node) if node.is_running else None
        if answer is None or not answer["is_settled"] or len(answer["members"]) != len(self.nodes):
            return False
        if any(member["state"] != "up" for member in answer["members"]):
            return False
        groups = answer["groups"]
        # Under load nobody is ever quite level; a node is when what it lacks is only just on its way.
        return all(
            row["leader"] is not None and row["commit"] - row["applied"] < 100 for row in groups
        ) and all(lag < 200 for row in groups for lag in row["lag"].values())

    async def start_empty(self, node: NodeProcess) -> None:
        """Start a node that lost everything: it joins through another one, under its old name."""
        await asyncio.to_thread(shutil.rmtree, node.data, ignore_errors=True)
        node.join_through(next(one for one in self.nodes if one is not node and one.is_running))
        await node.start()

    def topics(self, name: str) -> list[str]:
        """One topic of this publisher for each shard, in the order of the shards."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < len(self.shards):
            topic = f"{PREFIX}/{name}/{number}"
            found.setdefault(crc32c(topic.encode()) % len(self.shards), topic)
            number += 1
        return [found[position] for position in range(len(self.shards))]
