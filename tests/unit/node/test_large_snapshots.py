"""A large state is written as a snapshot, and loaded, in steps of so many rows. What comes meanwhile does not
wait for the writing, and waits for the loading."""

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from millrace.broker.freezing import Frozen, Pieces, encode, finished
from millrace.kernels.blocks import Run
from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.replication.contract import Config, EntryKind, ReplicaId, Snapshot, checksum
from millrace.replication.raft.messages import Append, SnapshotChunk
from millrace.storage.block import Block, data_blocks
from millrace.types import Index, Term
from unit.node.test_failed_sync import InPlace, append
from unit.node.test_full_disk import LEADER, ME, replica_log

NAMES = 5_000
ROWS_AT_ONCE = 100
Tallies = dict[str, list[int]]


class Tally:
    """Counts, for many names, how often one was applied; each block counts the next name, the last
    first: its row is encoded last."""

    def __init__(self, names: int = NAMES) -> None:
        self.tallies: Tallies = {f"n{number}": [0] for number in range(names)}
        self.applied = 0
        self.frozen: Frozen[str, list[int]] | None = None
        self.rows = 0
        """Encoded or decoded so far."""

    def apply(self, block: Block, token: object) -> None:
        name = f"n{NAMES - 1 - self.applied}"
        if self.frozen is not None:
            self.frozen.keep(name)
        self.tallies[name][0] += 1
        self.applied += 1

    def freeze(self) -> "Tally":
        self.frozen = FrozenTallies(self)
        return self

    def encode(self, pieces: Pieces) -> Iterator[None]:
        assert self.frozen is not None
        return pieces.entries("tallies", self.frozen.rows())

    def end(self) -> None:
        self.frozen = None

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]]) -> Iterator[None]:
        fresh: Tallies = msgspec.msgpack.decode(state, type=Tallies)
        for _, some in rows:
            found = msgspec.msgpack.decode(some, type=Tallies)
            self.rows += len(found)
            fresh.update(found)
            yield
        self.tallies = fresh

    def begin_term(self) -> None:
        """Nothing depends on who leads."""

    def admit(self, block: Block, token: object) -> Block:
        return block

    def withdraw(self, block: Block) -> None:
        """Nothing was noted."""

    def lost(self, token: object) -> None:
        raise AssertionError("somebody leads")

    def covered(self, token: object) -> None:
        raise AssertionError("nothing is proposed here")


class FrozenTallies(Frozen[str, list[int]]):
    def __init__(self, app: Tally) -> None:
        super().__init__(app.tallies)
        self._app = app

    def row(self, key: str, value: list[int]) -> tuple[str, list[int]]:
        self._app.rows += 1
        return key, value.copy()


class Turns:
    """Work in steps that the test takes."""

    def __init__(self) -> None:
        self.works: deque[Iterator[None]] = deque()

    def __call__(self, work: Iterator[None]) -> None:
        self.works.append(work)
        self.step()

    def step(self) -> None:
        if next(self.works[0], self) is self:
            self.works.popleft()


class Node:
    """One replica, with its turns in the hand of the test."""

    def __init__(self, app: Tally, voters: tuple[str, ...]) -> None:
        self.app, self.turns = app, Turns()
        self.log = replica_log(SimDisk(Random(1)), tuple(map(ReplicaId, voters)))
        self.syncer = InPlace(asyncio.get_running_loop(), _unexpected, in_place=True, sync_every_s=0.0)
        self.group = ReplicationGroup(
            *(7, ME, self.log, app, self.syncer),
            origin=1,
            rng=Random(1),
            send=lambda number, to, body: None,
            forward=lambda number, to, kind, block: False,
            wall_us=lambda: 0,
            running_us=lambda: 0,
        )
        self.group.snapshots.in_turns = self.turns
        self.group.snapshots.rows_at_once = ROWS_AT_ONCE
        self.settle()

    def settle(self) -> None:
        """All that waits for the disk is done."""
        for _ in range(5):
            self.syncer.start()

    def publish(self) -> None:
        (block,) = data_blocks([Run(packets=b"\x30\x04\x00\x01tx", version=4)])
        before = self.app.applied
        assert self.group.propose([block], [None], EntryKind.DATA)
        self.settle()
        assert self.app.applied == before + 1, "it is answered at once"

    def hear(self, body: Any) -> None:
        self.group.on_peer(LEADER, body)
        self.settle()


