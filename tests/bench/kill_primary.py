"""Many kills of the primary under load, with real processes.

    python tests/bench/kill_primary.py [--kills 50] [--nodes 3] [--schedule fcfs|frame]

A publisher sends on a beat and keeps its last messages, a subscriber listens at both nodes; the primary is
killed with SIGKILL, the backup takes over, the killed node comes back as backup and catches up, and so on. It
fails if a message is lost beyond the tolerance of its topic, if one is delivered twice to the subscriber, or
if a gap after a kill is longer than three checks and 500 ms (`--slack` adds to it, for a machine that is busy
with other things).
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from millrace.demo.pair_run import Outcome, PairRun, create_stream, stored
from millrace.demo.stage import ready
from millrace.demo.story import Story
from millrace.local_cluster import LocalCluster


async def run(
    kills: int, nodes: int, schedule: str, check_ms: int, interval_ms: int, after_s: float = 0.5
) -> Outcome:
    settings: dict[str, object] = {"check_interval_ms": check_ms, "schedule": schedule}
    if schedule == "frame":
        settings["topics"] = [
            {
                "filter": "alarms/#",
                "period_ms": interval_ms,
                "deadline_ms": 1000,
                "loss_tolerance": 0,
                "retention": 400,
            }
        ]
    story = Story()
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        async with LocalCluster(nodes, Path(directory)) as cluster:
            await ready(story, cluster, nodes)
            await create_stream(cluster, settings)
            work = PairRun(cluster, interval_s=interval_ms / 1000, keep_last=400, say=story.say)
            outcome = await work.run(kills, before_s=1.0, after_s=after_s)
            if schedule == "fcfs":
                missing = set(range(outcome.published)) - await stored(cluster)
                print(f"{len(missing)} of {outcome.published} messages are not in the log")
                if missing:
                    outcome.arrived = {n: t for n, t in outcome.arrived.items() if n not in missing}
            return outcome


def report(outcome: Outcome, bound_s: float) -> list[str]:
    """What is wrong; nothing if all is well."""
    wrong = []
    if outcome.lost:
        wrong.append(f"{len(outcome.lost)} messages are lost, {outcome.lost_in_a_row} in a row")
    if outcome.doubled:
        wrong.append(f"{outcome.doubled} messages came twice")
    late = [f"{took_s:.2f}" for took_s in outcome.resumed_s if took_s > bound_s]
    if late:
        wrong.append(f"{len(late)} of {len(outcome.resumed_s)} gaps above {bound_s:.2f} s: {', '.join(late)}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--schedule", default="fcfs")
    parser.add_argument("--check-ms", type=int, default=1000)
    parser.add_argument("--interval-ms", type=int, default=20)
    parser.add_argument("--slack", type=float, default=0.0)
    given = parser.parse_args()
    started_s = time.monotonic()
    outcome = asyncio.run(run(given.kills, given.nodes, given.schedule, given.check_ms, given.interval_ms))
    gaps = sorted(outcome.resumed_s)
    print(
        f"{given.schedule}, {given.nodes} nodes, {len(gaps)} kills in {time.monotonic() - started_s:.0f} s: "
        f"{outcome.published} published, {len(outcome.arrived)} delivered, {len(outcome.lost)} lost, "
        f"{outcome.doubled} doubled; gap after a kill median {gaps[len(gaps) // 2]:.2f} s, "
        f"longest {gaps[-1]:.2f} s"
    )
    wrong = report(outcome, 3 * given.check_ms / 1000 + 0.5 + given.slack)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
