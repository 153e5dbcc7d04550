"""A stream that is changed or deleted while messages are under way: on whole nodes, with links that are slow.
Order holds across the change, and whoever waits for a log that is gone is answered."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import pytest

from millrace.broker.meta.state import META_GROUP
from millrace.broker.streams.stream import Replication, StreamSpec
from millrace.lab.sim.cluster.calls import NoAnswer, call
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.mqtt_clients import History, Sent, Subscriber
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.server import Server
from millrace.node.shards.publishing import Published
from millrace.replication.contract import ReplicaId
from millrace.types import Message, Version
from sim.calm import calm_plan

TOPIC = "t/a"
DEFAULT_SHARD = 16
# Longer than anybody waits for a leader, or for a level to be reached.
LONG_S = 20
# Long enough for messages to cross a link that works, and less than nodes take to count another as cut off.
SOON_S = 1


class Scene:
    """Three nodes with a stream, somebody who publishes and changes it, and a subscriber at the last one."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.world = ClusterWorld(calm_plan(seed=seed), None)
        self.hosts = self.world.hosts
        self._loop = self.world.client_loop()
        for host in self.hosts:
            host.start()
        self.until(60, self.world.is_quiet, "forming")
        self.spec = StreamSpec(name="s", filters=("t/#",), **settings)
        self.change(self.spec)
        self.until(60, self.world.is_quiet, "the stream")
        self.sent: list[str] = []
        self._history = History(roots={"t"}, received={"reader": []})

    # ------------------------------------------------------------------------------------- what people do

    def begin(self, host: Host, make: Callable[[Server], Coroutine[Any, Any, Any]]) -> list[Any]:
        """Ask a node; its answer, or NoAnswer, will be in the list."""
        found: list[Any] = []

        async def work() -> None:
            try:
                found.append(await call(self._loop, host, make, 2 * LONG_S, self.world.on_trouble))
            except NoAnswer as error:
                found.append(error)

        self._loop.call_soon(lambda: self._loop.create_task(work()))
        return found

    def change(self, spec: StreamSpec, host: int = 0) -> None:
        self.spec = spec
        found = self.begin(self.hosts[host], lambda server: server.engine.opening.put(spec, create=False))
        self.until(LONG_S, lambda: bool(found), "the change")
        assert not isinstance(found[0], NoAnswer), found

    def switch(self, replication: Replication, host: int = 0) -> None:
        self.change(msgspec.structs.replace(self.spec, replication=replication), host)

    def delete(self, host: int = 0) -> list[Any]:
        return self.begin(self.hosts[host], lambda server: server.engine.opening.delete("s"))

    def publish(self, host: int) -> list[Any]:
        text = f"m:{len(self.sent)}"
        self.sent.append(text)
        self._history.sent[text.encode()] = Sent("m", len(self.sent), TOPIC, 1)
        message = Message(topic=TOPIC, payload=text.encode(), qos=1)
        return self.begin(self.hosts[host], lambda server: server.engine.groups.publishing.publish(message))

    def published(self, host: int) -> Published:
        found = self.publish(host)
        self.until(LONG_S, lambda: bool(found), "an answer")
        assert isinstance(found[0], Published), found
        return found[0]

    def subscribe(self) -> None:
        self.reader_loop = self.world.client_loop()
        reader = Subscriber(
            "reader",
            self.reader_loop,
            filter="t/#",
            qos=1,
            is_durable=True,
            rng=Random(1),
            nodes=[self.hosts[2].address],
            history=self._history,
            note=self.world.note,
            version=Version.MQTT_5,
            is_wandering=False,
        )
        self.until(LONG_S, lambda: reader.is_subscribed, "a subscription")

    @property
    def got(self) -> list[str]:
        return [payload.decode() for payload in self._history.received["reader"]]

    # ---------------------------------------------------------------------------------- what is the matter

    def until(self, seconds: int, condition: Callable[[], bool] | None, what: str) -> None:
        self.world.until(seconds, condition, what, self.world.describe)

    def slow(self, sender: int, receiver: int) -> None:
        """What goes from the one to the other arrives once the links are well again."""
        addresses = [self.hosts[sender].address], [self.hosts[receiver].address]
        self.world.sockets.block(*addresses, is_short=True)

    def group(self, host: int, number: int) -> ReplicationGroup:
        server = self.hosts[host].server
        assert server is not None
        return server.engine.replicas.groups[number]

    def lead(self, host: int, number: int) -> None:
        """Make a node the leader of a group."""
        replica = ReplicaId(self.group(host, number).replica)

        def is_done() -> bool:
            if self.group(host, number).is_leader:
                return True
            for other, asked in enumerate(self.hosts):
                group = self.group(other, number)
                if group.is_leader and asked.loop is not None:
                    asked.loop.inside(lambda group=group: group.transfer(replica))
            return False

        self.until(LONG_S, is_done, "another leader")

    @property
    def shard(self) -> int:
        server = self.hosts[0].server
        assert server is not None
        (number,) = server.engine.definitions.table.streams["s"].shards
        return number

    def crash(self, host: int) -> None:
        self.hosts[host].is_wanted = False
        self.hosts[host].crash(is_power_loss=False)


