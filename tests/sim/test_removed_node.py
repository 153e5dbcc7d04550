"""A node that is removed while it runs learns of it, says so, and sends its clients elsewhere [rule 36]."""

import asyncio
from typing import Any

import pytest

from millrace.client.conversation.protocol import Options, Protocol
from millrace.kernels.publish import body_start
from millrace.lab.sim.cluster.host import MQTT_PORT, Host
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.reasons import Reason
from millrace.types import Version
from millrace.wire.mqtt.codec import decode
from millrace.wire.mqtt.connection import wanted_bytes
from millrace.wire.mqtt.packets import Connack, Disconnect, Packet
from sim.calm import calm_plan

# From the time at which a member that knows of the removal can be reached.
LEARNS_S = 6
PACKET_BYTES_MAX = 1 << 20


class Visitor(asyncio.Protocol):
    """A client that connects once and keeps the packets that it is sent."""

    def __init__(self, world: ClusterWorld, host: Host, name: str, expiry_s: int = 0) -> None:
        self.packets: list[Packet] = []
        self.is_gone = False
        self._rest = b""
        self._transport: Any = None
        self._protocol = Protocol(
            Options(
                client_id=name, version=Version.MQTT_5, clean_start=not expiry_s, session_expiry_s=expiry_s
            )
        )
        self._loop = world.client_loop()
        dial = self._loop.create_connection
        self._loop.call_soon(lambda: self._loop.create_task(dial(lambda: self, host.address, MQTT_PORT)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._protocol.connect(self._loop.time())
        while data := self._protocol.data_to_send(self._loop.time()):
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        while len(data) >= (end := wanted_bytes(data[:5], PACKET_BYTES_MAX)):
            self.packets.append(decode(data[0], data[body_start(data, 0) : end], Version.MQTT_5))
            data = data[end:]
        self._rest = data

    def eof_received(self) -> bool:
        self.is_gone = True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True


def told(visitor: Visitor) -> tuple[Reason, set[str]]:
    """Why the last packet says that the client has to go, and where else it may go."""
    last = visitor.packets[-1]
    assert isinstance(last, Connack | Disconnect)
    return last.reason, set((last.server_reference or "").split())


def formed(seed: int = 1) -> ClusterWorld:
    world = ClusterWorld(calm_plan(seed=seed), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    return world


def remove(world: ClusterWorld, removed: Host) -> None:
    by = next(host for host in world.hosts if host is not removed and leads_meta(host) is not None)
    assert by.loop is not None and by.server is not None
    removing = by.loop.create_task(by.server.engine.cluster.remove(removed.name))
    world.until(10, removing.done, "the word", world.describe)
    removing.result()
    world.leave(removed)


def leads_meta(host: Host) -> str | None:
    assert host.server is not None
    return host.server.engine.definitions.group.status().leader


def waits_for(host: Host) -> str:
    assert host.server is not None and host.loop is not None
    return host.loop.inside(lambda: host.server.admin.readiness.waits_for)  # type: ignore[union-attr]


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize("position", [0, 2])
def test_clients_of_a_removed_node_are_sent_elsewhere(
    position: int, is_cut_off: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the entry never reached it, because it was cut off while it was removed."""
    world = formed()
    removed = world.hosts[position]
    others = {f"{host.address}:{MQTT_PORT}" for host in world.hosts if host is not removed}
    clean, durable = Visitor(world, removed, "clean"), Visitor(world, removed, "durable", expiry_s=100)
    world.until(10, lambda: clean.packets and durable.packets, "CONNACK", world.describe)
    if is_cut_off:
        rest = [host.address for host in world.hosts if host is not removed]
        world.sockets.block([removed.address], rest)
        world.sockets.block(rest, [removed.address])
        # Until somebody else leads.
        world.until(10, None, "", str)
    remove(world, removed)
    world.until(10, None, "", str)
    if is_cut_off:
        assert not clean.is_gone
        world.sockets.heal()
    world.until(LEARNS_S, lambda: clean.is_gone and durable.is_gone, "the clients to go", world.describe)
    assert told(clean) == told(durable) == (Reason.USE_ANOTHER_SERVER, others)

    late = Visitor(world, removed, "late")
    world.until(10, lambda: late.is_gone, "a refusal", world.describe)
    assert isinstance(late.packets[-1], Connack)
    assert told(late) == (Reason.USE_ANOTHER_SERVER, others)
    assert "removed from the cluster" in waits_for(removed)
    world.until(10, None, "", str)
    said = [line for line in caplog.messages if line.startswith("node: this node was removed")]
    assert len(said) == 1

    # Nobody else is disturbed, and the client is at home elsewhere.
    elsewhere = Visitor(world, next(h for h in world.hosts if h is not removed), "durable", expiry_s=100)
    world.until(10, lambda: elsewhere.packets, "CONNACK", world.describe)
    connack = elsewhere.packets[0]
    assert isinstance(connack, Connack) and connack.session_present
    world.end()


def test_a_removed_node_that_starts_again_says_why_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    world = formed()
    removed = world.hosts[2]
    removed.is_wanted = False
    removed.crash(is_power_loss=False)
    world.until(10, None, "", str)
    remove(world, removed)
    removed.start()
    removed.is_wanted = False
    world.until(LEARNS_S, lambda: removed.loop is None, "an end", world.describe)
    assert any("empty directory" in line for line in caplog.messages)
    world.end()
