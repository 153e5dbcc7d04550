"""A node tells of a shared group what the group that is here knows, not one that was here before it."""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.freezing import Pieces, finished
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run
from millrace.broker.sessions.session import Session
from millrace.broker.streams.stream import DEFAULT_SPEC, Replication, Stream, StreamSpec, StreamTable
from millrace.kernels.blocks import Run as Messages
from millrace.limits import DEFAULT_LIMITS
from millrace.node.groups.work_division import NodeWorkDivision
from millrace.node.shards.shard import Shard
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, data_blocks
from millrace.storage.log import Trimmed
from millrace.storage.scan import Damage, RangeDamaged
from millrace.types import Index, Offset, Subscription
from millrace.wire.mqtt.codec import encode_publish

G = "$share/team/#"


class Line:
    """In place of a replication group: keeps what is proposed, in order, until the test applies it."""

    is_serving = True
    is_leader = False

    def __init__(self) -> None:
        self.entries: list[tuple[Block, Any]] = []

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        self.entries += zip(blocks, tokens, strict=True)
        return True


class Node:
    """One shard of one node, and the shared groups there."""

    def __init__(self, *, is_durable: bool = True, edge: str = "") -> None:
        self.broker, self.line = Broker(DEFAULT_LIMITS, AccessRules(())), Line()
        self.broker.node = "here"
        stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,), edges={16: edge} if edge else {})
        self.wall_us = 0
        self.is_upgraded = True
        clock: dict[str, Any] = {"now_ms": lambda: 0, "wall_us": lambda: self.wall_us, "wake": lambda: None}
        self.shard = Shard(16, stream, self.broker, **clock)
        self.shard.group = self.line  # type: ignore[assignment]
        records = {"b": SimpleNamespace(subscriptions={G})} if is_durable else {}
        understood = {"understand": lambda feature: self.is_upgraded}
        members = SimpleNamespace(members=SimpleNamespace(members=["here", "there"], **understood))
        self.definitions: Any = SimpleNamespace(state=members, table=StreamTable({"default": stream}))
        sessions: Any = SimpleNamespace(store=SimpleNamespace(records=records))
        silence: Any = SimpleNamespace(unreachable=set)
        self.shards, self.read = {16: self.shard}, None
        parts = (self.definitions, self.shards, self, sessions, silence)
        self.work = NodeWorkDivision(*parts, self.broker, **clock)

    async def blocks(self, shard: Shard, offset: int, keys: None = None) -> list[Block]:
        """In place of the disk: what the test says."""
        blocks: list[Block] = await self.read(offset)
        return blocks

    def joins(self, name: str, filter: str = G) -> Session:
        session = Session(name, self.broker.rules.principal(None, name))
        self.broker.subscribe(session, Subscription(filter=filter, qos=1))
        return session

    def leaves(self, session: Session) -> None:
        self.broker.unsubscribe(session, G)

    def divide(self) -> list[Block]:
        """What the node says of its groups; applied at once."""
        pieces = self.work._open_pieces().get(16, {})
        self.work._divide_shard(self.shard, {"here", "there"}, pieces)
        entries, self.line.entries = self.line.entries, []
        for block, token in entries:
            stamp = {"shard": 16, "term": 1, "index": 1, "previous_term": 1, "base_time_us": self.wall_us}
            self.shard.apply(block.stamped(base_offset=self.shard.next_offset, **stamp), token)
        return [block for block, _ in entries]

    def owed(self) -> list[tuple[int, int, str]]:
        """Below the end of the log, by this node."""
        mark = self.shard.work_division.mark(G, "here")
        assert mark is not None
        rest = (
            [(mark.position, self.shard.next_offset, "here")]
            if mark.position < self.shard.next_offset
            else []
        )
        return [*mark.owed, *rest]


@pytest.mark.parametrize("is_after_restart", [False, True])
def test_what_came_while_the_group_was_not_here_is_owed(is_after_restart: bool) -> None:
    """The log has it that the node holds the group: from an earlier run, or from before its last session
    left. Messages come, then a session of the group, before the node has said that there was none."""
    node = Node()
    node.shard.work_division.put(G, "here", 1, True, offset=0)
    if is_after_restart:
        node.divide()
    else:
        session = node.joins("a")
        while node.divide():
            pass
        node.leaves(session)
    assert node.shard.work.is_begun and G not in node.broker.groups
    node.shard.state.next_offset = 10
    node.joins("b")
    while node.divide():
        pass
    assert node.shard.work_division.known(G, "here")[1]
    assert node.owed() == [(0, 10, "here")]
    assert list(node.shard.work.backlog[G]) == [(0, 10, "here")]


