"""A node says what its clients wait for, and why, once a wait lasts longer than a second."""

import logging

import pytest

from millrace.lab.sim.cluster.world import ClusterWorld
from sim.calm import calm_plan

LOGGER = "millrace.events"


def formed() -> ClusterWorld:
    world = ClusterWorld(calm_plan(), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    return world


def sentences(world: ClusterWorld, host: int) -> tuple[str, ...]:
    server = world.hosts[host].server
    assert server is not None
    return server.admin.readiness.waits.sentences


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    return [line.removeprefix("node: ") for line in lines if "waiting" in line]


def test_a_node_without_a_majority_says_which_nodes_its_clients_wait_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    world = formed()
    world.until(3, None, "", str)
    assert [sentences(world, host) for host in range(3)] == [(), (), ()]
    for host in world.hosts[1:]:
        host.is_wanted = False
        host.crash(is_power_loss=False)
    # Longer than it takes to see that they are gone, and a second.
    world.until(4, None, "", str)
    waits = sentences(world, 0)
    assert [one.partition(":")[0] for one in waits] == ["definitions", "sessions", "shard 16"]
    assert all("waiting for a majority" in one and "n2, n3 do not answer" in one for one in waits)
    world.until(30, None, "", str)
    # The other nodes are down: these are lines of the first one.
    assert sorted(told(caplog)) == sorted(waits)
    for host in world.hosts[1:]:
        host.start()
    world.until(60, world.is_quiet, "forming again", world.describe)
    world.until(2, None, "", str)
    assert sentences(world, 0) == ()
    world.end()
