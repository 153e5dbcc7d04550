"""Random faults against a `Cluster`. One seed decides sizes, faults and workload; every fault ends by itself,
so the group goes through many short crises instead of one long one."""

import random
from collections.abc import Callable

from millrace.replication.contract import ChangeKind, ReplicaId
from millrace.types import Index
from unit.replication.cluster import MOMENTS_PER_TICK, Cluster


class Storm:
    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        voters = rng.choice([1, 2, 3, 3, 3, 4, 5, 5])
        self.cluster = cluster = Cluster(
            voters=voters,
            spares=rng.choice([0, 0, 1, 2]),
            seed=seed,
            is_view_eager=rng.random() < 0.5,
        )
        cluster.drop_chance = rng.choice([0.0, 0.0, 0.02, 0.1])
        cluster.duplicate_chance = rng.choice([0.0, 0.1, 0.3])
        cluster.late_chance, cluster.late_moments = rng.choice([0.0, 0.05, 0.2]), rng.choice([50, 400])
        cluster.delay_max = rng.choice([2, 8, 30])
        cluster.sync_max = rng.choice([2, 10, 60])
        cluster.snapshot_every = rng.choice([0, 4, 20])
        if rng.random() < 0.3:
            cluster.tick_moments = {name: rng.randint(7, 14) for name in cluster.nodes}
        self.names = list(cluster.nodes)
        self.trouble = rng.choice([0.02, 0.06, 0.15])
        self.is_churning = rng.random() < 0.5
        # With fewer than three voters nobody can stand in for a replica that lost what it acknowledged.
        self.is_damaging = not self.is_churning and voters > 2 and rng.random() < 0.6
        self.load = rng.choice([0.1, 0.4])

    def run(self, ticks: int = 400) -> Cluster:
        cluster, rng = self.cluster, self.rng
        for _ in range(ticks):
            cluster.run(1)
            self._work()
            if rng.random() < self.trouble:
                self._make_trouble()
        cluster.settle()
        return cluster

    def _work(self) -> None:
        rng = self.rng
        for name in self.names:
            node = self.cluster.nodes[name]
            if node.is_up and not node.is_paused:
                if rng.random() < self.load:
                    self.cluster.propose(name, count=rng.randint(1, 3))
                if rng.random() < self.load / 2:
                    self.cluster.read(name)
                if self.is_churning and rng.random() < 0.03:
                    self._change_membership(name)

    def _make_trouble(self) -> None:
        rng, cluster = self.rng, self.cluster
        name = self._victim()
        match rng.randrange(9):
            case 0 | 1:
                self._crash(name)
            case 2:
                for other in self.names:
                    if rng.random() < 0.8:
                        self._crash(other)
            case 3:
                side = [other for other in self.names if rng.random() < 0.5]
                self._cut(side)
            case 4:
                self._cut([name])
            case 5:
                for other in self.names:
                    if other != name and rng.random() < 0.6:
                        cluster.cut.add((name, other) if rng.random() < 0.5 else (other, name))
                self._later(cluster.heal)
            case 6:
                node = cluster.nodes[name]
                node.is_disk_stalled = True
                self._later(lambda: setattr(node, "is_disk_stalled", False))
            case 7:
                node = cluster.nodes[name]
                node.is_paused = True
                self._later(lambda: setattr(node, "is_paused", False))
            case 8:
                if cluster.nodes[name].is_up:
                    cluster.transfer(name, rng.choice([None, *self.names]))

    def _victim(self) -> ReplicaId:
        leader = self.cluster.leader()
        return leader if leader is not None and self.rng.random() < 0.5 else self.rng.choice(self.names)

    def _later(self, action: Callable[[], None]) -> None:
        self.cluster.after(self.rng.randint(1, 40) * MOMENTS_PER_TICK, action)

    def _crash(self, name: ReplicaId) -> None:
        cluster, rng = self.cluster, self.rng
        if not cluster.nodes[name].is_up:
            return
        if rng.random() < 0.5:
            cluster.propose(name)
        cluster.crash(name)
        for other in self.names:
            if other != name and rng.random() < 0.5:
                cluster.link_closed(other, name)
        self._later(lambda: self._restart(name))

    def _restart(self, name: ReplicaId) -> None:
        cluster, node = self.cluster, self.cluster.nodes[name]
        if node.is_up:
            return
        # One damaged disk at a time: two of three is more loss than a majority can bear.
        is_whole = all(other.damage is None for other in cluster.nodes.values())
        if self.is_damaging and is_whole and node.durable.log and self.rng.random() < 0.5:
            index = self.rng.randrange(node.durable.first, node.durable.last_index() + 1)
            cluster.damage_log(name, Index(index))
        cluster.start(name)

    def _cut(self, side: list[ReplicaId]) -> None:
        cluster, rest = self.cluster, [name for name in self.names if name not in side]
        cluster.partition(side, rest)
        if self.rng.random() < 0.5:
            for here in side:
                for there in rest:
                    cluster.link_closed(here, there)
        self._later(self._heal)

    def _heal(self) -> None:
        self.cluster.heal()
        for here in self.names:
            for there in self.names:
                if here < there and self.rng.random() < 0.7:
                    self.cluster.link_opened(here, there)

    def _change_membership(self, name: ReplicaId) -> None:
        """Mostly something that makes sense to the one who is asked."""
        rng, cluster = self.rng, self.cluster
        config = cluster.machine(name).status().config
        outside = [other for other in self.names if other not in config.members]
        if outside and rng.random() < 0.4:
            cluster.change(name, ChangeKind.ADD_LEARNER, rng.choice(outside))
        elif config.learners and rng.random() < 0.6:
            cluster.change(name, ChangeKind.PROMOTE, rng.choice(config.learners))
        elif config.voters:
            kind = rng.choice([ChangeKind.REMOVE, ChangeKind.DEMOTE])
            cluster.change(name, kind, rng.choice(config.voters))
