"""The documentation builds as a site without a warning, and no page loads anything from another host."""

import html
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.streams.stream import StreamSpec
from millrace.node.config import Config
from millrace.node.metrics.table import METRICS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from cli_page import commands  # noqa: E402
from docs_check import loads, outside_loads  # noqa: E402
from docs_hook import without_outside_links  # noqa: E402
from errors_page import PARTS, texts  # noqa: E402


def settings() -> Iterator[tuple[str, str]]:
    """Section and key of every setting of a node."""
    for section in Config.__struct_fields__:
        for key in getattr(getattr(Config(), section), "__struct_fields__", ()):
            yield section, key


def searched(site: Path) -> str:
    """All the text that the search of the site looks through."""
    sections = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    text = html.unescape(" ".join(f"{one['title']} {one['text']}" for one in sections))
    return " ".join(text.split())


def test_what_a_page_loads_is_told_from_what_it_links_to() -> None:
    page = '<a href="https://a.example">x</a><img src="a.png"><script src="https://b.example/s.js"></script>'
    assert loads(page) == ["https://b.example/s.js"]


def test_a_link_that_leaves_the_documentation_becomes_a_name() -> None:
    text = "[a test](../../tests/unit/test_spec.py), [a page](../index.md#top)\n```\n[x](../../y)\n```\n"
    assert without_outside_links(text, "reference/http.md") == (
        "a test (`tests/unit/test_spec.py`), [a page](../index.md#top)\n```\n[x](../../y)\n```\n"
    )


def test_the_site_builds_loads_nothing_from_elsewhere_and_finds_what_one_searches_for(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra `docs` is not installed: make docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert outside_loads(tmp_path) == []
    words = [f"{section}.{key}" for section, key in settings()] + [*METRICS]
    words += [*StreamSpec.__struct_fields__, *DurableGroupSpec.__struct_fields__]
    words += [" ".join(("millrace", *one)) for one in commands()]
    words += [text.replace("`", "'") for folders, _about in PARTS.values() for text in texts(folders)]
    index = searched(tmp_path)
    assert [word for word in words if word not in index] == []
