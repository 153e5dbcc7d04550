"""A bridge: two nodes do not reach each other, a third one reaches both, and nobody's client waits
[rule 38]."""

import random
from typing import Any

import pytest

from millrace.broker.streams.stream import StreamSpec
from millrace.client.conversation.events import Published
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.mqtt_clients import History, Publisher
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.types import Version
from sim.calm import calm_plan

CUT_S = 40
# A cut is noticed after 1.5 s; what was lost in it is offered again a second later.
WAIT_S_MAX = 4.0


class Steady(Publisher):
    """Publishes all the time, at one node, and measures how long it waits for an acknowledgement."""

    def __init__(self, world: ClusterWorld, host: Host, qos: int, topic: str = "bridge") -> None:
        self.longest_s = 0.0
        self._asked_s: dict[int, float] = {}
        super().__init__(
            f"{topic}-{host.name}-{qos}",
            world.client_loop(),
            topic=topic,
            qos=qos,
            count=100_000,
            rng=random.Random(host.name),
            nodes=[host.address],
            history=History(),
            note=lambda who, what: None,
            version=Version.MQTT_5,
            is_wandering=False,
        )
        self.may_publish = True

    def _work(self) -> None:
        before = set(self._waiting)
        super()._work()
        for number in self._waiting.keys() - before:
            self._asked_s[number] = self.loop.time()
        self._look()

    def _look(self) -> None:
        waits = [self.loop.time() - asked_s for asked_s in self._asked_s.values()]
        self.longest_s = max([self.longest_s, *waits])

    def _on_published(self, event: Published) -> None:
        self._look()
        self._asked_s.pop(event.ticket, None)
        super()._on_published(event)


def formed(seed: int, **stream: Any) -> ClusterWorld:
    world = ClusterWorld(calm_plan(seed=seed), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    first = world.hosts[0]
    assert first.loop is not None and first.server is not None
    if stream:
        spec = StreamSpec.read({"name": "bridge", "filters": ["bridge/#"], **stream})
        making = first.loop.create_task(first.server.engine.opening.put(spec, create=True))
        world.until(30, making.done, "a stream", world.describe)
    # Leaders are spread over the nodes.
    world.until(30, None, "", str)
    return world


def cut(world: ClusterWorld, one: Host, other: Host) -> None:
    world.sockets.block([one.address], [other.address])
    world.sockets.block([other.address], [one.address])


@pytest.mark.parametrize(
    "pair", [(0, 1), *(pytest.param(pair, marks=pytest.mark.long) for pair in ((0, 2), (1, 2)))]
)
@pytest.mark.parametrize("stream", [{}, {"shards": 3}, {"replication": "primary-backup", "shards": 3}])
def test_nobody_waits_though_two_nodes_do_not_reach_each_other(
    pair: tuple[int, int], stream: dict[str, Any]
) -> None:
    world = formed(seed=7, **stream)
    clients = [Steady(world, host, qos) for host in world.hosts for qos in (1, 2)]
    world.until(10, lambda: all(client.is_connected for client in clients), "clients", world.describe)
    world.until(5, None, "", str)
    cut(world, *(world.hosts[number] for number in pair))
    world.until(CUT_S, None, "", str)
    waited_s = {client.name: round(client.longest_s, 1) for client in clients}
    assert max(waited_s.values()) < WAIT_S_MAX, waited_s
    world.sockets.heal()
    for client in clients:
        client._left = 0
    world.until(30, lambda: all(client.is_done for client in clients), "the rest", world.describe)
    world.end()
