"""One run of a pipeline: the supervisor that this node started for it, as another process.

The code of a pipeline runs with the rights of the node's user. It does not get what the node knows by its
environment: settings of the node, among them secrets, are left out.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from millrace.broker.meta.pipelines import Pipeline
from millrace.errors import LocalError
from millrace.limits import PIPELINE_REPORT_BYTES_MAX
from millrace.node.config import ENVIRONMENT_PREFIX, Pipelines
from millrace.node.pipelines.ownership import DRIVER_STOP_S
from millrace.node.pipelines.reports import REPORTS, Report

SUPERVISOR = "millrace.spark.declared"
_MARK = "millrace-pipeline"
# A supervisor that was told to stop, and its driver with it.
_STOP_S = DRIVER_STOP_S + 5.0
_TOKEN_VARIABLE = "MILLRACE_TOKEN"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run keeps its files at this node, and where its checkpoints are."""

    directory: Path
    file: Path
    checkpoints: str
    mark: Path | None
    """A file that tells that the checkpoints are here; None where they are at no path."""

    @staticmethod
    def of(data: Path, pipeline: Pipeline) -> "Place":
        spec = pipeline.spec
        directory = (data / "pipelines" / spec.name).absolute()
        base = spec.checkpoints.rstrip("/")
        # Another one after each reset, and after another pipeline of this name.
        folder = f"{pipeline.number}-{pipeline.resets}"
        whole = f"{base}/{spec.name}/{folder}" if base else str(directory / "checkpoints" / folder)
        path = whole.removeprefix("file://").removeprefix("file:")
        mark = Path(path) / _MARK if path.startswith("/") else None
        return Place(directory, directory / spec.file, whole, mark)

    def prepare(self, pipeline: Pipeline, cluster: str) -> None:
        """Write the pipeline's file, and make or find the place of its checkpoints; LocalError where they
        should be here and are not: to begin anew would be to write everything once more."""
        word = f"{cluster} {pipeline.number}-{pipeline.resets}\n"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = self.file.with_name(f"{self.file.name}.new")
            aside.write_text(pipeline.text)
            aside.replace(self.file)
            if self.mark is None:
                return
            if pipeline.has_begun:
                found = self.mark.read_text() if self.mark.exists() else ""
                if found != word:
                    raise LocalError(
                        f"its checkpoints are not at {self.mark.parent} of this node, though it has run: the "
                        "directory must be the same at every node that may run it. Mount it, name the node "
                        "that has it, or begin anew: millrace pipeline reset"
                    )
                return
            self.mark.parent.mkdir(parents=True, exist_ok=True)
            self.mark.write_text(word)
        except OSError as error:
            raise LocalError(f"{error.filename}: {error.strerror}") from None


class Run:
    """A supervisor that runs. `on_report` gets what it says; `code` is set once it has ended."""

    def __init__(self, pipeline: Pipeline, on_report: Callable[[Report], None]) -> None:
        self.pipeline = pipeline
        self.code: int | None = None
        self.error = ""
        self.is_stopping = False
        self._on_report = on_report
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, config: Pipelines, place: Place, urls: str, until_s: float) -> None:
        spec = self.pipeline.spec
        plan = {
            "name": spec.name,
            "file": str(place.file),
            "state": str(place.directory),
            "urls": urls,
            "master": spec.master,
            "checkpoints": place.checkpoints,
            "settings": spec.settings,
            "configuration": spec.conf,
            "trigger": spec.trigger,
            "ui_port": spec.ui_port or None,
            "starts_max": spec.starts,
            "stop_s": DRIVER_STOP_S,
            "is_told": False,
            "run": str(self.pipeline.fence),
        }
        task = self._live(config, place, msgspec.json.encode(plan) + b"\n" + _word(until_s))
        self._task = asyncio.get_running_loop().create_task(task)

    def renewed(self, until_s: float) -> None:
        """This node owns the pipeline until then."""
        self._write(_word(until_s))

    def stop(self) -> None:
        """Let it stop its driver; it is killed if that takes too long."""
        if self.is_stopping:
            return
        self.is_stopping = True
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            asyncio.get_running_loop().call_later(_STOP_S, self._kill)

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _kill(self) -> None:
        # Its driver ends with it, by the end of its standard input.
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def _write(self, line: bytes) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(line)

    async def _live(self, config: Pipelines, place: Place, first: bytes) -> None:
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                config.python or sys.executable,
                "-m",
                SUPERVISOR,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=place.directory,
                env=environment(os.environ, _token(config)),
                limit=PIPELINE_REPORT_BYTES_MAX,
                # Ctrl-C is for the node, which stops it itself.
                start_new_session=True,
            )
        except (OSError, LocalError) as error:
            self.error, self.code = f"its supervisor does not start: {error}", 1
            return
        self._write(first)
        if self.is_stopping:
            self.is_stopping = False
            self.stop()
        assert process.stdout is not None
        try:
            # A line beyond the bound is a ValueError.
            while line := await process.stdout.readline():
                self._take(line)
        except (ValueError, msgspec.MsgspecError):
            self.error = "its supervisor said something that cannot be read"
            self._kill()
        self.code = await process.wait()

    def _take(self, line: bytes) -> None:
        report = REPORTS.decode(line)
        self.error = report.error
        self._on_report(report)


def environment(own: Mapping[str, str], token: str) -> dict[str, str]:
    """What a supervisor gets of the environment of its node."""
    kept = {
        name: value
        for name, value in own.items()
        if not (name.startswith(ENVIRONMENT_PREFIX) and "__" in name)
    }
    return {**kept, **({_TOKEN_VARIABLE: token} if token else {})}


def _token(config: Pipelines) -> str:
    if not config.token_file:
        return ""
    try:
        return Path(config.token_file).read_text().strip()
    except OSError as error:
        raise LocalError(f"pipelines.token_file {config.token_file}: {error.strerror}") from None


def _word(until_s: float) -> bytes:
    return msgspec.json.encode({"until_s": until_s}) + b"\n"
