"""`millrace bench`: this broker and its peers under the same load."""

import difflib
import json as json_module
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.shared.common import example, family, print_rows
from millrace.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from millrace.lab.bench.generator import Generator
    from millrace.lab.bench.patterns import Pattern
    from millrace.lab.bench.peers import Broker, Running
    from millrace.lab.bench.runner import Sample, Subject

app = family("Measure this broker beside its peers.")

_ROUNDS_MAX = 1000
_SECONDS_MAX = 600.0

Rounds = Annotated[int, typer.Option(min=1, max=_ROUNDS_MAX, help="Rounds; medians are shown.")]
Patterns = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Only these patterns, with commas between them.")
]
Kernels = Annotated[
    str | None, typer.Option(metavar="KINDS", help="Kernels of this broker: c, python or both.")
]
Seconds = Annotated[float, typer.Option(min=0.1, max=_SECONDS_MAX, help="Measured time of each run.")]
JsonFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write everything as JSON; - is standard output.")
]


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
    rounds: Rounds = 3,
    patterns: Patterns = None,
    qos: Annotated[str, typer.Option(metavar="LEVELS", help="Only patterns of these QoS.")] = "0,1,2",
    versions: Annotated[str, typer.Option(metavar="VERSIONS", help="MQTT versions: 3, 5.")] = "3,5",
    kernels: Kernels = None,
    seconds: Seconds = 1.6,
    json: JsonFile = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the patterns and their targets.")] = False,
) -> None:
    """Load this broker and any peer installed here with the same patterns, in turn, and compare."""
    from millrace.lab.bench import report, runner
    from millrace.lab.bench.generator import build
    from millrace.lab.bench.peers import PEERS, running

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

    def start(pattern: "Pattern", subject: "Subject") -> "AbstractContextManager[Running]":
        return running(brokers[subject.broker, subject.kernels], durable=pattern.durable)

    samples = _measure(steps, start, build(), seconds)
    numbers = {name: broker.version for (name, _), broker in brokers.items()}
    _report(samples, numbers, seconds, rounds, json)


@app.command(
    epilog=example(
        "millrace bench cluster",
        "millrace bench cluster --patterns cluster-window --rounds 5 --json result.json",
    )
)
def cluster(
    against: Annotated[
        str, typer.Option(metavar="PEERS", help="Clusters to compare with, where they are installed.")
    ] = "jetstream-sync,jetstream",
    rounds: Rounds = 3,
    patterns: Patterns = None,
    kernels: Kernels = None,
    seconds: Seconds = 2.0,
    json: JsonFile = None,
) -> None:
    """Durable publishing on three nodes: this broker and NATS JetStream in turn, CPU over all nodes."""
    from millrace.lab.bench import clusters, runner
    from millrace.lab.bench.generator import build
    from millrace.lab.bench.patterns import BY_NAME, CLUSTER_PATTERNS
    from millrace.lab.bench.peers import MILLRACE

    known = tuple(pattern.name for pattern in CLUSTER_PATTERNS)
    chosen = [BY_NAME[name] for name in (_choices(patterns, known, "--patterns") if patterns else known)]
    kinds = _choices(kernels, ("c", "python"), "--kernels") if kernels else [_best_kernels()]
    found: dict[tuple[str, str | None], clusters.ClusterKind]
    found = {(MILLRACE, kind): clusters.this_cluster(kind) for kind in kinds}
    for name in _choices(against, clusters.CLUSTER_PEERS, "--against") if against else []:
        peer = clusters.find_jetstream(name)
        if peer is None:
            sys.stderr.write("nats-server is not installed here: JetStream is left out\n")
            break
        found[name, None] = peer
    measured = runner.subjects([runner.MQTT_3], kinds, [name for name, kind in found if kind is None])
    if json is not None:
        _write(json, "")

    def start(pattern: "Pattern", subject: "Subject") -> "AbstractContextManager[Running]":
        return clusters.running(found[subject.broker, subject.kernels])

    samples = _measure(runner.plan(chosen, measured, rounds), start, build(), seconds)
    versions = {name: kind.version for (name, _), kind in found.items()}
    _report(samples, versions, seconds, rounds, json)


