"""The state that all roles of a replica with one log share, and the outbox that orders its effects.

One rule decides the order of a step's effects: no message leaves before the term and the vote it was written
under are on disk. While a hard state is on its way, every message of every step stands after a `Persist`,
which is an empty barrier if the step wrote nothing itself (persists complete in order). Appends of a leader
therefore leave before its own entries are synced (its term is old by then), votes and first answers in a new
term do not. An append's answer depends on entries as well and says so by `send_durable`.
"""

import random
from enum import Enum

from millrace.errors import LocalError
from millrace.replication.appending.log import MachineLog
from millrace.replication.appending.membership import ConfigHistory
from millrace.replication.contract import (
    Applied,
    Commit,
    Effect,
    EntryKind,
    HardState,
    InitialState,
    InstallSnapshot,
    LogView,
    Outcome,
    PeerBody,
    PeerStatus,
    Persist,
    Persisted,
    Propose,
    Refused,
    RefusedReason,
    ReplicaId,
    Reply,
    RequestId,
    RoleChanged,
    Send,
    SnapshotTaken,
    Status,
)
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index, Term

SCAN_BYTES = 4 << 20


class Core:
    __slots__ = (
        "_after",
        "_announced",
        "_announced_role",
        "_commit_given",
        "_hard_number",
        "_hard_state",
        "_now",
        "_number",
        "applied",
        "commit",
        "configs",
        "damage",
        "is_serving",
        "leader",
        "log",
        "options",
        "replica",
        "rng",
        "role",
        "term",
        "tick",
        "vote",
    )

    def __init__(
        self,
        replica: ReplicaId,
        state: InitialState,
        view: LogView,
        options: RaftOptions,
        rng: random.Random,
        *,
        role: Enum,
    ) -> None:
        """`role` is the one it begins with. Whoever owns the core changes it, along its own table."""
        self.replica = replica
        self.options = options
        self.rng = rng
        self.log = MachineLog(view)
        self.role = role
        self.term = state.hard_state.term
        self.vote = state.hard_state.vote
        self.leader: ReplicaId | None = None
        self.is_serving = False
        self.damage = state.damage
        self.tick = 0
        self.applied = state.applied
        snapshot = view.snapshot()
        snapshot_index = 0 if snapshot is None else snapshot.index
        self.commit = Index(min(max(state.commit, state.applied, snapshot_index), self.log.last_index))
        if state.applied > self.commit:
            raise LocalError(f"applied {state.applied} is beyond the log, which ends at {self.commit}")
        self.configs = ConfigHistory(state.config)
        self._scan_configs(state.lost)
        self._hard_state = state.hard_state
        self._hard_number = 0
        self._number = 0
        self._commit_given = state.applied
        self._announced: RoleChanged | None = None
        self._announced_role: Enum | None = None
        self._now: list[Effect] = []
        self._after: list[Effect] = []

    def _scan_configs(self, lost: tuple[tuple[Index, Index], ...]) -> None:
        index = Index(self.configs.index + 1)
        if index < self.log.first_index:
            raise LocalError(f"the configuration at {index} is older than the log, which may have changed it")
        while index <= self.log.last_index:
            gap_end = next((last for first, last in lost if first <= index <= last), None)
            if gap_end is not None:
                index = Index(gap_end + 1)
                continue
            entries = self.log.entries(index, self.log.last_index, SCAN_BYTES)
            if not entries:
                raise LocalError(f"the log cannot be read at {index} while starting")
            for entry in entries:
                if entry.kind is EntryKind.CONFIG:
                    self.configs.append(entry)
            index = Index(entries[-1].index + 1)

    # -------------------------------------------------------------------------------------- effects

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        """Leaves once the hard state it depends on is on disk, which mostly means at once."""
        self._now.append(Send(to=to, body=body))

    def send_durable(self, to: ReplicaId, body: PeerBody) -> None:
        """Leaves once everything this replica wrote so far is on disk."""
        self._after.append(Send(to=to, body=body))

    def reply(self, request: RequestId, outcome: Outcome) -> None:
        self._now.append(Reply(request=request, outcome=outcome))

    def refuse(self, request: RequestId, reason: RefusedReason) -> None:
        self.reply(request, Refused(reason=reason, leader=self.leader))

    def emit(self, effect: Effect) -> None:
        """Anything that is neither a message nor a `Persist` nor a `Commit`."""
        self._now.append(effect)

    def finish(self) -> list[Effect]:
        """The effects of this step, in their order."""
        self._announce()
        log = self.log
        given = min(self.commit, log.durable)
        if given > self._commit_given:
            self._commit_given = given
            self._now.append(Commit(index=given))
        now, self._now = self._now, []
        after = self._after
        if after:
            self._after = []
        written = self._hard_state
        is_changed = written.term != self.term or written.vote != self.vote
        hard_state = self._changed_hard_state() if is_changed else None
        if (hard_state is not None or log.pending) and self._must_wait(hard_state):
            after = [effect for effect in now if isinstance(effect, Send)] + after
            now = [effect for effect in now if not isinstance(effect, Send)]
        persist = log.take_writes(self._number + 1, self.tick, hard_state)
        if persist is None and after and log.pending:
            if self.is_disk_behind:
                return now  # what would wait for the disk is lost instead: the queue of waiters is bounded
            persist = Persist(number=self._number + 1)
            log.note_pending(persist, self.tick)
        if persist is not None:
            self._number = persist.number
            if hard_state is not None:
                self._hard_number = persist.number
            now.append(persist)
        return now + after if after else now

    def _must_wait(self, hard_state: HardState | None) -> bool:
        """Do this step's messages depend on a term or a vote that is not on disk yet?"""
        return hard_state is not None or (bool(self.log.pending) and not self.is_hard_state_durable)

    def _changed_hard_state(self) -> HardState | None:
        """Term and vote, if they are not the ones that were last handed out to be written."""
        if self._hard_state.term == self.term and self._hard_state.vote == self.vote:
            return None
        self._hard_state = HardState(term=self.term, vote=self.vote)
        return self._hard_state

    @property
    def is_hard_state_durable(self) -> bool:
        """Is the hard state that was last handed out on disk?"""
        pending = self.log.pending
        return not pending or pending[0].number > self._hard_number

    def _announce(self) -> None:
        announced = self._announced
        if (
            announced is not None
            and self._announced_role is self.role
            and announced.term == self.term
            and announced.leader == self.leader
            and announced.serving == self.is_serving
        ):
            return
        self._announced_role = self.role
        self._announced = RoleChanged(
            role=self.role.value, term=self.term, leader=self.leader, serving=self.is_serving
        )
        self._now.insert(0, self._announced)

    # ------------------------------------------------------------------------- what the driver reports

    def on_persisted(self, event: Persisted) -> None:
        if event.number > self._number:
            raise LocalError(f"write {event.number} is reported, {self._number} was the last given")
        installed = self.log.persisted(event.number)
        if installed is not None:
            self._commit_given = max(self._commit_given, installed.index)
            self.emit(InstallSnapshot(snapshot=installed))

    def on_applied(self, event: Applied, noop_index: Index | None) -> None:
        """`noop_index` is the first entry of a leader's own term: it serves from there."""
        if event.index > self._commit_given:
            raise LocalError(f"applied {event.index}, but only {self._commit_given} was given to apply")
        self.applied = max(self.applied, event.index)
        if noop_index is not None and self.applied >= noop_index:
            self.is_serving = True

    def on_snapshot_taken(self, event: SnapshotTaken) -> None:
        if event.index > self.applied:
            raise LocalError(f"a snapshot at {event.index} is beyond what was applied, {self.applied}")
        if self.log.term(event.index) not in (None, event.term):
            raise LocalError(f"a snapshot at {event.index} has term {event.term}, the log another")
        if self.configs.at(event.index) != event.config:
            raise LocalError(f"a snapshot at {event.index} has another configuration than the log")
        self.configs.compact(event.index)

    def status(self, role: str, peers: tuple[PeerStatus, ...]) -> Status:
        return Status(
            replica=self.replica,
            role=role,
            term=self.term,
            vote=self.vote,
            leader=self.leader,
            serving=self.is_serving,
            commit=self.commit,
            applied=self.applied,
            durable=self.log.durable,
            last=self.log.last_index,
            config=self.configs.config,
            peers=peers,
        )

    # ---------------------------------------------------------------------------------------- state

    @property
    def commit_given(self) -> Index:
        """Up to here the driver was told to apply."""
        return self._commit_given

    def commit_to(self, index: Index) -> None:
        assert index <= self.log.last_index, f"commit {index} beyond the log's end {self.log.last_index}"
        self.commit = max(self.commit, index)

    def enter_term(self, term: Term) -> None:
        assert term > self.term
        self.term = term
        self.vote = None

    @property
    def voters(self) -> tuple[ReplicaId, ...]:
        """Those whose majority decides: the configuration in force, nothing else. A link that closes says
        nothing about membership [A6]."""
        return self.configs.config.voters

    @property
    def is_eligible(self) -> bool:
        """A voter, or one whose own removal is in its log but not known to be committed: perhaps nobody else
        has that entry, then nobody with a shorter log can win its vote, and it alone can finish the change.
        It counts itself nowhere."""
        configs = self.configs
        if self.replica in configs.config.voters:
            return True
        return configs.index > self.commit and self.replica in configs.replaced.voters

    @property
    def disk_lag_ticks(self) -> int:
        """The age of the oldest write that was not reported."""
        pending = self.log.pending
        return self.tick - pending[0].issued_tick if pending else 0

    @property
    def is_disk_behind(self) -> bool:
        """Too many writes on their way to take on work that adds to them."""
        return len(self.log.pending) >= self.options.persists_pending_max


def check_proposal(event: Propose) -> None:
    if not event.payloads or event.kind not in (EntryKind.DATA, EntryKind.CONTROL):
        raise LocalError("a proposal has at least one payload, of kind DATA or CONTROL")
