"""What the primary of a stream by deadlines counts is told by any node."""

from typing import Any

from millrace.broker.streams.stream import StreamSpec
from millrace.node.server import Server
from millrace.types import Message
from sim.test_queue_requests import Queue

SPEC = {
    "name": "s",
    "filters": ["f/#"],
    "replication": "primary-backup",
    "primary_backup": {
        "schedule": "frame",
        "topics": [{"filter": "f/#", "period_ms": 5_000, "deadline_ms": 500, "retention": 2}],
    },
}


def test_any_node_tells_what_the_primary_has_dispatched() -> None:
    scene = Queue()
    stream: Any = scene.ask(0, lambda server: server.engine.opening.put(StreamSpec.read(SPEC), create=True))
    (number,) = stream.shards
    scene.world.until(30, scene.world.is_quiet, "the pair", scene.world.describe)
    servers = [host.server for host in scene.world.hosts]
    assert all(servers)
    shards = {s.config.node.id: s.engine.shards[number] for s in servers if s and number in s.engine.shards}
    (primary,) = (node for node, shard in shards.items() if shard.group.is_leader)
    message = Message(topic="f/1", payload=b"", qos=1)
    scene.ask(0, lambda server: server.engine.groups.publishing.publish(message))

    async def figures(server: Server) -> dict[str, Any]:
        return await server.admin.frame_figures(primary, number)

    def dispatched(row: dict[str, Any]) -> int:
        return int(row["measured"][0]["of"])

    assert [dispatched(scene.ask(host, figures)) for host in range(3)] == [1, 1, 1]
    others: list[Any] = [shard for node, shard in shards.items() if node != primary]
    assert others and all(dispatched(shard.shown()) == 0 for shard in others)
    scene.world.end()
