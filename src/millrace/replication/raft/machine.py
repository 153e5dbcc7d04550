"""The Raft machine: roles, elections, and what every event means in each of them.

It implements Raft (Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", extended
version of 2014, sections 5 and 7) with these parts of Ongaro's thesis of 2014: changes of the membership by
one server, with the correction of 2015 (4.1), leadership transfer (3.10), a leader that hears no majority
steps down (6.2), reads by ReadIndex (6.4), pre-vote (9.6), and the leader's own write in parallel with the
appends (10.2.1). It departs from these texts in this:

- Heartbeats are messages of their own, not empty appends. They carry the commit index, never above what the
  follower matched, and number the rounds that confirm reads.
- A follower whose link to the leader closes asks for pre-votes at once, and of several that ask at the same
  moment all but one give way (decision 002).
- A rejected append names the last place that can match, so a leader does not go back entry by entry.
- A snapshot travels in a window of pieces and is resumed, even from another leader.
- New members are learners until they have caught up. One that was removed is told so.
- A leader whose own disk stalls steps down. So does one that hears no majority, and whom it does not hear it
  asks to stand.
- A replica whose log was damaged neither stands for election nor votes for a log that is behind the one it
  had, until it holds again what it may have acknowledged (after "Protocol-Aware Recovery for Consensus-Based
  Storage", FAST 2018; decision 029).

One rule stands above the roles: a message of a higher term makes this replica a follower of that term before
it is looked at, a message of a lower term is answered with the term it lacks and otherwise dropped. Only
questions are exempt: a pre-vote asks about a term that nobody has entered, and an election nobody needs is
refused as long as a leader is heard (stickiness), so that a replica that was cut off or removed disturbs
nobody.

An election has two rounds. The pre-vote asks who would vote; no term is raised for it. When several replicas
ask at the same moment, as they do when the leader's links close, those with the shorter log or the smaller id
give way, so that the first round already decides; the random time-outs settle the rest. Then the vote itself,
in a new term: a candidate's own vote is on disk before the question leaves and before it counts.

The leader's part is in `leader.py`. What a pair of primary and backup shares with it is in `appending/`: the
log, the state of all roles, the follower, and how entries get to the followers.
"""

import random
from enum import Enum
from typing import assert_never

from millrace.errors import ProtocolError
from millrace.replication.appending.core import Core, check_proposal
from millrace.replication.appending.follower import Follower
from millrace.replication.appending.served import ServedLog
from millrace.replication.contract import (
    NO_INDEX,
    NO_TERM,
    Applied,
    Appointed,
    ChangeMembership,
    Effect,
    Event,
    InitialState,
    LinkClosed,
    LinkOpened,
    LogView,
    PeerBody,
    PeerMessage,
    Persisted,
    Propose,
    ReadIndex,
    RefusedReason,
    ReplicaId,
    Silence,
    SnapshotTaken,
    Status,
    Tick,
    TransferLeadership,
)
from millrace.replication.raft.leader import Leader
from millrace.replication.raft.messages import (
    Append,
    AppendReject,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    RaftBody,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    check_append,
)
from millrace.replication.raft.options import RaftOptions
from millrace.replication.raft.quorum import is_majority
from millrace.replication.raft.roles import TRANSITIONS, Role
from millrace.types import Index, Term

_BODIES = RaftBody.__args__


