"""The published FRAME experiment at a size that fits: loss and deadline success per topic category.

    python -m millrace.lab.demo.frame_experiment [--topics 60,300,600] [--seconds 60] [--runs 5] [--out DIR]

Two nodes, one generator. Topics of the six categories publish 16 bytes on their periods; in the middle the
primary is killed. Publishers notice the closed connection, change over and send their last N messages again;
the subscriber listens at both nodes and counts a message once. A category's loss success is the share of its
topics that never lost more than L messages in a row; its deadline success the share of messages that arrived
within D of the moment their publisher made them. What was made while no broker could be reached counts as a
loss if nobody delivers it, and as late if it came late.

Deadlines are counted twice: for messages whose deadline lay before the kill, as the paper counts them (in
operation without faults), and for all messages, those of the kill included. The second figure depends on how
long the run is: a kill costs so many milliseconds, which is ten times as much of six seconds as of a minute,
the length that the paper measured. The recovery does not depend on it: the time from the kill to the first
message behind which none was late or lost for a while. Of several runs the first table at the end has the
worst figures of each category.

Generator and nodes share the machine. The second table says what share of a core each took before the kill,
and the node that is left in the second behind it; by how much the generator was behind its own schedule; and
how long after the kill the first publisher was connected again, and a message that was made behind the kill
reached a subscriber.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.lab.campaign.pair_run import call, settled
from millrace.lab.demo.frame_load import CATEGORIES, STEP_S, Publishing, Subscribing, Topic
from millrace.local_cluster import LocalCluster, NodeProcess

CONNECTIONS = 4
WARM_UP_S = 1.0
CALM_S = 0.25
"""What was late after such a time without a late message has another reason than the kill."""
FIGURES = ("loss_success", "deadline_success_before_kill", "deadline_success", "recovery_ms")
RUN_FIGURES = (
    "generator_cores",
    "primary_cores",
    "backup_cores",
    "successor_cores",
    "generator_late_p99_ms",
    "generator_late_max_ms",
    "switched_ms",
    "served_ms",
)


def processor_s(pid: int) -> float:
    """What a process has used of all cores so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream_of(schedule: str, check_ms: int) -> dict[str, object]:
    """The stream's definition, with a topic class for each category."""
    classes = [
        {
            "filter": f"alarms/{number}/#",
            "period_ms": period,
            "deadline_ms": deadline,
            "loss_tolerance": tolerance,
            "retention": retention,
        }
        for number, (period, deadline, tolerance, retention) in enumerate(CATEGORIES)
    ]
    pair = {
        "schedule": schedule,
        "check_interval_ms": check_ms,
        "failover_ms": 3 * check_ms + check_ms // 2,
        "publisher_ms": 0.5,
        "subscriber_ms": 0.5,
        "backup_ms": 0.2,
        "topics": classes,
    }
    return {
        "name": "alarms",
        "filters": ["alarms/#"],
        "replication": "primary-backup",
        "primary_backup": pair,
    }


@dataclass
class Run:
    """What is noted of one run while it lasts."""

    topics: list[Topic]
    publishers: list[Publishing]
    pids: dict[str, int]
    behind_s: list[float] = field(default_factory=list)
    """By how much each step of the generator was behind its own schedule."""
    killed_s: float = 0.0
    spent: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """What each process had used when the load stood, at the kill, and a second later."""

    def note_spent(self) -> None:
        self.spent.append((time.monotonic(), {name: processor_s(pid) for name, pid in self.pids.items()}))

    def cores(self, name: str, phase: int) -> float:
        (from_s, before), (to_s, after) = self.spent[phase : phase + 2]
        return round((after[name] - before[name]) / (to_s - from_s), 2)

    def figures(self) -> dict[str, Any]:
        behind_s = sorted(self.behind_s)
        arrived_s = [
            arrived
            for topic in self.topics
            for made, arrived in zip(topic.made_s, topic.arrived, strict=True)
            if made > self.killed_s
        ]
        connected_s = min(each.connected_s for each in self.publishers)
        found = (
            self.cores("generator", 0),
            self.cores("primary", 0),
            self.cores("backup", 0),
            self.cores("backup", 1),
            round(1000 * behind_s[int(0.99 * (len(behind_s) - 1))], 1),
            round(1000 * behind_s[-1], 1),
            round(1000 * (connected_s - self.killed_s)),
            round(1000 * (min(arrived_s) - self.killed_s)),
        )
        return dict(zip(RUN_FIGURES, found, strict=True))


