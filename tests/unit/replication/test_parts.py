"""Membership, reads, progress and options: the small parts on their own."""

import random

import pytest

from millrace.errors import ConfigError, LocalError, ProtocolError
from millrace.replication.appending.appender import Appender
from millrace.replication.appending.core import Core
from millrace.replication.appending.membership import ConfigHistory, change
from millrace.replication.appending.progress import Pace, Progress, SnapshotTransfer
from millrace.replication.appending.reads import Reads
from millrace.replication.contract import (
    ChangeKind,
    Config,
    ConfigAt,
    Entry,
    EntryKind,
    InitialState,
    ReadIndex,
    ReadReady,
    Refused,
    RefusedReason,
    ReplicaId,
    Reply,
    RequestId,
    Snapshot,
)
from millrace.replication.raft.messages import Append, check_append
from millrace.replication.raft.options import RaftOptions
from millrace.replication.raft.roles import TRANSITIONS, Role
from millrace.types import Index, Term
from unit.replication.cluster import SMALL, DiskState

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


def config_entry(index: int, config: Config) -> Entry:
    return Entry(term=Term(1), index=Index(index), kind=EntryKind.CONFIG, payload=config.encode())


# ------------------------------------------------------------------------------------------ membership


def test_a_configuration_survives_its_encoding() -> None:
    config = Config(voters=(A, B), learners=(C,))
    assert Config.decode(config.encode()) == config


def test_a_configuration_is_sorted_unique_and_disjoint() -> None:
    for voters, learners in (((B, A), ()), ((A, A), ()), ((A,), (A,))):
        with pytest.raises(LocalError):
            Config(voters=voters, learners=learners)


def test_the_configuration_in_force_follows_the_log_forward_and_back() -> None:
    history = ConfigHistory(ConfigAt(index=Index(0), config=Config(voters=(A,))))
    history.append(config_entry(5, Config(voters=(A,), learners=(B,))))
    history.append(config_entry(9, Config(voters=(A, B))))
    assert history.config == Config(voters=(A, B))
    assert history.replaced == Config(voters=(A,), learners=(B,))
    assert history.at(Index(8)) == Config(voters=(A,), learners=(B,))
    history.truncate_from(Index(9))
    assert (history.config, history.index) == (Config(voters=(A,), learners=(B,)), 5)
    history.compact(Index(6))
    with pytest.raises(AssertionError):
        history.at(Index(4))
    assert history.at(Index(6)) == Config(voters=(A,), learners=(B,))


@pytest.mark.parametrize(
    ("kind", "replica", "expected"),
    [
        (ChangeKind.ADD_LEARNER, ReplicaId("d"), Config(voters=(A, B), learners=(C, ReplicaId("d")))),
        (ChangeKind.ADD_LEARNER, A, RefusedReason.ALREADY_SO),
        (ChangeKind.PROMOTE, C, Config(voters=(A, B, C))),
        (ChangeKind.PROMOTE, A, RefusedReason.ALREADY_SO),
        (ChangeKind.PROMOTE, ReplicaId("d"), RefusedReason.NO_SUCH_REPLICA),
        (ChangeKind.DEMOTE, A, Config(voters=(B,), learners=(A, C))),
        (ChangeKind.DEMOTE, C, RefusedReason.ALREADY_SO),
        (ChangeKind.REMOVE, B, Config(voters=(A,), learners=(C,))),
        (ChangeKind.REMOVE, C, Config(voters=(A, B))),
        (ChangeKind.REMOVE, ReplicaId("d"), RefusedReason.NO_SUCH_REPLICA),
    ],
)
def test_each_change_moves_one_replica_or_says_why_not(
    kind: ChangeKind, replica: ReplicaId, expected: Config | RefusedReason
) -> None:
    assert change(Config(voters=(A, B), learners=(C,)), kind, replica) == expected


def test_the_last_voter_stays() -> None:
    for kind in (ChangeKind.REMOVE, ChangeKind.DEMOTE):
        assert change(Config(voters=(A,), learners=(B,)), kind, A) is RefusedReason.LAST_VOTER


# ----------------------------------------------------------------------------------------------- reads


def test_a_read_is_confirmed_by_its_own_round_or_a_later_one_only() -> None:
    view = DiskState(Config(voters=(A, B, C)))
    state = InitialState(hard_state=view.hard_state, config=view.config)
    core = Core(A, state, view, SMALL, random.Random(1), role=Role.LEADER)
    core.enter_term(Term(1))
    appender = Appender(core)
    core.commit_to(appender.noop_index)
    reads = Reads(core, appender)
    core.finish()

    def answered() -> list[RequestId]:
        return [effect.request for effect in core.finish() if isinstance(effect, Reply)]

    appender.begin_round()
    assert reads.on_read_index(ReadIndex(request=RequestId(1)), needs_round=True)
    reads.confirm(1)
    assert answered() == [], "the round before it says nothing"
    assert appender.round == 2, "and the next begins at once"
    assert reads.on_read_index(ReadIndex(request=RequestId(2)), needs_round=True)
    reads.confirm(2)
    assert answered() == [RequestId(1)]
    reads.confirm(9)
    assert answered() == [RequestId(2)]
    assert len(reads) == 0


