"""The promises, checked while the world runs: the first broken one ends the run with a `Violation`.

The checkers see everything at once, which no replica can: all disks, all logs, every message as it leaves.
Most rules are local and immediate (a vote that leaves must be on the disk of the voter), so that a bug shows
where it happens and not a hundred steps later. The global history is one list, `committed`: an index enters
it with the first `Commit` that covers it and must be the same everywhere from then on.

| rule | says |
|---|---|
| contract | at most one Persist a list, numbers rise by one, Commit never waits, each request answered once |
| one leader | a term has at most one leader, and a majority of its voters has voted for it |
| one vote | a voter's term never falls and its vote in a term never changes, in messages and on disk |
| sent too early | no message leaves before the term, vote or entries it speaks of are on the sender's disk |
| log matching | the entry (index, term) is the same everywhere, and so is the term before it |
| matched | what a follower reports as matched is what the leader of that term has there |
| committed | one entry at an index everywhere, on a majority's disks when first committed, never cut |
| progress | what a replica believes of its own disk, and a leader of a follower's, is so |
| election | a vote goes to a log at least as complete as the voter's own is or was before damage |
| leader completeness | a new leader has everything that is committed |
| own term | a leader commits by counting only entries of its own term |
| membership | one voter at a time, the change before committed, after a commit in the leader's own term |
| equal states | after the same index every replica has the same state, also from a snapshot |
| bounds | writes in flight and entries not committed stay within the options |
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millrace.lab.sim.raft.answers import Answer
from millrace.lab.sim.raft.plan import Plan
from millrace.lab.sim.raft.state import KEYS, State
from millrace.lab.sim.surroundings.log_disk import Image, LogDisk
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    ChangeMembership,
    Commit,
    Config,
    Effect,
    Entry,
    EntryKind,
    InstallSnapshot,
    PeerMessage,
    Persist,
    Persisted,
    Propose,
    Replica,
    ReplicaId,
    Reply,
    RoleChanged,
    Send,
    Snapshot,
)
from millrace.replication.raft.messages import AppendReply, VoteReply, VoteRequest
from millrace.replication.raft.quorum import is_majority

BOUND_SLACK = 16
"""Writes beyond the bound that a replica may have to make: a term, a vote, a no-op do not wait for room."""


class Watched(Protocol):
    """A replica's process as the checkers see it; role and term are what they saw it become."""

    replica: ReplicaId
    disk: LogDisk
    plan: Plan
    incarnation: int
    machine: Replica | None
    is_paused: bool
    role: str
    term: int
    is_serving: bool
    state: State
    commit: int
    led_from: int

    @property
    def writes_waiting(self) -> int: ...


def config_of(image: Image, first_config: Config) -> Config:
    """The configuration in force in a log: the last one it holds."""
    for entry in reversed(image.entries):
        if entry.kind is EntryKind.CONFIG:
            return Config.decode(entry.payload)
    return image.snapshot.config if image.snapshot is not None else first_config


