"""What the two nodes of a frame schedule say to each other, and how it is written.

    copy      epoch, rows of: number, count, whether an echo is wanted, the messages
    discard   epoch, numbers
    offer     origin, the first number that is not answered, rows of: number, the messages; from a node that
              is not primary
    taken     rows of: number, what became of it
    echo      epoch, number

Messages are a run of one topic class: one key, if any, is for all of them. Words are gathered and leave
together once per turn of the loop, in frames of a bounded size. What expires comes alone, and with the time
that is left. What cannot be read raises MalformedPacket.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from millrace.broker.messages.message import Run, expiry_of
from millrace.errors import MalformedPacket
from millrace.kernels import skip

COPY, DISCARD, OFFER, TAKEN, ECHO = range(5)
# What becomes of an offer; one that came to a node that is not primary right now is made again.
IS_REFUSED, IS_TAKEN, IS_LATER = range(3)
# What one frame carries; one run may be larger.
_BATCH_MAX = 256
_BATCH_BYTES_MAX = 256 * 1024

Row = TypeVar("Row")
Key = tuple[bytes, int]
Wire = tuple[bytes, int, int, bool, bool, bytes, int]
"""Packets, how many, QoS, version 5, retain, producer, sequence."""
_ENCODER = msgspec.msgpack.Encoder()
_WIRE = msgspec.msgpack.Decoder(Wire)
_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    COPY: msgspec.msgpack.Decoder(tuple[int, list[tuple[int, int, bool, bytes]]]),
    DISCARD: msgspec.msgpack.Decoder(tuple[int, list[int]]),
    OFFER: msgspec.msgpack.Decoder(tuple[int, int, list[tuple[int, bytes]]]),
    TAKEN: msgspec.msgpack.Decoder(list[tuple[int, int]]),
    ECHO: msgspec.msgpack.Decoder(tuple[int, int]),
}


def encode_run(run: Run, key: Key, now_ms: int) -> bytes:
    return _ENCODER.encode((run.aged(now_ms), run.count, run.qos, run.v5, run.retain, *key))


def decode_run(body: bytes, now_ms: int) -> tuple[Run, Key]:
    try:
        packets, count, qos, v5, retain, producer, sequence = _WIRE.decode(body)
        if count < 1 or skip(packets, count) != len(packets):
            raise ValueError(f"not a run of {count} packets")
        expiry_s = expiry_of(packets) if v5 and count == 1 else None
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise MalformedPacket(f"messages of a frame schedule that cannot be read: {error}") from None
    expires_ms = None if expiry_s is None else now_ms + expiry_s * 1000
    return Run(packets, count, qos, v5, retain, expires_ms), (producer, sequence)


def encode(op: int, body: Any) -> bytes:
    return bytes((op,)) + _ENCODER.encode(body)


def decode(body: bytes) -> tuple[int, Any]:
    if not body or body[0] not in _DECODERS:
        raise MalformedPacket(f"a word of an unknown kind {body[:1].hex()} about a frame schedule")
    try:
        return body[0], _DECODERS[body[0]].decode(memoryview(body)[1:])
    except msgspec.DecodeError as error:
        raise MalformedPacket(f"a word about a frame schedule that cannot be read: {error}") from None


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
