"""Staged publishing at one shard: entries in, the state they leave, and the way out as ordinary blocks.

A staged block lies in the shard's log as a control entry: on a majority's disks like any other, and without
an offset. Its place in the log is remembered; the bytes are read again when the block is released. A segment
with something staged in it is held, and a snapshot carries the bytes of what is staged where that is little;
where it is much there is no snapshot until less is staged, which only makes a restart read more log.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from millrace.broker.entries.shard import GiveUp, PassOver, Settle, Stage
from millrace.broker.shards.staging import BlockKey, Place, Staged
from millrace.errors import LocalError, StorageError
from millrace.limits import STAGED_SNAPSHOT_BYTES_MAX
from millrace.node.groups.shard_consumers import Answer, Unavailable
from millrace.node.shards.control import control_block, entries_of
from millrace.node.shards.shard_log import ShardLog
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, parse_block
from millrace.types import Index

# Counted for an attempt beside its blocks, which may be next to nothing: what is remembered of it.
_ATTEMPT_BYTES = 4096
_ANSWER_S = 30.0
_NOTES: dict[str, type[Settle] | type[GiveUp] | type[PassOver]] = {
    "settle": Settle,
    "give_up": GiveUp,
    "pass_over": PassOver,
}


class NoRoom(LocalError):
    """Too much is staged and not decided."""


class StagedGone(StorageError):
    """What was staged is decided, and its bytes are not in the log any more."""


class ShardStaging:
    """What writers staged at one shard."""

    def __init__(self, shard: ShardLog, introduce: Callable[[], None], staged_bytes_max: int) -> None:
        """`introduce` is called before messages are proposed: see `ShardWorkDivision`."""
        self._shard = shard
        self._introduce = introduce
        self._staged_bytes_max = staged_bytes_max
        self._waiting: set[asyncio.Future[Any]] = set()
        # Proposed here and not applied yet.
        self._coming_bytes = 0
        self.on_change: Callable[[], None] = _nobody_waits
        """Called while an entry about what is staged, or a snapshot, is applied."""

    @property
    def state(self) -> Staged:
        return self._shard.state.staged

    # ------------------------------------------------------------------------------------- proposals

    async def stage(self, blocks: Sequence[tuple[BlockKey, Block]], user: str) -> None:
        """Bring blocks into the log outside the offsets, with one sync for all; returns once they are on a
        majority's disks. NoRoom and Unavailable say that they are not, or not known to be: the same blocks
        may be sent again."""
        fresh = [(key, block) for key, block in blocks if not self.state.has(key, user)]
        attempts = self.state.attempts
        size = sum(block.header.block_bytes for _, block in fresh)
        size += _ATTEMPT_BYTES * len({key.owner for key, _ in fresh} - attempts.keys())
        held = self.state.size_bytes + _ATTEMPT_BYTES * len(attempts)
        if held + self._coming_bytes + size > self._staged_bytes_max:
            raise NoRoom(
                f"shard {self._shard.number}: {held} bytes are staged and not decided; "
                f"the limit is {self._staged_bytes_max} (limits.staged_bytes_max)"
            )
        entries = [
            control_block([Stage(key.encode(), user, block.header.count, block.to_bytes())])
            for key, block in fresh
        ]
        self._coming_bytes += size
        try:
            found = await asyncio.gather(*self.propose(entries, EntryKind.CONTROL))
        finally:
            self._coming_bytes -= size
        for (key, _), is_there in zip(fresh, found, strict=True):
            if not is_there:
                raise Unavailable(
                    f"block {key.block} of attempt {key.owner.attempt} came out of turn; try again"
                )

    def propose(self, blocks: Sequence[Block], kind: EntryKind) -> "list[asyncio.Future[Any]]":
        """Offer entries; the answer to each comes when it is applied here. Unavailable where they cannot get
        there: then none of them did."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Any]] = [loop.create_future() for _ in blocks]
        if kind is EntryKind.DATA:
            self._introduce()
        timed = [self._shard.timed(block) for block in blocks]
        if not self._shard.group.propose(timed, list(map(Answer, answers)), kind, is_judged=True):
            raise Unavailable(f"shard {self._shard.number} accepts no messages right now; try again")
        for answer in answers:
            self._waiting.add(answer)
            answer.add_done_callback(self._waiting.discard)
        return answers

    async def note(self, op: str, **fields: Any) -> None:
        """An entry `settle`, `give_up` or `pass_over`, applied when this returns."""
        await self.settled(self.propose([control_block([_NOTES[op](**fields)])], EntryKind.CONTROL))

    async def settled(self, answers: "Sequence[asyncio.Future[Any]]") -> None:
        """Wait for the answers, for a while: a replica that was set back by a snapshot never sees the entries
        itself. Whoever gives up may propose again, since what is there already is not taken twice."""
        try:
            await asyncio.wait_for(asyncio.gather(*answers), _ANSWER_S)
        except TimeoutError:
            raise Unavailable(
                f"shard {self._shard.number} makes no progress right now; it is tried again"
            ) from None

    def close(self) -> None:
        """The shard is gone: whoever waits is told."""
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_exception(Unavailable("the shard is gone"))

    # ------------------------------------------------------------------------------------------ reading

    def read_all(self, places: Sequence[Place]) -> list[Block]:
        """*blocking* The blocks at these places."""
        return [self.read(place) for place in places]

    def read(self, place: Place) -> Block:
        """*blocking* The staged block at this place, as an ordinary one that is not stamped."""
        data = place.data
        if data is not None:
            return parse_block(data)
        (control,) = self._shard.group.replica_log.blocks(Index(place.index), Index(place.index), 1)
        (entry,) = entries_of(control)
        assert isinstance(entry, Stage)
        return parse_block(entry.block)

    def holds(self, index: int) -> bool:
        """Whether something staged is in the log at this index or below."""
        first = self.state.first_index()
        return first is not None and first <= index

    # --------------------------------------------------------------------------------------- snapshots

    @property
    def is_small(self) -> bool:
        """Whether a snapshot can carry what is staged."""
        return self.state.size_bytes <= STAGED_SNAPSHOT_BYTES_MAX

    def bytes_at(self, place: Place) -> bytes:
        """*blocking* What a snapshot holds of this place. StorageError where it was let go meanwhile."""
        if place.data is None and place.index < self._shard.group.replica_log.first_index():
            raise StagedGone(f"entry {place.index} was let go")
        return self.read(place).to_bytes()

    def shown(self) -> list[dict[str, Any]]:
        """For people: every attempt that is staged here."""
        return [
            {
                "shard": self._shard.number,
                "writer": owner.writer,
                "batch": owner.batch,
                "attempt": owner.attempt,
                "blocks": len(attempt.places),
                "rows": attempt.rows,
                "bytes": attempt.size_bytes,
                "since_us": attempt.since_us,
            }
            for owner, attempt in self.state.attempts.items()
        ]


def _nobody_waits() -> None:
    """Until the node opens the shard."""