async def started(cluster: LocalCluster, schedule: str, check_ms: int) -> tuple[NodeProcess, NodeProcess]:
    """The primary and the backup of the new stream."""
    while True:
        status = await call(cluster.nodes[0], "GET", "/status")
        if len(status["cluster"]["members"]) == 2 and status["cluster"]["is_settled"]:
            break
        await asyncio.sleep(0.1)
    await call(cluster.nodes[0], "POST", "/v1/streams", stream_of(schedule, check_ms))
    return await settled(cluster)


async def run_once(schedule: str, count: int, seconds: float, check_ms: int) -> list[dict[str, Any]]:
    """One row for each category, of a run of so many seconds after its warm-up."""
    with tempfile.TemporaryDirectory(prefix="frame-") as directory:
        async with LocalCluster(2, Path(directory)) as cluster:
            primary, backup = await started(cluster, schedule, check_ms)
            ports = [int(node.url.rsplit(":", 1)[1]) for node in (primary, backup)]
            topics = [Topic(number) for number in range(count)]
            readers = [Subscribing(port) for port in ports]
            for reader in readers:
                await reader.connect()
            publishers = [
                Publishing(number, topics[number::CONNECTIONS], list(ports)) for number in range(CONNECTIONS)
            ]
            running = [asyncio.create_task(each.run()) for each in publishers]
            await asyncio.sleep(0.2)
            pids = {"generator": os.getpid(), "primary": primary.pid, "backup": backup.pid}
            run = Run(topics, publishers, pids)
            gc.collect()
            gc.freeze()
            await under_load(run, primary, WARM_UP_S + seconds)
            await asyncio.sleep(1.5)
            await primary.kill()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    for topic in topics:
        topic.arrived.extend([math.inf] * topic.sent)
    for reader in readers:
        reader.note(topics)
    shown = {"schedule": schedule, "topics": count, "seconds": seconds}
    figures = run.figures()
    return [{**shown, **row, **figures} for row in judge(topics, run.killed_s)]


async def under_load(run: Run, primary: NodeProcess, seconds: float) -> None:
    """Publish for so long; kill the primary in the middle of what is measured."""
    rng = random.Random(1)
    for topic in run.topics:
        # One after the other: a node looks a topic up once, and all in one moment are no steady load.
        joins_s = WARM_UP_S * topic.number / len(run.topics)
        first = math.ceil(joins_s / STEP_S) + rng.randrange(topic.steps)
        run.publishers[topic.number % CONNECTIONS].begin(topic, first)
    middle_s = WARM_UP_S + (seconds - WARM_UP_S) / 2
    moments_s = [WARM_UP_S, middle_s, middle_s + 1.0]
    began_s = time.monotonic()
    for step in range(round(seconds / STEP_S)):
        due_s = step * STEP_S
        ahead_s = due_s - (time.monotonic() - began_s)
        await asyncio.sleep(max(0.0, ahead_s))
        run.behind_s.append(time.monotonic() - began_s - due_s)
        for each in run.publishers:
            each.step(step)
        if moments_s and due_s >= moments_s[0]:
            run.note_spent()
            if moments_s.pop(0) == middle_s:
                run.killed_s = time.time()
                primary.signal(signal.SIGKILL)
                del run.pids["primary"]


def judge(topics: list[Topic], killed_s: float) -> list[dict[str, Any]]:
    """One row for each category, of a run in which the primary was killed at `killed_s`."""
    rows: list[dict[str, Any]] = []
    for category, (period, deadline, tolerance, retention) in enumerate(CATEGORIES):
        chosen = [topic for topic in topics if topic.category == category]
        kept = in_time = made = lost = made_before = in_time_before = 0
        late_s: list[float] = []
        for topic in chosen:
            longest = row = 0
            first = int(WARM_UP_S * 1000 / period)
            for made_s, arrived_s in zip(topic.made_s[first:], topic.arrived[first:], strict=True):
                made += 1
                is_lost = arrived_s == math.inf
                is_in_time = (arrived_s - made_s) * 1000 <= deadline
                lost += is_lost
                in_time += is_in_time
                if made_s + deadline / 1000 < killed_s:
                    made_before += 1
                    in_time_before += is_in_time
                elif not is_in_time:
                    late_s.append(made_s)
                row = row + 1 if is_lost else 0
                longest = max(longest, row)
            kept += tolerance is None or longest <= tolerance
        limit = "inf" if tolerance is None else tolerance
        rows.append(
            {
                "category": f"{period}, {deadline}, {limit}, {retention}",
                "messages": made,
                "lost": lost,
                "loss_success": round(100 * kept / max(1, len(chosen)), 1),
                "deadline_success": round(100 * in_time / max(1, made), 2),
                "deadline_success_before_kill": round(100 * in_time_before / max(1, made_before), 2),
                "recovery_ms": round(1000 * recovery_s(late_s, killed_s)),
            }
        )
    return rows


