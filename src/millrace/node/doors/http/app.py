"""The application: every router, the guard before them, and the document that describes them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millrace.node.doors.http import (
    access,
    cluster,
    docs,
    groups,
    pipelines,
    problems,
    queue,
    staging,
    streams,
)
from millrace.node.doors.http.context import ServedNode, server_of
from millrace.node.doors.http.guard import Guard, observe
from millrace.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric


_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["node"])


class _BrokerCollector(Collector):
    """Reads the broker's counters when Prometheus asks, so that counting costs nothing extra."""

    def __init__(self, server: ServedNode) -> None:
        self._server = server

    def collect(self) -> "Iterator[Metric]":
        broker = self._server.broker
        for name, value in broker.stats.as_dict().items():
            yield CounterMetricFamily(f"millrace_{name}", name.replace("_", " "), value=value)
        gauges = {
            "clients_connected": broker.connected,
            "sessions": len(broker.sessions),
            "subscriptions": broker.subscription_count,
            "retained_messages": len(broker.retained),
            "retained_bytes": broker.retained.bytes_held,
            "uptime_seconds": self._server.uptime_s(),
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"millrace_{name}", name.replace("_", " "), value=value)


@router.get("/livez")
async def livez() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz() -> dict[str, str]:
    """The node serves clients."""
    return {"status": "ok"}


@router.get("/status", dependencies=[Depends(observe)])
async def status(request: Request) -> dict[str, Any]:
    """What this node is and does; `role` and `term` are those in the meta group."""
    server = server_of(request)
    meta = server.engine.definitions.status()
    return {"role": str(meta.role), "term": int(meta.term), **server.status()}


@router.get("/metrics", dependencies=[Depends(observe)], response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters and gauges for Prometheus."""
    return Response(generate_latest(request.app.state.registry), media_type=_METRICS_TYPE)


def make_app(server: ServedNode) -> FastAPI:
    app = FastAPI(title="Millrace", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = server
    app.state.registry = CollectorRegistry()
    app.state.registry.register(_BrokerCollector(server))
    problems.install(app)
    for part in (
        router,
        queue.router,
        streams.router,
        staging.router,
        groups.router,
        pipelines.router,
        cluster.router,
        access.router,
        docs.router,
    ):
        app.include_router(part)
    listeners = server.config.listeners
    origins = frozenset(origin.strip() for origin in listeners.ws_origins.split(",") if origin.strip())
    app.add_middleware(Guard, origins=origins)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with errors as they are: problem documents."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
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
        }
        document["security"] = [{}, {"basic": []}, {"token": []}]
        app.openapi_schema = document
    return app.openapi_schema
