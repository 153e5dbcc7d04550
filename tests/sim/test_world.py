"""The world around the machines: crashes happen where they are asked for, healing brings everybody back."""

import dataclasses

import pytest

from millrace.lab.sim.raft.crash_points import CRASH_POINTS
from millrace.lab.sim.raft.plan import Plan, make_plan
from millrace.lab.sim.raft.process import Process
from millrace.lab.sim.raft.world import World
from millrace.lab.sim.violation import Violation


def quiet_plan() -> Plan:
    """Three voters, no faults, and every part of the driver busy."""
    calm = next(plan for plan in map(make_plan, range(500)) if plan.is_calm and plan.voters == 3)
    return dataclasses.replace(calm, snapshot_every_entries=10, apply_lag_us_max=5_000, spares=0)


def running_world() -> tuple[World, Process]:
    world = World(quiet_plan(), None)
    for process in tuple(world.processes.values()):
        world.restart(process)
    for client in world.clients:
        client.start()
    assert world.run_ticks(400, lambda: len(world.checkers.committed) > 20)
    leader = world.leader()
    assert leader is not None
    return world, leader


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_point_is_met_and_the_group_survives_it(point: str) -> None:
    world, leader = running_world()
    leader.points.arm(point, 2)
    assert world.run_ticks(200, lambda: not leader.is_up), "the point was never met"
    acknowledged = dict(world.checkers.acked_sequences)
    assert acknowledged
    world.heal()
    world.require("a settled group", world.is_settled)
    for process in world.processes.values():
        for client, sequence in acknowledged.items():
            assert process.state.sessions[client] >= sequence


def test_a_failed_fsync_stops_the_process() -> None:
    world, leader = running_world()
    leader.log.fails_next_sync = True
    assert world.run_ticks(200, lambda: not leader.is_up)


def test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room() -> None:
    world, leader = running_world()
    leader.log.is_full = True
    world.run_ticks(2)
    durable = leader.disk.durable.last
    world.run_ticks(200)
    assert leader.disk.durable.last == durable
    world.heal()
    for client in world.clients:
        client.stop()
    world.require_progress("with room again")
    world.require("a settled group", world.is_settled)


def test_a_group_that_cannot_work_is_reported() -> None:
    """The liveness check itself can fail: without a majority nothing commits."""
    world, leader = running_world()
    world.network.split([leader.replica], world.processes)
    for name, process in world.processes.items():
        if name != leader.replica:
            process.crash("test")
            process.is_gone = True
            break
    for client in world.clients:
        client.stop()
    # What was committed before is still being answered.
    world.run_ticks(20)
    with pytest.raises(Violation, match="liveness"):
        world.require_progress("without a majority")
