"""The byte loops between packets and columns as Arrow has them: values end to end, with edges between them.

`pack_rows` makes PUBLISH packets out of columns, `gather` a column out of slices of a block. Both have a twin
in C, which serves where it is built; those here are the reference.
"""

from array import array

from millrace.kernels import ACCELERATED
from millrace.kernels.publish import head

_LENGTH_TOP = 268_435_455
_EDGE_TOP = (1 << 31) - 1


def pack_rows(
    words: tuple[bytes, ...],
    topic_ids: memoryview,
    firsts: memoryview,
    payload_edges: memoryview,
    payload: memoryview,
    properties_edges: memoryview | None,
    properties: memoryview | None,
    rows: memoryview,
) -> tuple[bytes, bytes]:
    """The packets of `rows` (64 bits each), and, 64 bits each, where each one begins and the last one ends.

    `words` are topics as they stand in a packet, behind their length; `topic_ids` (32 bits) says which one a
    row has, `firsts` its first byte. Above QoS 0 it gets the packet id 1. Edges have 32 bits.
    """
    pieces: list[bytes | memoryview] = []
    edges = array("q", (0,))
    for row in rows:
        if not 0 <= row < min(len(firsts), len(topic_ids)) or not 0 <= topic_ids[row] < len(words):
            raise ValueError("a row is not in the columns")
        middle = words[topic_ids[row]] + (b"\0\1" if firsts[row] & 6 else b"")
        more = b"" if properties_edges is None else _value(properties_edges, properties, row)
        value = _value(payload_edges, payload, row)
        length = len(middle) + len(more) + len(value)
        if length > _LENGTH_TOP:
            raise ValueError(f"a message of {length} bytes is larger than any MQTT packet")
        start = head(firsts[row], length)
        pieces += (start, middle, more, value)
        edges.append(edges[-1] + len(start) + length)
    return b"".join(pieces), edges.tobytes()


def _value(edges: memoryview, data: memoryview | None, row: int) -> memoryview:
    if data is None or row + 1 >= len(edges) or not 0 <= edges[row] <= edges[row + 1] <= len(data):
        raise ValueError("a row is not in the columns")
    return data[edges[row] : edges[row + 1]]


def gather(data: memoryview, starts: memoryview, ends: memoryview) -> tuple[bytes, bytes]:
    """The edges (32 bits) of the slices from each start to its end (64 bits), and the slices end to end."""
    if len(starts) != len(ends):
        raise ValueError("there are not as many ends as starts")
    edges = array("i", (0,))
    pieces = []
    for start, end in zip(starts, ends, strict=True):
        if not 0 <= start <= end <= len(data) or edges[-1] + end - start > _EDGE_TOP:
            raise ValueError("a slice is not in the data, or all of them are too much")
        pieces.append(data[start:end])
        edges.append(edges[-1] + end - start)
    return edges.tobytes(), b"".join(pieces)


# Those that serve.
pack, collect = pack_rows, gather
if ACCELERATED:
    from millrace.kernels import _kernels

    pack, collect = _kernels.pack_rows, _kernels.gather
