"""The ticks of a pair: each of them once, at its moment, by clocks that count in microseconds."""

import pytest

from millrace.node.pairs.beat import Beat


@pytest.mark.parametrize("tick_s", [0.0035, 0.007, 0.1, 1 / 3, 0.0012345])
@pytest.mark.parametrize("began_s", [0.0, 7.1, 86_400.123_456, 1_000_003.3])
def test_a_timer_that_fires_at_its_moment_finds_one_tick(tick_s: float, began_s: float) -> None:
    """Also where that moment is between two microseconds and the clock shows the one before it: a timer that
    found nothing due would be set for the same moment again, for ever."""
    beat = Beat(began_s, tick_s)
    for _ in range(2_000):
        before_s = beat.next_s
        assert beat.take(int(before_s * 1_000_000) / 1_000_000, 10) == 1
        assert beat.next_s > before_s
