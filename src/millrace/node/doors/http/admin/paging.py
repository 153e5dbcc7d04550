"""Pages and their cursors. A cursor is opaque to callers: where the last row stands, packed as text."""

import base64
import binascii
import json
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from fastapi.responses import Response

from millrace.errors import LocalError
from millrace.node.admin.node_admin import Admin, Busy, Gone
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.problems import Problem

Limit = Annotated[int, Query(ge=1, le=1000, description="Rows of a page, at most.")]
Cursor = Annotated[
    str | None, Query(max_length=200_000, description="`next` of the page before; nothing for the first.")
]
Search = Annotated[str, Query(max_length=1_000, description="Only rows with this text in them.")]
NodeName = Annotated[str | None, Query(max_length=200, description="Only rows of this node.")]


def admin_of(request: Request) -> Admin:
    return server_of(request).admin


def packed(place: tuple[Any, ...] | None) -> str | None:
    return None if place is None else base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def place(cursor: str | None, first: type[str] | type[int]) -> Any:
    """What `packed` was given: two values, the first of this type; 400 for anything else."""
    if cursor is None:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, binascii.Error):
        found = None
    if not isinstance(found, list) or len(found) != 2:
        raise Problem(400, "the cursor is not one that a page gave; begin without one")
    if type(found[0]) is not first or not isinstance(found[1], str):
        raise Problem(400, "the cursor is of another list; begin without one")
    return found[0], found[1]


def page(items: list[Any], next: tuple[Any, ...] | None, missing: list[str]) -> Response:
    return answer({"items": items, "next": packed(next), "missing": missing})


def answer(value: Any, status: int = 200) -> Response:
    """Typed values of the node as JSON, as they are."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def problem_of(error: LocalError) -> Problem:
    match error:
        case Gone():
            return Problem(404, str(error))
        case Busy():
            return Problem(503, str(error), headers={"Retry-After": "1"})
    return Problem(400, str(error))
