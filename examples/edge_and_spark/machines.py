"""Machines that shake: readings for a primary-backup stream, from a publisher that knows both brokers.

python examples/edge_and_spark/machines.py --url mqtt://127.0.0.1:18830,mqtt://127.0.0.1:18840 --count 200
"""

import argparse
import asyncio
import json
import random
from collections.abc import AsyncIterator

from millrace.client import Publisher


def reading(machine: int, sequence: int, rng: random.Random) -> bytes:
    """Every machine shakes harder than the one before; now and then a message is no reading at all."""
    if rng.random() < 0.05:
        return b"no reading"
    samples = [round(rng.gauss(0, 2 + 2 * machine), 2) for _ in range(16)]
    return json.dumps({"machine": f"m{machine}", "sequence": sequence, "samples_mm_s": samples}).encode()


async def readings(count: int, machine: int) -> AsyncIterator[bytes]:
    rng = random.Random(machine)
    for sequence in range(count):
        yield reading(machine, sequence, rng)


async def run(urls: list[str], count: int, machines: int, interval_s: float) -> None:
    async def one(machine: int) -> None:
        async with Publisher(urls, interval_s=interval_s, keep_last=100) as publisher:
            await publisher.run(f"vibration/m{machine}", readings(count, machine))

    await asyncio.gather(*map(one, range(machines)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish readings of simulated machines.")
    parser.add_argument("--url", default="mqtt://127.0.0.1:18830,mqtt://127.0.0.1:18840")
    parser.add_argument("--count", type=int, default=200, help="readings of each machine")
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between two readings")
    given = parser.parse_args()
    asyncio.run(run(given.url.split(","), given.count, given.machines, given.interval))


if __name__ == "__main__":
    main()
