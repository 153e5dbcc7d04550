"""What a retention policy lets go: whole segments from the oldest on; of the one that is written nothing
unless all of it is too old."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.streams.stream import Retention
from millrace.node.logs.retention import Retention as Keeper
from millrace.node.logs.retention import is_to_end, kept_from, segment_share, trim_offset, unwanted
from millrace.storage.log import SEGMENT_BYTES, SegmentInfo
from millrace.types import Index, Offset

NOW_US = 1_000_000_000
MINUTE_US = 60_000_000


def segments(*ages_min: int) -> list[SegmentInfo]:
    """Segments of 10 messages and 100 bytes, whose last messages have these ages."""
    return [
        SegmentInfo(
            first_index=Index(1 + number * 10),
            last_index=Index(10 + number * 10),
            first_offset=Offset(number * 10),
            next_offset=Offset(number * 10 + 10),
            size_bytes=100,
            first_time_us=0,
            last_time_us=NOW_US - age * MINUTE_US,
        )
        for number, age in enumerate(ages_min)
    ]


@pytest.mark.parametrize(
    ("policy", "offset"),
    [
        (Retention(age_s=0, bytes_max=0), 0),
        (Retention(age_s=150, bytes_max=0), 20),
        (Retention(age_s=90, bytes_max=0), 30),
        (Retention(age_s=1, bytes_max=0), 40),
        (Retention(age_s=0, bytes_max=250), 20),
        (Retention(age_s=0, bytes_max=400), 0),
        (Retention(age_s=0, bytes_max=1), 30),
        (Retention(age_s=210, bytes_max=250), 20),
    ],
)
def test_the_oldest_segments_go_by_age_and_by_bytes(policy: Retention, offset: int) -> None:
    assert trim_offset(segments(4, 3, 2, 1), policy, NOW_US) == offset


def test_a_segment_that_grew_beyond_the_policy_stays_until_others_have_half_of_it() -> None:
    """Written before the policy was made: with it all that the policy keeps would go."""
    policy = Retention(age_s=0, bytes_max=400)
    grown, *others = segments(3, 2, 1)
    grown = replace(grown, size_bytes=5_000)
    assert trim_offset([grown, *others[:1]], policy, NOW_US) == 0
    assert trim_offset([grown, *others], policy, NOW_US) == grown.next_offset


def test_a_younger_segment_before_an_older_one_keeps_both() -> None:
    """Clocks of leaders differ; nothing is cut out of the middle."""
    assert trim_offset(segments(0, 9, 0), Retention(age_s=60, bytes_max=0), NOW_US) == 0


@pytest.mark.parametrize(
    ("policy", "is_due"),
    [
        (Retention(age_s=0, bytes_max=0), False),
        (Retention(age_s=4000, bytes_max=0), False),
        (Retention(age_s=3999, bytes_max=0), True),
    ],
)
def test_a_segment_ends_with_its_share_of_the_time(policy: Retention, is_due: bool) -> None:
    (active,) = segments(1)
    assert is_to_end(active, policy, NOW_US, 0) is is_due


def test_four_segments_hold_what_the_policy_keeps_unless_it_is_very_little() -> None:
    shares = [segment_share(Retention(age_s=0, bytes_max=most)) for most in (0, 8 << 20, 1_000)]
    assert shares == [SEGMENT_BYTES, 2 << 20, 64 << 10]


def test_a_segment_ends_when_all_its_messages_may_go_but_not_without_any() -> None:
    (active,) = segments(1)
    forever = Retention(age_s=0, bytes_max=0)
    assert not is_to_end(active, forever, NOW_US, 9)
    assert is_to_end(active, forever, NOW_US, 10)
    assert not is_to_end(replace(active, next_offset=Offset(0)), Retention(age_s=1, bytes_max=1), NOW_US, 10)


@pytest.mark.parametrize(
    ("held_offset", "kept"),
    [(None, 30), (35, 30), (25, 25), (10, 10), (5, 10)],
    ids=["nobody", "past it", "behind", "at the hard limit", "behind the hard limit"],
)
def test_what_a_group_has_not_read_stays_up_to_the_hard_limit(held_offset: int | None, kept: int) -> None:
    assert kept_from(30, 10, held_offset) == kept


@pytest.mark.parametrize(
    ("policy", "hard"),
    [
        (Retention(age_s=60, bytes_max=0, hold_age_s=600), (600, 0)),
        (Retention(age_s=60, bytes_max=0, hold_age_s=10), (60, 0)),
        (Retention(age_s=0, bytes_max=100, hold_age_s=600), (0, 100)),
        (Retention(age_s=0, bytes_max=100, hold_bytes=1000), (0, 1000)),
    ],
)
def test_the_hard_limit_is_never_below_the_policy(policy: Retention, hard: tuple[int, int]) -> None:
    """And a bound that the policy does not have is no hard limit either."""
    assert (policy.hard.age_s, policy.hard.bytes_max) == hard


@pytest.mark.parametrize(
    ("ends", "start_offset", "count"),
    [
        ((0, 0, 10, 20), 0, 0),
        ((0, 0, 0, 0), 0, 3),
        ((0, 0, 10, 20), 10, 3),
        ((0, 0, 10, 20), 5, 2),
        ((0, 10, 20, 20), 20, 3),
        ((0, 10, 20, 30), 20, 3),
    ],
    ids=["nothing trimmed", "no messages", "trimmed", "trimmed in part", "all trimmed", "up to the last"],
)
def test_segments_without_messages_go_with_others_or_where_there_are_none(
    ends: tuple[int, ...], start_offset: int, count: int
) -> None:
    """Where each segment ends, the log beginning with its first message."""
    made = [
        replace(segment, first_offset=Offset(first), next_offset=Offset(end))
        for segment, first, end in zip(segments(*(4, 3, 2, 1)), (0, *ends), ends, strict=False)
    ]
    assert unwanted(made, start_offset) == made[:count]


def test_a_log_that_began_from_a_snapshot_keeps_its_beginning_as_well() -> None:
    """Here `start_offset` is below all that it holds."""
    begin, *rest = segments(4, 3, 2)[1:]
    begin = replace(begin, next_offset=begin.first_offset)
    assert unwanted([begin, *rest], 0) == unwanted([begin, *rest], 5) == []


class Idle:
    """A shard of two segments, of which this node is the leader, and a clock."""

    def __init__(self, policy: Retention) -> None:
        self.now_us, self.looks, self.trimmed = NOW_US, 0, list[int]()
        self.held_offset: int | None = None
        self.log = SimpleNamespace(
            segments=self._segments, last_index=20, first_index=1, segment_share=0, ends_segment=False
        )
        self.group = SimpleNamespace(
            is_leader=True,
            replica_log=SimpleNamespace(log=self.log, snapshot=lambda: None, trim_to=0, is_filling=False),
            begin_snapshot=lambda: None,
        )
        self.shard: Any = SimpleNamespace(
            number=16,
            stream=SimpleNamespace(spec=SimpleNamespace(retention=policy, name="s")),
            group=self.group,
            start_offset=0,
            first_offset=0,
            staging=SimpleNamespace(holds=lambda index: False),
            trim=self.trimmed.append,
            propose_entries=lambda entries: True,
        )
        self.keeper = Keeper({16: self.shard}, lambda: self.now_us, lambda shard: self.held_offset, list)

    def _segments(self) -> list[SegmentInfo]:
        self.looks += 1
        return segments(2, 1)

    def is_looked_at(self) -> bool:
        before = self.looks
        self.keeper.tick()
        return self.looks > before


def test_a_log_that_stays_as_it_is_is_left_alone() -> None:
    idle = Idle(Retention(age_s=0, bytes_max=0))
    assert idle.is_looked_at() and not idle.is_looked_at()
    idle.log.last_index += 1
    assert idle.is_looked_at() and not idle.is_looked_at()
    idle.group.is_leader = False
    assert idle.is_looked_at() and not idle.is_looked_at()
    idle.shard.stream.spec.retention = Retention(age_s=0, bytes_max=1 << 30)
    assert idle.is_looked_at() and not idle.is_looked_at()
    idle.now_us += MINUTE_US
    assert idle.is_looked_at()


def test_what_grows_too_old_goes_though_nothing_else_happens() -> None:
    """In the second in which it does: nothing is asked of a log until then."""
    idle = Idle(Retention(age_s=4_030, bytes_max=0))
    idle.log.ends_segment = False
    assert idle.is_looked_at() and not idle.is_looked_at() and not idle.trimmed
    idle.now_us = 4_030 * 250_000 + 1
    assert idle.is_looked_at() and idle.log.ends_segment and not idle.trimmed
    idle.log.ends_segment = False
    idle.now_us = NOW_US - 2 * MINUTE_US + 4_030_000_001
    assert idle.is_looked_at() and idle.trimmed == [10]


def test_what_is_due_and_held_is_asked_again_every_time() -> None:
    """A group may let go of it without an entry of this log."""
    idle = Idle(Retention(age_s=0, bytes_max=150, hold_bytes=1 << 30))
    idle.held_offset = 0
    assert idle.is_looked_at() and idle.is_looked_at() and not idle.trimmed
    idle.held_offset = None
    assert idle.is_looked_at() and idle.trimmed == [10]
