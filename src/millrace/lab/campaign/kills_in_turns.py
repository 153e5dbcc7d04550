"""The command line of campaigns in which the nodes of one local cluster are killed in turns."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from millrace.errors import MillraceError
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import Late
from millrace.local_cluster import LocalCluster


class Wanted(NamedTuple):
    """How much is to be done to the cluster."""

    kills: int
    """At least so many."""
    seconds: float
    """And for at least so long."""
    down_s: float
    """How long a killed node stays away."""


Campaign = Callable[[LocalCluster, Wanted, Report, Say], Awaitable[None]]


def run_command(name: str, about: str | None, campaign: Campaign, *, down_s: float) -> int:
    """Read the arguments, run the campaign on a fresh cluster and print its report; the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m millrace.lab.campaign.{name}", description=about)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3, help="at least so many")
    parser.add_argument("--minutes", type=float, default=0.0, help="and for at least so long")
    parser.add_argument("--down-s", type=float, default=down_s)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    report = Report(f"{name}, kills in turns on {given.nodes} nodes")
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:8.1f}  {text}", file=sys.stderr, flush=True)

    async def body(data: Path) -> None:
        async with LocalCluster(given.nodes, data) as cluster:
            await campaign(cluster, Wanted(given.kills, given.minutes * 60, given.down_s), report, say)

    with tempfile.TemporaryDirectory(prefix="millrace-campaign-") as directory:
        try:
            asyncio.run(body(Path(directory)))
        except (Late, MillraceError, TimeoutError) as error:
            report.violate(f"the campaign ended early: {error!r}")
    print(report.as_json() if given.json else report.table())
    return 1 if report.violations else 0