def test_a_group_that_no_session_outlives_begins_anew() -> None:
    """What came while it had no member is for nobody."""
    node = Node(is_durable=False)
    session = node.joins("a")
    while node.divide():
        pass
    node.leaves(session)
    node.shard.state.next_offset = 10
    node.joins("b")
    while node.divide():
        pass
    assert node.shard.work_division.known(G, "here")[1]
    assert node.owed() == [] and not node.shard.work.backlog


def test_nothing_is_remembered_of_groups_that_are_gone() -> None:
    """Every connection of some clients brings a name of its own."""
    node = Node(is_durable=False)
    for number in range(20):
        name = f"$share/w{number}/t"
        session = node.joins("a", name)
        while node.divide():
            pass
        node.shard.state.next_offset += 10
        node.broker.unsubscribe(session, name)
        while node.divide():
            pass
    work = node.shard.work
    assert not node.shard.work_division.groups()
    assert not work._told and not work.proposed and not work._kept_by


def test_what_the_group_had_done_is_not_owed() -> None:
    """As long as it stays the same group, whoever of its members comes and goes."""
    node = Node()
    first = node.joins("a")
    while node.divide():
        pass
    node.shard.state.next_offset = 10
    node.joins("b")
    node.leaves(first)
    while node.divide():
        pass
    assert node.owed() == [] and not node.shard.work.backlog


def test_a_sealed_log_keeps_its_groups_until_it_is_complete() -> None:
    """Batches that were decided before the change are still to come. Once a group has left a log, every node
    with members delivers from it."""
    node = Node()
    node.joins("b")
    while node.divide():
        pass
    node.shard.seal(is_complete=False)
    while node.divide():
        pass
    assert node.shard.intake.is_sealed and node.shard.work_division.known(G, "here")[1]
    node.shard.seal(is_complete=True)
    while node.divide():
        pass
    assert node.shard.is_finished and node.shard.work_division.known(G, "here") == (0, False)


@pytest.mark.parametrize(
    "error",
    [
        Trimmed("shard 16", Index(1), Offset(3)),
        RangeDamaged(
            Damage(
                file="f", position=0, size_bytes=1, first_index=1, last_index=1, first_offset=0, next_offset=3
            )
        ),
    ],
    ids=["trimmed", "damaged"],
)
def test_what_joins_the_backlog_while_it_cannot_be_read_stays_in_it(error: Exception) -> None:
    node = Node()
    session = node.joins("b")
    while node.divide():
        pass
    session.blocked, session.window = False, 100
    work = node.shard.work
    node.shard.state.next_offset = 15
    work.pending.put_off(G, "here", 0, 10)
    asked: list[int] = []

    async def read(offset: int) -> list[Block]:
        asked.append(offset)
        await asyncio.sleep(0)
        if offset == 0:
            run = Run(b"", 5, 1, False)
            run.shard = 16
            run.offset = 10
            node.broker.outbound.deliver_group(node.broker.groups[G], run, 0)
            raise error
        return []

    node.read = read
    asyncio.run(node.work._feed_group(node.shard, G))
    assert asked == [0, 3]
    assert list(work.backlog[G]) == [(3, 15, "here")]


def test_members_are_given_what_an_edge_function_made_and_not_its_input() -> None:
    """From the log, after a restart or for a node that was lost, as when it is committed."""
    node = Node(edge="module:function")
    session = node.joins("b")
    while node.divide():
        pass
    session.blocked, session.window = False, 100
    (block,) = data_blocks(
        [
            Messages(packets=encode_publish(b"t", b"input", 0x32, 1, b""), version=4),
            Messages(
                packets=encode_publish(b"t", b"result", 0x32, 1, b""),
                version=4,
                producer=b"edge/16",
                sequences=(0,),
            ),
        ]
    )
    assert node.work._give(node.shard, node.broker.groups[G], [block], 0, 2, "here") == 2
    sent = b"".join(session.out)
    assert b"result" in sent and b"input" not in sent


@pytest.mark.parametrize("is_back", [False, True])
def test_a_group_that_nobody_took_over_in_time_is_forgotten(is_back: bool) -> None:
    """The leader says so. A member that comes at that moment begins a new group of this name."""
    node = Node(is_durable=False)
    node.line.is_leader = True
    node.shard.work_division.put(G, "there", 1, True, offset=0)
    node.divide()
    node.shard.work_division.put(G, "there", 0, False, offset=0, time_us=0, is_gone=True)
    node.wall_us = 60_000_000
    assert not node.divide() and node.shard.work_division.groups() == [G]
    node.wall_us += 1
    if is_back:
        node.joins("b")
    while node.divide():
        pass
    assert node.shard.work_division.groups() == ([G] if is_back else [])
    assert node.shard.work_division.known(G, "here") == (0, is_back)


