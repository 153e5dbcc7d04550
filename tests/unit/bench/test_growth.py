"""`millrace bench scale`: each row does what it says against a real broker, and growth is told from noise."""

import xml.etree.ElementTree
from dataclasses import replace

import pytest

from millrace.lab.bench import curves, growth, peers
from millrace.lab.bench.accounts import Cost


def cost(units: int, cpu_us: float) -> Cost:
    return Cost(
        row="topics", broker=peers.MILLRACE, units=units, cpu_us=cpu_us, memory_bytes=100.0, seconds=1.0
    )


@pytest.mark.parametrize("row", growth.ROWS, ids=lambda row: row.name)
def test_every_row_runs_against_a_real_broker(row: growth.Row) -> None:
    # Streams of three nodes take long to make.
    units = 4 if row.is_long else min(100, row.units // 4)
    found = growth.measure(row, peers.this_broker("python"), units)
    assert (found.row, found.broker, found.units) == (row.name, peers.MILLRACE, units)
    assert found.seconds > 0


def test_a_unit_that_becomes_dearer_is_told() -> None:
    assert growth.growth([cost(1_000, 5.0), cost(4_000, 20.0)]) == 4.0 > growth.GROWTH_MAX
    assert growth.growth([cost(1_000, 5.0), cost(4_000, 6.0)]) < growth.GROWTH_MAX


def test_growth_is_that_of_the_last_step_of_a_curve() -> None:
    assert growth.growth([cost(1_000, 20.0), cost(10_000, 5.0), cost(100_000, 15.0)]) == 3.0


def test_a_curve_goes_by_powers_of_ten_where_many_are_asked_for() -> None:
    (row,) = (row for row in growth.ROWS if row.name == "new-topics")
    assert row.sizes(is_large=True) == (1_000, 10_000, 100_000, 1_000_000)
    assert row.sizes(is_large=False) == (25_000, 100_000)


def test_a_line_has_all_sizes() -> None:
    (line,) = growth.table([cost(1_000, 5.0), cost(4_000, 6.0)])
    assert line["units"] == "1,000 / 4,000"
    assert line["growth"] == "1.20"


def test_the_picture_has_a_point_for_each_cost() -> None:
    peer = replace(cost(4_000, 2.0), broker=peers.MOSQUITTO)
    drawn = curves.plot([cost(1_000, 5.0), cost(4_000, 6.0), replace(peer, units=1_000), peer])
    assert drawn.count("<circle") == 4
    assert drawn.count("<polyline") == 2
    assert "topics" in drawn and peers.MOSQUITTO in drawn
    xml.etree.ElementTree.fromstring(drawn)
