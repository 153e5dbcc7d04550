"""The log of one shard: append, sync, read, find, truncate, trim, repair.

A log is a row of segments. Blocks are appended to the last one; `append` only writes, `sync` makes everything
written so far durable, so one sync serves many appends. A segment that has grown past its bound is synced and
sealed, and the next one begins.

The calls are synchronous and meant for a worker thread. One thread at a time may use a log, except that the
reading calls may run beside `append` and `sync`.

What goes wrong, and what it means:

- `DiskFull`: the append did not happen; the log is as before, reads go on, later appends may work.
- `FsyncFailed`, or any other error while writing: what is on disk is not known any more. The log refuses
  every further call with `LogFailed`; only a restart may read it again.
- `RangeDamaged`: these blocks were written once and cannot be read. Everything else is served. `damages` says
  what is missing, `replace_range` puts back what peers have.
- `Trimmed`: retention has removed it; the error names the earliest that is left.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from millrace.errors import LocalError, StorageError
from millrace.storage.block import Block, Header, attach_body, check_body
from millrace.storage.disk import Disk, DiskFull
from millrace.storage.front import expect_leftovers, put_in_front
from millrace.storage.index import SegmentIndex
from millrace.storage.records import MARK_BYTES, Tail, tail_after, tail_before
from millrace.storage.recover import IndexLost, Report, recover
from millrace.storage.repair import RepairRefused, rebuild
from millrace.storage.scan import Damage, RangeDamaged
from millrace.storage.segment import Home, Segment, Unreadable
from millrace.types import Index, Offset, Term

SEGMENT_BYTES = 64 << 20
CHECKPOINT_EVERY_BYTES = 4 << 20
FILL_FROM_BYTES = 64 << 10
READ_BYTES = 4 << 20


class LogFailed(StorageError):
    """An earlier error left the disk in a state that is not known; nothing more is done."""


class Trimmed(StorageError):
    """Asked for what retention has removed; `first_index` and `first_offset` are the earliest left."""

    def __init__(self, directory: str, first_index: Index, first_offset: Offset) -> None:
        super().__init__(f"{directory}: removed by retention; the earliest is offset {first_offset}")
        self.first_index = first_index
        self.first_offset = first_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Sizes at which a log acts; the defaults serve, tests take small ones."""

    segment_bytes: int = SEGMENT_BYTES
    """A segment that has reached this gets no further append."""
    fill_bytes: int = 0
    """Zeros written ahead of what is appended, so that most syncs need not change the length of the file."""
    fill_from_bytes: int = FILL_FROM_BYTES
    """A segment with less in it is not worth that: most logs of a node are small."""
    checkpoint_every_bytes: int = CHECKPOINT_EVERY_BYTES
    """How much of the last segment a restart after a crash may have to read."""


