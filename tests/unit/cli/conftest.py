"""The program run in this process, and a node that answers what a test tells it to."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.cli.main import run
from unit.cli.fake_node import FakeNode
from unit.cli.shell import Result, Run


@pytest.fixture
def millrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs the program in this process, in an empty directory and home, as the shell would."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("MILLRACE_URL", "MILLRACE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = run()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as made:
        yield made
