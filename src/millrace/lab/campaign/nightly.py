"""Faults of every kind in a random order, for as long as is asked, on disks that drop what was not synced.

Several may come together: their lengths and the pauses between them are drawn. The cluster is left in peace
now and then until it is whole. `--seed` draws the same schedule again; what nodes make of it still depends on
the machine.
"""

import argparse
import asyncio
from collections import Counter

from millrace.lab.campaign.faults import Fault, kinds, make_fault
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.run import Run

_LENGTH_S_MAX = 6.0
_PAUSE_S_MAX = 3.0
_ALL_AT_ONCE = "power"
_TELL_EVERY = 10
_WHOLE_S = 180.0
_FINISH_S = 120.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0)


class _Schedule:
    """What happens next, and what is still going on."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._going: dict[asyncio.Task[None], str] = {}
        self.done: Counter[str] = Counter()

    async def one(self) -> str:
        """Draw a fault and begin it; what it is. At most one of each node, and one cut, at a time."""
        run = self._run
        kind = run.rng.choice((*kinds(run.networks), _ALL_AT_ONCE))
        length_s = run.rng.random() * _LENGTH_S_MAX
        free = [node for node in run.stage.nodes if node.name not in self._going.values()]
        node = run.rng.choice(run.stage.nodes)
        if kind == _ALL_AT_ONCE:
            await self.calm()
            await asyncio.gather(*(each.kill() for each in run.stage.nodes))
            await asyncio.gather(*(each.start() for each in run.stage.nodes))
            self.done[kind] += 1
            return "power of all"
        is_cut = kind not in ("kill", "stop", "stall")
        key = "cut" if is_cut else node.name
        if key in self._going.values() or (not is_cut and node not in free):
            return ""
        fault = make_fault(kind, run.stage, node, run.networks)
        await fault.begin()
        self._going[asyncio.create_task(self._end(fault, length_s))] = key
        self.done[kind] += 1
        return f"{kind} of {node.name} for {length_s:.1f} s"

    async def _end(self, fault: Fault, length_s: float) -> None:
        try:
            await asyncio.sleep(length_s)
        finally:
            await fault.end()

    def collect(self) -> None:
        """Forget what is over; raises what went wrong with it."""
        for task in [one for one in self._going if one.done()]:
            del self._going[task]
            task.result()

    async def calm(self) -> None:
        """Wait for the end of everything that was begun."""
        await asyncio.gather(*self._going)
        self.collect()


async def body(run: Run) -> None:
    stage, given, report, loop = run.stage, run.given, run.report, asyncio.get_running_loop()
    schedule = _Schedule(run)
    recovered: list[float] = []
    async with run.load() as load:
        began_s, number = loop.time(), 0
        while loop.time() - began_s < given.minutes * 60:
            await asyncio.sleep(run.rng.random() * _PAUSE_S_MAX)
            schedule.collect()
            what = await schedule.one()
            if not what:
                continue
            number += 1
            run.say(f"{what}; {load.acknowledged_count:,} acknowledged")
            if number % _TELL_EVERY == 0:
                await schedule.calm()
                recovered.append(await stage.whole(_WHOLE_S))
                run.say(f"{number} faults, whole after {recovered[-1]:.1f} s: {dict(schedule.done)}")
        await schedule.calm()
        recovered.append(await stage.whole(_WHOLE_S))
        report.note("minutes", round((loop.time() - began_s) / 60, 1))
        report.note("faults", dict(schedule.done))
        report.note("longest without any acknowledgement, s", round(load.longest_gap_s, 1))
        report.times("end of faults to whole", recovered)
        await load.finish(_FINISH_S)
        await stage.whole(_WHOLE_S)
        await judge(stage, load, report)