def recovery_s(late_s: list[float], killed_s: float) -> float:
    """How long after the kill messages were still late or lost; `late_s` has the moments they were made."""
    recovered_s = killed_s
    for made_s in sorted(late_s):
        if made_s > recovered_s + CALM_S:
            break
        recovered_s = max(recovered_s, made_s)
    return recovered_s - killed_s


def worst_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each schedule, size and category: the worst figures of all runs."""
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["schedule"], row["topics"], row["category"]
        so_far = worst.setdefault(key, {**row, "runs": 0})
        so_far["runs"] += 1
        so_far["lost"] = max(so_far["lost"], row["lost"])
        so_far["recovery_ms"] = max(so_far["recovery_ms"], row["recovery_ms"])
        for success in ("loss_success", "deadline_success", "deadline_success_before_kill"):
            so_far[success] = min(so_far[success], row[success])
        for figure in RUN_FIGURES:
            so_far[figure] = max(so_far[figure], row[figure])
    return list(worst.values())


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each category, a column for each size and schedule.

    A cell has loss success / deadline success before the kill / of all messages / recovery in milliseconds.
    """
    columns = list(dict.fromkeys((row["topics"], row["schedule"]) for row in rows))
    lines = [f"| T, D, L, N | {' | '.join(f'{schedule} {count:,}' for count, schedule in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for category in dict.fromkeys(row["category"] for row in rows):
        found = {(row["topics"], row["schedule"]): row for row in rows if row["category"] == category}
        cells = [" / ".join(f"{found[at][figure]:g}" for figure in FIGURES) for at in columns]
        lines.append(f"| {category} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_runs(rows: list[dict[str, Any]]) -> str:
    """A line for each size and schedule: what is not of one category."""
    shown = [name.replace("_", " ") for name in ("topics", "schedule", "seconds", "runs", *RUN_FIGURES)]
    lines = [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|"]
    for row in {(row["topics"], row["schedule"]): row for row in rows}.values():
        cells = [f"{row['topics']:,}", row["schedule"], f"{row['seconds']:g}", str(row["runs"])]
        lines.append(f"| {' | '.join(cells + [f'{row[figure]:g}' for figure in RUN_FIGURES])} |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, what in zip(axes, ("loss_success", "deadline_success"), strict=True):
        for schedule, style in (("frame", "-o"), ("fcfs", "--x")):
            for category in dict.fromkeys(row["category"] for row in rows):
                line = [row for row in rows if row["schedule"] == schedule and row["category"] == category]
                if line:
                    xs, ys = [row["topics"] for row in line], [row[what] for row in line]
                    axis.plot(xs, ys, style, label=f"{schedule} ({category})", markersize=4)
        axis.set_title(what.replace("_", " ") + " (%)")
        axis.set_xlabel("topics")
        axis.set_ylim(-5, 105)
    axes[1].legend(fontsize=6, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", default="60,300,600")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run, the warm-up apart")
    parser.add_argument("--runs", type=int, default=1, help="so many runs of each; the worst of them counts")
    parser.add_argument("--check-ms", type=int, default=14)
    parser.add_argument("--schedules", default="frame,fcfs")
    parser.add_argument("--out", type=Path, default=None, help="directory for frame.json and frame.png")
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for count in map(int, given.topics.split(",")):
        for schedule in given.schedules.split(","):
            for _ in range(given.runs):
                found = await run_once(schedule, count, given.seconds, given.check_ms)
                rows += found
                for row in found:
                    print(json.dumps(row), flush=True)
    print(table(worst_of(rows)))
    print()
    print(table_of_runs(worst_of(rows)))
    if given.out is not None:
        (given.out / "frame.json").write_text(json.dumps(rows, indent=1) + "\n")
        plot(worst_of(rows), given.out / "frame.png")


if __name__ == "__main__":
    asyncio.run(main())
