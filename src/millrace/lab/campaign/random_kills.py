"""A node that chance chooses is killed every few seconds, however the others are, and started again at once.

Nobody waits for the cluster to be whole in between: the next kill may meet a node that is still starting.
"""

import argparse
import asyncio
from collections import Counter

from millrace.errors import LocalError
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.run import Run
from millrace.lab.campaign.stage import Late
from millrace.local_cluster import NodeProcess

_TOLD_S = 60.0
# At least so many of the messages that were asked for must be acknowledged: a cluster that does nothing loses
# nothing.
_SHARE_LEAST = 0.05
_FINISH_S = 90.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--every-s", type=float, default=5.0)


class _Restarts:
    """Starts each node again after it was killed."""

    def __init__(self) -> None:
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._kills: Counter[str] = Counter()
        self.in_start = 0
        """Kills that met a node that was still starting."""

    async def kill(self, node: NodeProcess) -> None:
        starting = self._starting.get(node.name)
        is_starting = starting is not None and not starting.done()
        self._kills[node.name] += 1
        await node.kill()
        if is_starting:
            # It is started again by the task that waits for it.
            self.in_start += 1
        else:
            self._starting[node.name] = asyncio.create_task(self._start(node))

    async def _start(self, node: NodeProcess) -> None:
        """Until it serves: on a busy machine the next kill may meet each of many starts in a row."""
        while True:
            kills = self._kills[node.name]
            try:
                return await node.start()
            except LocalError:
                if self._kills[node.name] == kills:
                    raise

    async def done(self) -> None:
        """Wait for all; raises where a node does not start."""
        await asyncio.gather(*self._starting.values())


async def body(run: Run) -> None:
    given, report, loop = run.given, run.report, asyncio.get_running_loop()
    restarts = _Restarts()
    async with run.load() as load:
        began_s = loop.time()
        told_s, kills = began_s, 0
        while loop.time() - began_s < given.minutes * 60:
            due_s = began_s + (kills + 1) * given.every_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await restarts.kill(run.rng.choice(run.stage.nodes))
            kills += 1
            if loop.time() - told_s >= _TOLD_S:
                told_s = loop.time()
                run.say(
                    f"{told_s - began_s:.0f} s: {kills} kills, {load.acknowledged_count:,} acknowledged, "
                    f"longest without an acknowledgement {load.longest_gap_s:.1f} s"
                )
        seconds = loop.time() - began_s
        await restarts.done()
        whole_s = await run.stage.whole()
        await load.finish(_FINISH_S)
        report.note("kills", kills)
        report.note("kills of a node that was starting", restarts.in_start)
        report.note("whole again after the last, s", round(whole_s, 1))
        report.note("longest without any acknowledgement, s", round(load.longest_gap_s, 1))
        if load.acknowledged_count < _SHARE_LEAST * given.rate * seconds:
            raise Late(f"only {load.acknowledged_count} messages were acknowledged in {seconds:.0f} s")
        await judge(run.stage, load, report)
