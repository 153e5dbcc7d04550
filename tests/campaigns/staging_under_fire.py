"""Staged publishing under fire, without Spark: drivers that die between the steps, two drivers at once, and
nodes killed with kill -9.

    PYTHONPATH=src:tests .venv/bin/python tests/campaigns/staging_under_fire.py [KILLS] [BATCHES] [SEED]

A writer stages batches of numbered rows over three nodes and commits them. By chance a driver dies after it
staged (another one stages the batch again), commits twice, or two drivers stage a batch and commit it at one
moment. Meanwhile nodes are killed and come back. At the end every number must be at every node exactly once,
and nothing may be left staged.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.staged import Blocks, Writer, contents, staged_bytes
from e2e.test_cluster import whole
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster
from waiting import until_async

_ROWS = 2_000
_BLOCKS = 6
_PATIENCE_S = 300.0
_AWAY_S_MAX = 2.0


def write(urls: list[str], batches: int, chance: random.Random, done: list[int]) -> Counter[str]:
    """Every batch, by drivers of which some die; what happened how often."""
    events: Counter[str] = Counter()
    first, second = (Writer("fire", urls, "out", patience_s=_PATIENCE_S) for _ in range(2))
    for batch in range(batches):
        numbers = range(batch * _ROWS, (batch + 1) * _ROWS)

        def attempt(driver: Writer, name: str, batch: int = batch, numbers: range = numbers) -> Blocks:
            return driver.stage(batch, f"{name}{batch}", numbers, _BLOCKS)

        if chance.random() < 0.3:
            events["died before commit"] += 1
            attempt(first, "lost")
        if chance.random() < 0.3:
            events["two drivers"] += 1
            with ThreadPoolExecutor(2) as pool:
                staged = [pool.submit(attempt, first, "a"), pool.submit(attempt, second, "b")]
                blocks = [one.result() for one in staged]
                commits = [
                    pool.submit(first.commit, batch, **{f"a{batch}": blocks[0]}),
                    pool.submit(second.commit, batch, **{f"b{batch}": blocks[1]}),
                ]
                for one in commits:
                    one.result()
        else:
            blocks = [attempt(first, "a")]
            first.commit(batch, **{f"a{batch}": blocks[0]})
        if chance.random() < 0.3:
            events["committed again"] += 1
            assert second.commit(batch, **{f"a{batch}": blocks[0]}) is True
        done[0] = batch + 1
    return events


async def _pause(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    await until_async(lambda: time.monotonic() >= end_s, "time to pass", seconds + _PATIENCE_S)


async def campaign(kills: int, batches: int, seed: int) -> bool:
    chance = random.Random(seed)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millrace-fire-") as directory:
        async with LocalCluster(3, Path(directory)) as cluster:
            fields = {"name": "out", "filters": ["out/#"], "shards": 2}
            http = Http(cluster.nodes[0].http_url)
            await asyncio.to_thread(http.call, "POST", "/v1/streams", fields)
            await whole(cluster)
            urls = [node.http_url for node in cluster.nodes]
            done = [0]
            writing = asyncio.create_task(
                asyncio.to_thread(write, urls, batches, random.Random(chance.random()), done)
            )
            killed = 0
            while not writing.done():
                await _pause(chance.uniform(0, 2.0))
                if killed < kills and not writing.done():
                    killed += 1
                    node = chance.choice(cluster.nodes)
                    await node.kill()
                    await _pause(chance.uniform(0, _AWAY_S_MAX))
                    await node.start()
                    print(
                        f"{time.monotonic() - started_s:7.1f} s  kill {killed}; batch {done[0]}", flush=True
                    )
            events = await writing
            wanted = Counter(range(batches * _ROWS))
            is_right = True
            for node in cluster.nodes:
                at = Http(node.http_url)
                await until_async(lambda at=at: staged_bytes(at, "out") == 0, "nothing staged", _PATIENCE_S)
                found = await asyncio.to_thread(contents, at, "out")
                lost, more = (wanted - found).total(), (found - wanted).total()
                is_right = is_right and not lost and not more
                print(f"{node.name}: {found.total()} rows, {lost} lost, {more} too many", flush=True)
            story = ", ".join(f"{name} {count}" for name, count in events.items())
            verdict = "PASS" if is_right else "FAIL"
            took_s = time.monotonic() - started_s
            print(f"{killed} kills, {batches} batches ({story}), seed {seed}, {took_s:.0f} s: {verdict}")
            return is_right


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(0 if asyncio.run(campaign(*(given + [20, 100, 1][len(given) :]))) else 1)
