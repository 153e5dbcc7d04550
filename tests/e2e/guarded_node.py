"""A node with users and rules in this process, for tests that take rights away and look what arrives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from conformance.mqtt import wire
from conformance.mqtt.raw import Client as RawClient
from conformance.mqtt.raw import Endpoint, Lab
from millrace import Broker
from millrace.broker.streams.stream import StreamSpec
from millrace.client.http import Http

ROOT = "root"
USERS = (ROOT, "ann", "bob")
PASSWORD = "pw"
EVERYTHING = {"user": "*", "effect": "allow", "action": "all", "filter": "#"}


class GuardedNode:
    """`ask` is the administrator's; `connect` opens raw connections of any user."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lab = Lab(Endpoint(port=broker.port, websocket_port=None))

    async def ask(self, method: str, path: str, body: Any = None, user: str = ROOT) -> Any:
        url = f"http://{user}@127.0.0.1:{self.broker.server.ports['http']}"
        return await asyncio.to_thread(Http(url, password=PASSWORD).call, method, path, body)

    async def rule(self, user: str, effect: str, action: str, filter: str) -> int:
        """A new rule in front of all others; returns its number."""
        body = {"user": user, "effect": effect, "action": action, "filter": filter}
        made = await self.ask("POST", "/v1/rules", body)
        return int(made["number"])

    async def stream(self, replication: str) -> None:
        """A stream on `t/#`."""
        settings = {"name": "s", "filters": ["t/#"], "replication": replication}
        await self.broker.server.engine.opening.put(StreamSpec.read(settings), create=True)

    async def connect(
        self, user: str, client_id: str = "", *, keep: bool = False, **fields: Any
    ) -> RawClient:
        if keep:
            fields.update(clean=False, props={"session_expiry": 3600, **fields.pop("props", {})})
        return await self.lab.connect(
            client_id=client_id or self.lab.name(), username=user, password=PASSWORD, **fields
        )


@asynccontextmanager
async def guarded_node(data: Path, *rules: dict[str, str]) -> AsyncIterator[GuardedNode]:
    """A node on this data directory; where it is new, with the users above and these rules, or one that
    allows everything."""
    is_new = not data.exists()
    async with Broker(listeners__http="127.0.0.1:0", node__data=str(data)) as broker:
        node = GuardedNode(broker)
        if is_new:
            url = f"http://127.0.0.1:{broker.server.ports['http']}"
            first = {"name": ROOT, "password": PASSWORD, "roles": ["admin"]}
            await asyncio.to_thread(Http(url).call, "POST", "/v1/users", first)
            for name in USERS[1:]:
                await node.ask("POST", "/v1/users", {"name": name, "password": PASSWORD})
            for rule in rules or (EVERYTHING,):
                await node.ask("POST", "/v1/rules", rule)
        try:
            yield node
        finally:
            for client in node.lab.clients:
                client.writer.close()


async def topics(client: RawClient) -> list[str]:
    """The topics of all messages that come before the node is silent; none is acknowledged."""
    seen = []
    while True:
        seen += await client.ping()
        try:
            seen.append(await client.receive(0.3))
        except AssertionError:
            return [packet.topic for packet in seen if packet.kind == wire.PUBLISH]
