"""The ways by which messages, and words about them, come from clients and go to them, one small driver each.

`begin` is what a client does while it has its rights, if it has any: connect, subscribe, wait. `finish` is
the moment that counts, and says whether anything guarded came through. Whoever takes rights away does so in
between.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from conformance.mqtt import wire
from conformance.mqtt.raw import Client
from e2e.access_world import ROOT, Cell
from e2e.http_calls import Answer
from e2e.sent_events import SentEvents
from e2e.staged import packet, section
from waiting import pause

_WAIT_MS = 10_000
_LINE_S = 10.0
PUBLISH, SUBSCRIBE = "publish", "subscribe"


class Driver:
    """`right` is what the path needs: to publish, to subscribe, or a role."""

    right: ClassVar[str] = SUBSCRIBE
    prefix: ClassVar[str] = "m"

    async def begin(self, cell: Cell) -> Any:
        """None where the client was refused already."""
        raise NotImplementedError

    async def finish(self, cell: Cell, begun: Any) -> bool:
        raise NotImplementedError


# ------------------------------------------------------------------------------------------ publishing


async def offer(client: Client, topic: str, qos: int) -> None:
    """Publish with the whole handshake, refused or not."""
    number = client.packet_id() if qos else None
    await client.send(wire.publish(topic, b"secret", qos=qos, packet_id=number))
    if number is None:
        client.pending += await client.ping()
        return
    answer = await client.take(wire.PUBACK if qos == 1 else wire.PUBREC, packet_id=number)
    if qos == 2 and answer.reason < 0x80:
        await client.send(wire.ack(wire.PUBREL, number))
        await client.take(wire.PUBCOMP, packet_id=number)


@dataclass
class MqttPublish(Driver):
    qos: int
    prefix: str = "m"  # type: ignore[misc]
    right = PUBLISH

    async def begin(self, cell: Cell) -> Any:
        return await cell.observer(self.qos), await cell.connect()

    async def finish(self, cell: Cell, begun: Any) -> bool:
        observer, client = begun
        for topic in (cell.topic, cell.open_topic):
            await offer(client, topic, self.qos)
        return await cell.sees(observer)


class WillOfAClient(Driver):
    """Checked when the client connects, and once more when the will is due, at once or after a delay."""

    right = PUBLISH
    delay_s = 0

    async def begin(self, cell: Cell) -> Any:
        observer = await cell.observer()
        client = await self._connected(cell, cell.user, cell.topic)
        if client is not None and self.delay_s:
            await client.drop()
        return None if client is None else (observer, client)

    async def _connected(self, cell: Cell, user: str, topic: str) -> Client | None:
        will = wire.Will(topic=topic, qos=1, props={"will_delay": self.delay_s} if self.delay_s else {})
        return await cell.world.connect(user, cell.node, keep=bool(self.delay_s), will=will)

    async def finish(self, cell: Cell, begun: Any) -> bool:
        observer, client = begun
        await client.drop()
        after = await self._connected(cell, ROOT, cell.open_topic)
        assert after is not None
        await after.drop()
        return await cell.sees(observer)


class DelayedWill(WillOfAClient):
    delay_s = 1


@dataclass
class HttpPublish(Driver):
    path: str
    right = PUBLISH

    async def begin(self, cell: Cell) -> Any:
        if self.path == "/message":
            await cell.world.ask("PUT", "/topic", {"topic": cell.topic})
        return await cell.observer()

    async def finish(self, cell: Cell, begun: Any) -> bool:
        one = {"topic": cell.topic, "payload": "secret", "qos": 1}
        match self.path:
            case "/v1/publish":
                await cell.call("POST", self.path, one)
            case "/v1/publish/batch":
                await cell.call("POST", self.path, {"messages": [one]})
            case _:
                await cell.call("PUT", self.path, {"topic": cell.topic, "message": "secret"})
        await cell.publish_open()
        return await cell.sees(begun)


class Staged(Driver):
    """Two steps: what is staged becomes visible by a commit, and both ask."""

    right = PUBLISH

    async def begin(self, cell: Cell) -> Any:
        observer = await cell.observer()
        (row,) = (await cell.world.ask("GET", "/v1/streams/m"))["shard_list"]
        shard = row["shard"]
        body = section(shard, 0, packet(cell.topic, b"secret"))
        path = f"/v1/streams/m/stage?writer=w{cell.number}&batch=0&attempt=a"
        answer = await cell.call("POST", path, raw=body, Content_Type="application/octet-stream")
        assert answer.status in (200, 403), answer
        return observer, shard

    async def finish(self, cell: Cell, begun: Any) -> bool:
        observer, shard = begun
        form = {"batch": 0, "attempts": {"a": {str(shard): 1}}}
        answer = await cell.call("POST", f"/v1/writers/w{cell.number}/commit", form)
        assert answer.status in (200, 403, 409), answer
        await cell.publish_open()
        return await cell.sees(observer)


# ------------------------------------------------------------------------------------------- receiving


@dataclass
class Live(Driver):
    """A subscription that was granted; `share` is that of a group."""

    prefix: str = "m"  # type: ignore[misc]
    qos: int = 1
    share: bool = False

    async def begin(self, cell: Cell) -> Any:
        client = await cell.connect()
        assert client is not None
        filter = f"$share/g{cell.number}/{cell.filter}" if self.share else cell.filter
        await cell.listen(client, filter, self.qos)
        return client

    async def finish(self, cell: Cell, begun: Any) -> bool:
        await cell.publish_both(self.qos)
        return await cell.sees(begun)


class Retained(Driver):
    async def begin(self, cell: Cell) -> Any:
        await cell.publish_both(retain=True)
        return await cell.connect()

    async def finish(self, cell: Cell, begun: Any) -> bool:
        await cell.listen(begun)
        return await cell.sees(begun)


@dataclass
class Waiting(Driver):
    """Messages of a durable session that came while its client was away; `sent`: they were sent before, and
    not acknowledged."""

    prefix: str = "m"  # type: ignore[misc]
    qos: int = 1
    sent: bool = False

    async def begin(self, cell: Cell) -> Any:
        name = f"session-{cell.number}"
        client = await cell.world.connect(cell.user, 0, name, keep=True)
        assert client is not None
        await cell.listen(client, qos=self.qos)
        if not self.sent:
            await client.drop()
        await cell.publish_both(self.qos)
        if self.sent:
            await client.take(wire.PUBLISH, topic=cell.open_topic)
            await client.drop()
        return name

    async def finish(self, cell: Cell, begun: Any) -> bool:
        client = await cell.connect(begun, keep=True)
        assert client is not None
        return await cell.sees(client)


def _has_secret(answer: Answer) -> bool:
    return b"secret" in answer.body


class LongPoll(Driver):
    """A request that waits for messages."""

    async def begin(self, cell: Cell) -> Any:
        path, form = await self._request(cell)
        task = asyncio.create_task(cell.call("POST" if form else "GET", path, form))
        # The request is at the node by then; where it came later it would only be refused sooner.
        for _ in range(3):
            await pause()
        return task

    async def _request(self, cell: Cell) -> tuple[str, Any]:
        raise NotImplementedError

    async def finish(self, cell: Cell, begun: Any) -> bool:
        await cell.publish_both()
        return _has_secret(await begun)


class GroupTake(LongPoll):
    async def _request(self, cell: Cell) -> tuple[str, Any]:
        name = f"g{cell.number}"
        await cell.world.ask("POST", "/v1/groups", {"name": name, "filters": [cell.filter]})
        return f"/v1/groups/{name}/take", {"wait_ms": _WAIT_MS if cell.comes else 2_000}


class QueueTake(LongPoll):
    async def _request(self, cell: Cell) -> tuple[str, Any]:
        await cell.world.ask("PUT", "/topic", {"topic": cell.topic})
        return "/message", {"topic": cell.topic, "wait_ms": _WAIT_MS if cell.comes else 2_000}


class ReadMessages(LongPoll):
    async def _request(self, cell: Cell) -> tuple[str, Any]:
        (row,) = (await cell.world.ask("GET", "/v1/streams/m"))["shard_list"]
        path = f"/v1/streams/m/shards/{row['shard']}/messages?from={row['next_offset']}"
        return f"{path}&wait_ms={_WAIT_MS}", None


class ReadBlocks(Driver):
    """What Spark reads: needs the right to all that the stream's filters name."""

    prefix = "b"

    async def begin(self, cell: Cell) -> Any:
        stream = {"name": f"b{cell.number}", "filters": [cell.filter]}
        made = await cell.world.ask("POST", "/v1/streams", stream)
        await cell.publish_both()
        return f"/v1/streams/{stream['name']}/shards/{made['shard_list'][0]['shard']}/blocks?from=0"

    async def finish(self, cell: Cell, begun: Any) -> bool:
        answer = await cell.call("GET", begun)
        while cell.comes and answer.status == 404:
            # The other node has not opened the shard yet.
            await pause()
            answer = await cell.call("GET", begun)
        return _has_secret(answer)


