"""After the death of a leader whoever publishes at another node is answered as soon as there is a new one."""

from millrace.broker.streams.stream import Replication
from sim.test_switching import LONG_S, Scene

# Less than what a node waits before it forwards again what nobody answered.
AT_ONCE_S = 1.0
SLOW_DISK = 15


def test_what_is_forwarded_to_a_leader_before_it_serves_is_not_late() -> None:
    scene = Scene(seed=5, replication=Replication.QUORUM)
    for host in scene.hosts:
        # A leader's first entry takes longer than a tick to be on two disks.
        host.slow_disk = SLOW_DISK
    took_s = []
    for dying in (0, 1, 2, 0, 1, 2):
        scene.lead(dying, scene.shard)
        scene.crash(dying)
        began_s = scene.world.now_s
        waiting = [scene.publish(host) for host in range(3) if host != dying]
        scene.until(LONG_S, lambda waiting=waiting: all(waiting), "answers")
        took_s.append(scene.world.now_s - began_s)
        scene.hosts[dying].is_wanted = True
        scene.hosts[dying].start()
        scene.until(60, scene.world.is_quiet, "its return")
    scene.world.end()
    # One election may need a second round of votes. What waits to be offered again is late every time.
    assert sum(time_s >= AT_ONCE_S for time_s in took_s) <= 1, took_s
