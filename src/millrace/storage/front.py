"""Older blocks come in front of a log: those that a replica lacks because it began from a snapshot.

The log then goes on below a segment whose head says that the log begins there, and a start would remove what
is below as leftovers. A file `front` beside the segments says that there are none: it is on disk before
anything is put in front, and gone before the log is begun anew, which is what makes leftovers.
"""

from collections.abc import Sequence

from millrace.storage.block import Block
from millrace.storage.disk import DiskFull
from millrace.storage.files import write_record
from millrace.storage.records import MARK_BYTES, tail_before
from millrace.storage.repair import RepairRefused, put_aside
from millrace.storage.segment import Home, Segment

_TAG = b"MRFR"


def _path(home: Home) -> str:
    return f"{home.directory}/front"


def has_no_leftovers(home: Home) -> bool:
    """Whether all segments belong to the log, whatever their heads say. The file need not be readable: only
    that it is there counts."""
    return home.disk.exists(_path(home))


def expect_leftovers(home: Home) -> None:
    """The log is about to be begun anew; durable when this returns."""
    if home.disk.exists(_path(home)):
        home.disk.remove(_path(home))
        home.disk.sync_directory(home.directory)


def put_in_front(following: Segment, blocks: Sequence[Block]) -> Segment:
    """A sealed segment with these blocks directly in front of `following`, the first one of a log, on disk
    when this returns. DiskFull and RepairRefused leave everything as it was."""
    home = following.home
    if not following.start.is_known:
        raise RepairRefused(f"{following.path}: what it follows is not known")
    start = tail_before(blocks[0].header)
    segment = Segment(home, start=start, tail=following.start, size=MARK_BYTES)
    aside, segment.size = put_aside(segment, iter(blocks))[1:]
    segment.synced_bytes = segment.size
    try:
        write_record(home.disk, _path(home), _TAG, b"")
    except DiskFull:
        home.disk.remove(aside)
        raise
    home.disk.rename(aside, segment.path)
    home.disk.sync_directory(home.directory)
    try:
        segment.examine()
    except DiskFull:
        # There is no descriptor to read it with.
        segment.remove()
        raise
    segment.checkpoint()
    segment.seal()
    return segment
