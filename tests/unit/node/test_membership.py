"""The way from one configuration of a group to another [rule 35]."""

import pytest

from millrace.node.replicas.membership import next_change
from millrace.replication.contract import ChangeKind, Config, PeerStatus, ReplicaId, Status
from millrace.types import Index, Term

NOTHING: tuple[str, ...] = ()


def status(
    voters: str, learners: str = "", *, silent: str = "", behind: str = "", leader: str = "a"
) -> Status:
    """As the leader sees it; names are letters."""
    return Status(
        replica=ReplicaId(leader),
        role="leader",
        term=Term(1),
        vote=None,
        leader=ReplicaId(leader),
        serving=True,
        commit=Index(9),
        applied=Index(9),
        durable=Index(9),
        last=Index(9),
        config=Config(
            voters=tuple(ReplicaId(name) for name in voters),
            learners=tuple(ReplicaId(name) for name in learners),
        ),
        peers=tuple(
            PeerStatus(
                replica=ReplicaId(name),
                is_voter=name in voters,
                match=Index(0 if name in behind else 9),
                is_active=name not in silent,
                is_caught_up=name not in silent + behind,
            )
            for name in voters + learners
            if name != leader
        ),
    )


def test_a_dead_voter_leaves_before_the_one_that_replaces_it_begins_to_count() -> None:
    wanted = ("a", "b", "d")
    steps = [
        (status("abc", silent="c"), (ChangeKind.ADD_LEARNER, "d")),
        (status("abc", "d", silent="c", behind="d"), None),
        (status("abc", "d", silent="c"), (ChangeKind.REMOVE, "c")),
        (status("ab", "d"), (ChangeKind.PROMOTE, "d")),
        (status("abd"), None),
    ]
    assert [next_change(now, wanted, NOTHING) for now, _ in steps] == [change for _, change in steps]


def test_a_voter_that_answers_stays_until_the_one_that_replaces_it_counts() -> None:
    wanted = ("a", "b", "d")
    steps = [
        (status("abc", "d"), (ChangeKind.PROMOTE, "d")),
        (status("abcd"), (ChangeKind.REMOVE, "c")),
        (status("abd"), None),
    ]
    assert [next_change(now, wanted, NOTHING) for now, _ in steps] == [change for _, change in steps]


@pytest.mark.parametrize("learners", [("c",), NOTHING])
def test_nobody_leaves_before_those_who_take_over_are_there(learners: tuple[str, ...]) -> None:
    assert next_change(status("abc", "d", silent="c", behind="d"), ("a", "b", "d"), learners) is None


def test_a_silent_node_that_stays_a_member_is_not_removed_for_a_newcomer() -> None:
    """It keeps following without a vote."""
    change = next_change(status("abc", "d", silent="c"), ("a", "b", "d"), ("c",))
    assert change == (ChangeKind.DEMOTE, "c")
