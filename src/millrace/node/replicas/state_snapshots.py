"""The state of a replication group as a snapshot on its disk, and back.

Both are done in steps, over turns of the event loop, because a state may be large [rule 33]. What is written
is the state after one entry, whatever is applied meanwhile: the app freezes it (`broker/freezing.py`). It is
synced by whoever writes the log. A snapshot that was begun is given up where one from the leader takes the
place of the log, and at the end of a run, which writes the state of its end at once.

A snapshot begins with a line of JSON: what the group itself must know, and where the bytes of the state
behind it may be cut. Without `parts` the state is loaded in one step.
"""

import json
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from typing import Any

from millrace.broker.freezing import ROWS_AT_ONCE, Freezing, Parts, Pieces, finished
from millrace.errors import StorageError
from millrace.node.logs.replica_log import ReplicaLog, TakenSnapshot
from millrace.node.logs.syncer import Job, Syncer
from millrace.node.replicas.app import App
from millrace.replication.contract import Config, Persist
from millrace.storage.disk import DiskFull
from millrace.storage.scan import RangeDamaged
from millrace.storage.snapshot import SnapshotFile
from millrace.types import Index, Term

log = logging.getLogger("millrace.group")

# Bytes that one step hands to the disk's cache.
_WRITTEN_AT_ONCE = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAt:
    """Names the state of a group after one entry."""

    index: Index
    term: Term
    config: Config
    fields: dict[str, Any]
    """What the group knows beside the app."""


class StateSnapshots:
    def __init__(
        self,
        app: Callable[[], App],
        replica_log: ReplicaLog,
        syncer: Syncer,
        *,
        taken: Callable[[StateAt], None],
        failed: Callable[[StorageError], None],
        is_void: Callable[[], bool],
        is_closed: Callable[[], bool],
    ) -> None:
        """`taken` hears of each snapshot that is on disk, `failed` of a disk that did not do it. `is_void`: a
        snapshot that was begun is not wanted any more; `is_closed`: neither is one that is being loaded."""
        self._app = app
        self._replica_log = replica_log
        self._syncer = syncer
        self._taken, self._failed = taken, failed
        self._is_void, self._is_closed = is_void, is_closed
        self.in_turns: Callable[[Iterator[None]], None] = finished
        self.rows_at_once = ROWS_AT_ONCE
        self.loading: Callable[[], AbstractContextManager[None]] = nullcontext
        self._work: Generator[None] | None = None
        self._unfinished: TakenSnapshot | None = None
        self._is_loading = False
        self._next: tuple[SnapshotFile, Callable[[dict[str, Any]], None]] | None = None

    @property
    def is_running(self) -> bool:
        return self._work is not None or self._unfinished is not None

    # ------------------------------------------------------------------------------------ to the disk

    def begin(self, at: StateAt) -> None:
        """Write this state, which is the present one, over some turns. None is under way."""
        freezing = self._app().freeze()
        if freezing is not None:
            self._work = self._steps(at, freezing)
            self.in_turns(self._work)

    def write(self, at: StateAt) -> bool:
        """*blocking* The same at once. False where the app has too much to write now."""
        self.give_up()
        freezing = self._app().freeze()
        if freezing is None:
            return False
        pieces = Pieces()
        try:
            finished(freezing.encode(pieces))
        finally:
            freezing.end()
        self._replica_log.take_snapshot(at.index, at.term, at.config, [_head(at, pieces), *pieces])
        self._taken(at)
        return True

    def give_up(self) -> None:
        """What was begun is not wanted any more."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            self._replica_log.drop_taken(unfinished)

    def _steps(self, at: StateAt, freezing: Freezing) -> Generator[None]:
        writer = None
        try:
            pieces = Pieces(self.rows_at_once)
            for _ in freezing.encode(pieces):
                yield
                if self._is_void():
                    return
            freezing.end()
            writer = self._replica_log.begin_snapshot(at.index)
            writer.write(_head(at, pieces))
            written = 0
            for piece in pieces:
                writer.write(piece)
                written += len(piece)
                if written > _WRITTEN_AT_ONCE:
                    written = 0
                    yield
                    if self._is_void():
                        return
            self._finish(at, TakenSnapshot(writer, at.term, at.config))
            writer = None
        except DiskFull as error:
            log.warning("group %d: no snapshot for now: %s", self._replica_log.group, error)
        except RangeDamaged as error:
            if error.damage.last_index > at.index:
                self._failed(error)
        except StorageError as error:
            log.warning("group %d: no snapshot for now: %s", self._replica_log.group, error)
        finally:
            freezing.end()
            self._work = None
            if writer is not None:
                writer.abandon()

    def _finish(self, at: StateAt, unfinished: TakenSnapshot) -> None:
        """Sync it with the log, by a write of nothing."""

        def synced(_: int) -> None:
            if self._unfinished is unfinished:
                self._unfinished = None
                if not self._is_void() and self._replica_log.adopt_taken(unfinished):
                    self._taken(at)

        self._unfinished = self._replica_log.taken = unfinished
        job = Job(self._replica_log, Persist(number=0), [], synced)
        job.snapshot_bytes = unfinished.writer.size_bytes
        self._syncer.submit(job)

    # ---------------------------------------------------------------------------------- from the disk

    def restore(self, saved: bytes) -> dict[str, Any]:
        """Load the state of a snapshot at once; returns what the group knows beside it."""
        head, _, state = saved.partition(b"\n")
        fields: dict[str, Any] = json.loads(head)
        finished(self._app().load(state, ()))
        return fields

    def load(self, loaded: Callable[[dict[str, Any]], None]) -> None:
        """Load the newest snapshot over some turns, and call back with what the group knows beside it. Called
        again meanwhile, that is done afterwards."""
        self.give_up()
        if self._next is not None:
            self._next[0].close()
        self._next = self._replica_log.open_snapshot(), loaded
        if not self._is_loading:
            self._is_loading = True
            self.in_turns(self._load_steps())

    def _load_steps(self) -> Iterator[None]:
        try:
            while self._next is not None and not self._is_closed():
                (file, loaded), self._next = self._next, None
                with closing(file):
                    reader = _Reader(file)
                    fields: dict[str, Any] = json.loads(reader.line())
                    parts = Parts(fields.get("parts", [("", 0, reader.left)]), reader)
                    yield from self._while_open(parts.read())
                    yield from self._while_open(self._app().load(parts.skeleton, parts.rows()))
                if not self._is_closed():
                    loaded(fields)
        except StorageError as error:
            self._failed(error)
        finally:
            self._is_loading = False

    def _while_open(self, steps: Iterator[None]) -> Iterator[None]:
        """What is made for a state stays: a collection of garbage would walk all of it."""
        while not self._is_closed():
            with self.loading():
                if next(steps, self) is self:
                    return
            yield


class _Reader:
    """The bytes of a snapshot, one after the other."""

    def __init__(self, file: SnapshotFile) -> None:
        self._file = file
        self._position = 0

    @property
    def left(self) -> int:
        return self._file.info.size_bytes - self._position

    def take(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and (piece := self._file.read(self._position, size)):
            pieces.append(piece)
            self._position += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def line(self) -> bytes:
        """Up to its end, which is left out."""
        head = b""
        while b"\n" not in head and (piece := self._file.read(len(head), self._file.info.size_bytes)):
            head += piece
        head = head.partition(b"\n")[0]
        self._position = len(head) + 1
        return head


def _head(at: StateAt, pieces: Pieces) -> bytes:
    return json.dumps({**at.fields, "parts": pieces.parts}).encode() + b"\n"
