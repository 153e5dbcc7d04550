"""Input for the kernels: chunks and runs of packets, some whole, some cut, some damaged.

Everything comes from the generator that is passed in, so a seed is a case. Routes are plain objects: a kernel
may compare them by identity only.
"""

from random import Random
from typing import Any

PACKET_ID_TOP = 65_535
BYTES_MAX = 4096

ROUTE_A, ROUTE_B = object(), object()
# Two topics share a route, so that packets of different topics join into one span.
ROUTES: dict[bytes, Any] = {
    b"a": ROUTE_A,
    b"b": ROUTE_A,
    b"long/" + b"x" * 140: ROUTE_B,
    "grün/☃".encode(): ROUTE_B,
}
UNKNOWN = (b"", b"c", b"aa", b"\xff")

# Each property as the standard writes it, and each way to get it wrong that a scan must notice.
GOOD_PROPERTIES = (
    b"\x01\x00",
    b"\x01\x01",
    b"\x03\x00\x0atext/plain",
    b"\x03\x00\x02\xc3\xbc",
    b"\x08\x00\x03r/1",
    b"\x09\x00\x03\x00\xff\x00",
    b"\x09\x00\x00",
    b"\x26\x00\x01k\x00\x01v",
    b"\x26\x00\x00\x00\x00",
    b"\x26\x00\x04\xf0\x9f\x92\xa7\x00\x00",
)
BAD_PROPERTIES = (
    b"\x01\x02",
    b"\x01",
    b"\x02\x00\x00\x00\x05",
    b"\x03\x00\x02\xc3(",
    b"\x03\x00\x03\xed\xa0\x80",
    b"\x03\x00\x02\xc0\x80",
    b"\x03\x00\x01\x00",
    b"\x03\x00\x09short",
    b"\x08\x00\x00",
    b"\x08\x00\x03a/#",
    b"\x08\x00\x01+",
    b"\x0b\x01",
    b"\x23\x00\x01",
    b"\x26\x00\x01k",
    b"\x26\x00\x01k\x00\x04\xf5\x80\x80\x80",
    b"\x7f\x00",
    b"\xff",
)


def varint(value: int, padding: int = 0) -> bytes:
    """A variable byte integer; `padding` bytes longer than it has to be."""
    out = bytearray()
    while value > 127 or padding:
        out.append(value & 127 | 128)
        if value <= 127:
            padding -= 1
        value >>= 7
    out.append(value)
    return bytes(out)


def publish(
    topic: bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 1,
    properties: bytes | None = None,
    flags: int = 0,
    padding: int = 0,
) -> bytes:
    """A PUBLISH; `properties` is the content of the block (None before MQTT 5)."""
    body = len(topic).to_bytes(2, "big") + topic
    if qos:
        body += packet_id.to_bytes(2, "big")
    if properties is not None:
        body += varint(len(properties)) + properties
    body += payload
    return bytes((0x30 | qos << 1 | flags,)) + varint(len(body), padding) + body


def acknowledgement(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 2)) + packet_id.to_bytes(2, "big")


