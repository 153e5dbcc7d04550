"""Read a segment record by record; tell good blocks, a torn tail and damage apart.

Every byte of a segment belongs to a mark or a block that follows the one before it (index, term, offset). The
first place where this does not hold is either the torn end of the last group commit or damage; `records`
explains how a later mark decides. After damage the scan goes on at the nearest place that is certain:

1. the next block, where only a body is bad and its head tells the length;
2. just behind, where what is bad is a mark;
3. the next point of the index, the next mark, or the end that the index covers.

Nothing is guessed from bytes that merely look like a block: they may be a payload.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.errors import StorageError
from millrace.storage.block import (
    HEAD_BYTES,
    Block,
    BlockDamaged,
    Codec,
    Header,
    attach_body,
    parse_header,
)
from millrace.storage.disk import File
from millrace.storage.index import SegmentIndex
from millrace.storage.records import MARK_BYTES, MARK_MAGIC, UNKNOWN, Mark, Tail, parse_mark, tail_after
from millrace.storage.reference import followed

# A look-up reads little; a walk that goes on reads more with each call, up to two blocks of the usual bound.
_WINDOW_BYTES_FIRST = 64 << 10
_WINDOW_BYTES_MAX = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Blocks that were on disk once and cannot be read. Never served; to be had again from peers."""

    file: str
    position: int
    size_bytes: int
    """0 where the file is too short."""
    first_index: int
    last_index: int
    """first_index - 1 where only a mark is damaged: nothing is missing."""
    first_offset: int
    next_offset: int
    """UNKNOWN where no block behind tells."""

    @property
    def is_loss(self) -> bool:
        return self.last_index >= self.first_index

    def __str__(self) -> str:
        last = "unknown" if self.next_offset == UNKNOWN else str(self.next_offset - 1)
        if not self.is_loss:
            return f"{self.file}: a mark at byte {self.position} is damaged; no block is missing"
        return (
            f"{self.file}: damaged at byte {self.position} ({self.size_bytes} bytes), "
            f"index {self.first_index} to {self.last_index}, offset {self.first_offset} to {last}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TornTail:
    """The end of the last group commit, cut because a crash left it incomplete."""

    file: str
    position: int
    size_bytes: int
    next_index: int

    def __str__(self) -> str:
        return (
            f"{self.file}: torn tail cut at byte {self.position} ({self.size_bytes} bytes); "
            f"the log ends before index {self.next_index}"
        )


class RangeDamaged(StorageError):
    """What was asked for is damaged on this disk; `damage` says where and which range."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


def _covering(damages: Sequence[Damage], position: int) -> Damage | None:
    for damage in damages:
        if damage.position <= position < damage.position + damage.size_bytes:
            return damage
    return None


class Source:
    """Reads of one segment file through a window, so that small blocks cost no call each."""

    __slots__ = ("_data", "_start", "_window_bytes", "file", "salt", "shard", "size")

    def __init__(self, file: File, *, size: int, shard: int, salt: int) -> None:
        self.file = file
        self.size = size
        self.shard = shard
        self.salt = salt
        self._window_bytes = _WINDOW_BYTES_FIRST
        self._data = b""
        self._start = 0

    def bytes_at(self, position: int, size: int) -> bytes:
        """Fewer than `size` at the end."""
        start = position - self._start
        if start < 0 or start + size > len(self._data):
            wanted = min(max(size, self._window_bytes), self.size - position)
            self._data = self.file.read_at(position, wanted) if wanted > 0 else b""
            self._start, start = position, 0
            self._window_bytes = min(2 * self._window_bytes, _WINDOW_BYTES_MAX)
        return self._data[start : start + size]

    def mark_at(self, position: int) -> Mark | None:
        data = self.bytes_at(position, MARK_BYTES)
        return parse_mark(data, shard=self.shard, salt=self.salt, position=position)

    def header_at(self, position: int) -> Header | None:
        """The head of a block of this log that fits the file; its body is not looked at."""
        try:
            header = parse_header(self.bytes_at(position, HEAD_BYTES), is_record=True)
        except BlockDamaged:
            return None
        if header.shard != self.shard or position + header.block_bytes > self.size:
            return None
        return header

    def block_at(self, position: int, header: Header) -> Block | None:
        """The whole block of that head, if its body is as it was written. The record may be shorter."""
        try:
            record = attach_body(header, self.bytes_at(position + HEAD_BYTES, header.body_bytes))
            # Beside the window: what it refers to is far behind the place that is read.
            is_whole = header.codec is not Codec.REFERENCE
            return record if is_whole else followed(record, position, self.file.read_at)
        except BlockDamaged:
            return None

    def walk(
        self, position: int, tail: Tail, damages: Sequence[Damage] = ()
    ) -> Iterator[tuple[int, Header | None]]:
        """The blocks from `position`, where the log ends like `tail`, by their heads; known damage is passed
        over. Ends with None where the next thing is not a record that follows."""
        while position < self.size:
            header = self.header_at(position)
            if header is not None and tail.is_followed_by(header):
                yield position, header
                tail = tail_after(header)
                position += header.block_bytes
                continue
            damage = _covering(damages, position)
            if damage is not None:
                position = damage.position + damage.size_bytes
                tail = Tail(
                    next_index=damage.last_index + 1, last_term=UNKNOWN, next_offset=damage.next_offset
                )
            elif header is None and self.mark_at(position) is not None:
                position += MARK_BYTES
            else:
                yield position, None
                return

    def is_blank_from(self, position: int) -> bool:
        """Whether there are only zeros from here to the end."""
        while position < self.size:
            data = self.bytes_at(position, min(_WINDOW_BYTES_MAX, self.size - position))
            if not data or data.count(0) != len(data):
                return False
            position += len(data)
        return True

    def next_mark(self, position: int) -> Mark | None:
        """The first mark behind `position`."""
        position += 8
        while position + MARK_BYTES <= self.size:
            data = self.bytes_at(position, min(self._window_bytes, self.size - position))
            if not data:
                # The file is shorter than it was.
                return None
            found = data.find(MARK_MAGIC)
            while found >= 0:
                at = position + found
                mark = None if at % 8 else self.mark_at(at)
                if mark is not None:
                    return mark
                found = data.find(MARK_MAGIC, found + 4)
            # The magic may stand across the border of two windows.
            position += max(len(data) - len(MARK_MAGIC) + 1, 1)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    end: int
    """Position behind the last good record."""
    tail: Tail
    damages: tuple[Damage, ...]
    torn: TornTail | None


def scan(
    source: Source,
    index: SegmentIndex,
    *,
    position: int,
    tail: Tail,
    synced_bytes: int,
    points: SegmentIndex | None = None,
    end: tuple[int, Tail] | None = None,
) -> ScanResult:
    """Walk from `position`, where the log ends like `tail`, to the end of the file; fill `index`.

    Bytes before `synced_bytes` are known to have been on disk (all of them, in any segment but the last).
    `points` are places to go on after damage; `end` is a position up to which the segment is known to have
    been written and how the log ended there.
    """
    damages: list[Damage] = []
    while position < source.size:
        mark = source.mark_at(position)
        if mark is not None and mark.tail.next_index == tail.next_index:
            tail = mark.tail if tail.last_term == UNKNOWN else tail
            position += MARK_BYTES
            continue
        header = source.header_at(position)
        follows = header is not None and tail.is_followed_by(header)
        block = source.block_at(position, header) if header is not None and follows else None
        if block is not None:
            index.add(block, position)
            tail = tail_after(block.header)
            assert header is not None
            position += header.block_bytes
            continue
        is_ahead = mark is not None and mark.tail.next_index > tail.next_index
        later = mark if is_ahead else source.next_mark(position)
        if later is None and position >= synced_bytes:
            torn = None
            # Zeros were written ahead: nothing of the last group commit is missing, or all of it.
            if not source.is_blank_from(position):
                torn = TornTail(
                    file=source.file.path,
                    position=position,
                    size_bytes=source.size - position,
                    next_index=tail.next_index,
                )
            return ScanResult(end=position, tail=tail, damages=_joined(damages), torn=torn)
        places = [(later.position, later.tail)] if later is not None else []
        places += [place for place in (points and points.after_position(position), end) if place]
        resumed = _resume(source, position, tail, header if follows else None, places)
        damages.append(_damage(source.file.path, position, tail, *resumed))
        position, tail = resumed
    if end is not None and tail.next_index < end[1].next_index:
        damages.append(_damage(source.file.path, position, tail, position, end[1]))
        tail = end[1]
    elif end is not None and tail.next_index == end[1].next_index and not tail.is_known:
        tail = end[1]
    return ScanResult(end=min(position, source.size), tail=tail, damages=_joined(damages), torn=None)


def _resume(
    source: Source, position: int, tail: Tail, header: Header | None, places: list[tuple[int, Tail]]
) -> tuple[int, Tail]:
    """Where to go on after what cannot be read at `position`, and how the log ends there. `header` is that of
    the block at `position` if its head is good; `places` are certain ones further on."""
    if header is not None:
        return position + header.block_bytes, tail_after(header)
    behind = position + MARK_BYTES
    header = source.header_at(behind)
    if header is not None and tail.is_followed_by(header):
        return behind, tail
    ahead = [
        (at, end) for at, end in places if position <= at <= source.size and end.next_index >= tail.next_index
    ]
    if ahead:
        return min(ahead, key=lambda place: place[0])
    return source.size, Tail(next_index=tail.next_index, last_term=UNKNOWN, next_offset=UNKNOWN)


def _damage(file: str, position: int, tail: Tail, resumed: int, resumed_tail: Tail) -> Damage:
    return Damage(
        file=file,
        position=position,
        size_bytes=resumed - position,
        first_index=tail.next_index,
        last_index=resumed_tail.next_index - 1,
        first_offset=tail.next_offset,
        next_offset=resumed_tail.next_offset,
    )


def _joined(damages: Sequence[Damage]) -> tuple[Damage, ...]:
    """Neighbouring damage as one."""
    joined: list[Damage] = []
    for damage in damages:
        last = joined[-1] if joined else None
        if last is not None and last.position + last.size_bytes == damage.position:
            joined[-1] = Damage(
                file=last.file,
                position=last.position,
                size_bytes=last.size_bytes + damage.size_bytes,
                first_index=last.first_index,
                last_index=damage.last_index,
                first_offset=last.first_offset,
                next_offset=damage.next_offset,
            )
        else:
            joined.append(damage)
    return tuple(joined)
