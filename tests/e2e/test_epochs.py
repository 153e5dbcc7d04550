"""Two nodes alone that both serve: `millrace.client` refuses the lower epoch; plain clients cannot know."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from e2e.relay import Relay
from millrace.client import Client, Epochs, Outdated, Publisher, Subscriber
from millrace.lab.campaign.pair_run import create_stream, settled, taken_over
from millrace.lab.demo.stage import ready
from millrace.lab.demo.story import Story
from millrace.local_cluster import LocalCluster, NodeProcess, PortBlock
from waiting import until_async

CHECK_MS = 600
INTERVAL_S = 0.02
SCENARIO_S_MAX = 120.0
SETTINGS: dict[str, dict[str, object]] = {
    "fcfs": {"check_interval_ms": CHECK_MS},
    "frame": {
        "schedule": "frame",
        "check_interval_ms": CHECK_MS,
        "topics": [
            {"filter": "#", "period_ms": 20, "deadline_ms": 1000, "loss_tolerance": 0, "retention": 400}
        ],
    },
}
TOPIC = "alarms/1"


@asynccontextmanager
async def two_nodes(data: Path) -> AsyncIterator[tuple[LocalCluster, list[Relay]]]:
    """A cluster of two whose links go through relays: frozen, neither node hears the other."""
    async with AsyncExitStack() as stack:
        ports = PortBlock()
        stack.callback(ports.close)
        peers = [ports.base + 10 * number + 2 for number in range(2)]
        relays = [await stack.enter_async_context(Relay(port)) for port in peers]
        cluster = LocalCluster(0, data)
        for number, relay in enumerate(relays):
            cluster.nodes.append(
                NodeProcess(
                    number,
                    data,
                    ports.base,
                    cluster.secret_file,
                    join=f"127.0.0.1:{relays[0].port}" if number else None,
                    options=("--set", f"cluster.advertise=127.0.0.1:{relay.port}"),
                )
            )
        await stack.enter_async_context(cluster)
        await ready(Story(), cluster, 2)
        yield cluster, relays


class Beat:
    """A publisher on a beat and a subscriber of both brokers: what was sent, and what was handed out."""

    def __init__(self, publisher: Publisher, subscriber: Subscriber) -> None:
        self.sent: list[bytes] = []
        self.got: list[bytes] = []
        self._is_over = asyncio.Event()
        self._subscriber = subscriber
        self._reading = asyncio.create_task(self._read())
        self._running = asyncio.create_task(publisher.run(TOPIC, self._payloads()))

    async def _payloads(self) -> AsyncIterator[bytes]:
        while not self._is_over.is_set():
            self.sent.append(b"%d" % len(self.sent))
            yield self.sent[-1]

    async def _read(self) -> None:
        async for sourced in self._subscriber:
            self.got.append(sourced.message.payload)

    async def end(self) -> None:
        self._is_over.set()
        await self._running
        await until_async(lambda: set(self.sent) <= set(self.got), "everything that was published", 20.0)

    def stop(self) -> None:
        self._reading.cancel()
        self._running.cancel()


@pytest.mark.parametrize("schedule", SETTINGS)
def test_a_primary_that_was_stopped_past_the_promotion_doubles_and_loses_nothing(
    tmp_path: Path, schedule: str
) -> None:
    async def scenario() -> None:
        async with two_nodes(tmp_path) as (cluster, _), AsyncExitStack() as stack:
            await create_stream(cluster, SETTINGS[schedule])
            primary, backup = await settled(cluster)
            urls = [primary.url, backup.url]
            subscriber = await stack.enter_async_context(Subscriber(*urls, TOPIC))
            publisher = await stack.enter_async_context(
                Publisher(urls, interval_s=INTERVAL_S, keep_last=1000, timeout_s=30.0)
            )
            beat = Beat(publisher, subscriber)
            stack.callback(beat.stop)
            await until_async(lambda: len(beat.got) > 20 and subscriber.repeated > 5, "both to deliver", 20.0)
            primary.signal(signal.SIGSTOP)
            # Long before its own time-out: the word of the backup is enough.
            await until_async(lambda: publisher.switches == 1, "the publisher to leave", 20.0)
            assert publisher.address == backup.url
            seen = len(beat.got)
            await until_async(lambda: len(beat.got) > seen + 20, "the backup to deliver", 20.0)
            primary.signal(signal.SIGCONT)
            await taken_over(cluster, backup, primary)
            await beat.end()
            assert sorted(beat.got) == sorted(beat.sent), "each once"
            assert publisher.given_up == 0

    asyncio.run(asyncio.wait_for(scenario(), SCENARIO_S_MAX))


async def partition(data: Path) -> None:
    async with two_nodes(data) as (cluster, relays), AsyncExitStack() as stack:
        await create_stream(cluster, SETTINGS["fcfs"])
        primary, backup = await settled(cluster)
        urls = [primary.url, backup.url]
        epochs = Epochs()
        subscriber = await stack.enter_async_context(Subscriber(*urls, TOPIC, epochs=epochs))
        plain = await stack.enter_async_context(Client(primary.url))
        knowing = await stack.enter_async_context(Client(primary.url, epochs=epochs))
        publisher = await stack.enter_async_context(
            Publisher(urls, interval_s=INTERVAL_S, keep_last=1000, timeout_s=30.0)
        )

        beat = Beat(publisher, subscriber)
        stack.callback(beat.stop)
        await until_async(lambda: len(beat.got) > 20 and subscriber.repeated > 5, "both to deliver", 20.0)
        for relay in relays:
            relay.freeze()
        # The backup takes over, which the publisher hears there: it leaves the old primary by itself.
        await until_async(lambda: publisher.switches == 1, "the publisher to leave the lower epoch", 20.0)
        assert publisher.address == backup.url
        await until_async(lambda: knowing.is_behind(TOPIC), "the old primary to be behind")
        # The old primary goes on alone and acknowledges, which a plain client must believe.
        before = subscriber.refused
        await plain.publish(TOPIC, b"taken by the lower epoch", qos=1)
        with pytest.raises(Outdated):
            await knowing.publish(TOPIC, b"refused", qos=1)
        await until_async(lambda: subscriber.refused >= before + 2, "both messages to be refused")
        assert epochs.refused_publishes == 1
        for relay in relays:
            relay.thaw()
        await taken_over(cluster, backup, primary)
        # Now it passes on what the winner has, and counts again.
        await until_async(lambda: not knowing.is_behind(TOPIC), "the old primary to be a backup", 20.0)
        await knowing.publish(TOPIC, b"after the return", qos=1)
        await beat.end()
        await until_async(lambda: b"after the return" in beat.got, "the message after the return")
        assert sorted(beat.got) == sorted([*beat.sent, b"after the return"]), "each once, nothing refused"
        assert publisher.given_up == 0


def test_in_a_partition_the_lower_epoch_is_refused_and_its_publishes_are_repeated(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(partition(tmp_path), SCENARIO_S_MAX))
