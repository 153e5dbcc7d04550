"""Majorities overlap, and what a majority reached is what any majority of the future must know of."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from millrace.replication.raft.quorum import is_majority, majority, reached_by_majority


@given(st.integers(min_value=1, max_value=9))
def test_any_two_majorities_share_a_voter_and_nothing_smaller_is_sure_to(count: int) -> None:
    voters, needed = range(count), majority(count)
    groups = [set(group) for group in combinations(voters, needed)]
    assert all(one & other for one in groups for other in groups)
    rest = set(voters) - groups[0]
    assert len(rest) < needed, "those outside a majority are none themselves"
    assert 2 * (needed - 1) <= count, "one less, and two groups need not meet"


@given(st.lists(st.integers(min_value=0, max_value=20), min_size=1, max_size=9))
def test_what_a_majority_reached_is_the_highest_such_value(values: list[int]) -> None:
    reached = reached_by_majority(values)
    assert sum(value >= reached for value in values) >= majority(len(values))
    assert sum(value > reached for value in values) < majority(len(values))


def test_without_voters_nothing_is_reached_and_nobody_agrees() -> None:
    assert reached_by_majority([]) == 0
    assert not is_majority((), ("a",))


def test_only_voters_count_and_each_once() -> None:
    assert not is_majority(("a", "b", "c"), ("a", "learner", "gone"))
    assert not is_majority(("a", "b", "c"), ("a", "a"))
    assert is_majority(("a", "b", "c"), ("c", "a"))
    assert not is_majority(("a", "b"), ("a",))
