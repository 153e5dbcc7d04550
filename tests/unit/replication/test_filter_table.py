"""Filters of another node: looked up by shape, and the answer is that of the definition of matching."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.topics.filters import is_valid, matches
from millrace.kernels import fitting_filters, shape_of
from millrace.replication.routed.filter_table import FilterTable

LEVELS = st.sampled_from(["a", "b", "", "+"])
FILTERS = st.builds(
    lambda levels, is_open: "/".join([*levels, "#"] if is_open else levels) or "#",
    st.lists(LEVELS, max_size=4),
    st.booleans(),
).filter(is_valid)
TOPICS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5).map("/".join).filter(bool)


@given(st.sets(FILTERS, max_size=12), TOPICS)
def test_shapes_find_exactly_the_filters_that_match(filters: set[str], topic: str) -> None:
    table = FilterTable(sorted(filters))
    found = table.filters.intersection(fitting_filters(topic, tuple(table.shapes)))
    assert found == {filter for filter in filters if matches(filter, topic)}


@given(st.lists(st.tuples(FILTERS, st.booleans()), max_size=40))
def test_shapes_are_those_of_the_filters_left(changes: list[tuple[str, bool]]) -> None:
    """Whatever is added and taken away in whatever order, no shape is left over and none is missing."""
    table = FilterTable()
    left: set[str] = set()
    for filter, is_added in changes:
        assert table.add(filter) == (filter not in left) if is_added else True
        if is_added:
            left.add(filter)
        else:
            assert table.discard(filter) == (filter in left)
            left.discard(filter)
    assert table.all() == left
    assert set(table.shapes) == {shape_of(filter) for filter in left} - {None}


def test_groups_are_told_apart_by_name_and_share_their_filter() -> None:
    table = FilterTable(["$share/g/a/+", "$share/h/a/+", "a/+"])
    assert len(table) == 3
    assert table.groups == {"a/+": {"$share/g/a/+", "$share/h/a/+"}}
    table.discard("$share/g/a/+")
    table.discard("a/+")
    assert table.all() == {"$share/h/a/+"}
    assert table.shapes == {"/+": 1}


def test_a_million_filters_of_one_form_have_one_shape() -> None:
    """What keeps the cost of a lookup small: shapes, not filters, are tried."""
    table = FilterTable(f"device/{number}/#" for number in range(1000))
    assert len(table.shapes) == 1
    assert fitting_filters("device/7/temperature", tuple(table.shapes)) == [
        "device/7/temperature",
        "device/7/#",
    ]
