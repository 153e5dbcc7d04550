"""Encoding a state a little at a time while it goes on changing, and decoding one the same way.

A snapshot is the state after one entry of the log. A large one takes longer than the loop may be held
[rule 33], and between its steps further entries are applied. So a dictionary that may be large is *frozen*:
whoever changes the value of a key says so first (`Frozen.keep`), and the row is taken as it still is. As many
rows as fit a step are encoded together.

The bytes are the same as if all of it were encoded at once (`Pieces.joined`). Beside them stands where they
may be cut (`Pieces.parts`), so that whoever reads them need not decode them at once either (`Parts`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

ROWS_AT_ONCE = 1_000
"""Of small ones: about 2 ms."""
_BYTES_AT_ONCE = 1 << 20

Part = tuple[str, int, int]
"""A field, how many of its rows, and their bytes. Without a field: what stands between the rows. With -1
rows: the head of an array, or of a map, of rows."""
_HEAD = -1
_EMPTY_ARRAY, _EMPTY_MAP = b"\x90", b"\x80"
_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


class Frozen(ABC, Generic[KeyT, ValueT]):
    """The entries of a dictionary as they were when this was made."""

    __slots__ = ("_kept", "_left")

    def __init__(self, values: dict[KeyT, ValueT]) -> None:
        # A copy of the table, which takes 10 ms for half a million.
        self._left = cast(dict[KeyT, ValueT | None], values.copy())
        self._kept: dict[KeyT, Any] = {}

    @abstractmethod
    def row(self, key: KeyT, value: ValueT) -> Any:
        """What is encoded of an entry, and does not change any more; None leaves the entry out."""

    def keep(self, key: KeyT) -> None:
        """Called before the value of this key changes, or goes."""
        value = self._left.get(key)
        if value is not None:
            # The keys stay: somebody is in the middle of them.
            self._left[key] = None
            self._kept[key] = self.row(key, value)

    def rows(self) -> Iterator[Any]:
        """In the order of the dictionary."""
        for key, value in self._left.items():
            if value is None:
                row = self._kept.pop(key)
            else:
                self._left[key] = None
                row = self.row(key, value)
            if row is not None:
                yield row


class Pieces:
    """What is encoded so far. Its generators pause whenever so many rows, or bytes, were encoded."""

    def __init__(self, rows_at_once: int = ROWS_AT_ONCE) -> None:
        self._rows_at_once = self._rows_left = rows_at_once
        self._bytes_left = _BYTES_AT_ONCE
        self._pieces: list[bytes] = []
        self.parts: list[Part] = []

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def joined(self) -> bytes:
        return b"".join(self._pieces)

    def add(self, *pieces: bytes) -> None:
        """What need not be cut."""
        self._put("", 0, b"".join(pieces))

    def rows(
        self, field: str, rows: Iterable[Any], size_of: Callable[[Any], int] | None = None
    ) -> Iterator[None]:
        """An array. `size_of` says of a row that may be large how large it is."""
        return self._many(field, rows, size_of, array_head, list)

    def entries(self, field: str, items: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """A map."""
        return self._many(field, items, None, map_head, dict)

    def _many(
        self,
        field: str,
        rows: Iterable[Any],
        size_of: Callable[[Any], int] | None,
        head: Callable[[int], bytes],
        form: Callable[[list[Any]], Any],
    ) -> Iterator[None]:
        at, count = self._put(field, _HEAD, b""), 0
        batch: list[Any] = []
        for row in rows:
            batch.append(row)
            if self.spend(0 if size_of is None else size_of(row)):
                count += self._put_rows(field, batch, head, form)
                batch = []
                yield
        if batch:
            count += self._put_rows(field, batch, head, form)
        self._pieces[at] = head(count)
        self.parts[at] = (field, _HEAD, len(self._pieces[at]))

    def spend(self, size: int) -> bool:
        """Whether this row, of so many bytes, is the last one of a step."""
        self._rows_left -= 1
        self._bytes_left -= size
        is_over = self._rows_left <= 0 or self._bytes_left <= 0
        if is_over:
            self._rows_left, self._bytes_left = self._rows_at_once, _BYTES_AT_ONCE
        return is_over

    def _put_rows(
        self, field: str, batch: list[Any], head: Callable[[int], bytes], form: Callable[[list[Any]], Any]
    ) -> int:
        count = len(batch)
        self._put(field, count, encode(form(batch))[len(head(count)) :])
        return count

    def _put(self, field: str, count: int, piece: bytes) -> int:
        self._pieces.append(piece)
        self.parts.append((field, count, len(piece)))
        return len(self._pieces) - 1


class Freezing(Protocol):
    """A state as it was at one moment."""

    def encode(self, pieces: Pieces) -> Iterator[None]:
        """All of it, in steps, while the state goes on."""

    def end(self) -> None:
        """It is encoded, or not wanted any more. May be called again."""


class Source(Protocol):
    """The bytes of a saved state, one after the other."""

    def take(self, size: int) -> bytes: ...


class Parts:
    """Reads what `Pieces` wrote. `skeleton` is all but the rows; `rows` gives them afterwards, field by
    field, a few at a time, in the order in which they stand there."""

    def __init__(self, parts: Iterable[Sequence[Any]], source: Source) -> None:
        self._rows: list[tuple[str, int, list[bytes]]] = []
        self._parts = [(str(field), int(count), int(size)) for field, count, size in parts]
        self._source = source
        self.skeleton = b""
        self._held: list[tuple[str, bytes]] = []

    def read(self) -> Iterator[None]:
        """In steps; then `skeleton` and `rows` can be had."""
        skeleton: list[bytes] = []
        is_map = False
        for field, count, size in self._parts:
            piece = self._source.take(size)
            if not field:
                skeleton.append(piece)
            elif count == _HEAD:
                is_map = piece[0] & 0xF0 == 0x80 or piece[0] in (0xDE, 0xDF)
                skeleton.append(_EMPTY_MAP if is_map else _EMPTY_ARRAY)
            else:
                head = map_head(count) if is_map else array_head(count)
                self._held.append((field, head + piece))
                yield
        self.skeleton = b"".join(skeleton)

    def rows(self) -> Iterator[tuple[str, bytes]]:
        """A field, and an array or a map of some of its rows."""
        for at, (field, data) in enumerate(self._held):
            self._held[at] = (field, b"")
            yield field, data


def array_head(count: int) -> bytes:
    """What msgpack puts before an array of so many."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def map_head(count: int) -> bytes:
    """What msgpack puts before a map of so many."""
    if count < 16:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2) if count < 1 << 16 else b"\xdf" + count.to_bytes(4)


def finished(steps: Iterable[Any]) -> None:
    """Take all steps at once."""
    for _ in steps:
        pass
