"""`millrace sim`: run seeds of the simulator, replay one, or search for planted bugs."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.cli.shared.common import AsJson, example, print_json, print_rows, single
from millrace.errors import ConfigError

if TYPE_CHECKING:
    from millrace.lab.sim.campaign import Slice
    from millrace.lab.sim.verdict import RunResult

app = single()


@app.command(
    epilog=example(
        "millrace sim --seeds 200",
        "millrace sim --seeds 5000 --jobs 2 --resume campaign.json",
        "millrace sim --seed 4711 --trace",
        "millrace sim --mode cluster --seeds 20",
        "millrace sim --mode primary-backup --mutation all",
        "millrace sim --mode leaderless --seeds 200",
        "millrace sim --mode routed --seeds 200",
        "millrace sim --mutation all",
        "millrace sim --mutation vote_twice --seed 69 --trace",
    )
)
def sim(
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="The first seed. Without --seeds only this one is run."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="What is simulated: the machines of raft, primary-backup, leaderless or routed, or a "
            "cluster of whole nodes. Without it raft, and every mode for --mutation all.",
        ),
    ] = None,
    mutation: Annotated[
        str | None,
        typer.Option("--mutation", help="Plant this bug and search for it; `all`: each bug in turn."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print every step of one seed.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=256, help="How many processes.")] = 1,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="File of a campaign: go on behind its last seed."),
    ] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=1, help="Stop after this time.")] = None,
    json: AsJson = False,
) -> None:
    """Run simulated clusters with faults; one seed is one whole run. Exit 1 if a promise is broken."""
    from millrace.lab.sim.campaign import MODES
    from millrace.lab.sim.planted.registry import BUGS

    if mode not in (None, *MODES):
        raise ConfigError(f"there is no mode {mode}; there is {', '.join(MODES)}")
    asked = [mode] if mode is not None else list(BUGS)
    places = [one for one in asked if mutation in ("all", *BUGS[one])]
    if mutation is not None and not places:
        names = ", ".join(name for one in asked for name in BUGS[one])
        raise ConfigError(f"there is no mutation {mutation}; there are {names}")
    mode = mode or (places[0] if mutation is not None else "raft")
    if seed is not None and seeds is None and mutation != "all":
        _replay(seed, mutation, mode, show_all=trace, as_json=json)
    elif trace:
        raise ConfigError("--trace shows one seed: name it with --seed and leave --seeds out")
    elif mutation is not None:
        _search(mutation, places, seed or 0, seeds, jobs, as_json=json)
    else:
        _campaign(seeds or 200, seed, mode, jobs, resume, seconds, as_json=json)


def _replay(seed: int, mutation: str | None, mode: str, *, show_all: bool, as_json: bool) -> None:
    from millrace.lab.sim.campaign import replay

    mutations = frozenset({mutation} if mutation else ())
    result = replay(seed, mutations, _write_line if show_all else None, mode=mode)
    if as_json:
        print_json(asdict(result))
    elif result.is_clean:
        _write_line(
            f"seed {seed}: clean, {result.operations} operations, {result.simulated_s:.0f} simulated s, "
            f"{result.faults} faults, {result.messages} messages; trace {result.trace_hash}"
        )
    else:
        _report(result, mode, mutation)
    if not result.is_clean:
        raise typer.Exit(1)


def _report(result: "RunResult", mode: str, mutation: str | None = None) -> None:
    """Everything needed to see it again, and the last lines of the trace."""
    from millrace.lab.sim.campaign import code_commit, code_sources

    for line in result.tail:
        _write_line(line)
    _write_line(f"seed {result.seed} broke `{result.rule}`: {result.detail}")
    _write_line(f"commit {code_commit()}, sources {code_sources(mode)}, trace {result.trace_hash}")
    more = ("" if mode == "raft" else f" --mode {mode}") + (f" --mutation {mutation}" if mutation else "")
    _write_line(f"replay: millrace sim --seed {result.seed}{more} --trace")


def _search(
    name: str, modes: list[str], first_seed: int, seeds: int | None, jobs: int, *, as_json: bool
) -> None:
    from millrace.lab.sim.mutations import SEEDS_MAX, search_all
    from millrace.lab.sim.planted.registry import BUGS

    rows = []
    for mode in modes:
        names = list(BUGS[mode]) if name == "all" else [name]
        for caught in search_all(
            names, first_seed=first_seed, seeds_max=seeds or SEEDS_MAX, jobs=jobs, mode=mode
        ):
            rows.append({"mode": mode, **asdict(caught)})
            state = f"{caught.rule} (seed {caught.seed})" if caught.is_caught else "NOT CAUGHT"
            sys.stderr.write(f"{mode} {caught.name}: {caught.seeds} seeds, {state}\n")
    print_rows(rows, ("mode", "name", "seeds", "seed", "rule", "description"), as_json=as_json)
    if any(row["seed"] is None for row in rows):
        raise typer.Exit(1)


def _campaign(
    count: int,
    first_seed: int | None,
    mode: str,
    jobs: int,
    resume: Path | None,
    seconds: float | None,
    *,
    as_json: bool,
) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from millrace.lab.sim.campaign import CampaignFile, replay, run_slice

    file = CampaignFile(resume) if resume is not None else None
    if first_seed is None:
        first_seed = file.next_seed(mode) if file is not None else 0
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=count)

        def show(current: "Slice", _: "RunResult") -> None:
            text = f"seeds  {current.operations:,} operations  {len(current.violations)} violations"
            progress.update(task, completed=current.seeds, description=text)

        done = run_slice(
            range(first_seed, first_seed + count),
            mode=mode,
            jobs=jobs,
            file=file,
            seconds_max=seconds,
            on_result=show,
        )
    if done.violations and not as_json:
        _report(replay(done.violations[0].seed, frozenset(), mode=mode), mode)
    _summary([*(file.slices if file is not None else ()), done], done, as_json=as_json)
    if done.violations:
        raise typer.Exit(1)


def _summary(slices: "list[Slice]", done: "Slice", *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(one) for one in slices])
        return
    for found in done.violations:
        _write_line(f"seed {found.seed} broke `{found.rule}`: {found.detail}")
    _write_line(
        f"{done.seeds:,} seeds from {done.first_seed:,} ({done.mode}): {done.operations:,} operations, "
        f"{done.faults:,} faults, {done.simulated_s / 3600:.1f} simulated hours in {done.wall_s:.0f} s, "
        f"{len(done.violations)} violations; commit {done.commit}, sources {done.sources}"
    )
    if len(slices) > 1:
        _write_line(
            f"all slices: {sum(one.seeds for one in slices):,} seeds, "
            f"{sum(one.operations for one in slices):,} operations, "
            f"{sum(one.simulated_s for one in slices) / 3600:.1f} simulated hours, "
            f"{sum(one.wall_s for one in slices) / 3600:.2f} wall hours, "
            f"{sum(len(one.violations) for one in slices)} violations"
        )


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
