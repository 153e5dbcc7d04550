"""Write docs/reference/cli.md from the help texts of all commands; --check says whether it is up to date."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from millrace.cli.main import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
_COLUMNS = "80"
_INTRODUCTION = """\
# The command line

<!-- Written by tools/cli_page.py from the commands themselves: change those, then run `make cli-page`. -->

`millrace COMMAND --help` shows the same texts. Every command exits with 0 when it did what was asked, 1
when that failed, and 2 when it was used wrongly. `--json` makes results and errors JSON. Where no `--url` is
said, commands talk to `MILLRACE_URL`, else the [context](#millrace-context) in use, else the local cluster
that runs, else this machine's default ports. `eval "$(millrace completion bash)"` makes the Tab key work.
"""


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command and family, in the order of the help text."""
    root: Any = typer.main.get_command(app)
    for name in root.list_commands(None):
        yield (name,)
        family = root.get_command(None, name)
        for child, command in getattr(family, "commands", {}).items():
            if not command.hidden:
                yield (name, child)


def help_text(words: tuple[str, ...]) -> str:
    """What `millrace WORDS --help` prints in a terminal of 80 columns."""
    command: Any = typer.main.get_command(app)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        command.main(args=[*words, "--help"], prog_name="millrace", standalone_mode=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def page() -> str:
    os.environ["COLUMNS"] = _COLUMNS
    parts = [_INTRODUCTION, f"```\n{help_text(())}\n```\n"]
    for words in commands():
        marks = "#" * (1 + len(words))
        parts.append(f"{marks} millrace {' '.join(words)}\n\n```\n{help_text(words)}\n```\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" in arguments:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.stderr.write(f"{PAGE.name} is not what the commands say: run `make cli-page`\n")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
