"""The promises of a primary-backup pair, checked while the world runs.

Logs, states, acknowledgements and reads are watched as for Raft: what was committed once is at its index for
ever, on whatever replica. What differs is who may commit and who may serve.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millrace.broker.meta.pairs import Pair
from millrace.lab.sim.raft.checkers import Checkers, Watched
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import Accepted, Config, Effect, Propose, ReplicaId, Reply, RoleChanged
from millrace.replication.pair.machine import PrimaryBackup


class PairCheckers(Checkers):
    def __init__(
        self,
        *,
        first_config: Config,
        processes: Mapping[ReplicaId, Watched],
        record: Callable[[], Pair | None],
    ) -> None:
        super().__init__(first_config=first_config, processes=processes)
        self._record = record
        self._accepted_epoch = 0

    def after_step(self, process: Watched, event: Any, effects: Sequence[Effect]) -> None:
        super().after_step(process, event, effects)
        if type(event) is not Propose or self._record() is None:
            return
        for effect in effects:
            if type(effect) is Reply and type(effect.outcome) is Accepted:
                if effect.outcome.term < self._accepted_epoch:
                    raise Violation(
                        "one serves",
                        f"{process.replica} takes a proposal in epoch {effect.outcome.term}, "
                        f"epoch {self._accepted_epoch} serves",
                    )
                self._accepted_epoch = effect.outcome.term
                self._check_alone(process, effect.outcome.term)

    def _check_alone(self, serving: Watched, epoch: int) -> None:
        """Nobody else would take a proposal at this moment, whether or not a client asks it."""
        for process in self.processes.values():
            machine = process.machine
            if process is serving or process.is_paused or not isinstance(machine, PrimaryBackup):
                continue
            if machine.may_accept:
                raise Violation(
                    "one serves",
                    f"{process.replica} would take a proposal, {serving.replica} does in {epoch}",
                )

    def _on_role(self, process: Watched, change: RoleChanged) -> None:
        process.role, process.term, process.is_serving = change.role, change.term, change.serving
        if change.role != "primary":
            return
        holder = (process.replica, process.incarnation)
        known = self.leaders.setdefault(change.term, holder)
        if known != holder:
            raise Violation("one primary", f"epoch {change.term} has the primaries {known} and {holder}")
        if change.term > self.newest_term:
            self.newest_term, self.newest_leader = change.term, process
            process.led_from = process.disk.written.last
            if self.committed:
                self._complete_at(process, self.committed[-1])

    def _check_first_commit(self, process: Watched) -> None:
        """While the record calls the backup in sync, nothing is committed without it."""
        entry = self.committed[-1]
        holders = self._holders.get((entry.index, entry.term), set())
        pair = self._record()
        needed = set() if pair is None or not pair.is_in_sync else {pair.primary, pair.backup}
        if not needed <= holders:
            raise Violation(
                "committed",
                f"{process.replica} commits {entry.index}:{entry.term}, which only {sorted(holders)} hold",
            )
