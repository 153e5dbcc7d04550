"""The demos run and prove what they say: each ends in a check of its own."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest

LONG = ("replication", "membership", "election", "routed", "primary-backup", "leaderless")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.parametrize("name", ["basic", "failover", *SLOW])
def test_demo(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", "demo", name],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " NO " not in done.stdout


def test_a_demo_that_is_kept_goes_on_with_its_dashboard_until_ctrl_c() -> None:
    """It says where the dashboard is, the node behind it answers, and Ctrl-C ends all of it."""
    command = [sys.executable, "-m", "millrace.cli.main", "demo", "basic", "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            lines: list[str] = []
            for line in demo.stdout:
                lines.append(line)
                if "Ctrl-C ends it" in line:
                    break
            said = "".join(lines)
            found = re.search(r"dashboard: (http://127[.]0[.]0[.]1:[0-9]+/)", said)
            assert found is not None and "  yes  " in said and " NO " not in said, said
            with urllib.request.urlopen(f"{found[1]}readyz", timeout=10) as answer:
                assert answer.status == 200
            demo.send_signal(signal.SIGINT)
            assert demo.wait(30) == 0
        finally:
            demo.kill()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{found[1]}readyz", timeout=2)


def test_the_list_says_what_each_demo_shows_and_how_long_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", "demo", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in ("basic", "failover", *LONG, "pipeline"):
        assert re.search(rf"{name} +\S.+[(][0-9]+ (s|min)[)]", done.stdout), name
    assert "--keep" in done.stdout
