"""The program `millrace`: finds the command family that is asked for and turns errors into exit codes.

A family is a module beside this one with a typer application named `app`; its name in FAMILIES is all the
registration there is. Modules are imported when their command is used or the list of commands is shown.

Exit status: 0 done, 1 failed, 2 wrong use.
"""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millrace.cli.common import print_error
from millrace.errors import ConfigError, MillraceError
from millrace.version import __version__

# In the order of the help text.
FAMILIES = (
    "start",
    "init",
    "cluster",
    "node",
    "demo",
    "status",
    "pub",
    "sub",
    "stream",
    "group",
    "pipeline",
    "user",
    "acl",
    "token",
    "config",
    "bench",
    "sim",
)


class Families(TyperGroup):
    """The commands of FAMILIES, each imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(FAMILIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in FAMILIES:
            return None
        command = typer.main.get_command(import_module(f"millrace.cli.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=Families,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"millrace {__version__}\n")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version.")
    ] = False,
) -> None:
    """Millrace: one broker from devices to Spark."""


def run() -> int:
    """The entry point."""
    if not __debug__:
        print_error("python -O switches off the checks that keep data safe; run without -O")
        return 2
    try:
        app()
    except ConfigError as error:
        print_error(str(error))
        return 2
    except MillraceError as error:
        print_error(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
