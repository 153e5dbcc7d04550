"""A cluster is upgraded one node at a time, from the release before: the same sources, one level lower."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import millrace
from millrace.client import Client
from millrace.errors import LocalError
from millrace.lab.demo.stage import is_whole
from millrace.local_cluster import LocalCluster
from millrace.local_cluster.nodes import NodeProcess
from millrace.version import LEVEL
from waiting import pause, until_async

WAIT_S = 60.0
_END = b"end"


def release(directory: Path, level: int) -> tuple[str, ...]:
    """Sources that understand this level, and the command that lets a node run them."""
    sources = directory / f"level{level}"
    shutil.copytree(Path(millrace.__file__).parent, sources / "millrace")
    version = sources / "millrace" / "version.py"
    text = version.read_text()
    assert text.count(f"LEVEL = {LEVEL}\n") == 1
    text = text.replace(f"LEVEL = {LEVEL}\n", f"LEVEL = {level}\n")
    # An older one has none of the features of later levels, and does not ask whether it understands them.
    version.write_text(text.partition("\nassert all(feature")[0])
    return ("env", f"PYTHONPATH={sources}")


class Upgrading(LocalCluster):
    """Three nodes, each of which runs the release that it is given."""

    def __init__(self, data: Path, runs: tuple[str, ...]) -> None:
        self.runs = dict.fromkeys(range(4), runs)
        super().__init__(3, data, place=lambda number: ("127.0.0.1", self.runs[number]))

    async def restart(self, node: NodeProcess, runs: tuple[str, ...]) -> NodeProcess:
        """The same node, with another release."""
        await node.stop()
        self.runs[node.number] = runs
        self.nodes.remove(node)
        new = self.add(node.number)
        self.nodes.sort(key=lambda one: one.number)
        await new.start()
        return new

    async def whole(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not all([await is_whole(node, len(self.nodes)) for node in self.nodes]):
                await pause()


def said(cluster: LocalCluster, words: str) -> Callable[[], bool]:
    return lambda: all(any(words in line for line in node.lines) for node in cluster.nodes)


class Load:
    """Publishes numbered messages at QoS 2, and a durable subscriber takes them, until it is told to end."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._urls = [node.url for node in cluster.nodes]
        self.acknowledged: list[bytes] = []
        self.received: list[bytes] = []
        self._is_over = False

    async def publish(self) -> None:
        async with Client(self._urls, client_id="upgrade-publisher", session_expiry_s=600) as client:
            number = 0
            while not self._is_over:
                payload = b"%d" % number
                await client.publish("upgrade/t", payload, qos=2)
                self.acknowledged.append(payload)
                number += 1
            await client.publish("upgrade/t", _END, qos=2)

    async def subscribe(self) -> None:
        options = {"client_id": "upgrade-subscriber", "session_expiry_s": 600}
        async with Client(self._urls, **options) as client, client.subscribe("upgrade/#", qos=2) as messages:
            async for message in messages:
                if message.payload == _END:
                    return
                self.received.append(message.payload)

    def end(self) -> None:
        self._is_over = True


@pytest.mark.long
def test_nothing_is_lost_while_a_cluster_is_upgraded_one_node_at_a_time(tmp_path: Path) -> None:
    """And what is new is used once all nodes understand it; from then on an older node is refused."""

    async def scenario() -> None:
        older = release(tmp_path, LEVEL - 1)
        async with Upgrading(tmp_path / "data", older) as cluster:
            await cluster.whole()
            load = Load(cluster)
            tasks = [asyncio.create_task(load.subscribe()), asyncio.create_task(load.publish())]
            await until_async(lambda: len(load.received) > 20, "the load has begun", WAIT_S)
            for node in list(cluster.nodes):
                await cluster.restart(node, ())
                await cluster.whole()
                before = len(load.received)
                await until_async(
                    lambda before=before: len(load.received) > before + 20, "it goes on", WAIT_S
                )  # type: ignore[misc]
            await until_async(
                said(cluster, f"all nodes understand level {LEVEL}"), "all know that all are upgraded", WAIT_S
            )
            load.end()
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(*tasks)
            assert load.received == load.acknowledged, "each once, in order"
            with pytest.raises(
                LocalError, match=f"uses level {LEVEL}; this release understands level {LEVEL - 1}"
            ):
                await cluster.restart(cluster.nodes[0], older)
            cluster.nodes.pop(0)

    asyncio.run(scenario())


@pytest.mark.long
def test_a_node_that_is_too_new_or_too_old_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Upgrading(tmp_path / "data", ()) as cluster:
            await cluster.whole()
            for level, why in ((LEVEL + 2, "the other node is too old"), (LEVEL - 1, "this node is too old")):
                cluster.runs[3] = release(tmp_path, level)
                stranger = cluster.add(3)
                starting = asyncio.create_task(stranger.start())
                await until_async(
                    lambda stranger=stranger, why=why: any(why in line for line in stranger.lines),  # type: ignore[misc]
                    f"level {level} is told: {why}",
                    WAIT_S,
                )
                await stranger.kill()
                with pytest.raises(LocalError, match="did not start"):
                    await starting
                cluster.nodes.remove(stranger)

    asyncio.run(scenario())
