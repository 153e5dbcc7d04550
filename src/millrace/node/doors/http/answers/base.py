"""Response models: what answers look like, for programs that read the OpenAPI document.

Many answers are typed values of the node already, with a word on every field. `model_of` makes the model from
such a struct, so that nothing is described twice. An answer may have more members than its model names, never
fewer than are required: a setting that a newer node shows is not swallowed.
"""

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from fastapi import Response
from fastapi.routing import APIRoute
from msgspec import NODEFAULT, Meta
from pydantic import BaseModel, ConfigDict, Field, create_model

Item = TypeVar("Item")
# Rows of a long answer, and their bytes, that are made in one turn of the loop [rule 33].
_TURN_ROWS = 200
_TURN_BYTES = 262_144


def _is_closed(schema: dict[str, Any]) -> None:
    schema.pop("additionalProperties", None)


class Answer(BaseModel):
    """An answer or a part of one."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_is_closed, populate_by_name=True)


class Page(Answer, Generic[Item]):
    """Some rows, and where to go on."""

    items: Annotated[list[Item], Field(description="The rows.")]
    next: Annotated[str | None, Field(description="Cursor of the next page; null on the last one.")]
    missing: Annotated[list[str], Field(description="Nodes that did not answer; their rows are not here.")]


@cache
def model_of(struct: type[msgspec.Struct], name: str | None = None, **more: Any) -> type[BaseModel]:
    """The response model of a struct. `more` are further fields, as `create_model` takes them."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        kind, description = _described(field.type)
        options: dict[str, Any] = {"description": description or field.name.replace("_", " ")}
        if field.encode_name != field.name:
            options["alias"] = field.encode_name
        if field.default is not NODEFAULT:
            # What is absent is left out, so what stands here only says that it may be.
            options["default"] = None if isinstance(field.default, msgspec.Struct) else field.default
        elif field.default_factory is not NODEFAULT:
            options["default_factory"] = field.default_factory
        fields[field.name] = (kind, Field(**options))
    fields.update(more)
    return create_model(name or struct.__name__, __base__=Answer, __doc__=struct.__doc__, **fields)


def _described(annotation: Any) -> tuple[Any, str | None]:
    if get_origin(annotation) is Annotated:
        kind, *notes = get_args(annotation)
        described = [note.description for note in notes if isinstance(note, Meta) and note.description]
        return _plain(kind), described[0] if described else None
    return _plain(annotation), None


def _plain(kind: Any) -> Any:
    """The same type in terms of models: structs are models, tuples are lists, enumerations their values."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _plain(get_args(kind)[0])
    if origin in (Union, UnionType):
        return Union[tuple(_plain(one) for one in get_args(kind))]  # noqa: UP007
    if origin is tuple:
        inner = [one for one in get_args(kind) if one is not Ellipsis]
        if Ellipsis in get_args(kind):
            return list[_plain(inner[0])]  # type: ignore[misc]
        return tuple[tuple(_plain(one) for one in inner)]  # type: ignore[misc]
    if origin is list:
        return list[_plain(get_args(kind)[0])]  # type: ignore[misc]
    if origin is dict:
        key, value = get_args(kind)
        return dict[_plain(key), _plain(value)]  # type: ignore[misc]
    if origin is Literal or kind is NoneType or not isinstance(kind, type):
        return kind
    if issubclass(kind, msgspec.Struct):
        return model_of(kind)
    if issubclass(kind, Enum):
        return Literal[tuple(one.value for one in kind)]
    return kind


class AnswerRoute(APIRoute):
    """A route whose answer has the members it was given, and not those of its model that nobody set."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "response_model_exclude_unset": True})


def example(value: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """The `responses` of an operation: what an answer looks like."""
    return {status: {"content": {"application/json": {"example": value}}}}


async def long_answer(name: str, rows: Iterable[Mapping[str, Any]], **more: Any) -> Response:
    """An answer with many rows as the member `name`, made in turns; nothing compares it to its model."""
    parts: list[bytes] = []
    turn_rows = turn_bytes = 0
    for row in rows:
        parts.append(msgspec.json.encode(row))
        turn_rows += 1
        turn_bytes += len(parts[-1])
        if turn_rows >= _TURN_ROWS or turn_bytes >= _TURN_BYTES:
            turn_rows = turn_bytes = 0
            await asyncio.sleep(0)
    head = b"".join(msgspec.json.encode(key) + b":" + msgspec.json.encode(more[key]) + b"," for key in more)
    body = b"".join((b"{", head, msgspec.json.encode(name), b":[", b",".join(parts), b"]}"))
    return Response(body, media_type="application/json")
