"""The load generator `mload`: built on first use, run once per measurement.

The source is part of the package. Its binary is kept in a cache directory under a name that holds the hash of
source and compiler flags, so a changed source is built again and a build is never mistaken for another. The
binary is written aside and renamed: two programs that start at once both find a whole file.
"""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from millrace.errors import LocalError, StorageError

_COMPILER = "gcc"
_FLAGS = ("-O2", "-Wall", "-Wextra")
_BUILD_S_MAX = 120
# What a run takes beside its own duration: connecting (10 s, idle ones 90 s at most) and the drain (20 s).
_SLACK_S = 150
# Exit status 3: complete, but messages were lost or unanswered.
_STATUS_LOST = 3
_WARM_UP_S = 0.4


class GeneratorError(LocalError):
    """The generator cannot be built or a run of it failed; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    path: Path

    def run(
        self, flags: Sequence[str], *, port: int, pids: Sequence[int], seconds: float | None
    ) -> dict[str, Any]:
        """One run against a broker on this machine; the fields of its answer.

        `seconds` is the measured time; None for runs that have their own end. Raises GeneratorError when
        the run broke off or messages were lost.
        """
        command = [str(self.path), "-p", str(port), "-B", ",".join(map(str, pids)), *flags]
        if seconds is not None:
            command += ["-w", str(min(_WARM_UP_S, seconds)), "-t", str(seconds)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=(seconds or 0) + _SLACK_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise GeneratorError("the run did not end") from error
        if done.returncode not in (0, _STATUS_LOST):
            raise GeneratorError(_last_line(done.stderr) or f"the generator ended with {done.returncode}")
        answer: dict[str, Any] = {}
        for line in done.stdout.splitlines():
            # An idle run prints a second object about the time the connections were held.
            answer = {**json.loads(line), **answer}
        for name in ("lost", "unacked", "unreleased", "disorder"):
            if answer.get(name):
                raise GeneratorError(f"{name}: {answer[name]} messages")
        return answer


@cache
def source() -> str:
    return files("millrace.lab.bench").joinpath("mload.c").read_text(encoding="utf-8")


def cache_directory(environment: dict[str, str]) -> Path:
    """Where the binary is kept: the user's cache, or a private directory among the temporary ones.

    Raises StorageError when neither can be written.
    """
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or "/nonexistent") / ".cache"
    shared = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}"
    for directory in (Path(home) / "millrace", shared):
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        found = directory.stat()
        # A program that others could replace is not run.
        is_ours = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_ours and os.access(directory, os.W_OK | os.X_OK):
            return directory
    raise StorageError(f"no directory of our own for the load generator: tried {home} and {shared}")


def build(environment: dict[str, str] | None = None) -> Generator:
    """The generator, compiled if there is no binary of this source yet."""
    environment = dict(os.environ) if environment is None else environment
    identity = hashlib.sha256("\0".join((*_FLAGS, source())).encode()).hexdigest()[:16]
    target = cache_directory(environment) / f"mload-{identity}"
    if target.exists():
        return Generator(path=target)
    compiler = shutil.which(_COMPILER, path=environment.get("PATH", ""))
    if compiler is None:
        raise GeneratorError(f"the load generator is built with {_COMPILER}, which is not installed here")
    with tempfile.TemporaryDirectory(dir=target.parent) as aside:
        binary = Path(aside) / "mload"
        command = [compiler, *_FLAGS, "-x", "c", "-o", str(binary), "-"]
        try:
            done = subprocess.run(
                command, input=source(), capture_output=True, text=True, timeout=_BUILD_S_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GeneratorError(f"{_COMPILER} could not be run: {error}") from error
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
            raise GeneratorError(f"{_COMPILER} could not build the load generator: {errors[0]}")
        binary.rename(target)
    return Generator(path=target)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].removeprefix("mload: ")
