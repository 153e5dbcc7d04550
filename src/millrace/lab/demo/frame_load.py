"""The load of the FRAME experiment: topics with periods, their publishers, and who counts what arrives.

It shares the processors with the nodes that it measures, so whatever can wait until after the run does: all
packets have one length, and what a subscriber got is taken apart at the end.
"""

import asyncio
import contextlib
import random
import struct
import time
from array import array
from collections import deque

CATEGORIES = (
    (50, 50, 0, 2),
    (50, 50, 3, 0),
    (100, 100, 0, 1),
    (100, 100, 3, 0),
    (100, 100, None, 0),
    (500, 500, 0, 1),
)
PAYLOAD = struct.Struct("<IId")
NAME = "alarms/%d/%05d"
HEAD_BYTES = 2 + 2 + len(NAME % (0, 0))
PACKET = struct.Struct(f"<{HEAD_BYTES}xIId")
"""Every packet of the run has this length, so that what the subscriber got is taken apart after the run."""
STEP_S = 0.005
SLOTS = 100
"""So many steps are the longest period, and a whole number of any."""


class Topic:
    __slots__ = ("arrived", "category", "head", "kept", "made_s", "number", "steps")

    def __init__(self, number: int) -> None:
        self.number = number
        self.category = number % len(CATEGORIES)
        period_ms, _, _, retention = CATEGORIES[self.category]
        self.steps = round(period_ms / 1000 / STEP_S)
        name = (NAME % (self.category, number)).encode()
        rest = struct.pack(">H", len(name)) + name
        self.head = bytes((0x30, len(rest) + PAYLOAD.size)) + rest
        self.kept: deque[bytes] = deque(maxlen=retention)
        # By sequence: when each message was made, and when it arrived first.
        self.made_s = array("d")
        self.arrived = array("d")

    @property
    def sent(self) -> int:
        return len(self.made_s)

    def packet(self, now_s: float) -> bytes:
        packet = self.head + PAYLOAD.pack(self.number, len(self.made_s), now_s)
        self.made_s.append(now_s)
        self.kept.append(packet)
        return packet


def connect_packet(name: str) -> bytes:
    rest = struct.pack(">H4sBBH", 4, b"MQTT", 4, 2, 0) + struct.pack(">H", len(name)) + name.encode()
    return bytes((0x10, len(rest))) + rest


class Publishing:
    """One connection for some of the topics."""

    def __init__(self, number: int, topics: list[Topic], ports: list[int]) -> None:
        self.number = number
        self.topics = topics
        self._ports = ports
        self._writer: asyncio.StreamWriter | None = None
        # Which topics are due in each of the next steps.
        self._due: list[list[Topic]] = [[] for _ in range(SLOTS)]
        self.connected_s = 0.0
        """When it was connected last."""

    def begin(self, topic: Topic, step: int) -> None:
        self._due[step % SLOTS].append(topic)

    async def run(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[0])
                writer.write(connect_packet(f"pub{self.number}-{random.getrandbits(32)}"))
                await reader.readexactly(4)
            except (OSError, asyncio.IncompleteReadError):
                self._ports.append(self._ports.pop(0))
                await asyncio.sleep(0.002)
                continue
            self.connected_s = time.time()
            writer.write(b"".join([packet for topic in self.topics for packet in topic.kept]))
            self._writer = writer
            with contextlib.suppress(OSError):
                while await reader.read(65536):
                    pass
            self._writer = None
            self._ports.append(self._ports.pop(0))

    def step(self, step: int) -> None:
        now_s, at = time.time(), step % SLOTS
        due, self._due[at] = self._due[at], []
        made = []
        for topic in due:
            made.append(topic.packet(now_s))
            self._due[(at + topic.steps) % SLOTS].append(topic)
        if made and self._writer is not None:
            self._writer.write(b"".join(made))


class Subscribing(asyncio.Protocol):
    """Keeps what came, and when; it is looked at after the run."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._answers = 4 + 5
        self.is_ready = asyncio.Event()
        self._came: list[tuple[float, bytes]] = []

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)
        await self.is_ready.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        filter = b"alarms/#"
        rest = struct.pack(">HH", 1, len(filter)) + filter + b"\x00"
        transport.write(connect_packet(f"sub{self._port}") + bytes((0x82, len(rest))) + rest)

    def data_received(self, data: bytes) -> None:
        if self._answers:
            taken = min(self._answers, len(data))
            self._answers -= taken
            data = data[taken:]
            if not self._answers:
                self.is_ready.set()
        self._came.append((time.time(), data))

    def note(self, topics: list[Topic]) -> None:
        """When each message arrived here, if it had not arrived anywhere before."""
        rest = b""
        for now_s, came in self._came:
            data = rest + came
            whole = len(data) - len(data) % PACKET.size
            for number, sequence, _ in PACKET.iter_unpack(data[:whole]):
                arrived = topics[number].arrived
                arrived[sequence] = min(arrived[sequence], now_s)
            rest = data[whole:]
        self._came.clear()