def _unexpected(error: Exception) -> None:
    raise error


def test_a_snapshot_is_the_state_of_one_entry_and_no_step_of_it_takes_more_than_so_many_rows() -> None:
    async def scene() -> None:
        node = Node(Tally(), (ME,))
        node.publish()
        index, wanted = node.group.applied, {name: tally.copy() for name, tally in node.app.tallies.items()}
        node.group.begin_snapshot()
        steps = 1
        while node.turns.works:
            before = node.app.rows
            node.turns.step()
            assert node.app.rows - before <= ROWS_AT_ONCE
            steps += 1
            node.publish()
            if node.turns.works:
                node.group.begin_snapshot()
                assert len(node.turns.works) == 1, "one at a time"
        assert steps >= NAMES // ROWS_AT_ONCE
        node.settle()
        snapshot, saved = node.log.snapshot(), node.log.snapshot_state()
        assert snapshot is not None and saved is not None
        assert snapshot.index == index < node.group.applied
        other = Tally(0)
        finished(other.load(saved.partition(b"\n")[2], ()))
        assert other.tallies == wanted != node.app.tallies
        # The next one is of what was applied since.
        assert node.group.snapshot_taken()
        newer = node.log.snapshot()
        assert newer is not None and newer.index == node.group.applied

    asyncio.run(scene())


def saved_state(app: Tally) -> bytes:
    pieces = Pieces(ROWS_AT_ONCE)
    finished(app.freeze().encode(pieces))
    app.end()
    head = {"origins": [], "next_offset": 8, "time_us": 0, "parts": pieces.parts}
    return json.dumps(head).encode() + b"\n" + pieces.joined()


def installed(node: Node, saved: bytes, index: int) -> None:
    """A leader sends its snapshot, and an entry behind it that is committed."""
    snapshot = Snapshot(
        index=Index(index),
        term=Term(1),
        config=Config(voters=(ME, LEADER)),
        size_bytes=len(saved),
        checksum=checksum(saved),
    )
    node.hear(SnapshotChunk(term=Term(1), snapshot=snapshot, position=0))
    for position in range(0, len(saved), 30_000):
        data = saved[position : position + 30_000]
        node.hear(SnapshotChunk(term=Term(1), snapshot=snapshot, position=position, data=data))


def later(index: int) -> Append:
    more = append(index, index + 1)
    return replace(more, prev_term=Term(1), commit=Index(index + 1))


def test_a_snapshot_of_the_leader_is_loaded_in_steps_and_what_is_committed_waits_for_it() -> None:
    async def scene() -> None:
        sent = Tally()
        sent.tallies["n7"][0] = 42
        node = Node(Tally(0), (ME, LEADER))
        node.hear(append(0, 1, 2))
        installed(node, saved_state(sent), 9)
        node.hear(later(9))
        steps = 0
        while node.turns.works:
            assert node.group.applied < 9 and not node.app.tallies
            assert not node.group.snapshot_taken()
            before = node.app.rows
            node.turns.step()
            assert node.app.rows - before <= ROWS_AT_ONCE
            steps += 1
        assert steps >= NAMES // ROWS_AT_ONCE
        assert node.app.tallies == sent.tallies
        assert node.group.applied == 10
        assert node.group.snapshot_taken()

    asyncio.run(scene())


def test_a_newer_snapshot_is_loaded_behind_the_one_that_is_being_loaded() -> None:
    async def scene() -> None:
        node, first, second = Node(Tally(0), (ME, LEADER)), Tally(), Tally()
        second.tallies["n7"][0] = 42
        installed(node, saved_state(first), 9)
        node.turns.step()
        installed(node, saved_state(second), 20)
        node.hear(later(20))
        assert node.group.applied == 0
        while node.turns.works:
            node.turns.step()
        assert node.app.tallies == second.tallies
        assert node.group.applied == 21

    asyncio.run(scene())


def test_a_snapshot_that_names_no_parts_is_loaded_all_the_same() -> None:
    async def scene() -> None:
        sent, node = Tally(10), Node(Tally(0), (ME, LEADER))
        head = json.dumps({"origins": [], "next_offset": 8, "time_us": 0}).encode()
        installed(node, head + b"\n" + encode(sent.tallies), 9)
        while node.turns.works:
            node.turns.step()
        assert node.app.tallies == sent.tallies
        assert node.group.applied == 9

    asyncio.run(scene())
