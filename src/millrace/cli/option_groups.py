"""Options that several commands share, said once as a dataclass.

    @app.command()
    @takes(UsersOptions)
    def remove(name: Name, where: UsersOptions) -> None: ...

The command line shows the fields of the dataclass as options of the command, behind those of its own, and the
command gets them in one argument.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, get_type_hints


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these groups of options; each is the type of one of its arguments."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        holders = {name: hint for name, hint in hints.items() if hint in groups}
        parameters = [
            parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command).parameters.values()
            if parameter.name not in holders
        ]
        for group in holders.values():
            parameters += _options(group)

        @wraps(command)
        def run(**given: Any) -> None:
            for name, group in holders.items():
                given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
            command(**given)

        del run.__wrapped__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _options(group: type) -> list[inspect.Parameter]:
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
