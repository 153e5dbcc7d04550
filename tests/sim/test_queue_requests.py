"""The queue at several nodes: topics that left before anybody asked, requests that are repeated where less is
known, and messages that were taken when the next log did not answer."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.streams.stream import StreamSpec
from millrace.lab.sim.cluster.calls import NoAnswer, call
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.node.groups.consumer_groups import queue_name
from millrace.node.server import Server
from millrace.types import Message
from sim.calm import calm_plan

TOPIC = "a/b"
NAME = queue_name(TOPIC)
# Longer than nodes take to see that one is gone, and to elect.
LONG_S = 20


class Queue:
    """Three nodes with a queue, and somebody who asks them."""

    def __init__(self) -> None:
        self.world = ClusterWorld(calm_plan(), None)
        self._loop = self.world.client_loop()
        for host in self.world.hosts:
            host.start()
        self.world.until(60, self.world.is_quiet, "forming", self.world.describe)
        spec = DurableGroupSpec(name=NAME, filters=(TOPIC,))
        self.ask(0, lambda server: server.engine.groups.create(spec, earliest=True))

    def ask(self, host: "int | Host", make: Callable[[Server], Coroutine[Any, Any, Any]]) -> Any:
        """What a node answers; NoAnswer."""
        chosen = self.world.hosts[host] if isinstance(host, int) else host
        found: list[Any] = []

        async def work() -> None:
            try:
                found.append(await call(self._loop, chosen, make, LONG_S, self.world.on_trouble))
            except NoAnswer as error:
                found.append(error)

        self._loop.call_soon(lambda: self._loop.create_task(work()))
        self.world.until(2 * LONG_S, lambda: bool(found), "an answer", str)
        if isinstance(found[0], NoAnswer):
            raise found[0]
        return found[0]

    def publish(self, payload: bytes) -> None:
        message = Message(topic=TOPIC, payload=payload, qos=1)
        self.ask(0, lambda server: server.engine.groups.publishing.publish(message))

    def put(self, *filters: str, replicas: int = 3) -> None:
        spec = StreamSpec(name="s", filters=filters, replicas=replicas)
        self.ask(0, lambda server: server.engine.opening.put(spec, create=False))

    def take(self, host: "int | Host", request: str = "") -> list[bytes]:
        taken = self.ask(
            host, lambda server: server.engine.groups.take(NAME, count=3, lease_us=0, request=request)
        )
        return [one.message.payload for one in taken]

    def wait(self, seconds: int) -> None:
        self.world.until(seconds, None, "", str)

    def homes(self, stream: str) -> list[Host]:
        """Who keeps the only shard of a stream."""
        server = self.world.hosts[0].server
        assert server is not None
        definitions = server.engine.definitions.state
        (number,) = definitions.table.streams[stream].shards
        members = definitions.members
        names = [members.members[one].name for one in members.assignments[number].replicas]
        return [host for host in self.world.hosts if host.name in names]

    def cut_off(self, host: Host) -> None:
        others = [one.address for one in self.world.hosts if one is not host]
        self.world.sockets.block([host.address], others)
        self.world.sockets.block(others, [host.address])


def test_what_a_topic_left_behind_before_anybody_asked_is_taken() -> None:
    queue = Queue()
    queue.publish(b"0")
    queue.put("a/#")
    queue.publish(b"1")
    queue.put("c/#")
    queue.publish(b"2")
    assert sorted(queue.take(1) + queue.take(1)) == [b"0", b"1", b"2"]
    queue.world.end()


def test_a_node_that_knows_nothing_of_a_request_does_not_answer_it_with_nothing() -> None:
    """It lacks the message and that it was taken: to say that there is none would lose it."""
    queue = Queue()
    away = queue.world.hosts[2]
    queue.cut_off(away)
    queue.wait(LONG_S)
    queue.publish(b"0")
    assert queue.take(1, "r") == [b"0"]
    with pytest.raises(NoAnswer, match="no leader for 5 s"):
        queue.take(away, "r")
    queue.world.sockets.heal()
    queue.wait(LONG_S)
    assert queue.take(away, "r") == [b"0"]
    queue.world.end()


def test_a_request_that_found_nothing_may_be_asked_again() -> None:
    queue = Queue()
    assert queue.take(0, "r") == []
    queue.publish(b"0")
    assert queue.take(0, "r") == [b"0"] == queue.take(1, "r")
    queue.world.end()


def test_what_was_taken_is_given_though_the_next_log_does_not_answer() -> None:
    """Without a lease it is done: a refusal because of the other log would lose it."""
    queue = Queue()
    queue.publish(b"0")
    queue.put("a/#", replicas=1)
    (lost,) = queue.homes("s")
    lost.is_wanted = False
    lost.crash(is_power_loss=False)
    queue.wait(LONG_S)
    other = next(host for host in queue.world.hosts if host is not lost)
    assert queue.take(other) == [b"0"]
    queue.world.end()
