"""Bugs of the Raft machine, by the part of the protocol that each breaks."""

from collections.abc import Sequence
from typing import Any

from millrace.lab.sim.planted.bug import Bugs, Method, Plant
from millrace.lab.sim.planted.driver import DRIVER_BUGS
from millrace.replication.appending.appender import Appender
from millrace.replication.appending.changes import MembershipChanges
from millrace.replication.appending.core import Core
from millrace.replication.appending.follower import Follower
from millrace.replication.appending.handover import Handover
from millrace.replication.appending.log import MachineLog
from millrace.replication.appending.membership import ConfigHistory
from millrace.replication.appending.progress import Progress
from millrace.replication.appending.reads import Reads
from millrace.replication.contract import Entry, HardState, RefusedReason, ReplicaId, Snapshot
from millrace.replication.raft.leader import Leader
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    RaftBody,
    VoteReply,
    VoteRequest,
)
from millrace.replication.raft.quorum import majority
from millrace.replication.raft.rest import Rest
from millrace.replication.raft.roles import Role
from millrace.types import Index, Term

MACHINE_BUGS = Bugs()

# ------------------------------------------------------------------ what must be on disk before it is said


@MACHINE_BUGS.bug("a follower answers an append before its sync (NATS JetStream, Jepsen 2025)")
def ack_before_fsync(plant: Plant) -> None:
    plant.instead(Core, "send_durable", Core.send)


@MACHINE_BUGS.bug("the leader counts its own copy before its own sync (rule: thesis 10.2.1)")
def leader_counts_unsynced_self(plant: Plant) -> None:
    def own_match(self: Leader) -> Index:
        return self._core.log.last_index

    plant.instead(Leader, "_own_match", own_match)


@MACHINE_BUGS.bug("a vote is forgotten by a restart")
def vote_not_persisted(plant: Plant) -> None:
    def changed_hard_state(self: Core) -> HardState | None:
        if self._hard_state.term == self.term and self._hard_state.vote is None:
            return None
        self._hard_state = HardState(term=self.term)
        return self._hard_state

    plant.instead(Core, "_changed_hard_state", changed_hard_state)


@MACHINE_BUGS.bug("votes and answers leave while the term is still being synced")
def hard_state_not_awaited(plant: Plant) -> None:
    def must_wait(self: Core, hard_state: HardState | None) -> bool:
        return False

    plant.instead(Core, "_must_wait", must_wait)


@MACHINE_BUGS.bug("a sync that finishes late makes truncated entries count as safe")
def durable_ignores_truncation(plant: Plant) -> None:
    def below_truncations(self: MachineLog, index: Index) -> Index:
        return index

    plant.instead(MachineLog, "_below_truncations", below_truncations)


# ------------------------------------------------------------------------------------------- counting


@MACHINE_BUGS.bug("one replica less than a majority commits (Kafka's default; Jepsen 2013)")
def commit_before_majority(plant: Plant) -> None:
    def reached_by_majority(self: Leader) -> int:
        matches = self._matches()
        return sorted(matches, reverse=True)[max(0, majority(len(matches)) - 2)]

    plant.instead(Leader, "_reached_by_majority", reached_by_majority)


@MACHINE_BUGS.bug("entries of an earlier term are committed by counting (figure 8 of the paper)")
def commit_prior_term(plant: Plant) -> None:
    def is_of_own_term(self: Leader, index: Index) -> bool:
        return True

    plant.instead(Leader, "_is_of_own_term", is_of_own_term)


