"""The worked example of docs/understand/format.md, made from the code that writes blocks.

`PYTHONPATH=src:tests python tests/unit/storage/format_example.py` puts it into the page and writes the golden
files. A change of either is a change of the format: a new version number, and a reader for the old one.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.storage.block import Block, Codec, Kind, data_blocks, opaque_block
from millrace.storage.files import HardState, write_hard_state
from millrace.storage.log import Log
from millrace.storage.records import Tail
from millrace.storage.snapshot import SnapshotStore
from millrace.types import Index, Offset, Term
from unit.storage.making import DIRECTORY, SALT, SHARD, chain, new_disk, publish

PAGE = Path(__file__).parents[3] / "docs" / "understand" / "format.md"
BEGIN = "<!-- example: begin -->"
END = "<!-- example: end -->"


def example_block() -> Block:
    """Two connections: one sent two messages over MQTT 3.1.1, the other one over MQTT 5 with a sequence."""
    first = publish(b"hall/temp", b"21.5", qos=1, packet_id=7)
    second = publish(b"hall/temp", b"21.6", qos=1, packet_id=8)
    third = publish(b"hall/door", b"open", retain=True, version=5, properties=b"\x01\x01")
    runs = [
        Run(first + second, 4, delta_us=0, publisher=b"sensor"),
        Run(third, 5, delta_us=250, publisher=b"gate", producer=b"gate", sequences=[41]),
    ]
    (block,) = data_blocks(runs)
    after = Tail(next_index=12, last_term=3, next_offset=1_000)
    return chain([block], after, term=3, time_us=150_000_000_000_000)[0]


def zlib_block() -> Block:
    (block,) = data_blocks([Run(publish(b"hall/temp", b"20.0") * 40, 4)], Codec.ZLIB)
    return chain([block], term=1)[0]


def control_block() -> Block:
    return chain([opaque_block(Kind.CONTROL, b"trim 17")], term=2)[0]


def example_shard() -> SimDisk:
    """A directory of a shard with one of each kind of file."""
    disk = new_disk(1)
    log = Log.open(disk, DIRECTORY, shard=SHARD, salt=SALT)
    block = example_block()
    log.reset(next_index=Index(12), last_term=Term(3), next_offset=Offset(block.header.base_offset))
    log.append([block])
    log.sync()
    after = Tail(next_index=13, last_term=3, next_offset=block.header.next_offset)
    log.append(chain([opaque_block(Kind.NOOP)], after, term=4))
    log.close()
    write_hard_state(disk, f"{DIRECTORY}/hard", HardState(term=Term(4), vote="n1", commit=Index(13)))
    writer = SnapshotStore(disk, DIRECTORY, shard=SHARD).begin(Index(11))
    writer.write(random.Random(1).randbytes(100))
    writer.finish(term=Term(3), config=b'[["n1"],[]]')
    return disk


def _fields(block: Block) -> Iterator[tuple[str, int, str]]:
    """(name, bytes, kind of value) for every byte of a data block, in order."""
    header = block.header
    columns, topics = block.columns(), block.topics()
    yield from [("magic", 4, "text"), ("version", 2, "number"), ("kind: data", 1, "number")]
    yield from [("codec: none", 1, "number"), ("body bytes", 4, "number"), ("plain bytes", 4, "number")]
    yield from [("raw bytes", 4, "number"), ("count", 4, "number"), ("topics", 4, "number")]
    yield from [("shard", 4, "number"), ("term", 8, "number"), ("index", 8, "number")]
    yield from [("previous term", 8, "number"), ("base offset", 8, "number"), ("base time us", 8, "number")]
    yield from [("origin", 8, "number"), ("sequence", 8, "number")]
    yield from [("body checksum", 4, "hex"), ("head checksum", 4, "hex")]
    topic_bytes, name_bytes = sum(map(len, topics)), sum(map(len, columns.names))
    yield from [("topic bytes", 4, "number"), ("names", 4, "number"), ("name bytes", 4, "number")]
    yield from [("packet bytes", 4, "number"), ("columns present", 4, "number"), ("key bytes", 4, "number")]

    def padded(name: str, size: int, kind: str) -> Iterator[tuple[str, int, str]]:
        yield name, size, kind
        if size % 8:
            yield "padding", -size % 8, "padding"

    count = header.count
    yield from padded("topic offsets", 4 * (len(topics) + 1), "u32")
    yield from padded("topic text", topic_bytes, "text")
    for name in ("topic ids", "time deltas us", "packet positions", "packet sizes"):
        yield from padded(name, 4 * count, "u32")
    for name in ("payload positions", "payload sizes"):
        yield from padded(name, 4 * count, "u32")
    yield from padded("flags", count, "u8")
    yield from padded("publisher ids", 4 * count, "u32")
    yield from padded("producer ids", 4 * count, "u32")
    yield from padded("sequences", 8 * count, "u64")
    yield from padded("name offsets", 4 * (len(columns.names) + 1), "u32")
    yield from padded("name text", name_bytes, "text")
    for n, size in enumerate(columns.packet_sizes):
        yield f"packet {n}", size, "packet"
    rest = header.body_bytes - header.plain_bytes - header.raw_bytes
    if rest:
        yield "padding", rest, "padding"


def _value(data: bytes, kind: str) -> str:
    if kind == "number":
        return str(int.from_bytes(data, "little"))
    if kind == "hex":
        return f"0x{int.from_bytes(data, 'little'):08x}"
    if kind == "text":
        return data.decode()
    if kind.startswith("u"):
        size = int(kind[1:]) // 8
        numbers = [int.from_bytes(data[n : n + size], "little") for n in range(0, len(data), size)]
        return " ".join("none" if number == 0xFFFF_FFFF else str(number) for number in numbers)
    return ""


def render() -> str:
    """Every byte of the example block, named."""
    block = example_block()
    data = block.to_bytes()
    lines = ["```", f"{'at':>4}  {'field':<18}{'bytes':<50}value"]
    at = 0
    for name, size, kind in _fields(block):
        piece = data[at : at + size]
        value = _value(piece, kind)
        for n in range(0, size, 16):
            row = piece[n : n + 16].hex(" ")
            head = f"{at + n:>4}  {name if n == 0 else '':<18}{row:<50}{value if n == 0 else ''}"
            lines.append(head.rstrip())
        at += size
    assert at == len(data), "every byte has a name"
    return "\n".join([*lines, "```"])


def page_with_example(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


GOLDEN = Path(__file__).parent / "golden"
SHARD_FILES = {
    "00000000000000000011.snap": "shard_snapshot.bin",
    "00000000000000000012.idx": "shard_index.bin",
    "00000000000000000012.log": "shard_segment.bin",
    "hard": "shard_hard.bin",
}


if __name__ == "__main__":
    PAGE.write_text(page_with_example(PAGE.read_text()))
    for name, block in (("data", example_block()), ("zlib", zlib_block()), ("control", control_block())):
        (GOLDEN / f"block_{name}.bin").write_bytes(block.to_bytes())
    shard = example_shard()
    for file, golden in SHARD_FILES.items():
        (GOLDEN / golden).write_bytes(shard.content(f"{DIRECTORY}/{file}"))
