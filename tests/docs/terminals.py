"""Terminals for the commands of a page: each is a shell that goes on from command to command."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

_END = "\x1e"


class Terminal:
    """A bash whose output is gathered by a thread."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._text = ""
        self._read = 0
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._gather, daemon=True).start()
        # The shell outlives Ctrl-C; what it runs does not.
        self._type("trap : INT")

    def run(self, command: str, timeout_s: float) -> tuple[int, str]:
        """Type a command, wait for its end; its status and what it printed."""
        self._read = len(self._text)
        self._type(f"{command}\nprintf '{_END}%s{_END}' $?")
        text = self._wait(lambda new: new.count(_END) >= 2, timeout_s, command)
        output, status, _ = text.split(_END, 2)
        self._read += len(output) + len(status) + 2
        return int(status), output

    def begin(self, command: str, ready: str, timeout_s: float) -> str:
        """Type a command that goes on, and wait until it says what it says when it is ready."""
        self._read = len(self._text)
        self._type(command)
        text = self._wait(lambda new: ready in new and (not ready or new.endswith("\n")), timeout_s, command)
        self._read += len(text)
        return text

    def printed(self, lines: int, timeout_s: float) -> str:
        """What came since the last look, once it has so many lines."""
        text = self._wait(lambda new: new.count("\n") >= lines, timeout_s, f"{lines} lines")
        self._read += len(text)
        return text

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)
        self.run(":", 30)

    def _type(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def _gather(self) -> None:
        assert self._process.stdout is not None
        while piece := os.read(self._process.stdout.fileno(), 65536):
            with self._changed:
                self._text += piece.decode(errors="replace")
                self._changed.notify_all()

    def _wait(self, is_enough: Callable[[str], bool], timeout_s: float, what: str) -> str:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not is_enough(self._text[self._read :]):
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    so_far = self._text[self._read :]
                    raise TimeoutError(f"{what}: not within {timeout_s:.0f} s; so far: {so_far}")
            return self._text[self._read :]
