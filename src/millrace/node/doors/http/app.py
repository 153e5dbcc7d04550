"""The application: every router, the guard before them, and the document that describes them."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from millrace.node.doors.hosts import Hosts
from millrace.node.doors.http import (
    access,
    access_copy,
    cluster,
    docs,
    groups,
    pipelines,
    problems,
    queue,
    staging,
    streams,
)
from millrace.node.doors.http.admin import clients, login, overview
from millrace.node.doors.http.answers import node as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example
from millrace.node.doors.http.context import ServedNode, server_of
from millrace.node.doors.http.dashboard import router as dashboard
from millrace.node.doors.http.guard import COOKIE, Guard, observe
from millrace.node.doors.http_front import documents
from millrace.node.metrics import text
from millrace.node.metrics.collect import MetricsReader
from millrace.version import __version__

router = APIRouter(tags=["node"], route_class=AnswerRoute)

_INTRODUCTION = """
The API of a Millrace node. Every node answers, and says the same: ask whichever is near.

* **queue**: topics that keep messages until somebody takes them. `PUT /topic`, `PUT /message`, `POST
  /message`.
* **messages**, **streams**: publish, read by offset, make and change streams.
* **groups**: durable consumers with leases, over any topic filters.
* **staged publishing**: batches that are visible all at once, or never.
* **cluster**, **administration**: nodes, clients, sessions, events, a live view, and where a message goes.

JSON in and out. Errors are problem documents (RFC 9457) whose `detail` says what to do. Times are
microseconds since 1970 (`*_us`), durations name their unit. Lists come in pages: hand `next` back as
`cursor`, until it is null.

Without users, this machine may do everything. With users, name yourself by HTTP basic authentication, or log
in from a page (`POST /v1/login`). Changing streams, groups and the cluster needs a user with the rule `allow
all '#'`.
"""
_TAGS = [
    {"name": "node", "description": "This node: whether it lives and serves, its figures."},
    {"name": "queue", "description": "Messages that are taken once, first in first out."},
    {"name": "messages", "description": "Publishing, and reading by offset."},
    {"name": "streams", "description": "Which log keeps which topics, and how it is replicated."},
    {"name": "groups", "description": "Durable consumers, with leases and dead letters."},
    {"name": "staged publishing", "description": "Two-step publishing for programs that write in batches."},
    {"name": "pipelines", "description": "Spark pipelines: made, run and moved by the cluster, or reported."},
    {"name": "cluster", "description": "Nodes, and taking one out."},
    {"name": "access", "description": "Users, access rules and tokens, the same at every node."},
    {"name": "administration", "description": "The cluster at a glance, clients, sessions, events, login."},
]


@router.get(
    "/livez",
    summary="Does the process live?",
    response_model=answers.Alive,
    responses=example(answers.ALIVE),
)
async def livez() -> dict[str, str]:
    """The process answers."""
    return documents.ALIVE


@router.get(
    "/readyz",
    summary="Can this node serve clients?",
    response_model=answers.Ready,
    responses=example(answers.READY),
)
async def readyz(request: Request) -> dict[str, Any]:
    """503 with what it waits for: while it starts, after it lost its majority for some seconds, and while it
    is drained or removed. A node that serves says what its clients may wait for meanwhile."""
    readiness = server_of(request).admin.readiness
    if readiness.waits_for:
        raise problems.Problem(503, readiness.waits_for, headers=documents.RETRY_AFTER)
    return readiness.answer()


@router.get(
    "/status",
    dependencies=[Depends(observe)],
    summary="What this node is and does",
    response_model=answers.Status,
    responses=example(answers.STATUS),
)
async def status(request: Request) -> dict[str, Any]:
    """`role` and `term` are those in the group that keeps the definitions."""
    server = server_of(request)
    meta = server.engine.definitions.status()
    return {"role": str(meta.role), "term": int(meta.term), **server.status()}


@router.get(
    "/metrics",
    dependencies=[Depends(observe)],
    summary="Metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "The text format of Prometheus."}},
)
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms for Prometheus; docs/reference/metrics.md describes each."""
    reader: MetricsReader = request.app.state.metrics
    return Response(text.text(await reader.samples()), media_type=text.CONTENT_TYPE)


@router.get("/openapi.json", include_in_schema=False)
async def document(request: Request) -> Response:
    """The OpenAPI document. Making it takes a third of a second, so it is made once, and not on the loop."""
    app = request.app

    def make() -> bytes:
        with app.state.loading():
            return msgspec.json.encode(app.openapi())

    if app.state.document is None:
        app.state.document = await asyncio.to_thread(make)
    return Response(app.state.document, media_type="application/json")


ROUTERS = (
    router,
    queue.router,
    streams.router,
    staging.router,
    groups.router,
    pipelines.router,
    cluster.router,
    access.router,
    access_copy.router,
    overview.router,
    clients.router,
    login.router,
    docs.router,
)


def make_app(
    server: ServedNode, loading: Callable[[], AbstractContextManager[None]] = nullcontext
) -> FastAPI:
    """`loading` is put around what takes long in a thread of its own."""
    app = FastAPI(
        title="Millrace",
        version=__version__,
        description=_INTRODUCTION,
        openapi_tags=_TAGS,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.document = None
    app.state.loading = loading
    app.state.server = server
    app.state.metrics = MetricsReader(server)
    problems.install(app)
    for part in (*ROUTERS, dashboard):
        # These routes are whole. `include_router` would build each once more at the first request that looks
        # for its path, all of them for a path that nobody has: 57 ms on the loop [rule 33].
        app.router.routes.extend(part.routes)
    listeners = server.config.listeners
    origins = frozenset(origin.strip() for origin in listeners.ws_origins.split(",") if origin.strip())
    app.add_middleware(Guard, origins=origins, hosts=Hosts(server.config))
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with errors as they are: problem documents."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            tags=app.openapi_tags,
            routes=app.routes,
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = problems.SCHEMA
        problem = {
            "description": "What went wrong (RFC 9457).",
            "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = problem
        document["components"]["securitySchemes"] = {
            "basic": {"type": "http", "scheme": "basic"},
            "token": {"type": "http", "scheme": "bearer"},
            "login": {"type": "apiKey", "in": "cookie", "name": COOKIE},
        }
        document["security"] = [{}, {"basic": []}, {"token": []}, {"login": []}]
        app.openapi_schema = document
    return app.openapi_schema
