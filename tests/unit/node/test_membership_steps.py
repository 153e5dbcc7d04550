"""Which step a leader makes from one configuration of its group to another, and for whom it waits."""

import pytest

from millrace.node.replicas.membership import next_change
from millrace.replication.contract import ChangeKind, Config, Index, PeerStatus, ReplicaId, Status, Term

A, B, C = (ReplicaId(name) for name in "abc")


def led_by_a(*peers: PeerStatus) -> Status:
    config = Config(voters=(A, B, C), learners=())
    return Status(
        replica=A,
        role="leader",
        term=Term(1),
        vote=A,
        leader=A,
        serving=True,
        commit=Index(5),
        applied=Index(5),
        durable=Index(5),
        last=Index(5),
        config=config,
        peers=peers,
    )


def peer(name: ReplicaId, *, is_active: bool = True, is_caught_up: bool = True) -> PeerStatus:
    return PeerStatus(
        replica=name, is_voter=True, match=Index(5), is_active=is_active, is_caught_up=is_caught_up
    )


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_voter_goes_when_the_others_do_without_it(is_kept: bool) -> None:
    learners = ("b",) if is_kept else ()
    step = next_change(led_by_a(peer(B), peer(C)), ("a", "c"), learners)
    assert step == (ChangeKind.DEMOTE if is_kept else ChangeKind.REMOVE, B)


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("other", [peer(C, is_active=False), peer(C, is_caught_up=False)])
def test_a_voter_stays_while_another_is_away_or_behind(is_kept: bool, other: PeerStatus) -> None:
    """Seed 842800052 of whole nodes: a node was drained while another was down, whose log was damaged. Two
    voters were left, of which one may not vote before the other, alone, has led."""
    assert next_change(led_by_a(peer(B), other), ("a", "c"), ("b",) if is_kept else ()) is None


def test_a_voter_that_is_silent_goes_whatever_the_others_do() -> None:
    """Fewer are needed without it."""
    status = led_by_a(peer(B, is_active=False, is_caught_up=False), peer(C, is_caught_up=False))
    assert next_change(status, ("a", "c"), ()) == (ChangeKind.REMOVE, B)