@pytest.mark.parametrize("is_upgraded", [False, True])
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_group_that_a_session_holds_waits_for_it_whatever_the_time_in_the_log(
    is_durable: bool, is_upgraded: bool
) -> None:
    """Seed 1204020030. A node was removed, and its log went on under a leader whose clock was an hour ahead:
    what waited for the members of the group was forgotten, though their sessions were back in seconds. Who
    takes over may be a member without a record. Nobody says so before all nodes understand it."""
    node = Node()
    node.is_upgraded = is_upgraded
    node.line.is_leader = True
    node.shard.work_division.put(G, "there", 1, True, offset=0)
    node.divide()
    node.shard.work_division.put(G, "there", 0, False, offset=0, time_us=0, is_gone=True)
    node.shard.state.next_offset = 10
    node.wall_us = 3_600_000_000
    assert not node.divide() and node.shard.work_division.groups() == [G]
    node.joins("b").expiry_s = 60 * is_durable
    while node.divide():
        pass
    assert node.shard.work_division.known(G, "here") == (0, True)
    assert list(node.shard.work.backlog.get(G, ())) == ([(0, 10, "there")] if is_upgraded else [])


def test_a_member_whose_word_waits_for_another_leader_takes_over_what_was_left_meanwhile() -> None:
    node = Node()
    node.shard.work_division.put(G, "there", 1, True, offset=0)
    node.divide()
    node.joins("b").expiry_s = 60
    node.work._divide_shard(node.shard, {"here", "there"}, {})
    assert node.line.entries
    node.shard.state.next_offset = 10
    node.shard.work_division.put(G, "there", 0, False, offset=10, time_us=0, is_gone=True)
    node.wall_us = 3_600_000_000
    node.divide()
    assert list(node.shard.work.backlog[G]) == [(0, 10, "there")]


def test_what_was_said_before_a_snapshot_is_said_again() -> None:
    """It may be undone by a later word that the snapshot holds."""
    node = Node()
    node.joins("b")
    node.divide()
    freezing = node.shard.freeze()
    assert freezing is not None
    pieces = Pieces()
    finished(freezing.encode(pieces))
    state = pieces.joined()
    node.work._divide_shard(node.shard, {"here", "there"}, {})
    assert node.line.entries and node.shard.work.proposed
    node.line.entries.clear()
    finished(node.shard.load(state, ()))
    while node.divide():
        pass
    assert node.shard.work_division.known(G, "here")[1]


def test_a_full_backlog_takes_own_messages_in_behind_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A range means the turns of one node: what joins that of another would be passed over."""
    monkeypatch.setattr("millrace.broker.groups.group_work._BACKLOG_RANGES_MAX", 2)
    node = Node()
    work_division, work = node.shard.work_division, node.shard.work
    work_division.put(G, "here", 1, True, offset=0)
    work_division.put(G, "there", 1, True, offset=0)
    work.backlog[G] = deque([(1, 2, "there"), (201, 202, "there")])
    put_off = [400, 601, 800, 1001, 1200]
    for offset in put_off:
        work.pending.put_off(G, "here", offset, offset + 1)
    ranges = list(work.backlog[G])
    assert len(ranges) == 3, "one more for a node that had none"
    for offset in (1, 201, *put_off):
        assert any(
            first <= offset < end and work_division.is_of(G, offset, by) for first, end, by in ranges
        ), offset


@pytest.mark.parametrize(
    ("filter", "is_answered"),
    [("jobs/#", True), ("jobs/a", True), ("$SYS/#", True), ("#", False), ("other", False), ("+/a", False)],
)
@pytest.mark.parametrize("replication", [Replication.LEADERLESS, Replication.ROUTED])
def test_a_member_waits_for_the_logs_that_its_messages_may_go_to(
    filter: str, is_answered: bool, replication: Replication
) -> None:
    """`default` has no leader, as at a node that is cut off. A stream without its shards needs nobody."""
    node = Node()
    node.line.is_serving = False
    spec = StreamSpec(name="jobs", filters=("jobs/#",), replication=replication)
    shards = (17,) if replication is Replication.LEADERLESS else ()
    jobs = Stream(spec=spec, generation=2, shards=shards, leaderless=shards)
    node.definitions.table = StreamTable({**node.definitions.table.streams, "jobs": jobs})
    key, answers = f"$share/team/{filter}", list[int]()
    node.joins("b", key)
    node.work.when_shared([key], lambda: answers.append(1))
    assert answers == [1] * is_answered
    node.line.is_serving = True
    while node.divide():
        node.work.check_divided()
    assert answers == [1]
