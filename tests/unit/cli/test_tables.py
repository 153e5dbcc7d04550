"""Tables for people: they fit, break no word, and write values as people do."""

import pytest

from millrace.cli.shared.tables import duration, fact, number, size, table, written


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        ({}, "-"),
        (True, "yes"),
        (False, "no"),
        (["x/#", "y"], "x/# y"),
        (("127.0.0.1", 38646), "127.0.0.1:38646"),
        ({"n1": 0, "n2": 3}, "n1 0, n2 3"),
        (0.5, "0.5"),
        (3.0, "3"),
        ("a\x1b[31m", "a\\x1b[31m"),
    ],
)
def test_values_are_written_as_people_do(value: object, expected: str) -> None:
    assert written(value) == expected


def test_units_stand_behind_the_number() -> None:
    assert fact("retention_age_s", 604_800) == ("retention age", "7d")
    assert fact("staged_bytes", 1536) == ("staged", "1.5 KiB")
    assert [duration(value) for value in (0, 0.5, 59, 5400, 90_061)] == ["0s", "0.5s", "59s", "1h30m", "1d1h"]
    assert [size(value) for value in (0, 1023, 1024, 5 << 30)] == ["0 B", "1023 B", "1 KiB", "5 GiB"]
    assert [number(value) for value in (0, 0.5, 950, 12_300, 4_100_000)] == [
        "0",
        "0.5",
        "950",
        "12.3k",
        "4.1M",
    ]


ROWS = [
    {"name": "a", "filters": ["sensors/#"], "note": "x" * 50, "count": 1},
    {"name": "b", "filters": ["long/" * 20], "note": "y", "count": 1200},
]


def test_a_wide_table_loses_its_least_important_columns_and_then_the_end_of_long_cells() -> None:
    lines, left_out = table(ROWS, ("name", "filters", "note", "count"), optional=("note",), fits=60)
    assert left_out == ["note"]
    assert len(lines) == 3
    assert all(len(line) <= 60 for line in lines)
    assert "sensors/#" in lines[1]
    assert "…" in lines[2]
    assert lines[2].endswith(" 1200")


def test_in_a_pipe_nothing_is_cut() -> None:
    lines, left_out = table(ROWS, ("name", "filters", "note", "count"), optional=("note",))
    assert left_out == []
    assert "long/" * 20 in lines[2]
    assert "x" * 50 in lines[1]
