"""`python -m millrace.lab.campaign NAME`: one campaign, a table, and an exit status."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from millrace.errors import MillraceError
from millrace.lab.campaign import networks, quiet
from millrace.lab.campaign.kills import Kills, run_kills, run_power_losses
from millrace.lab.campaign.load import Load
from millrace.lab.campaign.partitions import Partitions, run_partitions
from millrace.lab.campaign.rejoin import fill, run_rejoin
from millrace.lab.campaign.report import Report, Say
from millrace.lab.campaign.stage import PREFIX, STREAM, Late, Stage
from millrace.local_cluster import LocalCluster

Body = Callable[[Stage, Report, Say], Awaitable[None]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m millrace.lab.campaign", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--nodes", type=int, default=3)
    common.add_argument("--shards", type=int, default=3)
    common.add_argument("--rate", type=float, default=300.0, help="messages a second over all publishers")
    common.add_argument("--size", type=int, default=100, help="bytes of a payload")
    common.add_argument("--publishers", type=int, default=6)
    common.add_argument("--subscribers", type=int, default=2)
    common.add_argument(
        "--data", type=Path, help="where the nodes keep their data; default: a temporary place"
    )
    common.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the nodes"
    )
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    common.add_argument("--logs", type=Path, help="write what the nodes say into this file")
    names = parser.add_subparsers(dest="campaign", required=True)
    for name in ("kills", "stops"):
        kills = names.add_parser(name, parents=[common])
        kills.add_argument("--count", type=int, default=20)
        kills.add_argument("--down-s", type=float, default=1.0)
        kills.add_argument("--judge-times", action="store_true", help="slower than promised is a violation")
    power = names.add_parser("power", parents=[common])
    power.add_argument("--count", type=int, default=5)
    cuts = names.add_parser("partitions", parents=[common])
    cuts.add_argument("--rounds", type=int, default=1, help="each shape once per round")
    cuts.add_argument("--hold-s", type=float, default=5.0)
    rejoin = names.add_parser("rejoin", parents=[common])
    rejoin.add_argument("--megabytes", type=int, default=64, help="size of the log")
    still = names.add_parser("quiet", parents=[common])
    still.add_argument("--minutes", type=float, default=2.0)
    still.add_argument("--share", type=float, default=0.7, help="of the measured maximum; 0 takes --rate")
    return parser


def _load(stage: Stage, given: argparse.Namespace, rate: float | None = None) -> Load:
    return Load(
        stage,
        rate=given.rate if rate is None else rate,
        size=given.size,
        publishers=given.publishers,
        subscribers=given.subscribers,
    )


def _body(given: argparse.Namespace, nets: networks.Networks | None) -> Body:
    async def kills(stage: Stage, report: Report, say: Say) -> None:
        how = "kill" if given.campaign == "kills" else "stop"
        p50_s, p99_s = (0.5, 1.5) if how == "kill" else (0.0, 2.0)
        if not given.judge_times:
            p50_s = p99_s = 0.0
        plan = Kills(count=given.count, how=how, down_s=given.down_s, p50_max_s=p50_s, p99_max_s=p99_s)
        async with _load(stage, given) as load:
            await run_kills(stage, load, plan, report, say)

    async def power(stage: Stage, report: Report, say: Say) -> None:
        async with _load(stage, given) as load:
            await run_power_losses(stage, load, given.count, report, say)

    async def partitions(stage: Stage, report: Report, say: Say) -> None:
        assert nets is not None
        plan = Partitions(rounds=given.rounds, hold_s=given.hold_s)
        async with _load(stage, given) as load:
            await run_partitions(stage, load, nets, plan, report, say)

    async def rejoin(stage: Stage, report: Report, say: Say) -> None:
        await fill(stage, given.megabytes, say)
        async with _load(stage, given) as load:
            await run_rejoin(stage, load, given.megabytes, report, say)

    async def still(stage: Stage, report: Report, say: Say) -> None:
        await quiet.settled(stage, say)
        rate = given.rate
        if given.share:
            maximum = await quiet.measured_maximum(stage, given.publishers, given.size)
            rate = maximum * given.share
            report.note("measured maximum, messages/s", round(maximum))
        async with _load(stage, given, rate) as load:
            await quiet.run_quiet(stage, load, given.minutes, report, say)

    bodies: dict[str, Body] = {
        "kills": kills,
        "stops": kills,
        "power": power,
        "partitions": partitions,
        "rejoin": rejoin,
        "quiet": still,
    }
    return bodies[given.campaign]


def _settings(given: argparse.Namespace, data: Path) -> Path:
    """For nodes in networks of their own: clients come from another address than the node's, and nobody from
    another address may make a stream, so it stands in the configuration."""
    path = data / "campaign.toml"
    stream = (
        f'[streams.{STREAM}]\nfilters = ["{PREFIX}/#"]\nshards = {given.shards}\nreplicas = {given.nodes}\n'
    )
    path.write_text(f'[access]\nanonymous = "always"\n\n{stream}')
    return path


async def _run(given: argparse.Namespace, nets: networks.Networks | None, data: Path, report: Report) -> None:
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:8.1f}  {text}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        on_line = None
        if given.logs is not None:
            file = stack.enter_context(given.logs.open("w"))

            def on_line(node: str, line: str) -> None:
                file.write(f"{time.monotonic() - began_s:8.1f} {node} {line}\n")
                file.flush()

        place = None if nets is None else (lambda number: (nets.host(number), nets.wrap(number)))
        options: tuple[str, ...] = ()
        if nets is not None:
            options = ("--config", str(_settings(given, data)))
        options += tuple(word for setting in given.set for word in ("--set", setting))
        cluster = LocalCluster(given.nodes, data, options=options, on_line=on_line, place=place)
        say(f"starting {given.nodes} nodes")
        async with cluster:
            stage = Stage(cluster, shards=given.shards, replicas=given.nodes, is_made=nets is not None)
            try:
                await stage.set_up()
                say(f"{given.nodes} nodes keep {given.shards} shards")
                await _body(given, nets)(stage, report, say)
            except (Late, MillraceError) as error:
                report.violate(f"the campaign ended early: {error}")
    report.note("seconds", round(time.monotonic() - began_s))


def main() -> int:
    given = _parser().parse_args()
    # That connections are lost and made again is what happens here.
    logging.basicConfig(level=logging.ERROR)
    report = Report(f"{given.campaign} on {given.nodes} nodes")
    with ExitStack() as stack:
        nets = None
        if given.campaign == "partitions":
            reason = networks.why_not()
            if reason:
                print(f"millrace.lab.campaign: {reason}", file=sys.stderr)
                return 2
            status = networks.enter()
            if status is not None:
                return status
            nets = stack.enter_context(networks.Networks(given.nodes))
        data = given.data
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-campaign-")))
        asyncio.run(_run(given, nets, data, report))
    print(report.as_json() if given.json else report.table())
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
