"""The network between nodes breaks and heals, in several shapes, under load.

Clients reach every node all the time: what is judged is what the nodes make of it. The majority side takes
writes again within a bound, with one change of leader per group at most; whoever talks to the minority side
gets no acknowledgement, and past the bound for waiting a refusal that says so.
"""

import asyncio
from dataclasses import dataclass

from millrace.client import Client, ClientError, Refused
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.load import Load
from millrace.lab.campaign.networks import Networks
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Late, Stage, until
from millrace.local_cluster import NodeProcess

SHAPES = ("symmetric", "leader-mute", "leader-deaf", "bridge", "follower")
_RECOVER_S_MAX = 30.0
_SAMPLE_S = 0.2
# A publish without a majority is answered after the leader gave up, an election time, and 10 s of waiting.
_REFUSED_S_MAX = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    rounds: int
    hold_s: float = 15.0
    resume_s_max: float = 3.0


class LeaderWatch:
    """Which leaders each group had, by term, as the nodes tell while it runs."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.seen: dict[int, dict[int, str]] = {}

    async def look(self) -> None:
        for rows in await asyncio.gather(*(self._stage.groups(node) for node in self._stage.nodes)):
            for number, row in rows.items():
                if row["leader"] is not None:
                    self.seen.setdefault(number, {})[row["term"]] = row["leader"]

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_SAMPLE_S)

    def changes(self) -> dict[int, int]:
        return {number: len(by_term) - 1 for number, by_term in self.seen.items()}


def cut(shape: str, leader: int, others: list[int]) -> list[tuple[int, int]]:
    """Which (sender, receiver) pairs hear nothing any more. In all shapes the leader of a shard is hit, but
    in `follower`, where a follower is cut off."""
    away = [(leader, other) for other in others]
    back = [(other, leader) for other in others]
    match shape:
        case "symmetric":
            return away + back
        case "leader-mute":
            return away
        case "leader-deaf":
            return back
        case "bridge":
            # Two halves that see each other only through the last node.
            near, far = [leader], others[:-1]
            return [pair for a in near for b in far for pair in ((a, b), (b, a))]
        case "follower":
            cut_off, rest = others[0], [leader, *others[1:]]
            return [pair for other in rest for pair in ((cut_off, other), (other, cut_off))]
    raise AssertionError(shape)


async def run_partitions(
    stage: Stage, load: Load, networks: Networks, plan: Partitions, report: Report, say: Say
) -> None:
    resumed: list[float] = []
    changes_most = 0
    for number in range(plan.rounds * len(SHAPES)):
        shape = SHAPES[number % len(SHAPES)]
        shard = stage.shards[number % len(stage.shards)]
        leader = await stage.shard_leader(shard)
        others = [node.number for node in stage.nodes if node is not leader]
        watch = LeaderWatch(stage)
        await watch.look()
        watching = asyncio.create_task(watch.run())
        load.mark()
        for sender, receiver in cut(shape, leader.number, others):
            networks.drop(sender, receiver)
        took_s = await _resumed(stage, load, shape, report)
        if took_s is not None:
            resumed.append(took_s)
        told = await _minority(stage, shape, leader, others, plan.hold_s, report)
        networks.heal()
        whole_s = await stage.whole()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await watch.look()
        worst = max(watch.changes().values(), default=0)
        changes_most = max(changes_most, worst)
        for group, by_term in watch.seen.items():
            if len(by_term) > 2:
                report.violate(
                    f"{shape} {number + 1}: group {group} had the leaders {sorted(by_term.items())}"
                )
        report.note("partitions done", number + 1)
        say(
            f"{number + 1}/{plan.rounds * len(SHAPES)} {shape} around {leader.name}: "
            "all shards took writes after "
            f"{'-' if took_s is None else f'{took_s * 1000:.0f} ms'}, minority: {told}, "
            f"at most {worst} change(s) of leader, whole {whole_s:.1f} s after healing"
        )
    await load.finish()
    await stage.whole()
    report.note("changes of leader per fault and group, most", changes_most)
    report.times("partition to acknowledged writes in every shard", resumed)
    for took_s in resumed:
        report.require(took_s <= plan.resume_s_max, f"writes resumed only after {took_s * 1000:.0f} ms")
    await judge(stage, load, report)


async def _resumed(stage: Stage, load: Load, shape: str, report: Report) -> float | None:
    async def recovered() -> bool:
        return len(load.recovered()) == len(stage.shards)

    try:
        await until(recovered, "writes resume in every shard", _RECOVER_S_MAX, 0.01)
    except Late as error:
        report.violate(f"{shape}: {error}")
        return None
    return max(load.recovered().values())


async def _minority(
    stage: Stage, shape: str, leader: NodeProcess, others: list[int], hold_s: float, report: Report
) -> str:
    """Ask a node that is cut off to store something, and see what it says. Holds the fault for a while."""
    if shape in ("symmetric", "follower"):
        node = leader if shape == "symmetric" else stage.nodes[others[0]]
        answers = await _ask_cut_off(node, stage)
        if "acknowledged" in answers:
            report.violate(f"{shape}: {node.name}, cut off, acknowledged a publish")
        if not any(answer.startswith("refused") for answer in answers):
            report.violate(f"{shape}: {node.name}, cut off, refused nothing: {answers}")
        return ", ".join(sorted(set(answers)))
    await asyncio.sleep(hold_s)
    return "not asked"


async def _ask_cut_off(node: NodeProcess, stage: Stage) -> list[str]:
    """One publish for each shard, at this node alone."""

    async def one(client: Client, topic: str) -> str:
        try:
            await asyncio.wait_for(client.publish(topic, b"0", qos=1), _REFUSED_S_MAX)
        except Refused as error:
            return f"refused ({error.reason.name})"
        except TimeoutError:
            return "no answer"
        except ClientError as error:
            return f"refused (connection closed: {type(error).__name__})"
        return "acknowledged"

    topics = stage.topics("minority")
    try:
        async with Client(node.url, client_id=f"minority-{node.name}", reconnect=False) as client:
            return list(await asyncio.gather(*(one(client, topic) for topic in topics)))
    except ClientError as error:
        return [f"refused (connect: {type(error).__name__})"]
