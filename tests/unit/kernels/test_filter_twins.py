"""Filters found by their shape are those that take a topic, and the C kernels answer as the Python ones."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.topics.filters import is_valid, matches
from millrace.kernels import filters
from unit.kernels.filter_inputs import a_filter, a_text, a_topic, filter_calls


def outcome(twin: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(twin, name)(*arguments)
    except ValueError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("seed", range(4))
def test_the_twins_agree(seed: int) -> None:
    compiled = pytest.importorskip("millrace.kernels._kernels", reason="the C kernels are not built")
    random = Random(seed)
    found = 0
    for _ in range(2_000):
        for name, arguments in filter_calls(random):
            expected = outcome(filters, name, arguments)
            assert outcome(compiled, name, arguments) == expected, (name, arguments)
            found += bool(expected) and not isinstance(expected, str)
    assert found > 4_000, "the input is not all refused"


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_shape_finds_exactly_the_filters_that_take_a_topic(random: Random) -> None:
    held = {a_filter(random): None for _ in range(8)}
    shapes = tuple(dict.fromkeys(s for s in map(filters.shape_of, held) if s is not None))
    topic = a_topic(random)
    found = filters.find_filters(topic, shapes, {filter: filter for filter in held})
    assert sorted(found) == sorted(filter for filter in held if matches(filter, topic))


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_read_are_the_good_filters_before_the_first_that_is_not(random: Random) -> None:
    texts = [a_text(random) for _ in range(4)]
    body = b"".join(len(text).to_bytes(2, "big") + text + b"\x01" for text in texts)
    good = []
    for text in texts:
        shown = text.decode("utf-8", "surrogatepass")
        if not is_valid(shown) or shown.startswith("$share/"):
            break
        good.append(shown)
    end, found = filters.read_filters(body, 0, True, 10)
    assert found[::2] == good and set(found[1::2]) <= {1}
    assert end == sum(len(text) + 3 for text in texts[: len(good)])


def test_a_packet_of_too_many_filters_is_read_up_to_the_bound() -> None:
    body = b"\x00\x01a\x00" * 5
    assert filters.read_filters(body, 0, True, 3) == (12, ["a", 0] * 3)


def test_new_topics_end_at_what_is_no_plain_publish() -> None:
    plain, known, repeated = b"\x31\x03\x00\x01a", b"\x30\x03\x00\x01b", b"\x3a\x03\x00\x01c"
    data = plain + known + plain + repeated + plain
    assert filters.new_topics(data, 0, {b"b": 1}, 10, 10, 100) == ["a", "a"]
    assert filters.new_topics(data, 0, {b"b": 1}, 10, 10, 1) == ["a"]
    assert filters.new_topics(data, 5, {b"b": 1}, 10, 10, 100) == [], "what the scan stopped at is known"
