"""Settings, said once: a struct with a type, bounds, a default and a description for every field.

From such a struct are made: the check of what somebody asked for (`Settings.read`), its plain form (`plain`),
the forms of the HTTP door, the options of the command line, the sections of the configuration file, what logs
and snapshots hold, and the page docs/reference/settings.md. `says` annotates a field with its description and
bounds, and with what else there is to say:

- `expected`: what a right value looks like, where type and bounds do not say it
- `metavar` and `option`: the word for its value, and its name, on the command line
- `replication`: the kinds of stream that it concerns; without it, all
- `secret`: nobody is shown its value

A type that people write as one word has `parse`, which raises ValueError, and `EXPECTED`.

The unit of a number is the end of its name (`retention_age_s`, `packet_bytes_max`); text with a unit, such as
`7d` or `512MiB`, stands for such a number wherever it is given.

Bounds of one field are checked when it is read; whoever builds a struct in code keeps to them. What lies
between fields is checked whenever a struct is made: `refusals` says what is wrong.
"""

import copy
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from fractions import Fraction
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

import msgspec

from millrace.errors import LocalError

_TIMES_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
# Unit of a setting -> its name, how much of the table's unit it is, the table, and what people may write.
_UNITS: dict[str, tuple[str, int, dict[str, int], str]] = {
    "ms": ("milliseconds", 1, _TIMES_MS, "a duration such as 500ms, 90s or 1h30m"),
    "s": ("seconds", 1000, _TIMES_MS, "a duration such as 90s, 1h30m or 7d"),
    "bytes": ("bytes", 1, _SIZES, "a size such as 512MiB or 10GB"),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
# What MQTT can carry in one string; no setting needs more.
_TEXT_BYTES = 65_535


def quantity(text: str, unit: str) -> int | float:
    """What text such as `1h30m` or `512MiB` says in this unit (s, ms or bytes); a plain number is in the unit
    already. Raises ValueError."""
    _, scale, table, _ = _UNITS[unit]
    parts = _PART.findall(text)
    if not parts or "".join(number + word for number, word in parts) != text:
        raise ValueError(text)
    if len(parts) == 1 and not parts[0][1]:
        total = Fraction(parts[0][0])
    elif any(word not in table for _, word in parts):
        raise ValueError(text)
    else:
        total = sum((Fraction(number) * table[word] for number, word in parts), Fraction()) / scale
    return total.numerator if total.denominator == 1 else float(total)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def says(
    description: str,
    least: float | None = None,
    most: float | None = None,
    *,
    pattern: str | None = None,
    **extra: Any,
) -> msgspec.Meta:
    """The annotation of a setting: what it is, its bounds or its pattern, and what else `extra` may say."""
    if pattern is not None:
        return msgspec.Meta(description=description, pattern=pattern, extra=extra)
    return msgspec.Meta(description=description, ge=least, le=most, extra=extra)


class Field:
    """One setting of a struct, as those see it who read, ask for, show or explain it."""

    __slots__ = ("default", "is_optional", "is_required", "meta", "name", "type", "unit")

    def __init__(self, name: str, kind: Any, default: Any, *, is_required: bool) -> None:
        self.meta = msgspec.Meta()
        if get_origin(kind) is Annotated:
            kind, self.meta = get_args(kind)
        choices = get_args(kind) if isinstance(kind, UnionType) else ()
        self.is_optional = NoneType in choices
        self.name = name
        self.type: Any = choices[0] if choices else kind
        self.default = default
        self.is_required = is_required
        # A rate is a number, or so many bytes, and no duration.
        unit = name.removesuffix("_max").removesuffix("_min").removesuffix("_per_s").rpartition("_")[2]
        self.unit = unit if unit in _UNITS and self.type in (int, float) else ""

    def under(self, table: str) -> "Field":
        """The same setting, named with the table that it stands in."""
        other = copy.copy(self)
        other.name = f"{table}.{self.name}"
        return other

    @property
    def description(self) -> str:
        return self.meta.description or ""

    @property
    def extra(self) -> Mapping[str, Any]:
        return self.meta.extra or {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of stream that it concerns; none where it concerns all."""
        return tuple(self.extra.get("replication", ()))

    @property
    def option(self) -> str:
        """Its name on the command line: without the unit of a time, since the value may have any, and without
        the word for a bound."""
        bare = self.name.removesuffix("_max")
        bare = bare.removesuffix(f"_{self.unit}") if self.unit in _TIMES_MS else bare
        return self.extra.get("option") or "--" + bare.replace("_", "-")

    @property
    def item(self) -> Any:
        """What a list holds; None where it is no list."""
        return get_args(self.type)[0] if get_origin(self.type) is tuple else None

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from; none where any value of the type will do."""
        if get_origin(self.type) is Literal:
            return get_args(self.type)
        return tuple(one.value for one in self.type) if is_kind(self.type, Enum) else ()

    @property
    def expected(self) -> str:
        """What a right value looks like, for people."""
        if said := self.extra.get("expected", getattr(self.type, "EXPECTED", None)):
            return str(said)
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.type in (int, float):
            return self._expected_number()
        if is_kind(self.type, Settings):
            return "a table of settings"
        words = {bool: "true or false", str: "text", tuple: "a list"}
        return words[get_origin(self.type) or self.type]

    def _expected_number(self) -> str:
        least, most = self.meta.ge, self.meta.le
        bounds = (
            "" if least is None else f" from {least} to {most}" if most is not None else f" from {least} on"
        )
        if not self.unit:
            return ("a whole number" if self.type is int else "a number") + bounds
        name, _, _, words = _UNITS[self.unit]
        return f"{name}{bounds}, or {words}"

    def read(self, value: Any, base: Any = None) -> Any:
        """Check a plain value, as JSON or TOML have it; a table is laid over `base`. LocalError says what is
        wrong."""
        if is_kind(self.type, Settings) and isinstance(value, Mapping):
            return self.type.read(value, base)
        if is_kind(self.item, Settings) and isinstance(value, list | tuple):
            return tuple(self.item.read(one) for one in value)
        try:
            return self._read_leaf(value)
        except (ValueError, msgspec.ValidationError):
            shown = "(not shown)" if self.extra.get("secret") else repr(value)
            raise LocalError(f"{self.name} = {shown}: expected {self.expected}") from None

    def _read_leaf(self, value: Any) -> Any:
        if self.is_optional and value in (None, ""):
            return None
        if isinstance(value, str):
            # UnicodeEncodeError is a ValueError: bytes that are no UTF-8 come as surrogates.
            if "\0" in value or len(value.encode()) > _TEXT_BYTES:
                raise ValueError
            if self.unit:
                value = quantity(value, self.unit)
            if hasattr(self.type, "parse"):
                return self.type.parse(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        kind = Annotated[self.type, self.meta] if self.type in (int, float, str) else self.type
        return msgspec.convert(value, kind)

    def from_text(self, text: str) -> Any:
        """The plain value that the text of an option or a variable stands for; text that stands for none is
        left to `read` to refuse."""
        if self.type is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.item is not None:
            return text.split(",")
        if self.type in (int, float) and not self.unit:
            try:
                return self.type(text)
            except ValueError:
                return text
        return text


def is_kind(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    NOUN: ClassVar[str] = "table of settings"
    """What the struct describes, for the sentences of errors."""
    ERROR: ClassVar[type[LocalError]] = LocalError

    @classmethod
    def fields(cls) -> Mapping[str, Field]:
        return _fields(cls)

    @classmethod
    def label(cls, name: Any) -> str:
        """How a sentence about one of these begins."""
        return "" if name is None else f"{cls.NOUN} {name!r}: "

    @classmethod
    def field(cls, name: str) -> Field:
        """One setting by its name; LocalError names those there are."""
        known = cls.fields()
        if name not in known:
            raise LocalError(f"a {cls.NOUN} has no setting {name!r}; there are: {', '.join(sorted(known))}")
        return known[name]

    @classmethod
    def read(cls, given: Any, base: Self | None = None) -> Self:
        """Make one of plain values, as JSON or TOML have them; what is absent is as in `base`, or the
        default. LocalError says what is wrong."""
        if not isinstance(given, Mapping):
            raise LocalError(f"{given!r}: expected a table of settings")
        fields = {name: cls.field(name) for name in given}
        try:
            values = {
                name: field.read(given[name], getattr(base, name, None)) for name, field in fields.items()
            }
        except LocalError as error:
            raise LocalError(cls.label(given.get("name", getattr(base, "name", None))) + str(error)) from None
        if base is not None:
            return msgspec.structs.replace(base, **values)
        missing = [
            field.name for field in cls.fields().values() if field.is_required and field.name not in values
        ]
        if missing:
            raise LocalError(f"a {cls.NOUN} has to say {' and '.join(missing)}")
        return cls(**values)

    def plain(self) -> dict[str, Any]:
        """As JSON and the HTTP door show it."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown

    def refusals(self) -> Iterator[str]:
        """Sentences about fields that contradict each other, the most important first."""
        return iter(())

    def __post_init__(self) -> None:
        for sentence in self.refusals():
            raise self.ERROR(self.label(getattr(self, "name", None)) + sentence)


@cache
def _fields(kind: type[Settings]) -> Mapping[str, Field]:
    return {
        field.name: Field(
            field.name,
            field.type,
            None
            if field.required
            else field.default_factory()
            if field.default is msgspec.NODEFAULT
            else field.default,
            is_required=field.required,
        )
        for field in msgspec.structs.fields(kind)
    }