DEFAULT_SETTINGS = LogSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment as retention sees it."""

    first_index: Index
    last_index: Index
    first_offset: Offset
    next_offset: Offset
    size_bytes: int
    first_time_us: int
    last_time_us: int


def _has_index(index: int, header: Header) -> bool:
    return header.index == index


def _first_index(segment: Segment) -> int:
    return segment.first_index


def _floor_offset(segment: Segment) -> int:
    return segment.floor_offset


class Log:
    """See the module."""

    __slots__ = (
        "_failure",
        "_home",
        "_recovery_reports",
        "_segments",
        "_settings",
        "ends_segment",
        "segment_share",
    )

    def __init__(
        self, home: Home, segments: list[Segment], reports: Sequence[Report], settings: LogSettings
    ) -> None:
        self._home = home
        self._segments = segments
        self._recovery_reports = tuple(reports)
        self._settings = settings
        self._failure: StorageError | None = None
        self.ends_segment = False
        """Set by anybody: the next append begins a segment, however small the last one is."""
        self.segment_share = settings.segment_bytes
        """Set by anybody: a segment ends here already, where little is kept of the log."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        shard: int,
        salt: int,
        settings: LogSettings = DEFAULT_SETTINGS,
    ) -> "Log":
        """Recover the log in `directory` (which must exist) or begin a new one. A torn tail is cut, damage is
        noted; `reports` tells both."""
        home = Home(disk=disk, directory=directory, shard=shard, salt=salt)
        recovered = recover(home)
        return cls(home, recovered.segments, recovered.reports, settings)

    # ------------------------------------------------------------------------------ what there is

    @property
    def first_index(self) -> Index:
        """Of the first block here; last_index + 1 for an empty log."""
        return Index(self._segments[0].first_index)

    @property
    def tail(self) -> Tail:
        """How the log ends, in one piece: whoever writes moves it on at any time."""
        return self._segments[-1].tail

    @property
    def last_index(self) -> Index:
        return Index(self._segments[-1].tail.next_index - 1)

    @property
    def last_term(self) -> Term:
        return Term(self._segments[-1].tail.last_term)

    @property
    def first_offset(self) -> Offset:
        return Offset(self._segments[0].floor_offset)

    @property
    def next_offset(self) -> Offset:
        return Offset(self._segments[-1].tail.next_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    def bytes_behind(self, index: int) -> int:
        """How much of the log follows this entry; of the segment that holds it, about."""
        total = 0
        for segment in self._segments:
            end = segment.tail.next_index
            count, behind = end - segment.first_index, end - 1 - index
            if count and behind > 0:
                total += segment.size * min(behind, count) // count
        return total

    @property
    def damages(self) -> tuple[Damage, ...]:
        """Blocks that are missing, as far as known: found at the start or by a read."""
        return tuple(damage for segment in self._segments for damage in segment.damages if damage.is_loss)

    @property
    def reports(self) -> tuple[Report, ...]:
        """What was found, at the start and since: torn tail, damage, lost index files."""
        found: list[Report] = []
        for segment in self._segments:
            found += (damage for damage in segment.damages if damage not in self._recovery_reports)
            if segment.is_index_lost:
                found.append(IndexLost(file=segment.index_path))
        return self._recovery_reports + tuple(found)

    def segments(self) -> list[SegmentInfo]:
        return [
            SegmentInfo(
                first_index=Index(segment.first_index),
                last_index=Index(segment.tail.next_index - 1),
                first_offset=Offset(segment.floor_offset),
                next_offset=Offset(segment.tail.next_offset),
                size_bytes=segment.size,
                first_time_us=segment.times_us()[0],
                last_time_us=segment.times_us()[1],
            )
            for segment in self._segments
        ]

    def term_at(self, index: Index) -> Term:
        """From memory, for first_index - 1 to last_index. Trimmed below, RangeDamaged in damage that the
        opening found."""
        self._check()
        segments = self._segments
        if index == segments[0].first_index - 1:
            return Term(segments[0].start.last_term)
        segment = self._segment_of(index)
        damage = segment.damage_at(index)
        if damage is not None and not segment.has_all_terms:
            raise RangeDamaged(damage)
        starts, terms = segment.term_runs()
        return Term(terms[bisect_right(starts, index) - 1])

    # --------------------------------------------------------------------------------------- write

    def append(self, blocks: Sequence[Block]) -> None:
        """Write stamped blocks that follow the last one; durable after `sync`. All or none."""
        self._check()
        if not blocks:
            return
        tail = self._segments[-1].tail
        for block in blocks:
            header = block.header
            check_body(header, block.body)
            if header.shard != self._home.shard or not tail.is_followed_by(header):
                raise LocalError(f"{self._home.directory}: block {header.index} does not follow {tail}")
            tail = tail_after(header)
        try:
            active = self._segments[-1]
            segment_bytes = min(self._settings.segment_bytes, self.segment_share)
            is_large = active.size >= segment_bytes or self.ends_segment
            if (is_large and active.size > MARK_BYTES) or not active.is_whole:
                active = self._roll()
                self.ends_segment = False
            is_filled = active.size >= self._settings.fill_from_bytes
            active.append(blocks, self._settings.fill_bytes if is_filled else 0)
        except StorageError as error:
            raise self._failed(error) from error.__cause__

    def end_segment(self) -> None:
        """Begin a segment, though nothing is appended, so that all that came before may be trimmed."""
        self._check()
        with self._writing():
            if self._segments[-1].size > MARK_BYTES:
                self._roll()

    def sync(self) -> Index:
        """Make everything appended durable; return the last index that is."""
        self._check()
        try:
            active = self._segments[-1]
            active.sync()
            if active.size - active.covered_bytes >= self._settings.checkpoint_every_bytes:
                active.checkpoint()
        except StorageError as error:
            raise self._failed(error) from error.__cause__
        return self.last_index

    def checkpoint(self) -> None:
        """Bring the index of the last segment up to date, so that a restart reads nothing; for quiet times.
        From then on damage in its last group commit is told from a torn tail as well."""
        self._check()
        with self._writing():
            self._segments[-1].sync()
            self._segments[-1].checkpoint()

    def truncate_from(self, index: Index, *, is_noted: bool = False) -> None:
        """Drop this block and all after it; durable when this returns. Nothing to do above last_index.
        RangeDamaged if an earlier block of its segment is damaged: begin with that one, repair before, or
        note elsewhere that it is lost (`is_noted`)."""
        self._check()
        if index > self.last_index:
            return
        segment = self._segment_of(index)
        tail, position = self._end_before(segment, index, is_noted)
        with self._writing():
            self._drop_behind(segment)
            segment.cut(tail, position)
            segment.checkpoint()

    def reset(self, *, next_index: Index, last_term: Term, next_offset: Offset) -> None:
        """Drop everything and begin at `next_index`, as a snapshot asks that covers all before it; durable
        when this returns. After a crash the log is the old one, perhaps cut short, or the new one."""
        self._check()
        tail = Tail(next_index=next_index, last_term=last_term, next_offset=next_offset)
        with self._writing():
            Segment.prepare(self._home, tail, is_start=True)
            expect_leftovers(self._home)
            old = self._segments
            # Above the new beginning a leftover would look like a part of the log, below it does not.
            for segment in reversed(old):
                if segment.first_index > next_index:
                    segment.remove()
                elif segment.first_index == next_index:
                    segment.release()
                    segment.discard_index()
            self._segments = [Segment.put_in_place(self._home, tail, is_start=True)]
            for segment in old:
                if segment.first_index < next_index:
                    segment.remove()

    def trim(self, index: Index) -> Index:
        """Remove whole segments in which no block is above `index`, never the last; return first_index."""
        self._check()
        with self._writing():
            while len(self._segments) > 1 and self._segments[0].tail.next_index - 1 <= index:
                oldest = self._segments[0]
                # Readers go by the list; each removal is durable before the next, so that no gap can appear.
                self._segments = self._segments[1:]
                oldest.remove()
        return self.first_index

    def replace_range(self, blocks: Sequence[Block]) -> None:
        """Put blocks from a peer in place of damaged ones; durable when this returns. They must be of one
        segment and cover all its damage. RepairRefused or DiskFull: nothing was changed."""
        self._check()
        if not blocks:
            return
        self._prove(blocks)
        with self._writing():
            if not self._segments[-1].is_whole:
                self._roll()
            segment = self._segment_of(Index(blocks[0].header.index))
            if blocks[-1].header.index >= segment.tail.next_index:
                raise RepairRefused(f"{segment.path}: the blocks reach into the next segment")
            if segment.is_whole:
                raise RepairRefused(f"{segment.path}: nothing is damaged here")
            rebuilt = rebuild(segment, blocks)
            self._segments = [rebuilt if old is segment else old for old in self._segments]

    def prepend(self, blocks: Sequence[Block]) -> None:
        """Put older blocks from a peer in front, as one segment; durable when this returns. They must follow
        each other, and the first block here the last of them. RepairRefused or DiskFull: nothing was
        changed."""
        self._check()
        if not blocks:
            return
        self._prove(blocks)
        with self._writing():
            # Readers go by the list.
            self._segments = [put_in_front(self._segments[0], blocks), *self._segments]

    def _prove(self, blocks: Sequence[Block]) -> None:
        """That each is what a peer says it is, and of this log."""
        for block in blocks:
            attach_body(block.header, block.body)
            if block.header.shard != self._home.shard:
                raise RepairRefused(f"{self._home.directory}: block {block.header.index} is of another shard")

    def close(self) -> None:
        """Sync, bring the index up to date and let go of the file. A failed log is only let go."""
        try:
            if self._failure is None:
                self.checkpoint()
                with self._writing():
                    self._segments[-1].end_fill()
        finally:
            self._segments[-1].release()
            self._failure = self._failure or LogFailed(f"{self._home.directory}: the log is closed")

    # ---------------------------------------------------------------------------------------- read

    def read(self, first: Index, last: Index, bytes_max: int = READ_BYTES) -> list[Block]:
        """Blocks first..last in order, cut once they pass bytes_max, before damage, or at the end of a
        segment; at least one. Every block is proved. RangeDamaged if `first` itself is damaged."""
        self._check()
        for _ in range(2):
            # Each time: a repair may have put another one in its place.
            segment = self._segment_of(first)
            damage = segment.damage_at(first)
            if damage is not None:
                raise RangeDamaged(damage)
            try:
                return segment.read(first, min(last, segment.tail.next_index - 1), bytes_max)
            except Unreadable:
                segment.examine()
        raise StorageError(f"{segment.path}: block {first} cannot be read")

    def examine(self) -> None:
        """Read everything, whatever the indexes say. `damages` knows all damage from then on."""
        self._check()
        for segment in self._segments:
            segment.examine()

    def find_offset(self, offset: Offset) -> Index:
        """The index of the block that holds `offset`; last_index + 1 for the next offset to come."""
        self._check()
        if offset < self.first_offset:
            raise Trimmed(self._home.directory, self.first_index, self.first_offset)
        tail = self.tail
        if offset > tail.next_offset:
            raise LocalError(f"{self._home.directory}: offset {offset} is beyond {tail.next_offset}")
        if offset == tail.next_offset:
            return Index(tail.next_index)
        segments = self._segments
        segment = segments[bisect_right(segments, int(offset), key=_floor_offset) - 1]
        header = self._locate(
            segment,
            lambda index: index.before_offset(offset),
            lambda header: header.next_offset > offset,
        )
        if header is not None and header.base_offset <= offset:
            return Index(header.index)
        end = segment.tail.next_index if header is None else header.index
        damage = segment.damage_at(end - 1)
        if damage is None:
            raise StorageError(f"{segment.path}: offset {offset} cannot be found")
        raise RangeDamaged(damage)

    def skip_to(self, index: Index, keys: Collection[int]) -> Index:
        """The first index from `index` on whose segment may hold a topic with one of these keys (see
        `summary.filter_keys`); last_index + 1 if there is none."""
        self._check()
        segments = self._segments
        at = bisect_right(segments, int(index), key=_first_index)
        for segment in segments[max(at - 1, 0) :]:
            if segment.may_hold(keys):
                return Index(max(index, segment.first_index))
        return Index(self.last_index + 1)

    @property
    def has_failed(self) -> bool:
        """Whether an error left the disk in a state that is not known. One that was merely closed has not."""
        return self._failure is not None and not isinstance(self._failure, LogFailed)

    # ------------------------------------------------------------------------------------- helpers

    def _check(self) -> None:
        if self._failure is not None:
            raise LogFailed(f"{self._home.directory}: stopped after: {self._failure}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """After any error but those that leave everything as it was, nothing is known about the disk."""
        try:
            yield
        except StorageError as error:
            raise self._failed(error) from error.__cause__

    def _failed(self, error: StorageError) -> StorageError:
        """Note it, to be raised."""
        if not isinstance(error, (DiskFull, RepairRefused)):
            self._failure = error
        return error

    def _roll(self) -> Segment:
        """Seal the active segment and begin the next. DiskFull: as before."""
        active = self._segments[-1]
        active.sync()
        active.end_fill()
        active.checkpoint()
        fresh = Segment.create(self._home, active.tail)
        self._segments = [*self._segments, fresh]
        active.seal()
        return fresh

    def _drop_behind(self, segment: Segment) -> None:
        """Remove the segments behind this one, the last first, so that no gap can appear."""
        while self._segments[-1] is not segment:
            last = self._segments[-1]
            self._segments = self._segments[:-1]
            last.remove()

    def _segment_of(self, index: Index) -> Segment:
        segments = self._segments
        if index < segments[0].first_index:
            raise Trimmed(self._home.directory, self.first_index, self.first_offset)
        if index >= segments[-1].tail.next_index:
            raise LocalError(f"{self._home.directory}: index {index} is beyond {self.last_index}")
        return segments[bisect_right(segments, int(index), key=_first_index) - 1]

    def _end_before(self, segment: Segment, index: Index, is_noted: bool) -> tuple[Tail, int]:
        """How the log ends, and where, if the block of `index` and all behind it go."""
        if index == segment.first_index and segment.start.is_known:
            return segment.start, MARK_BYTES
        for _ in range(2):
            damage = segment.damage_at(index)
            # What is cut off may be all that proves damage before it to be no torn tail.
            for earlier in () if is_noted else segment.damages:
                if earlier.is_loss and earlier.first_index < index:
                    raise RangeDamaged(earlier)
            # A damaged block does not say what it follows; the one before it does.
            wanted = int(index) if damage is None else index - 1
            found = None
            with suppress(Unreadable):
                found = segment.locate(segment.index().before(wanted), partial(_has_index, wanted))
            if found is not None:
                position, header = found
                return (
                    (tail_before(header), position)
                    if damage is None
                    else (tail_after(header), damage.position)
                )
            segment.examine()
        raise StorageError(f"{segment.path}: block {wanted} cannot be read")

    def _locate(
        self,
        segment: Segment,
        start: Callable[[SegmentIndex], tuple[int, Tail] | None],
        is_wanted: Callable[[Header], bool],
    ) -> Header | None:
        """The first block that is wanted; if the way there is damaged, look at the segment and try again."""
        for _ in range(2):
            try:
                found = segment.locate(start(segment.index()), is_wanted)
            except Unreadable:
                segment.examine()
            else:
                return None if found is None else found[1]
        raise StorageError(f"{segment.path}: cannot be read")
