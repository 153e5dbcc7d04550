"""The reference pages say what the code says: Python names, error texts, `$SYS` topics."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.meta.pairs import PAIRS_TOPIC
from millrace.limits import Limits
from millrace.node.cluster.sys_topics import figures

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tool", ["python_page", "errors_page"])
def test_a_page_that_is_made_from_the_code_is_up_to_date(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_page_of_sys_topics_names_all_of_them_and_no_others() -> None:
    page = (ROOT / "docs" / "reference" / "sys.md").read_text()
    rows = re.findall(r"^\| `(\$SYS/[^`]+)` \|", page, re.M)
    published = list(figures(Broker(Limits(), AccessRules([])), "n1", "1", 0))
    assert rows == [*published, PAIRS_TOPIC, "$SYS/pipelines/NAME"]
