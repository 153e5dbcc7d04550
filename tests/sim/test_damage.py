"""What the nemesis may damage: a log without which its group still finds a leader."""

from millrace.lab.sim.cluster.faults import logs_to_damage
from millrace.lab.sim.cluster.world import ClusterWorld
from sim.calm import calm_plan


def test_no_log_of_a_voter_is_damaged_where_two_are_left() -> None:
    """Seed 830000037 of whole nodes: one node of three was drained, and of the two voters that a shard had
    left, one was cut off with an entry that only it had, and then lost its log. Without its vote nobody
    leads, and it gives it to no log that ends before the one it lost."""
    world = ClusterWorld(calm_plan(), None)
    for host in world.hosts:
        host.start()
    world.until(60, world.is_quiet, "forming", world.describe)
    assert all(map(logs_to_damage, world.hosts))

    *staying, drained = world.hosts
    assert drained.loop is not None and drained.server is not None
    draining = drained.loop.create_task(drained.server.engine.cluster.drain(drained.name, True))
    world.until(10, draining.done, "the word", world.describe)
    draining.result()
    world.until(
        30, lambda: not any(map(logs_to_damage, staying)), "the drained to be no voter", world.describe
    )
    world.until(30, lambda: not any(map(logs_to_damage, staying)), "the drained to leave", world.describe)
    world.until(30, world.is_whole, "a whole cluster", world.describe)
    assert logs_to_damage(drained) and not any(map(logs_to_damage, staying))
