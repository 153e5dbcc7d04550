"""One replica's disk: the log that is the message log too, hard state and snapshots, seen as a `LogView`.

Entries of the replication protocol are blocks on disk. What a proposer hands in is a block whose head says
only what it holds and when; term, index and offset are stamped when it is put into the log. Offsets need not
travel: equal logs give equal offsets.

Calls marked *worker* touch the disk and run in the syncer's thread (or in place, see `syncer`), one that is
marked *blocking* on the loop; the rest answers from memory or from the page cache.
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from millrace.errors import StorageError
from millrace.replication.contract import (
    Config,
    ConfigAt,
    Damage,
    Entry,
    EntryKind,
    HardState,
    InitialState,
    Persist,
    ReplicaId,
    Snapshot,
)
from millrace.storage import files
from millrace.storage.block import Block, Kind, opaque_block, parse_block
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import Disk, DiskFull
from millrace.storage.log import DEFAULT_SETTINGS, Log, LogSettings
from millrace.storage.repair import RepairRefused
from millrace.storage.scan import RangeDamaged
from millrace.storage.snapshot import (
    SnapshotDamaged,
    SnapshotFile,
    SnapshotInfo,
    SnapshotStore,
    SnapshotWriter,
)
from millrace.storage.synced_end import LogEnd, SyncedEnd
from millrace.types import Index, Offset, Term

log = logging.getLogger("millrace.log")

_HARD_STATE = "state"
_FOUNDERS = "founders"
_FOUNDERS_TAG = b"MRFO"
_DAMAGE = "damage"
_DAMAGE_TAG = b"MRDA"
_SYNCED = "synced"
_WRAPPED = (EntryKind.DATA, EntryKind.CONTROL)


class TakenSnapshot:
    """A snapshot of the own state whose bytes are written, and that is not on disk yet."""

    __slots__ = ("config", "info", "term", "writer")

    def __init__(self, writer: SnapshotWriter, term: Term, config: Config) -> None:
        self.writer, self.term, self.config = writer, term, config
        self.info: SnapshotInfo | None = None
        """Once it is."""


class ReplicaLog:
    """Implements `LogView`. Open one per group; one writer at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: DataDirectory,
        group: int,
        founders: tuple[ReplicaId, ...],
        *,
        has_peers: bool,
        settings: LogSettings = DEFAULT_SETTINGS,
    ) -> None:
        """`founders` are the voters of a group that begins here now; an older one remembers its own."""
        self.group = group
        self._has_peers = has_peers
        self._disk = disk
        self._path = directory.shard_path(group)
        files.remove_leftovers(disk, self._path)
        self._founders = self._read_founders(founders)
        self.log = Log.open(disk, self._path, shard=group, salt=directory.salt, settings=settings)
        for report in self.log.reports:
            log.warning("group %d: %s", group, report)
        self._snapshots = SnapshotStore(disk, self._path, shard=group)
        self._snapshot: SnapshotFile | None = None
        self.is_snapshot_damaged = False
        """A read found it so: another one is to be taken in its place."""
        try:
            self._hard_state = files.read_hard_state(disk, f"{self._path}/{_HARD_STATE}")
            self._synced = SyncedEnd(disk, f"{self._path}/{_SYNCED}")
        except StorageError:
            # The log is all that is open yet.
            with suppress(StorageError):
                self.log.close()
            raise
        try:
            self._open_snapshot()
        except StorageError:
            self.let_go()
            raise
        # What the next stamped block follows; runs ahead of the log by what is handed out and not written.
        self._next_offset = int(self.log.next_offset)
        self._last_term = int(self.log.last_term)
        self._last_time_us = 0
        self._start: tuple[Index, Term, Offset] | None = None
        self.trim_to = Index(0)
        """Whole segments up to this entry go with the next write; a snapshot covers it."""
        self.rolls_now = False
        """The segment that is being written ends with the next write, also where nothing is appended."""
        self.taken: TakenSnapshot | None = None
        """The next write syncs it and gives it its name."""
        self.repairs: list[Block] = []
        """Blocks of other replicas that the next write puts in the place of damaged ones of one segment."""
        self.front: list[Block] = []
        """Blocks of other replicas that the next write puts in front of the log."""
        self.is_filling = False
        """They are being fetched (`backfill`): those without messages are on the way to others with some."""
        self.applied: Callable[[], Index] = self._covered
        """Up to here others have what turns out to be damaged, and it is had again from them (`repair`)."""
        # An incoming snapshot, and the offset after it, which stands in its first line.
        self._staged: SnapshotWriter | None = None
        self._staged_head = b""
        self._staged_offset = 0

    # ------------------------------------------------------------------------------------ LogView

    def first_index(self) -> Index:
        return self.log.first_index

    def last_index(self) -> Index:
        return self.log.last_index

    def term(self, index: Index) -> Term | None:
        snapshot = self._snapshot
        if snapshot is not None and snapshot.info.index == index:
            return snapshot.info.term
        tail = self.log.tail
        if not self.log.first_index - 1 <= index < tail.next_index:
            return None
        if index == tail.next_index - 1:
            # Known also where that block is damaged.
            return Term(tail.last_term)
        try:
            return self.log.term_at(index)
        except RangeDamaged:
            if index > self._covered():
                raise
            return None

    def entries(self, first: Index, last: Index, bytes_max: int) -> Sequence[Entry]:
        if first < self.log.first_index:
            return ()
        try:
            return [_entry(block) for block in self.log.read(first, last, bytes_max)]
        except RangeDamaged:
            if first > self.applied():
                raise
            # Had again from others meanwhile; a leader asks again.
            return ()

    def _covered(self) -> Index:
        return Index(0) if self._snapshot is None else self._snapshot.info.index

    def snapshot(self) -> Snapshot | None:
        if self._snapshot is None:
            return None
        info = self._snapshot.info
        return Snapshot(
            index=info.index,
            term=info.term,
            config=Config.decode(info.config),
            size_bytes=info.size_bytes,
            checksum=info.checksum,
        )

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        if self._snapshot is None or self._snapshot.info.index != snapshot.index:
            return b""
        try:
            return self._snapshot.read(position, bytes_max)
        except SnapshotDamaged as error:
            if not self.is_snapshot_damaged:
                log.error("group %d: %s; another one is taken", self.group, error)
            self.is_snapshot_damaged = True
            return b""

    # -------------------------------------------------------------------------------------- start

    def _open_snapshot(self) -> None:
        self._snapshot, damaged = self._snapshots.newest()
        for error in damaged:
            log.error("group %d: %s", self.group, error)
        if damaged:
            self._do_without(damaged[0])
        self._finish_install()

    def _do_without(self, error: SnapshotDamaged) -> None:
        """The newest snapshot cannot be read. Where the log reaches back to before it, what it held is
        applied again. Otherwise this replica has lost all that it had, and begins with nothing."""
        index = self._snapshots.indexes()[-1]
        if self.log.first_index <= self._covered() + 1 and index <= self.log.last_index:
            return
        if not self._has_peers:
            raise SnapshotDamaged(
                f"{error}; no other node has what it held: restore the file from a backup, "
                "or start with an empty directory"
            )
        log.error("group %d: everything is fetched again from other nodes", self.group)
        # First: after a crash in between nothing else would tell what this replica had.
        self._note_damage(int(max(index, self.log.last_index)))
        self._reset(Index(1), Term(0), Offset(0))
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        self._snapshots.drop_below(Index(index + 1))

    def _note_damage(self, last_index: int, last_term: Term | None = None) -> Damage:
        """Until it is `repaired`; what was noted before counts as well."""
        path = f"{self._path}/{_DAMAGE}"
        term = int(self._hard_state.term) if self._hard_state is not None else 0
        known = files.read_record(self._disk, path, _DAMAGE_TAG)
        if known is not None:
            known_index, known_term, *known_last_term = json.loads(known)
            term = max(term, known_term)
            if known_index >= last_index:
                last_index, last_term = known_index, known_last_term[0] if known_last_term else None
        files.write_record(self._disk, path, _DAMAGE_TAG, json.dumps([last_index, term, last_term]).encode())
        return Damage(last_index=Index(last_index), term=Term(term), last_term=last_term)

    def lost_end(self) -> LogEnd | None:
        """The last entry that was on disk, where neither the log nor the snapshot reaches up to it any
        more [rule 34]."""
        end = self._synced.end
        if end is None or end.index <= max(self.log.last_index, self._covered()):
            return None
        return end

    @property
    def hard_state(self) -> files.HardState | None:
        """Term and vote as they were found; None for a new replica."""
        return self._hard_state

    @property
    def synced_end(self) -> LogEnd | None:
        """The last entry that is remembered to be on disk."""
        return self._synced.end

    def _finish_install(self) -> None:
        """A crash may have come between a snapshot from the leader and the log that begins behind it."""
        if self._snapshot is not None and self._snapshot.info.index > self.log.last_index:
            self._begin_behind(self._snapshot)

    def _begin_behind(self, snapshot: SnapshotFile) -> None:
        """Drop the log; what the snapshot covers is in it."""
        head, _, _ = snapshot.read(0, snapshot.info.size_bytes).partition(b"\n")
        info = snapshot.info
        self._reset(Index(info.index + 1), info.term, Offset(json.loads(head)["next_offset"]))

    def _damage(self) -> Damage | None:
        """What this replica may have acknowledged and lost. Where others have it, the log is cut before the
        first bad entry and filled again by them; until then this replica neither votes nor leads. What its
        own snapshot covers it has not lost: that is needed by readers only."""
        covered = 0 if self._snapshot is None else int(self._snapshot.info.index)
        is_lost = any(damage.last_index > covered for damage in self.log.damages)
        is_known = self._disk.exists(f"{self._path}/{_DAMAGE}")
        lost_end = self.lost_end()
        if lost_end is not None:
            self._tell_lost_end(lost_end.index)
        if not is_known and not ((is_lost or lost_end is not None) and self._has_peers):
            return None
        if lost_end is not None:
            noted = self._note_damage(lost_end.index, lost_end.term)
        else:
            noted = self._note_damage(int(self.log.last_index) if is_lost else 0)
        if is_lost:
            first = self.log.damages[0].first_index
            log.error("group %d: entries from %d on are fetched again from other nodes", self.group, first)
            if first <= covered and self._snapshot is not None:
                # A log cannot be cut behind damage: what goes may be all that tells it from a torn tail.
                self._begin_behind(self._snapshot)
            else:
                self._truncate_from(Index(first))
            self._next_offset = int(self.log.next_offset)
            self._last_term = int(self.log.last_term)
        # What is lost is noted as damage, or was told: from here on the log as it is counts.
        self._synced.lower(LogEnd(self.log.last_index, self.log.last_term))
        return noted

    def _tell_lost_end(self, lost_end: Index) -> None:
        cure = "they are fetched again from other nodes" if self._has_peers else "no other node has them"
        log.error(
            "group %d: entries from %d to %d were on disk and are gone; %s",
            *(self.group, max(self.log.last_index, self._covered()) + 1, lost_end, cure),
        )

    def cut(self, index: Index) -> None:
        """Drop this entry and all after it."""
        self._truncate_from(index)
        self._next_offset = int(self.log.next_offset)
        self._last_term = int(self.log.last_term)

    def _truncate_from(self, index: Index) -> None:
        if index <= self.log.last_index:
            # The term is one that the entry before may have: only where the log ends is looked at.
            self._synced.lower(LogEnd(Index(index - 1), self.log.last_term))
        try:
            self.log.truncate_from(index)
        except RangeDamaged as error:
            if not self._has_peers:
                raise
            # What goes may be all that tells the damage from a torn tail: from now on a note does. While the
            # node runs, it is repaired where it is read; the next start has all of it fetched again.
            log.error("group %d: %s; what is behind it is replaced nevertheless", self.group, error)
            self._note_damage(int(index) - 1)
            self.log.truncate_from(index, is_noted=True)

    def _reset(self, next_index: Index, last_term: Term, next_offset: Offset) -> None:
        self._synced.lower(LogEnd(Index(next_index - 1), last_term))
        self.log.reset(next_index=next_index, last_term=last_term, next_offset=next_offset)

    def start_at(self, index: Index, last_term: Term, next_offset: Offset) -> None:
        """The next write drops everything and begins with this entry."""
        self._start = index, last_term, next_offset
        self._next_offset = int(next_offset)
        self._last_term = int(last_term)

    def repaired(self) -> None:
        """Everything that was damaged is here again."""
        self._disk.remove(f"{self._path}/{_DAMAGE}")

    def _read_founders(self, given: tuple[ReplicaId, ...]) -> tuple[ReplicaId, ...]:
        """The first configuration is the same for ever: it is what the log begins from."""
        path = f"{self._path}/{_FOUNDERS}"
        known = files.read_record(self._disk, path, _FOUNDERS_TAG)
        if known is not None:
            return tuple(ReplicaId(name) for name in json.loads(known))
        files.write_record(self._disk, path, _FOUNDERS_TAG, json.dumps(given).encode())
        return given

    def initial_state(self) -> InitialState:
        """What a restart found."""
        hard = self._hard_state
        snapshot = self._snapshot
        config = ConfigAt(index=Index(0), config=Config(voters=self._founders))
        applied = Index(0)
        if snapshot is not None:
            applied = snapshot.info.index
            config = ConfigAt(index=applied, config=Config.decode(snapshot.info.config))
        return InitialState(
            hard_state=HardState(
                term=hard.term if hard else Term(0),
                vote=ReplicaId(hard.vote) if hard and hard.vote is not None else None,
            ),
            config=config,
            commit=applied,
            applied=applied,
            damage=self._damage(),
            lost=self._lost(applied),
        )

    def _lost(self, applied: Index) -> tuple[tuple[Index, Index], ...]:
        """What nobody can give again to a replica without others."""
        if self._has_peers:
            return ()
        damages = [damage for damage in self.log.damages if damage.last_index > applied]
        return tuple((Index(damage.first_index), Index(damage.last_index)) for damage in damages)

    def snapshot_state(self) -> bytes | None:
        """The state machine's bytes in the newest snapshot."""
        return None if self._snapshot is None else b"".join(self._snapshot.chunks())

    # -------------------------------------------------------------------------------------- write

    def stamp(self, entry: Entry, block: Block | None) -> Block:
        """The block that this entry is on disk. `block` is its payload, parsed, where the caller has it."""
        if entry.kind in _WRAPPED:
            bare = block if block is not None else parse_block(entry.payload)
        else:
            bare = opaque_block(Kind(int(entry.kind)), entry.payload)
        # The leader has seen to it that time never goes back; its own entries have none.
        self._last_time_us = bare.header.base_time_us or self._last_time_us
        stamped = bare.stamped(
            shard=self.group,
            term=entry.term,
            index=entry.index,
            previous_term=self._last_term,
            base_offset=self._next_offset,
            base_time_us=self._last_time_us,
        )
        self._next_offset = stamped.header.next_offset
        self._last_term = entry.term
        return stamped

    def rewind(self, index: Index, stamped: Block | None) -> None:
        """Entries from `index` on are about to be dropped: what follows is stamped after the one before.
        `stamped` is the first of them, where it may not be written yet."""
        if stamped is None and index > self.log.last_index:
            return
        try:
            header = (stamped or self.log.read(index, index)[0]).header
        except RangeDamaged:
            # It does not say what it follows; the one before it does.
            before = self.log.read(Index(index - 1), Index(index - 1))[0].header
            self._last_term, self._next_offset = before.term, before.next_offset
            return
        self._last_term = header.previous_term
        self._next_offset = header.base_offset

    def begin_again(self, snapshot: Snapshot) -> None:
        """A snapshot from the leader is about to take the place of the log: what follows comes after it."""
        assert self._staged is not None
        self._last_term = int(snapshot.term)
        self._next_offset = self._staged_offset

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        """Bytes of an incoming snapshot, in order; position 0 starts over."""
        if position == 0:
            if self._staged is not None:
                self._staged.abandon()
            self._staged = self._snapshots.begin(snapshot.index)
            self._staged_head = b""
        assert self._staged is not None and self._staged.size_bytes == position
        with suppress(DiskFull):
            # It is kept in memory; the install writes it and waits until there is room.
            self._staged.write(data)
        if b"\n" not in self._staged_head:
            self._staged_head += data
            head, newline, _ = self._staged_head.partition(b"\n")
            if newline:
                self._staged_offset = int(json.loads(head)["next_offset"])

    def offset_after(self, index: Index) -> int:
        """The next offset to come after this entry."""
        tail = self.log.tail
        if index >= tail.next_index - 1:
            return int(tail.next_offset)
        return self.log.read(Index(index + 1), Index(index + 1))[0].header.base_offset

    def write(self, persist: Persist, blocks: list[Block]) -> None:
        """*worker* Everything of a `Persist` but the final sync; DiskFull leaves the log as it was."""
        if persist.hard_state is not None:
            state = files.HardState(term=persist.hard_state.term, vote=persist.hard_state.vote)
            files.write_hard_state(self._disk, f"{self._path}/{_HARD_STATE}", state)
        if persist.snapshot is not None:
            self._install(persist.snapshot)
        if persist.truncate_from is not None:
            self._truncate_from(persist.truncate_from)
        if self._start is not None:
            self._reset(*self._start)
            self._start = None
        if blocks:
            self.log.append(blocks)
        if self.rolls_now:
            # Without room with the next write: what was appended above must not be given again.
            with suppress(DiskFull):
                self.log.end_segment()
                self.rolls_now = False
        if self.trim_to >= self.log.first_index:
            self.log.trim(self.trim_to)
        if self.repairs:
            self._put_in_place()
        if self.front:
            self._put_in_front()
        if self.taken is not None:
            self._finish_taken()

    def _put_in_place(self) -> None:
        """*worker*"""
        blocks, self.repairs = self.repairs, []
        first, last = blocks[0].header.index, blocks[-1].header.index
        if first < self.log.first_index or last > self.log.last_index:
            return
        try:
            self.log.replace_range(blocks)
        except (RepairRefused, DiskFull) as error:
            # As before; it is tried again, with what is damaged by then.
            log.error("group %d: the damage stays for now: %s", self.group, error)

    def _put_in_front(self) -> None:
        """*worker*"""
        blocks, self.front = self.front, []
        if blocks[-1].header.index != self.log.first_index - 1:
            # Retention or a snapshot moved the beginning meanwhile.
            return
        try:
            self.log.prepend(blocks)
        except (RepairRefused, DiskFull) as error:
            log.error("group %d: older blocks are not put in front for now: %s", self.group, error)
        else:
            # What was to go is gone, and these were not meant.
            self.trim_to = Index(0)

    def _install(self, snapshot: Snapshot) -> None:
        """*worker* The staged snapshot is this replica's now, and its log is empty behind it. After DiskFull
        it is called again, and the snapshot may be complete by then."""
        if self._staged is not None:
            self._staged.finish(term=snapshot.term, config=snapshot.config.encode())
            self._staged = None
        self._reset(Index(snapshot.index + 1), snapshot.term, Offset(self._staged_offset))
        old, self._snapshot = self._snapshot, self._snapshots.open(snapshot.index)
        if old is not None:
            old.close()
        self._snapshots.drop_below(snapshot.index)

    def sync(self) -> None:
        """*worker*"""
        self._synced.note(LogEnd(self.log.sync(), self.log.last_term))

    def take_snapshot(self, index: Index, term: Term, config: Config, state: Iterable[bytes]) -> None:
        """*blocking* Make `state` the newest snapshot; older ones are dropped."""
        writer = self._snapshots.begin(index)
        try:
            for piece in state:
                writer.write(piece)
            writer.finish(term=term, config=config.encode())
        except StorageError:
            writer.abandon()
            raise
        self._adopt(index)

    def begin_snapshot(self, index: Index) -> SnapshotWriter:
        """For a snapshot of the own state; as `taken` it goes to the disk."""
        return self._snapshots.begin(index)

    def open_snapshot(self) -> SnapshotFile:
        """The newest one, for reading whatever becomes of it. Close it when done."""
        assert self._snapshot is not None
        return self._snapshots.open(self._snapshot.info.index)

    def _finish_taken(self) -> None:
        """*worker* On a full disk there is none for now."""
        taken, self.taken = self.taken, None
        assert taken is not None
        try:
            taken.info = taken.writer.finish(term=taken.term, config=taken.config.encode())
        except DiskFull as error:
            log.warning("group %d: no snapshot for now: %s", self.group, error)
            taken.writer.abandon()

    def adopt_taken(self, taken: TakenSnapshot) -> bool:
        """It was given to a write: whether it is the newest snapshot now."""
        known = self._covered() if not self.is_snapshot_damaged else self._covered() - 1
        if taken.info is None or taken.info.index <= known:
            return False
        self._adopt(taken.info.index)
        return True

    def drop_taken(self, taken: TakenSnapshot) -> None:
        """Nobody waits for it any more."""
        if self.taken is taken:
            self.taken = None
            taken.writer.abandon()

    def _adopt(self, index: Index) -> None:
        self.is_snapshot_damaged = False
        old, self._snapshot = self._snapshot, self._snapshots.open(index)
        if old is not None:
            old.close()
        self._snapshots.drop_below(index)

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
        self._synced.close()
        self.log.close()

    def let_go(self) -> None:
        """Close it after an error that is told already."""
        with suppress(StorageError):
            self.close()

    # --------------------------------------------------------------------------------------- read

    def blocks(self, first: Index, last: Index, bytes_max: int) -> list[Block]:
        """Blocks of the log in order, at least one."""
        return self.log.read(first, last, bytes_max)

    def block_at_offset(self, offset: int) -> Index:
        return self.log.find_offset(Offset(offset))


def write_damage(disk: Disk, directory: DataDirectory, group: int, last_index: int, term: int) -> None:
    """Say of a replica that is not open that it lost what it held."""
    path = f"{directory.shard_path(group)}/{_DAMAGE}"
    files.write_record(disk, path, _DAMAGE_TAG, json.dumps([last_index, term]).encode())


def _entry(block: Block) -> Entry:
    header = block.header
    kind = EntryKind(int(header.kind))
    if kind in _WRAPPED:
        payload = block.timed(header.base_time_us).to_bytes()
    else:
        payload = block.payload()
    return Entry(term=Term(header.term), index=Index(header.index), kind=kind, payload=payload)
