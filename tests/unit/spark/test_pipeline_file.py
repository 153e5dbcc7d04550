"""A pipeline file that Python does not understand is refused at once, with the line."""

from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.spark.supervisor import Plan, Supervisor, check_file


def test_a_syntax_error_is_reported_with_its_line_before_anything_is_started(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text("def build(flow):\n    return flow.source('x'\n\nx = 1\n")
    supervisor = Supervisor(
        Plan(name="x", file=file, state=tmp_path / "state", urls="http://127.0.0.1:1"), lambda state: None
    )
    with pytest.raises(ConfigError, match=r"pipeline\.py, line 2: .*flow\.source\('x'"):
        supervisor.run()
    assert not (tmp_path / "state").exists()
    file.write_text("def build(flow):\n    pass\n")
    check_file(file)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_bytes(b"\x00\xff")
    with pytest.raises(ConfigError, match=r"pipeline\.py"):
        check_file(file)
