"""The arrivals of one block: into the log together, and back with it, each to its own fate."""

from collections.abc import Sequence
from typing import Protocol

from millrace.broker.messages.inbound import split_messages
from millrace.broker.messages.intake import Arrival
from millrace.broker.shards.block_facts import Key
from millrace.kernels import blocks as kernel
from millrace.kernels.blocks import FLAG_VERSION_SHIFT
from millrace.node.shards.tokens import Token
from millrace.reasons import Reason
from millrace.storage.block import Block


class BatchOwner(Protocol):
    """The shard, as a batch speaks to it."""

    def commit(self, batch: "Batch", block: Block) -> None: ...

    def pass_answers_on(self, batch: "Batch") -> None: ...

    def take_back(self, batch: "Batch") -> None: ...

    def refuse(self, arrivals: list[Arrival], reason: Reason) -> None: ...


class Batch(Token):
    """The arrivals of one block, handed back with it, and how many messages they have there."""

    __slots__ = ("_shard", "arrivals", "count", "is_plain", "since_us")

    def __init__(self, shard: BatchOwner, arrivals: list[Arrival], count: int, since_us: int) -> None:
        self._shard = shard
        self.arrivals = arrivals
        self.count = count
        # When the turn of the loop that brought them was cut.
        self.since_us = since_us
        self.is_plain = True
        for one in arrivals:
            if one.producer is not None or (one.run is not None and one.run.retain):
                self.is_plain = False
                break

    def deliver(self, block: Block) -> bool:
        self._shard.commit(self, block)
        return True

    def applied(self, block: Block) -> None:
        self._shard.commit(self, block)

    def on_marker(self) -> None:
        self._shard.pass_answers_on(self)

    def on_sealed(self) -> None:
        self._shard.take_back(self)

    def lost(self) -> None:
        self._shard.refuse(self.arrivals, Reason.SERVER_BUSY)

    def given_up(self) -> list[Arrival]:
        return self.arrivals


def sifted(arrivals: list[Arrival], stored: Sequence[Key | None]) -> tuple[list[Arrival], set[Arrival]]:
    """Which of these are not in a block whose messages have the keys `stored`, in order. One of which a part
    is there comes back as its single messages."""
    found: list[Arrival] = []
    left_out: set[Arrival] = set()
    row = 0
    for arrival in arrivals:
        if arrival.run is None or arrival.producer is None:
            found.append(arrival)
            row += 0 if arrival.run is None else arrival.run.count
            continue
        count = arrival.run.count
        keys = [
            (arrival.producer, sequence) for sequence in range(arrival.sequence, arrival.sequence + count)
        ]
        there = set(keys).intersection(stored[row : row + count])
        parts = [arrival] if len(there) in (0, count) else list(split_messages(arrival))
        found += parts
        left_out.update(one for one in parts if (arrival.producer, one.sequence) not in there)
        row += len(there)
    return found, left_out


def logged(arrival: Arrival) -> kernel.Run:
    run = arrival.run
    assert run is not None
    data = run.data
    if run.retain:
        data = bytes((data[0] | 1,)) + data[1:]
    session = arrival.session
    return kernel.Run(
        packets=data,
        version=5 if run.v5 else 4,
        publisher=session.client_id.encode() if session is not None else None,
        producer=arrival.producer,
        sequences=range(arrival.sequence, arrival.sequence + run.count)
        if arrival.producer is not None
        else (),
    )


def row_of(columns: kernel.Columns, row: int) -> kernel.Run:
    """One message of a block as a run of its own."""
    start = columns.packet_positions[row]
    publisher, producer = columns.publisher_ids[row], columns.producer_ids[row]
    return kernel.Run(
        packets=bytes(columns.packets[start : start + columns.packet_sizes[row]]),
        version=columns.flags[row] >> FLAG_VERSION_SHIFT,
        delta_us=columns.deltas_us[row],
        publisher=None if publisher == kernel.NO_NAME else bytes(columns.names[publisher]),
        producer=None if producer == kernel.NO_NAME else bytes(columns.names[producer]),
        sequences=() if producer == kernel.NO_NAME else (columns.sequences[row],),
    )