class Tail(Driver):
    """Server-sent events of the dashboard."""

    async def begin(self, cell: Cell) -> Any:
        from base64 import b64encode

        port = cell.world.nodes[cell.node].http_port
        name = "Basic " + b64encode(f"{cell.user}:pw".encode()).decode()
        path = "/v1/tail?filter=" + cell.filter.replace("#", "%23")
        events = await asyncio.to_thread(SentEvents, port, path, Authorization=name)
        if events.status != 200:
            events.close()
            return None
        await asyncio.to_thread(events.comment)
        return events

    async def finish(self, cell: Cell, begun: Any) -> bool:
        await cell.publish_both()
        try:
            return bool((await asyncio.to_thread(begun.take, "message"))["payload"] == "secret")
        except EOFError:
            return False
        finally:
            begun.close()


class EdgeResult(Live):
    """What a function makes of a message is a message of its own topic."""

    async def finish(self, cell: Cell, begun: Any) -> bool:
        root = await cell.world.root()
        for topic in (cell.topic, cell.open_topic):
            await root.publish(f"e/{cell.number}", topic.encode(), 1)
        return await cell.sees(begun)


class DeadLetter(Live):
    """A message that a group gives up goes to a topic that has its own readers."""

    async def finish(self, cell: Cell, begun: Any) -> bool:
        world, source = cell.world, f"m/source/{cell.number}"
        name, dead = f"d{cell.number}", {"deliveries_max": 1, "dead_letter": cell.topic}
        await world.ask("POST", "/v1/groups", {"name": name, "filters": [source], **dead})
        observer = await cell.observer()
        await (await world.root()).publish(source, b"secret", 1)
        form = {"ack": "manual", "lease_ms": 60_000, "wait_ms": _WAIT_MS}
        (taken,) = (await world.ask("POST", f"/v1/groups/{name}/take", form))["messages"]
        await world.ask("POST", f"/v1/groups/{name}/nack", {"receipts": [taken["receipt"]]})
        await observer.take(wire.PUBLISH, topic=cell.topic)
        await cell.publish_open()
        return await cell.sees(begun)


