"""Filters as sets of topics, against a reference that lists the topics one by one."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.topics.filters import covers, is_valid, matches, overlaps

ALPHABET = ("a", "b", "$s", "")
# Filters below have at most three levels, so topics of four levels tell any two different sets apart.
TOPICS = ["/".join(levels) for depth in range(1, 5) for levels in product((*ALPHABET, "c"), repeat=depth)]


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from((*ALPHABET, "+")), min_size=0, max_size=3))
    if not levels or draw(st.booleans()):
        levels = [*levels[:2], "#"]
    return "/".join(levels) or "a"


def reference_match(filter: str, topic: str) -> bool:
    """4.7 of the standard, word for word, by recursion."""

    def rest(pattern: list[str], levels: list[str]) -> bool:
        if not pattern:
            return not levels
        if pattern == ["#"]:
            return True
        if not levels:
            return False
        return (pattern[0] == "+" or pattern[0] == levels[0]) and rest(pattern[1:], levels[1:])

    if topic.startswith("$") and filter[0] in "+#":
        return False
    return rest(filter.split("/"), topic.split("/"))


def topics_of(filter: str) -> set[str]:
    return {topic for topic in TOPICS if reference_match(filter, topic)}


@given(filters(), st.sampled_from(TOPICS))
def test_matches_is_membership(filter: str, topic: str) -> None:
    assert matches(filter, topic) == reference_match(filter, topic)


@settings(max_examples=300)
@given(filters(), filters())
def test_covers_is_inclusion_and_overlaps_is_a_common_topic(one: str, two: str) -> None:
    first, second = topics_of(one), topics_of(two)
    assert covers(one, two) == (first >= second)
    assert overlaps(one, two) == overlaps(two, one) == bool(first & second)


@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        ("a/#", "a", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("+", "/a", False),
        ("#", "$SYS/uptime", False),
        ("+/uptime", "$SYS/uptime", False),
        ("$SYS/#", "$SYS/uptime", True),
        ("$SYS/+", "$SYS/uptime", True),
        ("a/$b/+", "a/$b/c", True),
        ("a/+/c", "a/$b/c", True),
        ("#", "a/$b", True),
        ("Accounts", "ACCOUNTS", False),
    ],
)
def test_examples_of_the_standard(filter: str, topic: str, expected: bool) -> None:
    assert matches(filter, topic) is expected


@pytest.mark.parametrize(
    ("filter", "other", "expected"),
    [
        ("+/#", "#", True),
        ("#", "+/#", True),
        ("a/+/#", "a/#", False),
        ("a/#", "a/+/#", True),
        ("#", "$SYS/#", False),
        ("$SYS/#", "$SYS/broker/+", True),
        ("a/+", "a/#", False),
        ("a/b", "a/+", False),
    ],
)
def test_covers_at_the_edges(filter: str, other: str, expected: bool) -> None:
    assert covers(filter, other) is expected


@pytest.mark.parametrize("filter", ["a", "/", "+", "#", "a/+/b", "a/#", "+/#", "$SYS/#", " ", "a" * 65_535])
def test_valid_filters(filter: str) -> None:
    assert is_valid(filter)


@pytest.mark.parametrize(
    "filter", ["", "a#", "a/#/b", "+a", "a/b+", "##", "a\0b", "#/", "\udcff", "a" * 65_536]
)
def test_invalid_filters(filter: str) -> None:
    assert not is_valid(filter)
