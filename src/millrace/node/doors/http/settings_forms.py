"""Forms of the HTTP door that are made from settings: any JSON object is taken here, the settings check it,
and their sentences are the answer. The OpenAPI document shows every field with its description and bounds."""

from typing import Any, TypeVar

import msgspec
from pydantic import WithJsonSchema

from millrace.errors import LocalError
from millrace.settings import Field, Settings, is_kind

Given = dict[str, Any]
_Kind = TypeVar("_Kind", bound=Settings)
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def asked(kind: type[Settings], *, is_change: bool = False) -> WithJsonSchema:
    """The annotation of a form with these settings; a change needs none of them, and keeps the name."""
    return WithJsonSchema(_object(kind, is_change=is_change))


def made(kind: type[_Kind], given: Given) -> _Kind:
    """The settings of something new. A member that is null counts as absent."""
    return kind.read(_without_nulls(given))


def changed(known: _Kind, given: Given) -> _Kind:
    """The settings after a change; one that says nothing is a mistake."""
    values = _without_nulls(given)
    if not values or "name" in values:
        names = ", ".join(name for name in known.fields() if name != "name")
        raise LocalError(f"a change of a {known.NOUN} says one or more of: {names}")
    return known.read(values, known)


def _without_nulls(given: Given) -> Given:
    return {name: value for name, value in given.items() if value is not None}


def _object(kind: type[Settings], *, is_change: bool) -> dict[str, Any]:
    fields = [field for field in kind.fields().values() if not (is_change and field.name == "name")]
    required = [field.name for field in fields if field.is_required and not is_change]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {field.name: _property(field, is_change=is_change) for field in fields},
        **({"required": required} if required else {}),
    }


def _property(field: Field, *, is_change: bool) -> dict[str, Any]:
    concerned = f" Of streams that are {' or '.join(field.kinds)}." if field.kinds else ""
    more = {} if is_change or field.is_required else {"default": msgspec.to_builtins(field.default)}
    return {**_type(field, is_change=is_change), "description": field.description + concerned, **more}


def _type(field: Field, *, is_change: bool) -> dict[str, Any]:
    if is_kind(field.type, Settings):
        return _object(field.type, is_change=is_change)
    if field.item is not None:
        item = _object(field.item, is_change=False) if is_kind(field.item, Settings) else {"type": "string"}
        return {"type": "array", "items": item}
    if field.choices:
        return {"type": "string", "enum": list(field.choices)}
    bounds = {"minimum": field.meta.ge, "maximum": field.meta.le}
    plain = {"type": _TYPES[field.type], **{name: at for name, at in bounds.items() if at is not None}}
    kinds = [
        plain,
        *([{"type": "string"}] if field.unit else []),
        *([{"type": "null"}] if field.is_optional else []),
    ]
    return plain if len(kinds) == 1 else {"anyOf": kinds}
