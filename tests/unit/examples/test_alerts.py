"""When an episode of the example `alerts` begins and ends, without Spark around it."""

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="PySpark is not installed: pip install 'millrace[spark]'")

FILE = Path(__file__).resolve().parents[3] / "examples" / "pipelines" / "alerts" / "pipeline.py"


class Kept:
    """The state that Spark keeps for a device."""

    def __init__(self) -> None:
        self._value: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self._value is not None

    def get(self) -> Any:
        return self._value

    def update(self, value: tuple[Any, ...]) -> None:
        self._value = value


def episodes(*batches: Iterable[tuple[int, float]]) -> list[tuple[str, int]]:
    spec = importlib.util.spec_from_file_location("alerts", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state = Kept()
    processor = module.Episodes(30.0, 3)
    processor.init(SimpleNamespace(getValueState=lambda name, schema: state))
    told = []
    for batch in batches:
        rows = [SimpleNamespace(sequence=sequence, temperature=celsius) for sequence, celsius in batch]
        told += list(processor.handleInputRows(("d",), iter(rows), None))
    alerts = [json.loads(row.payload) for row in told]
    return [(alert["episode"], alert["sequence"]) for alert in alerts]


def test_three_hot_readings_in_a_row_are_an_episode() -> None:
    assert episodes([(1, 31.0), (2, 31.0), (3, 31.0), (4, 20.0)]) == [("begins", 3), ("ends", 4)]


@pytest.mark.parametrize("batches", [[[(1, 31.0)] * 3], [[(1, 31.0)], [(1, 31.0)], [(1, 31.0)]]])
def test_a_reading_that_comes_again_counts_once(batches: list[list[tuple[int, float]]]) -> None:
    """A device that is not sure whether a reading arrived sends it again."""
    assert episodes(*batches, [(2, 31.0)]) == []
    assert episodes(*batches, [(2, 31.0), (3, 31.0)]) == [("begins", 3)]


def test_a_device_that_counts_anew_is_heard() -> None:
    assert episodes([(7, 31.0), (8, 31.0)], [(0, 31.0)]) == [("begins", 0)]
