"""The pages for newcomers do what they say: their commands run in the order printed, with these outputs.

Each page runs in a network of its own, so that its ports are free. After a change of an output:
`make docs REWRITE=1`, or pytest tests/docs/test_pages.py --rewrite.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from blocks import blocks, shape  # noqa: E402

NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
# What every change must pass; the other pages take longer.
QUICK = {"README.md", "docs/start/tour.md"}


def pages() -> list[str]:
    """The pages with a console block."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(page.relative_to(ROOT)) for page in found if "\n```console\n" in page.read_text()]


def why_not() -> str:
    """Why pages cannot be run here, or nothing."""
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACE, "true"], check=False).returncode:
        return "no right to make network namespaces (unshare --map-root-user --net)"
    return "" if shutil.which("curl") else "no curl"


@pytest.mark.parametrize(
    "page", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in pages()]
)
def test_the_commands_of_a_page_print_what_it_shows(page: str, request: pytest.FixtureRequest) -> None:
    if reason := why_not():
        pytest.skip(reason)
    if "--master" in (text := (ROOT / page).read_text()) or "pipeline run" in text:
        pytest.importorskip("pyspark", reason="the extra `spark` is not installed: make spark")
        if shutil.which("java") is None:
            pytest.skip("no Java")
    rewrite = ["--rewrite"] if request.config.getoption("--rewrite") else []
    done = subprocess.run(
        [*NAMESPACE, sys.executable, str(Path(__file__).parent / "run_page.py"), page, *rewrite],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_block_is_taken_apart_into_commands_and_outputs() -> None:
    page = '<!-- run: terminal 2, until "up" -->\n```console\n$ a \\\n> b\none\ntwo\n$ c\n```\n'
    (block,) = blocks(page)
    assert (block.terminal, block.ready) == (2, "up")
    assert [(step.command, step.output) for step in block.steps] == [("a \\\nb", "one\ntwo\n"), ("c", "")]


def test_a_block_that_is_not_run_says_why() -> None:
    (block,) = blocks("<!-- run: no, it needs three machines -->\n```console\n$ a\n```\n")
    assert block.why_not == "it needs three machines"
    with pytest.raises(ValueError, match="unknown note"):
        blocks("<!-- run: sometimes -->\n```console\n$ a\n```\n")


def test_numbers_times_and_widths_may_differ_and_words_may_not() -> None:
    assert shape("n1   up  2026-11-18 05:38:22.932\n") == shape("n1 up 2027-01-01 00:00:00.000\n")
    assert shape("n1 up\n") != shape("n1 down\n")
