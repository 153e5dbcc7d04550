"""`python -m millrace.lab.campaign.primary_backup`: the primary is killed again and again under load.

Publishers send on a beat and keep their last messages, a subscriber listens at both nodes; the primary is
killed (SIGKILL), the backup takes over, the killed node comes back as backup and catches up, and so on, for
each schedule. A message lost beyond the tolerance of its topic, one delivered twice, one missing in the log
(fcfs), or a gap after a kill of more than three checks and half a second is a violation.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from millrace.lab.campaign.pair_run import Beat, PairRun, call, create_stream, stored
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Late, until
from millrace.local_cluster import LocalCluster

GAP_SLACK_S = 0.5
_READY_S = 60.0
_KEPT = 400


def beats_of(schedule: str, check_ms: int, interval_ms: int) -> tuple[Beat, ...]:
    """fcfs keeps whatever it acknowledged. frame keeps to the tolerance of each class: one topic may lose
    nothing, and its publisher sends its last messages again; the other may lose what a failover takes."""
    if schedule == "fcfs":
        return (Beat(keep_last=_KEPT),)
    failover_ms = 3.5 * check_ms + 1000 * GAP_SLACK_S
    tolerance = int(failover_ms / interval_ms) + 1
    return (
        Beat(topic="alarms/kept", keep_last=_KEPT),
        Beat(topic="alarms/loose", keep_last=1, loss_tolerance=tolerance),
    )


def settings_of(schedule: str, check_ms: int, interval_ms: int, beats: tuple[Beat, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {"check_interval_ms": check_ms, "schedule": schedule}
    if schedule == "frame":
        settings["topics"] = [
            {
                "filter": beat.topic,
                "period_ms": interval_ms,
                "deadline_ms": 1000,
                "loss_tolerance": beat.loss_tolerance,
                "retention": beat.keep_last,
            }
            for beat in beats
        ]
    return settings


async def run_pair_kills(
    cluster: LocalCluster,
    *,
    schedule: str,
    kills: int,
    check_ms: int,
    interval_ms: int,
    report: Report,
    say: Say,
) -> None:
    async def whole() -> bool:
        seen = [(await call(node, "GET", "/status"))["cluster"] for node in cluster.nodes]
        return all(c["is_settled"] and len(c["members"]) == len(cluster.nodes) for c in seen)

    await until(whole, "the cluster is whole", _READY_S)
    beats = beats_of(schedule, check_ms, interval_ms)
    await create_stream(cluster, settings_of(schedule, check_ms, interval_ms, beats))
    work = PairRun(
        cluster, interval_s=interval_ms / 1000, beats=beats, say=lambda who, what: say(f"{who:<7} {what}")
    )
    try:
        await work.run(kills, before_s=1.0, after_s=0.5)
    finally:
        judge(work, schedule=schedule, gap_max_s=3 * check_ms / 1000 + GAP_SLACK_S, report=report)
    if schedule == "fcfs":
        missing = set(range(work.outcome.published)) - await stored(cluster)
        report.require(not missing, f"{schedule}: {len(missing)} messages are not in the log")


def judge(work: PairRun, *, schedule: str, gap_max_s: float, report: Report) -> None:
    """What the subscriber saw, topic by topic, and how long it saw nothing after each kill."""
    for beat, outcome in work.outcomes.items():
        name = f"{schedule} {beat.topic}"
        report.note(f"{name}, published", outcome.published)
        report.note(f"{name}, delivered", len(outcome.arrived))
        report.note(f"{name}, doubled", outcome.doubled)
        report.note(f"{name}, lost", len(outcome.lost))
        report.note(f"{name}, lost in a row (of {beat.loss_tolerance})", outcome.lost_in_a_row)
        report.require(not outcome.doubled, f"{name}: {outcome.doubled} messages came twice")
        report.require(
            outcome.lost_in_a_row <= beat.loss_tolerance,
            f"{name}: {outcome.lost_in_a_row} messages lost in a row, {beat.loss_tolerance} are allowed",
        )
    gaps_s = work.outcome.resumed_s
    report.note(f"{schedule}, kills", len(gaps_s))
    report.times(f"{schedule}, gap after a kill", gaps_s)
    for number, gap_s in enumerate(gaps_s, 1):
        report.require(
            gap_s <= gap_max_s, f"{schedule}, kill {number}: a gap of {gap_s:.2f} s, over {gap_max_s:g} s"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m millrace.lab.campaign.primary_backup", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=10, help="of each schedule")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--schedules", default="fcfs,frame")
    parser.add_argument("--check-ms", type=int, default=1000)
    parser.add_argument("--interval-ms", type=int, default=20)
    parser.add_argument("--logs", type=Path, help="write what the nodes say into this file")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.kills < 1 or not set(given.schedules.split(",")) <= {"fcfs", "frame"}:
        parser.error("--kills is at least 1, --schedules is made of fcfs and frame")
    logging.basicConfig(level=logging.ERROR)
    report = Report(f"primary-backup, kills of the primary on {given.nodes} nodes")
    began_s = time.monotonic()
    lines: list[str] = []

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:8.1f}  {text}", file=sys.stderr, flush=True)

    def on_line(node: str, line: str) -> None:
        if given.logs is not None:
            lines.append(f"{time.monotonic() - began_s:8.1f} {node} {line}\n")

    async def body(schedule: str, data: Path) -> None:
        async with LocalCluster(given.nodes, data, on_line=on_line) as cluster:
            await run_pair_kills(
                cluster,
                schedule=schedule,
                kills=given.kills,
                check_ms=given.check_ms,
                interval_ms=given.interval_ms,
                report=report,
                say=say,
            )

    for schedule in given.schedules.split(","):
        with tempfile.TemporaryDirectory(prefix="millrace-campaign-") as directory:
            try:
                asyncio.run(body(schedule, Path(directory)))
            except (Late, MillraceError, TimeoutError) as error:
                report.violate(f"{schedule}: the campaign ended early: {error!r}")
    if given.logs is not None:
        given.logs.write_text("".join(lines))
    report.note("seconds", round(time.monotonic() - began_s))
    print(report.as_json() if given.json else report.table())
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
