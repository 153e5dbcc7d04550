"""What a retention policy lets go: whole segments from the oldest on, never the one that is written."""

import pytest

from millrace.broker.stream import Retention
from millrace.node.retention import trim_offset
from millrace.storage.log import SegmentInfo
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
        (Retention(age_s=1, bytes_max=0), 30),
        (Retention(age_s=0, bytes_max=250), 20),
        (Retention(age_s=0, bytes_max=400), 0),
        (Retention(age_s=0, bytes_max=1), 30),
        (Retention(age_s=210, bytes_max=250), 20),
    ],
)
def test_the_oldest_segments_go_by_age_and_by_bytes(policy: Retention, offset: int) -> None:
    assert trim_offset(segments(4, 3, 2, 1), policy, NOW_US) == offset


def test_a_younger_segment_before_an_older_one_keeps_both() -> None:
    """Clocks of leaders differ; nothing is cut out of the middle."""
    assert trim_offset(segments(0, 9, 0), Retention(age_s=60, bytes_max=0), NOW_US) == 0
