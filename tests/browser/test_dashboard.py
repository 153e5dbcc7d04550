"""The dashboard in a real browser: against a mock of the API, and served by a real node.

`dashboard/e2e/check.mjs` drives Chromium through every page and prints what it found, one JSON line a check.
It runs once; each test here judges its part.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.node.doors.http import dashboard
from millrace.node.doors.http.guard import PAGE_POLICY

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "dashboard"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NODE = shutil.which("node")
_CHECKS_S = 300
_UNITS_S = 120

needs_packages = pytest.mark.skipif(
    NODE is None or not (DASHBOARD / "node_modules" / "vitest").is_dir(),
    reason="the dashboard's packages are not installed: npm, then make setup",
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
needs_build = pytest.mark.skipif(
    not (dashboard.BUILT / "index.html").is_file(), reason="the dashboard is not built: npm, then make setup"
)


def run_node(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(NODE), *arguments],
        cwd=DASHBOARD,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "CHROMIUM": str(CHROMIUM), "NO_COLOR": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def checks() -> dict[str, dict[str, Any]]:
    done = run_node("e2e/check.mjs", timeout_s=_CHECKS_S)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, done.stderr
    # A script that ends in the middle has found less than it looks.
    assert any(row["name"].startswith("login/users") for row in rows), done.stderr
    return {row["name"]: row for row in rows}


def faults(checks: dict[str, dict[str, Any]], *beginnings: str) -> list[str]:
    """What failed of the checks whose names begin so; there must be some."""
    rows = [row for name, row in checks.items() if name.startswith(beginnings)]
    assert rows
    return [f"{row['name']}: {row['detail']}" for row in rows if not row["ok"]]


@needs_packages
@needs_chromium
@needs_build
class TestAgainstTheMock:
    def test_every_page_loads_without_a_word_on_the_console(self, checks: dict[str, dict[str, Any]]) -> None:
        assert faults(checks, "loads/") == []

    def test_axe_finds_nothing_serious_in_light_and_dark(self, checks: dict[str, dict[str, Any]]) -> None:
        assert faults(checks, "axe/") == []

    def test_every_page_fits_a_narrow_screen(self, checks: dict[str, dict[str, Any]]) -> None:
        assert faults(checks, "width/") == []

    def test_hostile_names_and_payloads_are_shown_as_text(self, checks: dict[str, dict[str, Any]]) -> None:
        assert faults(checks, "text/", "hostile/") == []

    def test_the_keyboard_is_enough(self, checks: dict[str, dict[str, Any]]) -> None:
        """Skip link, pages, and a question that Escape answers with no."""
        assert faults(checks, "keyboard/") == []

    def test_figures_move_and_faults_are_seen(self, checks: dict[str, dict[str, Any]]) -> None:
        """A killed node within two seconds; a broken stream is said, and mended by itself."""
        assert faults(checks, "live/") == []

    def test_a_message_is_published_as_it_was_typed(self, checks: dict[str, dict[str, Any]]) -> None:
        assert faults(checks, "publish/") == []

    def test_login_logout_and_what_a_node_does_not_keep(self, checks: dict[str, dict[str, Any]]) -> None:
        assert faults(checks, "login/") == []


@needs_packages
def test_the_pure_parts() -> None:
    done = run_node("node_modules/vitest/vitest.mjs", "run", timeout_s=_UNITS_S)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_packages
def test_the_sources_are_well_typed_and_formatted() -> None:
    for tool in (["typescript/bin/tsc", "--noEmit"], ["prettier/bin/prettier.cjs", "--check", "."]):
        done = run_node(f"node_modules/{tool[0]}", *tool[1:], timeout_s=_UNITS_S)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_mock_has_the_content_security_policy_of_the_node() -> None:
    source = (DASHBOARD / "mock" / "server.mjs").read_text()
    found = re.search(r"const PAGE_POLICY =\s*((?:\"[^\"]*\"[\s+]*)+);", source)
    assert found is not None
    assert "".join(re.findall(r'"([^"]*)"', found[1])) == PAGE_POLICY


def test_the_lock_names_no_registry() -> None:
    """Who builds it elsewhere has another one."""
    packages = json.loads((DASHBOARD / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in packages.items() if name)


def test_the_documentation_shows_every_page() -> None:
    """Each page of the dashboard has a picture there, each picture is used, and all of them are small."""
    folder = ROOT / "docs" / "how-to"
    names = re.findall(r'^  \["([a-z-]+)", ', (DASHBOARD / "e2e" / "browser.mjs").read_text(), re.MULTILINE)
    shown = set(re.findall(r"\(dashboard/([a-z-]+)\.webp\)", (folder / "dashboard.md").read_text()))
    pictures = {path.stem: path.stat().st_size for path in (folder / "dashboard").iterdir()}
    assert len(names) == 19 and set(names) <= shown
    assert shown == pictures.keys()
    assert max(pictures.values()) < 80_000 and sum(pictures.values()) < 1_000_000


@needs_chromium
@needs_build
def test_a_real_node_serves_it_under_its_own_policy(start_broker: Any, tmp_path: Path) -> None:
    broker: BrokerProcess = start_broker()
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        # Not by virtual time, which stands still while the live figures are open.
        "--timeout=5000",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        f"http://127.0.0.1:{broker.ports['http']}/",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert 'class="navigation' in done.stdout
    assert "Content Security Policy" not in done.stderr, done.stderr
