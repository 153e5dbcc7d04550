"""The logs of a leaderless stream on one node: one for each origin, kept and read like the log of a shard.

An origin's log has a shard number of its own, made from the stream's number and the origin, the same on
every node: sessions, readers by offset and Spark name it as they name any shard. `OriginLog` has what readers
ask of a shard; `OriginFiles` is what the machine sees.

What a node must know before it can open them is a record in the directory of the stream's number: the origins
it holds logs of, its own incarnation, and whether it was stopped in good order. With `storage = "memory"` the
logs are files that are never synced, and that the next start removes.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.broker.messages.intake import Intake
from millrace.broker.streams.stream import Stream
from millrace.kernels.checksum import crc32c
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Job
from millrace.node.shards.tail import Tail
from millrace.replication.contract import Entry, EntryKind, Persist
from millrace.replication.leaderless.messages import NOWHERE, LogEntry, Origin, PersistLog, Position
from millrace.storage import files
from millrace.storage.block import Block, Kind, opaque_block, parse_block
from millrace.storage.disk import Disk, DiskFull
from millrace.storage.files import FileDamaged
from millrace.storage.scan import RangeDamaged
from millrace.types import Index, Offset, Term

if TYPE_CHECKING:
    from collections.abc import Callable

    from millrace.node.replicas.replicas import Replicas

log = logging.getLogger("millrace.leaderless")

_RECORD, _RECORD_TAG = "origins", b"MROR"
_STATE, _STATE_TAG = "groups", b"MRLG"
# Retained messages are part of it; its head counts no further.
_STATE_BYTES_MAX = (1 << 32) - 1
# Numbers of origins' logs are in the upper half; those that the meta group gives begin at the bottom.
_UPPER_HALF = 1 << 31
_TERM = Term(1)
# A node that lost its record looks so far for logs of its own.
_INCARNATIONS_MAX = 4_096


def number_of(stream: int, origin: Origin) -> int:
    """The shard number of an origin's log."""
    name = f"{stream}/{origin.node}/{origin.incarnation}".encode()
    return _UPPER_HALF | crc32c(name) & (_UPPER_HALF - 1)


def is_home_of_origins(disk: Disk, path: str) -> bool:
    """Whether this is the directory of a leaderless stream, whose logs have directories of their own."""
    return disk.exists(f"{path}/{_RECORD}")


def read_origins(disk: Disk, path: str) -> tuple[int, bool, list[Origin]] | None:
    """From the directory of a stream: the node's incarnation, whether it was stopped in good order, and whose
    logs it holds. FileDamaged where the record is."""
    data = files.read_record(disk, f"{path}/{_RECORD}", _RECORD_TAG)
    if data is None:
        return None
    incarnation, is_clean, rows = json.loads(data)
    return incarnation, is_clean, [Origin(node, number) for node, number in rows]


def read_groups_state(disk: Disk, path: str) -> bytes | None:
    """The saved state of the same directory; None where there is none."""
    return files.read_record(disk, f"{path}/{_STATE}", _STATE_TAG, _STATE_BYTES_MAX) or None


class _Watched:
    """Who waits for the next message of a log."""

    def __init__(self) -> None:
        # A dict for its order: a set's would not be the same in every run.
        self.watchers: dict[asyncio.Event, None] = {}


class OriginLog:
    """What readers ask of a shard and its group, for one origin's log."""

    edge = ""

    def __init__(self, number: int, origin: Origin, stream: Stream, replica_log: ReplicaLog) -> None:
        self.number = number
        self.origin = origin
        self.stream = stream
        self.replica_log = replica_log
        self.start_offset = 0
        self.next_offset = int(replica_log.log.next_offset)
        self.applied = int(replica_log.log.last_index)
        self.intake = Intake(number, False)
        self.intake.is_sealed = True
        self._tail = Tail()
        self.consumers = _Watched()

    @property
    def group(self) -> "OriginLog":
        """Readers reach the log of a shard through its group."""
        return self

    @property
    def first_offset(self) -> int:
        """The earliest that may be read."""
        return max(self.start_offset, int(self.replica_log.log.first_offset))

    def keep(self, block: Block) -> None:
        """This block is stored, and may be read."""
        self.applied = block.header.index
        self.next_offset = block.header.next_offset
        self._tail.keep(block)
        for watcher in self.consumers.watchers:
            watcher.set()

    def begin_again(self, end: Position) -> None:
        """What was there is not the log any more, and nothing is behind `end`."""
        self._tail = Tail()
        self.next_offset = end.offset
        self.applied = end.entry

    def recent(self, offset: int) -> list[Block] | None:
        """Blocks from the one that holds `offset`, if it is among those in memory."""
        return self._tail.since(offset)