def test_a_leaderless_log_is_everywhere_before_its_successor_takes_anything() -> None:
    """The subscriber's node has yet to get the old log, and could get the new one first."""
    scene = Scene(replication=Replication.LEADERLESS)
    scene.subscribe()
    for sender in (0, 1):
        scene.slow(sender, 2)
    scene.published(0)
    scene.switch(Replication.QUORUM)
    waiting = scene.publish(0)
    scene.until(SOON_S, None, "")
    assert scene.group(0, scene.shard).is_serving and not waiting
    scene.world.sockets.heal()
    scene.until(LONG_S, lambda: bool(waiting) and len(scene.got) >= len(scene.sent), "delivery")
    assert scene.got == scene.sent
    scene.world.end()


def test_nobody_waits_for_a_node_that_is_gone_to_get_a_leaderless_log() -> None:
    scene = Scene(replication=Replication.LEADERLESS)
    scene.crash(2)
    scene.until(LONG_S, None, "")
    scene.published(0)
    scene.switch(Replication.QUORUM)
    waiting = scene.publish(0)
    scene.until(2 * SOON_S, lambda: bool(waiting), "an answer")
    scene.world.end()


def test_a_leaderless_log_is_not_delivered_before_the_end_of_a_sealed_shard() -> None:
    """The subscriber's node cannot hear the leader of the old shard; the new log reaches it at once."""
    scene = Scene()
    scene.subscribe()
    scene.lead(0, META_GROUP)
    scene.lead(1, scene.shard)
    scene.slow(1, 2)
    for _ in range(3):
        scene.published(0)
    scene.switch(Replication.LEADERLESS)
    for _ in range(3):
        scene.published(0)
    scene.until(SOON_S, None, "")
    scene.world.sockets.heal()
    scene.until(LONG_S, lambda: len(scene.got) >= len(scene.sent), "delivery")
    assert scene.got == scene.sent
    scene.world.end()


def test_a_session_that_is_behind_reads_logs_in_the_order_in_which_they_were_sealed() -> None:
    scene = Scene(replication=Replication.LEADERLESS)
    scene.subscribe()
    node, client = scene.hosts[2].address, scene.reader_loop.address
    scene.world.sockets.block([node], [client])
    for replication in (Replication.QUORUM, Replication.LEADERLESS, Replication.PRIMARY_BACKUP):
        for _ in range(200):
            scene.publish(2)
        scene.published(2)
        scene.switch(replication)
    scene.published(2)
    scene.world.sockets.heal()
    scene.until(LONG_S, lambda: len(set(scene.got)) >= len(scene.sent), "delivery")
    # It may have come back over another connection: then it gets again what it had not acknowledged.
    assert list(dict.fromkeys(scene.got)) == scene.sent
    scene.world.end()


def test_whoever_waits_for_a_stream_that_is_deleted_is_answered() -> None:
    """Its only replica is down: the message goes where its topic belongs now."""
    scene = Scene(replicas=1)
    (home,) = [number for number in range(3) if scene.group(number, scene.shard).is_leader]
    other = (home + 1) % 3
    scene.crash(home)
    waiting = scene.publish(other)
    scene.until(SOON_S, None, "")
    assert not waiting
    scene.delete(other)
    scene.until(LONG_S, lambda: bool(waiting), "an answer")
    assert isinstance(waiting[0], Published) and waiting[0].shard == DEFAULT_SHARD, waiting
    scene.world.end()


def test_whoever_waits_for_a_leaderless_stream_that_is_deleted_is_answered() -> None:
    scene = Scene(replication=Replication.LEADERLESS, ack="all")
    scene.crash(2)
    waiting = scene.publish(0)
    scene.until(SOON_S, None, "")
    assert not waiting, "one of those that have to have it is away"
    scene.delete()
    scene.until(2 * SOON_S, lambda: bool(waiting), "an answer")
    assert isinstance(waiting[0], NoAnswer), "not on all disks, and on none any more"
    scene.world.end()


@pytest.mark.parametrize("to", [Replication.ROUTED, Replication.LEADERLESS])
def test_whoever_waits_for_a_stream_that_is_changed_is_answered(to: Replication) -> None:
    """Whether the old shard has it is open while its only replica is down: it is not acknowledged."""
    scene = Scene(replicas=1)
    (home,) = [number for number in range(3) if scene.group(number, scene.shard).is_leader]
    other = (home + 1) % 3
    scene.crash(home)
    waiting = scene.publish(other)
    scene.until(SOON_S, None, "")
    scene.switch(to, other)
    scene.until(LONG_S, lambda: bool(waiting), "an answer")
    assert isinstance(waiting[0], NoAnswer), waiting
    scene.world.end()
