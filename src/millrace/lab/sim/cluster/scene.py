"""The hosts of a simulated cluster, and what can be seen of them from outside."""

from collections.abc import Callable, Coroutine
from typing import Any

from millrace.lab.sim.cluster.checks import check_beginnings, check_groups, check_readable
from millrace.lab.sim.cluster.ground import Ground
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.plan import ClusterPlan
from millrace.lab.sim.trace import Trace
from millrace.node.server import Server

Make = Callable[[Server], Coroutine[Any, Any, Any]]
"""A command of the operator, at whichever node answers."""


class Scene(Ground):
    """What clients, the operator and the nemesis know of the cluster they act on."""

    def __init__(self, plan: ClusterPlan, trace: Trace | None) -> None:
        super().__init__(plan, trace)
        count = plan.nodes + plan.spares
        self.hosts = [Host(self, i, self.chance(f"host {i}")) for i in range(count)]
        self.addresses: list[str] = []
        """Of the members: where clients go."""
        self.asked: list[tuple[str, Make]] = []
        """Commands that pieces of work need before they begin; the operator carries them out in order."""
        for host in self.hosts[: plan.nodes]:
            self.enter(host)

    @property
    def members(self) -> list[Host]:
        return [host for host in self.hosts if host.is_member]

    def enter(self, host: Host) -> None:
        host.is_member = True
        self.addresses.append(host.address)

    def leave(self, host: Host) -> None:
        host.is_member = False
        self.addresses.remove(host.address)

    def is_settled(self) -> bool:
        """Whether every member serves, and every group is where it should be."""
        return all(map(is_settled, self.members))

    def is_whole(self) -> bool:
        """Whether the cluster is settled, and nothing is damaged."""
        if not self.is_settled():
            return False
        is_repairing = any(path.endswith("/damage") for host in self.members for path in host.disk.paths())
        return not is_repairing and not check_readable(self.members)

    def is_quiet(self) -> bool:
        checks = check_groups, check_beginnings, check_readable
        return self.is_settled() and not any(check(self.members) for check in checks)

    @property
    def client_addresses(self) -> list[str]:
        nodes = {host.address for host in self.hosts}
        return [loop.address for loop in self.loops if loop.address not in nodes and not loop.is_dead]


def is_settled(host: Host) -> bool:
    if host.loop is None or host.server is None or not host.is_up:
        return False
    return bool(host.loop.inside(host.server.engine.cluster.status)["is_settled"])
