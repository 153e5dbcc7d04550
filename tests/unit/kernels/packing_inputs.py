"""Random columns for the kernel that packs rows: right ones, and some that both twins must refuse."""

from array import array
from random import Random
from typing import Any

_WORDS = (b"\0\1a", b"\0\3b/c", b"\0\x82" + b"t" * 130)


def _values(random: Random, rows: int) -> tuple[memoryview, memoryview]:
    edges = array("i", (0,))
    for _ in range(rows):
        edges.append(edges[-1] + (16_380 if random.random() < 0.01 else random.choice((0, 1, 20, 124, 125))))
    data = random.randbytes(edges[-1])
    match random.randint(0, 19):
        case 0:
            edges[random.randrange(len(edges))] = random.choice((-1, 1 << 30, 7))
        case 1:
            edges = edges[: random.randint(0, rows)]
        case 2:
            data = data[: random.randint(0, len(data))]
    return memoryview(edges), memoryview(data)


def slices(random: Random) -> tuple[memoryview, memoryview, memoryview]:
    """Those of one call of `gather`."""
    data = random.randbytes(random.randint(0, 60))
    starts, ends = array("q"), array("q")
    for _ in range(random.randint(0, 6)):
        starts.append(random.randint(0, len(data)))
        ends.append(random.randint(starts[-1], len(data)))
    match random.randint(0, 9):
        case 0 if starts:
            starts[-1] = random.choice((-1, len(data) + 1, 1 << 40))
        case 1 if starts:
            ends[0] = random.choice((-1, len(data) + 1, (1 << 63) - 1))
        case 2:
            ends.append(0)
    return memoryview(data), memoryview(starts), memoryview(ends)


def table(random: Random) -> tuple[Any, ...]:
    """Those of one call of `pack_rows`."""
    count = random.randint(0, 8)
    topic_ids = array("i", (random.randrange(len(_WORDS)) for _ in range(count)))
    firsts = bytes(0x30 | random.randrange(3) << 1 | random.randint(0, 1) for _ in range(count))
    rows = array("q", sorted(random.sample(range(count), random.randint(0, count))))
    match random.randint(0, 19):
        case 0 if count:
            topic_ids[random.randrange(count)] = random.choice((-1, len(_WORDS), 1 << 30))
        case 1:
            rows.append(random.choice((-1, count, 1 << 40)))
        case 2:
            firsts = firsts[: random.randint(0, count)]
    properties = (None, None) if random.random() < 0.5 else _values(random, count)
    columns = (memoryview(topic_ids), memoryview(firsts), *_values(random, count), *properties)
    return (_WORDS, *columns, memoryview(rows))
