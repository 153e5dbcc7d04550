"""The index of a segment: where blocks stand, which terms and times, which topics, how it ends.

Points are sparse: one for the first block, then one whenever 32 KiB have passed since the last. To reach a
block, take the last point at or before it and walk the heads from there. Term runs are complete, so that the
term of any index is answered from memory. The index is derived: a file that is missing, damaged or older than
its segment costs a scan and never a wrong answer.

The file says how many bytes of the segment it covers; all were synced before it was written. A restart
believes that part and scans the rest, so restart time grows with the number of segments. Opening a log reads
the head and the term runs; points and summary are read, and their checksums proved, when first needed.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass

from millrace.kernels.blocks import PLAIN_HEAD_BYTES
from millrace.kernels.checksum import crc32c
from millrace.storage.block import Block, BlockDamaged, Kind
from millrace.storage.disk import File
from millrace.storage.records import UNKNOWN, Tail
from millrace.storage.summary import TopicSummary

POINT_EVERY_BYTES = 32 << 10

MAGIC = b"MRIX"
VERSION = 1
# magic, version, reserved (0), shard, points, term runs, summary bytes, covered bytes, first and last time,
# start tail (3), end tail (3), checksums of runs, points and summary, (of the head)
_HEAD = struct.Struct("<4sHHIIIIQqq3Q3QIII")
_CHECKSUM = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _CHECKSUM.size
# The head and some thousand term runs in one read.
_FIRST_READ_BYTES = 16 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What an index says about its segment as a whole."""

    start: Tail
    end: Tail
    covered_bytes: int
    first_time_us: int
    """Base time of the first block; 0 for none."""
    last_time_us: int
    """The latest time of a block."""


