"""Positions, limits and splits: what a query reads next."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ConfigError
from millrace.limits import SPARK_TASKS_MAX
from millrace.spark import offsets
from millrace.spark.offsets import At, ByShard, Extent, Span

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


def test_newer_shards_wait_for_sealed_ones() -> None:
    """Where a limit cuts a batch, what came before a change of the shards is read first: rows that came later
    would move a watermark past it. Other streams do not wait."""
    known = {
        1: Extent(first=0, next=900, stream="a", is_sealed=True),
        2: Extent(first=0, next=900, stream="a"),
        3: Extent(first=0, next=100, stream="b"),
    }
    assert offsets.advance({}, known, rows_max=100) == {1: 90, 2: 0, 3: 10}
    assert offsets.advance({1: 890}, known, rows_max=1_000) == {1: 900, 2: 0, 3: 100}
    assert offsets.advance({1: 900, 3: 100}, known, rows_max=100) == {1: 900, 2: 100, 3: 100}
    assert offsets.advance({1: 890}, known) == {1: 900, 2: 900, 3: 100}


@given(positions, st.none() | st.integers(1, 64), st.none() | st.integers(1_000, 2_000_000))
def test_tasks_are_the_whole_in_order(
    end: dict[int, int], tasks_least: int | None, rows_max: int | None
) -> None:
    """No offset is lost, read twice, or in a task that is far too long; small ranges share tasks."""
    whole = offsets.spans({}, end)
    tasks = offsets.plan(whole, tasks_least, rows_max)
    total = sum(span.count for span in whole)
    joined: list[Span] = []
    for piece in (piece for task in tasks for piece in task):
        assert piece.count > 0
        if joined and joined[-1].shard == piece.shard:
            assert joined[-1].end == piece.start
            joined[-1] = Span(shard=piece.shard, start=joined[-1].start, end=piece.end)
        else:
            joined.append(piece)
    assert joined == whole
    assert len(tasks) >= min(tasks_least or 0, total)
    sizes = [sum(piece.count for piece in task) for task in tasks]
    assert all(
        size
        <= max(min(rows_max or offsets.TASK_ROWS_AIM, offsets.TASK_ROWS_AIM), -(-total // SPARK_TASKS_MAX))
        for size in sizes
    )
    if tasks_least is None:
        # Two neighbours that would fit into one task are in one.
        least = min(rows_max or offsets.TASK_ROWS_LEAST, offsets.TASK_ROWS_LEAST)
        assert all(one + two > least for one, two in pairwise(sizes))


def test_a_small_batch_of_many_shards_is_one_task() -> None:
    ends = dict.fromkeys(range(8), 60)
    assert [len(task) for task in offsets.plan(offsets.spans({}, ends))] == [8]
    assert len(offsets.plan(offsets.spans({}, ends), tasks_least=4)) == 4
    assert len(offsets.plan(offsets.spans({}, ends), rows_max=60)) == 8
    assert len(offsets.plan(offsets.spans({}, dict.fromkeys(range(8), 5_000)))) == 4


def test_the_end_of_a_bounded_run_holds() -> None:
    """What came later waits, a shard that was opened later too, and nothing goes below the start."""
    ends = {1: 50, 2: 10, 3: 7}
    assert offsets.capped(ends, ceiling={1: 40, 2: 10}, start={1: 45}) == {1: 45, 2: 10}


def test_options_are_read_or_refused_with_a_reason() -> None:
    assert offsets.parse_start("startingOffsets", "Latest") == "latest"
    assert offsets.parse_start("startingOffsets", "1970-01-01T00:00:01.000002") == At(1_000_002)
    assert offsets.parse_start("startingOffsets", "1970-01-01T01:00:01+01:00") == At(1_000_000)
    found = offsets.parse_start("startingOffsets", '{"7": 3, "8": "latest", "s": {"9": -1, "10": -2}}')
    assert found == ByShard(
        values={7: 3, 8: "latest", 9: "latest", 10: "earliest"}, streams={9: "s", 10: "s"}
    )
    for wrong in ("yesterday", '{"a": 1}', '{"7": -3}', '{"7": true}', "{", ""):
        with pytest.raises(ConfigError, match="startingOffsets"):
            offsets.parse_start("startingOffsets", wrong)


def test_times_are_read_or_refused_with_a_reason() -> None:
    """Kafka has milliseconds, for all shards or by topic and partition; text is taken too."""
    assert offsets.parse_time("startingTimestamp", "1000") == At(1_000_000)
    assert offsets.parse_time("startingTimestamp", "1970-01-01T00:00:01") == At(1_000_000)
    by_shard = offsets.parse_time("startingTimestamp", '{"s": {"7": 2}, "8": "1970-01-01T00:00:01"}')
    assert by_shard == ByShard(values={7: At(2_000), 8: At(1_000_000)}, streams={7: "s"})
    for wrong in ("yesterday", "earliest", "-1", '{"7": -1}', '{"7": "latest"}', "{", ""):
        with pytest.raises(ConfigError, match="startingTimestamp"):
            offsets.parse_time("startingTimestamp", wrong)


def test_places_are_resolved_shard_by_shard() -> None:
    known = {7: Extent(first=2, next=9, stream="s"), 8: Extent(first=0, next=5, stream="t")}
    wanted = offsets.parse_start("startingOffsets", '{"s": {"7": -1}}')
    assert offsets.resolve("startingOffsets", wanted, known, "earliest") == {7: 9, 8: 0}
    assert offsets.resolve("startingOffsets", At(3), known, "earliest") == {7: At(3), 8: At(3)}
    wrong = offsets.parse_start("startingOffsets", '{"t": {"7": 3}}')
    with pytest.raises(ConfigError, match="startingOffsets names shard 7 of stream 't'"):
        offsets.resolve("startingOffsets", wrong, known, "earliest")


def test_a_checkpoint_gives_back_the_position() -> None:
    assert offsets.to_json({10: 5, 9: 1}) == {"9": 1, "10": 5}
    assert offsets.from_json({"9": 1, "10": 5}) == {9: 1, 10: 5}
