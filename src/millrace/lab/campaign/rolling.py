"""Every node is stopped in good order and started again, one after the other, while clients publish.

With `--upgrade` the nodes run the release before at first (the same sources, one level lower), and each comes
back as this one; the next round begins with the release before again, on an empty cluster of its own.
"""

import argparse
import asyncio
import shutil
from pathlib import Path

import millrace
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.report import percentile
from millrace.lab.campaign.run import Run
from millrace.lab.campaign.stage import until
from millrace.version import LEVEL

_PAUSE_S = 1.0
_UNDERSTOOD_S = 60.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="each node once per round")
    parser.add_argument("--upgrade", action="store_true", help="from the release before: one round")
    parser.add_argument("--p99-ms", type=float, default=0.0, help="bound of publishing; 0 only measures")


def release(directory: Path, level: int) -> tuple[str, ...]:
    """Sources that understand this level, below this directory, and the command that lets a node run them."""
    sources = directory / f"level{level}"
    shutil.copytree(Path(millrace.__file__).parent, sources / "millrace")
    version = sources / "millrace" / "version.py"
    text = version.read_text()
    assert text.count(f"LEVEL = {LEVEL}\n") == 1
    text = text.replace(f"LEVEL = {LEVEL}\n", f"LEVEL = {level}\n")
    # An older one has none of the features of later levels, and does not ask whether it understands them.
    version.write_text(text.partition("\nassert all(feature")[0])
    return ("env", f"PYTHONPATH={sources}")


async def body(run: Run) -> None:
    stage, given, report = run.stage, run.given, run.report
    rounds = 1 if given.upgrade else given.rounds
    async with run.load() as load:
        await asyncio.sleep(_PAUSE_S)
        marks = [len(publisher.latencies_s) for publisher in load.publishers]

        def during() -> list[float]:
            return [v for p, mark in zip(load.publishers, marks, strict=True) for v in p.latencies_s[mark:]]

        for number in range(rounds):
            for node in stage.nodes:
                await node.stop()
                node.run_with(())
                await node.start()
                whole_s = await stage.whole()
                p99_ms = percentile(during(), 0.99) * 1000
                run.say(
                    f"round {number + 1}/{rounds}: {node.name} is back, whole after {whole_s:.1f} s; publish "
                    f"p99 so far {p99_ms:.0f} ms, {load.acknowledged_count:,} acknowledged"
                )
                await asyncio.sleep(_PAUSE_S)
        await asyncio.sleep(_PAUSE_S)
        report.note("nodes restarted", rounds * len(stage.nodes))
        report.times("publish", during(), p99_max_s=given.p99_ms / 1000)
        if given.upgrade:
            words = f"all nodes understand level {LEVEL}"

            async def understood() -> bool:
                return all(any(words in line for line in node.lines) for node in stage.nodes)

            await until(understood, "all nodes know that all are upgraded", _UNDERSTOOD_S)
        await load.finish()
        await stage.whole()
        await judge(stage, load, report)
