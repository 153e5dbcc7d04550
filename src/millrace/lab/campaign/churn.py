"""What comes and goes in years comes and goes for hours: memory, descriptors, threads and files stay flat.

Clients connect, subscribe and leave; durable sessions are made and expire; shared groups get and lose their
members; retained messages are set and deleted; streams, durable groups and queues are made, used and deleted.
What each node uses is sampled. After a warm-up the medians of the first and the last quarter of what remains
must be near each other.
"""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from millrace.client import Client, ClientError
from millrace.errors import LocalError
from millrace.lab.campaign.run import Run
from millrace.lab.campaign.stage import STREAM, Stage
from millrace.local_cluster import NodeProcess

_SAMPLE_S = 5.0
_TOLD_S = 60.0
_WARM_UP = 1 / 3
_RETAINED_BYTES = 32 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# By so much may a figure grow from the first quarter to the last: a share, and a number.
_BOUNDS = {"memory, MiB": (0.1, 8.0), "descriptors": (0.1, 20.0), "threads": (0.0, 2.0), "files": (0.1, 20.0)}
_PATIENCE_S = 30.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=4, help="who do all this at the same time")


@dataclass(frozen=True, slots=True)
class Use:
    """What a node uses at one moment, by the names of `_BOUNDS`."""

    figures: dict[str, float]

    @staticmethod
    def of(node: NodeProcess) -> "Use":
        own = Path(f"/proc/{node.pid}")
        pages = int((own / "statm").read_text().split()[1])
        return Use(
            {
                "memory, MiB": pages * _PAGE_BYTES / (1 << 20),
                "descriptors": len(os.listdir(own / "fd")),
                "threads": len(os.listdir(own / "task")),
                "files": sum(len(names) for _, _, names in os.walk(node.data)),
            }
        )


class Worker:
    """Does one thing after another, each of which leaves nothing behind."""

    def __init__(self, run: Run, number: int, done: Counter[str]) -> None:
        self._stage = run.stage
        self._rng = run.rng
        self._number = number
        self._count = 0
        self._node = self._stage.nodes[0]
        self._done = done
        self._things: list[Callable[[str], Awaitable[None]]] = [
            self.visit,
            self.durable,
            self.shared,
            self.retained,
            self.queue,
            self.group,
            self.stream,
        ]

    async def run(self) -> None:
        while True:
            thing = self._rng.choice(self._things)
            self._count += 1
            self._node = self._rng.choice(self._stage.nodes)
            # No name comes twice: what is remembered by name for ever is found by this.
            name = f"w{self._number}-{self._count}"
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await thing(name)
            except (ClientError, LocalError, TimeoutError) as error:
                self._done[f"failed: {thing.__name__}, {type(error).__name__}"] += 1
            else:
                self._done[thing.__name__] += 1

    def _client(self, name: str, **options: Any) -> Client:
        return Client(self._rng.choice(self._stage.nodes).url, client_id=name, reconnect=False, **options)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        # All requests of one thing at one node: what a command made is known elsewhere a moment later.
        return await self._stage.command(self._node, method, path, body)

    async def visit(self, name: str) -> None:
        """Connect, subscribe, publish at every QoS, read that, and leave."""
        async with self._client(name) as client, client.subscribe(f"churn/{name}/#", qos=2) as messages:
            for qos in (0, 1, 2):
                await client.publish(f"churn/{name}/{qos}", b"x" * 100, qos=qos)
            for _ in range(3):
                await anext(messages)

    async def durable(self, name: str) -> None:
        """A session that lasts a second longer than its client, with messages that wait for it."""
        async with self._client(name, session_expiry_s=1) as client:
            subscription = client.subscribe(f"churn/{name}", qos=1)
            await subscription.__aenter__()
        async with self._client(f"{name}-publisher") as client:
            await client.publish(f"churn/{name}", b"waits", qos=1)

    async def shared(self, name: str) -> None:
        async with self._client(name) as one, self._client(f"{name}-b") as other:
            first = one.subscribe(f"churn/shared/{name}", qos=1, group=name)
            await first.__aenter__()
            async with other.subscribe(f"churn/shared/{name}", qos=1, group=name):
                await other.publish(f"churn/shared/{name}", b"x", qos=1)
            await one.publish(f"churn/shared/{name}", b"x", qos=1)
            await anext(first)

    async def retained(self, name: str) -> None:
        async with self._client(name) as client:
            await client.publish(f"churn/retained/{name}", b"kept", qos=1, retain=True)
            await client.publish(f"churn/retained/{name}", b"", qos=1, retain=True)

    async def queue(self, name: str) -> None:
        topic = f"churn/queue/{name}"
        await self._call("PUT", "/topic", {"topic": topic})
        try:
            await self._call("PUT", "/message", {"topic": topic, "message": "x"})
            await self._call("POST", "/message", {"topic": topic})
        finally:
            await self._call("DELETE", f"/topic?topic={topic}")

    async def group(self, name: str) -> None:
        await self._call("POST", "/v1/groups", {"name": name, "filters": [f"churn/{name}"]})
        await self._call("DELETE", f"/v1/groups/{name}")

    async def stream(self, name: str) -> None:
        """Of each replication in turn; with a member of a group where it is leaderless."""
        replication = self._rng.choice(("quorum", "leaderless", "routed", "primary-backup"))
        fields = {"name": name, "filters": [f"made/{name}/#"], "replication": replication}
        await self._call("POST", "/v1/streams", fields)
        try:
            async with self._client(name) as client, client.subscribe(f"made/{name}/#", qos=1, group="g"):
                await client.publish(f"made/{name}/t", b"x", qos=1)
        finally:
            await self._call("DELETE", f"/v1/streams/{name}")


