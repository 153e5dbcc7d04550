"""`basic`: one broker, two clients at QoS 2, and a kill -9 in the middle: nothing lost, nothing twice."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millrace.client import Client
from millrace.lab.demo.story import BrokerProcess, Story

_MESSAGES = 10
_PACE_S = 0.05
_TIMEOUT_S = 30.0


async def run(story: Story) -> None:
    story.title("One broker, two clients, one kill -9")
    async with story.lasting(_broker()) as broker:
        await _play(story, broker)


@asynccontextmanager
async def _broker() -> AsyncIterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as directory:
        broker = BrokerProcess(Path(directory) / "n1")
        try:
            yield broker
        finally:
            await broker.stop()


async def _play(story: Story, broker: BrokerProcess) -> None:
    await broker.start()
    story.say("broker", f"listens on {broker.url}")
    story.shows(f"http://127.0.0.1:{broker.ports['http']}/")
    received: list[str] = []
    enough = asyncio.Event()

    async def display(client: Client, wanted: int) -> None:
        async with client.subscribe("house/#", qos=2) as messages:
            story.say("display", "subscribed to house/#")
            ready.set()
            async for message in messages:
                text = message.payload.decode()
                received.append(text)
                story.say("display", f"got  {message.topic} = {text}", "green")
                if len(received) >= wanted:
                    enough.set()

    ready = asyncio.Event()
    async with (
        Client(broker.url, client_id="display", session_expiry_s=3600) as screen,
        Client(broker.url, client_id="thermometer", session_expiry_s=3600) as thermometer,
    ):
        watching = asyncio.create_task(display(screen, 2 * _MESSAGES))
        await asyncio.wait_for(ready.wait(), _TIMEOUT_S)
        await _measure(story, thermometer, range(_MESSAGES))
        story.say("broker", "kill -9", "red")
        await broker.kill()
        await broker.start()
        story.say("broker", "is back with the same data directory")
        await _measure(story, thermometer, range(_MESSAGES, 2 * _MESSAGES))
        await asyncio.wait_for(enough.wait(), _TIMEOUT_S)
        watching.cancel()
    sent = [_reading(number) for number in range(2 * _MESSAGES)]
    story.proved(
        {
            f"{len(sent)} messages were acknowledged, each after it was on disk": True,
            "every one of them reached the display": set(sent) <= set(received),
            "none came twice": len(received) == len(set(received)),
            "they came in the order they were sent": received == sent,
        }
    )


async def _measure(story: Story, thermometer: Client, numbers: range) -> None:
    for number in numbers:
        text = _reading(number)
        await asyncio.wait_for(thermometer.publish("house/kitchen", text.encode(), qos=2), _TIMEOUT_S)
        story.say("thermo", f"sent house/kitchen = {text}")
        await asyncio.sleep(_PACE_S)


def _reading(number: int) -> str:
    return f"{20 + number / 10:.1f} C"
