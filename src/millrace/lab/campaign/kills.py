"""The leader of a shard is killed or frozen under load, again and again; and all nodes at once."""

import asyncio
import signal
from dataclasses import dataclass

from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.load import Load
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Late, Stage, until
from millrace.local_cluster import NodeProcess

_RECOVER_S_MAX = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kills:
    count: int
    how: str = "kill"
    """`kill` is SIGKILL and a restart, `stop` is SIGSTOP and SIGCONT."""
    down_s: float = 1.0
    """How long the node stays away once the others serve again."""
    p50_max_s: float = 0.0
    p99_max_s: float = 0.0


async def run_kills(stage: Stage, load: Load, plan: Kills, report: Report, say: Say) -> None:
    cluster_s: list[float] = []
    whole_s: list[float] = []
    for number in range(plan.count):
        shard = stage.shards[number % len(stage.shards)]
        victim = await stage.shard_leader(shard)
        led = [s for s, name in (await stage.leaders()).items() if name == victim.name and s in stage.shards]
        took_s = await _harm(stage, load, plan, victim, led, report)
        whole_s.append(await stage.whole())
        report.note("faults done", number + 1)
        if took_s is not None:
            cluster_s.append(took_s)
            shown = f"{took_s * 1000:.0f} ms to the first acknowledged publish"
        else:
            shown = "NO publish acknowledged in time"
        say(
            f"{number + 1}/{plan.count} {plan.how} {victim.name}, which led {len(led)} of "
            f"{len(stage.shards)} shards: {shown}, whole again {whole_s[-1]:.1f} s after its return"
        )
    await load.finish()
    await stage.whole()
    report.times(
        f"{plan.how} to first acknowledged publish in every shard it led",
        cluster_s,
        p50_max_s=plan.p50_max_s,
        p99_max_s=plan.p99_max_s,
    )
    report.times("return to all level", whole_s)
    await judge(stage, load, report)


async def _harm(
    stage: Stage, load: Load, plan: Kills, victim: NodeProcess, led: list[int], report: Report
) -> float | None:
    """One fault, and the return of its victim. Seconds until every shard it led took a message again."""
    wanted = {stage.shards.index(shard) for shard in led}
    load.mark()
    if plan.how == "kill":
        await victim.kill()
    else:
        victim.signal(signal.SIGSTOP)

    async def recovered() -> bool:
        return wanted <= load.recovered().keys()

    took_s = None
    try:
        await until(recovered, "a publish is acknowledged in every shard", _RECOVER_S_MAX, 0.01)
        took_s = max((load.recovered()[position] for position in wanted), default=None)
    except Late as error:
        report.violate(f"{plan.how} of {victim.name}: {error}")
    await asyncio.sleep(plan.down_s)
    if plan.how == "kill":
        await victim.start()
    else:
        victim.signal(signal.SIGCONT)
    return took_s


async def run_power_losses(stage: Stage, load: Load, count: int, report: Report, say: Say) -> None:
    """Every node is killed in the same moment, under load, and all are started again."""
    took: list[float] = []
    loop = asyncio.get_running_loop()
    for number in range(count):
        before = load.acknowledged_count

        async def is_loaded(before: int = before) -> bool:
            return load.acknowledged_count >= before + 50

        await until(is_loaded, "the load goes on", _RECOVER_S_MAX)
        for node in stage.nodes:
            node.signal(signal.SIGKILL)
        await asyncio.gather(*(node.kill() for node in stage.nodes))
        began_s = loop.time()
        load.mark()
        await asyncio.gather(*(node.start() for node in stage.nodes))

        async def recovered() -> bool:
            return len(load.recovered()) == len(stage.shards)

        await until(recovered, "all shards take messages again", 60.0, 0.01)
        took.append(loop.time() - began_s)
        await stage.whole()
        report.note("power losses done", number + 1)
        say(
            f"{number + 1}/{count} all nodes killed: "
            f"every shard serves {took[-1]:.1f} s after the restart began"
        )
    await load.finish()
    await stage.whole()
    report.times("restart of all to an acknowledged publish in every shard", took)
    await judge(stage, load, report)
