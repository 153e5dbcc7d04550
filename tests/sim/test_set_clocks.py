"""Leases hold while clocks of machines are set, also where a node starts with a wrong one [rule 37]."""

from millrace.node.groups.consumer_groups import Taken
from sim.test_queue_requests import NAME, Queue

HOUR_US = 3_600_000_000
LEASE_US = 30_000_000


class Leases(Queue):
    def lease(self, host: int) -> list[bytes]:
        taken: list[Taken] = self.ask(
            host, lambda server: server.engine.groups.take(NAME, count=3, lease_us=LEASE_US)
        )
        return [one.message.payload for one in taken]

    def leader(self) -> int:
        """The node that leads the log of the queue."""
        for number, host in enumerate(self.world.hosts):
            assert host.server is not None
            if any(shard.group.is_leader for shard in host.server.engine.shards.values()):
                return number
        raise AssertionError("nobody leads")

    def jump(self, host: int, hours: int) -> None:
        self.world.hosts[host].jump_us = hours * HOUR_US

    def entries(self) -> int:
        """In the log of the queue."""
        server = self.world.hosts[0].server
        assert server is not None
        (shard,) = server.engine.shards.values()
        return int(shard.group.applied)


def test_a_clock_that_is_set_ahead_ends_no_lease() -> None:
    queue = Leases()
    queue.publish(b"1")
    assert queue.lease(0) == [b"1"]
    for host in range(3):
        queue.jump(host, 2)
    queue.wait(5)
    assert [queue.lease(host) for host in range(3)] == [[], [], []]
    for host in range(3):
        queue.jump(host, -2)
    queue.wait(5)
    assert [queue.lease(host) for host in range(3)] == [[], [], []]
    queue.wait(22)
    assert queue.lease(1) == [b"1"]
    queue.world.end()


def test_a_node_that_starts_with_a_clock_hours_ahead_ends_no_lease() -> None:
    """Nor does it fill the log with entries that ask in vain, while a client waits there."""
    queue = Leases()
    queue.publish(b"1")
    other = (queue.leader() + 1) % 3
    queue.jump(other, 2)
    restart(queue, other)
    assert queue.lease(queue.leader()) == [b"1"]
    assert queue.lease(other) == []
    before = queue.entries()
    queue.ask(
        other, lambda server: server.engine.groups.take(NAME, count=1, lease_us=LEASE_US, wait_ms=9_000)
    )
    assert queue.entries() - before < 20
    queue.wait(25)
    assert queue.lease(other) == [b"1"]
    queue.world.end()


def test_a_lease_that_a_node_hours_behind_asks_for_is_as_long_as_any() -> None:
    queue = Leases()
    queue.publish(b"1")
    queue.publish(b"2")
    other = (queue.leader() + 1) % 3
    queue.jump(other, -2)
    restart(queue, other)
    queue.wait(100)
    assert queue.lease(other) == [b"1", b"2"]
    queue.wait(20)
    assert queue.lease(queue.leader()) == []
    queue.wait(12)
    assert queue.lease(other) == [b"1", b"2"]
    queue.world.end()


def restart(queue: Leases, host: int) -> None:
    queue.world.hosts[host].crash(is_power_loss=False)
    queue.world.until(60, queue.world.is_quiet, "serving again", queue.world.describe)
