"""The program `millrace`: finds the command family that is asked for and turns errors into exit codes.

A family is a module in a room beside this file, with a typer application named `app`; its name in FAMILIES is
all the registration there is. Modules are imported when their command is used or the list of commands is
shown.

Exit status: 0 done, 1 failed, 2 wrong use. Errors go to standard error, with --json as an object.
"""

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millrace.cli.shared.common import print_error, print_json_error
from millrace.cli.shared.plain_values import keep_plain
from millrace.errors import ConfigError, MillraceError
from millrace.version import __version__

# The room of each, in the order of the help text.
FAMILIES = {
    "start": "running",
    "init": "running",
    "cluster": "clusters",
    "node": "clusters",
    "demo": "lab",
    "status": "clusters",
    "top": "clusters",
    "pub": "messages",
    "sub": "messages",
    "stream": "streams",
    "group": "streams",
    "client": "access",
    "session": "access",
    "events": "clusters",
    "trace": "messages",
    "pipeline": "streams",
    "user": "access",
    "acl": "access",
    "token": "access",
    "tls": "running",
    "export": "recovery",
    "import": "recovery",
    "backup": "recovery",
    "restore": "recovery",
    "doctor": "recovery",
    "config": "running",
    "context": "running",
    "completion": "running",
    "bench": "lab",
    "sim": "lab",
}
# Of a command whose name is a word of Python.
_MODULES = {"import": "import_stream"}


# What the command line raises for a wrong option, argument or command.
_WRONG_USE: Any = typer.BadParameter.__base__


class Families(TyperGroup):
    """The commands of FAMILIES, each imported on first use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_plain(self)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(FAMILIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in FAMILIES:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        command = typer.main.get_command(import_module(f"millrace.cli.{FAMILIES[cmd_name]}.{module}").app)
        command.name = cmd_name
        keep_plain(command)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except _WRONG_USE as error:
            near = get_close_matches(args[0], FAMILIES, n=1)
            if near and "Did you mean" not in error.message:
                error.message = f"{error.message.rstrip('.')}. Did you mean {near[0]!r}?"
            raise


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
    as_json = "--json" in sys.argv
    try:
        status = app(standalone_mode=False)
    except _WRONG_USE as error:
        if as_json:
            print_json_error(error.format_message(), error.exit_code, {})
        else:
            error.show()
        return int(error.exit_code)
    except typer.Abort:
        sys.stderr.write("Aborted!\n")
        return 1
    except MillraceError as error:
        code = 2 if isinstance(error, ConfigError) else 1
        if as_json:
            print_json_error(str(error), code, getattr(error, "fields", {}))
        else:
            print_error(str(error))
        return code
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(run())