class Checkers:
    def __init__(self, *, first_config: Config, processes: Mapping[ReplicaId, Watched]) -> None:
        self.processes = processes
        self.first_config = first_config
        self.config = first_config
        """The committed one."""
        self.operations = 0
        """Answered to clients, of all clients."""
        self.committed: list[Entry] = []
        self.floor = 0
        """The highest index that a client was told about, by an acknowledgement or a read."""
        self.leaders: dict[int, tuple[ReplicaId, int]] = {}
        self.newest_leader: Watched | None = None
        # What the leader of a term counts by.
        self._config_of_term: dict[int, Config] = {}
        self.newest_term = 0
        self.acked_sequences: dict[int, int] = {}
        self.versions_known = [0] * KEYS
        self._chains: list[int] = []
        self._writes: dict[tuple[ReplicaId, int], int] = {}
        """The number of the last write of each run of a process."""
        self._votes: dict[tuple[int, ReplicaId], ReplicaId] = {}
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._holders: dict[tuple[int, int], set[ReplicaId]] = {}

    # ------------------------------------------------------------------------------------------ steps

    def on_start(self, process: Watched) -> None:
        """A restart must not have lost what a leader or a client was told; the disk model guarantees it, and
        the history of entries and votes here goes on across restarts."""
        hard, snapshot = process.disk.durable.hard_state, process.disk.durable.snapshot
        # What was written and survived the crash without a sync is on disk from here on.
        self._hold(process.replica, process.disk.durable.entries)
        if hard.vote is not None:
            self._vote(process, hard.term, hard.vote)
        if snapshot is not None:
            self.on_install(process, snapshot, process.state)

    def on_crash(self, process: Watched) -> None:
        """A lone voter leads a term that its disk may not know yet, and after a crash does so again. Nobody
        has heard of the first time (`sent too early` sees to that), so it did not happen."""
        holder = (process.replica, process.incarnation)
        term = process.term
        if process.disk.durable.hard_state.term < term and self.leaders.get(term) == holder:
            del self.leaders[term]
            self.newest_term = max(self.leaders, default=0)
            self.newest_leader = None
            self._entries = {key: known for key, known in self._entries.items() if key[1] != term}

    def after_step(self, process: Watched, event: Any, effects: Sequence[Effect]) -> None:
        if type(event) is PeerMessage:
            if type(event.body) is VoteRequest:
                self._check_election(process, event.sender, event.body, effects)
            elif type(event.body) is AppendReply and process.role == "leader":
                self._check_progress(process, self.processes[event.sender])
        elif type(event) is Persisted:
            self._check_durable(process)
        persist_seen = False
        answered = False
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                continue
            if kind is Persist:
                if persist_seen:
                    raise Violation("contract", f"{process.replica}: two Persists in one list")
                persist_seen = True
                self._on_persist(process, effect)  # type: ignore[arg-type]
            elif kind is Commit or kind is InstallSnapshot:
                if persist_seen:
                    raise Violation("contract", f"{process.replica}: {kind.__name__} behind a Persist")
            elif kind is RoleChanged:
                self._on_role(process, effect)  # type: ignore[arg-type]
            elif kind is Reply:
                answered = answered or effect.request == getattr(event, "request", None)  # type: ignore[union-attr]
        if not answered and type(event) in (Propose, ChangeMembership):
            raise Violation("contract", f"{process.replica} does not answer {event}")

    def _on_role(self, process: Watched, change: RoleChanged) -> None:
        process.role, process.term, process.is_serving = change.role, change.term, change.serving
        if change.role != "leader":
            return
        holder = (process.replica, process.incarnation)
        self._config_of_term[change.term] = config_of(process.disk.written, self.first_config)
        known = self.leaders.get(change.term)
        if known is None:
            self.leaders[change.term] = holder
            self._check_elected(process)
        elif known != holder:
            raise Violation(
                "one leader", f"term {change.term} has the leaders {known[0]} and {process.replica}"
            )
        if change.term > self.newest_term:
            self.newest_term, self.newest_leader = change.term, process
            process.led_from = process.disk.written.last
            if self.committed:
                self._complete_at(process, self.committed[-1])

    def _check_elected(self, leader: Watched) -> None:
        voters = config_of(leader.disk.written, self.first_config).voters
        for_it = [name for name in voters if self._votes.get((leader.term, name)) == leader.replica]
        # A lone voter asks nobody, so its vote never left as a message.
        if not is_majority(voters, [*for_it, leader.replica]):
            raise Violation("one leader", f"{leader.replica} leads {leader.term} by {for_it} of {voters}")

    def _check_election(
        self, voter: Watched, candidate: ReplicaId, request: VoteRequest, effects: Sequence[Effect]
    ) -> None:
        if request.is_pre or not any(
            type(effect) is Send
            and type(effect.body) is VoteReply
            and effect.body.is_granted
            and not effect.body.is_pre
            for effect in effects
        ):
            return
        image, damage = voter.disk.written, voter.disk.damage
        needed = (image.term(image.last) or 0, image.last)
        if damage is not None:
            lost_term = damage.term if damage.last_term is None else damage.last_term
            needed = max(needed, (lost_term, damage.last_index))
        if (request.last_term, request.last_index) < needed:
            raise Violation(
                "election", f"{voter.replica} votes for {candidate}, whose log is behind {needed}"
            )

    def _check_durable(self, process: Watched) -> None:
        """What the machine believes of its own disk; its log as it is now is what it wrote last."""
        assert process.machine is not None
        index = process.machine.status().durable
        believed, found = process.disk.written.term(index), process.disk.durable.term(index)
        if believed is not None and found != believed:
            raise Violation("progress", f"{process.replica} believes that its disk has {index}:{believed}")

    def _check_progress(self, leader: Watched, follower: Watched) -> None:
        """Only until the follower enters a later term: the next leader may rightly cut what it held."""
        assert leader.machine is not None
        image = follower.disk.durable
        if image.hard_state.term > leader.term or follower.disk.was_damaged:
            return
        for peer in leader.machine.status().peers:
            if peer.replica == follower.replica and peer.match >= image.first:
                mine = leader.disk.written.term(peer.match)
                if mine is not None and image.term(peer.match) != mine:
                    raise Violation(
                        "progress", f"{leader.replica} believes that {peer.replica} has {peer.match}:{mine}"
                    )

    def _complete_at(self, leader: Watched, entry: Entry) -> None:
        image = leader.disk.written
        if image.first <= entry.index and image.term(entry.index) != entry.term:
            raise Violation(
                "leader completeness",
                f"{leader.replica}, leader of {leader.term}, lacks the committed {entry.index}:{entry.term}",
            )

    # ------------------------------------------------------------------------------------------- disk

    def _on_persist(self, process: Watched, persist: Persist) -> None:
        run = (process.replica, process.incarnation)
        if persist.number != self._writes.get(run, 0) + 1:
            raise Violation("contract", f"{process.replica}: Persist {persist.number} out of turn")
        self._writes[run] = persist.number
        if process.writes_waiting > process.plan.options.persists_pending_max + BOUND_SLACK:
            raise Violation("bounds", f"{process.replica} has {process.writes_waiting} writes in flight")
        image = process.disk.written
        if persist.hard_state is not None:
            if persist.hard_state.term < image.hard_state.term:
                raise Violation("one vote", f"{process.replica} goes back to term {persist.hard_state.term}")
            # Not yet a vote: a crash before the write forgets it, and nobody has heard of it.
            old, new = image.hard_state, persist.hard_state
            if old.term == new.term and old.vote not in (None, new.vote):
                raise Violation("one vote", f"{process.replica} turns from {old.vote} to {new.vote}")
        if persist.snapshot is not None and persist.snapshot.index > len(self.committed):
            raise Violation("committed", f"{process.replica} takes a snapshot of what is not committed")
        if persist.truncate_from is not None:
            self._check_cut(process, persist.truncate_from)
        if persist.entries:
            self._check_entries(process, persist)

    def _check_cut(self, process: Watched, index: int) -> None:
        image = process.disk.written
        if index <= len(self.committed) and image.term(index) == self.committed[index - 1].term:
            raise Violation("committed", f"{process.replica} cuts the committed entry {index}")
        if index <= process.commit:
            raise Violation("committed", f"{process.replica} cuts from {index}, commit is {process.commit}")

    def _check_entries(self, process: Watched, persist: Persist) -> None:
        first = persist.entries[0].index
        if persist.snapshot is not None and first == persist.snapshot.index + 1:
            before = int(persist.snapshot.term)
        else:
            before = process.disk.written.term(first - 1) or 0
        for entry in persist.entries:
            known, known_before = self._entries.setdefault((entry.index, entry.term), (entry, before))
            if known is not entry and known != entry:
                raise Violation("log matching", f"two entries {entry.index}:{entry.term}")
            if known_before != before:
                raise Violation(
                    "log matching", f"{entry.index}:{entry.term} follows terms {known_before} and {before}"
                )
            if entry.term < before:
                raise Violation("log matching", f"{entry.index}:{entry.term} follows the later term {before}")
            before = entry.term
            if entry.kind is EntryKind.CONFIG and process.role == "leader" and entry.term == process.term:
                self._check_change(process, entry)
        if process.role == "leader" and persist.entries[-1].term == process.term:
            open_count = persist.entries[-1].index - max(process.commit, process.led_from)
            bound = process.plan.options.uncommitted_entries_max + process.plan.batch_payloads_max
            if open_count > bound + BOUND_SLACK:
                raise Violation("bounds", f"{process.replica} has {open_count} entries not committed")

    def _check_change(self, leader: Watched, entry: Entry) -> None:
        assert leader.machine is not None
        image = leader.disk.written
        old, new = config_of(image, self.first_config), Config.decode(entry.payload)
        self._config_of_term[entry.term] = new
        if len(set(old.voters) ^ set(new.voters)) > 1:
            raise Violation("membership", f"{old.voters} becomes {new.voters} in one entry")
        commit = leader.machine.status().commit
        for pending in reversed(image.entries):
            if pending.index <= commit:
                break
            if pending.kind is EntryKind.CONFIG:
                raise Violation("membership", f"a change at {entry.index} while {pending.index} is pending")
        if image.term(commit) != entry.term:
            raise Violation("membership", f"a change at {entry.index} before a commit in term {entry.term}")

    def on_durable(self, process: Watched, persists: Sequence[Persist]) -> None:
        for persist in persists:
            if persist.entries:
                self._hold(process.replica, persist.entries)

    def _hold(self, replica: ReplicaId, entries: Sequence[Entry]) -> None:
        holders = self._holders
        for entry in entries:
            key = (entry.index, entry.term)
            if key in holders:
                holders[key].add(replica)
            else:
                holders[key] = {replica}

    # --------------------------------------------------------------------------------------- messages

    def on_send(self, process: Watched, to: ReplicaId, body: Any) -> None:
        hard = process.disk.durable.hard_state
        kind = type(body)
        if body.term > hard.term and not ((kind is VoteRequest or kind is VoteReply) and body.is_pre):
            raise Violation(
                "sent too early",
                f"{process.replica} says {kind.__name__} of {body.term}, disk has {hard.term}",
            )
        if kind is AppendReply:
            self._check_matched(process, to, body)
        elif kind is VoteReply and body.is_granted and not body.is_pre:
            self._check_vote(process, body.term, to)
        elif kind is VoteRequest and not body.is_pre:
            self._check_vote(process, body.term, process.replica)

    def _check_vote(self, process: Watched, term: int, candidate: ReplicaId) -> None:
        self._vote(process, term, candidate)
        hard = process.disk.durable.hard_state
        if hard.term == term and hard.vote != candidate:
            raise Violation("sent too early", f"{process.replica}'s vote for {candidate} is not on its disk")

    def _vote(self, process: Watched, term: int, candidate: ReplicaId) -> None:
        known = self._votes.setdefault((term, process.replica), candidate)
        if known != candidate:
            raise Violation("one vote", f"{process.replica} votes for {known} and {candidate} in term {term}")

    def _check_matched(self, process: Watched, to: ReplicaId, body: AppendReply) -> None:
        image = process.disk.durable
        # A reply that waited for an old write may leave after the disk went on to a later term.
        if image.hard_state.term != body.term:
            return
        if body.matched > image.last:
            raise Violation(
                "sent too early", f"{process.replica} has {image.last} on disk, says {body.matched}"
            )
        leader = self.newest_leader
        if leader is None or leader.replica != to or leader.role != "leader" or leader.term != body.term:
            return
        mine, theirs = image.term(body.matched), leader.disk.written.term(body.matched)
        if mine is not None and mine != theirs and leader.disk.written.first <= body.matched:
            raise Violation(
                "matched", f"{process.replica} says {body.matched}:{mine}, {to} has term {theirs}"
            )

    # ------------------------------------------------------------------------------ commit and apply

    def on_commit(self, process: Watched, index: int) -> None:
        if index <= process.commit:
            raise Violation("contract", f"{process.replica} commits {index} after {process.commit}")
        image = process.disk.durable
        if index > image.last:
            raise Violation("committed", f"{process.replica} commits {index}, its disk ends at {image.last}")
        fresh = len(self.committed)
        for at in range(max(process.commit, image.first - 1) + 1, index + 1):
            entry = image.entries[at - image.first]
            if at > len(self.committed):
                self.committed.append(entry)
                if entry.kind is EntryKind.CONFIG:
                    self.config = Config.decode(entry.payload)
            elif self.committed[at - 1] is not entry and self.committed[at - 1] != entry:
                known = self.committed[at - 1]
                raise Violation("committed", f"{at}:{known.term} and {at}:{entry.term} at {process.replica}")
        if len(self.committed) > fresh:
            self._check_first_commit(process)

    def _check_first_commit(self, process: Watched) -> None:
        entry = self.committed[-1]
        holders = self._holders.get((entry.index, entry.term), set())
        configs = [config_of(process.disk.written, self.first_config)]
        # A leader counts by what it has set, which need not have reached anybody. By the time others hear of
        # the commit it may lead no more.
        if process.term in self._config_of_term:
            configs.append(self._config_of_term[process.term])
        if not any(is_majority(config.voters, holders) for config in configs):
            raise Violation(
                "committed",
                f"{process.replica} commits {entry.index}:{entry.term}, on {sorted(holders)} of {configs}",
            )
        leader = self.newest_leader
        if leader is not None and leader.role == "leader":
            self._complete_at(leader, entry)
        if (
            process.role == "leader"
            and entry.index < process.disk.durable.last
            and entry.term != process.term
        ):
            raise Violation(
                "own term",
                f"{process.replica} of {process.term} commits {entry.index}:{entry.term} by counting",
            )

    def on_apply(self, process: Watched, entry: Entry, chain: int) -> None:
        if entry.index > len(self._chains):
            self._chains.append(chain)
        elif self._chains[entry.index - 1] != chain:
            raise Violation("equal states", f"{process.replica} differs after {entry.index}")

    def on_install(self, process: Watched, snapshot: Snapshot, state: State) -> None:
        if state.applied != snapshot.index or snapshot.index > len(self.committed):
            raise Violation("equal states", f"a snapshot of {state.applied} is called {snapshot.index}")
        if self.committed[snapshot.index - 1].term != snapshot.term:
            raise Violation("equal states", f"the snapshot at {snapshot.index} has the wrong term")
        if self._chains[snapshot.index - 1] != state.chain:
            raise Violation("equal states", f"{process.replica} differs after the snapshot {snapshot.index}")

    # ---------------------------------------------------------------------------------------- clients

    def on_ack(
        self, *, client: int, sequence: int, payloads: tuple[bytes, ...], answer: Answer, floor: int
    ) -> None:
        """The client hears where its payloads are. `floor` is what was known when the client began."""
        found = self.committed[answer.first - 1 : answer.last]
        if tuple(entry.payload for entry in found) != payloads or any(
            entry.term != answer.term for entry in found
        ):
            raise Violation(
                "acknowledged lost", f"client {client}: {answer.first}..{answer.last} holds something else"
            )
        if answer.last <= floor:
            raise Violation(
                "linearizable", f"client {client} is acknowledged at {answer.last}, before {floor}"
            )
        self.acked_sequences[client] = max(sequence, self.acked_sequences.get(client, 0))
        self.floor = max(self.floor, answer.last)

    def on_read(self, *, client: int, answer: Answer, expected: Sequence[int], floor: int) -> None:
        pairs = zip(answer.versions, expected, strict=True)
        if answer.last < floor or any(seen < known for seen, known in pairs):
            raise Violation(
                "linearizable", f"client {client} reads the state of {answer.last}, {floor} was known before"
            )
        self.versions_known = list(map(max, self.versions_known, answer.versions))
        self.floor = max(self.floor, answer.last)

    def at_the_end(self, processes: Sequence[Watched]) -> None:
        """All healed and caught up: everything acknowledged is in every member's state."""
        for process in processes:
            state = process.state
            if state.applied != len(self.committed):
                raise Violation(
                    "acknowledged lost", f"{process.replica} ends at {state.applied} of {len(self.committed)}"
                )
            for client, sequence in sorted(self.acked_sequences.items()):
                if state.sessions.get(client, 0) < sequence:
                    raise Violation(
                        "acknowledged lost", f"{process.replica}: client {client} lacks {sequence}"
                    )
