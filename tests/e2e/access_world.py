"""A guarded cluster for the access matrix: users, rules and roles that come and go, and ways to look.

A `Cell` is one try: one user, one node, topics that no other try uses. Beside the guarded topic there is an
open one, which everybody may use: what was sent to it after the guarded one shows that the latter would have
come by now.
"""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Closed, Endpoint, Lab
from e2e.http_calls import Answer, call
from millrace.lab.demo.stage import is_whole
from millrace.local_cluster import LocalCluster
from waiting import pause

ROOT = "root"
PASSWORD = "pw"
USERS = ("ann", "bob", "eve")
NODES = 2
SILENCE_S = 0.1
_START_S = 60.0
EDGE_MODULE = "matrix_edge"
EDGE_FUNCTION = """
def send(topic, payload):
    return [(payload.decode(), b"made by the function")]
"""
REPLICATIONS = {"m": "quorum", "r": "routed", "l": "leaderless", "p": "primary-backup"}


class World:
    """The cluster. `call` is HTTP in a user's name, `connect` MQTT."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.nodes = cluster.nodes
        self.labs = [Lab(Endpoint(port=node.mqtt_port, websocket_port=None)) for node in cluster.nodes]
        self.numbers = itertools.count(1)

    async def call(
        self, user: str, method: str, path: str, body: Any = None, *, node: int = 0, **more: Any
    ) -> Answer:
        secret = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
        ask = partial(call, self.nodes[node].http_port, method, path, body, **more)
        return await asyncio.to_thread(partial(ask, Authorization=f"Basic {secret}"))

    async def ask(self, method: str, path: str, body: Any = None, node: int = 0) -> Any:
        """As the administrator, who must succeed."""
        answer = await self.call(ROOT, method, path, body, node=node)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    async def connect(
        self, user: str, node: int = 0, client_id: str = "", *, keep: bool = False, **fields: Any
    ) -> Client | None:
        """A connected client; None where it was refused for want of a right."""
        lab = self.labs[node]
        if keep:
            fields.update(clean=False, props={"session_expiry": 600, **fields.pop("props", {})})
        client = await lab.open()
        await client.send(wire.connect(client_id or lab.name(), username=user, password=PASSWORD, **fields))
        answer = await client.expect(wire.CONNACK)
        assert answer.reason in (0, 0x87), answer
        return None if answer.reason else client

    async def root(self, node: int = 0) -> Client:
        client = await self.connect(ROOT, node)
        assert client is not None
        return client

    async def put_rule(self, user: str, action: str, filter: str) -> int:
        body = {"user": user, "effect": "allow", "action": action, "filter": filter}
        number = int((await self.ask("POST", "/v1/rules", body))["number"])
        await self.until_known(number, True)
        return number

    async def take_rule(self, number: int) -> None:
        await self.ask("DELETE", f"/v1/rules/{number}")
        await self.until_known(number, False)

    async def until_known(self, number: int, is_there: bool) -> None:
        for node in range(NODES):
            async with asyncio.timeout(_START_S):
                while is_there != any(
                    row["number"] == number
                    for row in (await self.ask("GET", "/v1/rules?limit=1000", node=node))["items"]
                ):
                    await pause()

    async def set_roles(self, user: str, *roles: str) -> None:
        await self.ask("PATCH", f"/v1/users/{user}", {"roles": list(roles)})
        for node in range(NODES):
            async with asyncio.timeout(_START_S):
                while True:
                    rows = (await self.ask("GET", "/v1/users", node=node))["items"]
                    if [row["roles"] for row in rows if row["name"] == user] == [list(roles)]:
                        break
                    await pause()

    def close(self) -> None:
        for lab in self.labs:
            for client in lab.clients:
                client.writer.close()
            lab.clients.clear()


@dataclass(kw_only=True)
class Cell:
    """One try. `comes` says what is expected, so that a look knows how long to look."""

    world: World
    base: str
    user: str = "ann"
    node: int = 0
    comes: bool = True

    @property
    def number(self) -> str:
        return self.base.rpartition("/")[2]

    @property
    def topic(self) -> str:
        return f"{self.base}/x"

    @property
    def filter(self) -> str:
        return f"{self.base}/#"

    @property
    def open_topic(self) -> str:
        return f"{self.base.partition('/')[0]}/open/{self.number}"

    async def connect(self, client_id: str = "", **fields: Any) -> Client | None:
        return await self.world.connect(self.user, self.node, client_id, **fields)

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        return await self.world.call(self.user, method, path, body, node=self.node, **more)

    async def publish_both(self, qos: int = 1, *, retain: bool = False) -> None:
        """By the administrator, at the first node: what is guarded, then what is open."""
        root = await self.world.root()
        for topic in (self.topic, self.open_topic):
            await root.publish(topic, b"secret", qos, retain=retain)

    async def publish_open(self) -> None:
        await (await self.world.root()).publish(self.open_topic, b"open", 1)

    async def listen(self, client: Client, filter: str = "", qos: int = 1) -> None:
        """Subscribe to both, whether they are granted or not."""
        number = client.packet_id()
        pairs = ((filter or self.filter, qos), (self.open_topic, qos))
        await client.send(wire.subscribe(number, *pairs))
        await client.take(wire.SUBACK, packet_id=number)

    async def observer(self, qos: int = 1) -> Client:
        """The administrator, at the first node, who sees whatever is published."""
        client = await self.world.root()
        await self.listen(client, qos=qos)
        return client

    async def sees(self, client: Client) -> bool:
        """Whether the guarded topic reaches this client before, or soon after, the open one."""
        try:
            return await self._sees(client)
        except Closed:
            return False

    async def _sees(self, client: Client) -> bool:
        is_open_seen = False
        while self.comes or not is_open_seen:
            packet = await client.receive()
            if packet.kind == wire.PUBLISH:
                if packet.topic == self.topic:
                    return True
                is_open_seen = is_open_seen or packet.topic == self.open_topic
        seen = await client.ping()
        try:
            seen.append(await client.receive(SILENCE_S))
        except Closed:
            raise
        except AssertionError:
            pass
        return any(packet.topic == self.topic for packet in seen if packet.kind == wire.PUBLISH)


@asynccontextmanager
async def guarded_cluster(data: Path) -> AsyncIterator[World]:
    """Two nodes, an administrator, three users; streams of every replication; each user has a home."""
    options = ("--set", f"edge.modules={EDGE_MODULE}", "--set", "log.level=warning")
    async with LocalCluster(NODES, data, options=options) as cluster:
        async with asyncio.timeout(_START_S):
            while not all([await is_whole(node, NODES) for node in cluster.nodes]):
                await pause()
        world = World(cluster)
        first = {"name": ROOT, "password": PASSWORD, "roles": ["admin"]}
        await asyncio.to_thread(call, cluster.nodes[0].http_port, "POST", "/v1/users", first)
        for name in USERS:
            await world.ask("POST", "/v1/users", {"name": name, "password": PASSWORD})
        for name, replication in REPLICATIONS.items():
            stream = {"name": name, "filters": [f"{name}/#"], "replication": replication}
            await world.ask("POST", "/v1/streams", stream)
        edge = {"name": "e", "filters": ["e/#"], "edge": f"{EDGE_MODULE}:send"}
        await world.ask("POST", "/v1/streams", edge)
        for name in (*REPLICATIONS, "b"):
            await world.put_rule("*", "all", f"{name}/open/#")
            await world.put_rule("*", "all", f"{name}/home/%u/#")
        try:
            yield world
        finally:
            world.close()
