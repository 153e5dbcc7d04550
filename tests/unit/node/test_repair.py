"""Damage under the word of an index, which no opening finds: behind the snapshot the log is cut and
replicated again, before it the blocks are had from another replica while the node runs. A bit that turns
while the node runs is found by a leader as by any reader."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import cast

import pytest

from millrace.broker.freezing import Freezing
from millrace.errors import LocalError, StorageError
from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.node.logs.reading import Reading
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.peers.messages import FetchBlocks, FetchedBlocks
from millrace.node.replicas.repair import Repairs
from millrace.node.replicas.replicas import Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.shards.shard import Shard
from millrace.replication.contract import Entry, EntryKind, PeerBody, Persist, ReplicaId
from millrace.replication.raft.messages import (
    Append,
    AppendReject,
    AppendReply,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    VoteReply,
)
from millrace.storage.block import Block, data_blocks, parse_block
from millrace.storage.directory import DataDirectory
from millrace.storage.log import LogSettings
from millrace.storage.scan import RangeDamaged
from millrace.types import Index, Term
from unit.node.test_failed_sync import FrozenBytes, InPlace, Nothing
from waiting import until_async

A, B, LEADER = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
NUMBER = 7
LAST = 9
SMALL = LogSettings(segment_bytes=200)


def entry(index: int) -> Entry:
    packet = b"\x32\x0c\x00\x01t\x00\x01entry %x" % index
    (block,) = data_blocks([Run(packets=packet, version=4)])
    return Entry(term=Term(1), index=Index(index), kind=EntryKind.DATA, payload=block.to_bytes())


class Led(Nothing):
    def begin_term(self) -> None:
        """Nothing depends on who leads."""


class Node:
    """A follower on a disk of its own, linked with the nodes that `peers` names. Needs a running loop."""

    def __init__(
        self,
        replica: ReplicaId,
        *,
        snapshot_at: int = 0,
        settings: LogSettings | None = None,
        begins_at: int = 1,
    ) -> None:
        self.replica = replica
        self.settings = settings or LogSettings()
        self.disk = SimDisk(Random(1))
        self.peers: dict[str, Node] = {}
        self.is_open = True
        self.has_peers = True
        self.failures: list[StorageError] = []
        self.sent: list[tuple[ReplicaId, PeerBody]] = []
        self.groups: dict[int, ReplicationGroup] = {}
        self.repairs = Repairs(cast(Replicas, self))
        self.start()
        # In small segments each entry has one of its own.
        for last in filter(None, range(1, LAST + 1) if self.settings == SMALL else (snapshot_at, LAST)):
            self.hear(self.log.last_index() + 1, last)
            if last == snapshot_at:
                assert self.group.snapshot_taken()
        if begins_at > 1:
            # The rest was removed.
            self.log.trim_to = Index(begins_at - 1)
            self.log.write(Persist(number=0), [])
            assert self.log.first_index() == begins_at

    def start(self) -> None:
        self.directory = DataDirectory.open(self.disk, "/data", owner="test", fresh=bytes(24))
        self.syncer = InPlace(
            asyncio.get_running_loop(), self.failures.append, in_place=True, sync_every_s=0.0
        )
        self.group = self.groups[NUMBER] = ReplicationGroup(
            *(NUMBER, self.replica),
            ReplicaLog(
                *(self.disk, self.directory, NUMBER, (A, B, LEADER)),
                has_peers=self.has_peers,
                settings=self.settings,
            ),
            Led(),
            self.syncer,
            origin=1,
            rng=Random(1),
            send=lambda number, to, body: self.sent.append((to, body)),
            forward=lambda number, to, kind, block: False,
            wall_us=lambda: 0,
            running_us=lambda: 0,
        )

    @property
    def log(self) -> ReplicaLog:
        return self.group.replica_log

    @property
    def notes_damage(self) -> bool:
        return any(path.endswith("/damage") for path in self.disk.paths())

    def hear(self, first: int, last: int, commit: int | None = None) -> None:
        body = Append(
            term=Term(1),
            prev_index=Index(first - 1),
            prev_term=Term(1 if first > 1 else 0),
            commit=Index(last if commit is None else commit),
            entries=tuple(entry(index) for index in range(first, last + 1)),
        )
        self.group.on_peer(LEADER, body)
        self.syncer.start()
        assert self.group.applied == body.commit

    def answer(self, sender: ReplicaId, body: PeerBody) -> list[PeerBody]:
        """What this node says to the sender when it hears this."""
        self.sent.clear()
        self.group.on_peer(sender, body)
        self.syncer.start()
        return [said for to, said in self.sent if to == sender]

    def lead(self) -> None:
        """The leader is silent, and the other one votes for this node."""
        for _ in range(100):
            self.group.tick()
            self.syncer.start()
            if self.group.status().role == "pre-candidate":
                break
        term = Term(self.group.status().term + 1)
        self.answer(LEADER, VoteReply(term=term, is_granted=True, is_pre=True))
        self.answer(LEADER, VoteReply(term=term, is_granted=True))
        assert self.group.status().role == "leader"

    def flip(self, *indexes: int) -> None:
        for index in indexes:
            paths = (path for path in self.disk.paths() if path.endswith(".log"))
            (path,) = (path for path in paths if b"entry %x" % index in self.disk.content(path))
            self.disk.flip_bit(path, 8 * self.disk.content(path).index(b"entry %x" % index))

    def restart_with_damage(self, *indexes: int) -> None:
        self.log.log.checkpoint()
        self.flip(*indexes)
        self.restart()

    def restart(self) -> None:
        self.disk.kill()
        self.directory.close()
        self.start()

    def flip_snapshot(self) -> None:
        (path,) = (path for path in self.disk.paths() if path.endswith(".snap"))
        self.disk.flip_bit(path, 8 * self.disk.content(path).index(b"origins"))

    @property
    def messenger(self) -> "Node":
        return self

    async def request(self, replica: str, request: FetchBlocks, kind: type[FetchedBlocks]) -> FetchedBlocks:
        if replica not in self.peers:
            raise LocalError("there is no link to that node right now")
        return self.peers[replica].repairs.on_fetch(replica, request)

    def blocks(self) -> list[Block]:
        return self.log.blocks(self.log.first_index(), Index(LAST), 1 << 20)


@dataclass
class Stored:
    """What a reader needs of a shard."""

    number: int
    group: ReplicationGroup
    first_offset: int = 0
    next_offset: int = LAST

    def recent(self, offset: int) -> None:
        """Nothing is in memory."""


def test_a_replica_starts_with_damage_that_only_its_machine_finds() -> None:
    async def scene() -> None:
        node = Node(A)
        node.restart_with_damage(5)
        assert node.log.last_index() == 4, "cut before what is damaged"
        assert node.notes_damage, "it neither votes nor leads"
        node.hear(5, LAST)
        assert not node.notes_damage
        assert len(node.blocks()) == LAST

    asyncio.run(scene())


def test_damage_on_both_sides_of_the_snapshot_leaves_what_the_snapshot_covers() -> None:
    async def scene() -> None:
        node = Node(A, snapshot_at=5)
        node.restart_with_damage(3, 8)
        assert (node.log.first_index(), node.log.last_index()) == (6, 5)
        assert node.notes_damage
        node.hear(6, LAST)
        assert not node.notes_damage

    asyncio.run(scene())


def test_damage_before_the_snapshot_costs_no_vote_and_no_other_entry() -> None:
    async def scene() -> None:
        node = Node(A, snapshot_at=5)
        node.restart_with_damage(3)
        with pytest.raises(RangeDamaged):
            node.log.blocks(Index(3), Index(3), 1)
        # What follows goes to another segment, and the next opening reads all of this one.
        node.hear(LAST, LAST + 1)
        node.directory.close()
        node.disk.kill()
        node.start()
        assert node.log.log.damages
        assert (node.log.first_index(), node.log.last_index()) == (1, LAST + 1)
        assert not node.notes_damage
        assert node.log.entries(Index(3), Index(3), 1 << 20) == (), "a leader cannot send it now"
        assert node.log.term(Index(3)) in (None, 1)

    asyncio.run(scene())


def test_a_reader_that_meets_damage_waits_for_another_replica() -> None:
    async def scene() -> None:
        node, other = Node(A, snapshot_at=8), Node(B)
        node.restart_with_damage(3, 6)
        node.hear(LAST, LAST)
        node.peers[B] = other
        with ThreadPoolExecutor(1) as pool:
            reading = Reading(pool, node.repairs.repaired)
            found = await reading.blocks(cast(Shard, Stored(NUMBER, node.group)), 2)
        assert [block.header.index for block in found] == list(range(3, LAST + 1))
        assert [b.to_bytes() for b in node.blocks()] == [b.to_bytes() for b in other.blocks()]
        node.directory.close()
        node.disk.kill()
        node.start()
        assert len(node.blocks()) == LAST, "it is on disk"

    asyncio.run(scene())


def test_what_nobody_waits_for_is_repaired_and_a_replica_that_lacks_it_is_passed_over() -> None:
    async def scene() -> None:
        node, empty, other = Node(A, snapshot_at=8), Node(B), Node(LEADER)
        empty.log.start_at(Index(LAST + 1), Term(1), empty.log.log.next_offset)
        empty.log.write(Persist(number=0), [])
        node.restart_with_damage(3)
        node.hear(LAST, LAST)
        node.peers = {B: empty, LEADER: other}
        with pytest.raises(RangeDamaged):
            node.log.blocks(Index(3), Index(3), 1)
        node.repairs.tick()
        assert await node.repairs.repaired(NUMBER)
        assert [b.to_bytes() for b in node.blocks()] == [b.to_bytes() for b in other.blocks()]

    asyncio.run(scene())


def test_each_part_comes_from_whoever_has_it() -> None:
    """Another replica begins later, and the other one has damage of its own."""

    async def scene() -> None:
        node, later, damaged = Node(A, snapshot_at=8), Node(B, settings=SMALL, begins_at=5), Node(LEADER)
        damaged.flip(6)
        with pytest.raises(RangeDamaged):
            damaged.log.blocks(Index(6), Index(6), 1)
        whole = [block.to_bytes() for block in node.blocks()]
        node.restart_with_damage(3, 6)
        node.hear(LAST, LAST)
        node.peers = {B: later, LEADER: damaged}
        with pytest.raises(RangeDamaged):
            node.log.blocks(Index(3), Index(3), 1)
        assert await node.repairs.repaired(NUMBER)
        assert [block.to_bytes() for block in node.blocks()] == whole

    asyncio.run(scene())


def test_a_segment_that_nobody_can_give_again_does_not_keep_the_others_from_it() -> None:
    async def scene() -> None:
        node, later = Node(A, snapshot_at=8, settings=SMALL), Node(B, settings=SMALL, begins_at=5)
        node.flip(2, 7)
        node.peers = {B: later, LEADER: later}
        for index in (2, 7):
            with pytest.raises(RangeDamaged):
                node.log.blocks(Index(index), Index(index), 1)
        assert len({damage.file for damage in node.log.log.damages}) == 2
        node.repairs.tick()
        await until_async(lambda: len(node.log.log.damages) == 1, "the second is repaired")
        assert node.log.blocks(Index(7), Index(7), 1)[0].header.index == 7
        await node.repairs.stop()

    asyncio.run(scene())


def indexes(said: list[PeerBody]) -> list[int]:
    """Of the entries sent."""
    return [sent.index for body in said if isinstance(body, Append) for sent in body.entries]


def lacking(node: Node, last: int) -> AppendReject:
    """A follower says that its log ends there, asked for the entry before the leader's first own one."""
    term, own = node.group.status().term, node.log.last_index()
    return AppendReject(
        term=term, prev_index=Index(own - 1), hint_index=Index(last), hint_term=Term(1), is_repairing=False
    )


