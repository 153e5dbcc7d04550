"""What a restart finds in the directory of a log, and how it becomes a list of segments again.

Sealed segments are believed on the word of their index: its checksum holds, it covers exactly the bytes of
the segment and it ends where the next one begins. Only where one of these fails is the segment read. The last
segment is read from the end of what its index covers. What was found is then written once more and made
durable, because the crash may have left it in memory only and the caller will count on it.

A segment that begins a log (a new one, or one whose content was replaced by a snapshot) carries that in its
first mark; segments below it are leftovers, unless older blocks were put in front of it (`front`). A segment
reaches to the first index of the next one, whatever is in it: what is missing there is damage.
"""

import re
from dataclasses import dataclass

from millrace.errors import StorageError
from millrace.storage.disk import File
from millrace.storage.files import remove_leftovers
from millrace.storage.front import has_no_leftovers
from millrace.storage.index import IndexFile, SegmentIndex, read_index
from millrace.storage.records import EMPTY, MARK_BYTES, UNKNOWN, Mark, Tail, parse_mark
from millrace.storage.scan import Damage, Source, TornTail, scan
from millrace.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SUSPECT_SUFFIX, Home, Segment

_NAME = re.compile(r"([0-9]{20})(\.log|\.idx|\.bad)")
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLost:
    """An index file was missing or damaged; the segment was read instead."""

    file: str

    def __str__(self) -> str:
        return f"{self.file}: missing or damaged; made again from its segment"


