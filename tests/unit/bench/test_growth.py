"""`millrace bench scale`: each row does what it says against a real broker, and growth is told from noise."""

import pytest

from millrace.lab.bench import growth, peers


def cost(units: int, cpu_us: float) -> growth.Cost:
    return growth.Cost(
        row="topics", broker=peers.MILLRACE, units=units, cpu_us=cpu_us, memory_bytes=100.0, seconds=1.0
    )


@pytest.mark.parametrize("row", growth.ROWS, ids=lambda row: row.name)
def test_every_row_runs_against_a_real_broker(row: growth.Row) -> None:
    units = min(100, row.units // 4)
    found = growth.measure(row, peers.this_broker("python"), units)
    assert (found.row, found.broker, found.units) == (row.name, peers.MILLRACE, units)
    assert found.seconds > 0


def test_a_unit_that_becomes_dearer_is_told() -> None:
    assert growth.growth(cost(1_000, 5.0), cost(4_000, 20.0)) == 4.0 > growth.GROWTH_MAX
    assert growth.growth(cost(1_000, 5.0), cost(4_000, 6.0)) < growth.GROWTH_MAX


def test_a_line_has_both_sizes() -> None:
    (line,) = growth.table([cost(1_000, 5.0), cost(4_000, 6.0)])
    assert line["units"] == "1,000 / 4,000"
    assert line["growth"] == "1.20"
