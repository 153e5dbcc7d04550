"""One segment of a log: a file of records, its index, and the damage that is known in it.

The last segment of a log is *active*: its file is open for appending and its index is in memory. All others
are sealed: their points are read from the index file when needed. Reads open the file each time, so that a
long log holds no descriptors and no reader meets one that the writer closed.

Bytes are written by `append`, durable after `sync`, and covered by the index file after `checkpoint`. A
segment is synced to its end before the next one is made, so a tail can be torn in the last one only.

The file of the active segment may be longer than what is in it: zeros are written ahead, so that most
syncs need not change the length of the file. They are cut off when the segment is sealed or let
go, and by the next start after a crash.

    <first index>.log   the records
    <first index>.idx   the index; only for a segment in which no damage is known
    <first index>.bad   the last good index of a segment with known damage: it makes the next start scan the
                        segment and gives it places to go on after the damage
"""

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from millrace.storage.block import HEAD_BYTES, Block, Header, Kind
from millrace.storage.disk import Disk, DiskFull, File
from millrace.storage.files import put_in_place, replace_file, write_aside
from millrace.storage.index import IndexFile, SegmentIndex, read_index
from millrace.storage.records import MARK_BYTES, Mark, Tail, tail_after, tail_before
from millrace.storage.reference import carried, referring
from millrace.storage.scan import Damage, Source, scan

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".idx"
SUSPECT_SUFFIX = ".bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a log lives."""

    disk: Disk
    directory: str
    shard: int
    salt: int

    def stem(self, first_index: int) -> str:
        return f"{self.directory}/{first_index:020d}"

    def mark(self, position: int, tail: Tail, *, is_start: bool = False) -> bytes:
        return Mark(
            shard=self.shard, salt=self.salt, position=position, tail=tail, is_start=is_start
        ).to_bytes()


class Unreadable(Exception):
    """Internal to storage: a walk met what is not a record that follows."""


