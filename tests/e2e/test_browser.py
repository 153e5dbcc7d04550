"""The pages of a node in a real browser, under their own content security policy."""

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.processes import BrokerProcess
from millrace.node.doors.http import docs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PAGE_S = 60
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=8000",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


def rendered(url: str, profile: Path) -> str:
    """The page after its scripts ran."""
    command = [str(CHROMIUM), *_QUIET, f"--user-data-dir={profile}", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PAGE_S, check=True)
    return done.stdout


@pytest.mark.skipif(not docs.ASSETS.is_dir(), reason="the viewer was not installed: no npm at set-up")
def test_the_page_of_the_http_api_lists_every_call(broker: BrokerProcess, tmp_path: Path) -> None:
    page = rendered(f"http://127.0.0.1:{broker.ports['http']}/docs", tmp_path)
    assert page.count('class="opblock opblock-') > 20
    assert 'data-path="/v1/streams"' in page