@app.command(
    epilog=example("millrace bench log", "millrace bench log --size 100MiB --messages 50000 --json"),
)
def log(
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of the log that a restart finds.")] = "1GiB",
    messages: Annotated[
        int, typer.Option(min=1000, max=100_000_000, help="Messages that readers catch up with.")
    ] = 500_000,
    directory: Annotated[
        Path | None, typer.Option(help="Where the log of the restart is kept meanwhile.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Blocks made and read per second, readers that catch up from the log, and restart time by log size."""
    import tempfile
    from dataclasses import asdict

    from millrace.lab.bench import log_bench
    from millrace.lab.bench.peers import this_broker

    size_bytes = _bytes(size)
    broker = this_broker(_best_kernels())
    rows = log_bench.block_rows() + log_bench.catch_up_rows(broker, messages)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", dir=directory) as place:
        rows += log_bench.restart_rows(broker, size_bytes, Path(place))
    shown = [asdict(row) | ({} if json else {"value": _figure(row.value)}) for row in rows]
    print_rows(shown, ("figure", "value", "unit", "note"), as_json=json)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _bytes(text: str) -> int:
    """A number of bytes, with or without a unit."""
    from millrace.settings import quantity

    try:
        found = quantity(text, "bytes")
    except ValueError:
        found = 0
    if not found or not isinstance(found, int):
        raise ConfigError(f"--size: {text!r} is not a size such as 100MiB or 1GB")
    return found


@app.command(
    epilog=example(
        "millrace bench scale",
        "millrace bench scale --rows new-topics,retained-set",
        "millrace bench scale --large --plot growth.svg",
    )
)
def scale(
    rows: Annotated[str | None, typer.Option(metavar="NAMES", help="Only these rows.")] = None,
    against: Annotated[str, typer.Option(metavar="PEER", help="mosquitto, or nothing.")] = "mosquitto",
    large: Annotated[
        bool,
        typer.Option(
            "--large", help="Go up to a million of each, by powers of ten; this needs some GiB of memory."
        ),
    ] = False,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the growth as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What topics, filters, retained messages, sessions, connections, starts and idle streams cost each, and
    how the cost grows. The row idle-streams-of-three takes some minutes and is run where --rows names it.

    Ends with status 1 where one of ours costs more than twice as much at the largest number as at the number
    before.
    """
    from dataclasses import asdict

    from millrace.lab.bench import curves, growth, peers

    known = {row.name: row for row in growth.ROWS}
    usual = ",".join(name for name, row in known.items() if not row.is_long)
    chosen = [known[name] for name in _choices(rows or usual, list(known), "--rows")]
    brokers = [peers.this_broker(_best_kernels())]
    if against:
        peer = peers.find_peer(_choices(against, [peers.MOSQUITTO], "--against")[0])
        if peer is None:
            sys.stderr.write(f"{against} is not installed: left out\n")
        else:
            brokers.append(peer)
    if plot is not None:
        _write(plot, "")
    costs = []
    for row in chosen:
        for units in row.sizes(is_large=large):
            for broker in brokers[:1] if row.is_ours_alone else brokers:
                sys.stderr.write(f"{row.name}: {units:,} at {broker.name}\n")
                costs.append(growth.measure(row, broker, units))
    shown = [asdict(cost) for cost in costs] if json else growth.table(costs)
    print_rows(shown, tuple(shown[0]), as_json=json)
    if plot is not None:
        _write(plot, curves.plot(costs))
    grown = [
        row
        for (row, broker), sizes in growth.by_row(costs).items()
        if broker == peers.MILLRACE and growth.growth(sizes) > growth.GROWTH_MAX
    ]
    if grown:
        sys.stderr.write(f"grows faster than the work: {', '.join(grown)}\n")
        raise typer.Exit(1)


@app.command(
    epilog=example(
        "millrace bench fleet", "millrace bench fleet --devices 1000 --rate 500 --plot clients.svg"
    )
)
def fleet(
    devices: Annotated[
        int, typer.Option(min=1, max=20_000, help="Devices, each with its own topic.")
    ] = 5_000,
    rate: Annotated[int, typer.Option(min=1, max=1_000_000, help="Messages a second in all.")] = 2_000,
    patterns: Patterns = None,
    against: Annotated[str, typer.Option(metavar="PEER", help="mosquitto, or nothing.")] = "mosquitto",
    rounds: Rounds = 3,
    seconds: Seconds = 4.0,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the 100 clients as SVG.")] = None,
    json: JsonFile = None,
) -> None:
    """What a message of a fleet of devices costs, and of 100 clients at QoS 2, beside mosquitto."""
    from millrace.lab.bench import fleet as fleets
    from millrace.lab.bench import peers, runner
    from millrace.lab.bench.generator import build

    known = {pattern.name: pattern for pattern in fleets.patterns(devices, rate)}
    chosen = [known[name] for name in (_choices(patterns, tuple(known), "--patterns") if patterns else known)]
    brokers = _brokers(
        [_best_kernels()], _choices(against, [peers.MOSQUITTO], "--against") if against else []
    )
    measured = runner.subjects(
        [runner.MQTT_3], [_best_kernels()], [name for name, kind in brokers if kind is None]
    )
    for file in (plot, json):
        if file is not None:
            _write(file, "")

    def start(pattern: "Pattern", subject: "Subject") -> "AbstractContextManager[Running]":
        return peers.running(brokers[subject.broker, subject.kernels], durable=pattern.durable)

    samples = _measure(runner.plan(chosen, measured, rounds), start, build(), seconds)
    results = runner.summarize(samples)
    rows = fleets.rows(results)
    if json != "-":
        print_rows(rows, tuple(rows[0]), as_json=False)
    if json is not None:
        _write(json, json_module.dumps(rows, indent=2) + "\n")
    if plot is not None:
        _write(plot, fleets.plot(results))
    if any(result.errors for result in results if result.subject.is_ours):
        raise typer.Exit(1)


@app.command(epilog=example("millrace bench trace", "millrace bench trace --nodes 1 --messages 1000"))
def trace(
    nodes: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Numbers of nodes to measure: 1, 3 or both.")
    ] = "1,3",
    messages: Annotated[int, typer.Option(min=10, max=1_000_000, help="Messages of each run.")] = 500,
    json: JsonFile = None,
) -> None:
    """One durable QoS 1 publish from its read to its PUBACK: microseconds and calls of every step."""
    from dataclasses import asdict

    from millrace.lab.bench.trace import publish

    cases = dict(zip(("1", "3"), publish.CASES, strict=True))
    if json is not None:
        _write(json, "")
    steps, wholes = [], []
    for number in _choices(nodes, tuple(cases), "--nodes"):
        sys.stderr.write(f"{cases[number]}: {messages} messages, three times\n")
        found, whole = publish.measure(cases[number], _best_kernels(), messages)
        steps += found
        wholes.append(whole)
    if json != "-":
        rows = publish.rows(steps)
        print_rows(rows, tuple(rows[0]), as_json=False)
        untraced = [
            {"nodes": one.case, "p50 us": f"{one.p50_us:.0f}", "CPU us, all nodes": f"{one.cpu_us:.0f}"}
            for one in wholes
        ]
        print_rows(untraced, tuple(untraced[0]), as_json=False)
    if json is not None:
        found_all = {"steps": [asdict(one) for one in steps], "untraced": [asdict(one) for one in wholes]}
        _write(json, json_module.dumps(found_all, indent=2) + "\n")


@app.command(epilog=example("millrace bench workers", "millrace bench workers --patterns qos0-pairs"))
def workers(
    rounds: Rounds = 3,
    seconds: Seconds = 2.0,
    patterns: Patterns = None,
    json: JsonFile = None,
) -> None:
    """One worker and two on this machine, each held to half a core: what the second one brings."""
    from dataclasses import asdict

    from millrace.lab.bench import workers_bench
    from millrace.lab.bench.generator import build

    cases = workers_bench.CASES if patterns is None else tuple(one.name for one in _patterns(patterns))
    generator = build()
    points = []
    for case in cases:
        for count in workers_bench.COUNTS:
            sys.stderr.write(f"{case}: {count} workers\n")
            points.append(workers_bench.measure(case, count, generator, rounds=rounds, seconds=seconds))
    rows = workers_bench.rows(points)
    if json != "-":
        print_rows(rows, tuple(rows[0]), as_json=False)
    if json is not None:
        _write(json, json_module.dumps([asdict(point) for point in points], indent=2) + "\n")


@app.command(
    epilog=example("millrace bench routed", "millrace bench routed --plot routed.svg --json routed.json")
)
def routed(
    rounds: Rounds = 3,
    seconds: Seconds = 2.0,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Draw the figures as SVG.")] = None,
    json: JsonFile = None,
) -> None:
    """One, two and three nodes of a routed stream, each held to a quarter of a core: what a message costs."""
    from dataclasses import asdict

    from millrace.lab.bench import scaling
    from millrace.lab.bench.generator import build

    generator = build()
    points = []
    for case, nodes, placement in scaling.steps():
        sys.stderr.write(f"{case.title}: {nodes} nodes, {placement}\n")
        points.append(scaling.measure(case, nodes, placement, generator, rounds=rounds, seconds=seconds))
    rows = scaling.rows(points)
    if json != "-":
        print_rows(rows, tuple(rows[0]), as_json=False)
    if json is not None:
        _write(json, json_module.dumps([asdict(point) for point in points], indent=2) + "\n")
    if plot is not None:
        _write(plot, scaling.plot(points))
    scaling.check(points)


@app.command(
    epilog=example(
        "millrace bench spark",
        "millrace bench spark --case count,available --rows 3000000",
        "millrace bench spark --against millrace-java,kafka --case batches",
        "millrace bench spark --against kafka --rows 100000 --rounds 1 --json spark.json",
    )
)
def spark(
    against: Annotated[
        str,
        typer.Option(
            metavar="PEERS", help="kafka, kafka-tuned, millrace-java (of the jar), by comma; '' for none."
        ),
    ] = "kafka,kafka-tuned",
    case: Annotated[
        str,
        typer.Option(
            metavar="CASES",
            help="Some of count, available, parse, copy, batches, write, by comma; empty: all.",
        ),
    ] = "",
    rows: Annotated[int, typer.Option(min=1000, max=1_000_000_000, help="Rows of each case.")] = 1_000_000,
    rounds: Rounds = 3,
    write_rounds: Annotated[
        int, typer.Option(min=1, max=_ROUNDS_MAX, help="Writes to one stream, one after the other.")
    ] = 20,
    json: JsonFile = None,
) -> None:
    """Spark reads and writes this broker and Kafka in turn: rates, micro-batches, CPU of a row, disk."""
    from millrace.lab.bench import report, spark_bench
    from millrace.lab.bench.kafka import SPARK_PEERS, fetch_jars
    from millrace.lab.bench.peers import MILLRACE
    from millrace.lab.bench.spark_sides import PAYLOAD_BYTES, PEERS

    wanted = _choices(against, PEERS, "--against") if against else []
    cases = _choices(case, tuple(spark_bench.CASES), "--case") if case else list(spark_bench.CASES)
    is_kafka = any(name in SPARK_PEERS for name in wanted)
    jars = fetch_jars() if is_kafka else None
    if is_kafka and jars is None:
        sys.stderr.write("mvn, which fetches Kafka's jars, is not installed here: Kafka is left out\n")
    if json is not None:
        _write(json, "")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    def before(case: str, side: str, number: int) -> None:
        sys.stderr.write(f"{case}: {side}, round {number}\n")

    samples = list(
        spark_bench.measure(
            kernels=_best_kernels(),
            jars=jars,
            against=wanted,
            rows=rows,
            rounds=rounds,
            write_rounds=write_rounds,
            before=before,
            cases=cases,
        )
    )
    found = spark_bench.figures(samples, PAYLOAD_BYTES)
    shown = spark_bench.table(found, MILLRACE)
    if json != "-":
        print_rows(shown, tuple(shown[0]), as_json=False)
    if json is not None:
        counts = {"rows": rows, "rounds": rounds, "write_rounds": write_rounds}
        document = {"machine": report.machine(), **counts, **spark_bench.document(found, samples)}
        _write(json, json_module.dumps(document, indent=2) + "\n")


def _report(
    samples: "list[Sample]", versions: dict[str, str], seconds: float, rounds: int, json: str | None
) -> None:
    """Tables for people, everything for programs, and the exit status."""
    from millrace.lab.bench import report, runner

    results = runner.summarize(samples)
    document = report.document(
        samples=samples, results=results, versions=versions, seconds=seconds, rounds=rounds
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
    from millrace.lab.bench.patterns import BY_NAME, PATTERNS

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
    from millrace.lab.bench.peers import MILLRACE, find_peer, this_broker

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
    start: "Callable[[Pattern, Subject], AbstractContextManager[Running]]",
    generator: "Generator",
    seconds: float,
) -> "list[Sample]":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from millrace.lab.bench import runner

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

        for sample in runner.measure(steps, start, generator, seconds=seconds, before=before):
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
        raise ConfigError(f"cannot write {target}: {error.strerror}") from error
