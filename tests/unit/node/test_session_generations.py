"""A node that gives up operations of its sessions, or starts again, goes on from the records in a new
generation: what is still on its way from before changes nothing behind that."""

import asyncio
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.entries.sessions import (
    SESSION_ENTRIES,
    CursorsMoved,
    GenerationBegun,
    Opened,
    Operation,
    Qos2Sent,
    SavedCursor,
    SavedSubscription,
    SessionBatch,
    Subscribed,
    Unanswered,
)
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Segment
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.journal import ResumeConnection
from millrace.broker.sessions.session_store import Record, SessionStore
from millrace.limits import Limits
from millrace.node.sessions.session_group import SessionGroup
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block
from millrace.types import Subscription
from unit.broker.test_unfinished import run

SHARD = 16
OPENED = Opened("c", False, None, 60, None, "a")
SUBSCRIBED = Subscribed("c", SavedSubscription.of(Subscription(filter="t", qos=2)), ((SHARD, 10),))


class Log:
    """In place of a replication group: what is proposed lies here until the test says what becomes of it."""

    replica = "a"
    is_closed = False

    def __init__(self, app: SessionGroup, origin: int) -> None:
        self._app = app
        self.origin = origin
        self._sequence = 0
        self.pending: list[tuple[Block, Any]] = []

    def propose(self, blocks: list[Block], tokens: list[Any], kind: EntryKind) -> bool:
        for block, token in zip(blocks, tokens, strict=True):
            self._sequence += 1
            self.pending.append((block.offered(origin=self.origin, sequence=self._sequence), token))
        return True

    def commit(self) -> None:
        pending, self.pending = self.pending, []
        for block, token in pending:
            self._app.apply(block, token)

    def give_up(self) -> list[Block]:
        """Returns the blocks, which may get into the log all the same."""
        pending, self.pending = self.pending, []
        self.origin, self._sequence = self.origin + 1, 0
        for _, token in pending:
            self._app.lost(token)
        return [block for block, _ in pending]

    def late(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._app.apply(block, None)


class Node:
    """A node that has begun, with the session of one client that is away."""

    def __init__(self, store: SessionStore | None = None, origin: int = 1) -> None:
        self.broker = Broker(Limits(), AccessRules())
        self.broker.node = "a"
        self.broker.log_ends[SHARD] = 100
        self.group = SessionGroup(self.broker, lambda: 1_000, lambda: None)
        self.group.store = store or SessionStore()
        self.log = Log(self.group, origin)
        self.group.group = self.log  # type: ignore[assignment]
        self.broker.records = self.group

    async def begin(self) -> None:
        caught_up = asyncio.create_task(self.group.caught_up())
        await asyncio.sleep(0)
        self.log.commit()
        await caught_up
        if "c" not in self.group.store.records:
            self.group.store.apply(SessionBatch("a", [OPENED, SUBSCRIBED]), self.log.origin)
        self.group.begin()

    def write(self, *operations: Operation, then: ResumeConnection | None = None) -> None:
        for operation in operations:
            self.broker.journal.add(operation, then)
        self.group.cut()

    @property
    def record(self) -> Record:
        return self.group.store.records["c"]


class Connection:
    """Counts how often it was told to go on."""

    peer = "somebody"

    def __init__(self) -> None:
        self.resumed = 0

    def resume(self, duty: Any) -> None:
        self.resumed += 1


async def turn() -> None:
    await asyncio.sleep(0)


def test_what_was_given_up_and_comes_before_the_new_generation_is_known_to_the_session() -> None:
    """Seeds 1899686210 and 1899686211 of whole nodes: the record said that a message went out under one id,
    the session did not know and sent it under another; the next node sent both."""

    async def story() -> None:
        node = Node()
        await node.begin()
        node.write(Qos2Sent("c", 858, 1, SHARD, 12))
        given_up = node.log.give_up()
        await turn()
        assert node.broker.sessions["c"].restored is None, "provisional"
        node.log.late(given_up)
        node.log.commit()
        assert node.broker.sessions["c"].restored == [Unanswered(858, 1, SHARD, 12, 2)]
        assert node.broker.sessions["c"].skip == {SHARD: [(12, 13)]}

    asyncio.run(story())


def test_what_was_given_up_and_comes_behind_the_new_generation_changes_nothing() -> None:
    async def story() -> None:
        node = Node()
        await node.begin()
        node.write(Qos2Sent("c", 858, 1, SHARD, 12))
        given_up = node.log.give_up()
        await turn()
        node.log.commit()
        node.log.late(given_up)
        assert node.record.sent == {} and node.record.handled == {}
        connection = Connection()
        node.write(Qos2Sent("c", 1, 1, SHARD, 12), then=ResumeConnection(connection, None))
        node.log.commit()
        assert node.record.sent == {1: (SHARD, 12)} and connection.resumed == 1

    asyncio.run(story())


def test_what_waits_to_be_proposed_is_given_up_with_the_rest() -> None:
    async def story() -> None:
        node = Node()
        await node.begin()
        node.write(Qos2Sent("c", 1, 1, SHARD, 12))
        node.log.give_up()
        node.write(Qos2Sent("c", 2, 1, SHARD, 13))
        await turn()
        node.group.cut()
        node.log.commit()
        assert node.record.sent == {} and not node.broker.journal.operations

    asyncio.run(story())


def test_a_provisional_session_writes_no_cursor_and_keeps_what_no_log_holds() -> None:
    async def story() -> None:
        node = Node()
        await node.begin()
        node.write(moved := CursorsMoved("c", {SHARD: SavedCursor(50)}))
        given_up = node.log.give_up()
        await turn()
        session = node.broker.sessions["c"]
        node.broker.outbound.send(session, Segment(run("routed"), 1, 1, False, b""), 1_000)
        node.write(CursorsMoved("c", {SHARD: SavedCursor(10)}))
        node.log.late(given_up)
        node.log.commit()
        assert node.record.cursors == moved.cursors
        again = node.broker.sessions["c"]
        assert again is not session and again.lag == {SHARD: 50} and again.queued_messages == 1

    asyncio.run(story())


def test_a_generation_that_an_older_one_overtook_begins_again() -> None:
    """The entry that begins a generation is given up as well, and gets there all the same."""

    async def story() -> None:
        node = Node()
        await node.begin()
        node.write(Qos2Sent("c", 1, 1, SHARD, 12))
        node.log.give_up()
        await turn()
        beginning = node.log.give_up()
        await turn()
        connection = Connection()
        node.write(Qos2Sent("c", 2, 1, SHARD, 13), then=ResumeConnection(connection, None))
        node.log.late(beginning)
        node.log.commit()
        assert node.record.sent == {} and not connection.resumed
        await turn()
        node.log.commit()
        node.write(Qos2Sent("c", 3, 1, SHARD, 14), then=ResumeConnection(connection, None))
        node.log.commit()
        assert node.record.sent == {3: (SHARD, 14)} and connection.resumed == 1

    asyncio.run(story())


def test_what_an_earlier_run_of_the_node_wrote_changes_nothing_after_its_start() -> None:
    async def story() -> None:
        earlier = Node()
        await earlier.begin()
        earlier.write(Qos2Sent("c", 1, 1, SHARD, 12))
        node = Node(SessionStore.from_bytes(earlier.group.store.to_bytes()), origin=7)
        await node.begin()
        node.log.late([block for block, _ in earlier.log.pending])
        assert node.record.sent == {}

    asyncio.run(story())


def request(broker: Broker, *, clean_start: bool, expiry_s: int = 0) -> ConnectRequest:
    return ConnectRequest(
        client_id="c",
        clean_start=clean_start,
        expiry_s=expiry_s,
        v5=True,
        window=10,
        packet_bytes_max=0,
        alias_max=0,
        principal=broker.rules.principal(None, "c"),
        will=None,
    )


def test_a_provisional_session_that_ends_does_not_come_back() -> None:
    """Its record was there when the generation began, and ends behind that."""

    async def story() -> None:
        node = Node()
        await node.begin()
        node.write(Qos2Sent("c", 1, 1, SHARD, 12))
        node.log.give_up()
        await turn()
        node.broker.end(node.broker.sessions["c"], 1_000)
        node.group.cut()
        node.log.commit()
        assert not node.group.store.records and not node.broker.sessions

    asyncio.run(story())


def test_a_provisional_session_is_resumed_once_its_record_is_known() -> None:
    """Also by a client that keeps it no longer, which waits for nothing otherwise."""

    async def story() -> None:
        node = Node()
        await node.begin()
        asked = request(node.broker, clean_start=False)
        assert node.broker.opening(asked, None) is None
        node.write(Qos2Sent("c", 1, 1, SHARD, 12))
        given_up = node.log.give_up()
        await turn()
        opening = node.broker.opening(asked, None)
        assert opening is not None
        node.write(opening)
        node.log.late(given_up)
        node.log.commit()
        session, is_present, _ = node.broker.connect(asked, Connection(), 1_000)
        assert is_present and session.restored == [Unanswered(1, 1, SHARD, 12, 2)]
        node.group.cut()
        node.log.commit()
        assert not node.group.store.records, "it ends with its connection"

    asyncio.run(story())


def test_a_session_that_a_clean_one_ended_stays_ended_though_the_word_on_it_was_given_up() -> None:
    """[MQTT-3.1.2-4]"""

    async def story() -> None:
        node = Node()
        await node.begin()
        asked = request(node.broker, clean_start=True)
        node.broker.connect(asked, Connection(), 1_000, is_opened=False)
        node.group.cut()
        node.log.give_up()
        await turn()
        node.log.commit()
        assert "c" in node.group.store.records
        node.group.cut()
        node.log.commit()
        assert not node.group.store.records and not node.broker.sessions["c"].is_recorded

    asyncio.run(story())


def test_entries_of_generations_are_read_as_they_were_written() -> None:
    entry = GenerationBegun("a", 5)
    assert SESSION_ENTRIES.decode(SESSION_ENTRIES.encode([entry])) == [entry]
