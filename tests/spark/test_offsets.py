"""Positions, limits and splits: what a query reads next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ConfigError
from millrace.spark import offsets
from millrace.spark.offsets import Extent, Span

pytestmark = [pytest.mark.spark, pytest.mark.slow]

positions = st.dictionaries(st.integers(0, 5), st.integers(0, 3_000_000), max_size=4)
extents = st.dictionaries(
    st.integers(0, 5),
    st.builds(
        lambda first, count, size: Extent(first=first, next=first + count, size_bytes=size),
        st.integers(0, 1_000_000),
        st.integers(0, 3_000_000),
        st.integers(0, 10**10),
    ),
    max_size=4,
)
limits = st.none() | st.integers(1, 5_000_000)


@given(positions, extents, limits, limits)
def test_a_position_never_goes_back_and_always_goes_on(
    start: dict[int, int], known: dict[int, Extent], rows_max: int | None, bytes_max: int | None
) -> None:
    """[rule 29], for shards that came, went and lag; where anything waits, something is read."""
    end = offsets.advance(start, known, rows_max=rows_max, bytes_max=bytes_max)
    assert set(end) >= set(start)
    assert all(end[shard] >= offset for shard, offset in start.items())
    assert all(end[shard] <= max(start.get(shard, 0), known[shard].next) for shard in set(end) & set(known))
    is_waiting = any(extent.next > start.get(shard, 0) for shard, extent in known.items())
    taken = sum(span.count for span in offsets.spans(start, end))
    assert (taken > 0) == is_waiting
    if rows_max is not None:
        assert taken <= rows_max


def test_a_limit_is_shared_in_proportion() -> None:
    known = {1: Extent(first=0, next=900, size_bytes=90_000), 2: Extent(first=0, next=100, size_bytes=10_000)}
    assert offsets.advance({}, known, rows_max=100) == {1: 90, 2: 10}
    assert offsets.advance({}, known, bytes_max=50_000) == {1: 450, 2: 50}
    assert offsets.advance({1: 900}, known, rows_max=1_000) == {1: 900, 2: 100}


@given(positions, st.integers(1, 64))
def test_pieces_are_the_whole_in_order(end: dict[int, int], tasks_least: int) -> None:
    """No offset is lost, read twice, or in a piece that is far too long."""
    whole = offsets.spans({}, end)
    pieces = offsets.split(whole, tasks_least)
    joined: list[Span] = []
    for piece in pieces:
        assert 0 < piece.count <= offsets.TASK_ROWS_AIM
        if joined and joined[-1].shard == piece.shard:
            assert joined[-1].end == piece.start
            joined[-1] = Span(shard=piece.shard, start=joined[-1].start, end=piece.end)
        else:
            joined.append(piece)
    assert joined == whole
    assert len(pieces) >= min(tasks_least, sum(span.count for span in whole) // offsets.TASK_ROWS_LEAST)


def test_the_end_of_a_bounded_run_holds() -> None:
    """What came later waits, a shard that was opened later too, and nothing goes below the start."""
    ends = {1: 50, 2: 10, 3: 7}
    assert offsets.capped(ends, ceiling={1: 40, 2: 10}, start={1: 45}) == {1: 45, 2: 10}


def test_options_are_read_or_refused_with_a_reason() -> None:
    assert offsets.parse_start("startingOffsets", "Latest") == "latest"
    assert offsets.parse_start("startingOffsets", "1970-01-01T00:00:01.000002") == 1_000_002
    assert offsets.parse_start("startingOffsets", "1970-01-01T01:00:01+01:00") == 1_000_000
    assert offsets.parse_start("startingOffsets", '{"7": 3, "8": "latest"}') == {7: 3, 8: "latest"}
    for wrong in ("yesterday", '{"a": 1}', '{"7": -1}', '{"7": true}', "{", ""):
        with pytest.raises(ConfigError, match="startingOffsets"):
            offsets.parse_start("startingOffsets", wrong)


def test_a_checkpoint_gives_back_the_position() -> None:
    assert offsets.to_json({10: 5, 9: 1}) == {"9": 1, "10": 5}
    assert offsets.from_json({"9": 1, "10": 5}) == {9: 1, 10: 5}
