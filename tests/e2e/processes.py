"""Real broker processes for the tests: on free ports, awaited by their ready line, ended by their pid.

What a broker writes goes to files, so that a full pipe never stalls it and a failed test can show it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from waiting import until

MILLRACE = str(Path(sys.executable).parent / "millrace")

_READY = re.compile(r"^millrace (\S+) ready: (.*)$", re.MULTILINE)
_START_S_MAX = 20.0
_EXIT_S_MAX = 15.0


def environment(**variables: str) -> dict[str, str]:
    """The environment of a child, without settings that happen to be in ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    return {**kept, **variables}


def millrace(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [MILLRACE, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_START_S_MAX,
        env=environment(**variables),
        check=False,
    )


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What the program complains of: one line, whatever the log said before."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("millrace: ")]
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def tool(name: str) -> str:
    """The path of a Debian program, or skip the test."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian package mosquitto-clients)")
    return path


class BrokerProcess:
    """One `millrace start`. MQTT and HTTP get free ports; `arguments` may say otherwise."""

    def __init__(self, directory: Path, *arguments: str, under: Sequence[str] = (), **variables: str) -> None:
        """`under`: a program that runs what it is given, in some way of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        self.data = directory / "data"
        self._out = directory / "stdout.txt"
        self._log = directory / "log.txt"
        command = [*under, MILLRACE, "start", "--data", str(self.data)]
        command += ["--mqtt", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments]
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=environment(**variables)
            )
        self.ports: dict[str, int] = {}

    def wait_ready(self) -> "BrokerProcess":
        until(lambda: self._ready() or self.process.poll() is not None, "the ready line", _START_S_MAX)
        found = self._ready()
        assert found is not None, f"the broker ended with {self.process.returncode}: {self.log}"
        self.ports = {name: int(port) for name, port in (pair.split("=") for pair in found.group(2).split())}
        return self

    def _ready(self) -> "re.Match[str] | None":
        return _READY.search(self._out.read_text())

    @property
    def port(self) -> int:
        return self.ports["mqtt"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def reload(self) -> None:
        """SIGHUP, and wait until the broker says what came of it."""
        before = self._reload_lines()
        self.signal(signal.SIGHUP)
        until(lambda: self._reload_lines() > before, "the broker to reload")

    def _reload_lines(self) -> int:
        return self.log.count("reloaded: ") + self.log.count("not reloaded, ")

    def wait_exit(self, timeout_s: float = _EXIT_S_MAX) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> None:
        """End the process whatever state it is in."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_EXIT_S_MAX)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
