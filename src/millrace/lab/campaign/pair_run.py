"""Primary-backup under load: publishing on a beat through kills of the primary, and what came of it.

For the demo and for campaigns with many kills. Every topic has a publisher that keeps its last messages and
changes over to the other broker by itself; one subscriber holds connections to both. What is lost, doubled
and late is counted, topic by topic, from what the subscriber saw.
"""

import asyncio
import base64
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from millrace.client import Publisher, Subscriber
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.local_cluster import LocalCluster, NodeProcess

STREAM = "alarms"
TOPIC = "alarms/1"
_WAIT_S = 60.0
_STAMP = struct.Struct("<dI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What is published: on which topic, and how many of the last messages are sent again."""

    topic: str = TOPIC
    keep_last: int = 400
    loss_tolerance: int = 0
    """Messages in a row that may be lost."""


@dataclass
class Outcome:
    published: int = 0
    arrived: dict[int, float] = field(default_factory=dict)
    """Number of a message -> how long it took, in seconds, first arrival."""
    doubled: int = 0
    order_broken: int = 0
    newest: int = -1
    sources: list[str] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    kills_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    """After each kill: until the first message that was published after it arrived."""

    @property
    def lost(self) -> list[int]:
        return [number for number in range(self.published) if number not in self.arrived]

    @property
    def lost_in_a_row(self) -> int:
        longest = row = 0
        for number in range(self.published):
            row = 0 if number in self.arrived else row + 1
            longest = max(longest, row)
        return longest

    @property
    def longest_gap_s(self) -> float:
        times = self.arrivals_s
        return max((after - before for before, after in pairwise(times)), default=0.0)


async def call(node: NodeProcess, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(Http(node.http_url).call, method, path, body)


async def create_stream(cluster: LocalCluster, settings: dict[str, Any], **more: Any) -> None:
    body = {
        "name": STREAM,
        "filters": ["alarms/#"],
        "replication": "primary-backup",
        "primary_backup": settings,
        **more,
    }
    await call(cluster.nodes[0], "POST", "/v1/streams", body)


async def roles(cluster: LocalCluster) -> tuple[NodeProcess, NodeProcess, bool]:
    """Primary and backup as a running node knows them, and whether the backup is in sync."""
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        for node in cluster.nodes:
            if not node.is_running:
                continue
            try:
                row = (await call(node, "GET", f"/v1/streams/{STREAM}"))["shard_list"][-1]
            except (OSError, LocalError):
                continue
            named = {each.name: each for each in cluster.nodes}
            if row["role"] == "primary" and row["primary"] in named and row["backup"] in named:
                return named[row["primary"]], named[row["backup"]], bool(row["in_sync"])
        await asyncio.sleep(0.02)
    raise TimeoutError("no primary")


async def settled(cluster: LocalCluster) -> tuple[NodeProcess, NodeProcess]:
    """Wait until both are there and the backup holds everything."""
    deadline_s = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        primary, backup, is_in_sync = await roles(cluster)
        if is_in_sync and primary.is_running and backup.is_running:
            return primary, backup
        await asyncio.sleep(0.05)
    raise TimeoutError("the backup is not in sync")


async def taken_over(cluster: LocalCluster, primary: NodeProcess, backup: NodeProcess) -> None:
    """Wait until these are primary and backup. A node that was cut off says for a moment what it knew."""
    while await settled(cluster) != (primary, backup):
        await asyncio.sleep(0.05)


async def stored(cluster: LocalCluster) -> set[int]:
    """The numbers of the messages in the log, as a running node has it."""
    node = next(each for each in cluster.nodes if each.is_running)
    (row, *_) = (await call(node, "GET", f"/v1/streams/{STREAM}"))["shard_list"]
    found: set[int] = set()
    offset, end = 0, 1
    while offset < end:
        path = f"/v1/streams/{STREAM}/shards/{row['shard']}/messages?from={offset}&limit=5000"
        page = await call(node, "GET", path)
        for message in page["messages"]:
            text = message["payload"]
            body = base64.b64decode(text) if message.get("encoding") == "base64" else text.encode()
            found.add(_STAMP.unpack(body)[1])
        offset, end = page["next_offset"], page["end_offset"]
    return found


class PairRun:
    def __init__(
        self,
        cluster: LocalCluster,
        *,
        interval_s: float,
        beats: tuple[Beat, ...] = (Beat(),),
        say: Callable[[str, str], None],
    ) -> None:
        self._cluster = cluster
        self._interval_s = interval_s
        self._say = say
        self.outcomes = {beat: Outcome() for beat in beats}
        self._by_topic = {beat.topic: outcome for beat, outcome in self.outcomes.items()}
        # The first one tells when messages come again.
        self.outcome = self.outcomes[beats[0]]
        self._is_publishing = True
        self._subscriber: Subscriber | None = None

    async def run(self, kills: int, *, before_s: float, after_s: float) -> Outcome:
        """Publish; kill the primary so many times, and start it again each time as a backup."""
        primary, backup = await settled(self._cluster)
        self._say("stage", f"{primary.name} is primary, {backup.name} is backup")
        urls = [primary.url, backup.url]
        async with Subscriber(*urls, "alarms/#") as subscriber:
            self._subscriber = subscriber
            reading = asyncio.create_task(self._read(subscriber))
            publishing = [asyncio.create_task(self._publish(beat, urls)) for beat in self.outcomes]
            try:
                await asyncio.sleep(before_s)
                for number in range(kills):
                    await self._kill_once(number)
                    await asyncio.sleep(after_s)
                self._is_publishing = False
                async with asyncio.timeout(_WAIT_S):
                    await asyncio.gather(*publishing)
                    await self._quiet()
            finally:
                for task in publishing:
                    task.cancel()
                await asyncio.gather(*publishing, return_exceptions=True)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return self.outcome

    async def _kill_once(self, number: int) -> None:
        outcome = self.outcome
        primary, _ = await settled(self._cluster)
        await self._listening()
        first = outcome.published
        killed_s = time.monotonic()
        await primary.kill()
        outcome.kills_s.append(killed_s)
        self._say(primary.name, f"kill -9, number {number + 1}: it was primary")
        async with asyncio.timeout(_WAIT_S):
            while not any(message in outcome.arrived for message in range(first + 1, outcome.published)):
                await asyncio.sleep(0.005)
        outcome.resumed_s.append(time.monotonic() - killed_s)
        self._say("screen", f"sees messages again after {outcome.resumed_s[-1]:.2f} s")
        await primary.start()
        await settled(self._cluster)
        self._say(primary.name, "is back, as backup, and has everything")

    async def _listening(self) -> None:
        """The subscriber holds both connections: what a node had written to one of them dies with it."""
        assert self._subscriber is not None
        async with asyncio.timeout(_WAIT_S):
            while not all(map(self._subscriber.is_connected, ("primary", "backup"))):
                await asyncio.sleep(0.02)
            # And its subscription is there: messages come from both.
            seen = self._subscriber.repeated
            while self._subscriber.repeated < seen + 5:
                await asyncio.sleep(0.02)

    async def _quiet(self) -> None:
        """Until everything is there, or nothing came for a while."""
        for outcome in self.outcomes.values():
            while outcome.lost and time.monotonic() - max(outcome.arrivals_s, default=0.0) < 3.0:
                await asyncio.sleep(0.05)

    async def _publish(self, beat: Beat, urls: list[str]) -> None:
        outcome = self.outcomes[beat]
        async with Publisher(urls, interval_s=self._interval_s, keep_last=beat.keep_last) as publisher:
            while self._is_publishing:
                publisher.publish(beat.topic, _STAMP.pack(time.time(), outcome.published))
                outcome.published += 1
                await asyncio.sleep(self._interval_s)
            await publisher.settled()

    async def _read(self, subscriber: Subscriber) -> None:
        async for sourced in subscriber:
            outcome = self._by_topic[sourced.message.topic]
            sent_s, number = _STAMP.unpack(sourced.message.payload)
            outcome.arrivals_s.append(time.monotonic())
            outcome.sources.append(sourced.source)
            if number in outcome.arrived:
                outcome.doubled += 1
                continue
            outcome.arrived[number] = time.time() - sent_s
            outcome.order_broken += number < outcome.newest
            outcome.newest = max(outcome.newest, number)
