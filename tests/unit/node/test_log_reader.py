"""Sessions that read a log are served whatever becomes of it meanwhile: it is closed and gone, or damaged."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from millrace.broker.entries.sessions import SavedCursor, Unanswered
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import Record
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.errors import StorageError
from millrace.kernels.blocks import Run
from millrace.node.logs.log_reader import LogReader, _spared
from millrace.node.shards.shard import Shard
from millrace.storage.block import Block, data_blocks
from millrace.storage.log import LogFailed, Trimmed
from millrace.storage.records import UNKNOWN
from millrace.storage.scan import Damage, RangeDamaged
from millrace.types import Index, Offset
from millrace.wire.mqtt.codec import encode_publish
from millrace.wire.mqtt.packets import Publish, Pubrel
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
        self.now_ms = 0
        clock: dict[str, Any] = {"now_ms": lambda: self.now_ms, "wall_us": lambda: 0}
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

    async def sent(self) -> list[tuple[bytes, int | None, bool]]:
        """As `texts`, with packet ids and whether each is marked as sent again."""
        await self.turns()
        packets = self.client.read()
        self.released = [one for one in packets if isinstance(one, Pubrel)]
        sent = [one for one in packets if isinstance(one, Publish)]
        return [(one.message.payload, one.packet_id, one.dup) for one in sent]

    async def texts(self) -> list[bytes]:
        """What the client is sent, in the turns of a loop that go on for a while."""
        await self.turns()
        return self.client.payloads()

    async def turns(self) -> None:
        for _ in range(50):
            if self.reader.has_work:
                self.reader.serve_behind()
            await asyncio.sleep(0)
        self.house.is_awake = True
        self.house.turn()


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


@pytest.mark.parametrize("qos", [1, 2])
def test_what_this_replica_has_yet_to_apply_is_waited_for_and_at_qos_1_not_for_long(qos: int) -> None:
    """It comes under the id that its client knows. A log that nobody leads must not hold up all others, but
    at QoS 2 it would be taken for new."""

    async def run() -> None:
        reader = Reader(qos=qos)
        reader.session.is_recorded = True
        record = Record("a")
        record.unanswered = (Unanswered(7, 1, 16, 0, qos), Unanswered(8, 1, 17, 0, qos))
        record.cursors = dict.fromkeys(reader.shards, SavedCursor(1, ((0, 1),) if qos == 1 else ()))
        reader.house.broker.log_ends[16] = 1
        reader.house.store.records.keep(record)
        reader.session.restored = list(record.unanswered)
        reader.shards[16].state.next_offset = 0
        assert await reader.sent() == []
        reader.now_ms += 990
        assert await reader.sent() == []
        reader.now_ms += 10
        first = await reader.sent()
        assert first == ([(b"17", 8, True)] if qos == 1 else [])
        reader.shards[16].state.next_offset = 1
        last = await reader.sent()
        # At QoS 1 it comes with all that is committed from here on.
        assert last == ([] if qos == 1 else [(b"16", 7, True), (b"17", 8, True)])
        assert not reader.session.lag

    asyncio.run(run())


def test_messages_that_were_sent_before_are_read_again_where_the_disk_fails() -> None:
    async def run() -> None:
        reader = Reader()
        reader.session.restored = [Unanswered(7, 1, 16, 0, 1), Unanswered(8, 1, 17, 0, 1)]
        reader.disks[16].error = LogFailed("an input/output error")
        assert await reader.sent() == []
        reader.disks[16].error = None
        assert await reader.sent() == [(b"16", 7, True), (b"17", 8, True)]

    asyncio.run(run())


def test_more_than_the_window_of_what_was_sent_before_waits() -> None:
    """[MQTT-3.3.4-9]: the client came back with a smaller receive maximum."""

    async def run() -> None:
        reader = Reader(qos=2)
        sent_before(reader)
        reader.session.window = 1
        assert await reader.sent() == [(b"16", 7, True)]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        ((6, 7), [(3, 5, 1), (5, 7, 3)]),
        ((0, 6), [(4, 6, 4)]),
        ((7, UNKNOWN), [(3, 5, 2)]),
        ((0, 100), []),
        ((20, 30), []),
    ],
)
def test_of_a_run_that_is_damaged_the_rest_is_sent_again(
    damage: tuple[int, int], left: list[tuple[int, int, int]]
) -> None:
    run = Unanswered(3, 5, 16, 5, 1)
    found = _spared(
        run,
        Damage(
            file="f",
            position=0,
            size_bytes=1,
            first_index=1,
            last_index=1,
            first_offset=damage[0],
            next_offset=damage[1],
        ),
    )
    assert [(one.first_id, one.offset, one.count) for one in found] == left


def test_the_id_of_a_message_that_retention_removed_is_released() -> None:
    """Its client may hold it, and would take the next message under this id for the one that it has."""

    async def run() -> None:
        reader = Reader(qos=2)
        sent_before(reader)
        disk = reader.disks[16]
        disk.error = Trimmed("16", Index(5), Offset(1))
        assert await reader.sent() == [(b"17", 8, True)]
        assert [one.packet_id for one in reader.released] == [7]
        assert reader.session.in_use() == {7, 8}, "until the client has answered"

    asyncio.run(run())


def sent_before(reader: Reader) -> None:
    """Both messages were sent at QoS 2 and not answered when the node was restarted."""
    reader.session.restored = [Unanswered(7, 1, 16, 0, 2), Unanswered(8, 1, 17, 0, 2)]


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
