"""The machine by its promises, one at a time: what waits for the disk, who may lead, what is refused."""

import random

import pytest

from millrace.errors import LocalError
from millrace.replication.contract import (
    Accepted,
    Applied,
    ChangeKind,
    Config,
    ConfigAt,
    Damage,
    Effect,
    EntryKind,
    HardState,
    InitialState,
    LinkClosed,
    PeerBody,
    PeerMessage,
    Persist,
    Persisted,
    Propose,
    ReadIndex,
    ReadReady,
    Refused,
    RefusedReason,
    ReplicaId,
    RequestId,
    Send,
    SnapshotTaken,
    Tick,
    Transferred,
)
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from millrace.types import Index, Term
from unit.replication.cluster import SMALL, DiskState
from unit.replication.stage import Stage

N1, N2, N3, N4 = (ReplicaId(f"n{number}") for number in range(1, 5))
THREE = Config(voters=(N1, N2, N3))


def fresh(
    name: ReplicaId = N1,
    config: Config = THREE,
    term: int = 0,
    vote: ReplicaId | None = None,
    log: DiskState | None = None,
) -> Raft:
    state = InitialState(
        hard_state=HardState(term=Term(term), vote=vote), config=ConfigAt(index=Index(0), config=config)
    )
    return Raft(name, state=state, log=log or DiskState(config), options=SMALL, rng=random.Random(1))


def tell(machine: Raft, sender: ReplicaId, body: PeerBody) -> list[Effect]:
    return machine.step(PeerMessage(sender=sender, body=body))


def kinds(effects: list[Effect]) -> list[str]:
    """Types in order, messages by the type of their body, without what only tells the role."""
    names = [type(each.body if isinstance(each, Send) else each).__name__ for each in effects]
    return [name for name in names if name != "RoleChanged"]


def granted(effects: list[Effect]) -> list[bool]:
    bodies = [each.body for each in effects if isinstance(each, Send)]
    return [body.is_granted for body in bodies if isinstance(body, VoteReply)]


def vote_request(term: int, last: tuple[int, int] = (0, 0), *, is_pre: bool = False) -> VoteRequest:
    return VoteRequest(term=Term(term), last_index=Index(last[0]), last_term=Term(last[1]), is_pre=is_pre)


# -------------------------------------------------------------------------------- before a message leaves


def test_a_vote_stands_behind_the_write_that_holds_it() -> None:
    effects = tell(fresh(), N2, vote_request(1))
    assert kinds(effects) == ["Persist", "VoteReply"]
    write = next(effect for effect in effects if isinstance(effect, Persist))
    assert write.hard_state == HardState(term=Term(1), vote=N2)


def test_a_candidate_asks_behind_the_write_of_its_own_vote() -> None:
    machine = fresh()
    while machine.status().role != "pre-candidate":
        asked = machine.step(Tick())
    assert kinds(asked) == ["VoteRequest", "VoteRequest"], "asking raises no term and waits for nothing"
    effects = tell(machine, N2, VoteReply(term=Term(1), is_granted=True, is_pre=True))
    assert kinds(effects) == ["Persist", "VoteRequest", "VoteRequest"]


def test_while_a_term_is_being_written_later_answers_wait_behind_a_barrier() -> None:
    machine = fresh()
    heartbeat = Heartbeat(term=Term(3), commit=Index(0), context=1)
    assert kinds(tell(machine, N2, heartbeat)) == ["Persist", "HeartbeatReply"]
    second = tell(machine, N2, heartbeat)
    assert kinds(second) == ["Persist", "HeartbeatReply"]
    assert isinstance(second[0], Persist) and second[0].is_barrier and second[0].number == 2
    machine.step(Persisted(number=2))
    assert kinds(tell(machine, N2, heartbeat)) == ["HeartbeatReply"]


def test_an_append_is_answered_behind_its_write_and_a_repetition_does_not_overtake_it() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.stalled.add(N2)
    stage.propose(N1)
    stage.copy(N1, N2, "Append")
    stage.deliver(N1, N2)
    stage.release()
    assert not [letter for letter in stage.mail if letter[0] == N2], "nothing leaves before the first write"
    stage.sync(N2)
    assert [type(letter[2]) for letter in stage.mail if letter[0] == N2] == [AppendReply, AppendReply]


def test_a_leader_sends_before_its_own_write_is_done() -> None:
    stage = Stage(3)
    stage.elect(N1)
    request = Propose(request=RequestId(1), payloads=(b"a", b"b"))
    effects = stage.machine(N1).step(request)
    assert kinds(effects) == ["Reply", "Append", "Append", "Persist"]


# ------------------------------------------------------------------------------------------------ leading