@pytest.mark.parametrize("snapshot_at", [0, 3])
def test_a_leader_sends_what_is_damaged_once_another_replica_gave_it_again(snapshot_at: int) -> None:
    async def scene() -> None:
        node, other = Node(A, snapshot_at=snapshot_at), Node(LEADER)
        node.lead()
        node.flip(6)
        assert indexes(node.answer(B, lacking(node, 4))) == [5], "what stands before the damage"
        term = node.group.status().term
        said = node.answer(B, AppendReply(term=term, matched=Index(5)))
        said += node.answer(B, HeartbeatReply(term=term, context=0))
        assert indexes(said) == [], "nothing of it, and nothing in its place"
        assert node.group.status().role == "leader"
        node.peers[LEADER] = other
        node.repairs.tick()
        assert await node.repairs.repaired(NUMBER)
        assert indexes(node.answer(B, HeartbeatReply(term=term, context=0))) == [6, 7, 8, 9, 10]
        assert node.failures == []

    asyncio.run(scene())


def test_a_follower_gets_a_snapshot_where_nobody_has_what_is_damaged() -> None:
    """Rather than wait for ever, with one replica less."""

    async def scene() -> None:
        node = Node(A, snapshot_at=8)
        node.lead()
        node.flip(6)
        assert indexes(node.answer(B, lacking(node, 4))) == [5], "what stands before the damage"
        term = node.group.status().term
        node.answer(B, AppendReply(term=term, matched=Index(5)))
        rounds = 0
        while not any(isinstance(one, SnapshotChunk) for _, one in node.sent):
            rounds += 1
            assert rounds < 1_000
            node.group.tick()
            assert indexes(node.answer(B, HeartbeatReply(term=term, context=0))) == []
        assert rounds > 100, "others may still give it again"
        assert node.group.status().role == "leader"

    asyncio.run(scene())


