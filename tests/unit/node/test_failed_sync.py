"""After a failed sync a replica is silent until its node has stopped; nothing is raised into the loop."""

import asyncio
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from millrace.broker.freezing import Freezing, Pieces
from millrace.errors import StorageError
from millrace.lab.sim.surroundings.disk import SimDisk
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.logs.syncer import Job, Syncer
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.replication.contract import (
    Damage,
    Entry,
    EntryKind,
    HardState,
    PeerBody,
    Persist,
    ReplicaId,
    StartOver,
    Tick,
)
from millrace.replication.raft.machine import Raft
from millrace.replication.raft.messages import Append, AppendReply
from millrace.storage.block import Block
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import FsyncFailed
from millrace.storage.log import LogFailed
from millrace.types import Index, Term

ME, LEADER = ReplicaId("a"), ReplicaId("b")


class InPlace(Syncer):
    """Every batch is small and every sync quick: nothing is ever handed out."""

    def close(self) -> None:
        """Nothing is held."""

    def _now_s(self) -> float:
        return 0.0

    def _hand_out(self, batch: list[Job]) -> None:
        raise AssertionError("a batch was handed out")


class FrozenBytes:
    """A state of which nobody knows more than its bytes."""

    def __init__(self, state: bytes) -> None:
        self._state = state

    def encode(self, pieces: Pieces) -> Iterator[None]:
        pieces.add(self._state)
        return iter(())

    def end(self) -> None:
        """Nothing is left behind."""


class Nothing:
    """The state of a group whose blocks mean nothing."""

    def apply(self, block: Block, token: object) -> None:
        """Forgotten."""

    def begin_term(self) -> None:
        raise AssertionError("it never leads")

    def admit(self, block: Block, token: object) -> Block:
        return block

    def withdraw(self, block: Block) -> None:
        """Nothing was noted."""

    def freeze(self) -> Freezing:
        return FrozenBytes(b"")

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]]) -> Iterator[None]:
        """Nothing to load."""
        return iter(())

    def lost(self, token: object) -> None:
        raise AssertionError("nothing is proposed here")

    def covered(self, token: object) -> None:
        raise AssertionError("nothing is proposed here")


def append(previous: int, *indexes: int) -> Append:
    entries = tuple(
        Entry(term=Term(1), index=Index(index), kind=EntryKind.NOOP, payload=b"") for index in indexes
    )
    prev_term = Term(1 if previous else 0)
    return Append(
        term=Term(1), prev_index=Index(previous), prev_term=prev_term, commit=Index(0), entries=entries
    )


class Follower:
    """One of two replicas, on a simulated disk. Needs a running loop."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(1))
        self.failures: list[StorageError] = []
        self.sent: list[PeerBody] = []
        self.syncer = InPlace(
            asyncio.get_running_loop(), self.failures.append, in_place=True, sync_every_s=0.0
        )
        directory = DataDirectory.open(self.disk, "/data", owner="test", fresh=bytes(24))
        self.group = ReplicationGroup(
            7,
            ME,
            ReplicaLog(self.disk, directory, 7, (ME, LEADER), has_peers=True),
            Nothing(),
            self.syncer,
            origin=1,
            rng=Random(1),
            send=lambda number, to, body: self.sent.append(body),
            forward=lambda number, to, kind, block: False,
            wall_us=lambda: 0,
            running_us=lambda: 0,
        )

    def hear(self, body: Append) -> None:
        self.group.on_peer(LEADER, body)
        self.syncer.start()


def test_a_replica_whose_sync_failed_takes_frames_without_a_word() -> None:
    """Frames that are already in the socket are handled before the node gets to stop."""

    async def scene() -> None:
        follower = Follower()
        follower.hear(append(0, 1, 2))
        assert any(isinstance(body, AppendReply) for body in follower.sent), "a working disk answers"
        follower.disk.fail_next_sync()
        follower.sent.clear()
        follower.hear(append(2, 3))
        assert len(follower.failures) == 1
        # It follows an entry that only the log knows the term of.
        follower.hear(append(1, 2, 3))
        follower.hear(append(3, 4))
        follower.group.tick()
        assert follower.sent == []
        assert len(follower.failures) == 1

    asyncio.run(scene())


def test_a_log_that_was_closed_under_its_group_is_a_fault_of_ours_and_raised() -> None:
    async def scene() -> None:
        follower = Follower()
        follower.hear(append(0, 1, 2))
        follower.group.replica_log.close()
        with pytest.raises(LogFailed, match="closed"):
            follower.hear(append(1, 2))

    asyncio.run(scene())


def test_a_snapshot_whose_sync_failed_stops_the_node_and_is_not_tried_again() -> None:
    async def scene() -> None:
        follower = Follower()
        follower.hear(append(0, 1, 2))
        follower.hear(
            Append(term=Term(1), prev_index=Index(2), prev_term=Term(1), commit=Index(2), entries=())
        )
        follower.disk.fail_next_sync()
        assert not follower.group.snapshot_taken()
        (failure,) = follower.failures
        assert isinstance(failure, FsyncFailed)
        assert not any(path.endswith((".snap", ".tmp")) for path in follower.disk.paths())
        follower.sent.clear()
        follower.hear(append(2, 3))
        assert not follower.group.snapshot_taken()
        assert follower.sent == [], "it is silent"
        assert len(follower.failures) == 1

    asyncio.run(scene())


def test_a_group_that_stops_in_the_middle_of_its_effects_writes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever was told that nothing is on its way to the disk closes the log."""

    async def scene() -> None:
        follower = Follower()
        group = follower.group
        group.on_start_over = lambda number, effect: group.stop_then(group.replica_log.close)
        damage = Damage(last_index=Index(2), term=Term(1))
        effects = [StartOver(damage=damage, lost=1), Persist(number=1, hard_state=HardState(term=Term(2)))]
        monkeypatch.setattr(Raft, "step", lambda machine, event: effects)
        group.step(Tick())
        follower.syncer.start()
        assert follower.failures == []

    asyncio.run(scene())
