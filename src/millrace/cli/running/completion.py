"""`millrace completion`: what the Tab key offers in bash, zsh and fish.

The script of each shell calls back with the words typed so far; `words` walks the commands and prints what
may come next, one in each line. Nothing is offered where a file name is as good a guess: the shell does that.
"""

import contextlib
import sys
from typing import Annotated, Any, get_args

import typer

from millrace.cli.shared.common import example, family

app = family("Completion with the Tab key, for your shell.")

_BASH = """\
_millrace() {
    local IFS=$'\\n'
    COMPREPLY=($(millrace completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _millrace millrace
"""
_ZSH = """\
#compdef millrace
_millrace() {
    local -a found
    found=("${(@f)$(millrace completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if (( ${#found} )) && [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _millrace millrace
"""
_FISH = """\
complete -c millrace -a '(millrace completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""


@app.command(epilog=example("millrace completion bash >> ~/.bashrc", 'eval "$(millrace completion bash)"'))
def bash() -> None:
    """Print the script for bash."""
    sys.stdout.write(_BASH)


@app.command(epilog=example("millrace completion zsh >> ~/.zshrc"))
def zsh() -> None:
    """Print the script for zsh; it needs compinit."""
    sys.stdout.write(_ZSH)


@app.command(epilog=example("millrace completion fish > ~/.config/fish/completions/millrace.fish"))
def fish() -> None:
    """Print the script for fish."""
    sys.stdout.write(_FISH)


@app.command(hidden=True, epilog=example("millrace completion words -- stream cr"))
def words(typed: Annotated[list[str] | None, typer.Argument(metavar="WORD")] = None) -> None:
    """Print what may stand in place of the last word."""
    from millrace.cli.main import app as program

    for word in offered(typer.main.get_command(program), typed or [""]):
        sys.stdout.write(f"{word}\n")


def offered(command: Any, typed: list[str]) -> list[str]:
    """What may stand in place of the last word, behind the others, in the order of the help text."""
    *before, last = typed
    option = None
    for word in before:
        child = command.get_command(None, word) if hasattr(command, "list_commands") else None
        if child is not None:
            command = child
        option = None
        if word.startswith("-"):
            named = [one for one in command.params if word in one.opts and not one.is_flag]
            option = named[0] if named else None
    if option is not None:
        found = _choices(option)
    elif last.startswith("-"):
        found = [
            name
            for one in command.params
            if not getattr(one, "hidden", False)
            for name in one.opts
            if name.startswith("--")
        ]
        found.append("--help")
    elif hasattr(command, "list_commands"):
        # No word of the first level is hidden, and to ask would load every family.
        known = getattr(command, "commands", {})
        found = [n for n in command.list_commands(None) if n not in known or not known[n].hidden]
    else:
        found = _names(command)
    return [word for word in found if word.startswith(last)]


def _choices(parameter: Any) -> list[str]:
    """The values that an option or argument can have, where they can be counted."""
    listed = getattr(getattr(parameter, "type", None), "choices", None)
    if listed is not None:
        return [str(getattr(choice, "value", choice)) for choice in listed]
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    kinds = [annotation, *get_args(annotation)]
    members = [one for kind in kinds for one in getattr(kind, "__members__", {}).values()]
    return [str(one.value) for one in members]


def _names(command: Any) -> list[str]:
    """Names that the program knows without asking a node: values of arguments, and contexts."""
    from millrace.cli.shared.contexts import Contexts
    from millrace.errors import ConfigError

    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    found = [choice for one in arguments for choice in _choices(one)]
    if "context" in (command.help or "").split(".")[0] and arguments:
        with contextlib.suppress(ConfigError):
            found += sorted(Contexts().urls)
    return found
