"""What set-up installs from Debian, with an apt-get and an id that only write down what they are asked."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "tools" / "packages.sh"


def run(
    tmp_path: Path, which: str, *, root: bool, has: tuple[str, ...] = (), fails: bool = False
) -> tuple[subprocess.CompletedProcess[str], str]:
    """What the script said, and what it asked apt-get for, on a machine with these programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    asked = tmp_path / "asked"
    asked.touch()
    scripts = {
        "id": f"echo {0 if root else 1000}",
        "apt-get": f'echo "$@" >>{asked}; exit {int(fails)}',
        **dict.fromkeys(has, "true"),
    }
    for name, text in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    bash = subprocess.run(["which", "bash"], capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(
        [bash, str(SCRIPT), which],
        env={"PATH": str(programs), "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, asked.read_text()


def test_root_gets_a_browser_with_letters_and_promtool(tmp_path: Path) -> None:
    done, asked = run(tmp_path, "show", root=True)
    assert done.returncode == 0, done.stderr
    assert "update" in asked.splitlines()[0]
    assert "--no-install-recommends chromium fonts-dejavu-core prometheus" in asked
    assert "installing chromium" in done.stdout


def test_what_is_here_is_not_installed_again(tmp_path: Path) -> None:
    done, asked = run(tmp_path, "show", root=True, has=("chromium",))
    assert "chromium" not in asked and "prometheus" in asked
    assert done.returncode == 0


def test_nothing_missing_asks_for_nothing(tmp_path: Path) -> None:
    done, asked = run(tmp_path, "show", root=True, has=("chromium", "promtool", "zsh", "fish"))
    assert (done.returncode, done.stdout, asked) == (0, "", "")


def test_without_root_it_says_what_is_left_out(tmp_path: Path) -> None:
    done, asked = run(tmp_path, "show", root=False)
    assert (done.returncode, asked) == (0, "")
    assert "as root: apt-get install chromium fonts-dejavu-core prometheus" in done.stdout
    assert "are skipped" in done.stdout


def test_a_browser_that_cannot_be_installed_is_no_error_and_a_compiler_is(tmp_path: Path) -> None:
    (tmp_path / "show").mkdir()
    done, _ = run(tmp_path / "show", "show", root=True, fails=True)
    assert done.returncode == 0 and "could not install" in done.stdout
    (tmp_path / "work").mkdir()
    done, _ = run(tmp_path / "work", "work", root=True, fails=True)
    assert done.returncode == 1 and "install them by hand" in done.stderr
