"""A state is encoded as it was at one moment, a little at a time, whatever becomes of it meanwhile."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.freezing import Frozen, Parts, Pieces, array_head, encode, finished, map_head


class Tuples(Frozen[int, list[int]]):
    def row(self, key: int, value: list[int]) -> tuple[int, tuple[int, ...]]:
        return key, tuple(value)


class Bytes:
    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def take(self, size: int) -> bytes:
        self._position += size
        return self._data[self._position - size : self._position]


CHANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=60)


@settings(deadline=None)
@given(
    before=st.dictionaries(st.integers(0, 20), st.integers(0, 9)),
    changes=CHANGES,
    steps=st.lists(st.integers(0, 4)),
)
def test_what_is_frozen_is_given_as_it_was(
    before: dict[int, int], changes: list[tuple[int, int]], steps: list[int]
) -> None:
    """Values change, come and go between its rows."""
    values = {key: [value] for key, value in before.items()}
    frozen = Tuples(values)
    rows, found = frozen.rows(), []
    left = iter(changes)
    for count in [*steps, 1_000]:
        for _, (key, how) in zip(range(count), left, strict=False):
            frozen.keep(key)
            if how == 0:
                values.pop(key, None)
            elif how == 1:
                values[key] = [how]
            else:
                values.setdefault(key, []).append(how)
        found += [row for row in [next(rows, None)] if row is not None]
    found += rows
    assert found == [(key, (value,)) for key, value in before.items()]


ROWS = st.lists(st.tuples(st.text(max_size=4), st.integers(0, 1 << 40)), max_size=40)


ENTRIES = st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=40)


@settings(deadline=None)
@given(rows=ROWS, entries=ENTRIES, at_once=st.integers(1, 50))
def test_pieces_are_the_bytes_of_the_whole_and_can_be_read_back_in_parts(
    rows: list[tuple[str, int]], entries: dict[str, int], at_once: int
) -> None:
    pieces = Pieces(at_once)
    pieces.add(array_head(4), encode("first"))
    finished(pieces.rows("rows", rows))
    finished(pieces.entries("entries", entries.items()))
    pieces.add(encode("last"))
    assert pieces.joined() == encode(["first", rows, entries, "last"])
    assert all(count <= at_once for _, count, _ in pieces.parts)
    parts = Parts(pieces.parts, Bytes(pieces.joined()))
    finished(parts.read())
    assert msgspec.msgpack.decode(parts.skeleton) == ["first", [], {}, "last"]
    back_rows: list[tuple[str, int]] = []
    back_entries: dict[str, int] = {}
    for field, some in parts.rows():
        found = msgspec.msgpack.decode(some)
        if field == "rows":
            back_rows += map(tuple, found)
        else:
            back_entries.update(found)
    assert (back_rows, back_entries) == (rows, entries)


def test_heads_are_those_of_the_library() -> None:
    for count in (0, 15, 16, 65_535, 65_536):
        assert encode([None] * count).startswith(array_head(count))
        assert encode(dict.fromkeys(range(count))).startswith(map_head(count))