def test_a_read_that_needs_no_round_is_answered_though_as_many_wait_as_may() -> None:
    """A primary goes on alone: those that came before wait for a backup that is gone."""
    view = DiskState(Config(voters=(A, B)))
    state = InitialState(hard_state=view.hard_state, config=view.config)
    core = Core(A, state, view, SMALL, random.Random(1), role=Role.LEADER)
    core.enter_term(Term(1))
    appender = Appender(core)
    core.commit_to(appender.noop_index)
    reads = Reads(core, appender)
    core.finish()
    for number in range(SMALL.reads_pending_max):
        assert reads.on_read_index(ReadIndex(request=RequestId(number)), needs_round=True)
    for needs_round, outcome in ((True, Refused), (False, ReadReady)):
        assert not reads.on_read_index(ReadIndex(request=RequestId(999)), needs_round=needs_round)
        (reply,) = [effect for effect in core.finish() if isinstance(effect, Reply)]
        assert isinstance(reply.outcome, outcome)


# -------------------------------------------------------------------------------------------- progress


def test_a_window_closes_by_messages_and_by_bytes_and_opens_by_answers() -> None:
    options = RaftOptions(inflight_messages_max=2, inflight_bytes_max=2 << 20)
    peer = Progress(A, Index(1), tick=0)
    peer.become_replicate()
    peer.sent(Index(1), 10)
    peer.sent(Index(2), 10)
    assert not peer.window_is_open(options)
    assert peer.acknowledge(Index(1))
    assert peer.window_is_open(options)
    peer.sent(Index(3), 2 << 20)
    assert not peer.window_is_open(options)
    assert peer.acknowledge(Index(3))
    assert peer.window_is_open(options) and not peer.is_append_pending


def test_match_never_falls_by_a_late_answer() -> None:
    peer = Progress(A, Index(6), tick=0)
    assert peer.acknowledge(Index(5))
    assert peer.pace is Pace.REPLICATE
    assert not peer.acknowledge(Index(3))
    assert (peer.match, peer.next) == (5, 6)


def test_a_transfer_resumes_where_the_follower_stands_and_again_when_nothing_moves() -> None:
    options = RaftOptions(chunk_bytes_max=10, chunks_inflight_max=2)
    snapshot = Snapshot(index=Index(9), term=Term(1), config=Config(voters=()), size_bytes=100, checksum=0)
    transfer = SnapshotTransfer(snapshot)
    assert not transfer.window_is_open(options), "nothing goes before the follower answered the offer"
    transfer.acknowledge(40)
    assert transfer.position == 40 and transfer.window_is_open(options)
    transfer.position = 60
    assert not transfer.window_is_open(options)
    transfer.round_passed()
    assert transfer.position == 60, "one round without news is not yet a loss"
    transfer.round_passed()
    assert transfer.position is None and not transfer.is_offered


# --------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ticks": 0},
        {"election_ticks": 5, "heartbeat_ticks": 2},
        {"inflight_bytes_max": 10, "append_bytes_max": 20},
        {"reads_pending_max": 0},
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RaftOptions(**wrong)


# ----------------------------------------------------------------------------------- roles and messages


def test_a_leader_only_ever_becomes_a_follower_and_only_candidates_become_leaders() -> None:
    assert TRANSITIONS[Role.LEADER] == {Role.FOLLOWER}
    assert [role for role in Role if Role.LEADER in TRANSITIONS[role]] == [Role.CANDIDATE]
    assert all(Role.FOLLOWER in targets for targets in TRANSITIONS.values())


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "places"),
    [
        (1, 1, [(3, 1)]),
        (1, 1, [(2, 1), (4, 1)]),
        (1, 2, [(2, 1)]),
        (1, 1, [(2, 6)]),
        (1, 1, [(2, 3), (3, 2)]),
    ],
)
def test_an_append_that_cannot_come_from_a_correct_leader_is_refused(
    prev_index: int, prev_term: int, places: list[tuple[int, int]]
) -> None:
    entries = tuple(
        Entry(term=Term(term), index=Index(index), kind=EntryKind.DATA, payload=b"") for index, term in places
    )
    body = Append(
        term=Term(5),
        prev_index=Index(prev_index),
        prev_term=Term(prev_term),
        commit=Index(0),
        entries=entries,
    )
    with pytest.raises(ProtocolError):
        check_append(body)