def test_a_leader_sends_what_follows_a_damaged_entry_whose_term_it_knows() -> None:
    async def scene() -> None:
        node = Node(A)
        node.lead()
        node.flip(6)
        with pytest.raises(RangeDamaged):
            node.log.blocks(Index(6), Index(6), 1)
        assert indexes(node.answer(B, lacking(node, 6))) == [7, 8, 9, 10]

    asyncio.run(scene())


@pytest.mark.parametrize("reader", ["leader", "snapshot"])
def test_damage_in_what_is_not_applied_stops_the_node_and_the_next_start_notes_it(reader: str) -> None:
    """Nobody else need have it: a leader that stayed would count itself for what it has lost."""

    async def scene() -> None:
        node = Node(A)
        node.hear(LAST, LAST + 2, commit=LAST)
        node.lead()
        node.flip(LAST + 1)
        if reader == "leader":
            assert node.answer(B, lacking(node, LAST)) == []
        else:
            assert not node.group.snapshot_taken()
        (failure,) = node.failures
        assert isinstance(failure, RangeDamaged)
        assert node.answer(B, lacking(node, LAST)) == [], "it is silent"
        node.disk.kill()
        node.directory.close()
        node.start()
        assert node.log.last_index() == LAST
        assert node.notes_damage

    asyncio.run(scene())