class Raft(ServedLog):
    """A `Replica`. `rng` decides only the election time-outs."""

    __slots__ = (
        "_elapsed_ticks",
        "_follower",
        "_leader",
        "_leader_of_term",
        "_proved_config",
        "_rests",
        "_timeout_ticks",
        "_votes",
    )

    def __init__(
        self,
        replica: ReplicaId,
        *,
        state: InitialState,
        log: LogView,
        options: RaftOptions,
        rng: random.Random,
    ) -> None:
        self._core = Core(replica, state, log, options, rng, role=Role.FOLLOWER)
        self._follower = Follower(self._core)
        self._leader: Leader | None = None
        self._leader_of_term: tuple[Term, ReplicaId] | None = None
        # The configuration whose entry was seen in the log, and how often that was cut until then.
        self._proved_config: tuple[Index, Term | None, int] | None = None
        self._votes: dict[ReplicaId, bool] = {}
        self._elapsed_ticks = 0
        self._timeout_ticks = self._first_timeout_ticks()
        self._rests = False

    # ------------------------------------------------------------------------------------- contract

    @property
    def rests(self) -> bool:
        return self._rests

    def step(self, event: Event) -> list[Effect]:
        core = self._core
        term, vote, commit, role = core.term, core.vote, core.commit, core.role
        self._dispatch(event)
        if self._leader is not None and self._leader.resigns:
            self.become_follower(leader=None)
        effects = core.finish()
        self._check(term, vote, commit, role)
        return effects

    def status(self) -> Status:
        leader = self._leader
        peers = leader.appender.peers_status() if leader is not None else ()
        return self._core.status(self._core.role.value, peers)

    def _dispatch(self, event: Event) -> None:
        match event:
            case PeerMessage():
                self._on_peer_message(event.sender, event.body)
            case Persisted():
                self._on_persisted(event)
            case Propose():
                self._wake_leader()
                self._on_propose(event)
            case Tick():
                self._on_tick()
            case Applied():
                leader = self._leader
                self._core.on_applied(event, leader.appender.noop_index if leader is not None else None)
            case ReadIndex():
                self._wake_leader()
                if self._leader is not None:
                    self._leader.on_read_index(event)
                else:
                    self._core.refuse(event.request, RefusedReason.NOT_LEADER)
            case ChangeMembership():
                self._wake_leader()
                if self._leader is not None:
                    self._leader.on_change_membership(event)
                else:
                    self._core.refuse(event.request, RefusedReason.NOT_LEADER)
            case TransferLeadership():
                self._wake_leader()
                if self._leader is not None:
                    self._leader.on_transfer_leadership(event)
                else:
                    self._core.refuse(event.request, RefusedReason.NOT_LEADER)
            case SnapshotTaken():
                self._core.on_snapshot_taken(event)
            case LinkOpened():
                self._on_link(event.peer, is_open=True)
            case LinkClosed():
                self._on_link(event.peer, is_open=False)
            case Silence():
                self._on_silence(event.peer)
            case Appointed():
                pass  # a majority needs no authority above it
            case _:
                assert_never(event)

    # --------------------------------------------------------------------------------- local events

    def _on_tick(self) -> None:
        core = self._core
        if self._rests:
            return
        core.tick += 1
        if self._leader is not None:
            self._leader.on_tick()
            return
        self._elapsed_ticks += 1
        # Nobody else could answer a lone voter, so it need not wait for anyone.
        is_alone = core.configs.config.voters == (core.replica,)
        is_idle = core.role is Role.FOLLOWER and core.leader is None
        if self._elapsed_ticks >= self._timeout_ticks or (is_alone and is_idle):
            core.leader = None
            if self._may_campaign():
                self.become_pre_candidate()
            else:
                self._restart_timeout()

    def _on_persisted(self, event: Persisted) -> None:
        core = self._core
        core.on_persisted(event)
        self._follower.check_repaired()
        if self._leader is not None:
            self._leader.maybe_commit()
        elif core.role is Role.CANDIDATE and core.is_hard_state_durable:
            self._count_vote(core.replica, True)

    def _on_propose(self, event: Propose) -> None:
        check_proposal(event)
        if self._leader is not None:
            self._leader.on_propose(event)
        else:
            self._core.refuse(event.request, RefusedReason.NOT_LEADER)

    def _on_link(self, peer: ReplicaId, *, is_open: bool) -> None:
        if self._leader is not None:
            self._wake_leader()
            self._leader.appender.link_changed(peer, is_open)
        elif not is_open:
            self._miss(peer)

    def _on_silence(self, peer: ReplicaId) -> None:
        """Whoever does not rest counts by itself."""
        if not self._rests:
            return
        if self._leader is None:
            self._miss(peer)
        elif peer in self._leader.appender.peers:
            self._wake_leader()

    def _miss(self, peer: ReplicaId) -> None:
        """As a follower: without the leader, stand for election. If the others still hear it they refuse, and
        nothing happened [rule 21]."""
        core = self._core
        if peer == core.leader:
            self._rests = False
            core.leader = None
            if self._may_campaign():
                self.become_pre_candidate()

    def _is_disturbing(self, sender: ReplicaId, body: RaftBody) -> bool:
        """A replica that was removed and does not know it asks for votes again and again."""
        is_member = sender in self._core.configs.config.members
        return is_member and not isinstance(body, Heartbeat | HeartbeatReply)

    def _wake(self) -> None:
        self._rests = False
        self._wake_leader()

    def _wake_leader(self) -> None:
        if self._leader is not None:
            self._rests = False
            self._leader.rest.disturb()

    # ------------------------------------------------------------------------------------- messages

    def _on_peer_message(self, sender: ReplicaId, body: PeerBody) -> None:
        core = self._core
        if not isinstance(body, _BODIES):
            raise ProtocolError(f"{type(body).__name__} is not a Raft message")
        if isinstance(body, Append):
            check_append(body)
        if self._rests and self._is_disturbing(sender, body):
            self._wake()
        if body.term < core.term:
            self._on_stale(sender, body)
            return
        if body.term > core.term and not self._is_question(body):
            if core.is_disk_behind:
                return  # as if lost: a new term is one more write for a disk that does not keep up
            self._on_higher_term(sender, body)
        match core.role:
            case Role.FOLLOWER:
                self._step_follower(sender, body)
            case Role.PRE_CANDIDATE | Role.CANDIDATE:
                self._step_candidate(sender, body)
            case Role.LEADER:
                self._step_leader(sender, body)

    def _is_question(self, body: RaftBody) -> bool:
        """Does this message carry a higher term that its sender has not entered, or one that this replica
        refuses to follow because it hears a leader?"""
        if isinstance(body, VoteReply):
            return body.is_pre and body.is_granted
        if isinstance(body, VoteRequest):
            return body.is_pre or self._sticks_to_leader(body)
        return False

    def _sticks_to_leader(self, body: VoteRequest) -> bool:
        if body.is_transfer or self._core.leader is None:
            return False
        return self._leader is not None or self._elapsed_ticks < self._core.options.election_ticks

    def _on_higher_term(self, sender: ReplicaId, body: RaftBody) -> None:
        leader = sender if isinstance(body, Append | Heartbeat | SnapshotChunk) else None
        self.become_follower(leader=leader, term=body.term)

    def _on_stale(self, sender: ReplicaId, body: RaftBody) -> None:
        core = self._core
        if isinstance(body, Append | Heartbeat | SnapshotChunk):
            # A leader of an older term must learn of ours, or it would go on for ever: our own requests for
            # votes are refused by those who hear it.
            core.send(sender, HeartbeatReply(term=core.term, context=0))
        elif isinstance(body, VoteRequest):
            core.send(sender, VoteReply(term=core.term, is_granted=False, is_pre=body.is_pre))

    def _step_follower(self, sender: ReplicaId, body: RaftBody) -> None:
        match body:
            case Append():
                self._hear_leader(sender)
                self._follower.on_append(sender, body)
            case Heartbeat():
                self._hear_leader(sender)
                self._rests = self._follower.on_heartbeat(sender, body)
            case SnapshotChunk():
                self._hear_leader(sender)
                self._follower.on_snapshot_chunk(sender, body)
            case VoteRequest():
                self._on_vote_request(sender, body)
            case TimeoutNow():
                if self._may_campaign():
                    self.become_candidate(is_transfer=True)
            case VoteReply() | AppendReply() | AppendReject() | HeartbeatReply() | SnapshotReply():
                pass  # meant for a role this replica has left
            case _:
                assert_never(body)

    def _step_candidate(self, sender: ReplicaId, body: RaftBody) -> None:
        match body:
            case Append() | Heartbeat() | SnapshotChunk():
                self.become_follower(leader=sender)
                self._step_follower(sender, body)
            case VoteRequest():
                self._on_vote_request(sender, body)
            case VoteReply():
                self._on_vote_reply(sender, body)
            case TimeoutNow() | AppendReply() | AppendReject() | HeartbeatReply() | SnapshotReply():
                pass
            case _:
                assert_never(body)

    def _step_leader(self, sender: ReplicaId, body: RaftBody) -> None:
        leader = self._leader
        assert leader is not None
        match body:
            case AppendReply():
                leader.on_append_reply(sender, body)
            case HeartbeatReply():
                leader.on_heartbeat_reply(sender, body)
                self._rests = leader.rest.is_agreed
            case AppendReject():
                leader.appender.on_append_reject(sender, body)
            case SnapshotReply():
                leader.appender.on_snapshot_reply(sender, body)
            case VoteRequest():
                self._on_vote_request(sender, body)
            case Append() | Heartbeat() | SnapshotChunk():
                raise AssertionError(f"{sender} leads term {body.term} as well")
            case VoteReply() | TimeoutNow():
                pass
            case _:
                assert_never(body)

    def _hear_leader(self, sender: ReplicaId) -> None:
        core = self._core
        known = self._leader_of_term
        if known is None or known[0] != core.term:
            self._leader_of_term = (core.term, sender)
        else:
            assert known[1] == sender, f"{known[1]} and {sender} both lead term {core.term}"
        if core.leader is None:
            self._votes = {}
        core.leader = sender
        self._elapsed_ticks = 0

    # ------------------------------------------------------------------------------------ elections

    def _may_campaign(self) -> bool:
        """Only a voter whose disk keeps up and whose log is whole stands for election. A stalled disk could
        not make the vote durable, and every try would add a write to those it owes."""
        core = self._core
        return (
            core.is_eligible
            and self._is_whole
            and not core.log.is_installing
            and not core.is_disk_behind
            and core.disk_lag_ticks < core.options.election_ticks
        )

    @property
    def _is_whole(self) -> bool:
        """Does this replica hold whatever it acknowledged?"""
        return self._core.damage is None

    def _on_vote_request(self, sender: ReplicaId, body: VoteRequest) -> None:
        core = self._core
        if not self._would_vote(sender, body):
            core.send(sender, VoteReply(term=core.term, is_granted=False, is_pre=body.is_pre))
            if body.is_pre:
                self._stand_instead(body)
            return
        if body.is_pre:
            self._give_way(sender, body)
            core.send(sender, VoteReply(term=body.term, is_granted=True, is_pre=True))
            return
        core.vote = sender
        self.become_follower(leader=None)
        core.send(sender, VoteReply(term=core.term, is_granted=True))

    def _would_vote(self, sender: ReplicaId, body: VoteRequest) -> bool:
        core = self._core
        if self._sticks_to_leader(body) or not self._is_up_to_date(body):
            return False
        if body.is_pre:
            return body.term > core.term
        if body.term > core.term:
            return False  # refused above the roles: this replica hears a leader
        return self._has_vote_for(sender)

    def _has_vote_for(self, candidate: ReplicaId) -> bool:
        """One vote in a term, which may be given again to whoever has it."""
        return self._core.vote in (None, candidate)

    def _is_up_to_date(self, body: VoteRequest) -> bool:
        theirs = (body.last_term, body.last_index)
        return theirs >= self._log_end() and theirs >= self._lost_end()

    def _log_end(self) -> tuple[Term, Index]:
        """Of the log as it is in memory: what is being written may be acknowledged any moment."""
        return self._core.log.last_term, self._core.log.last_index

    def _lost_end(self) -> tuple[Term, Index]:
        """Of the log as it was before the damage: what was acknowledged out of the lost part is bound to be
        in the log of whoever gets the vote."""
        damage = self._core.damage
        if damage is None:
            return NO_TERM, NO_INDEX
        return damage.last_term if damage.last_term is not None else damage.term, damage.last_index

    def _give_way(self, sender: ReplicaId, body: VoteRequest) -> None:
        core = self._core
        if core.role is Role.PRE_CANDIDATE:
            theirs = (body.last_term, body.last_index, sender)
            if theirs > (core.log.last_term, core.log.last_index, core.replica):
                self.become_follower(leader=None)

    def _stand_instead(self, body: VoteRequest) -> None:
        """Refused to one with a shorter log, who knows of no leader either. It may have refused to this one,
        which asked when the other still did, and both would wait for their time-outs."""
        core = self._core
        is_ahead = (core.log.last_term, core.log.last_index) > (body.last_term, body.last_index)
        has_asked = core.leader is None and core.replica in self._votes
        if is_ahead and has_asked and core.role is not Role.CANDIDATE and self._may_campaign():
            self.become_pre_candidate()

    def _on_vote_reply(self, sender: ReplicaId, body: VoteReply) -> None:
        if self._is_answer(body):
            self._count_vote(sender, body.is_granted)

    def _is_answer(self, body: VoteReply) -> bool:
        """Is it about the round that is under way? An answer to the pre-vote that comes late was given for
        the same term and promised nothing."""
        if self._core.role is Role.PRE_CANDIDATE:
            return body.is_pre and (body.term == self._core.term + 1 or not body.is_granted)
        return not body.is_pre

    def _count_vote(self, sender: ReplicaId, is_granted: bool) -> None:
        core = self._core
        self._votes[sender] = is_granted
        if self._is_won():
            if core.role is Role.PRE_CANDIDATE:
                self.become_candidate()
            else:
                self.become_leader()
        elif is_majority(core.voters, [name for name, is_given in self._votes.items() if not is_given]):
            self.become_follower(leader=None)

    def _is_won(self) -> bool:
        """Each voter counts once, however often its answer came."""
        return is_majority(self._core.voters, [name for name, is_given in self._votes.items() if is_given])

    # ---------------------------------------------------------------------------------------- roles

    def become_follower(self, *, leader: ReplicaId | None, term: Term | None = None) -> None:
        core = self._core
        self._enter(Role.FOLLOWER)
        core.leader = leader
        core.is_serving = False
        if self._leader is not None:
            self._leader.close(is_deposed=term is not None)
            self._leader = None
        if term is not None:
            core.enter_term(term)
        self._restart_timeout()

    def become_pre_candidate(self) -> None:
        core = self._core
        self._enter(Role.PRE_CANDIDATE)
        core.leader = None
        self._ask_for_votes(is_pre=True, is_transfer=False)

    def become_candidate(self, *, is_transfer: bool = False) -> None:
        core = self._core
        self._enter(Role.CANDIDATE)
        core.leader = None
        core.enter_term(Term(core.term + 1))
        core.vote = core.replica
        self._ask_for_votes(is_pre=False, is_transfer=is_transfer)

    def become_leader(self) -> None:
        core = self._core
        self._enter(Role.LEADER)
        core.leader = core.replica
        self._leader_of_term = (core.term, core.replica)
        self._leader = Leader(core)

    def _enter(self, role: Role) -> None:
        now = self._core.role
        assert isinstance(now, Role) and role in TRANSITIONS[now], f"{now} cannot become {role}"
        self._core.role = role
        self._rests = False

    def _ask_for_votes(self, *, is_pre: bool, is_transfer: bool) -> None:
        core = self._core
        self._restart_timeout()
        self._votes = {}
        request = VoteRequest(
            term=Term(core.term + 1) if is_pre else core.term,
            last_index=core.log.last_index,
            last_term=core.log.last_term,
            is_pre=is_pre,
            is_transfer=is_transfer,
        )
        for voter in core.voters:
            if voter != core.replica:
                core.send(voter, request)
        if is_pre:
            self._count_vote(core.replica, True)

    def _restart_timeout(self) -> None:
        self._elapsed_ticks = 0
        self._timeout_ticks = self._random_timeout_ticks()

    def _first_timeout_ticks(self) -> int:
        """Where the group is as new as it looks from here, nobody has to be given up first."""
        core = self._core
        if core.term or core.log.last_index or core.damage is not None:
            return self._random_timeout_ticks()
        return core.rng.randint(1, core.options.first_election_ticks)

    def _random_timeout_ticks(self) -> int:
        ticks = self._core.options.election_ticks
        return self._core.rng.randrange(ticks, 2 * ticks)

    # ----------------------------------------------------------------------------------- invariants

    def _check_vote(self, vote: ReplicaId | None) -> None:
        assert vote is None or self._core.vote == vote, "a vote changed"

    def _has_config(self, index: Index, term: Term | None) -> bool:
        """Whether the entry that set the configuration was seen in the log, or needs not be there."""
        log = self._core.log
        if term is None or index < log.first_index:
            return True
        found = log.term(index)
        # None: a snapshot covers it, and it is damaged.
        assert found in (None, term), "a configuration without its entry"
        return found is not None

    def _check(self, term: Term, vote: ReplicaId | None, commit: Index, role: Enum) -> None:
        """What holds after every step, whatever happened. A failure means that the safety of the group is
        gone or never was: stop."""
        core, log = self._core, self._core.log
        assert core.term >= term, "a term fell"
        if core.term == term and vote is not core.vote:
            self._check_vote(vote)
        if core.role is Role.PRE_CANDIDATE and role is not Role.PRE_CANDIDATE:
            assert core.term == term, "asking around raised the term"
        assert commit <= core.commit <= log.last_index, "the commit index fell or left the log"
        assert core.applied <= core.commit_given <= core.commit, "something uncommitted was given to apply"
        config = (core.configs.index, core.configs.term, log.cuts)
        if config != self._proved_config and self._has_config(core.configs.index, core.configs.term):
            self._proved_config = config
        assert log.last_term <= core.term, "an entry of a term this replica never entered"
        assert (core.role is Role.LEADER) == (self._leader is not None)
        assert not core.is_serving or core.role is Role.LEADER
        if self._leader is not None:
            assert core.leader == core.replica
            self._leader.check()
