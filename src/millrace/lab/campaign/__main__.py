"""`python -m millrace.lab.campaign NAME`: one campaign, a table, and an exit status."""

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from millrace.errors import MillraceError
from millrace.lab.campaign import (
    churn,
    damage,
    membership,
    networks,
    nightly,
    power,
    quiet,
    random_kills,
    rolling,
    single_faults,
)
from millrace.lab.campaign.disks.node import program
from millrace.lab.campaign.kills import Kills, run_kills
from millrace.lab.campaign.partitions import Partitions, run_partitions
from millrace.lab.campaign.rejoin import fill, run_rejoin
from millrace.lab.campaign.report import Report
from millrace.lab.campaign.run import Body, Run
from millrace.lab.campaign.stage import PREFIX, STREAM, Late, Stage
from millrace.local_cluster import PROGRAM, LocalCluster
from millrace.version import LEVEL

# From the fault to the first acknowledged publish in every shard: p50 and p99.
_TIMES = {"kill": (0.15, 0.5), "stop": (0.0, 1.5), "stall": (0.0, 1.5)}
# Campaigns whose nodes have a disk that fails.
_DISKS = {"power": "lossy", "nightly": "lossy", "single-faults": "stalling", "stalls": "stalling"}
_CUTS = ("partitions", "single-faults", "nightly")
_STALL_S = 5.0


def _kills_arguments(parser: argparse.ArgumentParser, fault_s: float = 0.0) -> None:
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--down-s", type=float, default=1.0)
    parser.add_argument("--fault-s", type=float, default=fault_s, help="how long a fault lasts at least")
    parser.add_argument("--judge-times", action="store_true", help="slower than promised is a violation")


def _stalls_arguments(parser: argparse.ArgumentParser) -> None:
    _kills_arguments(parser, _STALL_S)


def _partitions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=1, help="each shape once per round")
    parser.add_argument("--hold-s", type=float, default=5.0)


def _rejoin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=64, help="size of the log")


def _quiet_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--share", type=float, default=0.7, help="of the measured maximum; 0 takes --rate")


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "kills": _kills_arguments,
    "stops": _kills_arguments,
    "stalls": _stalls_arguments,
    "random-kills": random_kills.arguments,
    "power": power.arguments,
    "partitions": _partitions_arguments,
    "single-faults": single_faults.arguments,
    "damage": damage.arguments,
    "members": membership.arguments,
    "rolling": rolling.arguments,
    "rejoin": _rejoin_arguments,
    "nightly": nightly.arguments,
    "churn": churn.arguments,
    "quiet": _quiet_arguments,
}


def _about(name: str) -> str:
    """The first sentence of what the campaign's module says."""
    text = (sys.modules[_BODIES[name].__module__].__doc__ if name not in _SAYS else _SAYS[name]) or ""
    return text.split("\n\n")[0]


_SAYS = {
    "kills": "The leader of a shard is killed and started again, many times.",
    "stops": "The leader of a shard stands still and goes on, many times.",
    "stalls": "No sync of the leader's disk returns for a while, many times.",
    "partitions": "The network between nodes breaks and heals, in several shapes.",
    "rejoin": "A node loses its disk and joins again under its name.",
    "quiet": "Nothing is wrong: there must be no election.",
}


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
        "--clients",
        choices=("own", "foreign"),
        default="own",
        help="foreign: Paho (pip install paho-mqtt) and plain HTTP in place of millrace.client",
    )
    common.add_argument(
        "--data", type=Path, help="where the nodes keep their data; default: a temporary place"
    )
    common.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the nodes"
    )
    common.add_argument(
        "--disk",
        choices=("system", "lossy", "stalling"),
        help="lossy: a kill drops what was not synced, as a loss of power does",
    )
    common.add_argument("--seed", type=int, help="of what chance decides; default: one that is told")
    common.add_argument(
        "--no-cuts", action="store_true", help="leave the network alone: cutting it needs root, ip and nft"
    )
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    common.add_argument("--logs", type=Path, help="write what the nodes say into this file")
    names = parser.add_subparsers(dest="campaign", required=True)
    for name, add_arguments in _ARGUMENTS.items():
        add_arguments(names.add_parser(name, parents=[common], help=_about(name), description=_about(name)))
    return parser