class SegmentIndex:
    """Points, term runs and topic summary of one segment. One writer; readers may look meanwhile."""

    __slots__ = (
        "first_time_us",
        "last_time_us",
        "point_indexes",
        "point_offsets",
        "point_positions",
        "point_times_us",
        "run_starts",
        "run_terms",
        "summary",
    )

    def __init__(self) -> None:
        self.point_indexes = array("Q")
        self.point_positions = array("Q")
        self.point_offsets = array("Q")
        self.point_times_us = array("q")
        self.run_starts = array("Q")
        self.run_terms = array("Q")
        self.summary = TopicSummary()
        self.first_time_us = 0
        self.last_time_us = 0

    def add(self, block: Block, position: int) -> None:
        """The next block of the segment stands at `position`."""
        header = block.header
        positions = self.point_positions
        if not positions:
            self.first_time_us = header.base_time_us
        if not positions or position - positions[-1] >= POINT_EVERY_BYTES:
            # The position last: a reader takes its length as the number of points.
            self.point_indexes.append(header.index)
            self.point_offsets.append(header.base_offset)
            self.point_times_us.append(header.base_time_us)
            positions.append(position)
        if not self.run_terms or self.run_terms[-1] != header.term:
            self.run_terms.append(header.term)
            self.run_starts.append(header.index)
        self.last_time_us = max(self.last_time_us, header.base_time_us)
        if header.kind is Kind.DATA and not self.summary.is_last(block.dictionary()[PLAIN_HEAD_BYTES:]):
            try:
                self.summary.add(block.topics())
            except BlockDamaged:
                # Good checksums over a dictionary that is none: a fault of whoever made the block. It must
                # stop neither the writer nor a restart, and the segment may hold anything.
                self.summary.fill()

    def cut(self, next_index: int) -> None:
        """Forget the blocks from `next_index` on. Times and summary stay as they were: a little too wide."""
        points = bisect_right(self.point_indexes, next_index - 1)
        for column in (
            self.point_positions,
            self.point_indexes,
            self.point_offsets,
            self.point_times_us,
        ):
            del column[points:]
        runs = bisect_right(self.run_starts, next_index - 1)
        del self.run_starts[runs:], self.run_terms[runs:]

    def before(self, index: int) -> tuple[int, Tail] | None:
        """Where to start walking to the block of `index`; None if no point is at or before it."""
        return self._point(bisect_right(self.point_indexes, index, hi=len(self.point_positions)))

    def before_offset(self, offset: int) -> tuple[int, Tail] | None:
        return self._point(bisect_right(self.point_offsets, offset, hi=len(self.point_positions)))

    def _point(self, points: int) -> tuple[int, Tail] | None:
        """Position of the last of so many points, and what the block there follows."""
        if not points:
            return None
        n = points - 1
        tail = Tail(next_index=self.point_indexes[n], last_term=UNKNOWN, next_offset=self.point_offsets[n])
        return self.point_positions[n], tail

    def after_position(self, position: int) -> tuple[int, Tail] | None:
        """The first point behind `position`."""
        n = bisect_right(self.point_positions, position)
        return self._point(n + 1) if n < len(self.point_positions) else None

    def may_hold(self, keys: Collection[int]) -> bool:
        return self.summary.may_hold(keys)

    def to_bytes(self, *, shard: int, start: Tail, end: Tail, covered_bytes: int) -> bytes:
        """The file; the segment must be synced up to `covered_bytes`, and end there like `end`."""
        runs = self.run_starts.tobytes() + self.run_terms.tobytes()
        points = b"".join(
            column.tobytes()
            for column in (self.point_indexes, self.point_positions, self.point_offsets, self.point_times_us)
        )
        summary = self.summary.to_bytes()
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            0,
            shard,
            len(self.point_positions),
            len(self.run_starts),
            len(summary),
            covered_bytes,
            self.first_time_us,
            self.last_time_us,
            *(start.next_index, start.last_term, start.next_offset),
            *(end.next_index, end.last_term, end.next_offset),
            *(crc32c(runs), crc32c(points), crc32c(summary)),
        )
        return b"".join((head, _CHECKSUM.pack(crc32c(head)), runs, points, summary))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """The part of an index file that is read when a log is opened."""

    span: Span
    run_starts: "array[int]"
    run_terms: "array[int]"
    points: int
    points_position: int
    points_checksum: int
    summary_bytes: int
    summary_checksum: int

    def load(self, file: File) -> SegmentIndex | None:
        """The rest of the file; None if it is damaged."""
        size = 32 * self.points
        data = file.read_at(self.points_position, size + self.summary_bytes)
        points, summary = data[:size], data[size:]
        if len(data) != size + self.summary_bytes:
            return None
        if crc32c(points) != self.points_checksum or crc32c(summary) != self.summary_checksum:
            return None
        index = SegmentIndex()
        columns = (index.point_indexes, index.point_positions, index.point_offsets, index.point_times_us)
        for n, column in enumerate(columns):
            column.frombytes(points[n * size // 4 : (n + 1) * size // 4])
        index.run_starts, index.run_terms = self.run_starts[:], self.run_terms[:]
        index.summary = TopicSummary.from_bytes(summary)
        index.first_time_us, index.last_time_us = self.span.first_time_us, self.span.last_time_us
        return index


def read_index(file: File, *, shard: int, first_index: int) -> IndexFile | None:
    """What the file says; None if it is damaged, of another version or of another segment."""
    data = file.read_at(0, _FIRST_READ_BYTES)
    if len(data) < _HEAD_BYTES:
        return None
    fields = _HEAD.unpack_from(data)
    magic, version, _, found_shard, points, runs, summary_bytes, covered, first_time, last_time = fields[:10]
    if crc32c(data[: _HEAD.size]) != _CHECKSUM.unpack_from(data, _HEAD.size)[0]:
        return None
    if (magic, version, found_shard, fields[10]) != (MAGIC, VERSION, shard, first_index):
        return None
    after = _HEAD_BYTES + 16 * runs
    if after > len(data):
        data += file.read_at(len(data), after - len(data))
    if crc32c(data[_HEAD_BYTES:after]) != fields[16]:
        return None
    starts, terms = array("Q"), array("Q")
    starts.frombytes(data[_HEAD_BYTES : _HEAD_BYTES + 8 * runs])
    terms.frombytes(data[_HEAD_BYTES + 8 * runs : after])
    span = Span(
        start=Tail(next_index=fields[10], last_term=fields[11], next_offset=fields[12]),
        end=Tail(next_index=fields[13], last_term=fields[14], next_offset=fields[15]),
        covered_bytes=covered,
        first_time_us=first_time,
        last_time_us=last_time,
    )
    return IndexFile(
        span=span,
        run_starts=starts,
        run_terms=terms,
        points=points,
        points_position=after,
        points_checksum=fields[17],
        summary_bytes=summary_bytes,
        summary_checksum=fields[18],
    )
