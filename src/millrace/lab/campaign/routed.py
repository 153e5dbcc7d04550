"""`python -m millrace.lab.campaign.routed`: nodes of a routed stream die in turns.

Each node has a subscriber with a durable session and filters of its own, and a publisher. A node is killed
(SIGKILL), stays away for a moment and is started again. From the moment it serves, messages are published at
every node for every subscriber until each pair has got one through: the longest of these times is how long
the recovery of all subscriptions took [E7], and beyond the bound it is a violation. While
all nodes are there, a round of numbered messages between all pairs must arrive exactly once.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterable
from contextlib import AsyncExitStack, suppress

from millrace.client import Client
from millrace.client.http import Http
from millrace.errors import MillraceError
from millrace.lab.campaign.kills_in_turns import Wanted, run_command
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Late, until
from millrace.local_cluster import LocalCluster, NodeProcess
from millrace.types import Message

RECOVERY_S_MAX = 2.0
_FILTERS = 100
_STREAM = {"name": "live", "filters": ["live/#"], "replication": "routed"}
_WAIT_S = 60.0
_PROBE_PAUSE_S = 0.02


class Post:
    """What one node's subscriber got, and a publisher beside it."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.got: dict[str, int] = {}
        name = node.name
        self.publisher = Client(node.url, client_id=f"pub-{name}", reconnect_pause_s_max=0.2)
        self._subscriber = Client(
            node.url, client_id=f"sub-{name}", session_expiry_s=3600, reconnect_pause_s_max=0.2
        )

    def topic(self, number: int) -> str:
        return f"live/{self.node.name}/{number % _FILTERS}"

    async def enter(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.publisher)
        await stack.enter_async_context(self._subscriber)
        for number in range(_FILTERS):
            messages = await stack.enter_async_context(
                self._subscriber.subscribe(f"live/{self.node.name}/{number}", qos=1)
            )
            task = asyncio.create_task(self._read(messages))
            stack.callback(task.cancel)

    async def _read(self, messages: AsyncIterable[Message]) -> None:
        async for message in messages:
            text = message.payload.decode()
            self.got[text] = self.got.get(text, 0) + 1


async def probe(posts: list[Post], number: int) -> float:
    """Publish at every node for every subscriber until all pairs got one through; how long it took."""
    wanted = {
        (p.node.name, s.node.name): f"probe-{number}-{p.node.name}-{s.node.name}"
        for p in posts
        for s in posts
    }

    async def pair(publisher: Post, subscriber: Post) -> None:
        text = wanted[publisher.node.name, subscriber.node.name]
        at = 0
        while text not in subscriber.got:
            at += 1
            with suppress(MillraceError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await publisher.publisher.publish(subscriber.topic(at), text.encode(), qos=0)
            await asyncio.sleep(_PROBE_PAUSE_S)

    began_s = time.monotonic()
    async with asyncio.timeout(_WAIT_S):
        await asyncio.gather(*(pair(p, s) for p in posts for s in posts))
    return time.monotonic() - began_s


async def exactly_once(posts: list[Post], number: int, report: Report) -> None:
    """While all is well: QoS 1 between all pairs, over all filters, each message once."""
    sent: list[tuple[Post, str]] = []
    for publisher in posts:
        for subscriber in posts:
            for at in range(0, _FILTERS, 10):
                text = f"once-{number}-{publisher.node.name}-{subscriber.node.name}-{at}"
                await publisher.publisher.publish(subscriber.topic(at), text.encode(), qos=1)
                sent.append((subscriber, text))

    async def arrived() -> bool:
        return all(text in subscriber.got for subscriber, text in sent)

    with suppress(Late):
        await until(arrived, "all arrived", 10.0, 0.02)
    wrong = [(text, s.got.get(text, 0)) for s, text in sent if s.got.get(text, 0) != 1]
    if wrong:
        report.violate(
            f"round {number}: {len(wrong)} of {len(sent)} messages not exactly once, as {wrong[0]}"
        )
    report.note("messages between all pairs while all is well", (number + 1) * len(sent))


async def run_routed(
    cluster: LocalCluster, *, kills: int, seconds: float, down_s: float, report: Report, say: Say
) -> None:
    async def settled() -> bool:
        found = [await asyncio.to_thread(Http(n.http_url).call, "GET", "/status") for n in cluster.nodes]
        seen = [status["cluster"] for status in found]
        return all(c["is_settled"] and len(c["members"]) == len(cluster.nodes) for c in seen)

    await until(settled, "the cluster is whole", _WAIT_S)
    await asyncio.to_thread(Http(cluster.nodes[0].http_url).call, "POST", "/v1/streams", _STREAM)
    took_s: list[float] = []
    began_s = time.monotonic()
    async with AsyncExitStack() as stack:
        posts = [Post(node) for node in cluster.nodes]
        for post in posts:
            await post.enter(stack)
        await probe(posts, -1)
        number = 0
        while number < kills or time.monotonic() - began_s < seconds:
            await exactly_once(posts, number, report)
            victim = cluster.nodes[number % len(cluster.nodes)]
            await victim.kill()
            await asyncio.sleep(down_s)
            await victim.start()
            took_s.append(await probe(posts, number))
            say(
                f"{number + 1} kill {victim.name}: all subscriptions work {took_s[-1]:.2f} s after its return"
            )
            if took_s[-1] > RECOVERY_S_MAX:
                report.violate(
                    f"kill {number + 1}: recovery took {took_s[-1]:.2f} s, over {RECOVERY_S_MAX:g} s"
                )
            number += 1
            report.note("kills", number)
    report.times("return to all subscriptions recovered", took_s, p50_max_s=0.0, p99_max_s=RECOVERY_S_MAX)


async def _run(cluster: LocalCluster, wanted: Wanted, report: Report, say: Say) -> None:
    await run_routed(
        cluster,
        kills=wanted.kills,
        seconds=wanted.seconds,
        down_s=wanted.down_s,
        report=report,
        say=say,
    )


if __name__ == "__main__":
    sys.exit(run_command("routed", __doc__, _run, down_s=1.0))
