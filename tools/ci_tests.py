"""Runs the tests for CI: what failed gets one second chance, alone.

The first run is parallel, as `make test` is. What fails there runs once more after it has ended, in one
serial process. A test that passes then does not stop the change: it is listed as unsteady, with the row to
add to `tests/UNSTEADY.md`. When more than `SECOND_CHANCES_MAX` tests fail at first, or not all tests could
run, there is no second run: then something is broken. The last line is `N passed, N failed`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

SECOND_CHANCES_MAX = 5
REASON_CHARACTERS_MAX = 120
PAGE = Path("tests/UNSTEADY.md")
SOME_FAILED = 1
"""The only exit status of pytest after which the run is known to be whole and some tests to have failed."""

Outcomes = dict[str, tuple[str, str]]
"""Of each test by its node id: passed, failed or skipped, and the first line of what went wrong."""


class Report(Protocol):
    """What is used of pytest's `TestReport`, and of its `CollectReport`, which has no `when`."""

    nodeid: str
    when: str
    outcome: str
    longreprtext: str
    longrepr: object


class Recorder:
    """A plugin of pytest that keeps each test's outcome. Under xdist it hears the reports of all workers."""

    def __init__(self) -> None:
        self.outcomes: Outcomes = {}
        self.is_whole = True

    def pytest_runtest_logreport(self, report: Report) -> None:
        """A test has up to three reports. One failure among them decides, whatever follows or went before."""
        known = self.outcomes.get(report.nodeid, ("", ""))[0]
        if known == "failed":
            return
        if report.outcome == "failed":
            self.outcomes[report.nodeid] = ("failed", _reason(report))
        elif report.outcome == "skipped" or report.when == "call":
            self.outcomes[report.nodeid] = (report.outcome, "")

    def pytest_collectreport(self, report: Report) -> None:
        """A file that cannot be imported counts as one test that failed, and the run is not whole."""
        if report.outcome == "failed":
            self.outcomes[report.nodeid] = ("failed", _reason(report))
            self.is_whole = False


def _reason(report: Report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = text.strip().splitlines() or ["no message"]
    when = getattr(report, "when", "collection")
    where = "" if when == "call" else f"in {when}: "
    return (where + lines[0].strip())[:REASON_CHARACTERS_MAX]


def record(outcome_file: Path, arguments: list[str]) -> int:
    """Run pytest in this process and write down what became of each test."""
    import pytest

    recorder = Recorder()
    status = pytest.main(arguments, plugins=[recorder])
    outcome_file.write_text(json.dumps(recorder.outcomes))
    # Under xdist the status says only that something failed, though a whole file has not run.
    return int(status if recorder.is_whole else pytest.ExitCode.INTERRUPTED)


def run(arguments: list[str]) -> tuple[int, Outcomes]:
    """Run pytest in a process of its own; returns its exit status and the outcomes."""
    with tempfile.TemporaryDirectory() as directory:
        outcome_file = Path(directory) / "outcomes.json"
        command = [sys.executable, __file__, "--record", str(outcome_file), "--", *arguments]
        status = subprocess.run(command, check=False).returncode
        if not outcome_file.exists():
            return status or 1, {}
        return status, {
            name: (outcome, reason)
            for name, (outcome, reason) in json.loads(outcome_file.read_text()).items()
        }


def failed_in(outcomes: Outcomes) -> list[str]:
    return [name for name, (outcome, _) in outcomes.items() if outcome == "failed"]


def row(name: str, reason: str, day: str, commit: str) -> str:
    """A row of the table in `tests/UNSTEADY.md`; a bar inside a cell would end it."""
    cells = (f"`{name}`", day, commit, reason, "not known yet")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _commit() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "-"


def tell_unsteady(unsteady: dict[str, str]) -> None:
    """The block at the end: what is unsteady, and what to write down."""
    page = PAGE.read_text() if PAGE.exists() else ""
    day, commit = datetime.now(UTC).date().isoformat(), _commit()
    rows = [
        row(name, reason, day, commit)
        for name, reason in unsteady.items()
        if row(name, "", "", "").split(" | ")[0] not in page
    ]
    say("=" * 80)
    say(f"UNSTEADY: {len(unsteady)} failed among the others and passed alone. They do not stop this change:")
    for name, reason in unsteady.items():
        say(f"  {name}: {reason}")
    if rows:
        say(f"Add to the table in {PAGE}, which says what to do about them:")
        for line in rows:
            say(line)
    else:
        say(f"All of them are in {PAGE}, which says what to do about them.")
    say("=" * 80)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def judge(paths: list[str], *, marker: str, jobs: int) -> int:
    """Both runs and the verdict; returns the exit status."""
    started = time.monotonic()
    options = ["-m", marker, "-rfEs"]
    status, outcomes = run(
        [*paths, *options, "-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder"]
    )
    failed = failed_in(outcomes)
    unsteady: dict[str, str] = {}
    if status == SOME_FAILED and 0 < len(failed) <= SECOND_CHANCES_MAX:
        say(f"\nOnce more, alone: {len(failed)} that failed")
        _, again = run([*failed, *options, "-n", "0"])
        unsteady = {name: outcomes[name][1] for name in failed if again.get(name, ("", ""))[0] == "passed"}
        failed = [name for name in failed if name not in unsteady]
        status = SOME_FAILED if failed else 0
    elif len(failed) > SECOND_CHANCES_MAX:
        say(f"\nNo second chance: {len(failed)} failed, more than {SECOND_CHANCES_MAX}")
    elif status:
        say(f"\nNo second chance: not all tests could run (pytest's exit status is {status})")
    if unsteady:
        tell_unsteady(unsteady)
    for name in failed:
        say(f"FAILED {name}")
    count = [outcome for outcome, _ in outcomes.values()].count
    say(
        f"{count('passed') + len(unsteady)} passed, {len(failed)} failed, {count('skipped')} skipped"
        f" in {time.monotonic() - started:.2f}s"
    )
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes of the first run")
    parser.add_argument("--marker", default="", help="pytest's -m")
    parser.add_argument("--record", type=Path, metavar="FILE", help="one run: arguments of pytest follow --")
    parser.add_argument("arguments", nargs="*", help="files and folders with tests")
    options = parser.parse_args()
    if options.record is not None:
        return record(options.record, options.arguments)
    return judge(options.arguments or ["tests"], marker=options.marker, jobs=options.jobs)


if __name__ == "__main__":
    sys.exit(main())
