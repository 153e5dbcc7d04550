"""What the cluster demos share: a stage of nodes, a publisher that counts, a subscriber that remembers."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millrace.client import Client
from millrace.client.http import Http
from millrace.lab.demo.story import Story
from millrace.local_cluster import LocalCluster, NodeProcess

TIMEOUT_S = 60.0
# A wait that is longer says what it is for.
_NEWS_S = 2.0


@asynccontextmanager
async def cluster_of(
    story: Story, count: int, *, options: tuple[str, ...] = ()
) -> AsyncIterator[LocalCluster]:
    """Nodes in a directory of their own, gone at the end, or with the story where that is kept."""
    async with story.lasting(_nodes(story, count, options)) as cluster:
        yield cluster


@asynccontextmanager
async def _nodes(story: Story, count: int, options: tuple[str, ...]) -> AsyncIterator[LocalCluster]:
    heard: set[str] = set()

    def on_line(name: str, line: str) -> None:
        if " ready: " in line and name not in heard:
            heard.add(name)
            story.say(name, "serves")

    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as directory:
        cluster = LocalCluster(count, Path(directory), options=options, on_line=on_line)
        story.say("stage", f"starting {count} processes: n1 forms a cluster, the others ask to be let in")
        waiting = asyncio.create_task(_tell_who_is_missing(story, cluster, heard))
        try:
            await cluster.start()
            waiting.cancel()
            story.shows(f"{cluster.nodes[0].http_url}/")
            await ready(story, cluster, count)
            yield cluster
        finally:
            waiting.cancel()
            await cluster.stop()


async def _tell_who_is_missing(story: Story, cluster: LocalCluster, heard: set[str]) -> None:
    """A wait that goes on says what it is for."""
    while True:
        await asyncio.sleep(_NEWS_S)
        missing = [node.name for node in cluster.nodes if node.name not in heard]
        story.say("stage", f"waiting for {', '.join(missing)} to start, open a log and join", "dim")


async def status(node: NodeProcess) -> dict[str, object]:
    answer = await asyncio.to_thread(Http(node.http_url).call, "GET", "/status")
    assert isinstance(answer, dict)
    return answer


async def members_up(node: NodeProcess) -> list[str]:
    cluster = (await status(node))["cluster"]
    assert isinstance(cluster, dict)
    return [m["node"] for m in cluster["members"] if m["state"] == "up"]


async def leader(nodes: list[NodeProcess]) -> NodeProcess:
    """The node that leads the meta group, as any of these knows."""
    for _ in range(600):
        for node in nodes:
            if not node.is_running:
                continue
            cluster = (await status(node))["cluster"]
            assert isinstance(cluster, dict)
            for member in cluster["members"]:
                if member["leads_meta"]:
                    for other in nodes:
                        if other.name == member["node"] and other.is_running:
                            return other
        await asyncio.sleep(0.05)
    raise TimeoutError("no leader")


async def is_whole(node: NodeProcess, count: int) -> bool:
    """Whether this node sees so many members and every group where it should be."""
    cluster = (await status(node))["cluster"]
    assert isinstance(cluster, dict)
    return len(cluster["members"]) == count and bool(cluster["is_settled"])


async def ready(story: Story, cluster: LocalCluster, count: int) -> None:
    """Wait until every group is on every node: only then does losing one lose nothing."""
    loop = asyncio.get_running_loop()
    news_s = loop.time() + _NEWS_S
    for _ in range(1200):
        lacking = [n.name for n in cluster.nodes if n.is_running and not await is_whole(n, count)]
        if not lacking:
            break
        if loop.time() >= news_s:
            news_s = loop.time() + _NEWS_S
            story.say("stage", f"waiting until {', '.join(lacking)} keep a copy of everything", "dim")
        await asyncio.sleep(0.05)
    first = await leader(cluster.nodes)
    story.say(first.name, "leads; every node keeps everything")


class Listener:
    """A subscriber that says what it gets and remembers it."""

    def __init__(self, story: Story, name: str, client: Client, filter: str) -> None:
        self._story = story
        self.name = name
        self._client = client
        self._filter = filter
        self.received: list[str] = []
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> "Listener":
        self._task = asyncio.create_task(self._run())
        await asyncio.wait_for(self._ready.wait(), TIMEOUT_S)
        return self

    async def _run(self) -> None:
        async with self._client.subscribe(self._filter, qos=2) as messages:
            self._story.say(self.name, f"subscribed to {self._filter}")
            self._ready.set()
            async for message in messages:
                text = message.payload.decode()
                self.received.append(text)
                self._story.say(self.name, f"got  {text}", "green")

    async def has(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.received) < count:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def publish(story: Story, who: str, client: Client, topic: str, texts: list[str]) -> None:
    for text in texts:
        await asyncio.wait_for(client.publish(topic, text.encode(), qos=2), TIMEOUT_S)
        story.say(who, f"sent {text}")
