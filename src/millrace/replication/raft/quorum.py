"""Majorities: the arithmetic on which everything stands, in one place and without state.

A quorum is more than half of the voters of the configuration in force. Learners, replicas that left and
replicas that are merely unreachable change nothing about it.
"""

from collections.abc import Iterable, Sequence


def majority(voters_count: int) -> int:
    """The smallest number of voters any two of which groups share a member."""
    return voters_count // 2 + 1


def reached_by_majority(values: Sequence[int]) -> int:
    """The highest value that a majority has reached, given one value per voter; 0 without voters."""
    if not values:
        return 0
    return sorted(values, reverse=True)[majority(len(values)) - 1]


def is_majority(voters: Sequence[object], agreeing: Iterable[object]) -> bool:
    """Do those who agree, as far as they are voters, make a majority?"""
    agreeing_voters = set(agreeing).intersection(voters)
    return bool(voters) and len(agreeing_voters) >= majority(len(voters))
