"""A primary-backup pair where nothing happens by itself; see `stage.py`.

With an authority there is a third replica that looks on, and a record that answers at once unless it is cut
off. Without one, a replica that must start over does so with an empty disk; a story of a split says that two
histories are what it is about.
"""

import random

from msgspec.structs import replace

from millrace.broker.meta.pairs import Pair, Pairs
from millrace.driver.effects import Runner
from millrace.errors import LocalError
from millrace.replication.contract import (
    Appointed,
    Config,
    InitialState,
    LogView,
    Replica,
    ReplicaId,
    Report,
    StartOver,
)
from millrace.replication.pair.machine import PrimaryBackup
from millrace.replication.pair.options import PairOptions
from millrace.replication.raft.options import RaftOptions
from millrace.types import Term
from unit.replication.cluster import SMALL, DiskState, Node
from unit.replication.stage import Stage

CHECK_TICKS = 4
SHARD = 16


class PairStage(Stage):
    def __init__(
        self,
        *,
        has_authority: bool,
        may_split: bool = False,
        options: RaftOptions = SMALL,
    ) -> None:
        self.pairs = Pairs()
        self.pairs.found(SHARD, ("n1", "n2"))
        self.has_authority = has_authority
        self.may_split = may_split
        self.cut_off: set[ReplicaId] = set()
        self.known: dict[ReplicaId, Pair] = {}
        self.reports: list[Report] = []
        super().__init__(2, spares=1 if has_authority else 0, options=options)

    def _make_raft(self, name: ReplicaId, state: InitialState, log: LogView, rng: random.Random) -> Replica:
        pair = None
        if self.has_authority:
            if name not in self.cut_off:
                self.known[name] = self.pairs.by_shard[SHARD]
            pair = appointed(self.known[name])
            if not state.config.index:
                names = ReplicaId("n1"), ReplicaId("n2")
                config = Config(voters=names, learners=(ReplicaId("n3"),))
                state = replace(state, config=replace(state.config, config=config))
        options = PairOptions(check_ticks=CHECK_TICKS, raft=self.options)
        return PrimaryBackup(name, state=state, log=log, options=options, rng=rng, pair=pair)

    def runners(self, node: Node) -> dict[type, Runner]:
        def report(effect: Report) -> None:
            self.reports.append(effect)
            self._record(node, effect)

        def start_over(effect: StartOver) -> None:
            self._start_over(node, effect)

        return {**super().runners(node), Report: report, StartOver: start_over}

    def _record(self, node: Node, report: Report) -> None:
        if not self.has_authority or node.name in self.cut_off:
            return
        wanted = Pair(
            version=0,
            epoch=report.epoch,
            primary=report.primary,
            backup=report.backup,
            is_in_sync=report.is_in_sync,
        )
        try:
            self.pairs.report(SHARD, report.after, wanted, is_seized=report.is_seized)
        except LocalError as error:
            self.lines.append(f"not recorded: {error}")
            return
        pair = self.pairs.by_shard[SHARD]
        state = "in sync" if pair.is_in_sync else "out of sync"
        self.lines.append(f"recorded: {pair.primary} in epoch {pair.epoch}, {pair.backup} {state}")

    def tell(self) -> None:
        """Everybody who can be reached hears the record."""
        for name, node in self.nodes.items():
            pair = self.pairs.by_shard[SHARD]
            if node.is_up and name not in self.cut_off and self.known.get(name) != pair:
                self.known[name] = pair
                self.step(name, appointed(pair))

    def sync(self, name: ReplicaId | None = None) -> None:
        super().sync(name)
        if self.has_authority:
            self.tell()
            super().sync(name)

    def check_committed(self, node: Node, index: int, term: int, payload: str) -> None:
        if self.may_split and self.committed.get(index, (term, payload)) != (term, payload):
            self.lines.append(f"{node.name} commits another entry {index}: two histories")
            self.committed[index] = (term, payload)
        super().check_committed(node, index, term, payload)

    def _start_over(self, node: Node, effect: StartOver) -> None:
        self.lines.append(f"{node.name} starts over, {effect.lost} entries of its own are lost")
        disk = DiskState(node.durable.config.config)
        node.writes = []
        node.durable, node.damage = disk, effect.damage
        self.start(node.name)


def appointed(pair: Pair) -> Appointed:
    return Appointed(
        version=pair.version,
        epoch=Term(pair.epoch),
        primary=ReplicaId(pair.primary),
        backup=None if pair.backup is None else ReplicaId(pair.backup),
        is_in_sync=pair.is_in_sync,
        has_quorum=True,
        is_seized=pair.is_seized,
    )
