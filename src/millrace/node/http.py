"""The HTTP door: state of the node for people, probes and Prometheus.

FastAPI served by uvicorn on the node's own event loop. Routes read plain values; none of them blocks.
"""

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millrace import __version__
from millrace.errors import ConfigError
from millrace.node.config import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from millrace.node.server import Server

log = logging.getLogger("millrace.http")

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _BrokerCollector(Collector):
    """Reads the broker's counters when Prometheus asks, so that counting costs nothing extra."""

    def __init__(self, server: "Server") -> None:
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


def make_app(server: "Server") -> FastAPI:
    app = FastAPI(title="Millrace", version=__version__, docs_url=None, redoc_url=None)
    registry = CollectorRegistry()
    registry.register(_BrokerCollector(server))

    @app.get("/livez")
    def livez() -> dict[str, str]:
        """The process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        """The node serves clients."""
        return {"status": "ok"}

    @app.get("/status")
    async def status() -> dict[str, Any]:
        """What this node is and does."""
        return server.status()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=_METRICS_TYPE)

    return app


class HttpDoor:
    """uvicorn without its own signal handling: the node decides when to stop."""

    def __init__(self, app: FastAPI, address: Address) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address.host, address.port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"cannot listen on {address}: {error.strerror or error}; another port: --http HOST:PORT"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._loop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.startup(sockets=[self._socket])
        self._loop_task = asyncio.create_task(self._server.main_loop())

    async def stop(self) -> None:
        if self._loop_task is None:
            self._socket.close()
            return
        self._server.should_exit = True
        self._server.force_exit = True
        await self._loop_task
        await self._server.shutdown(sockets=[self._socket])
