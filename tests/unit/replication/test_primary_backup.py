"""The machine of a primary-backup pair where the stories in `tests/scenarios/pairs` are not close enough."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from millrace.broker.meta.pairs import Pair
from millrace.replication.contract import PeerMessage, ReplicaId
from millrace.replication.pair.messages import Check, CheckReply
from millrace.replication.raft.messages import Heartbeat
from millrace.types import Index, Term
from unit.replication.cluster import SMALL
from unit.replication.pair_stage import CHECK_TICKS, SHARD, PairStage, appointed

N1, N2, N3 = ReplicaId("n1"), ReplicaId("n2"), ReplicaId("n3")


def test_a_backup_may_follow_on_a_primary_that_falls_within_its_first_check_interval() -> None:
    """What was asked before the primary had begun is answered by nobody, so it is asked again at once."""
    stage = PairStage(has_authority=False)
    stage.tick([N2])
    stage.mail.clear()
    stage.rounds(CHECK_TICKS - 1)
    stage.propose(N1)
    stage.quiet()
    assert stage.machine(N2).status().commit == stage.machine(N1).status().commit == 2
    stage.crash(N1)
    stage.tick([N2], 8 * CHECK_TICKS)
    stage.quiet()
    assert stage.machine(N2).status().serving


@pytest.mark.parametrize("name", [N2, N3])
def test_a_primary_that_fell_silent_and_has_no_successor_is_nobodys_leader(name: ReplicaId) -> None:
    """What waits for a leader waits a bounded time, so nobody may stay one for ever."""
    stage = settled(has_authority=True)
    stage.crash(N2)
    for _ in range(15 * CHECK_TICKS):
        stage.tick([N1, N3])
        stage.quiet()
    assert stage.machine(N3).leader == N1, "as long as it is heard"
    stage.start(N2)
    stage.rounds(1)
    stage.crash(N1)
    for _ in range(10 * CHECK_TICKS):
        stage.tick([N2, N3])
        stage.quiet()
    assert stage.machine(name).leader is None


def settled(**settings: Any) -> PairStage:
    stage = PairStage(**settings)
    stage.rounds(3 * CHECK_TICKS)
    stage.quiet()
    stage.propose(N1)
    stage.quiet()
    stage.rounds(CHECK_TICKS)
    return stage


def seized(stage: PairStage, *, is_in_sync: bool = True) -> Pair:
    """What two nodes recorded before one of them was away."""
    epoch = int(stage.machine(N1).status().term)
    return Pair(version=5, epoch=epoch, primary="n1", backup="n2", is_in_sync=is_in_sync, is_seized=True)


def test_a_record_of_two_nodes_alone_is_no_permission_once_there_is_a_third() -> None:
    """The primary went on alone and could not record it; a third node makes an authority of the record."""
    stage = settled(has_authority=False, may_split=True)
    stage.crash(N2)
    stage.tick([N1], 15 * CHECK_TICKS)
    for _ in range(5):
        stage.propose(N1)
        stage.sync()
    primary = stage.machine(N1)
    assert primary.is_alone and primary.status().commit == 7
    stage.start(N2)
    stage.mail.clear()
    record = appointed(seized(stage))
    stage.step(N1, record)
    stage.step(N2, record)
    stage.sync()
    stage.mail.clear()
    assert primary.is_alone, "what it acknowledged alone is not at the backup yet"
    stage.crash(N1)
    stage.reports.clear()
    stage.tick([N2], 10 * CHECK_TICKS)
    assert stage.machine(N2).status().last == 2
    assert not stage.reports, "it does not ask to take over without what was acknowledged"


def test_a_backup_that_lacks_nothing_stays_in_sync_when_a_third_node_joins() -> None:
    stage = settled(has_authority=False)
    stage.pairs.by_shard[SHARD] = seized(stage)
    stage.has_authority = True
    stage.tell()
    assert not stage.machine(N1).is_alone, "both counted before, and both count on"
    stage.rounds(2 * CHECK_TICKS)
    stage.quiet()
    record = stage.pairs.by_shard[SHARD]
    assert record.is_in_sync and not record.is_seized, "the record is made again, with an authority"
    stage.propose(N1)
    stage.quiet()
    stage.crash(N1)
    stage.tick([N2], 10 * CHECK_TICKS)
    stage.quiet()
    assert stage.machine(N2).status().serving


def test_a_primary_alone_stays_alone_when_the_third_node_leaves_again() -> None:
    stage = settled(has_authority=False, may_split=True)
    stage.crash(N2)
    stage.tick([N1], 15 * CHECK_TICKS)
    stage.propose(N1)
    stage.sync()
    record = appointed(seized(stage))
    stage.step(N1, record)
    stage.step(N1, replace(record, has_quorum=False))
    assert stage.machine(N1).is_alone


def test_a_primary_records_again_what_was_recorded_with_an_authority_that_is_gone() -> None:
    """What it does alone from here on nobody may be able to record."""
    stage = settled(has_authority=False)
    record = replace(appointed(seized(stage)), is_seized=False)
    stage.step(N1, record)
    stage.reports.clear()
    stage.step(N1, replace(record, has_quorum=False))
    assert [(report.is_seized, report.is_in_sync) for report in stage.reports] == [(True, True)]


def test_a_backup_that_restarts_while_it_is_told_to_be_out_of_sync_is_heard_at_its_first_questions() -> None:
    """It counts its questions anew, and the one that it was told by was of its last run."""
    stage = settled(has_authority=False, may_split=True)
    stage.rounds(50 * CHECK_TICKS)
    stage.stalled.add(N2)
    stage.propose(N1)
    stage.quiet()
    primary = stage.machine(N1)
    replies = [body for _, _, body in stage.mail if isinstance(body, CheckReply)]
    while not replies or replies[-1].is_in_sync:
        stage.tick([N1, N2])
        replies += [body for _, _, body in stage.mail if isinstance(body, CheckReply)]
        stage.deliver()
    stage.crash(N2)
    stage.stalled.discard(N2)
    stage.mail.clear()
    stage.start(N2)
    for _ in range(6 * CHECK_TICKS):
        stage.rounds(1)
        stage.quiet()
    assert not primary.is_alone
    assert stage.machine(N2).status().commit == primary.status().commit == 3
    stage.crash(N1)
    stage.tick([N2], 10 * CHECK_TICKS)
    stage.quiet()
    assert stage.machine(N2).status().serving, "it was told that it is in sync"


def test_a_claim_that_is_recorded_after_its_sender_heard_the_primary_again_waits_for_the_promise() -> None:
    """The answer and the record cross: on the answer the old primary may serve for a while."""
    stage = settled(has_authority=True)
    stage.cut_off.add(N2)
    while not stage.reports or stage.reports[-1].primary != N2:
        stage.tick([N2])
        stage.mail.clear()
    claim = stage.reports[-1]
    for _ in range(2 * CHECK_TICKS):
        stage.tick([N1, N2])
        stage.quiet()
    assert stage.propose(N1) is not None
    stage.quiet()
    commit = stage.machine(N1).status().commit
    stage.cut_off = {N1}
    stage._record(stage.nodes[N2], claim)
    stage.tell()
    stage.sync(N2)
    assert stage.pairs.by_shard[SHARD].primary == N2
    assert not stage.machine(N2).status().serving, "the other one has a lease"
    for _ in range(8 * CHECK_TICKS):
        stage.tick([N1, N2, N3])
        stage.quiet()
    assert stage.machine(N2).status().serving and not stage.machine(N1).status().serving
    assert stage.machine(N2).status().commit >= commit


def test_a_question_that_comes_twice_lengthens_no_lease() -> None:
    """The backup counts from the first answer, and may have taken over by the time of the second."""
    stage = settled(has_authority=True)
    stage.cut_off.add(N1)
    machine = stage.machine(N1)
    first, second = (Check(term=machine.status().term, number=n, answered=n - 1) for n in (1_000, 1_001))
    stage.step(N1, PeerMessage(sender=N2, body=first))
    assert machine._primary.has_lease
    stage.tick([N1], 8 * CHECK_TICKS)
    assert not machine._primary.has_lease
    stage.step(N1, PeerMessage(sender=N2, body=first))
    stage.step(N1, PeerMessage(sender=N2, body=second))
    assert not machine._primary.has_lease


def test_a_backup_whose_disk_does_not_keep_up_does_not_follow_on_a_primary_that_it_hears() -> None:
    """It takes no new epoch until then, but a partner of a newer one lives."""
    options = dataclasses.replace(SMALL, persists_pending_max=1)
    stage = settled(has_authority=False, may_split=True, options=options)
    stage.stalled.add(N2)
    stage.propose(N1)
    stage.quiet()
    backup = stage.machine(N2)
    assert backup._core.is_disk_behind
    beat = Heartbeat(term=Term(backup.status().term + 2), commit=Index(0), context=0)
    for _ in range(20 * CHECK_TICKS):
        stage.tick([N2])
        stage.mail.clear()
        stage.step(N2, PeerMessage(sender=N1, body=beat))
    stage.stalled.discard(N2)
    stage.sync(N2)
    stage.tick([N2])
    assert backup.status().term == beat.term - 2 and backup.status().role == "backup"


def test_a_primary_whose_disk_does_not_keep_up_acknowledges_nothing_once_it_hears_a_newer_one() -> None:
    """Its partner has gone on without it, in an epoch that is one more write for this disk."""
    options = dataclasses.replace(SMALL, persists_pending_max=1)
    stage = settled(has_authority=False, may_split=True, options=options)
    stage.stalled.add(N1)
    stage.propose(N1)
    primary = stage.machine(N1)
    assert primary._core.is_disk_behind
    commit = primary.status().commit
    # It goes on alone as soon as the partner has been silent for long.
    for _ in range(8 * CHECK_TICKS):
        stage.tick([N1])
        stage.mail.clear()
    assert primary.is_alone
    beat = Heartbeat(term=Term(primary.status().term + 1), commit=Index(0), context=0)
    stage.step(N1, PeerMessage(sender=N2, body=beat))
    stage.stalled.discard(N1)
    stage.sync(N1)
    assert primary.status().role == "backup" and primary.status().commit == commit
