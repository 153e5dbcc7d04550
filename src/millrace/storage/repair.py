"""Write a damaged segment again with blocks that came from a peer.

The new file is written aside, proved to be one chain from the first index of the segment to its last, synced
and renamed into place. A rebuilt segment is blocks only: it is synced as a whole, so it needs no marks.
"""

from collections.abc import Iterator, Sequence

from millrace.errors import StorageError
from millrace.storage.block import Block
from millrace.storage.disk import DiskError, DiskFull, File
from millrace.storage.files import ASIDE
from millrace.storage.records import MARK_BYTES, Tail, tail_after, tail_before
from millrace.storage.segment import Segment


class RepairRefused(StorageError):
    """The blocks do not fill the gap; nothing was changed."""


def _readable(segment: Segment) -> Iterator[Block]:
    with segment.source() as source:
        for position, header in source.walk(MARK_BYTES, segment.start, segment.damages):
            block = source.block_at(position, header) if header is not None else None
            if block is not None:
                yield block


def _merged(segment: Segment, given: dict[int, Block]) -> Iterator[Block]:
    """All blocks of the segment in order, the given ones first choice."""
    old = _readable(segment)
    at_hand = next(old, None)
    for index in range(segment.first_index, segment.tail.next_index):
        while at_hand is not None and at_hand.header.index < index:
            at_hand = next(old, None)
        block = given.get(index)
        if block is None and at_hand is not None and at_hand.header.index == index:
            block = at_hand
        if block is None:
            raise RepairRefused(f"{segment.path}: block {index} is damaged and was not given")
        yield block


def rebuild(segment: Segment, blocks: Sequence[Block]) -> Segment:
    """A whole, sealed segment in place of this one, on disk when this returns. The blocks must cover all that
    is damaged in the segment. DiskFull and RepairRefused leave everything as it was.

    A damaged segment has a suspect index at most, so a start after a crash on the way reads the new file."""
    home = segment.home
    given = {block.header.index: block for block in blocks}
    (start, tail), aside, size = put_aside(segment, _merged(segment, given))
    home.disk.rename(aside, segment.path)
    home.disk.sync_directory(home.directory)
    rebuilt = Segment(home, start=start, tail=tail, size=size, is_start=segment.is_start)
    try:
        rebuilt.examine()
    except DiskFull as error:
        # It is in place already, and what it holds is not known: only a start brings the two together.
        raise DiskError(f"{rebuilt.path} is repaired and cannot be read: {error}") from error
    rebuilt.checkpoint()
    rebuilt.seal()
    home.disk.remove(rebuilt.suspect_path)
    return rebuilt


def put_aside(segment: Segment, blocks: Iterator[Block]) -> tuple[tuple[Tail, Tail], str, int]:
    """Write the file of a segment aside, synced: start and end, path and size. The blocks must follow each
    other from the start of the segment to its end. DiskFull and RepairRefused leave nothing."""
    disk, aside = segment.home.disk, segment.path + ASIDE
    out = disk.create(aside)
    try:
        start, tail, size = _write(segment, blocks, out)
    except (DiskFull, RepairRefused):
        out.close()
        disk.remove(aside)
        raise
    finally:
        out.close()
    return (start, tail), aside, size


def _write(segment: Segment, blocks: Iterator[Block], out: File) -> tuple[Tail, Tail, int]:
    """Start, end and size of the new file."""
    home, tail, position = segment.home, segment.start, MARK_BYTES
    start = tail
    for block in blocks:
        header = block.header
        if not tail.is_followed_by(header):
            raise RepairRefused(f"{segment.path}: block {header.index} does not follow the one before it")
        if position == MARK_BYTES:
            start = tail_before(header)
        out.write_at(position, block.buffers())
        position += header.block_bytes
        tail = tail_after(header)
    if segment.tail.is_known and tail != segment.tail:
        raise RepairRefused(f"{segment.path}: block {tail.next_index - 1} does not fit the one behind it")
    out.write_at(0, [home.mark(0, start, is_start=segment.is_start)])
    out.sync()
    return start, tail, position
