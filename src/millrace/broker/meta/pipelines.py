"""Pipelines that the cluster holds: what runs, where, and who runs it: a part of the meta group's state.

A pipeline has one owner at a time, under an epoch that only rises. A node owns it when an entry says so, and
raises the epoch before each start of a driver; a driver says its epoch with every batch that it decides, and
the coordinator of writers refuses one that is not the newest. So of two drivers at once, one of a node that
nobody hears any more, only the newer decides anything.

Owners renew their ownership by an entry of their own. There is no clock here: the leader of the meta group
counts from the last renewal that it saw (`node/pipelines/ownership.py`).
"""

import re
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from millrace.errors import LocalError
from millrace.limits import (
    DECLARED_PIPELINES_MAX,
    PIPELINE_FILE_BYTES_MAX,
    PIPELINE_FILES_BYTES_MAX,
    PIPELINE_SETTINGS_MAX,
)
from millrace.settings import Settings, says

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.(py|sql)")
_REASON_CHARACTERS = 1_000
_NEEDS_CHECKPOINTS = (
    "more than one node may run it, so all of them must reach its checkpoints: give checkpoints as a URL, "
    "such as s3a://bucket/checkpoints, or file:///mnt/shared/checkpoints for a directory that every node has "
    "mounted; or name the one node that runs it"
)

_FOR_WORKERS = (
    "its tasks run in workers of a Spark cluster, which keep state in its checkpoints: give checkpoints as a "
    "URL that all of them reach, such as s3a://bucket/checkpoints or file:///mnt/shared/checkpoints"
)


class PipelineSpec(Settings, frozen=True, kw_only=True):
    """How a pipeline is run. Raises LocalError where it makes no sense."""

    NOUN: ClassVar[str] = "pipeline"

    name: Annotated[str, says("What the pipeline is called.")]
    file: Annotated[str, says("Name of its file, which ends in .py or .sql.")]
    node: Annotated[str, says("The node that runs it; empty: any that runs pipelines.", metavar="NODE")] = ""
    master: Annotated[str, says("Where Spark runs.")] = "local[*]"
    checkpoints: Annotated[
        str, says("Directory of its checkpoints, as a URL; empty: below the data directory of its node.")
    ] = ""
    settings: Annotated[
        tuple[str, ...], says("A setting of the pipeline.", option="--set", metavar="KEY=VALUE")
    ] = ()
    conf: Annotated[tuple[str, ...], says("A setting of Spark.", metavar="KEY=VALUE")] = ()
    trigger: Annotated[
        str,
        says(
            "How often it looks for new messages.",
            pattern=r"\A[0-9]+(\.[0-9]+)?\s*(ms|s|m|min|h|d)\Z",
            expected="a time such as 500ms, 2s or 1m",
        ),
    ] = "2s"
    ui_port: Annotated[
        int, says("Port where Spark serves its pages; 0 is none.", 0, 65_535, option="--ui", metavar="PORT")
    ] = 0
    starts: Annotated[
        int, says("After so many starts in a row without a finished batch it is given up.", 1, 1_000)
    ] = 5

    def refusals(self) -> Iterator[str]:
        if not _NAME.fullmatch(self.name):
            yield "a name is up to 64 letters, digits, dots, dashes, underscores"
        if not _FILE.fullmatch(self.file):
            yield f"file = {self.file!r}: expected a name that ends in .py or .sql"
        for one in (*self.settings, *self.conf):
            if "=" not in one:
                yield f"{one!r} is not KEY=VALUE"
        if len(self.settings) + len(self.conf) > PIPELINE_SETTINGS_MAX:
            yield f"it has at most {PIPELINE_SETTINGS_MAX} settings"
        scheme = urlsplit(self.checkpoints).scheme
        if not scheme and self.checkpoints and not self.checkpoints.startswith("/"):
            yield f"checkpoints = {self.checkpoints!r}: expected a URL, or a path that begins with /"
        if not self.node and not scheme:
            yield _NEEDS_CHECKPOINTS
        if not self.master.startswith("local") and not scheme:
            yield _FOR_WORKERS


