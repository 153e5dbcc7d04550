"""`python -m millrace.lab.campaign.leaderless`: nodes of a leaderless stream die in turns under load.

Each node has a publisher (QoS 1) and a member of one group; a second group, made by command and without
members, holds the logs so that they can be compared at the end. A round has a calm part, in which each
message published at any node must be acknowledged by exactly one member, once; then a node is killed
(SIGKILL), the others go on, and it is started again. At the end everything acknowledged at the stream's level
(majority) is in the logs of every node, and was given to a member at least once.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack, suppress

from millrace.client import Client
from millrace.client.http import Http
from millrace.errors import MillraceError
from millrace.lab.campaign.kills_in_turns import Wanted, run_command
from millrace.lab.campaign.logs import blocks_of, messages_of
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Late, until
from millrace.local_cluster import LocalCluster, NodeProcess
from millrace.types import Message

_STREAM = {"name": "work", "filters": ["work/#"], "replication": "leaderless"}
_ARCHIVE = {"name": "archive", "filters": ["work/#"]}
_WAIT_S = 90.0
_GROUP = "$share/crew/work/#"
_EARLY_MESSAGES = 5
_CALM_MESSAGES = 40
_PAUSE_S = 0.02


class Post:
    """One node's publisher, and a member of the group beside it."""

    def __init__(self, node: NodeProcess, got: Counter[str]) -> None:
        self.node = node
        self.acknowledged: list[str] = []
        self.is_publishing = False
        self._got = got
        self._next = 0
        self.publisher = Client(node.url, client_id=f"pub-{node.name}", reconnect_pause_s_max=0.2)
        self._member = Client(node.url, client_id=f"member-{node.name}", reconnect_pause_s_max=0.2)

    async def enter(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.publisher)
        await stack.enter_async_context(self._member)
        messages = await stack.enter_async_context(self._member.subscribe(_GROUP, qos=1))
        for work in (self._read(messages), self._publish_on()):
            stack.callback(asyncio.create_task(work).cancel)

    async def _read(self, messages: AsyncIterable[Message]) -> None:
        async for message in messages:
            self._got[message.payload.decode()] += 1

    async def publish(self, word: str) -> str:
        """One message; it counts as acknowledged once this returns."""
        self._next += 1
        text = f"{word}-{self.node.name}-{self._next}"
        await self.publisher.publish(f"work/{self.node.name}", text.encode(), qos=1)
        self.acknowledged.append(text)
        return text

    async def _publish_on(self) -> None:
        """While it is asked for, through everything that happens. What fails is open, and is not repeated."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            if self.is_publishing and self.node.is_running:
                with suppress(MillraceError, TimeoutError):
                    async with asyncio.timeout(5.0):
                        await self.publish("storm")


class Campaign:
    def __init__(self, cluster: LocalCluster, report: Report, say: Say) -> None:
        self.cluster = cluster
        self.report = report
        self.say = say
        self.got: Counter[str] = Counter()
        self.posts = [Post(node, self.got) for node in cluster.nodes]
        self.calm: list[str] = []

    async def _is_settled(self) -> bool:
        nodes = self.cluster.nodes
        with suppress(MillraceError):
            found = [await asyncio.to_thread(Http(n.http_url).call, "GET", "/status") for n in nodes]
            seen = [status["cluster"] for status in found]
            return all(c["is_settled"] and len(c["members"]) == len(nodes) for c in seen)
        return False

    async def _has_all(self, texts: list[str]) -> None:
        async def arrived() -> bool:
            return all(self.got[text] for text in texts)

        await until(arrived, "every message reached a member", _WAIT_S, 0.05)

    async def run(self, *, kills: int, seconds: float, down_s: float) -> None:
        await until(self._is_settled, "the cluster is whole", _WAIT_S)
        first = Http(self.cluster.nodes[0].http_url)
        await asyncio.to_thread(first.call, "POST", "/v1/streams", _STREAM)
        await asyncio.to_thread(first.call, "POST", "/v1/groups", _ARCHIVE)
        began_s = time.monotonic()
        async with AsyncExitStack() as stack:
            for post in self.posts:
                await post.enter(stack)
            number = 0
            while number < kills or time.monotonic() - began_s < seconds:
                await self._calm(number)
                await self._storm(number, down_s)
                number += 1
                self.report.note("kills", number)
            await self._calm(number)
            await self._judge()

    async def _calm(self, number: int) -> None:
        """While all is well each message is acknowledged once in the group."""
        await until(self._is_settled, "the cluster is whole", _WAIT_S)
        # The first ones while the nodes may still be dividing the work anew.
        sent = [await post.publish(f"early-{number}") for _ in range(_EARLY_MESSAGES) for post in self.posts]
        await until(self._is_shared, "every node delivers to its member", _WAIT_S)
        sent += [await post.publish(f"calm-{number}") for _ in range(_CALM_MESSAGES) for post in self.posts]
        await self._has_all(sent)
        self.calm += sent
        # Until the marks of the last ones are everywhere, a kill may repeat them.
        await asyncio.sleep(0.5)

    async def _is_shared(self) -> bool:
        nodes = self.cluster.nodes
        with suppress(MillraceError, KeyError):
            found = [await asyncio.to_thread(Http(n.http_url).call, "GET", "/v1/streams/work") for n in nodes]
            shares = [stream["groups"][_GROUP]["deliver"] for stream in found]
            return all(set(share) == {node.name for node in nodes} for share in shares)
        return False

    async def _storm(self, number: int, down_s: float) -> None:
        victim = self.cluster.nodes[number % len(self.cluster.nodes)]
        for post in self.posts:
            post.is_publishing = True
        await asyncio.sleep(down_s / 2)
        await victim.kill()
        await asyncio.sleep(down_s)
        await victim.start()
        await asyncio.sleep(down_s / 2)
        for post in self.posts:
            post.is_publishing = False
        total = sum(len(post.acknowledged) for post in self.posts)
        self.say(f"{number + 1} kill {victim.name}: {total} messages acknowledged so far")

    async def _judge(self) -> None:
        report = self.report
        acknowledged = [text for post in self.posts for text in post.acknowledged]
        with suppress(Late):
            await self._has_all(acknowledged)
        report.note("messages acknowledged at majority", len(acknowledged))
        report.note("of them while all was well", len(self.calm))
        missed = [text for text in acknowledged if not self.got[text]]
        report.require(not missed, f"{len(missed)} acknowledged messages reached no member, as {missed[:3]}")
        twice = [text for text in self.calm if self.got[text] != 1]
        report.require(not twice, f"{len(twice)} calm messages not exactly once in the group: {twice[:3]}")
        again = sum(count - 1 for count in self.got.values() if count > 1)
        report.note("given again across kills", again)
        for node in self.cluster.nodes:
            held = await asyncio.to_thread(_logs, node)
            lost = [text for text in acknowledged if text not in held]
            report.require(not lost, f"{node.name} lost {len(lost)} acknowledged messages, as {lost[:3]}")
            report.note(f"messages in the logs of {node.name}", len(held))


def _logs(node: NodeProcess) -> set[str]:
    """*blocking* Every message that a node holds of the stream."""
    shards = Http(node.http_url).get("/v1/streams/work")["shard_list"]
    held: set[str] = set()
    for row in shards:
        for block in blocks_of(node, "work", row["shard"]):
            held.update(payload.decode() for _, payload in messages_of(block))
    return held


async def run_leaderless(cluster: LocalCluster, wanted: Wanted, report: Report, say: Say) -> None:
    campaign = Campaign(cluster, report, say)
    await campaign.run(kills=wanted.kills, seconds=wanted.seconds, down_s=wanted.down_s)


if __name__ == "__main__":
    sys.exit(run_command("leaderless", __doc__, run_leaderless, down_s=2.0))