def test_a_lone_voter_stands_at_its_first_tick_and_serves_when_its_entry_is_applied() -> None:
    disk = DiskState(Config(voters=(N1,)))
    machine = fresh(config=disk.config.config, log=disk)
    assert kinds(machine.step(Tick())) == ["Persist"]
    assert machine.status().role == "candidate", "its own vote is not on disk yet"
    *_, write = machine.step(Persisted(number=1))
    assert isinstance(write, Persist)
    disk.apply(write, b"")
    assert machine.status().role == "leader" and not machine.status().serving
    assert kinds(machine.step(Persisted(number=2))) == ["Commit"]
    assert not machine.status().serving, "committed is not applied"
    machine.step(Applied(index=Index(1)))
    assert machine.status().serving


def test_proposals_and_reads_wait_for_the_own_term_entry() -> None:
    machine = fresh(config=Config(voters=(N1,)))
    machine.step(Tick())
    machine.step(Persisted(number=1))
    for event in (Propose(request=RequestId(1), payloads=(b"x",)), ReadIndex(request=RequestId(1))):
        outcome = next(each.outcome for each in machine.step(event) if hasattr(each, "outcome"))
        assert outcome == Refused(reason=RefusedReason.NOT_READY, leader=N1)


def test_a_follower_refuses_and_names_the_leader() -> None:
    stage = Stage(3)
    stage.elect(N1)
    change = stage.change(N2, ChangeKind.REMOVE, N3)
    for request in (stage.propose(N2), stage.read(N2), change, stage.transfer(N2)):
        assert stage.replies[request] == Refused(reason=RefusedReason.NOT_LEADER, leader=N1)


def test_an_empty_proposal_or_one_of_the_machines_own_kinds_is_the_drivers_fault() -> None:
    machine = fresh()
    for event in (
        Propose(request=RequestId(1), payloads=()),
        Propose(request=RequestId(1), payloads=(b"",), kind=EntryKind.CONFIG),
    ):
        with pytest.raises(LocalError):
            machine.step(event)


def test_one_proposal_larger_than_the_bound_is_taken_alone() -> None:
    stage = Stage(3)
    stage.elect(N1)
    huge = b"x" * (SMALL.uncommitted_bytes_max + 1)
    first = stage.request(N1, lambda request: Propose(request=request, payloads=(huge,)))
    assert isinstance(stage.replies[first], Accepted)
    second = stage.request(N1, lambda request: Propose(request=request, payloads=(b"x",)))
    assert stage.replies[second] == Refused(reason=RefusedReason.OVERLOADED, leader=N1)
    stage.quiet()
    assert isinstance(stage.replies[stage.propose(N1)], Accepted)


def test_the_commit_index_goes_out_at_once_when_no_append_is_pending() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.propose(N1)
    stage.quiet()
    assert {stage.machine(name).status().commit for name in stage.nodes} == {2}, "without a tick in between"


def test_appends_are_pipelined_up_to_the_window_and_batched_beyond() -> None:
    stage = Stage(3)
    stage.elect(N1)
    for _ in range(20):
        stage.propose(N1)
    appends = [body for _, to, body in stage.mail if to == N2 and isinstance(body, Append)]
    assert len(appends) == SMALL.inflight_messages_max
    stage.mail.clear()
    stage.step(N1, PeerMessage(sender=N2, body=AppendReply(term=Term(1), matched=Index(5))))
    (batch, *_rest) = [body for _, to, body in stage.mail if to == N2 and isinstance(body, Append)]
    assert len(batch.entries) == SMALL.append_entries_max


def test_followers_at_the_same_place_share_one_message() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.propose(N1, count=3)
    first, second = [body for _, _, body in stage.mail if isinstance(body, Append)]
    assert first is second


def test_lost_appends_are_noticed_by_the_next_heartbeat() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.propose(N1)
    stage.mail.clear()
    stage.rounds(2 * SMALL.heartbeat_ticks)
    assert {stage.machine(name).status().commit for name in stage.nodes} == {2}


def test_a_follower_whose_whole_window_was_lost_gets_the_snapshot_when_the_log_is_gone() -> None:
    """Nothing can be sent (the window is full) and nothing compared (the entries are compacted)."""
    stage = Stage(3)
    stage.elect(N1)
    stage.partition([N1, N2], [N3])
    for _ in range(3 * SMALL.inflight_messages_max):
        stage.propose(N1)
        stage.quiet()
    stage.take_snapshot(N1, keep=0)
    stage.heal()
    stage.rounds(8 * SMALL.heartbeat_ticks)
    assert stage.nodes[N3].applied == stage.nodes[N1].applied


