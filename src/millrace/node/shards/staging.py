"""Staged publishing at one shard: entries in, the state they leave, and the way out as ordinary blocks.

A staged block lies in the shard's log as a control entry: on a majority's disks like any other, and without
an offset. Its place in the log is remembered; the bytes are read again when the block is released. A segment
with something staged in it is held, and a snapshot carries the bytes of what is staged where that is little;
where it is much there is no snapshot until less is staged, which only makes a restart read more log.
"""

import asyncio
import base64
import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millrace.broker.shards.staging import AttemptKey, BlockKey, Place, Staged, Taken, parse_key
from millrace.errors import LocalError
from millrace.limits import MIB
from millrace.node.groups.shard_consumers import Unavailable
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind, opaque_block, parse_block, parse_header
from millrace.types import Index

if TYPE_CHECKING:
    from millrace.node.shards.shard import Shard

# No other entry begins with this: they are JSON.
MAGIC = b"MRST"
_HEAD = struct.Struct("<4sI")
SNAPSHOT_BYTES_MAX = 16 * MIB
# Counted for an attempt beside its blocks, which may be next to nothing: what is remembered of it.
_ATTEMPT_BYTES = 4096
_ANSWER_S = 30.0


class NoRoom(LocalError):
    """Too much is staged and not decided."""


class ShardStaging:
    """What writers staged at one shard. Its `state` is part of the shard's."""

    def __init__(self, shard: "Shard", staged_bytes_max: int) -> None:
        self._shard = shard
        self._staged_bytes_max = staged_bytes_max
        self.state = Staged()
        self._taken = Taken(self.state)
        self._waiting: set[asyncio.Future[Any]] = set()
        # Proposed here and not applied yet.
        self._coming_bytes = 0

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
        entries = [_entry(key, block, user) for key, block in fresh]
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
            self._shard.work.introduce()
        timed = [self._shard.timed(block) for block in blocks]
        if not self._shard.group.propose(timed, answers, kind, is_judged=True):
            raise Unavailable(f"shard {self._shard.number} takes nothing right now; try again")
        for answer in answers:
            self._waiting.add(answer)
            answer.add_done_callback(self._waiting.discard)
        return answers

    async def note(self, op: str, **fields: Any) -> None:
        """An entry `settle`, `give_up` or `pass_over`."""
        text = json.dumps({"op": op, **fields}, separators=(",", ":")).encode()
        await self.settled(self.propose([opaque_block(Kind.CONTROL, text)], EntryKind.CONTROL))

    async def settled(self, answers: "Sequence[asyncio.Future[Any]]") -> None:
        """Wait for the answers, for a while: a replica that was set back by a snapshot never sees the entries
        itself. Whoever gives up may propose again, since what is there already is not taken twice."""
        try:
            await asyncio.wait_for(asyncio.gather(*answers), _ANSWER_S)
        except TimeoutError:
            raise Unavailable(f"shard {self._shard.number} does not get on; it is tried again") from None

    def close(self) -> None:
        """The shard is gone: whoever waits is told."""
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_exception(Unavailable("the shard is gone"))

    # -------------------------------------------------------------------------------------- committed

    def apply_staged(self, block: Block, token: Any) -> None:
        fields, position = _head_of(block)
        key = parse_key(fields["key"].encode())
        place = Place(
            index=block.header.index,
            size_bytes=block.header.raw_bytes - position,
            rows=parse_header(block.body, position).count,
        )
        user = fields["user"]
        self.state.stage(key, place, user=user, time_us=block.header.base_time_us)
        answer(token, self.state.has(key, user))

    def apply(self, fields: dict[str, Any], token: Any) -> None:
        if fields["op"] == "settle":
            self.state.settle(fields["writer"], fields["batch"])
        elif fields["op"] == "pass_over":
            # Lost at a node that is alone: as if it were released.
            self.released(fields["key"].encode())
        else:
            self.state.drop([AttemptKey(*owner) for owner in fields["attempts"]])
        answer(token, True)

    def released(self, key: bytes) -> None:
        """An ordinary block with this key was applied."""
        self.state.release(parse_key(key))

    # ------------------------------------------------------------------------------------------ leader

    def begin_term(self) -> None:
        """Which blocks are taken is what is applied, from now on."""
        self._taken = Taken(self.state)

    def admits(self, key: bytes) -> bool:
        """As leader: whether a released block goes into the log, or is there already [rule 28]."""
        return self._taken.admits(parse_key(key))

    def withdraw(self, key: bytes) -> None:
        self._taken.withdraw(parse_key(key))

    def read_all(self, places: Sequence[Place]) -> list[Block]:
        """*blocking* The blocks at these places."""
        return [self.read(place) for place in places]

    def read(self, place: Place) -> Block:
        """*blocking* The staged block at this place, as an ordinary one that is not stamped."""
        data = place.data
        if data is not None:
            return parse_block(data)
        (entry,) = self._shard.group.replica_log.blocks(Index(place.index), Index(place.index), 1)
        _, position = _head_of(entry)
        return parse_block(entry.body, position)

    def holds(self, index: int) -> bool:
        """Whether something staged is in the log at this index or below."""
        first = self.state.first_index()
        return first is not None and first <= index

    # --------------------------------------------------------------------------------------- snapshots

    @property
    def is_small(self) -> bool:
        """Whether a snapshot can carry what is staged."""
        return self.state.size_bytes <= SNAPSHOT_BYTES_MAX

    def to_json(self) -> list[Any]:
        data = [
            [
                base64.b64encode(self.read(place).to_bytes()).decode()
                for place in attempt.places[attempt.released :]
            ]
            for attempt in self.state.attempts.values()
        ]
        return [self.state.to_json(), data]

    def restore(self, fields: list[Any]) -> None:
        state, data = fields
        self.state = Staged.from_json(state)
        self._taken = Taken(self.state)
        for attempt, texts in zip(self.state.attempts.values(), data, strict=True):
            for place, text in zip(attempt.places[attempt.released :], texts, strict=True):
                place.data = base64.b64decode(text)

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


def _entry(key: BlockKey, block: Block, user: str) -> Block:
    """The control entry that a staged block is in the log."""
    head = json.dumps({"key": key.encode().decode(), "user": user}, separators=(",", ":")).encode()
    return opaque_block(Kind.CONTROL, (_HEAD.pack(MAGIC, len(head)), head, *block.buffers()))


def is_staged(block: Block) -> bool:
    """Whether a control block holds a staged one."""
    return block.body.startswith(MAGIC)


def answer(token: Any, result: Any) -> None:
    """Tell whoever proposed the entry, if it was this node."""
    if isinstance(token, asyncio.Future) and not token.done():
        token.set_result(result)


def _head_of(block: Block) -> tuple[dict[str, Any], int]:
    """What a staged entry says about itself, and where its block begins."""
    _, size = _HEAD.unpack_from(block.body)
    fields: dict[str, Any] = json.loads(block.body[_HEAD.size : _HEAD.size + size])
    return fields, _HEAD.size + size