# -------------------------------------------------------------------------------------------- text door


class TextClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @staticmethod
    async def connected(cell: Cell) -> "TextClient":
        port = cell.world.nodes[cell.node].text_port
        client = TextClient(*await asyncio.open_connection("127.0.0.1", port))
        assert (await client.ask(f"CONNECT|text-{cell.number}|{cell.user}|pw")).startswith("CONNACK")
        return client

    async def ask(self, line: str) -> str:
        self._writer.write(f"{line}\n".encode())
        return await self.line()

    async def line(self) -> str:
        async with asyncio.timeout(_LINE_S):
            return (await self._reader.readline()).decode().strip()

    def close(self) -> None:
        self._writer.close()


class TextPublish(Driver):
    right = PUBLISH

    async def begin(self, cell: Cell) -> Any:
        return await cell.observer(), await TextClient.connected(cell)

    async def finish(self, cell: Cell, begun: Any) -> bool:
        observer, client = begun
        for topic in (cell.topic, cell.open_topic):
            await client.ask(f"PUBLISH|{topic}|secret")
        client.close()
        return await cell.sees(observer)


class TextSubscribe(Driver):
    async def begin(self, cell: Cell) -> Any:
        client = await TextClient.connected(cell)
        for filter in (cell.filter, cell.open_topic):
            await client.ask(f"SUBSCRIBE|{filter}")
        return client

    async def finish(self, cell: Cell, begun: Any) -> bool:
        await cell.publish_both()
        line = await begun.line()
        begun.close()
        return line == f"MESSAGE|{cell.topic}|secret"


# --------------------------------------------------------------------------------------- administration


@dataclass
class Administration(Driver):
    """A route that a role opens."""

    role: str
    method: str
    path: str
    form: Any = None

    async def begin(self, cell: Cell) -> Any:
        if self.path.startswith("/v1/pipelines/"):
            await cell.world.ask("PUT", "/v1/pipelines/known", {"state": "running"}, node=cell.node)
        return self.path.format(number=cell.number)

    async def finish(self, cell: Cell, begun: Any) -> bool:
        form = None if self.form is None else {**self.form, **self._named(cell)}
        answer = await cell.call(self.method, begun, form)
        assert answer.status < 300 or answer.status == 403, answer
        return answer.status < 300

    def _named(self, cell: Cell) -> dict[str, Any]:
        match self.path:
            case "/v1/streams" | "/v1/groups":
                return {"name": f"made{cell.number}", "filters": [f"made/{cell.number}/#"]}
            case "/v1/users":
                return {"name": f"made{cell.number}", "password": "pw"}
            case "/v1/tokens":
                return {"name": f"made{cell.number}", "user": "bob"}
            case "/v1/rules":
                return {"filter": f"made/{cell.number}"}
            case _:
                return {}


