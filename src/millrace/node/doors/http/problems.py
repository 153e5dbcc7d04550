"""Errors as problem documents (RFC 9457), and which error of the broker is which status.

A problem always has `type`, `title`, `status` and `detail`; some say more: `earliest_offset` where retention
was faster (410), `errors` where a request does not have the right form (422).
"""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from millrace.errors import LocalError, StorageError
from millrace.node.access.caller import Denied
from millrace.node.doors.http_front import documents
from millrace.node.groups.consumer_groups import GroupExists, NoSuchGroup
from millrace.node.groups.leaderless_consumers import OrderNeeded
from millrace.node.groups.shard_consumers import Unavailable
from millrace.node.shards.publishing import NotStored
from millrace.reasons import Reason
from millrace.storage.log import Trimmed
from millrace.storage.scan import RangeDamaged

MEDIA_TYPE = documents.PROBLEM_TYPE
# After a refusal for want of room or a leader.
_RETRY_AFTER_S = "1"
# Mistakes in one request that are named, and how much of their places.
_ERRORS_MAX = 20
_WHERE_MAX = 200

SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "RFC 9457",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "earliest_offset": {"type": "integer"},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}


class Problem(HTTPException):
    """Raise it anywhere below a route. `more` becomes further members of the document."""

    def __init__(
        self, status: int, detail: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.more = more


def response(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    return JSONResponse(documents.problem(status, detail, **more), status, headers, media_type=MEDIA_TYPE)


def of_local(error: LocalError) -> JSONResponse:
    """The answer to an error that the broker raised on purpose."""
    match error:
        case NoSuchGroup():
            return response(404, str(error))
        case GroupExists() | OrderNeeded():
            return response(409, str(error))
        case Unavailable():
            return response(503, str(error), {"Retry-After": _RETRY_AFTER_S})
        case NotStored():
            return _of_not_stored(error)
        case Trimmed():
            return response(410, str(error), earliest_offset=int(error.first_offset))
        case RangeDamaged():
            return response(500, str(error), next_offset=int(error.damage.next_offset))
        case StorageError():
            return response(503, str(error), {"Retry-After": _RETRY_AFTER_S})
    return response(400, str(error))


def _of_not_stored(error: NotStored) -> JSONResponse:
    match error.reason:
        case Reason.IMPLEMENTATION_SPECIFIC:
            return response(409, str(error))
        case Reason.PACKET_TOO_LARGE:
            return response(413, str(error))
    return response(503, str(error), {"Retry-After": _RETRY_AFTER_S})


def install(app: FastAPI) -> None:
    """Make every error of this application a problem document."""

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 403:
            text = f"refused {request.method} {request.url.path!r}: {error.detail}"
            request.app.state.server.events.record("access", "warning", text)
        more = error.more if isinstance(error, Problem) else {}
        headers = None if error.headers is None else dict(error.headers)
        return response(error.status_code, str(error.detail), headers, **more)

    async def on_denied(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Denied)
        headers = {"Retry-After": _RETRY_AFTER_S} if error.status == 429 else None
        return await on_http(request, Problem(error.status, str(error), headers=headers))

    async def on_form(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        wrong = error.errors()[:_ERRORS_MAX]
        rows = [
            {"where": ".".join(map(str, row["loc"]))[:_WHERE_MAX], "what": str(row["msg"])} for row in wrong
        ]
        detail = "; ".join(f"{row['where']}: {row['what']}" for row in rows[:3])
        return response(422, detail, errors=rows)

    async def on_local(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, LocalError)
        return of_local(error)

    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Denied, on_denied)
    app.add_exception_handler(RequestValidationError, on_form)
    app.add_exception_handler(LocalError, on_local)