Report = Damage | TornTail | IndexLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    segments: list[Segment]
    """In order; the last is active."""
    reports: list[Report]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A segment file as it lies there."""

    first_index: int
    size: int
    head: Mark | None


def recover(home: Home) -> Recovered:
    """Open the log in this directory, or begin a new one if there is none."""
    remove_leftovers(home.disk, home.directory)
    found = _find(home)
    if not found:
        Segment.prepare(home, EMPTY, is_start=True)
        return Recovered(segments=[Segment.put_in_place(home, EMPTY, is_start=True)], reports=[])
    reports: list[Report] = []
    segments: list[Segment] = []
    for n, this in enumerate(found):
        previous = segments[-1].tail if segments else None
        if n + 1 < len(found):
            segments.append(_open_sealed(home, this, found[n + 1], previous, reports))
        else:
            segments.append(_open_last(home, this, previous, reports))
        if segments[-1].floor_offset == UNKNOWN:
            segments[-1].floor_offset = segments[-2].floor_offset if n else 0
    home.disk.sync_directory(home.directory)
    return Recovered(segments=segments, reports=reports)


def _find(home: Home) -> list[_Found]:
    """The segment files that belong to the log; what does not is removed."""
    matches = map(_NAME.fullmatch, home.disk.names(home.directory))
    names = {(int(match[1]), match[2]) for match in matches if match}
    found: list[_Found] = []
    has_leftovers = not has_no_leftovers(home)
    for first_index in sorted(first for first, suffix in names if suffix == LOG_SUFFIX):
        file = home.disk.open(home.stem(first_index) + LOG_SUFFIX)
        try:
            head = parse_mark(file.read_at(0, MARK_BYTES), shard=home.shard, salt=home.salt, position=0)
            if head is not None and head.tail.next_index != first_index:
                head = None
            found.append(_Found(first_index=first_index, size=file.size(), head=head))
        finally:
            file.close()
        if head is not None and head.is_start and has_leftovers:
            for old in found[:-1]:
                home.disk.remove(home.stem(old.first_index) + LOG_SUFFIX)
            del found[:-1]
    kept = {this.first_index for this in found}
    for first_index, suffix in sorted(names):
        if first_index not in kept and suffix != LOG_SUFFIX:
            home.disk.remove(home.stem(first_index) + suffix)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Indexed:
    """What the index file of a segment says; the points only where they are needed."""

    head: IndexFile | None
    points: SegmentIndex | None
    is_suspect: bool


def _read_index_file(home: Home, first_index: int, *, with_points: bool) -> _Indexed:
    is_suspect = home.disk.exists(home.stem(first_index) + SUSPECT_SUFFIX)
    path = home.stem(first_index) + (SUSPECT_SUFFIX if is_suspect else INDEX_SUFFIX)
    if not home.disk.exists(path):
        return _Indexed(head=None, points=None, is_suspect=is_suspect)
    file = home.disk.open(path)
    try:
        head = read_index(file, shard=home.shard, first_index=first_index)
        points = head.load(file) if head is not None and (with_points or is_suspect) else None
    finally:
        file.close()
    return _Indexed(head=head, points=points, is_suspect=is_suspect)


def damaged_indexes(home: Home) -> list[IndexLost]:
    """The index files that are there and cannot be used. To be asked before `recover`, which makes them
    again and says so only where it counted on one."""
    matches = map(_NAME.fullmatch, home.disk.names(home.directory))
    firsts = sorted(int(match[1]) for match in matches if match and match[2] == INDEX_SUFFIX)
    lost: list[IndexLost] = []
    for first_index in firsts:
        path = home.stem(first_index) + INDEX_SUFFIX
        file = home.disk.open(path)
        try:
            head = read_index(file, shard=home.shard, first_index=first_index)
            if head is None or head.load(file) is None:
                lost.append(IndexLost(file=path))
        finally:
            file.close()
    return lost


def _start_of(this: _Found, previous: Tail | None, indexed: _Indexed) -> Tail:
    """How the log ended before this segment: its own head knows, else its index, else the one before it."""
    if this.head is not None:
        return this.head.tail
    if indexed.head is not None:
        return indexed.head.span.start
    if previous is not None and previous.next_index == this.first_index:
        return previous
    if this.first_index == EMPTY.next_index:
        return EMPTY
    return Tail(next_index=this.first_index, last_term=UNKNOWN, next_offset=UNKNOWN)


def _open_sealed(
    home: Home, this: _Found, following: _Found, previous: Tail | None, reports: list[Report]
) -> Segment:
    is_start = this.head is not None and this.head.is_start
    indexed = _read_index_file(home, this.first_index, with_points=False)
    span = indexed.head.span if indexed.head is not None else None
    if (
        span is not None
        and this.head is not None
        and not indexed.is_suspect
        and (span.covered_bytes, span.end.next_index) == (this.size, following.first_index)
    ):
        segment = Segment(home, start=span.start, tail=span.end, size=this.size, is_start=is_start)
        segment.adopt(indexed.head)
        return segment
    if span is None:
        reports.append(IndexLost(file=home.stem(this.first_index) + INDEX_SUFFIX))
    end = Tail(next_index=following.first_index, last_term=UNKNOWN, next_offset=UNKNOWN)
    if following.head is not None:
        end = following.head.tail
    start = _start_of(this, previous, indexed)
    segment = Segment(home, start=start, tail=end, size=this.size, is_start=is_start)
    segment.examine(_read_index_file(home, this.first_index, with_points=True).points)
    reports.extend(segment.damages)
    segment.checkpoint()
    segment.seal()
    if segment.is_whole:
        home.disk.remove(segment.suspect_path)
    return segment


def _write_again(file: File, start: int, end: int) -> None:
    """Put what was read back as it is, so that the sync that follows has it to write. After a failed sync the
    system shows pages as if they were on disk that are not, and no later sync writes them."""
    for position in range(start, end, _WRITE_BYTES):
        file.write_at(position, [file.read_at(position, min(_WRITE_BYTES, end - position))])


def _open_last(home: Home, this: _Found, previous: Tail | None, reports: list[Report]) -> Segment:
    indexed = _read_index_file(home, this.first_index, with_points=True)
    span = indexed.head.span if indexed.head is not None else None
    start = _start_of(this, previous, indexed)
    covered, position, tail, index = MARK_BYTES, 0, start, SegmentIndex()
    if span is not None:
        covered = span.covered_bytes
        if this.head is not None and not indexed.is_suspect and indexed.points and covered <= this.size:
            position, tail, index = covered, span.end, indexed.points
    file = home.disk.open(home.stem(this.first_index) + LOG_SUFFIX, writable=True)
    try:
        result = scan(
            Source(file, size=this.size, shard=home.shard, salt=home.salt),
            index,
            position=position,
            tail=tail,
            synced_bytes=covered,
            points=indexed.points,
            end=None if span is None else (covered, span.end),
        )
        if result.torn is not None:
            reports.append(result.torn)
        if result.end < this.size:
            file.truncate(result.end)
        if position != this.size:
            _write_again(file, position, result.end)
            file.sync()
    finally:
        file.close()
    reports.extend(result.damages)
    tail = result.tail
    if not tail.is_known and previous is not None and tail.next_index == previous.next_index:
        tail = previous
    if not tail.is_known and tail.next_index == start.next_index:
        # Only the head is bad, and no block follows it.
        tail = start
    if not tail.is_known:
        raise StorageError(
            f"{file.path}: damaged so that the end of the log is not known; replace the log by a snapshot"
        )
    segment = Segment(
        home,
        start=start,
        tail=tail,
        size=result.end,
        is_start=this.head is not None and this.head.is_start,
    )
    segment.damages = result.damages
    segment.has_all_terms = segment.is_whole
    segment.covered_bytes = position
    segment.activate(index)
    return segment
