"""Sessions that read a log are served whatever becomes of it meanwhile: it is closed and gone, or damaged."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from millrace.broker.sessions.session import Session
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.errors import StorageError
from millrace.kernels.blocks import Run
from millrace.node.logs.log_reader import LogReader
from millrace.node.shards.shard import Shard
from millrace.storage.block import Block, data_blocks
from millrace.storage.log import LogFailed
from millrace.storage.scan import Damage, RangeDamaged
from millrace.types import Index
from millrace.wire.mqtt.codec import encode_publish
from unit.node.house import Client, House

DAMAGED = RangeDamaged(
    Damage(file="f", position=0, size_bytes=1, first_index=1, last_index=1, first_offset=0, next_offset=1)
)


def block_of(text: bytes, qos: int) -> Block:
    (made,) = data_blocks([Run(packets=encode_publish(b"t", text, 0x30 | qos << 1, 1, b""), version=4)])
    return made.stamped(shard=16, term=1, index=1, previous_term=0, base_offset=0, base_time_us=0)


class Disk:
    """In place of a replication group and its log: one block, or what the disk says instead."""

    first_offset = 0
    applied = Index(1)

    def __init__(self, block: Block) -> None:
        self.replica_log = self.log = self
        self._block = block
        self.error: StorageError | None = None
        self.on_read: Callable[[], None] = lambda: None

    def block_at_offset(self, offset: int) -> Index:
        return Index(1)

    def blocks(self, first: Index, last: Index, bytes_max: int) -> list[Block]:
        self.on_read()
        if self.error is not None:
            raise self.error
        return [self._block]


class InPlace(Executor):
    """What is given to a thread is done at once."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except StorageError as error:
            future.set_exception(error)
        return future


class Reader:
    """A durable session that is behind, and two logs with a message each for it."""

    def __init__(self, qos: int = 1) -> None:
        self.house = House()
        self.client: Client = self.house.connect("a", resume=True)
        self.client.subscribe("t", qos=qos)
        self.session: Session = self.house.broker.sessions["a"]
        self.house.broker.outbound.behind[self.session] = None
        self.shards: dict[int, Shard] = {}
        self.disks: dict[int, Disk] = {}
        clock: dict[str, Any] = {"now_ms": lambda: 0, "wall_us": lambda: 0}
        for number in (16, 17):
            stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(number,))
            shard = Shard(number, stream, self.house.broker, wake=lambda: None, **clock)
            self.disks[number] = Disk(block_of(b"%d" % number, qos))
            shard.group = self.disks[number]  # type: ignore[assignment]
            shard.state.next_offset = 1
            self.shards[number] = shard
        self.repairs: list[int] = []
        self.on_repair: Callable[[], bool] = lambda: False
        self.reader = LogReader(
            self.house.broker, self.shards, InPlace(), wake=lambda: None, repaired=self._repaired, **clock
        )

    def log_goes(self) -> None:
        self.shards.pop(16, None)

    async def _repaired(self, number: int) -> bool:
        self.repairs.append(number)
        return self.on_repair()

    async def texts(self) -> list[bytes]:
        """What the client is sent, in the turns of a loop that go on for a while."""
        for _ in range(50):
            if self.reader.has_work:
                self.reader.serve_behind()
            await asyncio.sleep(0)
        self.house.is_awake = True
        self.house.turn()
        return self.client.payloads()


def test_a_log_that_closes_while_it_is_read_holds_nobody_up() -> None:
    """Its stream was deleted, or its history lost: there is nothing more to be had of it."""

    async def run() -> list[bytes]:
        reader = Reader()
        reader.session.fall_behind(16, 0)
        reader.session.fall_behind(17, 0)
        reader.disks[16].error = LogFailed("the log is closed")
        reader.disks[16].on_read = reader.log_goes
        return await reader.texts()

    assert asyncio.run(run()) == [b"17"]


def test_a_log_that_cannot_be_read_is_tried_again() -> None:
    async def run() -> list[bytes]:
        reader = Reader()
        reader.session.fall_behind(16, 0)
        disk = reader.disks[16]
        disk.error = LogFailed("an input/output error")
        assert await reader.texts() == []
        disk.error = None
        return await reader.texts()

    assert asyncio.run(run()) == [b"16"]


def sent_before(reader: Reader) -> None:
    """Both messages were sent at QoS 2 and not answered when the node was restarted."""
    reader.session.restored = {7: (16, 0), 8: (17, 0)}


@pytest.mark.parametrize("can_be_repaired", [True, False])
def test_a_damaged_message_that_was_sent_before_a_restart_waits_for_its_repair(can_be_repaired: bool) -> None:
    """Only if nobody has it is it passed over; the others are sent again."""

    async def run() -> tuple[list[bytes], list[int]]:
        reader = Reader(qos=2)
        sent_before(reader)
        disk = reader.disks[16]
        disk.error = DAMAGED

        def on_repair() -> bool:
            if can_be_repaired:
                disk.error = None
            return can_be_repaired

        reader.on_repair = on_repair
        return await reader.texts(), reader.repairs

    assert asyncio.run(run()) == ([b"16", b"17"] if can_be_repaired else [b"17"], [16])


def test_the_messages_of_a_log_that_goes_are_not_sent_again_and_the_others_are() -> None:
    async def run() -> list[bytes]:
        reader = Reader(qos=2)
        sent_before(reader)
        reader.disks[17].on_read = reader.log_goes
        return await reader.texts()

    assert asyncio.run(run()) == [b"17"]
