"""One client, one connection [rule 7]: clean sessions at several nodes, whose words on them cross or
come late."""

import asyncio
from typing import Any

from millrace.client.conversation.protocol import Options, Protocol
from millrace.lab.sim.cluster.host import MQTT_PORT
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.types import Version
from sim.calm import calm_plan


class Visitor(asyncio.Protocol):
    """A client that connects once."""

    def __init__(self, world: ClusterWorld, node: int) -> None:
        self.is_here = False
        self.is_gone = False
        self._transport: Any = None
        self._protocol = Protocol(Options(client_id="same", version=Version.MQTT_5, clean_start=True))
        self._loop = world.client_loop()
        address = world.hosts[node].address
        dial = self._loop.create_connection
        self._loop.call_soon(lambda: self._loop.create_task(dial(lambda: self, address, MQTT_PORT)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._protocol.connect(self._loop.time())
        while data := self._protocol.data_to_send(self._loop.time()):
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.is_here = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True


def formed() -> ClusterWorld:
    world = ClusterWorld(calm_plan(), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    return world


def visit(world: ClusterWorld, node: int) -> Visitor:
    visitor = Visitor(world, node)
    world.until(10, lambda: visitor.is_here, "CONNACK", world.describe)
    return visitor


def slow(world: ClusterWorld, sender: int, receiver: int) -> None:
    """What goes from the one to the other arrives once the links are well again."""
    world.sockets.block([world.hosts[sender].address], [world.hosts[receiver].address], is_short=True)


def test_the_later_connection_stays_though_the_word_on_the_earlier_comes_late() -> None:
    world = formed()
    slow(world, 0, 1)
    earlier = visit(world, 0)
    later = visit(world, 1)
    world.until(1, lambda: earlier.is_gone, "the earlier to go", world.describe)
    world.sockets.heal()
    world.until(3, None, "", str)
    assert not later.is_gone
    world.end()


def test_of_two_whose_words_cross_the_later_stays() -> None:
    world = formed()
    slow(world, 0, 1)
    slow(world, 1, 0)
    earlier = visit(world, 0)
    later = visit(world, 1)
    world.sockets.heal()
    world.until(3, lambda: earlier.is_gone, "the earlier to go", world.describe)
    world.until(3, None, "", str)
    assert not later.is_gone
    world.end()


def test_a_node_whose_clock_is_slow_takes_over_as_well() -> None:
    """Its clients come later than those it has heard of, whatever its clock says."""
    world = formed()
    server = world.hosts[1].server
    assert server is not None
    behind_us = 3_600_000_000
    wall_us = server.engine.presence.wall_us
    server.engine.presence.wall_us = lambda: wall_us() - behind_us
    earlier = visit(world, 0)
    world.until(1, None, "", str)
    later = visit(world, 1)
    world.until(1, lambda: earlier.is_gone, "the earlier to go", world.describe)
    world.until(3, None, "", str)
    assert not later.is_gone
    world.end()
