"""The Tab key in real shells: each loads its script and is asked what it offers."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

_PATIENCE_S = 20.0


def with_millrace(tmp_path: Path) -> dict[str, str]:
    """An environment in which `millrace` is this program, with a home of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "millrace"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m millrace.cli.main "$@"\n')
    command.chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
    }


def script(shell: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "millrace.cli.main", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"no {shell} here: apt-get install {shell}")


class Terminal:
    """A shell that believes to be spoken to by a person."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execvpe(command[0], command, environment)
        self.said = ""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, pattern: str) -> None:
        """Read until the shell has written this, after what was read before."""
        deadline_s = time.monotonic() + _PATIENCE_S
        begin = len(self.said)
        while not re.search(pattern, self.said[begin:]):
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{pattern!r} is not in {self.said[begin:]!r}"
            if select.select([self._terminal], [], [], left_s)[0]:
                self.said += os.read(self._terminal, 65536).decode(errors="replace")

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@needs("fish")
def test_fish_offers_commands_and_options(tmp_path: Path) -> None:
    """fish can be asked without a terminal."""
    environment = with_millrace(tmp_path)
    folder = tmp_path / ".config" / "fish" / "completions"
    folder.mkdir(parents=True)
    (folder / "millrace.fish").write_text(script("fish", environment))

    def offered(typed: str) -> list[str]:
        done = subprocess.run(
            ["fish", "-c", f"complete -C '{typed}'"],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    assert {"create", "delete", "list"} <= set(offered("millrace stream "))
    assert offered("millrace stream cr") == ["create"]
    assert "--replication" in offered("millrace stream create --rep")


@needs("zsh")
def test_zsh_completes_a_command_that_is_typed(tmp_path: Path) -> None:
    environment = with_millrace(tmp_path)
    lines = "PROMPT='ready> '\nautoload -Uz compinit\ncompinit -u\n" + script("zsh", environment)
    (tmp_path / ".zshrc").write_text(lines)
    shell = Terminal(["zsh", "-i"], environment)
    try:
        shell.until("ready> ")
        shell.type("millrace strea\t")
        shell.until(r"stream ?")
        shell.type("cr\t")
        shell.until(r"create")
        shell.type("--replicat\t")
        shell.until(r"--replication")
        # A list where several begin so.
        shell.type("\x15millrace cluster \t\t")
        shell.until(r"(?s)down.*up|up.*down")
    finally:
        shell.type("\x03\x04")
        shell.close()


@needs("bash")
def test_bash_completes_a_command_that_is_typed(tmp_path: Path) -> None:
    environment = with_millrace(tmp_path)
    (tmp_path / ".bashrc").write_text("PS1='ready> '\n" + script("bash", environment))
    shell = Terminal(["bash", "-i"], environment)
    try:
        shell.until("ready> ")
        shell.type("millrace strea\t")
        shell.until(r"stream ")
        shell.type("cr\t")
        shell.until(r"create ")
        shell.type("--replicat\t")
        shell.until(r"--replication ")
    finally:
        shell.type("\x03\x04")
        shell.close()
