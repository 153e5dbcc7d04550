"""`millrace bench`: this broker and its peers under the same load."""

import difflib
import json as json_module
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.common import example, family, print_rows
from millrace.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.bench.generator import Generator
    from millrace.bench.patterns import Pattern
    from millrace.bench.peers import Broker
    from millrace.bench.runner import Sample, Subject

app = family("Measure this broker beside its peers.")

_ROUNDS_MAX = 1000
_SECONDS_MAX = 600.0


@app.command(
    epilog=example(
        "millrace bench mqtt --list",
        "millrace bench mqtt --against mosquitto --patterns qos0-mixed,qos1-one-per-read",
        "millrace bench mqtt --qos 1 --versions 3 --rounds 1 --json -",
    )
)
def mqtt(
    against: Annotated[
        str, typer.Option(metavar="PEERS", help="Brokers to compare with, where they are installed.")
    ] = "mosquitto,nats",
    rounds: Annotated[int, typer.Option(min=1, max=_ROUNDS_MAX, help="Rounds; medians are shown.")] = 3,
    patterns: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these patterns, by comma.")
    ] = None,
    qos: Annotated[str, typer.Option(metavar="LEVELS", help="Only patterns of these QoS.")] = "0,1,2",
    versions: Annotated[str, typer.Option(metavar="VERSIONS", help="MQTT versions: 3, 5.")] = "3,5",
    kernels: Annotated[
        str | None,
        typer.Option(metavar="KINDS", help="Ours with c or python kernels, or both; the best built."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=_SECONDS_MAX, help="Measured time of each run.")
    ] = 1.6,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write everything as JSON; - is standard output.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the patterns and their targets.")] = False,
) -> None:
    """Load this broker and any peer installed here with the same patterns, in turn, and compare."""
    from millrace.bench import report, runner
    from millrace.bench.generator import build
    from millrace.bench.peers import PEERS

    levels = {int(level) for level in _choices(qos, ("0", "1", "2"), "--qos")}
    chosen = [pattern for pattern in _patterns(patterns) if pattern.qos in levels]
    if list_:
        rows = report.pattern_rows(chosen)
        print_rows(rows, ("pattern", "what", "regime", "flags", "targets"), as_json=json is not None)
        return
    if not chosen:
        raise ConfigError("no pattern is left with this --patterns and --qos")
    kinds = _choices(kernels, ("c", "python"), "--kernels") if kernels else [_best_kernels()]
    brokers = _brokers(kinds, _choices(against, PEERS, "--against") if against else [])
    measured = runner.subjects(
        [int(v) for v in _choices(versions, ("3", "5"), "--versions")],
        kinds,
        [name for name, kind in brokers if kind is None],
    )
    if json is not None:
        # A place that cannot be written is better known before the measurement than after it.
        _write(json, "")
    steps = runner.plan(chosen, measured, rounds)
    samples = _measure(steps, brokers, build(), seconds)
    results = runner.summarize(samples)
    document = report.document(
        samples=samples,
        results=results,
        versions={name: broker.version for (name, _), broker in brokers.items()},
        seconds=seconds,
        rounds=rounds,
    )
    if json != "-":
        console = _console(stderr=False)
        console.print(report.figures_table(results))
        console.print(report.ratios_table(report.ratios(results)))
    if json is not None:
        _write(json, json_module.dumps(document, indent=2) + "\n")
    if any(result.errors for result in results if result.subject.is_ours):
        raise typer.Exit(1)


def _choices(given: str, known: Sequence[str], option: str) -> list[str]:
    """A list by comma, each one of the known, none twice."""
    wanted = list(dict.fromkeys(item.strip() for item in given.split(",") if item.strip()))
    for item in wanted:
        if item not in known:
            near = difflib.get_close_matches(item, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"{option}: {item!r} is not known; {hint}")
    if not wanted:
        raise ConfigError(f"{option} is empty; known are {', '.join(known)}")
    return wanted


def _patterns(names: str | None) -> "list[Pattern]":
    from millrace.bench.patterns import BY_NAME, PATTERNS

    return (
        list(PATTERNS)
        if names is None
        else [BY_NAME[n] for n in _choices(names, tuple(BY_NAME), "--patterns")]
    )


def _best_kernels() -> str:
    from importlib.util import find_spec

    return "c" if find_spec("millrace.kernels._kernels") else "python"


def _brokers(kinds: Sequence[str], against: Sequence[str]) -> "dict[tuple[str, str | None], Broker]":
    """By name and kernels. A peer that is not installed is passed over with a line."""
    from millrace.bench.peers import MILLRACE, find_peer, this_broker

    found: dict[tuple[str, str | None], Broker] = {(MILLRACE, kind): this_broker(kind) for kind in kinds}
    for name in against:
        peer = find_peer(name)
        if peer is None:
            sys.stderr.write(f"{name} is not installed here: left out\n")
        else:
            found[name, None] = peer
    return found


def _measure(
    steps: "list[tuple[Pattern, Subject]]",
    brokers: "dict[tuple[str, str | None], Broker]",
    generator: "Generator",
    seconds: float,
) -> "list[Sample]":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from millrace.bench import runner

    # Leave as by Ctrl-C, through the places that stop the broker under load.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    samples = []
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=_console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(steps))

        def before(pattern: "Pattern", subject: "Subject") -> None:
            progress.update(task, description=f"{pattern.name}: {subject}")

        for sample in runner.run(steps, brokers, generator, seconds=seconds, before=before):
            samples.append(sample)
            progress.advance(task)
            if sample.error is not None:
                progress.console.print(f"{sample.pattern}: {sample.subject}: {sample.error}", markup=False)
    return samples


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        # In a pipe no line is folded or cut.
        console.width = 240
    return console


def _write(target: str, text: str) -> None:
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json: cannot write {target}: {error.strerror}") from error
