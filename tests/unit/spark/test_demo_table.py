"""How the demo counts: windows of what was published, and the files of a table that Spark stands by."""

import json
from pathlib import Path

from millrace.lab.demo.pipeline import committed, windows_of


def _log(table: Path, name: str, *files: str) -> None:
    lines = [json.dumps({"path": f"file://{table}/{file}", "action": "add"}) for file in files]
    log = table / "_spark_metadata"
    log.mkdir(exist_ok=True)
    (log / name).write_text("\n".join(["v1", *lines]))


def test_only_files_that_the_log_names_count(tmp_path: Path) -> None:
    """A compaction stands for every batch up to its own; what a killed driver left is in no log."""
    assert committed(tmp_path) == []
    for number in range(9):
        _log(tmp_path, str(number), f"part-{number}")
    (tmp_path / "part-of-a-killed-driver").touch()
    assert [path.name for path in committed(tmp_path)] == [f"part-{number}" for number in range(9)]
    _log(tmp_path, "9.compact", *(f"part-{number}" for number in range(10)))
    _log(tmp_path, "10", "part-10")
    (tmp_path / "_spark_metadata" / ".11.tmp").write_text("v1\nhalf")
    assert [path.name for path in committed(tmp_path)] == [f"part-{number}" for number in range(11)]


def test_readings_are_counted_by_device_and_window() -> None:
    readings = {("d0", 0): 5_000, ("d0", 1): 9_999, ("d0", 2): 10_000, ("d1", 0): 5_001}
    assert windows_of(readings) == {("d0", 5_000): 2, ("d0", 10_000): 1, ("d1", 5_000): 1}
