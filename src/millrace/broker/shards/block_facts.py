"""What a block of messages says to the state of its log, beside the messages themselves.

Most blocks say nothing: their messages have no keys and are not retained, which is told without a look at
each. Columns in, plain values out; who holds a block made of arrivals that he knows to be plain need not ask.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millrace.broker.messages.message import Run, stored_run
from millrace.kernels.blocks import FLAG_QOS, FLAG_RETAIN, FLAG_VERSION_SHIFT, NO_NAME, Columns
from millrace.kernels.publish import payload_start

EDGE_PRODUCER = b"edge/"
"""Begins the producer of what an edge function made; no client may use such a name."""
_HAS_RETAIN = bytes(1 if flag & FLAG_RETAIN else 0 for flag in range(256))

Key = tuple[bytes, int]
"""Producer and sequence."""


class RetainedValue(NamedTuple):
    """One retained message, without the retain flag in its packet."""

    packet: bytes
    qos: int
    v5: bool
    time_us: int
    """When it was published, on the wall clock: its expiry counts from then."""

    def run(self, now_ms: int, wall_us: int) -> Run:
        """As it would be delivered now."""
        flags = FLAG_RETAIN | self.qos | (5 if self.v5 else 4) << FLAG_VERSION_SHIFT
        return stored_run(self.packet, 1, flags, self.time_us, now_ms, wall_us)

    @property
    def is_empty(self) -> bool:
        """Whether it deletes what was retained before ([MQTT-3.3.1-6])."""
        return payload_start(self.packet, self.v5) >= len(self.packet)


class BlockFacts(NamedTuple):
    keys: Sequence[Key] = ()
    retained: Sequence[tuple[str, RetainedValue]] = ()
    """Topics and their values, in order."""
    staged_key: bytes = b""
    """Of a block that was staged before: its name."""


PLAIN = BlockFacts()


def facts_of(
    columns: Columns, topics: Sequence[bytes], base_time_us: int, *, has_edge: bool = False
) -> BlockFacts:
    """`has_edge`: what was published to this log is for an edge function alone, and not retained."""
    keys = [key for key in keys_of(columns) if key is not None]
    return BlockFacts(keys, _retained(columns, topics, base_time_us, has_edge), columns.key)


def keys_of(columns: Columns) -> list[Key | None]:
    """The key of each message; an empty list where none has one."""
    producers = columns.producer_ids
    if not len(producers) or producers.tobytes().count(b"\xff") == 4 * len(producers):
        return []
    return [
        (bytes(columns.names[name]), sequence) if name != NO_NAME else None
        for name, sequence in zip(producers, columns.sequences, strict=True)
    ]


def _retained(
    columns: Columns, topics: Sequence[bytes], base_time_us: int, has_edge: bool
) -> list[tuple[str, RetainedValue]]:
    flags = bytes(columns.flags)
    if 1 not in flags.translate(_HAS_RETAIN):
        return []
    inputs = edge_inputs(columns) if has_edge else []
    found: list[tuple[str, RetainedValue]] = []
    for row, flag in enumerate(flags):
        if flag & FLAG_RETAIN and not any(first <= row < end for first, end in inputs):
            start = columns.packet_positions[row]
            packet = bytes(columns.packets[start : start + columns.packet_sizes[row]])
            value = RetainedValue(
                bytes((packet[0] & 0xFE,)) + packet[1:],
                flag & FLAG_QOS,
                flag >> FLAG_VERSION_SHIFT == 5,
                base_time_us + columns.deltas_us[row],
            )
            found.append((topics[columns.topic_ids[row]].decode(), value))
    return found


def edge_inputs(columns: Columns) -> list[tuple[int, int]]:
    """Spans of rows that are for an edge function alone: what was published, not what it made of it."""
    made = {n for n, name in enumerate(columns.names) if bytes(name).startswith(EDGE_PRODUCER)}
    is_made = [producer in made for producer in columns.producer_ids]
    spans: list[tuple[int, int]] = []
    for row in range(len(columns.flags)):
        if row >= len(is_made) or not is_made[row]:
            if spans and spans[-1][1] == row:
                spans[-1] = (spans[-1][0], row + 1)
            else:
                spans.append((row, row + 1))
    return spans
