"""The leader of a shard is killed or frozen under load, or its disk stands still, again and again."""

import asyncio
from dataclasses import dataclass

from millrace.lab.campaign.faults import make_fault
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
    """`kill` is SIGKILL and a restart, `stop` is SIGSTOP and SIGCONT, `stall` a disk of which no sync returns
    until the fault is over."""
    down_s: float = 1.0
    """How long the node stays away once the others serve again."""
    fault_s: float = 0.0
    """How long the fault lasts at least."""
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
    fault = make_fault(plan.how, stage, victim, None)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    load.mark()
    await fault.begin()

    async def recovered() -> bool:
        return wanted <= load.recovered().keys()

    took_s = None
    try:
        await until(recovered, "a publish is acknowledged in every shard", _RECOVER_S_MAX, 0.01)
        took_s = max((load.recovered()[position] for position in wanted), default=None)
    except Late as error:
        report.violate(f"{plan.how} of {victim.name}: {error}")
    await asyncio.sleep(max(plan.down_s, began_s + plan.fault_s - loop.time()))
    await fault.end()
    return took_s