class OriginFiles:
    """Implements `OriginLogs`."""

    def __init__(self, number: int, stream: Stream, replicas: "Replicas") -> None:
        self.number = number
        self.stream = stream
        self._replicas = replicas
        self._path = replicas.directory.shard_path(number)
        self.logs: dict[Origin, OriginLog] = {}
        self.is_durable = stream.spec.storage == "disk"
        self._is_record_due = False
        # Logs of which a read found damage, and the entry from which on.
        self._unreadable: dict[Origin, int] = {}
        try:
            record = self._read_record()
        except FileDamaged as error:
            record = self._last_incarnation(error), False, []
        incarnation, is_clean, known = record if record is not None else (0, False, [])
        self._incarnation = incarnation
        self.origin = Origin(replicas.replica, incarnation)
        try:
            self._start(known, is_clean)
        except DiskFull:
            self.let_go()
            raise

    def _start(self, known: list[Origin], is_clean: bool) -> None:
        if self.is_durable:
            for origin in known:
                self._open(origin)
        else:
            for origin in known:
                self._replicas.directory.remove_shard(number_of(self.number, origin))
            self._write_state(b"")
        if not self._is_whole(is_clean):
            self.raise_incarnation()
        self.write_record(is_clean=False)
        # Only now: after a crash in between nothing would tell that the own log was longer.
        for one in self.logs.values():
            _mend(one)

    # -------------------------------------------------------------------------------------- records

    def _read_record(self) -> tuple[int, bool, list[Origin]] | None:
        return read_origins(self._replicas.disk, self._path)

    def _last_incarnation(self, error: FileDamaged) -> int:
        """Of logs that are on this disk, though nothing tells which there are: others have them all."""
        self._fetch_again(error)
        shards = set(self._replicas.directory.shards())
        own = (Origin(self._replicas.replica, incarnation) for incarnation in range(1, _INCARNATIONS_MAX))
        found = [origin.incarnation for origin in own if number_of(self.number, origin) in shards]
        return max(found, default=0)

    def _fetch_again(self, error: FileDamaged) -> None:
        if not self._replicas.has_peers:
            raise error
        log.error("%s; everything is fetched again from other nodes", error)

    def begin_with_nothing(self, error: FileDamaged) -> None:
        """The state cannot be read, and logs may begin behind what it told of: others have all of it."""
        self._fetch_again(error)
        gone, self.logs = self.logs, {}
        # First: logs without a state would be taken for all there is.
        self.raise_incarnation()
        for one in gone.values():
            one.replica_log.close()
            self._replicas.directory.remove_shard(one.number)
        self._write_state(b"")

    def write_record(self, *, is_clean: bool, incarnation: int | None = None) -> None:
        number = self._incarnation if incarnation is None else incarnation
        payload = json.dumps([number, is_clean, sorted(self.logs)]).encode()
        files.write_record(self._replicas.disk, f"{self._path}/{_RECORD}", _RECORD_TAG, payload)
        self._is_record_due = False

    def read_state(self) -> bytes | None:
        return read_groups_state(self._replicas.disk, self._path)

    def _write_state(self, state: bytes) -> None:
        path = f"{self._path}/{_STATE}"
        files.write_record(self._replicas.disk, path, _STATE_TAG, state, _STATE_BYTES_MAX)

    def save_state(self, state: bytes) -> None:
        """*blocking* What the next start begins from."""
        if self.is_durable:
            self._write_state(state)

    def _is_whole(self, is_clean: bool) -> bool:
        """Whether the own log provably holds whatever of it anybody was ever told of. Entries leave a node
        only after their sync, so a log without damage does; where nothing is synced, only a stop in good
        order proves it [rule 25]."""
        own = self.logs.get(self.origin)
        if own is None or not self.is_durable:
            return False
        if own.replica_log.log.damages or own.replica_log.lost_end() is not None:
            return False
        return is_clean or self._replicas.is_synced

    def raise_incarnation(self) -> None:
        """From now on this node writes another log. Numbers of logs known here are not used twice."""
        taken = {one.number for one in self.logs.values()}
        incarnation = self._incarnation + 1
        while number_of(self.number, Origin(self._replicas.replica, incarnation)) in taken:
            incarnation += 1
        self.write_record(is_clean=False, incarnation=incarnation)
        self._incarnation = incarnation
        self.origin = Origin(self._replicas.replica, incarnation)

    # ----------------------------------------------------------------------------------------- logs

    def _open(self, origin: Origin) -> OriginLog:
        number = number_of(self.number, origin)
        replica_log = self._replicas.open_log(number)
        opened = self.logs[origin] = OriginLog(number, origin, self.stream, replica_log)
        return opened

    def log_of(self, origin: Origin) -> OriginLog:
        """The log of an origin, made if needed: known on disk before anything is in it."""
        found = self.logs.get(origin)
        if found is None:
            # What no record names is a leftover.
            self._replicas.directory.remove_shard(number_of(self.number, origin))
            found = self._open(origin)
            _mend(found)
            self._is_record_due = True
        if self._is_record_due:
            self.write_record(is_clean=False)
        return found

    def let_go(self) -> None:
        """Not opened for want of room."""
        for one in self.logs.values():
            with suppress(DiskFull):
                one.replica_log.close()

    def close(self, *, is_clean: bool) -> None:
        for one in self.logs.values():
            one.replica_log.close()
        try:
            self.write_record(is_clean=is_clean)
        except DiskFull as error:
            log.warning("stream %d: the next start takes this stop for a crash: %s", self.number, error)

    def remove(self) -> None:
        """The stream is gone."""
        for one in self.logs.values():
            self._replicas.remove_log(one.number, one.replica_log)
        self._replicas.directory.remove_shard(self.number)

    def submit(self, persist: PersistLog, state: bytes | None, done: "Callable[[int], None]") -> list[Block]:
        """Write, and where the stream is on disk, sync off the loop and call `done` then. In memory it is
        done when this returns, and nobody is called. Returns the blocks as they stand in the log. `state`
        takes the place of what a new beginning leaves out. After DiskFull, call it again."""
        replica_log = self.log_of(persist.origin).replica_log
        if state is not None:
            # First: a log that begins later is nothing without it.
            self.save_state(state)
        if persist.begin is not None:
            # Its files go in their turn: the thread may have them. From now on nobody reads them.
            replica_log.start_at(Index(persist.begin.entry + 1), _TERM, Offset(persist.begin.offset))
            one = self.logs[persist.origin]
            one.start_offset = max(one.start_offset, persist.begin.offset)
            one.begin_again(persist.begin)
        stamped = []
        for place, each in enumerate(persist.entries):
            entry = Entry(term=_TERM, index=Index(persist.first_index + place), kind=each.kind, payload=b"")
            stamped.append(replica_log.stamp(entry, block_of(each)))
        write = Persist(number=persist.number)
        if self.is_durable:
            self._replicas.syncer.submit(Job(replica_log, write, stamped, done))
        else:
            try:
                replica_log.write(write, stamped)
            except DiskFull:
                if stamped:
                    replica_log.rewind(Index(persist.first_index), stamped[0])
                raise
        return stamped

    def tidy(self, one: OriginLog) -> None:
        """Let the files go that the log was told to let go: also of one that nobody writes to any more."""
        if self.is_durable:
            self._replicas.syncer.submit(Job(one.replica_log, Persist(number=0), [], _ignore))
        else:
            with suppress(DiskFull):  # with the next write, then
                one.replica_log.write(Persist(number=0), [])

    # ------------------------------------------------------------------------------------ OriginLogs

    def extents(self) -> Mapping[Origin, tuple[Position, Position]]:
        return {
            origin: (self.begin(origin), Position(int(one.replica_log.log.last_index), one.next_offset))
            for origin, one in self.logs.items()
        }

    def begin(self, origin: Origin) -> Position:
        one = self.logs.get(origin)
        if one is None:
            return NOWHERE
        return Position(int(one.replica_log.log.first_index) - 1, int(one.replica_log.log.first_offset))

    def entries(
        self, origin: Origin, first: int, last: int, bytes_max: int
    ) -> tuple[int, Sequence[LogEntry]]:
        one = self.logs.get(origin)
        if one is None or first <= self.begin(origin).entry or first > one.replica_log.log.last_index:
            return 0, ()
        last = min(last, int(one.replica_log.log.last_index))
        try:
            blocks = one.replica_log.blocks(Index(first), Index(last), bytes_max)
        except RangeDamaged as error:
            if origin not in self._unreadable:
                log.error("the log of %s: %s; the next start fetches it again", origin, error)
            self.note_unreadable(origin, error)
            return 0, ()
        return blocks[0].header.base_offset if blocks else 0, [entry_of(block) for block in blocks]

    def note_unreadable(self, origin: Origin, error: RangeDamaged) -> None:
        self._unreadable.setdefault(origin, error.damage.first_index)

    def mend(self) -> bool:
        """Cut logs before what a read found damaged; whether there are any."""
        unreadable, self._unreadable = self._unreadable, {}
        if self.origin in unreadable:
            # First, as above.
            self.raise_incarnation()
        for origin, first in unreadable.items():
            _cut(self.logs[origin], first)
        return bool(unreadable)


def _mend(one: OriginLog) -> None:
    if one.replica_log.log.damages:
        _cut(one, one.replica_log.log.damages[0].first_index)


def _cut(one: OriginLog, first: int) -> None:
    """Before what is damaged: others have it, and are asked for it."""
    log.error("the log of %s: entries from %d on are fetched again", one.origin, first)
    stored = one.replica_log.log
    one.replica_log.cut(Index(first))
    one.begin_again(Position(int(stored.last_index), int(stored.next_offset)))


def _ignore(number: int) -> None:
    """Nobody waits for it."""


def block_of(entry: LogEntry) -> Block:
    """What an entry is on disk, before it has its place there."""
    if entry.kind is EntryKind.DATA:
        return parse_block(entry.payload)
    return opaque_block(Kind.CONTROL, entry.payload)


def entry_of(block: Block) -> LogEntry:
    header = block.header
    if header.kind is not Kind.DATA:
        return LogEntry(kind=EntryKind.CONTROL, count=0, payload=block.payload())
    bare = block.timed(header.base_time_us)
    return LogEntry(kind=EntryKind.DATA, count=header.count, payload=bare.to_bytes())
