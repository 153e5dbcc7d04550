"""CI's second chance: who gets one, what becomes of the change, and what is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each runs pytest several times, in processes of their own.
pytestmark = pytest.mark.long

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "ci_tests.py"

STEADY = """
import pytest

def test_good(): pass

def test_left_out(): pytest.skip("not here")
"""
# Each fails in the first run and passes in the second: it leaves a mark behind.
UNSTEADY = """
import pathlib, pytest

@pytest.mark.parametrize("case", {cases})
def test_shaky(case):
    mark = pathlib.Path(__file__).with_name(f"mark-{{ord(case[-1])}}")
    if not mark.exists():
        mark.touch()
        raise AssertionError(f"first time | {{case}}")
"""
BROKEN = "def test_broken(): assert 1 == 2\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    # Plugins that the samples do not need take most of the time of such small runs.
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:millrace -p no:hypothesispytest\nmarkers = slow\n"
    )
    write(tmp_path, "steady", STEADY)
    return tmp_path


def write(suite: Path, name: str, text: str) -> None:
    (suite / "tests" / f"test_{name}.py").write_text(text)


def run_ci(suite: Path, *arguments: str, jobs: int = 1) -> tuple[int, list[str]]:
    """Run the script on the sample suite; returns its exit status and what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--jobs", str(jobs), *arguments, "tests"],
        cwd=suite,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_what_passes_alone_is_unsteady_and_does_not_stop_the_change(suite: Path) -> None:
    write(suite, "shaky", UNSTEADY.format(cases=["a|b"]))
    status, lines = run_ci(suite)
    assert status == 0
    assert lines[-1].startswith("2 passed, 0 failed, 1 skipped in ")
    assert "UNSTEADY: 1 failed among the others and passed alone. They do not stop this change:" in lines
    [row] = [line for line in lines if line.startswith("| `")]
    assert row.startswith("| `tests/test_shaky.py::test_shaky[a\\|b]` | 20")
    assert row.endswith(" | AssertionError: first time \\| a\\|b | not known yet |")


def test_a_known_unsteady_test_gets_no_second_row(suite: Path) -> None:
    write(suite, "shaky", UNSTEADY.format(cases=["a|b"]))
    (suite / "tests" / "UNSTEADY.md").write_text(
        "| `tests/test_shaky.py::test_shaky[a\\|b]` | 2026-11-16 |\n"
    )
    status, lines = run_ci(suite)
    assert status == 0
    assert not any(line.startswith("| `") for line in lines)
    assert "All of them are in tests/UNSTEADY.md, which says what to do about them." in lines


def test_what_fails_twice_stops_the_change_beside_an_unsteady_one(suite: Path) -> None:
    write(suite, "shaky", UNSTEADY.format(cases=["a"]))
    write(suite, "broken", BROKEN)
    status, lines = run_ci(suite, jobs=2)
    assert status == 1
    assert "FAILED tests/test_broken.py::test_broken" in lines
    assert any(line.startswith("UNSTEADY: 1 ") for line in lines)
    assert lines[-1].startswith("2 passed, 1 failed, 1 skipped in ")


def test_more_than_five_failures_get_no_second_chance(suite: Path) -> None:
    write(suite, "shaky", UNSTEADY.format(cases=list("abcdef")))
    status, lines = run_ci(suite)
    assert status == 1
    assert "No second chance: 6 failed, more than 5" in lines
    assert lines[-1].startswith("1 passed, 6 failed, 1 skipped in ")


def test_five_failures_get_a_second_chance(suite: Path) -> None:
    write(suite, "shaky", UNSTEADY.format(cases=list("abcde")))
    status, lines = run_ci(suite)
    assert status == 0
    assert lines[-1].startswith("6 passed, 0 failed, 1 skipped in ")


def test_a_second_run_that_skips_is_not_a_pass(suite: Path) -> None:
    text = UNSTEADY.format(cases=["a"]) + "    else:\n        pytest.skip('now it is not here')\n"
    write(suite, "shaky", text)
    status, lines = run_ci(suite)
    assert status == 1
    assert lines[-1].startswith("1 passed, 1 failed, 1 skipped in ")


def test_a_file_that_cannot_be_imported_gets_no_second_chance(suite: Path) -> None:
    """How many tests it holds, and whether they pass, is not known."""
    write(suite, "lost", "import no_such_module\n")
    status, lines = run_ci(suite)
    assert status not in (0, 1)
    assert any(line.startswith("No second chance: not all tests could run") for line in lines)
    assert "FAILED tests/test_lost.py" in lines
    assert lines[-1].startswith("1 passed, 1 failed, ")


def test_a_failure_after_the_test_counts(suite: Path) -> None:
    text = """
import pytest

@pytest.fixture
def leaves_a_mess():
    yield
    raise RuntimeError("still open")

def test_untidy(leaves_a_mess): pass
"""
    write(suite, "untidy", text)
    status, lines = run_ci(suite)
    assert status == 1
    assert lines[-1].startswith("1 passed, 1 failed, 1 skipped in ")


def test_where_the_selected_tests_pass_there_is_one_run(suite: Path) -> None:
    text = "import pytest\n\n@pytest.mark.slow\ndef test_long(): raise AssertionError\n"
    write(suite, "long", text)
    status, lines = run_ci(suite, "--marker", "not slow")
    assert status == 0
    assert lines[-1].startswith("1 passed, 0 failed, 1 skipped in ")
    assert not any("Once more" in line or "UNSTEADY" in line for line in lines)