def test_a_follower_that_lost_its_last_entry_without_knowing_gets_it_again() -> None:
    """Damage in the last write looks as if it had never ended; the leader still counts the entry there."""
    stage = Stage(3)
    stage.elect(N1)
    stage.propose(N1)
    stage.rounds(2 * SMALL.heartbeat_ticks)
    held = stage.nodes[N3].applied_index
    stage.crash(N3)
    del stage.nodes[N3].durable.log[-1]
    stage.link_closed(N1, N3)
    stage.start(N3)
    stage.link_opened(N1, N3)
    stage.rounds(4 * SMALL.heartbeat_ticks)
    assert stage.nodes[N3].durable.last_index() == stage.nodes[N1].durable.last_index() == held
    stage.propose(N1)
    stage.rounds(2 * SMALL.heartbeat_ticks)
    assert stage.nodes[N3].applied_index == held + 1


def test_a_follower_that_lacks_nothing_is_caught_up_again_though_the_first_question_was_lost() -> None:
    """A node that begins again links before it has opened its groups: what is sent at once is not heard."""
    stage = Stage(3)
    stage.elect(N1)
    stage.rounds(2 * SMALL.heartbeat_ticks)
    stage.crash(N3)
    stage.link_closed(N1, N3)
    stage.link_opened(N1, N3)
    stage.mail.clear()
    stage.start(N3)
    stage.rounds(2 * SMALL.heartbeat_ticks)
    (peer,) = [peer for peer in stage.machine(N1).status().peers if peer.replica == N3]
    assert peer.is_caught_up


# -------------------------------------------------------------------------------------------------- reads


def test_reads_that_come_during_a_round_share_the_next() -> None:
    stage = Stage(3)
    stage.elect(N1)
    first, second, third = stage.read(N1), stage.read(N1), stage.read(N1)
    assert [type(body) for _, _, body in stage.mail] == [Heartbeat, Heartbeat]
    stage.deliver(N1, N2)
    stage.deliver(N2, N1)
    assert isinstance(stage.replies[first], ReadReady)
    assert second not in stage.replies
    stage.drop(N1, N3, None)
    assert {body.context for _, to, body in stage.mail if isinstance(body, Heartbeat)} == {2}
    stage.deliver(N1, N2)
    stage.deliver(N2, N1)
    assert isinstance(stage.replies[second], ReadReady) and isinstance(stage.replies[third], ReadReady)


def test_reads_that_wait_are_refused_when_the_leader_falls() -> None:
    stage = Stage(3)
    stage.elect(N1)
    request = stage.read(N1)
    stage.step(N1, PeerMessage(sender=N2, body=HeartbeatReply(term=Term(9), context=0)))
    assert stage.replies[request] == Refused(reason=RefusedReason.NOT_LEADER, leader=None)


def test_a_read_is_answered_when_the_one_it_waits_for_leaves() -> None:
    stage = Stage(2)
    stage.elect(N1)
    stage.partition([N1], [N2])
    request = stage.read(N1)
    stage.change(N1, ChangeKind.REMOVE, N2)
    stage.rounds(2 * SMALL.heartbeat_ticks)
    assert isinstance(stage.replies[request], ReadReady)


def test_waiting_reads_are_bounded() -> None:
    stage = Stage(2)
    stage.elect(N1)
    outcomes = [stage.read(N1) for _ in range(SMALL.reads_pending_max + 1)]
    assert stage.replies[outcomes[-1]] == Refused(reason=RefusedReason.OVERLOADED, leader=N1)


# ---------------------------------------------------------------------------------------------- elections


def test_a_follower_that_hears_a_leader_refuses_votes_and_stays_in_its_term() -> None:
    machine = fresh(N2)
    tell(machine, N1, Heartbeat(term=Term(1), commit=Index(0), context=1))
    machine.step(Persisted(number=1))
    for is_pre in (True, False):
        effects = tell(machine, N3, vote_request(7, (9, 9), is_pre=is_pre))
        assert granted(effects) == [False]
        assert machine.status().term == 1


def test_a_pre_vote_binds_nobody() -> None:
    machine = fresh()
    for asker in (N2, N3):
        effects = tell(machine, asker, vote_request(1, is_pre=True))
        assert kinds(effects) == ["VoteReply"]
        assert granted(effects) == [True]
    assert machine.status().vote is None and machine.status().term == 0


def test_one_vote_a_term_repeated_to_the_same_only() -> None:
    machine = fresh()
    answers = [granted(tell(machine, asker, vote_request(1))) for asker in (N2, N3, N2)]
    assert answers == [[True], [False], [True]]


def test_a_restart_remembers_its_vote() -> None:
    machine = fresh(term=4, vote=N2)
    effects = tell(machine, N3, vote_request(4))
    assert granted(effects) == [False]


