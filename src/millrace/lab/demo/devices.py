"""Simulated devices: each reports a temperature that wanders, as JSON, at QoS 1, under a sequence of its own.

They behave as devices do: one in so many readings is sent twice, one in so many is no JSON at all. What was
acknowledged is counted, so that whoever reads the other end can tell whether anything is missing.
"""

import asyncio
import contextlib
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from millrace.client import Client

_PERIOD_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    rate_hz: float = 2.0
    repeat: float = 0.02
    """How often a reading is sent twice."""
    bad: float = 0.01
    """How often something is sent that is no reading."""
    hot: int = 0
    """How many of the devices overheat for a while."""


@dataclass(slots=True)
class Fleet:
    """Devices `d0`, `d1`, ... over a few connections; `run` publishes until it is told to stop, and then ends
    what it has begun: a publish that is cut off may have been stored or not."""

    count: int
    habits: Habits
    root: str = "telemetry"
    seed: int = 7
    acknowledged: dict[tuple[str, int], int] = field(default_factory=dict)
    """(device, sequence) -> the time of the reading, in milliseconds since 1970."""
    repeated: int = 0
    bad: int = 0
    _next: dict[str, int] = field(default_factory=dict)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self, clients: Sequence[Client]) -> None:
        devices = (self._device(number, clients[number % len(clients)]) for number in range(self.count))
        await asyncio.gather(*devices)

    async def _device(self, number: int, client: Client) -> None:
        name, chance = f"d{number}", random.Random(self.seed * 1_000 + number)
        pause_s = 1 / self.habits.rate_hz
        await asyncio.sleep(chance.random() * pause_s)
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            if chance.random() < self.habits.bad:
                await client.publish(f"{self.root}/{name}", b"\xff not a reading", qos=1)
                self.bad += 1
            copies = 2 if chance.random() < self.habits.repeat else 1
            await self.report(client, name, self._temperature(number, chance), copies=copies)
            left_s = pause_s - (time.monotonic() - begun_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), max(0.001, left_s))

    async def report(
        self, client: Client, name: str, temperature: float, *, copies: int = 1, ahead_ms: int = 0
    ) -> None:
        """Publish a reading and count it once it is acknowledged; a copy is the same to the last byte."""
        sequence = self._next.get(name, 0)
        self._next[name] = sequence + 1
        time_ms = time.time_ns() // 1_000_000 + ahead_ms
        reading = {
            "device": name,
            "sequence": sequence,
            "time_ms": time_ms,
            "temperature": round(temperature, 2),
        }
        for _ in range(copies):
            await client.publish(f"{self.root}/{name}", json.dumps(reading).encode(), qos=1)
        self.acknowledged[name, sequence] = time_ms
        self.repeated += copies - 1

    def _temperature(self, number: int, chance: random.Random) -> float:
        wave = 3 * math.sin(2 * math.pi * (time.time() / _PERIOD_S + number / self.count))
        is_hot = number < self.habits.hot and time.time() % _PERIOD_S > _PERIOD_S / 2
        return 20 + number % 5 + wave + chance.gauss(0, 0.3) + (15 if is_hot else 0)
