"""Nodes lose power under load, and with it everything that their disks were not asked to keep.

`--of all`: every node in one moment. `--of one`: one that chance chooses, while the others go on. The disks
drop what was not synced (`disks/lossy.py`); with `--set storage.sync=never` this must find losses. With
`--disk system` the nodes are killed and the kernel keeps everything.
"""

import argparse
import asyncio
import signal

from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.load import Load
from millrace.lab.campaign.run import Run
from millrace.lab.campaign.stage import until

_RECOVER_S_MAX = 60.0
_MESSAGES_BETWEEN = 50


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--of", choices=("all", "one"), default="all")


async def _loaded(load: Load) -> None:
    before = load.acknowledged_count

    async def is_loaded() -> bool:
        return load.acknowledged_count >= before + _MESSAGES_BETWEEN

    await until(is_loaded, "the load goes on", _RECOVER_S_MAX, 0.01)


async def body(run: Run) -> None:
    stage, given, report, loop = run.stage, run.given, run.report, asyncio.get_running_loop()
    took: list[float] = []
    async with run.load() as load:
        for number in range(given.count):
            await _loaded(load)
            # Within the work of some moment, not always right after an acknowledgement.
            await asyncio.sleep(run.rng.random() * 0.1)
            victims = stage.nodes if given.of == "all" else [run.rng.choice(stage.nodes)]
            for node in victims:
                node.signal(signal.SIGKILL)
            await asyncio.gather(*(node.kill() for node in victims))
            began_s = loop.time()
            load.mark()
            await asyncio.gather(*(node.start() for node in victims))

            async def recovered() -> bool:
                return len(load.recovered()) == len(stage.shards)

            await until(recovered, "all shards take messages again", _RECOVER_S_MAX, 0.01)
            took.append(loop.time() - began_s)
            await stage.whole()
            report.note("power losses done", number + 1)
            run.say(
                f"{number + 1}/{given.count} {' '.join(node.name for node in victims)} lost power: "
                f"every shard serves {took[-1]:.1f} s after the restart began, "
                f"{load.acknowledged_count:,} acknowledged"
            )
        await load.finish()
        await stage.whole()
        report.times("restart to an acknowledged publish in every shard", took)
        await judge(stage, load, report)
