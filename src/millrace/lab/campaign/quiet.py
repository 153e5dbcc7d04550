"""Nothing is wrong, for a long time, under a good part of the load that the cluster can take: no election."""

import asyncio

from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.load import Load
from millrace.lab.campaign.report import Report, Say, percentile
from millrace.lab.campaign.stage import Stage, until

_SAMPLE_S = 5.0
_MEASURE_S = 6.0
_SETTLE_S_MAX = 120.0


async def settled(stage: Stage, say: Say) -> None:
    """Wait until every group is led by the node that should lead it: moving it is an election on purpose."""

    async def is_spread() -> bool:
        answers = [await stage.ask(node) for node in stage.nodes]
        return all(answer is not None and answer["is_spread"] for answer in answers)

    await until(is_spread, "leaders are where they should be", _SETTLE_S_MAX, 0.5)
    say(f"leaders are settled: {dict(sorted((await stage.leaders()).items()))}")


async def terms(stage: Stage) -> dict[int, int]:
    """The highest term of every group that any node knows."""
    highest: dict[int, int] = {}
    for rows in await asyncio.gather(*(stage.groups(node) for node in stage.nodes)):
        for number, row in rows.items():
            highest[number] = max(highest.get(number, 0), row["term"])
    return highest


async def measured_maximum(stage: Stage, publishers: int, size: int) -> float:
    """Messages a second that these very clients get through with their windows full, for a short while."""
    async with Load(stage, rate=1e6, size=size, publishers=publishers, subscribers=1, name="first-") as load:
        before = load.acknowledged_count
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(_MEASURE_S)
        rate = (load.acknowledged_count - before) / (loop.time() - began_s)
        await load.finish()
    return rate


async def run_quiet(stage: Stage, load: Load, minutes: float, report: Report, say: Say) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    before = await terms(stage)
    at_start = load.acknowledged_count
    while loop.time() - began_s < minutes * 60:
        await asyncio.sleep(min(_SAMPLE_S, minutes * 60))
        now = await terms(stage)
        for group, term in now.items():
            if term != before.get(group, term):
                report.violate(f"an election in group {group} at {loop.time() - began_s:.0f} s: term {term}")
        before.update(now)
        rate = (load.acknowledged_count - at_start) / (loop.time() - began_s)
        say(f"{loop.time() - began_s:.0f} s: {rate:.0f} messages/s acknowledged, terms {sorted(now.items())}")
    report.note("quiet minutes", round((loop.time() - began_s) / 60, 1))
    report.note("messages/s acknowledged", round(rate))
    latencies = [value for p in load.publishers for value in p.latencies_s]
    report.note("publish p50 ms", round(percentile(latencies, 0.5) * 1000, 1))
    report.note("publish p99 ms", round(percentile(latencies, 0.99) * 1000, 1))
    await load.finish()
    await judge(stage, load, report)
