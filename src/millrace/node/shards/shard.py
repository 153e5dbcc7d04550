"""One shard of a stream on this node: arrivals in, committed blocks out.

The log of the shard is its replication group's log. Blocks are cut once per turn of the loop over all
connections [rule 4], and what a turn brings besides messages goes into one control block [rule 39]. What the
log leaves behind is a `ShardState`; here is what this node does about it: it proposes, delivers, answers its
clients, keeps the last blocks in memory, and wakes whoever waits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from millrace.broker.entries.shard import Generation, Marker, Repeated, Seal, Sealed, ShardEntry, Trim
from millrace.broker.freezing import Freezing, Pieces
from millrace.broker.groups.work_division import WorkDivision
from millrace.broker.machine import Broker
from millrace.broker.messages.inbound import split_messages
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.messages.message import Run
from millrace.broker.shards.block_facts import EDGE_PRODUCER, PLAIN, BlockFacts, Key, facts_of, keys_of
from millrace.broker.shards.producers import Producers, Verdict
from millrace.broker.shards.shard_state import (
    SESSION_TOKENS,
    WILLS,
    AllRepeated,
    Answered,
    Consumed,
    MarkerReached,
    NotTaken,
    RetainedChanged,
    RetainedForgotten,
    RetainedRestored,
    SealReached,
    ShardEffect,
    ShardState,
    WorkChanged,
)
from millrace.broker.streams.stream import Capture, Stream
from millrace.node.groups.shard_consumers import Answer, ShardConsumers
from millrace.node.groups.shard_work_division import ShardWorkDivision
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.shards.batch import Batch, logged, row_of, sifted
from millrace.node.shards.control import control_block, entries_of
from millrace.node.shards.fan_out import fan_out
from millrace.node.shards.retained import ShardRetained
from millrace.node.shards.staging import ShardStaging
from millrace.node.shards.tail import Tail
from millrace.node.shards.tokens import Token
from millrace.reasons import Reason
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Codec, Kind, data_blocks
from millrace.tracing.publishes import PublishTraces

log = logging.getLogger("millrace.shard")

# How long newer logs wait for the end of a sealed one.
FINISH_MS = 10_000
# One proposal: below a block's bounds also with its columns, of 41 bytes a message, so that few batches have
# to be cut again.
_BATCH_BYTES_MAX = 768 * 1024
_BATCH_MESSAGES_MAX = 6_000
# Values to retain in one block: each is applied by itself, and a block must not hold the loop [rule 33].
_VALUES_MAX = 1_000


class CarriedOverRetained(NamedTuple):
    """A value that was retained before a log kept its topic, on its way there."""

    topic: str
    run: Run
    generation: int
    """The routing generation with which the topic came to the log."""


class _CarriedOver(Token):
    """Of values that were retained before a log kept their topics: nobody else knows that they go there."""

    is_kept_by_snapshot = True

    def __init__(self, shard: "Shard", values: list[CarriedOverRetained]) -> None:
        self._shard = shard
        self._values = values

    def lost(self) -> None:
        self._shard.unproposed += self._values


class _CatchUp(Token):
    """Of the marker that tells when all that was stored before is applied."""

    def __init__(self, shard: "Shard") -> None:
        self._shard = shard

    def lost(self) -> None:
        self._shard.forget_marker()


class Shard:
    """Implements `App`."""

    def __init__(
        self,
        number: int,
        stream: Stream,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.number = number
        self.stream = stream
        self._broker = broker
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._wake = wake
        self.intake = Intake(number, stream.spec.capture is Capture.ALL)
        self.state = ShardState(number)
        self.others: Mapping[int, Shard] = {}
        """All shards of this node."""
        self.unopened: Mapping[int, Shard] = {}
        """Those of this node that wait for room."""
        self.work = ShardWorkDivision(self, broker)
        # Keys that are proposed and not committed: a repeat of one waits for it [rule 2].
        self._keys_in_flight: set[Key] = set()
        self.consumers = ShardConsumers(self, wall_us)
        self.staging = ShardStaging(self, self.work.introduce, broker.limits.staged_bytes_max)
        self.finish_by_ms: int | None = None
        """Since it was sealed: until when newer logs wait for its end."""
        # What a framed one takes goes past its log.
        self.is_caught_up = stream.spec.is_framed and number in stream.shards
        """All that was stored before this run of the node is applied here."""
        # A marker is proposed behind all that. Repeats wait until it is applied, at most until then.
        self._is_marked = False
        self._marked_by_ms = 0
        self.group: ReplicationGroup
        self._tail = Tail()
        self.retained = ShardRetained(number, broker, self.state.retained, now_ms=now_ms, wall_us=wall_us)
        self.unproposed: list[CarriedOverRetained] = []
        """What did not get into the log, for the next `say_again`."""
        self.traces: PublishTraces | None = None
        """Who is told of committed blocks, where somebody wants traces."""

    @property
    def next_offset(self) -> int:
        """Of the next message to be committed: what readers may see ends here."""
        return self.state.next_offset

    @property
    def start_offset(self) -> int:
        """What is below was trimmed, though its segment may still be there."""
        return self.state.start_offset

    @property
    def is_finished(self) -> bool:
        """Sealed, and everything before the seal is applied here."""
        return self.state.is_finished

    @property
    def producers(self) -> Producers:
        return self.state.producers

    @property
    def work_division(self) -> WorkDivision:
        return self.state.work_division

    @property
    def edge(self) -> str:
        """The function that makes what is delivered out of what is in this log; empty: nothing does."""
        return self.stream.edges.get(self.number, "")

    def change(self, stream: Stream) -> None:
        """The definition changed without moving topics."""
        self.stream = stream
        self.intake.captures_all = stream.spec.capture is Capture.ALL

    @property
    def is_retired(self) -> bool:
        """Whether the definitions have other shards in its place."""
        return self.number not in self.stream.shards

    def seal(self, *, is_complete: bool) -> None:
        """Nothing is taken any more; what was routed here is routed again [rule 16]. The entry
        says that the log is complete, so it stands behind batches that were decided before and are still to
        be released: until `is_complete` there is none, and the caller comes back."""
        self.intake.is_sealed = True
        if is_complete:
            self.propose_entries([Seal()])

    def propose_entries(
        self, entries: Sequence[ShardEntry], token: Token | None = None, time_us: int | None = None
    ) -> bool:
        """Offer entries as one control block, as of now unless a time is given; the leader sees to it that
        time never goes back. False: nothing happened."""
        block = control_block(entries).timed(self._wall_us() if time_us is None else time_us)
        return self.group.propose([block], [token], EntryKind.CONTROL)

    # ----------------------------------------------------------------------------------- arrivals

    def cut(self, wall_us: int, is_full: bool) -> None:
        """Propose everything that arrived since the last call."""
        arrivals, self.intake.arrivals = self.intake.arrivals, []
        if self.intake.is_sealed:
            self._route_again(arrivals)
            return
        if is_full:
            self._refuse_new(arrivals)
            return
        inbound = self._broker.inbound
        arrivals = [
            arrival
            for arrival in arrivals
            if (arrival.arrival_number > inbound.refused_until and not arrival.is_doubtful)
            or self._may_enter(arrival)
        ]
        announcement = self.retained.announcement(arrivals)
        if announcement is not None and not self.propose_entries([announcement], None, wall_us):
            self.retained.lost()
            self.refuse(arrivals, Reason.SERVER_BUSY)
            return
        self._propose_all(arrivals, wall_us)

    def _propose_all(self, arrivals: list[Arrival], wall_us: int) -> None:
        """Values to retain go together behind the messages: nobody waits for them, and they were delivered
        from memory. Only a message that is retained on the same topic must not pass them: the last
        of both is what the topic has."""
        messages: list[Arrival] = []
        values: list[Arrival] = []
        topics: set[str | None] = set()
        size = count = values_size = 0
        for arrival in arrivals:
            run = arrival.run
            is_value = arrival.is_retained_only
            if is_value:
                is_next = values_size >= _BATCH_BYTES_MAX or len(values) >= _VALUES_MAX
            else:
                is_next = run is not None and run.retain and arrival.topic in topics
            if is_next:
                self._propose(messages, wall_us)
                self._propose_values(values, wall_us)
                messages, values, topics = [], [], set()
                size = count = values_size = 0
            if is_value:
                assert run is not None
                values.append(arrival)
                topics.add(arrival.topic)
                values_size += len(run.data)
                continue
            if run is not None:
                if count and (
                    size + len(run.data) > _BATCH_BYTES_MAX or count + run.count > _BATCH_MESSAGES_MAX
                ):
                    self._propose(messages, wall_us)
                    messages, size, count = [], 0, 0
                size += len(run.data)
                count += run.count
            messages.append(arrival)
        self._propose(messages, wall_us)
        self._propose_values(values, wall_us)

    def _may_enter(self, arrival: Arrival) -> bool:
        if self._broker.inbound.is_overtaking(arrival):
            # Its key may be in flight: this is not the arrival that has put it there.
            self._send_away([arrival], Reason.SERVER_BUSY)
            return False
        return not arrival.is_doubtful or self._admit(arrival)

    def _admit(self, arrival: Arrival) -> bool:
        """Ask by its key whether the message is in the log already: then only its answer goes on. One that
        is too old to tell is refused; the tokens of a session follow each other, so theirs never are. So is
        an answer from a sealed log whose message did not get here before it, and one that another log may
        have which was not applied in time."""
        assert arrival.producer is not None
        key = (arrival.producer, arrival.sequence)
        verdict = self._verdict(key)
        is_new = verdict is Verdict.NEW and key not in self._keys_in_flight
        is_too_old = verdict is Verdict.TOO_OLD and not arrival.producer.startswith(SESSION_TOKENS)
        if is_too_old or (is_new and arrival.run is None):
            self.refuse([arrival], Reason.IMPLEMENTATION_SPECIFIC)
            return False
        if self._is_open_question(arrival):
            if arrival.producer.startswith(WILLS):
                # It comes again every second, and holds nobody up until the others are asked.
                for shard in self._behind():
                    shard.is_awaited()
            self.refuse([arrival], Reason.SERVER_BUSY)
            return False
        if is_new:
            self._keys_in_flight.add(key)
        else:
            self._broker.inbound.forget(arrival)
        return True

    def awaits_others(self) -> bool:
        """Whether a client's repeat is among what arrived that another log may have, which is not applied
        here so far and may be in time."""
        for one in self.intake.arrivals:
            is_repeat = one.is_doubtful and (one.producer or b"").startswith(SESSION_TOKENS)
            if is_repeat and self._is_open_question(one):
                return not self.unopened and all(shard.is_awaited() for shard in self._behind())
        return False

    def _behind(self) -> "list[Shard]":
        """Other logs that may have what is not applied here."""
        return [shard for shard in self.others.values() if shard is not self and not shard.is_complete]

    def _is_open_question(self, arrival: Arrival) -> bool:
        if arrival.run is None or not (arrival.producer or b"").startswith((SESSION_TOKENS, WILLS)):
            return False
        if not self.unopened and not self._behind():
            return False
        key = (arrival.producer or b"", arrival.sequence)
        return key not in self._keys_in_flight and self._verdict(key) is Verdict.NEW

    @property
    def is_complete(self) -> bool:
        """Whether this log has nothing from before that is not applied here: a leader that is known says
        nothing about how far this replica is."""
        return self.is_finished or (self.is_caught_up and not self.is_retired)

    def is_awaited(self) -> bool:
        """Of one that is not complete: whether it may be in time. One that stays open is asked how far it
        is."""
        now_ms = self._now_ms()
        if self.is_retired:
            return self.finish_by_ms is None or now_ms < self.finish_by_ms
        if not self._is_marked:
            if not self.propose_entries([Marker()], _CatchUp(self)):
                return False
            self._is_marked, self._marked_by_ms = True, now_ms + FINISH_MS
        return now_ms < self._marked_by_ms

    def forget_marker(self) -> None:
        """It may not have got into the log."""
        self._is_marked = False

    def _refuse_new(self, arrivals: list[Arrival]) -> None:
        """There is no room: what the log has already is acknowledged nevertheless."""
        new: list[Arrival] = []
        for arrival in arrivals:
            key = (arrival.producer or b"", arrival.sequence)
            if arrival.is_doubtful and self._verdict(key) is Verdict.REPEATED:
                self._broker.inbound.forget(arrival)
                self._broker.inbound.committed([arrival], self.number, self.next_offset, self._now_ms())
            else:
                new.append(arrival)
        self.refuse(new, Reason.QUOTA_EXCEEDED)

    def _propose(self, arrivals: list[Arrival], wall_us: int) -> None:
        if not arrivals:
            return
        runs = [logged(arrival) for arrival in arrivals if arrival.run is not None]
        if not runs:
            # Only answers wait here: whatever they wait for was proposed before.
            if not self.propose_entries([Marker()], Batch(self, arrivals, 0, wall_us), wall_us):
                self.refuse(arrivals, Reason.SERVER_BUSY)
            return
        self.work.introduce()
        codec = Codec.ZLIB if self.stream.spec.compression == "zlib" else Codec.NONE
        made = data_blocks(runs, codec, wall_us)
        if len(made) > 1:
            # Others' blocks may stand between them: each is a batch, whose messages have their places by it.
            parts = arrivals if len(arrivals) > 1 else list(split_messages(arrivals[0]))
            middle = len(parts) // 2
            self._propose(parts[:middle], wall_us)
            self._propose(parts[middle:], wall_us)
            return
        batch = Batch(self, arrivals, made[0].header.count, wall_us)
        if not self.group.propose(made, [batch], EntryKind.DATA):
            self.refuse(arrivals, Reason.SERVER_BUSY)

    def _propose_values(self, arrivals: list[Arrival], wall_us: int) -> None:
        if not arrivals:
            return
        entries = []
        for arrival in arrivals:
            assert arrival.run is not None and arrival.topic is not None
            entries.append(self.retained.entry(arrival.topic, arrival.run, wall_us))
        if not self.propose_entries(entries, Batch(self, arrivals, 0, wall_us), wall_us):
            self.refuse(arrivals, Reason.SERVER_BUSY)

    def inherit(self, values: list[CarriedOverRetained]) -> None:
        """Messages that were retained while no log kept their topics; what came since stays."""
        while values:
            entries, size = [], 0
            wall_us = self._wall_us()
            for topic, run, generation in values[:_VALUES_MAX]:
                entries.append(self.retained.entry(topic, run, wall_us, generation))
                size += len(run.data)
                if size >= _BATCH_BYTES_MAX:
                    break
            some, values = values[: len(entries)], values[len(entries) :]
            newest = Generation(max(one.generation for one in some))
            if not self.propose_entries([newest, *entries], _CarriedOver(self, some)):
                self.unproposed += some

    def say_again(self) -> None:
        """What was inherited and did not get into the log: nobody else knows that it is to go there. And the
        marker behind all that was stored before: repeats and wills need not wait for it then."""
        if not self.group.is_serving:
            return
        if not self.is_complete:
            self.is_awaited()
        if self.unproposed:
            unproposed, self.unproposed = self.unproposed, []
            self.inherit(unproposed)

    def _route_again(self, arrivals: list[Arrival]) -> None:
        """The shard was sealed after these were routed to it [rule 16]."""
        self._broker.inbound.arrive_again(arrivals, self._now_ms())

    def take_back(self, batch: Batch) -> None:
        """The leader took no more: these go where their topics belong now, in the order in which all came.
        An answer whose message is here is given by this log, as the next one does not know its key."""
        stored: list[Arrival] = []
        moved: list[Arrival] = []
        for one in batch.arrivals:
            is_answer = one.run is None and one.producer is not None
            is_here = (
                is_answer and self.producers.judge(one.producer or b"", one.sequence) is Verdict.REPEATED
            )
            (stored if is_here else moved).append(one)
        batch.arrivals, batch.count = stored, 0
        for arrival in moved:
            self._keys_in_flight.discard((arrival.producer or b"", arrival.sequence))
        intake = self.intake
        intake.is_sealed = True
        if moved and not intake.arrivals:
            self._broker.inbound.waiting.append(intake)
        intake.arrivals += moved
        self._wake()

    def end(self) -> list[Arrival]:
        """The log goes away. What nobody was answered for comes back: it goes where its topic belongs now."""
        unanswered: list[Arrival] = []
        for token in self.group.given_up():
            if token is not None:
                unanswered += token.given_up()
        unanswered += self.intake.arrivals
        self.intake.arrivals = []
        self.consumers.close()
        self.staging.close()
        return unanswered

    def refuse(self, arrivals: list[Arrival], reason: Reason) -> None:
        for arrival in arrivals:
            if arrival.is_doubtful and arrival.run is not None and arrival.producer is not None:
                self._keys_in_flight.discard((arrival.producer, arrival.sequence))
        self._send_away(arrivals, reason)

    def _send_away(self, arrivals: list[Arrival], reason: Reason) -> None:
        for session in self._broker.inbound.refused(arrivals, reason):
            if session.connection is not None:
                session.connection.fail(reason, "the message could not be stored")
        self._wake()

    def lost(self, token: Token | None) -> None:
        """Nobody led the shard for too long: whether it was stored is open, so nothing is acknowledged."""
        self.work.lost()
        self.retained.lost()
        if token is not None:
            token.lost()

    def covered(self, token: Token | None) -> None:
        """Stored, but whether a part of it was refused is not known here: nothing is acknowledged."""
        self.is_caught_up = True
        if token is None or not token.is_kept_by_snapshot:
            self.lost(token)

    # ---------------------------------------------------------------------------------- committed

    def apply(self, block: Block, token: Token | None) -> None:
        header = block.header
        if token is not None:
            # Behind everything that was in the log when we proposed it.
            self.is_caught_up = True
        if header.kind is Kind.CONTROL:
            for entry in entries_of(block):
                effects = self.state.apply(entry, index=header.index, time_us=header.base_time_us)
                self._run_all(effects, token)
            if token is not None:
                token.applied(block)
            return
        facts = self._facts_of(block, token)
        effects = self.state.apply_messages(facts, index=header.index, next_offset=header.next_offset)
        self._run_all(effects, token)
        self._broker.log_ends[self.number] = header.next_offset
        self._tail.keep(block)
        self.consumers.on_data()
        if token is None or not token.deliver(block):
            now_ms, wall_us = self._now_ms(), self._wall_us()
            fan_out(self._broker, block, self.number, now_ms, wall_us, has_edge=bool(self.edge))
            if token is not None:
                token.answer(True)
            self._wake()
        if self.traces is not None:
            self.traces.on_block(self.stream.spec, self.number, block, token.since_us if token else 0)

    def _facts_of(self, block: Block, token: Token | None) -> BlockFacts:
        if (token is not None and token.is_plain) or block.is_plain():
            return PLAIN
        time_us = block.header.base_time_us
        return facts_of(block.columns(), block.topics(), time_us, has_edge=bool(self.edge))

    def _run_all(self, effects: list[ShardEffect], token: Token | None) -> None:
        for effect in effects:
            match effect:
                case RetainedChanged():
                    self.retained.changed(effect)
                case RetainedForgotten():
                    self.retained.forgotten(effect.topic)
                case RetainedRestored():
                    self.retained.restored(effect)
                case WorkChanged():
                    self.work.applied(effect, token)
                    self._wake()
                case Consumed():
                    self.consumers.applied(effect, token)
                case SealReached():
                    self.intake.is_sealed = True
                    self._wake()
                case Answered() | MarkerReached() | NotTaken() | AllRepeated():
                    if isinstance(effect, Answered):
                        self.staging.on_change()
                    if token is not None:
                        _tell(token, effect)
                case _:
                    assert_never(effect)

    def commit(self, batch: Batch, block: Block) -> None:
        """Our own arrivals are in the log, but for what the leader left out: deliver them, and answer each in
        its turn. Of what was left out, and of a repeat, only that is acknowledged which the log has
        [rule 3]."""
        header, offset, now_ms = block.header, block.header.base_offset, self._now_ms()
        arrivals, left_out = batch.arrivals, set[Arrival]()
        if header.count < batch.count:
            stored = keys_of(block.columns()) if header.kind is Kind.DATA else []
            arrivals, left_out = sifted(arrivals, stored)
        ready: list[Arrival] = []
        has_edge = bool(self.edge)
        for arrival in arrivals:
            if arrival.run is not None:
                arrival.is_input = has_edge and not (arrival.producer or b"").startswith(EDGE_PRODUCER)
                if arrival.producer is not None:
                    self._keys_in_flight.discard((arrival.producer, arrival.sequence))
            is_stored = arrival.run is not None and arrival not in left_out
            if is_stored or self._may_acknowledge(arrival):
                if arrival in left_out:
                    self._broker.inbound.forget(arrival)
                ready.append(arrival)
                continue
            self._broker.inbound.committed(ready, self.number, offset, now_ms)
            offset += sum(one.run.count for one in ready if one.run is not None)
            ready = []
            self.refuse([arrival], Reason.IMPLEMENTATION_SPECIFIC)
        self._broker.inbound.committed(ready, self.number, offset, now_ms)
        if batch.count:
            took_s = (self._wall_us() - batch.since_us) / 1_000_000
            self._broker.stats.publish_ack.observe(took_s, batch.count)
        self._wake()

    def _may_acknowledge(self, arrival: Arrival) -> bool:
        """Of one that is not stored by this entry: whether it is by one before. Tokens are never too old."""
        if arrival.producer is None or arrival.producer.startswith(SESSION_TOKENS):
            return True
        return self._verdict((arrival.producer, arrival.sequence)) is Verdict.REPEATED

    def pass_answers_on(self, batch: Batch) -> None:
        """Only answers, behind the messages that they repeat."""
        if self.intake.is_sealed:
            self.take_back(batch)

    # -------------------------------------------------------------------------------------- reads

    @property
    def first_offset(self) -> int:
        """The earliest that may be read."""
        return max(self.start_offset, int(self.group.replica_log.log.first_offset))

    def trim(self, offset: int, applied: "asyncio.Future[Any] | None" = None) -> bool:
        """Let go of everything below `offset`, as an entry of the log [rule 18]."""
        return self.propose_entries([Trim(offset)], None if applied is None else Answer(applied))

    def timed(self, block: Block) -> Block:
        """The block as of now; the leader sees to it that time never goes back."""
        return block.timed(self._wall_us())

    def recent(self, offset: int) -> list[Block] | None:
        """Blocks from the one that holds `offset`, if it is among those in memory."""
        return self._tail.since(offset)

    # ------------------------------------------------------------------------------------- leader

    def begin_term(self) -> None:
        self.state.begin_term()

    def admit(self, block: Block, token: Token | None = None) -> Block:
        """The block, or what is left of it, or the entry that goes into the log in its place."""
        if token is not None and token.is_plain and not self.intake.is_sealed:
            return block
        columns = block.columns()
        found = self.state.admit(columns, self._all_producers(), is_sealed=self.intake.is_sealed)
        if isinstance(found, Sealed | Repeated):
            return control_block([found])
        if len(found) == block.header.count:
            return block
        (made,) = data_blocks([row_of(columns, row) for row in found])
        return made.timed(block.header.base_time_us)

    def withdraw(self, block: Block) -> None:
        self.state.withdraw(block.columns())

    def _verdict(self, key: Key) -> Verdict:
        return self.state.verdict(key, self._all_producers())

    def _all_producers(self) -> list[Producers]:
        """Of all logs of this node."""
        return [shard.producers for shard in self.others.values()]

    # ---------------------------------------------------------------------------------- snapshots

    def freeze(self) -> Freezing | None:
        return _FrozenShard(self) if self.staging.is_small else None

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]]) -> Iterator[None]:
        for effects in self.state.load(state, rows):
            self._run_all(effects, None)
            yield
        self._broker.log_ends[self.number] = self.next_offset
        self.intake.is_sealed = self.intake.is_sealed or self.is_finished
        self.work.restored()
        self.staging.on_change()


class _FrozenShard:
    """The state of a shard, and what this node has of it beside the state."""

    def __init__(self, shard: Shard) -> None:
        self._retained = shard.retained
        self._state = shard.state.freeze(shard.retained.freeze(), shard.staging)

    def encode(self, pieces: Pieces) -> Iterator[None]:
        return self._state.encode(pieces)

    def end(self) -> None:
        self._state.end()
        self._retained.end_freeze()


def _tell(token: Token, effect: Answered | MarkerReached | NotTaken | AllRepeated) -> None:
    match effect:
        case Answered():
            token.answer(effect.result)
        case MarkerReached():
            token.on_marker()
        case NotTaken():
            token.on_sealed()
        case AllRepeated():
            token.on_repeated()
        case _:
            assert_never(effect)
