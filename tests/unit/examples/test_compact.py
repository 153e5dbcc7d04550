"""Compaction of the archive's lake: every row stays, whatever comes or dies meanwhile. Without Spark."""

import importlib.util
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

FILE = Path(__file__).resolve().parents[3] / "examples" / "pipelines" / "archive" / "compact.py"
TODAY = date(2026, 11, 15)
DAY = "date=2026-11-14/root=x"


@pytest.fixture
def module() -> ModuleType:
    """A module of its own for each test, which may plant a death in it."""
    spec = importlib.util.spec_from_file_location("compact", FILE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def put(lake: Path, batch: int, row: str, partition: str = DAY) -> None:
    """As the pipeline does: a batch that is written again replaces its own directory."""
    directory = lake / partition / f"batch={batch}"
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"payload": [row]}), directory / "part.parquet")


def rows(lake: Path) -> list[str]:
    files = lake.glob("date=*/root=*/batch=*/*.parquet")
    return sorted(row for file in files for row in pq.ParquetFile(file).read()["payload"].to_pylist())


def batches(lake: Path) -> list[str]:
    return sorted(path.name for path in (lake / DAY).iterdir())


def test_a_batch_that_comes_while_the_file_is_written_stays(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch, row in enumerate("abc"):
        put(tmp_path, batch, row)

    class Slow(pq.ParquetWriter):  # type: ignore[misc]
        def __exit__(self, *error: Any) -> None:
            put(tmp_path, 3, "late")
            super().__exit__(*error)

    monkeypatch.setattr(module.pq, "ParquetWriter", Slow)
    assert module.compact(tmp_path, TODAY) == 1
    assert rows(tmp_path) == ["a", "b", "c", "late"]
    assert batches(tmp_path) == ["batch=-1", "batch=2", "batch=3"]


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_run_that_died_is_finished_without_what_came_since(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    """It died after the mark, with so many of the old directories removed."""
    for batch, row in enumerate("abc"):
        put(tmp_path, batch, row)
    left = removed
    remove = module.shutil.rmtree

    def die(path: Path, **options: Any) -> None:
        nonlocal left
        if path.name.startswith("batch="):
            if not left:
                raise KeyboardInterrupt
            left -= 1
        remove(path, **options)

    def no_rename(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as planted, pytest.raises(KeyboardInterrupt):
        planted.setattr(module.shutil, "rmtree", die)
        planted.setattr(Path, "rename", no_rename)
        module.compact(tmp_path, TODAY)
    put(tmp_path, 3, "late")
    assert module.compact(tmp_path, TODAY) == 1
    assert rows(tmp_path) == ["a", "b", "c", "late"]


def test_the_last_batch_of_the_lake_may_be_written_again(module: ModuleType, tmp_path: Path) -> None:
    """A query that died before it noted a batch as done repeats that one: compacted it would be there twice.
    The last of a day is done if the lake has a later one on another day."""
    for batch, row in enumerate("abc"):
        put(tmp_path, batch, row)
    assert module.compact(tmp_path, TODAY) == 1
    put(tmp_path, 2, "c")
    assert rows(tmp_path) == ["a", "b", "c"]
    assert module.compact(tmp_path, TODAY) == 0, "there is one file and one that may change"
    put(tmp_path, 3, "d", "date=2026-11-15/root=x")
    assert module.compact(tmp_path, TODAY) == 1
    assert rows(tmp_path) == ["a", "b", "c", "d"] and batches(tmp_path) == ["batch=-1"]
