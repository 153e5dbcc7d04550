"""Where replicas are while nodes are away: new ones on nodes that are heard, old ones moved after a while."""

import dataclasses
from collections.abc import Collection

import pytest

from millrace.broker.streams.stream import Replication, StreamSpec
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.world import ClusterWorld
from sim.calm import calm_plan

REPLACE_AFTER_S = 30
SILENT_S = 3


def formed(nodes: int = 5, replace_after_s: int = REPLACE_AFTER_S) -> ClusterWorld:
    plan = dataclasses.replace(calm_plan(nodes=nodes), replace_after_s=replace_after_s)
    world = ClusterWorld(plan, None)
    for host in world.hosts:
        host.start()
    world.until(90, world.is_quiet, "forming", world.describe)
    return world


def put(world: ClusterWorld, host: Host, **settings: object) -> tuple[int, ...]:
    """Make a stream; returns its shards."""
    spec = StreamSpec.read({"name": "new", "filters": ["new/#"], "shards": 4, **settings})
    assert host.server is not None and host.loop is not None
    making = host.loop.create_task(host.server.engine.opening.put(spec, create=True))
    world.until(30, making.done, "a stream", world.describe)
    return making.result().shards


def kept_by(host: Host, shards: Collection[int]) -> set[str]:
    """Names of the nodes that should keep these groups, as this node knows."""
    assert host.server is not None
    members = host.server.engine.cluster.members
    return {members.members[r].name for n in shards for r in members.assignments[n].replicas}


def voters(host: Host, shards: Collection[int]) -> set[str]:
    assert host.server is not None
    engine = host.server.engine
    names = {replica: member.name for replica, member in engine.cluster.members.members.items()}
    return {names[v] for n in shards for v in engine.replicas.groups[n].status().config.voters}


def end(*hosts: Host) -> None:
    for host in hosts:
        host.is_wanted = False
        host.crash(is_power_loss=True)


@pytest.mark.parametrize("replication", [Replication.QUORUM, Replication.PRIMARY_BACKUP])
def test_a_new_stream_begins_on_nodes_that_are_heard(replication: Replication) -> None:
    world = formed()
    *up, dead, dead_too = world.hosts
    end(dead, dead_too)
    world.until(SILENT_S, None, "", str)
    shards = put(world, up[0], replication=str(replication))
    assert kept_by(up[0], shards) <= {host.name for host in up}
    server, loop = up[0].server, up[0].loop
    assert server is not None and loop is not None
    stream = server.engine.definitions.table.streams["new"]
    assert not loop.inside(lambda: list(server.engine.placement.degraded(stream)))
    default = server.engine.definitions.table.streams["default"]
    said = " ".join(loop.inside(lambda: list(server.engine.placement.degraded(default))))
    assert not kept_by(up[0], default.shards) & {dead.name, dead_too.name} or "not answer" in said
    world.end()


def test_a_new_stream_may_count_on_a_node_that_is_away_where_the_others_are_a_majority() -> None:
    world = formed(nodes=3)
    first, second, dead = world.hosts
    end(dead)
    world.until(SILENT_S, None, "", str)
    shards = put(world, first, replicas=3)
    assert kept_by(second, shards) == {"n1", "n2", "n3"}
    server, loop = first.server, first.loop
    assert server is not None and loop is not None
    stream = server.engine.definitions.table.streams["new"]
    said = loop.inside(lambda: list(server.engine.placement.degraded(stream)))
    assert said == [f"shard {n}: 2 of 3 replicas are up, n3 does not answer" for n in shards]
    world.end()


def test_replicas_move_off_a_node_that_stays_away_and_it_gets_new_ones_when_it_is_back() -> None:
    world = formed()
    first = world.hosts[0]
    shards = put(world, first, replicas=3)
    name = sorted(kept_by(first, shards) - {first.name})[-1]
    lost = next(host for host in world.hosts if host.name == name)
    end(lost)
    world.until(REPLACE_AFTER_S // 2, None, "", str)
    assert name in voters(first, shards), "too early"
    server = first.server
    assert server is not None

    def is_moved() -> bool:
        configs = [server.engine.replicas.groups[n].status().config for n in shards]
        return name not in voters(first, shards) and all(len(config.voters) == 3 for config in configs)

    world.until(2 * REPLACE_AFTER_S, is_moved, "moving", world.describe)
    lost.start()
    world.until(90, world.is_quiet, "coming back", world.describe)
    assert name in server.engine.cluster.members.names()
    world.end()


def test_a_pair_gets_another_backup_for_one_that_stays_away() -> None:
    world = formed()
    first = world.hosts[0]
    shards = put(world, first, replication="primary-backup")
    world.until(30, world.is_quiet, "roles", world.describe)
    name = sorted(kept_by(first, shards) - {first.name})[-1]
    end(next(host for host in world.hosts if host.name == name))
    server = first.server
    assert server is not None
    pairs, members = server.engine.definitions.state.pairs, server.engine.cluster.members

    def is_whole() -> bool:
        records = [pairs.by_shard[number] for number in shards]
        gone = members.by_name(name).replica
        return all(
            r.is_in_sync and r.backup is not None and gone not in (r.primary, r.backup) for r in records
        )

    assert not is_whole()
    world.until(3 * REPLACE_AFTER_S, is_whole, "another backup", world.describe)
    world.end()


@pytest.mark.parametrize(("nodes", "replace_after_s"), [(5, 0), (3, REPLACE_AFTER_S)])
def test_replicas_stay_where_nobody_else_is_or_the_setting_says_so(nodes: int, replace_after_s: int) -> None:
    world = formed(nodes, replace_after_s)
    first = world.hosts[0]
    shards = put(world, first, replicas=3)
    before = kept_by(first, shards)
    name = sorted(before - {first.name})[-1]
    end(next(host for host in world.hosts if host.name == name))
    world.until(3 * REPLACE_AFTER_S, None, "", str)
    assert kept_by(first, shards) == voters(first, shards) == before
    world.end()


def test_a_minority_moves_nothing() -> None:
    world = formed()
    minority, majority = world.hosts[:2], world.hosts[2:]
    shards = put(world, minority[0], replicas=3)
    before = kept_by(minority[0], shards)
    for one, other in ((minority, majority), (majority, minority)):
        world.sockets.block([host.address for host in one], [host.address for host in other])
    world.until(3 * REPLACE_AFTER_S, None, "", str)
    assert kept_by(minority[0], shards) == before
    world.sockets.heal()
    world.until(90, world.is_quiet, "healing", world.describe)
    world.end()
