"""Settings that somebody asks for, said once: a struct with a type, bounds, a default and a line of help for
every field.

From such a struct are made: the check of what was asked for (`Settings.read`), its plain form (`plain`), the
forms of the HTTP door, the options of the command line, and what logs and snapshots hold. A field's
`msgspec.Meta` says its bounds and its help; `extra` may say `metavar`, the word for its value on the command
line.

A struct checks in `__post_init__` what lies between its fields. Bounds of one field are checked when it is
read; whoever builds a struct in code keeps to them.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

import msgspec

from millrace.errors import LocalError

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", tuple: "a list"}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    NOUN: ClassVar[str] = "table of settings"
    """What the struct describes, for the sentences of errors."""

    @classmethod
    def read(cls, given: Any, base: Self | None = None) -> Self:
        """Make one of plain values, as JSON or TOML have them; what is absent is as in `base`, or the
        default. LocalError says what is wrong."""
        if not isinstance(given, Mapping):
            raise LocalError(f"{given!r}: expected a table of settings")
        fields = {field.name: field for field in msgspec.structs.fields(cls)}
        unknown = sorted(set(given) - set(fields))
        if unknown:
            names = ", ".join(sorted(fields))
            raise LocalError(f"a {cls.NOUN} has no setting {unknown[0]!r}; there are: {names}")
        try:
            values = {
                name: _read_one(fields[name].type, name, value, getattr(base, name, None))
                for name, value in given.items()
            }
        except LocalError as error:
            name = given.get("name", getattr(base, "name", None))
            raise LocalError(f"{cls.NOUN} {name!r}: {error}" if name is not None else str(error)) from None
        if base is not None:
            return msgspec.structs.replace(base, **values)
        missing = [field.name for field in fields.values() if field.required and field.name not in values]
        if missing:
            raise LocalError(f"a {cls.NOUN} has to say {' and '.join(missing)}")
        return cls(**values)

    def plain(self) -> dict[str, Any]:
        """As JSON and the HTTP door show it."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown


def bare(kind: Any) -> tuple[Any, msgspec.Meta]:
    """The type of a field without its annotation, and the annotation."""
    if get_origin(kind) is Annotated:
        inner, meta = get_args(kind)
        return inner, meta
    return kind, msgspec.Meta()


def _read_one(kind: Any, name: str, value: Any, base: Any) -> Any:
    inner, meta = bare(kind)
    if isinstance(inner, type) and issubclass(inner, Settings):
        if not isinstance(value, Mapping):
            raise LocalError(f"{name} = {value!r}: expected a table of settings")
        return inner.read(value, base)
    if get_origin(inner) is tuple and isinstance(value, list | tuple):
        item = get_args(inner)[0]
        if isinstance(item, type) and issubclass(item, Settings):
            return tuple(item.read(one) for one in value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise LocalError(_refusal(name, value, inner, meta)) from None


def _refusal(name: str, value: Any, inner: Any, meta: msgspec.Meta) -> str:
    if isinstance(inner, type) and issubclass(inner, Enum):
        return f"{name} is one of {', '.join(one.value for one in inner)}, not {value!r}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and isinstance(value, inner if isinstance(inner, type) else int) and meta.ge is not None:
        bounds = f"at least {meta.ge}" if meta.le is None else f"{meta.ge} to {meta.le}"
        return f"{name} is {bounds}, not {value}"
    return f"{name} = {value!r}: expected {_WORDS.get(get_origin(inner) or inner, 'another kind of value')}"
