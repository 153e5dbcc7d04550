"""The replicated state of one shard: what the entries of its log leave, and what a leader lets in.

Every replica applies the same blocks in the same order and comes to the same state. Nothing here knows a
node, a clock or a file: entries and the facts of data blocks come in as values, and what the node has to do
about them goes out as effects, in order. The messages themselves stay in the log; delivering them is the
node's part (`node/shards/shard.py`).

A leader asks `admit` before a block of messages goes into the log: against the applied state, and what it
admitted and has not seen applied [rule 2].
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, assert_never

import msgspec
from msgspec import Struct

from millrace.broker.entries.consume import Advance, Configure, Consume, Nack, Reset, Tick
from millrace.broker.entries.shard import (
    BeginWork,
    Generation,
    GiveUp,
    Introduce,
    Marker,
    Members,
    PassOver,
    Repeated,
    Retain,
    Seal,
    Sealed,
    Settle,
    ShardEntry,
    Stage,
    Trim,
    WorkDone,
)
from millrace.broker.freezing import Pieces, array_head, encode, finished
from millrace.broker.groups.consumers import Consumers, Result
from millrace.broker.groups.cursor import SavedCursor
from millrace.broker.groups.work_division import News, SavedGroup, WorkDivision
from millrace.broker.shards.block_facts import BlockFacts, Key, RetainedValue, keys_of
from millrace.broker.shards.producers import Producers, SavedProducer, SavedProducers, Verdict
from millrace.broker.shards.retained_topics import RetainedTopics, SavedRetained
from millrace.broker.shards.staging import (
    Place,
    SavedAttempt,
    SavedStaged,
    Staged,
    Taken,
    parse_key,
    saved_attempt,
)
from millrace.broker.shards.stamps import Stamp
from millrace.kernels.blocks import Columns

_STATE_VERSION = 2
# Topics of before that are compared in one step.
_LOOKED_AT_ONCE = 20_000
_STIRRING = (Nack, Reset, Advance, Configure, Tick)
"""Operations after which there may be something to take that was not there before."""
SESSION_TOKENS = b"qos2/"
"""Begins the producer of what a session sent at QoS 2: its tokens follow each other."""
WILLS = b"will/"
"""Begins the producer of the wills of a client, which are numbered by the epochs of its record."""


class RetainedChanged(Struct, frozen=True, kw_only=True):
    """A topic has another value, or, where that is empty, none; unless a newer log has spoken of it."""

    topic: str
    value: RetainedValue
    is_empty: bool
    stamp: Stamp


class RetainedForgotten(Struct, frozen=True, kw_only=True):
    """That a topic was deleted is not remembered any more."""

    topic: str


class RetainedRestored(Struct, frozen=True, kw_only=True):
    """These are the topics of the log, the oldest first, in place of all it said before; `gone` it knows no
    more."""

    rows: Sequence[SavedRetained]
    gone: Sequence[str]


class WorkChanged(Struct, frozen=True, kw_only=True):
    """The work of shared groups is divided in another way."""

    news: Sequence[News]
    begins: bool = False
    """By the entry that begins a run of a node."""


class Consumed(Struct, frozen=True, kw_only=True):
    """One result for each operation of durable groups, for whoever proposed them."""

    results: list[Result]
    is_stirring: bool
    """There may be something to take that was not there before."""
    time_us: int
    """At which they were judged."""


class Answered(Struct, frozen=True, kw_only=True):
    """What an entry came to, for whoever proposed it."""

    result: bool | None


class SealReached(Struct, frozen=True, kw_only=True):
    """The log is complete."""


class MarkerReached(Struct, frozen=True, kw_only=True):
    """Everything before this entry is applied."""


class NotTaken(Struct, frozen=True, kw_only=True):
    """In place of a block that the leader refused, because the log is being sealed."""


class AllRepeated(Struct, frozen=True, kw_only=True):
    """In place of a block whose every message was left out."""


ShardEffect = (
    RetainedChanged
    | RetainedForgotten
    | RetainedRestored
    | WorkChanged
    | Consumed
    | Answered
    | SealReached
    | MarkerReached
    | NotTaken
    | AllRepeated
)


class StagedBytes(Protocol):
    """Has the bytes of what is staged."""

    def bytes_at(self, place: Place) -> bytes: ...


class _Read:
    """They were read before, by the index of their entries."""

    def __init__(self, data: Mapping[int, bytes]) -> None:
        self._data = data

    def bytes_at(self, place: Place) -> bytes:
        return self._data[place.index]


class ShardState:
    def __init__(self, number: int) -> None:
        self.number = number
        self.next_offset = 0
        """Of the next message to be committed."""
        self.start_offset = 0
        """What is below was trimmed."""
        self.is_finished = False
        """Sealed, and everything before the seal is applied."""
        self.producers = Producers()
        self.retained = RetainedTopics()
        self.work_division = WorkDivision()
        self.consumers = Consumers()
        self.staged = Staged()
        # As leader: what went into the log and is not applied yet.
        self._keys_taken: set[Key] = set()
        self._blocks_taken = Taken(self.staged)

    # ---------------------------------------------------------------------------------- committed

    def apply_messages(self, facts: BlockFacts, *, index: int, next_offset: int) -> list[ShardEffect]:
        """A data block whose last message is before `next_offset`."""
        self.next_offset = next_offset
        if facts.staged_key:
            self.staged.release(parse_key(facts.staged_key))
        for key in facts.keys:
            self.producers.store(*key)
            self._keys_taken.discard(key)
        effects: list[ShardEffect] = []
        for topic, value in facts.retained:
            effects += self._retain(topic, value, index)
        return effects

    def apply(self, entry: ShardEntry, *, index: int, time_us: int) -> list[ShardEffect]:
        """An entry of the control block at `index`, made at `time_us`."""
        match entry:
            case Marker():
                return [MarkerReached()]
            case Retain():
                if entry.carried_over and self.retained.generation_of(entry.topic) >= entry.carried_over:
                    return []
                value = RetainedValue(entry.packet, entry.qos, entry.v5, entry.time_us)
                return self._retain(entry.topic, value, index)
            case Generation(generation):
                self.retained.announced(generation)
                return []
            case Consume():
                results = self.consumers.apply(entry, time_us)
                is_stirring = any(isinstance(operation, _STIRRING) for operation in entry.operations)
                return [Consumed(results=results, is_stirring=is_stirring, time_us=time_us)]
            case Seal():
                self.is_finished = True
                return [SealReached()]
            case Sealed():
                return [NotTaken()]
            case Repeated():
                return [AllRepeated()]
            case Trim(offset):
                self.start_offset = min(max(self.start_offset, offset), self.next_offset)
                self.consumers.trim(self.start_offset)
                return [Answered(result=None)]
            case Members() | BeginWork() | Introduce() | WorkDone():
                return self._divide(entry, time_us)
            case Stage() | Settle() | GiveUp() | PassOver():
                return [Answered(result=self._stage(entry, index, time_us))]
            case _:
                assert_never(entry)

    def _retain(self, topic: str, value: RetainedValue, index: int) -> list[ShardEffect]:
        is_empty = value.is_empty
        forgotten = self.retained.keep(topic, index, is_empty=is_empty)
        stamp = (self.retained.generation, self.number, index)
        changed = RetainedChanged(topic=topic, value=value, is_empty=is_empty, stamp=stamp)
        return [changed] if forgotten is None else [changed, RetainedForgotten(topic=forgotten)]

    def _divide(self, entry: Members | BeginWork | Introduce | WorkDone, time_us: int) -> list[ShardEffect]:
        work_division, offset = self.work_division, self.next_offset
        match entry:
            case Members(group, node, connected, holds, is_gone, is_held):
                at = {"offset": offset, "time_us": time_us}
                news = work_division.put(
                    group, node, connected, holds, **at, is_gone=is_gone, is_held=is_held
                )
                return [WorkChanged(news=[news])]
            case BeginWork(node):
                return [WorkChanged(news=work_division.begin(node, offset=offset), begins=True)]
            case Introduce(groups):
                introduced = [
                    work_division.inherit(group, holders, offset=offset, time_us=time_us)
                    for group, holders in groups
                ]
                return [WorkChanged(news=introduced)]
            case WorkDone(node, rows):
                for group, version, position, owed in rows:
                    work_division.done(group, node, version, position, owed)
                return [WorkChanged(news=[])]
            case _:
                assert_never(entry)

    def _stage(self, entry: Stage | Settle | GiveUp | PassOver, index: int, time_us: int) -> bool:
        match entry:
            case Stage(name, user, rows, block):
                key = parse_key(name)
                place = Place(index=index, size_bytes=len(block), rows=rows)
                self.staged.stage(key, place, user=user, time_us=time_us)
                return self.staged.has(key, user)
            case Settle(writer, batch):
                self.staged.settle(writer, batch)
            case GiveUp(attempts):
                self.staged.drop(attempts)
            case PassOver(lost):
                self.staged.release(parse_key(lost.encode()))
            case _:
                assert_never(entry)
        return True

    # ------------------------------------------------------------------------------------- leader

    def begin_term(self) -> None:
        """As leader: which keys and blocks are taken is what is applied, from now on."""
        self._keys_taken.clear()
        self._blocks_taken = Taken(self.staged)

    def admit(
        self, columns: Columns, others: Iterable[Producers], *, is_sealed: bool
    ) -> Sequence[int] | Sealed | Repeated:
        """As leader: the rows of a block that go into the log, or the entry that goes there in its place. A
        message whose key is in the log, or on its way there, is not stored again, whichever node it came in
        at, nor one that is too old to tell [rules 2, 3]; that node knows them apart when it applies
        the entry. A sealed log takes no more data [rule 16], but for what was decided before."""
        if columns.key:
            all_rows = range(len(columns.flags))
            return all_rows if self._blocks_taken.admits(parse_key(columns.key)) else Repeated()
        if is_sealed:
            return Sealed()
        keys = keys_of(columns)
        if not keys:
            return range(len(columns.flags))
        others = list(others)
        rows: list[int] = []
        for row, key in enumerate(keys):
            if key is not None:
                if key in self._keys_taken or self.verdict(key, others) is not Verdict.NEW:
                    continue
                self._keys_taken.add(key)
            rows.append(row)
        return rows or Repeated()

    def withdraw(self, columns: Columns) -> None:
        """The log did not take a block that was admitted: it will be offered again."""
        if columns.key:
            self._blocks_taken.withdraw(parse_key(columns.key))
        self._keys_taken.difference_update(key for key in keys_of(columns) if key is not None)

    def verdict(self, key: Key, others: Iterable[Producers]) -> Verdict:
        """Whether a message is in the log. One of a session's tokens, or a will, may be in another log of
        `others`: the stream was changed between the message and its repeat. Sequences of clients may be
        counted per topic, so there they say nothing."""
        if key[0].startswith((SESSION_TOKENS, WILLS)):
            for producers in others:
                if producers is not self.producers and producers.judge(*key) is Verdict.REPEATED:
                    return Verdict.REPEATED
        return self.producers.judge(*key)

    # ---------------------------------------------------------------------------------- snapshots

    def freeze(self, retained: Iterable[SavedRetained], staged: StagedBytes) -> "FrozenShard":
        """The state for a snapshot. `retained` gives the topics of this moment with their values, those that
        were deleted last."""
        return FrozenShard(self, retained, staged)

    def to_bytes(self, retained: Iterable[SavedRetained], staged: Mapping[int, bytes]) -> bytes:
        """All of it at once, with the bytes of what is staged and not released by the index of their
        entries."""
        frozen, pieces = self.freeze(retained, _Read(staged)), Pieces()
        finished(frozen.encode(pieces))
        frozen.end()
        return pieces.joined()

    def restore(self, state: bytes) -> list[ShardEffect]:
        """Begin from a snapshot."""
        return [effect for effects in self.load(state) for effect in effects]

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]] = ()) -> Iterator[list[ShardEffect]]:
        """The same in steps: `state` may lack rows, which follow a few at a time. The state is another one
        after the last step."""
        saved = _DECODER.decode(state)
        producers = Producers.restored(saved.producers)
        work_division = WorkDivision.restored(saved.work_division)
        consumers, staged = Consumers.restored(saved.consumers), Staged.restored(saved.staged)
        retained = RetainedTopics()
        retained.generation = saved.generation
        for field, data in rows:
            effects: list[ShardEffect] = []
            match field:
                case "producers":
                    producers.take_in(_PRODUCERS.decode(data))
                case "work_division":
                    work_division.take_in(_GROUPS.decode(data))
                case "consumers":
                    consumers.take_in(_CURSORS.decode(data))
                case "staged":
                    staged.take_in(_ATTEMPTS.decode(data))
                case _:
                    some = _RETAINED.decode(data)
                    retained.take_in(some)
                    effects.append(RetainedRestored(rows=some, gone=[]))
            yield effects
        left = sorted(saved.retained, key=lambda row: row.place)
        retained.take_in(left)
        gone: list[str] = []
        known = list(self.retained.places)
        for at in range(0, len(known), _LOOKED_AT_ONCE):
            gone += [topic for topic in known[at : at + _LOOKED_AT_ONCE] if topic not in retained.places]
            yield []
        self.next_offset = saved.next_offset
        self.start_offset = saved.start_offset
        self.is_finished = saved.is_finished
        self.producers, self.work_division = producers, work_division
        self.consumers, self.staged = consumers, staged
        self.retained.become(retained)
        self.begin_term()
        yield [RetainedRestored(rows=left, gone=gone)]


class FrozenShard:
    """The state of a shard after one entry, to be encoded while it goes on. One at a time."""

    def __init__(self, state: ShardState, retained: Iterable[SavedRetained], staged: StagedBytes) -> None:
        self._state = state
        self._scalars = (state.next_offset, state.start_offset, state.is_finished)
        self._generation = state.retained.generation
        self._forgotten, self._producers = state.producers.forgotten, state.producers.rows()
        self._groups, self._cursors = state.work_division.freeze(), state.consumers.freeze()
        self._attempts, self._settled = state.staged.copies(), list(state.staged.settled.items())
        self._unreleased = state.staged.unreleased()
        self._retained, self._staged = retained, staged

    def encode(self, pieces: Pieces) -> Iterator[None]:
        """As `SavedShard`."""
        pieces.add(array_head(len(SavedShard.__struct_fields__)), encode(_STATE_VERSION))
        pieces.add(*map(encode, self._scalars), array_head(2), encode(self._forgotten))
        yield from pieces.rows("producers", self._producers)
        yield from pieces.rows("work_division", self._groups.rows())
        yield from pieces.rows("consumers", self._cursors.rows())
        data: dict[int, bytes] = {}
        for place in self._unreleased:
            data[place.index] = self._staged.bytes_at(place)
            if pieces.spend(place.size_bytes):
                yield
        pieces.add(array_head(2))
        rows = (saved_attempt(owner, attempt, data) for owner, attempt in self._attempts)
        yield from pieces.rows("staged", rows, _attempt_bytes)
        pieces.add(encode(self._settled), encode(self._generation))
        yield from pieces.rows("retained", self._retained, _retained_bytes)

    def end(self) -> None:
        self._state.work_division.frozen = self._state.consumers.frozen = None


def _attempt_bytes(row: SavedAttempt) -> int:
    return sum(len(place.data or b"") for place in row.places)


def _retained_bytes(row: SavedRetained) -> int:
    return 0 if row.value is None else len(row.value.packet)


class SavedShard(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The state in a snapshot."""

    version: int
    next_offset: int
    start_offset: int
    is_finished: bool
    producers: SavedProducers
    work_division: list[SavedGroup]
    consumers: list[tuple[int, SavedCursor]]
    staged: SavedStaged
    generation: int
    retained: list[SavedRetained]


_DECODER = msgspec.msgpack.Decoder(SavedShard)
_PRODUCERS = msgspec.msgpack.Decoder(list[SavedProducer])
_GROUPS = msgspec.msgpack.Decoder(list[SavedGroup])
_CURSORS = msgspec.msgpack.Decoder(list[tuple[int, SavedCursor]])
_ATTEMPTS = msgspec.msgpack.Decoder(list[SavedAttempt])
_RETAINED = msgspec.msgpack.Decoder(list[SavedRetained])