class Steer(StrEnum):
    """What people ask of a pipeline."""

    STOP = "stop"
    START = "start"
    RESET = "reset"


class Fence(msgspec.Struct, frozen=True, array_like=True):
    """Which run of which pipeline decides a batch."""

    number: int
    epoch: int

    @staticmethod
    def parse(text: str) -> "Fence":
        """As `str` writes it; LocalError for anything else."""
        number, _, epoch = text.partition(":")
        if not (number.isascii() and number.isdigit() and epoch.isascii() and epoch.isdigit()):
            raise LocalError(f"{text!r} names no run of a pipeline")
        return Fence(int(number), int(epoch))

    def __str__(self) -> str:
        return f"{self.number}:{self.epoch}"


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Its own for ever, also when another one gets its name."""
    spec: PipelineSpec
    text: str
    user: str = ""
    """Who made it, or changed it last."""
    version: int = 1
    """Raised by whatever asks for another driver."""
    is_wanted: bool = True
    failure: str = ""
    """Why it was given up; nobody starts it until somebody asks."""
    owner: str = ""
    """The replica that runs it; empty for none."""
    epoch: int = 0
    resets: int = 0
    has_begun: bool = False
    """There are checkpoints, in the place of this reset."""

    @property
    def runs(self) -> bool:
        """Whether somebody should run it."""
        return self.is_wanted and not self.failure

    @property
    def fence(self) -> Fence:
        return Fence(self.number, self.epoch)


class Pipelines(msgspec.Struct):
    """Deterministic. Every method up to `check` is one command; LocalError says why it changed nothing."""

    by_name: dict[str, Pipeline] = {}
    next_number: int = 1
    renewals: dict[str, int] = {}
    """By replica, how often it renewed what it owns."""

    # ------------------------------------------------------------------------------------ commands

    def put(self, spec: PipelineSpec, text: str, user: str, *, create_only: bool) -> None:
        """Make a pipeline, or give one another file and other settings; its checkpoints stay."""
        size = len(text.encode())
        if size > PIPELINE_FILE_BYTES_MAX:
            raise LocalError(f"{spec.file} has {size} bytes; the most is {PIPELINE_FILE_BYTES_MAX}")
        known = self.by_name.get(spec.name)
        if known is not None and create_only:
            raise LocalError(
                f"pipeline {spec.name!r} exists; change it with: millrace pipeline upgrade {spec.name} FILE"
            )
        if known is None and not create_only:
            raise _no_pipeline(spec.name)
        others = sum(len(one.text.encode()) for name, one in self.by_name.items() if name != spec.name)
        if others + size > PIPELINE_FILES_BYTES_MAX:
            raise LocalError(f"all files together may have {PIPELINE_FILES_BYTES_MAX} bytes")
        if known is None:
            if len(self.by_name) >= DECLARED_PIPELINES_MAX:
                raise LocalError(f"there are {DECLARED_PIPELINES_MAX} pipelines, the most")
            self.by_name[spec.name] = Pipeline(number=self.next_number, spec=spec, text=text, user=user)
            self.next_number += 1
            return
        if known.has_begun and spec.checkpoints != known.spec.checkpoints:
            raise LocalError(
                f"pipeline {spec.name!r} has its checkpoints elsewhere; stop and reset it to begin anew in "
                "another place"
            )
        self._set(replace(known, spec=spec, text=text, user=user, version=known.version + 1, failure=""))

    def steer(self, name: str, order: Steer) -> None:
        """Stop it, start it or another driver of it, or let it begin anew."""
        known = self.named(name)
        match order:
            case Steer.STOP:
                self._set(replace(known, is_wanted=False, failure=""))
            case Steer.START:
                self._set(replace(known, is_wanted=True, failure="", version=known.version + 1))
            case Steer.RESET:
                if known.runs:
                    raise LocalError(
                        f"pipeline {name!r} runs; stop it first with: millrace pipeline stop {name}"
                    )
                # Whoever still runs it must decide nothing any more: what it read will be read again.
                self._set(
                    replace(known, resets=known.resets + 1, has_begun=False, epoch=known.epoch + 1, owner="")
                )

    def delete(self, name: str) -> None:
        self.named(name)
        del self.by_name[name]
        self._forget_idle()

    def own(self, name: str, after: int, owner: str) -> None:
        """This replica, or nobody, runs it from now on; void unless the epoch is still `after`."""
        known = self.named(name)
        if known.epoch != after:
            raise LocalError(f"pipeline {name!r} has another owner, or was started again, meanwhile")
        self._set(replace(known, owner=owner, epoch=after + 1))
        self._forget_idle()

    def begin(self, name: str, epoch: int) -> None:
        """The owner has made the place of its checkpoints."""
        self._set(replace(self._run(name, epoch), has_begun=True))

    def fail(self, name: str, epoch: int, reason: str) -> None:
        """The owner gives up."""
        self._set(
            replace(self._run(name, epoch), failure=reason[:_REASON_CHARACTERS] or "no reason was given")
        )

    def renew(self, owner: str) -> None:
        """The owner of pipelines is there."""
        if any(one.owner == owner for one in self.by_name.values()):
            self.renewals[owner] = self.renewals.get(owner, 0) + 1

    # ------------------------------------------------------------------------------------- answers

    def named(self, name: str) -> Pipeline:
        known = self.by_name.get(name)
        if known is None:
            raise _no_pipeline(name)
        return known

    def check(self, fence: Fence | None) -> None:
        """LocalError unless this run is the newest of its pipeline. What belongs to no pipeline may pass."""
        if fence is None or any(one.fence == fence for one in self.by_name.values()):
            return
        raise LocalError("this driver is not the one that runs its pipeline any more")

    def is_superseded(self, fence: Fence) -> bool:
        """Whether there is a newer run, or no such pipeline any more. A node that is behind may not know of
        this run at all."""
        for one in self.by_name.values():
            if one.number == fence.number:
                return one.epoch > fence.epoch
        return fence.number < self.next_number

    def choose(self, pipeline: Pipeline, fit: Collection[tuple[str, str]]) -> str | None:
        """The replica that is to run it, of those that can, given with their names: one that runs few."""
        load = {replica: 0 for replica, name in fit if pipeline.spec.node in ("", name)}
        for one in self.by_name.values():
            if one.owner in load and one.runs:
                load[one.owner] += 1
        return min(load, key=lambda replica: (load[replica], replica), default=None)

    def _run(self, name: str, epoch: int) -> Pipeline:
        known = self.named(name)
        if known.epoch != epoch:
            raise LocalError(f"pipeline {name!r} was started again meanwhile")
        return known

    def _set(self, pipeline: Pipeline) -> None:
        self.by_name[pipeline.spec.name] = pipeline

    def _forget_idle(self) -> None:
        owners = {one.owner for one in self.by_name.values()}
        self.renewals = {replica: count for replica, count in self.renewals.items() if replica in owners}


def _no_pipeline(name: str) -> LocalError:
    return LocalError(f"there is no pipeline {name!r} in the cluster")


def syntax_complaint(error: SyntaxError, file: object) -> str:
    """Where Python does not understand a file, or one that it imports, and what stands there."""
    text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
    line = "" if error.lineno is None else f", line {error.lineno}"
    return f"{error.filename or file}{line}: {error.msg}{text}"


def wrong_text(file: str, text: str | bytes) -> str | None:
    """Why the text of a pipeline's file can never run, as far as can be said without running it."""
    if not file.endswith(".py"):
        return None
    try:
        compile(text, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        return syntax_complaint(error, file)
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{file} cannot be read: {error or type(error).__name__}"
    return None