class Staging(Led):
    """Its state is an entry that it has applied, and reads again for a snapshot."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def freeze(self) -> Freezing:
        (block,) = self._node.log.blocks(Index(3), Index(3), 1)
        return FrozenBytes(block.to_bytes())


def test_a_snapshot_of_what_is_damaged_waits_until_another_replica_gave_it_again() -> None:
    """It was applied, so others have it."""

    async def scene() -> None:
        node, other = Node(A), Node(LEADER)
        node.group.app = Staging(node)
        node.flip(3)
        assert not node.group.snapshot_taken()
        assert node.failures == []
        node.peers[LEADER] = other
        node.repairs.tick()
        assert await node.repairs.repaired(NUMBER)
        assert node.group.snapshot_taken()

    asyncio.run(scene())


class Kept(Led):
    """Remembers which entries it was given, over all runs."""

    def __init__(self) -> None:
        self.indexes: list[int] = []

    def apply(self, block: Block, token: object) -> None:
        self.indexes.append(block.header.index)


@pytest.mark.parametrize("is_indexed", [False, True])
@pytest.mark.parametrize("damaged", [(3,), (6,), (2, 4), (4, 5, 6)])
def test_a_replica_alone_passes_over_what_is_damaged_and_serves_the_rest(
    damaged: tuple[int, ...], is_indexed: bool
) -> None:
    """Nobody else has it, so there is nothing to wait for."""

    async def scene() -> None:
        disk, failures, app = SimDisk(Random(1)), list[StorageError](), Kept()

        def start() -> ReplicationGroup:
            syncer = InPlace(asyncio.get_running_loop(), failures.append, in_place=True, sync_every_s=0.0)
            directory = DataDirectory.open(disk, "/data", owner="test", fresh=bytes(24))
            group = ReplicationGroup(
                *(NUMBER, A),
                # A small segment each: what is damaged in one says nothing about the next.
                ReplicaLog(disk, directory, NUMBER, (A,), has_peers=False, settings=SMALL),
                *(app, syncer),
                origin=1,
                rng=Random(1),
                send=lambda number, to, body: None,
                forward=lambda number, to, kind, block: False,
                wall_us=lambda: 0,
                running_us=lambda: 0,
            )
            while syncer.start():
                """The vote, then the first entry of the term."""
            directory.close()
            return group

        group = start()
        for index in range(2, 7):
            block = parse_block(entry(index).payload)
            assert group.propose([block], [None], EntryKind.DATA)
            group._syncer.start()
        assert app.indexes == [2, 3, 4, 5, 6]
        if is_indexed:
            group.replica_log.log.checkpoint()
        disk.kill()
        app.indexes.clear()
        for index in damaged:
            (path,) = (
                p for p in disk.paths() if p.endswith(".log") and b"entry %x" % index in disk.content(p)
            )
            disk.flip_bit(path, 8 * disk.content(path).index(b"entry %x" % index))
        group = start()
        left = [index for index in (2, 3, 4, 5, 6) if index not in damaged]
        assert app.indexes == left
        assert group.is_leader
        assert group.snapshot_taken()
        assert failures == []

    asyncio.run(scene())


def without_log(snapshot_at: int = LAST) -> Node:
    """A node whose log begins behind its snapshot."""
    node = Node(A, snapshot_at=snapshot_at)
    node.log.start_at(Index(LAST + 1), Term(1), node.log.log.next_offset)
    node.log.write(Persist(number=0), [])
    return node


def test_a_replica_whose_snapshot_is_damaged_begins_with_nothing_and_without_a_vote() -> None:
    async def scene() -> None:
        node = without_log()
        node.flip_snapshot()
        for _ in range(2):
            node.restart()
            assert (node.log.first_index(), node.log.last_index(), node.group.applied) == (1, 0, 0)
            assert node.notes_damage, "it neither votes nor leads"
        node.hear(1, LAST)
        assert not node.notes_damage
        assert len(node.blocks()) == LAST

    asyncio.run(scene())


def test_a_snapshot_that_the_log_can_replace_is_not_missed() -> None:
    async def scene() -> None:
        node = Node(A, snapshot_at=5)
        node.flip_snapshot()
        node.restart()
        assert (node.log.first_index(), node.log.last_index(), node.group.applied) == (1, LAST, 0)
        assert not node.notes_damage
        node.hear(LAST, LAST)
        assert node.group.snapshot_taken()
        node.restart()
        assert node.group.applied == LAST

    asyncio.run(scene())


def test_a_damaged_snapshot_that_nobody_else_has_is_a_clear_error() -> None:
    async def scene() -> None:
        node = without_log()
        node.flip_snapshot()
        node.has_peers = False
        with pytest.raises(StorageError, match=r"\.snap is damaged.*no other node.*backup"):
            node.restart()

    asyncio.run(scene())


def test_a_leader_whose_snapshot_is_damaged_takes_another_one_and_sends_that() -> None:
    async def scene() -> None:
        node = without_log()
        node.lead()
        node.answer(B, lacking(node, 0))
        node.flip_snapshot()
        reply = SnapshotReply(term=node.group.status().term, index=Index(LAST), position=0)
        assert [body for body in node.answer(B, reply) if isinstance(body, SnapshotChunk)] == []
        assert not node.group.is_closed
        node.repairs.tick()
        node.syncer.start()
        (chunk,) = [body for body in node.answer(B, reply) if isinstance(body, SnapshotChunk)]
        assert len(chunk.data) == chunk.snapshot.size_bytes
        assert node.failures == []

    asyncio.run(scene())
