"""What writers have staged at one shard: data that is in the log, replicated, and has no offset yet.

A *writer* publishes in numbered batches. Each of its tasks stages blocks under an *attempt* that nobody else
uses; a block is known by its key (writer, batch, attempt, block), so that sending it again changes nothing.
Which attempts of a batch won is not decided here but by the coordinator (`broker.writers`). The winners'
blocks are then proposed again as ordinary blocks that carry their key: the leader takes the next one of each
attempt and no other (`Taken`), so whoever proposes them, and however often, each is stored once. An entry
`settle` ends the batch: everything the writer staged up to it is let go [rule 28].

A replicated state: every change comes from an entry of the shard's log. Places in the log are remembered, not
the bytes; only what came with a snapshot is held in memory.
"""

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from millrace.errors import LocalError
from millrace.limits import WRITERS_SETTLED_MAX

SECTION = struct.Struct("<IIII")
"""Before the packets of a block on their way to a node: shard, block, MQTT version, bytes of packets."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NUMBER_MAX = 1 << 53


def check_name(what: str, name: str) -> str:
    """The name of a writer or an attempt; LocalError for one that cannot be a part of a key."""
    if not _NAME.fullmatch(name):
        raise LocalError(
            f"{what} {name!r}: 1 to 100 letters, digits, dots, dashes and underscores, no sign first"
        )
    return name


class AttemptKey(NamedTuple):
    writer: str
    batch: int
    attempt: str


class BlockKey(NamedTuple):
    """The name of a staged block: unique for ever, since an attempt is never used again."""

    owner: AttemptKey
    block: int

    def encode(self) -> bytes:
        writer, batch, attempt = self.owner
        return f"{writer}/{batch}/{attempt}/{self.block}".encode()


def make_key(writer: str, batch: int, attempt: str, block: int) -> BlockKey:
    """LocalError names the part that is wrong."""
    check_name("writer", writer)
    check_name("attempt", attempt)
    if not (0 <= batch < _NUMBER_MAX and 0 <= block < _NUMBER_MAX):
        raise LocalError(f"batch {batch} and block {block} are numbers from 0 on")
    return BlockKey(AttemptKey(writer, batch, attempt), block)


def parse_key(key: bytes) -> BlockKey:
    """The key of a block that this package made; LocalError for anything else."""
    parts = key.decode("ascii", "replace").split("/")
    if len(parts) != 4 or not (parts[1].isdigit() and parts[3].isdigit()):
        raise LocalError(f"{key!r} is not the key of a staged block")
    return make_key(parts[0], int(parts[1]), parts[2], int(parts[3]))


@dataclass(slots=True)
class Place:
    """Where a staged block is: an entry of the log, or here where a snapshot brought it."""

    index: int
    size_bytes: int
    rows: int
    data: bytes | None = None


@dataclass(slots=True)
class Attempt:
    user: str
    since_us: int
    places: list[Place] = field(default_factory=list)
    released: int = 0
    """How many of the blocks are in the log as ordinary ones."""

    @property
    def size_bytes(self) -> int:
        return sum(place.size_bytes for place in self.places)

    @property
    def rows(self) -> int:
        return sum(place.rows for place in self.places)


class Staged:
    """Deterministic: the same entries leave the same state everywhere."""

    __slots__ = ("attempts", "settled", "size_bytes")

    def __init__(self) -> None:
        self.attempts: dict[AttemptKey, Attempt] = {}
        self.settled: dict[str, int] = {}
        """Last batch of each writer that is through here; a dict keeps the order in which they were."""
        self.size_bytes = 0

    # ------------------------------------------------------------------------------------- entries

    def stage(self, key: BlockKey, place: Place, *, user: str, time_us: int) -> bool:
        """Keep a block. False for a repeat, for one of a batch that is through, for one out of turn (the
        blocks of an attempt come in order), and for one of a user whose attempt it is not."""
        owner = key.owner
        if owner.batch <= self.settled.get(owner.writer, -1):
            return False
        attempt = self.attempts.get(owner)
        if key.block != (len(attempt.places) if attempt is not None else 0):
            return False
        if attempt is None:
            attempt = self.attempts[owner] = Attempt(user, time_us)
        if attempt.user != user:
            return False
        attempt.places.append(place)
        self.size_bytes += place.size_bytes
        return True

    def release(self, key: BlockKey) -> None:
        """The block is in the log as an ordinary one."""
        attempt = self.attempts.get(key.owner)
        if attempt is not None and key.block == attempt.released:
            attempt.released += 1

    def settle(self, writer: str, batch: int) -> None:
        """The batch is through: what the writer staged up to it was released or lost."""
        self.drop([owner for owner in self.attempts if owner.writer == writer and owner.batch <= batch])
        batch = max(batch, self.settled.pop(writer, -1))
        self.settled[writer] = batch
        if len(self.settled) > WRITERS_SETTLED_MAX:
            del self.settled[next(iter(self.settled))]

    def drop(self, owners: list[AttemptKey]) -> None:
        """The coordinator gave these up."""
        for owner in owners:
            attempt = self.attempts.pop(owner, None)
            if attempt is not None:
                self.size_bytes -= attempt.size_bytes

    # ------------------------------------------------------------------------------------- answers

    def has(self, key: BlockKey, user: str) -> bool:
        """Whether the block need not come again from this user."""
        owner = key.owner
        if owner.batch <= self.settled.get(owner.writer, -1):
            return True
        attempt = self.attempts.get(owner)
        return attempt is not None and attempt.user == user and key.block < len(attempt.places)

    def first_index(self) -> int | None:
        """The oldest entry of the log that is still needed."""
        needed = (
            next((place.index for place in attempt.places[attempt.released :] if place.data is None), None)
            for attempt in self.attempts.values()
        )
        return min((index for index in needed if index is not None), default=None)

    # ----------------------------------------------------------------------------------- snapshots

    def unreleased(self) -> list[Place]:
        """What a snapshot must hold the bytes of, because they are read when the block is released."""
        return [place for attempt in self.attempts.values() for place in attempt.places[attempt.released :]]

    def copies(self) -> list[tuple[AttemptKey, Attempt]]:
        """The attempts as they are now, whatever becomes of them. Places never change."""
        return [(owner, replace(one, places=one.places.copy())) for owner, one in self.attempts.items()]

    @staticmethod
    def restored(saved: "SavedStaged") -> "Staged":
        staged = Staged()
        staged.settled = dict(saved.settled)
        staged.take_in(saved.attempts)
        return staged

    def take_in(self, rows: "Iterable[SavedAttempt]") -> None:
        """Further ones of a snapshot."""
        for row in rows:
            attempt = Attempt(
                row.user,
                row.since_us,
                [Place(one.index, one.size_bytes, one.rows, one.data) for one in row.places],
                row.released,
            )
            self.attempts[AttemptKey(row.writer, row.batch, row.attempt)] = attempt
            self.size_bytes += attempt.size_bytes


def saved_attempt(owner: AttemptKey, attempt: Attempt, data: Mapping[int, bytes]) -> "SavedAttempt":
    """With the bytes of what is not released, by the index of the place."""
    return SavedAttempt(
        *owner,
        user=attempt.user,
        since_us=attempt.since_us,
        released=attempt.released,
        places=[
            SavedPlace(
                place.index,
                place.size_bytes,
                place.rows,
                data[place.index] if at >= attempt.released else None,
            )
            for at, place in enumerate(attempt.places)
        ],
    )


class SavedPlace(msgspec.Struct, frozen=True, array_like=True):
    index: int
    size_bytes: int
    rows: int
    data: bytes | None


class SavedAttempt(msgspec.Struct, frozen=True, array_like=True):
    writer: str
    batch: int
    attempt: str
    user: str
    since_us: int
    released: int
    places: list[SavedPlace]


class SavedStaged(msgspec.Struct, frozen=True, array_like=True):
    """In a snapshot."""

    attempts: list[SavedAttempt]
    settled: list[tuple[str, int]]


class Taken:
    """The leader's view: which block of an attempt goes into the log next, what is on its way counted too."""

    __slots__ = ("_next", "_staged")

    def __init__(self, staged: Staged) -> None:
        self._staged = staged
        self._next: dict[AttemptKey, int] = {}

    def admits(self, key: BlockKey) -> bool:
        """Whether this block is the next of its attempt; then the one after it is."""
        attempt = self._staged.attempts.get(key.owner)
        if attempt is None:
            self._next.pop(key.owner, None)
            return False
        if key.block != max(attempt.released, self._next.get(key.owner, 0)):
            return False
        self._next[key.owner] = key.block + 1
        self._next = {owner: n for owner, n in self._next.items() if owner in self._staged.attempts}
        return True

    def withdraw(self, key: BlockKey) -> None:
        """The log did not take it after all."""
        if key.owner in self._next:
            self._next[key.owner] = min(self._next[key.owner], key.block)
