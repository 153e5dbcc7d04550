"""Random runs for the block kernels: right, cut, damaged and mixed, of every version."""

from random import Random

from millrace.kernels.blocks import Run

_TOPICS = (b"a", b"b/c", b"plant/7/temperature", b"\xc3\xa9", b"t" * 130, b"")
_PROPERTIES = (
    b"\x00",
    b"\x02\x01\x01",
    b"\x05\x02\x00\x00\x00\x09",
    b"\x81\x01" + b"\x26" * 129,
    b"\x80\x00",
)


def _varint(value: int, *, is_long: bool) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    if is_long and len(out) < 4:
        out[-1] |= 128
        out.append(0)
    return bytes(out)


def packet(random: Random, version: int) -> bytes:
    topic = random.choice(_TOPICS)
    qos = random.randint(0, 2)
    body = len(topic).to_bytes(2, "big") + topic
    if qos:
        body += random.randint(1, 65_535).to_bytes(2, "big")
    if version == 5:
        body += random.choice(_PROPERTIES)
    body += random.randbytes(random.choice((0, 1, 20, 200)))
    first = 0x30 | random.randint(0, 1) << 3 | qos << 1 | random.randint(0, 1)
    return bytes((first,)) + _varint(len(body), is_long=random.random() < 0.05) + body


def _packets(random: Random, version: int) -> bytes:
    data = b"".join(packet(random, version) * random.choice((1, 1, 3)) for _ in range(random.randint(0, 6)))
    match random.randint(0, 11):
        case 0:
            data = data[: random.randint(0, len(data))]
        case 1 if data:
            at = random.randrange(len(data))
            data = data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
        case 2:
            data += random.randbytes(random.randint(1, 12))
    return data


def runs(random: Random) -> list[Run]:
    """The runs of one block; about every second list is one that both twins must refuse."""
    made = []
    for _ in range(random.randint(0, 4)):
        version = random.choice((4, 5))
        made.append(
            Run(
                packets=_packets(random, version),
                version=version,
                delta_us=random.choice((0, 1, 2**32 - 1))
                if random.random() < 0.98
                else random.choice((-1, 2**32)),
                topic=random.choice((None, b"", b"given")) if random.random() < 0.5 else b"given",
                publisher=random.choice((None, b"", b"device", b"another one")),
            )
        )
    return made
