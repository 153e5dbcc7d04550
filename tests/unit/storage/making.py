"""Packets, blocks and logs for the storage tests."""

import random
from collections.abc import Iterable, Sequence

from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.storage.block import Block, Codec, Kind, data_blocks, opaque_block
from millrace.storage.log import Log, LogSettings
from millrace.storage.records import EMPTY, Tail, tail_after
from millrace.types import Index, Offset, Term

SHARD = 7
SALT = 0x5EED_5A17
DIRECTORY = "shard"

# Small sizes, so that a short workload rolls segments and writes checkpoints.
SMALL = LogSettings(segment_bytes=4_000, checkpoint_every_bytes=1_500, fill_bytes=900, fill_from_bytes=1_000)


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, byte = value >> 7, value & 127
        out.append(byte | (128 if value else 0))
        if not value:
            return bytes(out)


def publish(
    topic: bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    retain: bool = False,
    version: int = 4,
    packet_id: int = 1,
    properties: bytes = b"",
) -> bytes:
    """One PUBLISH packet as a client sends it."""
    body = len(topic).to_bytes(2, "big") + topic
    if qos:
        body += packet_id.to_bytes(2, "big")
    if version == 5:
        body += varint(len(properties)) + properties
    body += payload
    return bytes((0x30 | qos << 1 | retain,)) + varint(len(body)) + body


def data(*payloads: bytes, topic: bytes = b"t", codec: Codec = Codec.NONE) -> Block:
    """One data block with these payloads on one topic."""
    (block,) = data_blocks([Run(b"".join(publish(topic, payload) for payload in payloads), 4)], codec)
    return block


def chain(
    blocks: Iterable[Block],
    after: Tail = EMPTY,
    *,
    term: int | None = None,
    shard: int = SHARD,
    time_us: int = 1_000_000,
) -> list[Block]:
    """The blocks stamped so that they follow `after` and each other, one second apart."""
    stamped = []
    for block in blocks:
        stamped.append(
            block.stamped(
                shard=shard,
                term=after.last_term if term is None else term,
                index=after.next_index,
                previous_term=after.last_term,
                base_offset=after.next_offset,
                base_time_us=time_us * after.next_index,
            )
        )
        after = tail_after(stamped[-1].header)
    return stamped


def carrying(block: Block, before: bytes = b"under some key") -> Block:
    """A control block that carries a whole block, as one does that a writer staged."""
    return opaque_block(Kind.CONTROL, before + block.to_bytes())


def some_blocks(
    rng: random.Random, count: int, size_max: int = 300, staged: list[Block] | None = None
) -> list[Block]:
    """Data of random size on random topics, with a control block now and then. Some of these carry a data
    block that comes later, also in a later call with the same list `staged`."""
    blocks: list[Block] = []
    staged = [] if staged is None else staged
    while len(blocks) < count:
        kind = rng.random()
        if kind < 0.1:
            blocks.append(opaque_block(Kind.CONTROL, rng.randbytes(rng.randrange(40))))
        elif kind < 0.2:
            staged.append(data(rng.randbytes(rng.randrange(size_max)), topic=b"staged"))
            blocks.append(carrying(staged[-1], rng.randbytes(rng.randrange(20))))
        elif kind < 0.3 and staged:
            blocks.append(staged.pop(0))
        else:
            topic = f"site/{rng.randrange(4)}/device/{rng.randrange(20)}".encode()
            payloads = [rng.randbytes(rng.randrange(size_max)) for _ in range(rng.randint(1, 3))]
            blocks.append(data(*payloads, topic=topic))
    return blocks


def stamps(block: Block) -> dict[str, int]:
    """The fields that `stamped` takes, as they are in this block."""
    names = ("shard", "term", "index", "previous_term", "base_offset", "base_time_us")
    return {name: getattr(block.header, name) for name in names}


def tail_of(log: Log) -> Tail:
    return Tail(next_index=log.last_index + 1, last_term=log.last_term, next_offset=log.next_offset)


def new_disk(seed: int = 1) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_directory(DIRECTORY)
    disk.sync_directory("")
    return disk


def open_log(disk: SimDisk, settings: LogSettings = SMALL) -> Log:
    return Log.open(disk, DIRECTORY, shard=SHARD, salt=SALT, settings=settings)


def contents(log: Log) -> list[bytes]:
    """Every block of the log, read back."""
    return [block.to_bytes() for block in read_all(log)]


def read_all(log: Log) -> list[Block]:
    blocks: list[Block] = []
    index = log.first_index
    while index <= log.last_index:
        blocks += log.read(index, log.last_index)
        index = Index(blocks[-1].header.index + 1)
    return blocks


def raw(blocks: Sequence[Block]) -> list[bytes]:
    return [block.to_bytes() for block in blocks]


def reset_to(log: Log, next_index: int, last_term: int, next_offset: int) -> None:
    log.reset(next_index=Index(next_index), last_term=Term(last_term), next_offset=Offset(next_offset))
