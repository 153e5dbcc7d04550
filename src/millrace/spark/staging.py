"""What is staged, on its way to the nodes: sections of packets, each of which becomes one block there."""

import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from millrace.broker.shards.staging import SECTION
from millrace.spark.routes import Route
from millrace.spark.writing import ClusterWriter

_REQUEST_BYTES = 6 << 20
_REQUEST_SECTIONS = 64


@dataclass(frozen=True, slots=True)
class Section:
    """Packets for one block of a shard."""

    route: Route
    version: int
    pieces: tuple[memoryview, ...]
    """Views: the bytes are copied next when they are sent."""
    rows: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces))

    @property
    def packets(self) -> bytes:
        return b"".join(self.pieces)


class Stager:
    """One attempt: numbers its blocks, and sends them while the next ones are made."""

    def __init__(self, cluster: ClusterWriter, writer: str, batch: int, pool: ThreadPoolExecutor) -> None:
        self._cluster, self._pool = cluster, pool
        self.writer, self.batch = writer, batch
        self.attempt = f"a-{uuid.uuid4()}"
        self.blocks: dict[int, int] = {}
        self.rows = 0
        self._pieces: dict[str, list[bytes | memoryview]] = {}
        self._size = self._count = 0
        self._sending: Future[None] | None = None

    def add(self, section: Section) -> None:
        stream, shard = section.route
        number = self.blocks.get(shard, 0)
        self.blocks[shard] = number + 1
        self.rows += section.rows
        head = SECTION.pack(shard, number, section.version, section.size_bytes)
        self._pieces.setdefault(stream, []).extend((head, *section.pieces))
        self._size += section.size_bytes
        self._count += 1
        if self._size >= _REQUEST_BYTES or self._count >= _REQUEST_SECTIONS:
            self.send()

    def send(self) -> None:
        """Hand over what has gathered; the blocks of an attempt arrive in order, so one request at a time."""
        self.wait()
        pieces, self._pieces = self._pieces, {}
        self._size = self._count = 0
        if pieces:
            self._sending = self._pool.submit(self._send, pieces)

    def wait(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def _send(self, pieces: dict[str, list[bytes | memoryview]]) -> None:
        for stream, parts in pieces.items():
            self._cluster.stage(stream, self.writer, self.batch, self.attempt, parts)