def test_a_learner_and_a_stranger_never_stand() -> None:
    for config in (Config(voters=(N2, N3), learners=(N1,)), Config(voters=())):
        machine = fresh(config=config)
        for _ in range(5 * SMALL.election_ticks):
            assert kinds(machine.step(Tick())) == []
        machine.step(LinkClosed(peer=N2))
        tell(machine, N2, TimeoutNow(term=Term(0)))
        assert machine.status().role == "follower"


def test_a_leader_without_a_majority_steps_down_within_the_election_time() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.partition([N1], [N2, N3])
    stage.rounds(SMALL.election_ticks + 1)
    assert stage.machine(N1).status().role == "follower"


def test_a_leader_of_an_older_term_is_told_of_the_newer() -> None:
    machine = fresh(term=5)
    effects = tell(machine, N2, Heartbeat(term=Term(3), commit=Index(0), context=1))
    bodies = [each.body for each in effects if isinstance(each, Send)]
    assert bodies == [HeartbeatReply(term=Term(5), context=0)]


# ----------------------------------------------------------------------------- transfer, damage, snapshots


def test_a_transfer_is_answered_when_the_other_has_taken_over() -> None:
    stage = Stage(3)
    stage.elect(N1)
    request = stage.transfer(N1, N2)
    stage.quiet()
    assert stage.replies[request] == Transferred(target=N2)
    assert stage.machine(N2).status().serving


def test_a_transfer_to_nobody_in_particular_goes_to_the_one_with_the_most() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.partition([N1, N2], [N3])
    stage.propose(N1)
    stage.quiet()
    request = stage.transfer(N1)
    stage.quiet()
    assert stage.replies[request] == Transferred(target=N2)


def test_a_transfer_to_a_learner_or_to_oneself_is_refused() -> None:
    stage = Stage(3, spares=1)
    stage.elect(N1)
    stage.change(N1, ChangeKind.ADD_LEARNER, N4)
    stage.quiet()
    assert stage.replies[stage.transfer(N1, N4)] == Refused(reason=RefusedReason.NO_SUCH_REPLICA, leader=N1)
    assert stage.replies[stage.transfer(N1, N1)] == Refused(reason=RefusedReason.ALREADY_SO, leader=N1)


def test_a_damaged_replica_votes_by_the_log_it_had_and_does_not_stand() -> None:
    for last_term, theirs, is_granted in ((2, (9, 2), True), (2, (8, 2), False), (None, (9, 2), False)):
        state = InitialState(
            hard_state=HardState(term=Term(4)),
            config=ConfigAt(index=Index(0), config=THREE),
            damage=Damage(
                last_index=Index(9), term=Term(4), last_term=None if last_term is None else Term(last_term)
            ),
        )
        machine = Raft(N1, state=state, log=DiskState(THREE), options=SMALL, rng=random.Random(1))
        for _ in range(3 * SMALL.election_ticks):
            assert kinds(machine.step(Tick())) == []
        effects = tell(machine, N2, vote_request(5, theirs))
        assert granted(effects) == [is_granted]


def test_a_snapshot_with_a_wrong_checksum_is_fetched_again_and_never_installed() -> None:
    stage = Stage(3)
    stage.elect(N1)
    stage.lose_writes(N3)
    for _ in range(4):
        stage.propose(N1)
    stage.quiet()
    stage.take_snapshot(N1, keep=0)
    stage.start(N3)
    stage.link_opened(N1, N3)
    stage.deliver(N1, N3)
    stage.deliver(N3, N1)
    ((_, _, chunk),) = [letter for letter in stage.mail if isinstance(letter[2], SnapshotChunk)]
    assert isinstance(chunk, SnapshotChunk)
    spoiled = SnapshotChunk(
        term=chunk.term, snapshot=chunk.snapshot, position=chunk.position, data=bytes(len(chunk.data))
    )
    stage.mail.clear()
    effects = stage.step(N3, PeerMessage(sender=N1, body=spoiled))
    assert "Persist" not in kinds(effects)
    stage.rounds(4 * SMALL.heartbeat_ticks)
    assert stage.nodes[N3].applied == stage.nodes[N1].applied


def test_the_driver_may_not_apply_or_snapshot_what_it_was_not_given() -> None:
    machine = fresh()
    with pytest.raises(LocalError):
        machine.step(Applied(index=Index(1)))
    with pytest.raises(LocalError):
        machine.step(SnapshotTaken(index=Index(1), term=Term(1), config=THREE))


def test_a_restart_takes_up_the_configuration_from_the_log() -> None:
    stage = Stage(3, spares=1)
    stage.elect(N1)
    stage.change(N1, ChangeKind.ADD_LEARNER, N4)
    stage.quiet()
    stage.crash(N2)
    stage.start(N2)
    assert stage.machine(N2).status().config == Config(voters=(N1, N2, N3), learners=(N4,))