@MACHINE_BUGS.bug("an append counts as stored when it is sent")
def match_on_send(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def hand_over_append(self: Appender, peer: Progress, append: Append, last: Index) -> None:
            peer.match = max(peer.match, last)
            peer.next = max(peer.next, Index(last + 1))
            original(self, peer, append, last)

        return hand_over_append

    plant.around(Appender, "_hand_over_append", make)


@MACHINE_BUGS.bug("a learner counts in majorities")
def learner_counts(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def matches(self: Leader) -> list[int]:
            learners = self._core.configs.config.learners
            return [*original(self), *(self.appender.peers[learner].match for learner in learners)]

        return matches

    plant.around(Leader, "_matches", make)


@MACHINE_BUGS.bug("a removed replica's acknowledgements still count")
def removed_still_counts(plant: Plant) -> None:
    def reached_by_majority(self: Leader) -> int:
        matches = self._matches() + [peer.match for peer in self.appender.peers.values() if peer.is_leaving]
        return sorted(matches, reverse=True)[majority(len(self._core.voters)) - 1]

    def dismiss(self: Appender, peer: Progress) -> None:
        """It stays among those who are sent everything."""

    plant.instead(Leader, "_reached_by_majority", reached_by_majority)
    plant.instead(Appender, "_dismiss", dismiss)


@MACHINE_BUGS.bug("an unreachable voter is left out of the majority [A6]")
def quorum_shrinks_on_link_closed(plant: Plant) -> None:
    unreachable: dict[Core, set[ReplicaId]] = {}

    def voters(self: Core) -> tuple[ReplicaId, ...]:
        away = unreachable.get(self, set())
        return tuple(voter for voter in self.configs.config.voters if voter not in away)

    def make(original: Method) -> Method:
        def on_link(self: Raft, peer: ReplicaId, *, is_open: bool) -> None:
            away = unreachable.setdefault(self._core, set())
            (away.discard if is_open else away.add)(peer)
            original(self, peer, is_open=is_open)

        return on_link

    plant.instead(Core, "voters", voters)
    plant.around(Raft, "_on_link", make)


def _claim_is_clipped(plant: Plant) -> None:
    """Without this the leader closes the link to a follower that claims what it never had."""

    def claimed(self: Appender, sender: ReplicaId, body: AppendReply) -> Index:
        return min(body.matched, self._core.log.last_index)

    plant.instead(Appender, "_claimed", claimed)


@MACHINE_BUGS.bug("an append's answer from an earlier term counts")
def stale_reply_accepted(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_stale(self: Raft, sender: ReplicaId, body: RaftBody) -> None:
            if isinstance(body, AppendReply) and self._leader is not None:
                self._leader.on_append_reply(sender, body)
            else:
                original(self, sender, body)

        return on_stale

    plant.around(Raft, "_on_stale", make)
    _claim_is_clipped(plant)


# ------------------------------------------------------------------------------------------ elections


@MACHINE_BUGS.bug("a vote is given whatever the candidate's log lacks (Kafka before 0.11)")
def vote_without_log_check(plant: Plant) -> None:
    def is_up_to_date(self: Raft, body: VoteRequest) -> bool:
        return True

    plant.instead(Raft, "_is_up_to_date", is_up_to_date)


@MACHINE_BUGS.bug("a second candidate gets a vote in the same term")
def vote_twice(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def has_vote_for(self: Raft, candidate: ReplicaId) -> bool:
            return self._core.role is Role.FOLLOWER or original(self, candidate)

        return has_vote_for

    def check_vote(self: Raft, vote: ReplicaId | None) -> None:
        """Its author believes that a vote may change."""

    plant.around(Raft, "_has_vote_for", make)
    plant.instead(Raft, "_check_vote", check_vote)


@MACHINE_BUGS.bug("a duplicated vote message counts again")
def vote_counted_twice(plant: Plant) -> None:
    counted: dict[Raft, int] = {}

    def make_ask(original: Method) -> Method:
        def ask_for_votes(self: Raft, *, is_pre: bool, is_transfer: bool) -> None:
            counted[self] = 0
            original(self, is_pre=is_pre, is_transfer=is_transfer)

        return ask_for_votes

    def make_count(original: Method) -> Method:
        def count_vote(self: Raft, sender: ReplicaId, is_granted: bool) -> None:
            counted[self] += is_granted
            original(self, sender, is_granted)

        return count_vote

    def is_won(self: Raft) -> bool:
        return counted[self] >= majority(len(self._core.voters))

    plant.around(Raft, "_ask_for_votes", make_ask)
    plant.around(Raft, "_count_vote", make_count)
    plant.instead(Raft, "_is_won", is_won)


@MACHINE_BUGS.bug("a vote of an earlier term counts in this one")
def stale_vote_counted(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_stale(self: Raft, sender: ReplicaId, body: RaftBody) -> None:
            if isinstance(body, VoteReply) and self._core.role is Role.CANDIDATE and not body.is_pre:
                self._count_vote(sender, body.is_granted)
            else:
                original(self, sender, body)

        return on_stale

    plant.around(Raft, "_on_stale", make)


@MACHINE_BUGS.bug("a late answer to the pre-vote counts as a vote")
def pre_vote_counts_as_vote(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def is_answer(self: Raft, body: VoteReply) -> bool:
            return self._core.role is Role.CANDIDATE or original(self, body)

        return is_answer

    plant.around(Raft, "_is_answer", make)


@MACHINE_BUGS.bug("a candidate's log is compared with the synced part of one's own")
def vote_ignores_unpersisted_log(plant: Plant) -> None:
    def log_end(self: Raft) -> tuple[Term, Index]:
        log = self._core.log
        return log.term(log.durable) or Term(0), log.durable

    plant.instead(Raft, "_log_end", log_end)


@MACHINE_BUGS.bug(
    "asking around raises the term, so a cut-off replica deposes the leader on return (rule: thesis 9.6)"
)
def pre_vote_raises_term(plant: Plant) -> None:
    def make_question(original: Method) -> Method:
        def is_question(self: Raft, body: RaftBody) -> bool:
            return not isinstance(body, VoteRequest) and original(self, body)

        return is_question

    def make_vote(original: Method) -> Method:
        def would_vote(self: Raft, sender: ReplicaId, body: VoteRequest) -> bool:
            if body.is_pre:
                return not self._sticks_to_leader(body) and self._is_up_to_date(body)
            return bool(original(self, sender, body))

        return would_vote

    def make_answer(original: Method) -> Method:
        def is_answer(self: Raft, body: VoteReply) -> bool:
            return body.is_pre if self._core.role is Role.PRE_CANDIDATE else original(self, body)

        return is_answer

    def make_ask(original: Method) -> Method:
        def ask_for_votes(self: Raft, *, is_pre: bool, is_transfer: bool) -> None:
            if is_pre:
                self._core.enter_term(Term(self._core.term + 1))
            original(self, is_pre=is_pre, is_transfer=is_transfer)

        return ask_for_votes

    plant.around(Raft, "_is_question", make_question)
    plant.around(Raft, "_would_vote", make_vote)
    plant.around(Raft, "_is_answer", make_answer)
    plant.around(Raft, "_ask_for_votes", make_ask)


@MACHINE_BUGS.bug("a leader that learns of a higher term adopts it and stays leader")
def higher_term_ignored(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_higher_term(self: Raft, sender: ReplicaId, body: RaftBody) -> None:
            if self._leader is None:
                original(self, sender, body)
                return
            self._core.enter_term(body.term)
            self._leader.appender.term = body.term

        return on_higher_term

    plant.around(Raft, "_on_higher_term", make)


@MACHINE_BUGS.bug("an append of an earlier term is taken")
def stale_leader_accepted(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_stale(self: Raft, sender: ReplicaId, body: RaftBody) -> None:
            if not isinstance(body, Append):
                original(self, sender, body)
            elif self._leader is None:
                self._follower.on_append(sender, body)

        return on_stale

    plant.around(Raft, "_on_stale", make)


@MACHINE_BUGS.bug("a replica that lost acknowledged entries votes at once (FAST 2018)")
def damage_ignored(plant: Plant) -> None:
    def is_whole(self: Raft) -> bool:
        return True

    def lost_end(self: Raft) -> tuple[Term, Index]:
        return Term(0), Index(0)

    plant.instead(Raft, "_is_whole", is_whole)
    plant.instead(Raft, "_lost_end", lost_end)


# ----------------------------------------------------------------------------------------- log repair


@MACHINE_BUGS.bug("a late, shorter append cuts the log after it")
def truncate_on_stale_append(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def conflict(self: MachineLog, entries: Sequence[Entry], fresh: Sequence[Entry]) -> Index | None:
            if not fresh and entries and entries[-1].index < self.last_index:
                return Index(entries[-1].index + 1)
            found: Index | None = original(self, entries, fresh)
            return found

        return conflict

    plant.around(MachineLog, "_conflict", make)


@MACHINE_BUGS.bug("the entry before an append is compared by index only")
def no_prev_term_check(plant: Plant) -> None:
    def follows(self: Follower, prev_index: Index, prev_term: Term) -> bool:
        log = self._core.log
        return log.first_index - 1 <= prev_index <= log.last_index

    plant.instead(Follower, "_follows", follows)


@MACHINE_BUGS.bug("a follower reports its last index as matched without comparing")
def reply_last_index(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_heartbeat(self: Follower, sender: ReplicaId, body: Heartbeat) -> None:
            original(self, sender, body)
            core = self._core
            core.send(sender, AppendReply(term=core.term, matched=core.log.durable))

        return on_heartbeat

    plant.around(Follower, "on_heartbeat", make)
    _claim_is_clipped(plant)


@MACHINE_BUGS.bug("a follower commits to its own last index, matched or not, on an append")
def follower_commit_unclipped(plant: Plant) -> None:
    def make(original: Method) -> Method:
        def on_append(self: Follower, sender: ReplicaId, body: Append) -> None:
            core = self._core
            if not core.is_disk_behind:
                core.commit_to(min(body.commit, core.log.last_index))
            original(self, sender, body)

        return on_append

    plant.around(Follower, "on_append", make)


@MACHINE_BUGS.bug("a heartbeat carries a commit index above what the follower matched")
def heartbeat_commit_unclipped(plant: Plant) -> None:
    def send_heartbeat(self: Appender, peer: Progress, context: int, *, rests: bool = False) -> None:
        core = self._core
        peer.commit_sent = core.commit
        beat = Heartbeat(term=self.term, commit=core.commit, context=context, rests=rests)
        core.send(peer.replica, beat)

    plant.instead(Appender, "_send_heartbeat", send_heartbeat)


@MACHINE_BUGS.bug("a configuration outlives the entry that set it")
def config_not_rolled_back(plant: Plant) -> None:
    def truncate_from(self: ConfigHistory, index: Index) -> None:
        """What was once in force stays."""

    plant.instead(ConfigHistory, "truncate_from", truncate_from)


# ----------------------------------------------------------------------------------------- membership


@MACHINE_BUGS.bug(
    "a new leader changes the membership before its own entry is committed"
    " (Ongaro's correction of single-server changes, 2015)"
)
def change_before_own_term_commit(plant: Plant) -> None:
    def unsettled(self: MembershipChanges) -> RefusedReason | None:
        return RefusedReason.CHANGE_PENDING if self._is_pending else None

    plant.instead(MembershipChanges, "_unsettled", unsettled)


@MACHINE_BUGS.bug("a second change starts before the first is committed")
def change_while_pending(plant: Plant) -> None:
    def unsettled(self: MembershipChanges) -> RefusedReason | None:
        return None if self._appender.has_current_term_commit else RefusedReason.NOT_READY

    plant.instead(MembershipChanges, "_unsettled", unsettled)


# ---------------------------------------------------------------------------------------------- reads


@MACHINE_BUGS.bug("a new leader serves reads before it knows its commit index (rule: thesis 6.4)")
def read_before_noop(plant: Plant) -> None:
    def refusal(self: Reads) -> RefusedReason | None:
        return None

    plant.instead(Reads, "_refusal", refusal)


@MACHINE_BUGS.bug("a leader serves reads without asking anyone (etcd and Consul, Jepsen 2014)")
def read_without_round(plant: Plant) -> None:
    def needs_round(self: Leader) -> bool:
        return False

    plant.instead(Leader, "_needs_round", needs_round)


@MACHINE_BUGS.bug("answers to an earlier heartbeat round confirm a read")
def read_counts_old_round(plant: Plant) -> None:
    def first_round_that_counts(self: Reads) -> int:
        return 0

    plant.instead(Reads, "_first_round_that_counts", first_round_that_counts)


# ----------------------------------------------------------------------------- snapshots and transfer


@MACHINE_BUGS.bug("a snapshot older than the log is installed")
def snapshot_over_newer_log(plant: Plant) -> None:
    def holds_already(self: Follower, snapshot: Snapshot) -> bool:
        return False

    def make(original: Method) -> Method:
        def adopt(self: Follower, snapshot: Snapshot) -> Any:
            matched = original(self, snapshot)
            self._core.commit = snapshot.index
            return matched

        return adopt

    plant.instead(Follower, "_holds_already", holds_already)
    plant.around(Follower, "_adopt", make)


@MACHINE_BUGS.bug("entries after an installed snapshot survive and count as matched")
def snapshot_keeps_tail(plant: Plant) -> None:
    def make_install(original: Method) -> Method:
        def install(self: MachineLog, snapshot: Snapshot, commit: Index) -> None:
            kept: Sequence[Entry] = ()
            if self.last_index > snapshot.index:
                kept = self.entries(Index(snapshot.index + 1), self.last_index, 1 << 40)
            original(self, snapshot, commit)
            self._extend(kept)

        return install

    def make_adopt(original: Method) -> Method:
        def adopt(self: Follower, snapshot: Snapshot) -> Index:
            original(self, snapshot)
            return self._core.log.last_index

        return adopt

    plant.around(MachineLog, "install", make_install)
    plant.around(Follower, "_adopt", make_adopt)
    _claim_is_clipped(plant)


@MACHINE_BUGS.bug("leadership goes to a follower that lacks entries, and its election skips the log check")
def transfer_while_behind(plant: Plant) -> None:
    def may_follow(self: Handover, target: ReplicaId) -> bool:
        return True

    def make(original: Method) -> Method:
        def is_up_to_date(self: Raft, body: VoteRequest) -> bool:
            return body.is_transfer or original(self, body)

        return is_up_to_date

    plant.instead(Handover, "_may_follow", may_follow)
    plant.around(Raft, "_is_up_to_date", make)


# ------------------------------------------------------------------------------------------- rest


@MACHINE_BUGS.bug("a replica that rests does not miss a leader that has fallen silent")
def rests_through_silence(plant: Plant) -> None:
    def on_silence(self: Raft, peer: ReplicaId) -> None:
        """It rests on."""

    plant.instead(Raft, "_on_silence", on_silence)


@MACHINE_BUGS.bug("a leader that rests goes on resting when something is proposed")
def rests_through_proposals(plant: Plant) -> None:
    def wake_leader(self: Raft) -> None:
        """It rests on."""

    plant.instead(Raft, "_wake_leader", wake_leader)


@MACHINE_BUGS.bug("a follower that lacks entries rests with its leader, which does not look")
def rests_while_behind(plant: Plant) -> None:
    def has_everything(self: Follower, commit: Index) -> bool:
        return True

    def may_rest(self: Rest) -> bool:
        return self._idle_ticks >= self._core.options.rest_ticks and self._core.is_serving

    plant.instead(Follower, "_has_everything", has_everything)
    plant.instead(Rest, "_may_rest", may_rest)


RAFT_BUGS = Bugs(MACHINE_BUGS | DRIVER_BUGS)
