"""Words of the command line that need no conversion.

typer hands every value to pydantic, and loading that takes longer than everything else a short command does.
A str that is to be a str, a path without conditions, and a default that nobody changed do without. Whatever
else is said still goes that way. Where typer is built otherwise, nothing changes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

_MADE_OF: dict[Any, Callable[[Any], Any]] = {str: str, Path: Path, list[str]: list}
# What an option can ask for beyond its type.
_RULES = ("parser", "click_type", "exists", "resolve_path", "allow_dash", "writable")


class _Plain:
    """In place of typer's conversion of one parameter, and before it."""

    def __init__(self, kind: Any, make: Callable[[Any], Any] | None) -> None:
        self._kind = kind
        self._make = make

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._make is not None:
            return self._make(value)
        if type(value) is self._kind and value is param.default:
            return value
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def keep_plain(command: Any) -> None:
    """Of a command, or of all commands of a family."""
    for inner in getattr(command, "commands", {}).values():
        keep_plain(inner)
    for parameter in command.params:
        _convert(parameter)
    help_option = command.get_help_option
    command.get_help_option = lambda ctx: _convert(help_option(ctx))


def _convert(parameter: Any) -> Any:
    if getattr(parameter, "_runtime_param", parameter) is not None:
        return parameter
    described = parameter.type_descriptor
    has_rules = any(getattr(described.parameter_info, rule, None) for rule in _RULES)
    make = None if has_rules else _MADE_OF.get(described.annotation)
    parameter._runtime_param = _Plain(described.annotation, make)
    return parameter