class LiveFigures(Driver):
    """What the dashboard is told goes on for as long as its user has the role."""

    role = "observer"

    async def begin(self, cell: Cell) -> Any:
        from base64 import b64encode

        port = cell.world.nodes[cell.node].http_port
        name = "Basic " + b64encode(f"{cell.user}:pw".encode()).decode()
        events = await asyncio.to_thread(SentEvents, port, "/v1/live", Authorization=name)
        if events.status != 200:
            events.close()
            return None
        return events

    async def finish(self, cell: Cell, begun: Any) -> bool:
        """What was on its way when the role went is not counted: the stream must end."""
        try:
            for _ in range(1 if cell.comes else 20):
                await asyncio.to_thread(begun.next)
            return True
        except EOFError:
            return False
        finally:
            with contextlib.suppress(OSError):
                begun.close()


class PipelineReport(Driver):
    """Reports of pipelines are retained at a node below `$SYS`, and name tables and errors."""

    role = "observer"

    async def begin(self, cell: Cell) -> Any:
        report = {"state": "failed", "error": "secret"}
        await cell.world.ask("PUT", f"/v1/pipelines/p{cell.number}", report, node=cell.node)
        client = await cell.connect()
        assert client is not None
        return client

    async def finish(self, cell: Cell, begun: Any) -> bool:
        number = begun.packet_id()
        await begun.send(wire.subscribe(number, ("$SYS/#", 0), (f"$SYS/pipelines/p{cell.number}", 0)))
        await begun.take(wire.SUBACK, packet_id=number)
        seen = await begun.ping()
        with contextlib.suppress(AssertionError):
            while True:
                seen.append(await begun.receive(0.2))
        return any(b"secret" in one.payload for one in seen if one.kind == wire.PUBLISH)


PATHS: dict[str, Driver] = {
    **{f"publish at QoS {qos}": MqttPublish(qos) for qos in (0, 1, 2)},
    "publish to a routed stream": MqttPublish(1, "r"),
    "publish to a leaderless stream": MqttPublish(1, "l"),
    "publish to a primary-backup stream": MqttPublish(1, "p"),
    "will": WillOfAClient(),
    "delayed will": DelayedWill(),
    "HTTP publish": HttpPublish("/v1/publish"),
    "HTTP batch": HttpPublish("/v1/publish/batch"),
    "HTTP queue": HttpPublish("/message"),
    "staged publishing": Staged(),
    "text publish": TextPublish(),
    **{f"live at QoS {qos}": Live("m", qos) for qos in (0, 1, 2)},
    "live of a routed stream": Live("r"),
    "live of a leaderless stream": Live("l"),
    "live of a primary-backup stream": Live("p"),
    "$share": Live("m", share=True),
    "$share of a routed stream": Live("r", share=True),
    "$share of a leaderless stream": Live("l", share=True),
    "retained": Retained(),
    "durable replay": Waiting("m"),
    "durable replay of a routed stream": Waiting("r"),
    "durable replay of a leaderless stream": Waiting("l"),
    "resend at QoS 1": Waiting("m", 1, sent=True),
    "resume at QoS 2": Waiting("m", 2, sent=True),
    "resume at QoS 2 of a routed stream": Waiting("r", 2, sent=True),
    "group over HTTP": GroupTake(),
    "queue over HTTP": QueueTake(),
    "messages over HTTP": ReadMessages(),
    "blocks for Spark": ReadBlocks(),
    "tail over HTTP": Tail(),
    "text subscribe": TextSubscribe(),
    "edge results": EdgeResult(),
    "dead letters": DeadLetter(),
}

ROLES: dict[str, Driver] = {
    "status": Administration("observer", "GET", "/status"),
    "metrics": Administration("observer", "GET", "/metrics"),
    "clients": Administration("observer", "GET", "/v1/clients"),
    "sessions": Administration("observer", "GET", "/v1/sessions"),
    "trace": Administration("observer", "GET", "/v1/trace?topic=m/x"),
    "live figures": LiveFigures(),
    "pipelines": Administration("observer", "GET", "/v1/pipelines"),
    "log of a pipeline": Administration("observer", "GET", "/v1/pipelines/known/log"),
    "reports of pipelines by MQTT": PipelineReport(),
    "report of a pipeline": Administration(
        "operator", "PUT", "/v1/pipelines/p{number}", {"state": "running"}
    ),
    "new stream": Administration("operator", "POST", "/v1/streams", {}),
    "new group": Administration("operator", "POST", "/v1/groups", {}),
    "new user": Administration("admin", "POST", "/v1/users", {}),
    "new token": Administration("admin", "POST", "/v1/tokens", {}),
    "copy of users and rules": Administration("admin", "GET", "/v1/access"),
    "users and rules of a copy": Administration("admin", "POST", "/v1/access", {}),
    "new rule": Administration(
        "admin", "POST", "/v1/rules", {"user": "bob", "effect": "deny", "action": "publish"}
    ),
}
