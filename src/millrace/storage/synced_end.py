"""How far a log was on disk, remembered outside of it [rule 34].

A log that lost its end looks like one that never had it. This small file tells the two apart: after each sync
of the log the last entry that is on disk is written here. The write itself is not synced, so it costs little,
and what is found here after a power loss may be older than the log, never newer. It goes down only before
the log is cut on purpose, and that is synced.

Two places are written in turn, each with a number and a checksum, so that a torn write leaves the other one.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass

from millrace.kernels.checksum import crc32c
from millrace.storage.disk import Disk, DiskFull, File
from millrace.types import Index, Term

# number of the write, index, term; a checksum follows
_PLACE = struct.Struct("<QQQ")
_CHECKSUM_BYTES = 4
_PLACE_BYTES = _PLACE.size + _CHECKSUM_BYTES
# Sectors of a disk are written whole: the two places are in different ones.
_PLACES_APART = 4096


@dataclass(slots=True)
class LogEnd:
    """The last entry of a log. Nobody changes one; it is not frozen because one is made for every sync."""

    index: Index
    term: Term


class SyncedEnd:
    """Of one log, opened with it. Not to be used by two threads at a time."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._file: File | None = None
        self._number = 0
        self.end: LogEnd | None = None
        """The last entry known to be on disk; None where nothing is known."""
        if disk.exists(path):
            self._file = disk.open(path, writable=True)
            self._read(self._file)
        else:
            # Without a descriptor or room nothing is remembered, and nothing else is lost.
            with suppress(DiskFull):
                self._file = disk.create(path)

    def _read(self, file: File) -> None:
        for place in range(2):
            data = file.read_at(place * _PLACES_APART, _PLACE_BYTES)
            if len(data) < _PLACE_BYTES:
                continue
            number, index, term = _PLACE.unpack_from(data)
            checksum = int.from_bytes(data[_PLACE.size :], "little")
            if crc32c(data[: _PLACE.size]) == checksum and number > self._number:
                self._number = number
                self.end = LogEnd(Index(index), Term(term))

    def note(self, end: LogEnd) -> None:
        """The log is on disk up to here."""
        if end != self.end:
            self._write(end)

    def lower(self, end: LogEnd) -> None:
        """The log is about to end here, on purpose: durable when this returns."""
        if self.end is not None and self.end.index > end.index:
            self._write(end)
            if self._file is not None:
                self._file.sync()

    def _write(self, end: LogEnd) -> None:
        self.end = end
        if self._file is None:
            return
        self._number += 1
        data = _PLACE.pack(self._number, end.index, end.term)
        checksum = crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")
        try:
            self._file.write_at(self._number % 2 * _PLACES_APART, [data + checksum])
        except DiskFull:
            # The older one stays, which is as good after a loss of power.
            return

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