async def _kills(run: Run) -> None:
    given = run.given
    how = {"kills": "kill", "stops": "stop", "stalls": "stall"}[given.campaign]
    p50_s, p99_s = _TIMES[how] if given.judge_times else (0.0, 0.0)
    plan = Kills(
        count=given.count,
        how=how,
        down_s=given.down_s,
        fault_s=given.fault_s,
        p50_max_s=p50_s,
        p99_max_s=p99_s,
    )
    async with run.load() as load:
        await run_kills(run.stage, load, plan, run.report, run.say)


async def _partitions(run: Run) -> None:
    assert run.networks is not None
    plan = Partitions(rounds=run.given.rounds, hold_s=run.given.hold_s)
    async with run.load() as load:
        await run_partitions(run.stage, load, run.networks, plan, run.report, run.say)


async def _rejoin(run: Run) -> None:
    await fill(run.stage, run.given.megabytes, run.say)
    async with run.load() as load:
        await run_rejoin(run.stage, load, run.given.megabytes, run.report, run.say)


async def _quiet(run: Run) -> None:
    given = run.given
    await quiet.settled(run.stage, run.say)
    rate = given.rate
    if given.share:
        maximum = await quiet.measured_maximum(run.stage, given.publishers, given.size)
        rate = maximum * given.share
        run.report.note("measured maximum, messages/s", round(maximum))
    async with run.load(rate) as load:
        await quiet.run_quiet(run.stage, load, given.minutes, run.report, run.say)


_BODIES: dict[str, Body] = {
    "kills": _kills,
    "stops": _kills,
    "stalls": _kills,
    "random-kills": random_kills.body,
    "power": power.body,
    "partitions": _partitions,
    "single-faults": single_faults.body,
    "damage": damage.body,
    "members": membership.body,
    "rolling": rolling.body,
    "rejoin": _rejoin,
    "nightly": nightly.body,
    "churn": churn.body,
    "quiet": _quiet,
}


def _wants_networks(given: argparse.Namespace) -> bool:
    return given.campaign in _CUTS and not given.no_cuts


def _program(given: argparse.Namespace) -> tuple[str, ...]:
    """On which disks the nodes are."""
    kind = given.disk or _DISKS.get(given.campaign, "system")
    return PROGRAM if kind == "system" else program(kind)


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
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    report.note("seed", seed)
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

        say(f"seed {seed}")
        place = None if nets is None else (lambda number: (nets.host(number), nets.wrap(number)))
        if getattr(given, "upgrade", False):
            older = rolling.release(data.with_name(f"{data.name}-older"), LEVEL - 1)
            stack.callback(shutil.rmtree, data.with_name(f"{data.name}-older"))

            def place(_: int) -> tuple[str, tuple[str, ...]]:
                return "127.0.0.1", older

        options: tuple[str, ...] = ()
        if nets is not None:
            options = ("--config", str(_settings(given, data)))
        options += tuple(word for setting in given.set for word in ("--set", setting))
        cluster = LocalCluster(
            given.nodes, data, program=_program(given), options=options, on_line=on_line, place=place
        )
        say(f"starting {given.nodes} nodes")
        async with cluster:
            replicas = membership.NODES_MOST if given.campaign == "members" else given.nodes
            stage = Stage(cluster, shards=given.shards, replicas=replicas, is_made=nets is not None)
            try:
                await stage.set_up()
                say(f"{given.nodes} nodes keep {given.shards} shards")
                run = Run(
                    stage=stage,
                    given=given,
                    networks=nets,
                    rng=random.Random(seed),
                    report=report,
                    say=say,
                )
                await _BODIES[given.campaign](run)
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
        if _wants_networks(given):
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
