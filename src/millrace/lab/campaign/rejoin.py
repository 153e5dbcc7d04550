"""A node loses its disk and comes back under its name with nothing, while the cluster serves."""

import asyncio
import shutil

from millrace.client import Client
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.load import Load
from millrace.lab.campaign.report import Report, Say, percentile
from millrace.lab.campaign.stage import Stage

_FILL_BYTES = 64 * 1024
_FILL_WINDOW = 64
_CATCH_UP_S_MAX = 1800.0


async def fill(stage: Stage, megabytes: int, say: Say) -> None:
    """Put so much into the log. Its topics are nobody's: the judge counts them and compares their bytes."""
    total = megabytes * 1024 * 1024 // _FILL_BYTES
    payload = bytes(range(256)) * (_FILL_BYTES // 256)
    window = asyncio.Semaphore(_FILL_WINDOW)
    topics = stage.topics("fill")
    async with Client([stage.nodes[0].url], client_id="fill") as client:

        async def one(number: int) -> None:
            async with window:
                await client.publish(topics[number % len(topics)], payload, qos=1)

        await asyncio.gather(*(one(number) for number in range(total)))
    say(f"the log holds {megabytes} MiB")


async def run_rejoin(stage: Stage, load: Load, megabytes: int, report: Report, say: Say) -> None:
    loop = asyncio.get_running_loop()
    victim = stage.nodes[-1]
    await victim.kill()
    await asyncio.to_thread(shutil.rmtree, victim.data)
    say(f"{victim.name} is killed and its data gone")
    before = load.acknowledged_count
    marks = [len(p.latencies_s) for p in load.publishers]
    began_s = loop.time()
    await victim.start()
    ready_s = loop.time() - began_s
    await stage.whole(_CATCH_UP_S_MAX)
    took_s = loop.time() - began_s
    served = load.acknowledged_count - before
    during = [v for p, mark in zip(load.publishers, marks, strict=True) for v in p.latencies_s[mark:]]
    say(f"{victim.name} serves after {ready_s:.1f} s and is level with the others after {took_s:.1f} s")
    report.note("log, MiB", megabytes)
    report.note("wiped node serves after, s", round(ready_s, 1))
    report.note("wiped node level after, s", round(took_s, 1))
    report.note("messages acknowledged meanwhile", served)
    report.note("publish p99 meanwhile, ms", round(percentile(during, 0.99) * 1000))
    report.note("publish max meanwhile, ms", round(max(during, default=0.0) * 1000))
    report.require(served > 0, "the cluster did not serve while the node caught up")
    await load.finish()
    await stage.whole()
    await judge(stage, load, report)
