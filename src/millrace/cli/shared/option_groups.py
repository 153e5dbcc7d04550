"""Options that several commands share, said once: as a dataclass, or as settings.

    @app.command()
    @takes(UsersOptions)
    def remove(name: Name, where: UsersOptions) -> None: ...

The command line shows the fields of the dataclass as options of the command, behind those of its own, and the
command gets them in one argument.

    @app.command()
    @asks_for(StreamSpec, without=("name",))
    def alter(name: Name, given: Given) -> None: ...

Here the options are the settings, with their own descriptions, checks and sentences, and the command gets
what was said as the HTTP door takes it.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from millrace.errors import ConfigError, LocalError

if TYPE_CHECKING:
    from millrace.settings import Field, Settings

Command = Callable[..., None]
Given = dict[str, Any]

_METAVARS = {"s": "DURATION", "ms": "DURATION", "bytes": "SIZE"}
_KINDS_SHOWN = 3


def takes(*groups: type) -> Callable[[Command], Command]:
    """Give a command these groups of options; each is the type of one of its arguments."""

    def decorate(command: Command) -> Command:
        for name, hint in get_type_hints(command, include_extras=True).items():
            if hint in groups:
                command = _with_options(command, name, _group_options(hint), partial(_make_group, hint))
        return command

    return decorate


def _make_group(group: type, arguments: dict[str, Any], values: dict[str, Any]) -> Any:
    return group(**values)


def asks_for(
    kind: "type[Settings]", *, without: tuple[str, ...] = (), at_least_one: bool = False
) -> Callable[[Command], Command]:
    """Give a command these settings as options; its argument `given` has those that were said, checked. With
    `at_least_one` a command line without any of them is wrong use."""
    leaves = {"_".join(leaf.path): leaf for leaf in _leaves(kind) if leaf.path[0] not in without}

    def make(arguments: dict[str, Any], values: dict[str, Any]) -> Given:
        said = {name: value for name, value in values.items() if value is not None and value != []}
        if at_least_one and not said:
            options = ", ".join(leaf.field.option for leaf in leaves.values())
            raise ConfigError(f"say what to change, with one or more of: {options}")
        given: Given = {}
        try:
            for name, text in said.items():
                table = given
                for part in leaves[name].path[:-1]:
                    table = table.setdefault(part, {})
                table[leaves[name].path[-1]] = _read(leaves[name].field, text)
        except LocalError as error:
            raise ConfigError(kind.label(arguments["name"]) + str(error)) from None
        return given

    options = [_setting_option(name, leaf) for name, leaf in leaves.items()]
    return lambda command: _with_options(command, "given", options, make)


def _with_options(
    command: Command,
    holder: str,
    options: list[inspect.Parameter],
    make: Callable[[dict[str, Any], dict[str, Any]], Any],
) -> Command:
    """The command with options in place of its argument `holder`, which `make` makes of the other arguments
    and the values of the options."""
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != holder
    ] + options

    @wraps(command)
    def run(**arguments: Any) -> None:
        values = {option.name: arguments.pop(option.name) for option in options}
        arguments[holder] = make(arguments, values)
        command(**arguments)

    del run.__wrapped__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _group_options(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


class _Leaf(NamedTuple):
    """A setting that is no table."""

    path: tuple[str, ...]
    field: "Field"
    kinds: tuple[str, ...]


def _leaves(kind: "type[Settings]") -> Iterator[_Leaf]:
    for field in kind.fields().values():
        if hasattr(field.type, "fields"):
            for leaf in _leaves(field.type):
                yield _Leaf((field.name, *leaf.path), leaf.field, leaf.kinds or field.kinds)
        else:
            yield _Leaf((field.name,), field, field.kinds)


def _setting_option(name: str, leaf: _Leaf) -> inspect.Parameter:
    field = leaf.field
    # Only routed streams lack most settings; that would be said everywhere.
    concerned = f" [{', '.join(leaf.kinds)}]" if 0 < len(leaf.kinds) < _KINDS_SHOWN else ""
    metavar = field.extra.get("metavar") or "|".join(field.choices) or _METAVARS.get(field.unit)
    if metavar is None:
        metavar = "N" if field.type in (int, float) else field.option.strip("-").upper()
    option = typer.Option(field.option, metavar=metavar, help=field.description + concerned)
    kind: Any = list[str] | None if field.item is not None else str | None
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _read(field: "Field", text: Any) -> Any:
    """What the words after an option say, checked, in the form that JSON has."""
    import msgspec

    if field.item is None:
        value = field.from_text(text)
    else:
        value = [field.item.from_text(one) for one in text] if hasattr(field.item, "from_text") else text
    return msgspec.to_builtins(field.read(value))
