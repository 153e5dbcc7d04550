"""A node that loses its disk and is back at once: its name is there, and nobody missed it. And one that is
removed while the other needs it."""

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.broker.shards.staging import make_key
from millrace.kernels.blocks import Run
from millrace.kernels.publish import head
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.wills import Wills
from millrace.lab.sim.cluster.world import ClusterWorld
from millrace.node.server import Server
from millrace.storage.block import keyed_block
from sim.calm import calm_plan

# Within this time nobody takes the node for gone.
SOON_S = 1
# Retention looks once a second; it takes a snapshot first, and removes then.
RETENTION_S = 4
SEGMENT_BYTES = 4_096
ROWS = 12
ROW_BYTES = 1_000


def test_the_will_of_a_client_of_a_node_that_was_replaced_is_published() -> None:
    """The client goes with its node, for good; who owned its session is no member any more."""
    world = ClusterWorld(dataclasses.replace(calm_plan(), work=("wills",), messages=1), None)
    wills = next(work for work in world.work if isinstance(work, Wills))
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)

    def home(name: str) -> Host | None:
        for host in world.hosts:
            assert host.server is not None
            record = host.server.engine.sessions.store.records.get(name)
            session = host.server.broker.sessions.get(name)
            if record is not None and session is not None and session.connection is not None:
                return host
        return None

    mortal = wills.mortals[0]

    def is_alive() -> bool:
        # One that has left its connection open, or is about to, comes back by itself.
        life = mortal.lives[-1]
        return home(mortal.name) is not None and life.is_accepted and life.ended_s is None

    world.until(60, is_alive, "a client", world.describe)
    lost = home(mortal.name)
    assert lost is not None
    last = mortal.lives[-1]
    lost.is_wanted = False
    lost.crash(is_power_loss=True)
    wills.heal()
    world.until(SOON_S, None, "", str)
    lost.wipe()
    lost.join_through([host.address for host in world.hosts if host is not lost])
    lost.start()
    world.until(60, lambda: wills.is_answered() and world.is_quiet(), "replacing", world.describe)
    assert mortal.lives[-1] is last, "the client did not come back"
    world.until(30, wills.is_complete, "the will", world.describe)
    world.end()


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_two_others_are_enough_at_any_time_while_a_node_is_replaced(seed: int) -> None:
    """The node that lost its disk votes under its old id until that leaves; counted beside the newcomer,
    which is just starting, it made both of the others and the newcomer necessary [rule 35]."""
    world = ClusterWorld(calm_plan(seed=seed), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    *others, lost = world.hosts
    replicas = {host.server.engine.replicas.replica for host in others if host.server is not None}
    lost.is_wanted = False
    lost.crash(is_power_loss=True)
    world.until(SOON_S, None, "", str)
    lost.wipe()
    lost.join_through([host.address for host in others])
    lost.start()
    counted: set[int] = set()

    def is_replaced() -> bool:
        for host in others:
            assert host.server is not None
            for number, group in host.server.engine.replicas.groups.items():
                voters = group.status().config.voters
                if group.is_leader and len(replicas & set(voters)) <= len(voters) // 2:
                    counted.add(number)
        return world.is_quiet()

    world.until(60, is_replaced, "replacing", world.describe)
    assert not counted, "groups that needed the newcomer"
    assert not any(lost_leads(host) for host in world.hosts), "the newcomer leads already"
    world.end()


def lost_leads(host: Host) -> bool:
    assert host.server is not None
    groups = host.server.engine.replicas.groups.values()
    return host.name == "n3" and any(group.is_leader for group in groups)


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_other_of_two_nodes_serves_after_the_one_that_leads_was_removed(seed: int) -> None:
    """Until a group is told to let it go, the vote of the node that was removed is needed there."""
    world = ClusterWorld(calm_plan(nodes=2, seed=seed), None)
    first, second = world.hosts
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    assert first.server is not None and second.server is not None
    engine = first.server.engine
    assert engine.definitions.group.is_leader

    assert first.loop is not None
    removing = first.loop.create_task(engine.cluster.remove(first.name))
    world.until(10, removing.done, "the word", world.describe)
    removing.result()
    world.leave(first)
    groups = second.server.engine.replicas.groups

    def serves() -> bool:
        return all(group.is_leader and group.is_alone for group in groups.values())

    world.until(60, serves, "the other one to serve", world.describe)
    second.crash(is_power_loss=False)
    second.start()
    world.until(60, lambda: second.is_up, "a start", world.describe)
    world.end()


def done(world: ClusterWorld, host: Host, work: Coroutine[Any, Any, Any]) -> None:
    assert host.loop is not None
    task = host.loop.create_task(work)
    world.until(10, task.done, "what was asked", world.describe)
    task.result()


async def publish_staged(server: Server, *, gives_up: bool) -> None:
    """One batch of one attempt, several segments long before its first row is visible."""
    engine = server.engine
    stream = engine.definitions.table.find("x/0")
    assert stream is not None
    shard = engine.shards[engine.definitions.table.shard(stream, b"x/0")]
    body = b"\0\3x/0\0\1" + bytes(ROW_BYTES)
    packet = head(0x32, len(body)) + body
    for number in range(ROWS):
        key = make_key("w", 0, "a", number)
        block = keyed_block([Run(packets=packet, version=4)], key.encode())
        await shard.staging.stage([(key, block)], "")
    await asyncio.sleep(RETENTION_S)
    if gives_up:
        await engine.writing.abort("w", 0, None, "")
    else:
        principal = server.broker.rules.principal(None, "w")
        await engine.writing.commit("w", 0, {"a": {shard.number: ROWS}}, "", principal)


def test_a_node_with_an_empty_disk_gets_the_messages_behind_a_beginning_without_any() -> None:
    """What was staged is no message, and fills the first segments. Were they removed once it is released, the
    newcomer would begin from a snapshot, and a durable subscriber that goes there would miss the messages
    that all others still have."""
    world = ClusterWorld(dataclasses.replace(calm_plan(), segment_bytes=SEGMENT_BYTES), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    *others, lost = world.hosts
    assert others[0].server is not None
    done(world, others[0], publish_staged(others[0].server, gives_up=False))
    world.until(RETENTION_S, None, "", str)
    lost.is_wanted = False
    lost.crash(is_power_loss=True)
    world.until(SOON_S, None, "", str)
    lost.wipe()
    lost.join_through([host.address for host in others])
    lost.start()
    world.until(60, world.is_quiet, "replacing", world.describe)
    assert lost.server is not None
    (shard,) = (shard for shard in lost.server.engine.shards.values() if shard.next_offset)
    assert (shard.first_offset, shard.next_offset) == (0, ROWS)
    world.end()


def test_what_was_staged_and_given_up_leaves_a_log_without_messages() -> None:
    """Nobody can miss any: a job that fails again and again does not fill the disk."""
    world = ClusterWorld(dataclasses.replace(calm_plan(nodes=1), segment_bytes=SEGMENT_BYTES), None)
    (host,) = world.hosts
    host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    assert host.server is not None
    done(world, host, publish_staged(host.server, gives_up=True))
    world.until(RETENTION_S, None, "", str)
    for shard in host.server.engine.shards.values():
        assert len(shard.group.replica_log.log.segments()) <= 2
    world.end()
