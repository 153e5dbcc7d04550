"""The will of a client whose node fell, where an older CONNECT of the client got into the log behind it."""

import asyncio

import pytest

from millrace.client.conversation.events import Connected
from millrace.client.conversation.protocol import Options, Protocol
from millrace.lab.sim.cluster.checks import Logs
from millrace.lab.sim.cluster.host import MQTT_PORT, Host
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.types import Message, Version, Will
from sim.calm import calm_plan


class Client(asyncio.Protocol):
    """Connects once, with a will, and keeps nothing."""

    def __init__(self, world: ClusterWorld, host: Host, word: bytes) -> None:
        will = Will(message=Message(topic="w/c", payload=word, qos=1))
        options = Options(client_id="c", version=Version.MQTT_5, clean_start=True, will=will)
        self.is_accepted = False
        self.transport: asyncio.Transport | None = None
        self._protocol = Protocol(options)
        self._loop = world.client_loop()
        dial = self._loop.create_connection
        self._loop.call_soon(lambda: self._loop.create_task(dial(lambda: self, host.address, MQTT_PORT)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._protocol.connect(self._loop.time())
        while data := self._protocol.data_to_send(self._loop.time()):
            transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data, self._loop.time())
        while (event := self._protocol.next_event()) is not None:
            self.is_accepted = self.is_accepted or isinstance(event, Connected)


@pytest.mark.parametrize("comes_back", [False, True])
def test_the_will_of_a_node_that_fell_is_published_though_an_older_connection_has_its_record(
    comes_back: bool,
) -> None:
    """Seed 8102047. The client gave up waiting at a node that was cut off, connected at another, and fell
    together with that. Then the older CONNECT got through: it took the record, and the will in it was
    nobody's to publish. Now whoever looks after what the node left does so, or the node once it is back."""
    world = ClusterWorld(calm_plan(), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    slow, fallen, other = sorted(world.hosts, key=lambda host: leads(host))
    others = [fallen.address, other.address]
    world.sockets.block([slow.address], others, is_short=True)
    older = Client(world, slow, b"older")
    world.until(1, None, "", str)
    assert older.transport is not None and not older.is_accepted
    older.transport.abort()
    newer = Client(world, fallen, b"newer")
    world.until(10, lambda: newer.is_accepted, "CONNACK", world.describe)
    fallen.is_wanted = False
    fallen.crash(is_power_loss=True)
    world.sockets.heal()
    living = [slow, other]
    world.until(30, lambda: Logs(living).counts[b"older"] == 1, "the older CONNECT", world.describe)
    assert not older.is_accepted
    if comes_back:
        fallen.is_wanted = True
        fallen.start()
        world.until(60, world.is_quiet, "a start", world.describe)
    up = [host for host in world.hosts if host.server is not None]
    world.until(60, lambda: Logs(up).counts[b"newer"] == 1, "the will", world.describe)
    world.until(5, None, "", str)
    assert Logs(up).counts == {b"newer": 1, b"older": 1}
    assert other.server is not None and not other.server.engine.sessions.store.displaced
    world.end()


def leads(host: Host) -> bool:
    assert host.server is not None
    return host.server.engine.sessions.group.is_leader