class Segment:
    """See the module. One writer; the methods that read may run beside `append`, `sync` and `checkpoint`."""

    __slots__ = (
        "_carried",
        "_file",
        "_filled_bytes",
        "_index",
        "_index_file",
        "_is_mark_due",
        "covered_bytes",
        "damages",
        "first_index",
        "floor_offset",
        "has_all_terms",
        "home",
        "is_index_lost",
        "is_start",
        "size",
        "start",
        "synced_bytes",
        "tail",
    )

    def __init__(self, home: Home, *, start: Tail, tail: Tail, size: int, is_start: bool = False) -> None:
        self.home = home
        self.first_index = start.next_index
        self.start = start
        self.floor_offset = start.next_offset
        """No block here holds a lower one; known even where `start` is not."""
        self.tail = tail
        self.size = size
        self.is_start = is_start
        self.is_index_lost = False
        """The index file could not be used when it was needed."""
        self.damages: tuple[Damage, ...] = ()
        self.has_all_terms = True
        """The term runs are from before the damage: they tell the terms of damaged blocks as well."""
        self.synced_bytes = size
        self.covered_bytes = 0
        self._is_mark_due = False
        # Length of the file where zeros were written ahead; no more than `size` where they were not.
        self._filled_bytes = 0
        # Checksum and size of a body that a control block carries -> where in the file it stands. Since this
        # start: what was staged before it is written once more.
        self._carried: dict[tuple[int, int], int] = {}
        self._file: File | None = None
        self._index: SegmentIndex | None = None
        self._index_file: IndexFile | None = None

    @classmethod
    def create(cls, home: Home, start: Tail) -> "Segment":
        """A new active segment; on disk, name and head, when this returns. DiskFull leaves nothing."""
        cls.prepare(home, start)
        try:
            return cls.put_in_place(home, start)
        except DiskFull:
            # It has its name and cannot be opened. What is appended to the one before would stand in its way.
            home.disk.remove(home.stem(start.next_index) + LOG_SUFFIX)
            home.disk.sync_directory(home.directory)
            raise

    @classmethod
    def prepare(cls, home: Home, start: Tail, *, is_start: bool = False) -> None:
        """Write the head of a new segment aside: the only step that needs room."""
        path = home.stem(start.next_index) + LOG_SUFFIX
        write_aside(home.disk, path, [home.mark(0, start, is_start=is_start)])

    @classmethod
    def put_in_place(cls, home: Home, start: Tail, *, is_start: bool = False) -> "Segment":
        """Give a prepared segment its name, in place of any other, and make it active. DiskFull: it has its
        name, and there was no descriptor to open it."""
        put_in_place(home.disk, home.stem(start.next_index) + LOG_SUFFIX)
        segment = cls(home, start=start, tail=start, size=MARK_BYTES, is_start=is_start)
        segment.activate(SegmentIndex())
        return segment

    # ------------------------------------------------------------------------------- what it holds

    @property
    def path(self) -> str:
        return self.home.stem(self.first_index) + LOG_SUFFIX

    @property
    def index_path(self) -> str:
        return self.home.stem(self.first_index) + INDEX_SUFFIX

    @property
    def suspect_path(self) -> str:
        return self.home.stem(self.first_index) + SUSPECT_SUFFIX

    @property
    def is_active(self) -> bool:
        return self._file is not None

    @property
    def is_whole(self) -> bool:
        """No block is known to be damaged."""
        return not self.damages or not any(damage.is_loss for damage in self.damages)

    def damage_at(self, index: int) -> Damage | None:
        for damage in self.damages:
            if damage.first_index <= index <= damage.last_index:
                return damage
        return None

    def times_us(self) -> tuple[int, int]:
        """Base time of the first block and the latest one; 0 and 0 for an empty segment."""
        index, index_file = self._index, self._index_file
        if index is not None:
            return index.first_time_us, index.last_time_us
        return (index_file.span.first_time_us, index_file.span.last_time_us) if index_file else (0, 0)

    def term_runs(self) -> tuple[Sequence[int], Sequence[int]]:
        """First index and term of each run, from memory."""
        known = self._index or self._index_file
        return (known.run_starts, known.run_terms) if known is not None else ((), ())

    def index(self) -> SegmentIndex:
        """From memory or from the file; from the blocks themselves if that is damaged."""
        index = self._known_index()
        if index is None:
            self.is_index_lost = True
            index = self.examine()
        return index

    def _known_index(self) -> SegmentIndex | None:
        index, index_file = self._index, self._index_file
        if index is not None or index_file is None or not self.home.disk.exists(self.index_path):
            return index
        file = self.home.disk.open(self.index_path)
        try:
            return index_file.load(file)
        finally:
            file.close()

    # --------------------------------------------------------------------------------------- write

    def activate(self, index: SegmentIndex) -> None:
        """Open for appending; everything that is in the file must be on disk."""
        self._index, self._index_file = index, None
        if self._file is None:
            self._file = self.home.disk.open(self.path, writable=True)
        self._is_mark_due = self.size > MARK_BYTES

    def adopt(self, index_file: IndexFile | None) -> None:
        """A sealed segment on the word of its index file."""
        self._index_file = index_file
        self.covered_bytes = self.size

    def append(self, blocks: Sequence[Block], fill_bytes: int = 0) -> None:
        """Write blocks that follow the tail, and so many zeros ahead where the file must grow for it. On
        DiskFull the segment is as before, on disk and in memory."""
        file, index = self._opened()
        buffers: list[bytes] = []
        position = self.size
        if self._is_mark_due:
            buffers.append(self.home.mark(position, self.tail))
            position += MARK_BYTES
        records = [self._shortened(file, block) for block in blocks] if self._carried else blocks
        for record in records:
            buffers += record.buffers()
        self._write(file, buffers, fill_bytes)
        self._is_mark_due = False
        for block, record in zip(blocks, records, strict=True):
            index.add(block, position)
            if block.header.kind is Kind.CONTROL:
                self._note_carried(block, position)
            position += record.header.block_bytes
        # The tail last: a reader goes by it and must find size and points in place.
        self.size = position
        self.tail = tail_after(blocks[-1].header)

    def _shortened(self, file: File, block: Block) -> Block:
        """A reference in place of a block whose body is in this file already."""
        header = block.header
        if header.kind is not Kind.DATA:
            return block
        position = self._carried.get((header.body_checksum, header.body_bytes))
        # The same checksum is not the same body.
        if position is None or file.read_at(position, header.body_bytes) != block.body:
            return block
        return referring(block, position)

    def _note_carried(self, block: Block, position: int) -> None:
        found = carried(block)
        if found is not None:
            at, header = found
            place = position + HEAD_BYTES + at + HEAD_BYTES
            self._carried[header.body_checksum, header.body_bytes] = place

    def _write(self, file: File, buffers: list[bytes], fill_bytes: int) -> None:
        end = self.size + sum(map(len, buffers))
        if end > self._filled_bytes and end - self.size < fill_bytes:
            try:
                file.write_at(self.size, [*buffers, bytes(fill_bytes)])
            except DiskFull:
                # The zeros are for speed only; whether there is room for the blocks is seen below.
                self._filled_bytes = 0
                file.truncate(self.size)
            else:
                self._filled_bytes = end + fill_bytes
                return
        try:
            file.write_at(self.size, buffers)
        except DiskFull:
            # Synced, so that no crash brings back a block that was refused.
            self._filled_bytes = 0
            file.truncate(self.size)
            file.sync()
            raise

    def end_fill(self) -> None:
        """Make the file as long as what is in it, durably; for a segment that is synced."""
        if self._filled_bytes > self.size:
            file = self._opened()[0]
            file.truncate(self.size)
            file.sync()
        self._filled_bytes = 0

    def sync(self) -> None:
        if self.synced_bytes != self.size:
            self._opened()[0].sync()
            self.synced_bytes = self.size
            self._is_mark_due = True

    def checkpoint(self) -> None:
        """Bring the index file up to the synced end. A full disk leaves the old one, which costs a longer
        scan at a restart and nothing else."""
        index = self._index
        if index is None or self.covered_bytes == self.size or self.synced_bytes != self.size:
            return
        if not self.is_whole or not self.tail.is_known:
            return
        data = index.to_bytes(shard=self.home.shard, start=self.start, end=self.tail, covered_bytes=self.size)
        try:
            replace_file(self.home.disk, self.index_path, [data])
        except DiskFull:
            return
        self.covered_bytes = self.size

    def seal(self) -> None:
        """Close the file of a synced segment and leave the points to the index file if that is complete."""
        self.release()
        if not self.is_whole:
            self.suspect()
        elif self.covered_bytes == self.size:
            try:
                file = self.home.disk.open(self.index_path)
            except DiskFull:
                # The points stay in memory.
                return
            try:
                self._index_file = read_index(file, shard=self.home.shard, first_index=self.first_index)
            finally:
                file.close()
            self._index = None if self._index_file is not None else self._index

    def release(self) -> None:
        """Let go of the file."""
        self._carried.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def suspect(self) -> None:
        """Make the next start look at the whole segment again."""
        if self.home.disk.exists(self.index_path):
            self.home.disk.rename(self.index_path, self.suspect_path)

    def cut(self, tail: Tail, position: int) -> None:
        """End the segment at `position`, where the log ends like `tail`; durable when this returns. The
        segment is active afterwards."""
        index = self.index()
        # The index file covers what goes away. It must be gone first: an index that covers more than its
        # segment holds means that synced bytes were lost.
        self.discard_index()
        file = self._file or self.home.disk.open(self.path, writable=True)
        file.truncate(position)
        file.sync()
        index.cut(tail.next_index)
        self.damages = tuple(damage for damage in self.damages if damage.position < position)
        self.has_all_terms = self.has_all_terms or self.is_whole
        self.tail, self.size, self.synced_bytes = tail, position, position
        self._filled_bytes = 0
        self._carried.clear()
        self._file = file
        self.activate(index)

    def remove(self) -> None:
        """Drop all its files, durably. The segment last: an index without one means nothing."""
        self.release()
        self._remove(self.index_path, self.suspect_path, self.path)

    def discard_index(self) -> None:
        self._remove(self.index_path, self.suspect_path)
        self.covered_bytes = 0

    def _remove(self, *paths: str) -> None:
        for path in paths:
            self.home.disk.remove(path)
        self.home.disk.sync_directory(self.home.directory)

    def _opened(self) -> tuple[File, SegmentIndex]:
        assert self._file is not None and self._index is not None, "only the active segment is written"
        return self._file, self._index

    # ---------------------------------------------------------------------------------------- read

    @contextmanager
    def source(self) -> Iterator[Source]:
        """Reads of the file, opened for this: the writer may close its own at any time."""
        file = self.home.disk.open(self.path)
        try:
            yield Source(file, size=self.size, shard=self.home.shard, salt=self.home.salt)
        finally:
            file.close()

    def read(self, first: int, last: int, bytes_max: int) -> list[Block]:
        """Blocks first..last, cut once they pass bytes_max, at least one. Blocks before a bad one are
        returned; Unreadable if not even the first can be had."""
        blocks: list[Block] = []
        total = 0
        start = self.index().before(first) or (MARK_BYTES, self.start)
        with self.source() as source:
            for position, header in source.walk(*start, self.damages):
                if header is None:
                    break
                if header.index < first:
                    continue
                block = source.block_at(position, header)
                if block is None or header.index != first + len(blocks):
                    break
                blocks.append(block)
                total += block.header.block_bytes
                if header.index == last or total >= bytes_max:
                    break
        if not blocks:
            raise Unreadable
        return blocks

    def locate(
        self, start: tuple[int, Tail] | None, is_wanted: Callable[[Header], bool]
    ) -> tuple[int, Header] | None:
        """Walk from a point to the first block that is wanted; None at the end of the segment."""
        with self.source() as source:
            for position, header in source.walk(*(start or (MARK_BYTES, self.start)), self.damages):
                if header is None:
                    raise Unreadable
                if is_wanted(header):
                    return position, header
        return None

    def may_hold(self, keys: Collection[int]) -> bool:
        return not self.is_whole or self.index().may_hold(keys)

    def examine(self, points: SegmentIndex | None = None) -> SegmentIndex:
        """Read the whole segment and note all damage in it; `points` are places to go on after damage, if
        another index than that of the segment has them. The index is kept in memory from then on."""
        index = SegmentIndex()
        starts, terms = self.term_runs()
        # Before the size is taken: a writer beside us grows the size first.
        tail = self.tail
        with self.source() as source:
            result = scan(
                source,
                index,
                position=0,
                tail=self.start,
                synced_bytes=source.size,
                points=points or self._known_index(),
                end=(source.size, tail),
            )
        self.damages = result.damages
        if not self.is_active:
            if starts:
                index.run_starts, index.run_terms = array("Q", starts), array("Q", terms)
            else:
                self.has_all_terms = self.is_whole
            self._index = index
            if result.tail.is_known and result.tail.next_index == tail.next_index:
                self.tail = result.tail
            if not self.start.is_known:
                self.start = self._start_from_first_block()
            if not self.is_whole:
                self.suspect()
        return index

    def _start_from_first_block(self) -> Tail:
        first = self.locate(None, lambda header: True)
        if first is None or first[1].index != self.first_index:
            return self.start
        header = first[1]
        return tail_before(header)
