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


def printable(text: str) -> str:
    """Text fit for a terminal: what a name or topic holds must not steer it."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    """The rows as a JSON array, or as a table with these columns."""
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        # In a pipe no line is folded or cut.
        console.width = 1_000_000
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(row[column]))) for column in columns))
    console.print(table)


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
    sys.stderr.write(f"millrace: {printable(message)}\n")


def print_warning(message: str) -> None:
    sys.stderr.write(f"millrace: warning: {printable(message)}\n")
