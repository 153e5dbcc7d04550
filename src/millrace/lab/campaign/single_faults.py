"""One fault at a time, of every kind, while a client at every node publishes to every shard.

A client whose node is not the one that is hit must never be without an acknowledgement for longer than a
bound, from the fault to the return of the node.
"""

import argparse
import asyncio
from contextlib import AsyncExitStack

from millrace.lab.campaign.faults import kinds, make_fault
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.probes import Probe, probes
from millrace.lab.campaign.run import Run


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="each kind once per round")
    parser.add_argument("--hold-s", type=float, default=6.0, help="how long a fault lasts")
    parser.add_argument("--bound-s", type=float, default=2.0, help="0 only measures")
    parser.add_argument("--only", default="", help="kinds of faults, with commas between them")


async def body(run: Run) -> None:
    stage, report = run.stage, run.report
    worst: dict[str, float] = {}
    async with run.load() as load:
        async with AsyncExitStack() as stack:
            asked = [await stack.enter_async_context(probe) for probe in probes(stage)]
            await _all_kinds(run, asked, worst)
        for kind, longest_s in worst.items():
            report.note(f"{kind}: longest without an acknowledgement, ms", round(longest_s * 1000))
        await load.finish()
        await stage.whole()
        await judge(stage, load, report)


async def _all_kinds(run: Run, asked: list[Probe], worst: dict[str, float]) -> None:
    stage, given, report = run.stage, run.given, run.report
    wanted = given.only.split(",") if given.only else kinds(run.networks)
    for number in range(given.rounds * len(wanted)):
        kind = wanted[number % len(wanted)]
        shard = stage.shards[(number // len(wanted)) % len(stage.shards)]
        victim = await stage.shard_leader(shard)
        fault = make_fault(kind, stage, victim, run.networks)
        for probe in asked:
            probe.mark()
        try:
            await fault.begin()
            await asyncio.sleep(given.hold_s)
        finally:
            await fault.end()
        whole_s = await stage.whole()
        waits = {probe.node: probe.longest_s for probe in asked if probe.node not in fault.hit}
        longest_s = max(waits.values())
        worst[kind] = max(worst.get(kind, 0.0), longest_s)
        report.require(
            not given.bound_s or longest_s <= given.bound_s,
            f"{kind} of {victim.name}: {longest_s:.2f} s without an acknowledgement at a healthy node",
        )
        report.note("faults done", number + 1)
        told = ", ".join(f"{name} {wait_s * 1000:.0f} ms" for name, wait_s in sorted(waits.items()))
        run.say(
            f"{number + 1}/{given.rounds * len(wanted)} {kind} of {victim.name}: "
            f"longest without an acknowledgement: {told}; whole after {whole_s:.1f} s"
        )
