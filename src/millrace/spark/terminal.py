"""A supervised pipeline in the terminal: a bar for each query, or a line now and then in a pipe."""

import re
import signal
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from millrace.errors import ConfigError
from millrace.spark.supervisor import Plan, State, Supervisor

_LINE_EVERY_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def run_in_terminal(plan: Plan) -> None:
    """Run to the end, or until Ctrl-C or SIGTERM. ConfigError for a wrong plan, LocalError if it gives up."""
    if not _NAME.fullmatch(plan.name):
        raise ConfigError(f"{plan.name!r} is not a name for a pipeline; give one with --name")
    for one in (*plan.settings, *plan.configuration):
        if "=" not in one:
            raise ConfigError(f"{one!r} is not KEY=VALUE")
    console = Console(stderr=True)
    view = _Bars(console, plan.name) if console.is_terminal else _Lines(plan.name)
    supervisor = Supervisor(plan, view.show)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: supervisor.stop())
    with view:
        supervisor.run()


class _Bars:
    """How much of what is there has been read, by query."""

    def __init__(self, console: Console, name: str) -> None:
        self._name = name
        self._said = ""
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rows]:>12,} rows  {task.fields[rate]:>9,.0f}/s  {task.fields[lag]}"),
            console=console,
        )

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, state: State) -> None:
        words = _words(state)
        if words != self._said:
            self._said = words
            self._progress.console.print(f"{self._name}: {words}", markup=False)
        for query in state.queries.values():
            if query.name not in self._tasks:
                self._tasks[query.name] = self._progress.add_task(query.name, rows=0, rate=0.0, lag="")
            lag = "" if query.lag is None else f"{query.lag:,} wait"
            self._progress.update(
                self._tasks[query.name],
                total=max(1, query.rows + (query.lag or 0)),
                completed=max(query.rows, 0 if query.lag else 1),
                rows=query.rows,
                rate=query.rows_per_s,
                lag=lag,
            )


class _Lines:
    """The same for a log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said = ""
        self._next_s = 0.0

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, state: State) -> None:
        words, now_s = _words(state), time.monotonic()
        is_due = now_s >= self._next_s and bool(state.queries)
        if words == self._said and not is_due:
            return
        self._said, self._next_s = words, now_s + _LINE_EVERY_S
        queries = ", ".join(
            f"{query.name} {query.rows} rows" + ("" if query.lag is None else f" ({query.lag} wait)")
            for query in state.queries.values()
        )
        sys.stderr.write(f"pipeline {self._name}: {words}{'; ' if queries else ''}{queries}\n")
        sys.stderr.flush()


def _words(state: State) -> str:
    words = state.state + (f", restarted {state.restarts} times" if state.restarts else "")
    return f"{words}: {state.error}" if state.error else words
