"""What the commands share: options, output as a table or JSON, and where the users file is.

A command parses, calls and prints; it decides nothing. Modules beside typer are imported inside functions:
a command line that only shows its version or a help text must not load the broker.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.shared.tables import printable

if TYPE_CHECKING:
    from millrace.node.config import Config

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Configuration (TOML).")]
DataDirectory = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Data directory of the node (node.data).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, as section.key=value.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def family(help: str) -> typer.Typer:
    """A group of commands, such as `millrace user`."""
    app = typer.Typer(help=help, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    # Typer makes a bare command of a group with one member unless it has a callback.
    app.callback()(lambda: None)
    return app


def single() -> typer.Typer:
    """A family of one command, such as `millrace config`."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def example(*lines: str) -> str:
    """The end of a help text: command lines to copy."""
    return "\b\n" + "\n".join(["Example:", *(f"  {line}" for line in lines)])


def load_config(
    config: Path | None,
    *,
    data: Path | None = None,
    users: Path | None = None,
    overrides: Sequence[str] | None = None,
) -> "Config":
    """The configuration from all sources, the named options above the rest."""
    from millrace.node.config import load

    named = [*(overrides or ())]
    if data is not None:
        named.append(f"node.data={data}")
    if users is not None:
        named.append(f"access.users_file={users}")
    return load(config, os.environ, named)


def duration_s(text: str) -> float:
    """`100ms`, `1.5s`, `1h30m`; a plain number is seconds."""
    from millrace.errors import ConfigError
    from millrace.settings import quantity

    try:
        return quantity(text, "s")
    except ValueError:
        raise ConfigError(f"{text!r} is not a time such as 100ms, 1.5s or 2m") from None


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    as_json: bool,
    optional: Sequence[str] = (),
) -> None:
    """The rows as a JSON array, or as a table with these columns. In a narrow terminal the optional ones are
    left out, the first of them first."""
    if as_json:
        print_json(rows)
        return
    from millrace.cli.shared.tables import print_table

    print_table(rows, columns, optional=optional)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. A no ends the program with status 1; where there is no terminal to
    ask at, only `yes` lets it go on, and otherwise it is wrong use."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        from millrace.errors import ConfigError

        raise ConfigError(f"{question} There is no terminal to ask at: say --yes to go on")
    if not typer.confirm(printable(question), err=True):
        sys.stderr.write("millrace: nothing was changed\n")
        raise typer.Exit(1)


def print_missing(nodes: Sequence[str]) -> None:
    """Say which nodes did not answer for what they know."""
    if nodes:
        print_warning(f"no answer from {', '.join(nodes)}: what they know is missing here")


def print_line() -> None:
    """Between two tables."""
    sys.stdout.write("\n")


def print_done(sentence: str, *, as_json: bool, **facts: Any) -> None:
    """The result of a change: a sentence, or the facts as a JSON object."""
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(printable(sentence) + "\n")


def print_error(message: str) -> None:
    _complain(f"millrace: {printable(message)}")


def print_json_error(message: str, status: int, fields: Mapping[str, Any]) -> None:
    """The error as a JSON object in one line of standard error, with what the node said about it."""
    sys.stderr.write(
        json.dumps({**fields, "error": message, "exit_status": status}, ensure_ascii=False) + "\n"
    )


def print_warning(message: str) -> None:
    _complain(f"millrace: warning: {printable(message)}")


def _complain(text: str) -> None:
    """To standard error; on a terminal lines end between words."""
    if sys.stderr.isatty():
        import shutil
        import textwrap

        columns = shutil.get_terminal_size().columns
        text = textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)
    sys.stderr.write(f"{text}\n")