async def _bound_logs(stage: Stage) -> None:
    """Logs that grow for hours are no leak."""
    for name in (STREAM, "default"):
        await stage.command(
            stage.nodes[0], "PATCH", f"/v1/streams/{name}", {"retention_bytes": _RETAINED_BYTES}
        )


def judge_growth(uses: dict[str, list[Use]], run: Run) -> None:
    """The first quarter after the warm-up, and the last."""
    for node, samples in uses.items():
        steady = samples[int(len(samples) * _WARM_UP) :]
        quarter = max(1, len(steady) // 4)
        for what, (share, number) in _BOUNDS.items():
            first = median(use.figures[what] for use in steady[:quarter])
            last = median(use.figures[what] for use in steady[-quarter:])
            run.report.note(f"{node}: {what}, then and in the end", f"{first:.0f}, {last:.0f}")
            run.report.require(
                last <= first * (1 + share) + number, f"{node}: {what} grew from {first:.0f} to {last:.0f}"
            )


async def body(run: Run) -> None:
    stage, given, report, loop = run.stage, run.given, run.report, asyncio.get_running_loop()
    await _bound_logs(stage)
    done: Counter[str] = Counter()
    uses: dict[str, list[Use]] = {node.name: [] for node in stage.nodes}
    async with run.load() as load:
        workers = [asyncio.create_task(Worker(run, n, done).run()) for n in range(given.workers)]
        began_s = told_s = loop.time()
        try:
            while loop.time() - began_s < given.minutes * 60:
                await asyncio.sleep(_SAMPLE_S)
                for node in stage.nodes:
                    with suppress(FileNotFoundError):
                        uses[node.name].append(await asyncio.to_thread(Use.of, node))
                if loop.time() - told_s >= _TOLD_S:
                    told_s = loop.time()
                    shown = {
                        what: round(value) for what, value in uses[stage.nodes[0].name][-1].figures.items()
                    }
                    run.say(f"{told_s - began_s:.0f} s: {sum(done.values()):,} things done; n1 uses {shown}")
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        report.note("done", dict(sorted(done.items())))
        for what, count in done.items():
            if not what.startswith("failed"):
                failed = sum(n for name, n in done.items() if name.startswith(f"failed: {what},"))
                report.require(
                    failed <= 0.01 * count + 2, f"{what} failed {failed} times of {count + failed}"
                )
        judge_growth(uses, run)
        await load.finish()
        await stage.whole()
        report.note("messages acknowledged", load.acknowledged_count)
        report.require(load.answers_missing == 0, f"{load.answers_missing} publishes were never answered")
        for error in load.crashed():
            report.violate(f"a client ended: {error}")
