"""What the routes see of the node that serves them."""

from typing import Any, Protocol

from fastapi import Request

from millrace.broker.machine import Broker
from millrace.node.access.authentication import Authentication
from millrace.node.admin.events import EventLog
from millrace.node.admin.node_admin import Admin
from millrace.node.config import Config
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.node.engine import Engine

CERTIFICATE = "client_certificate"
"""Where the state of a request has what TLS knows of its caller."""


class ServedNode(Protocol):
    """The node behind the HTTP door: `millrace.node.server.Server` is one."""

    config: Config
    broker: Broker
    door: MqttDoor
    engine: Engine
    authentication: Authentication
    admin: Admin
    events: EventLog

    def status(self) -> dict[str, Any]: ...

    def wall_us(self) -> int: ...

    def machine_us(self) -> int: ...

    def uptime_s(self) -> int: ...

    def publish_sys(self, values: dict[str, str]) -> None: ...


def server_of(request: Request) -> ServedNode:
    server: ServedNode = request.app.state.server
    return server