class Inputs:
    def __init__(self, random: Random) -> None:
        self.random = random

    def properties(self) -> bytes:
        random = self.random
        parts = random.choices(GOOD_PROPERTIES, k=random.choice((0, 0, 0, 1, 1, 2, 3)))
        if random.random() < 0.1:
            parts.append(random.choice(BAD_PROPERTIES))
        return b"".join(parts)

    def packet_id(self) -> int:
        random = self.random
        return random.choice((0, 1, 255, 256, PACKET_ID_TOP, random.randint(1, PACKET_ID_TOP)))

    def publish(self, v5: bool, qos: int | None = None) -> bytes:
        random = self.random
        topic = random.choice(tuple(ROUTES)) if random.random() < 0.95 else random.choice(UNKNOWN)
        return publish(
            topic,
            random.randbytes(random.choice((0, 1, 20, 20, 20, 119, 130, 300))),
            qos=random.randint(0, 2) if qos is None else qos,
            packet_id=self.packet_id() if random.random() < 0.2 else random.randint(1, PACKET_ID_TOP),
            properties=self.properties() if v5 else None,
            padding=random.choice((0,) * 30 + (1, 2)),
        )

    def acknowledgements(self) -> bytes:
        random = self.random
        first_byte = random.choice((0x40, 0x50, 0x62, 0x70))
        start = self.packet_id()
        return b"".join(
            acknowledgement(first_byte, min(start + n, PACKET_ID_TOP)) for n in range(random.randint(1, 4))
        )

    def unusual(self) -> bytes:
        random = self.random
        return random.choice(
            (
                b"\xc0\x00",
                b"\x31\x03\x00\x01a",
                b"\x3a\x05\x00\x01a\x00\x01",
                b"\x36\x05\x00\x01a\x00\x01",
                b"\x40\x03\x00\x01\x10",
                b"\x60\x02\x00\x01",
                b"\x30\xff\xff\xff\xff\x7f",
                b"\x00\x00",
                random.randbytes(random.randint(1, 9)),
            )
        )

    def piece(self, v5: bool) -> bytes:
        kind = self.random.random()
        if kind < 0.6:
            # Equal neighbours are the case that the scan takes a short cut for.
            return self.publish(v5) * self.random.choice((1, 1, 1, 2, 5))
        return self.acknowledgements() if kind < 0.95 else self.unusual()

    def chunk(self, v5: bool) -> bytes:
        """What a socket may bring: packets, perhaps the last one cut, perhaps bytes changed."""
        random = self.random
        data = b"".join(self.piece(v5) for _ in range(random.randint(0, 6)))
        if random.random() < 0.3:
            data = data[: random.randint(0, len(data))]
        return self.damaged(data) if random.random() < 0.3 else data

    def run(self, v5: bool, qos: int) -> bytes:
        """Whole packets with one first byte; sometimes damaged, which a kernel must survive."""
        data = b"".join(self.publish(v5, qos) for _ in range(self.random.randint(0, 6)))
        return self.damaged(data) if self.random.random() < 0.2 else data

    def damaged(self, data: bytes) -> bytes:
        random = self.random
        out = bytearray(data)
        for _ in range(random.randint(1, 4)):
            if not out:
                break
            at = random.randrange(len(out))
            change = random.random()
            if change < 0.5:
                out[at] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
            elif change < 0.75:
                del out[at : at + random.randint(1, 4)]
            else:
                out[at:at] = random.randbytes(random.randint(1, 3))
        return bytes(out)


def calls(random: Random) -> list[tuple[str, tuple[Any, ...]]]:
    """One round: every kernel by name with arguments, for comparing twins and for the sanitizer."""
    inputs = Inputs(random)
    v5 = random.random() < 0.5
    chunk = inputs.chunk(v5)
    qos = random.randint(0, 2)
    run = inputs.run(v5, qos)
    first_byte = random.choice((0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D))
    to_v5 = random.random() < 0.5
    extra = random.choice((b"", b"", b"\x0b\x01", b"\x0b\xff\xff\xff\x7f" * 30)) if to_v5 else b""
    packet_id = random.choice((1, 65_533, PACKET_ID_TOP, random.randint(1, PACKET_ID_TOP)))
    pos = random.randint(0, len(chunk)) if random.random() < 0.2 else 0
    ack_count = random.choice((0, 1, 100, PACKET_ID_TOP)) if random.random() < 0.01 else random.randint(0, 5)
    return [
        (
            "scan",
            (chunk, pos, ROUTES, v5, BYTES_MAX),
        ),
        ("scan", (chunk, 0, {}, v5, BYTES_MAX)),
        ("scan", (chunk, 0, ROUTES, v5, random.randint(0, 200))),
        ("ack_run", (random.choice((0x40, 0x50, 0x62, 0x70)), packet_id, ack_count)),
        ("packet_ids", (run,)),
        ("acks", (run, random.choice((0x40, 0x50)))),
        ("skip", (run, random.randint(0, 7))),
        ("skip", (run, random.randint(0, 2), random.randint(0, len(run)))),
        ("reframe", (run, v5, to_v5, first_byte, packet_id, extra)),
    ]
