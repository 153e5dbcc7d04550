"""What the nodes of a frame schedule say to each other.

The messages of clients travel as a run of one topic class, encoded by `encode_run`: one key, if any, is for
all of them. Runs are gathered and leave together once per turn of the loop, in messages of a bounded size.
What expires comes alone, and with the time that is left.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from millrace.broker.messages.message import Run, expiry_of
from millrace.errors import MalformedPacket
from millrace.kernels import skip

# What becomes of an offer; one that came to a node that is not primary right now is made again.
IS_REFUSED, IS_TAKEN, IS_LATER = range(3)
# What one message carries; one run may be larger.
_BATCH_MAX = 256
_BATCH_BYTES_MAX = 256 * 1024

Row = TypeVar("Row")
Key = tuple[bytes, int]
Wire = tuple[bytes, int, int, bool, bool, bytes, int]
"""Packets, how many, QoS, version 5, retain, producer, sequence."""
_ENCODER = msgspec.msgpack.Encoder()
_WIRE = msgspec.msgpack.Decoder(Wire)


class CopyRow(NamedTuple):
    number: int
    messages: int
    wants_echo: bool
    run: bytes


class Copies(msgspec.Struct, frozen=True, array_like=True):
    """From the primary: runs to keep until they are discarded."""

    epoch: int
    rows: list[CopyRow]


class Discards(msgspec.Struct, frozen=True, array_like=True):
    """From the primary: the runs with these numbers are dispatched."""

    epoch: int
    numbers: list[int]


class OfferedRuns(msgspec.Struct, frozen=True, array_like=True):
    """From a node that is not primary: what its clients published."""

    origin: int
    first: int
    """The first number that is not answered."""
    rows: list[tuple[int, bytes]]
    """Number and run."""


class OfferAnswers(msgspec.Struct, frozen=True, array_like=True):
    """From the primary: what became of each offer, by its number."""

    rows: list[tuple[int, int]]


class Echo(msgspec.Struct, frozen=True, array_like=True):
    """From the backup: a copy that wanted an echo has arrived."""

    epoch: int
    number: int


FrameMessage: TypeAlias = Copies | Discards | OfferedRuns | OfferAnswers | Echo


def check_copies(copies: Copies) -> None:
    """What cannot be read is refused now, not in a failover. Raises MalformedPacket."""
    for row in copies.rows:
        decode_run(row.run, 0)


def encode_run(run: Run, key: Key, now_ms: int) -> bytes:
    return _ENCODER.encode((run.aged(now_ms), run.count, run.qos, run.v5, run.retain, *key))


def decode_run(body: bytes, now_ms: int) -> tuple[Run, Key]:
    """The other way; MalformedPacket where it is not a run."""
    try:
        packets, count, qos, v5, retain, producer, sequence = _WIRE.decode(body)
        if count < 1 or skip(packets, count) != len(packets):
            raise ValueError(f"not a run of {count} packets")
        expiry_s = expiry_of(packets) if v5 and count == 1 else None
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise MalformedPacket(f"messages of a frame schedule that cannot be read: {error}") from None
    expires_ms = None if expiry_s is None else now_ms + expiry_s * 1000
    return Run(packets, count, qos, v5, retain, expires_ms), (producer, sequence)


def batches(rows: Iterable[Row], bytes_of: Callable[[Row], int]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size_bytes = 0
    for row in rows:
        batch.append(row)
        size_bytes += bytes_of(row)
        if len(batch) >= _BATCH_MAX or size_bytes >= _BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch
