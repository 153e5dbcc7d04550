"""One shard of a stream on this node: arrivals in, committed blocks out, and the state they leave.

The log of the shard is its replication group's log. Blocks are cut once per turn of the loop over all
connections [rule 4], the state is what a snapshot must hold: what is retained, which producer
sequences were seen, whether the shard is sealed.
"""

import base64
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millrace.broker.groups.work_division import WorkDivision
from millrace.broker.machine import Broker
from millrace.broker.messages.inbound import split_messages
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.messages.message import Run, expiry_of
from millrace.broker.shards.producers import Producers, Verdict
from millrace.broker.streams.stream import Capture, Stream
from millrace.kernels import blocks as kernel
from millrace.kernels.blocks import FLAG_QOS, FLAG_RETAIN, FLAG_VERSION_SHIFT
from millrace.node.groups.shard_consumers import ShardConsumers
from millrace.node.groups.work_division import ShardWorkDivision
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.shards.fan_out import EDGE_PRODUCER, fan_out, inputs_of
from millrace.node.shards.retained import ShardRetained
from millrace.node.shards.staging import ShardStaging, answer, is_staged
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Codec, Kind, data_blocks, opaque_block
from millrace.types import Reason

log = logging.getLogger("millrace.shard")

# How long newer logs wait for the end of a sealed one.
FINISH_MS = 10_000
# One proposal: below a block's bounds also with its columns, of 41 bytes a message, so that few batches have
# to be cut again.
_BATCH_BYTES_MAX = 768 * 1024
_BATCH_MESSAGES_MAX = 6_000
# Committed blocks kept in memory for readers that are only a little behind.
_TAIL_BYTES_MAX = 4 * 1024 * 1024
_STATE_VERSION = 1
_TOKEN_PREFIX = b"qos2/"
_HAS_RETAIN = bytes(1 if flag & FLAG_RETAIN else 0 for flag in range(256))


class Batch:
    """The arrivals of one block, handed back with it, and how many messages they have there."""

    __slots__ = ("arrivals", "count")

    def __init__(self, arrivals: list[Arrival], count: int) -> None:
        self.arrivals = arrivals
        self.count = count


class CarriedOverRetained(NamedTuple):
    """A value that was retained before a log kept its topic, on its way there."""

    topic: str
    run: Run


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
        self.producers = Producers()
        self.others: Mapping[int, Shard] = {}
        """All shards of this node."""
        self.unopened: Mapping[int, Shard] = {}
        """Those of this node that wait for room."""
        self.work_division = WorkDivision()
        self.work = ShardWorkDivision(self, broker, wall_us)
        # Keys that are proposed and not committed: a repeat of one waits for it [rule 2].
        self._keys_in_flight: set[tuple[bytes, int]] = set()
        # As leader: keys that went into the log and are not applied yet.
        self._keys_taken: set[tuple[bytes, int]] = set()
        self.consumers = ShardConsumers(self, wall_us)
        self.staging = ShardStaging(self, broker.limits.staged_bytes_max)
        self.is_finished = False
        """Sealed, and everything before the seal is applied here."""
        self.finish_by_ms: int | None = None
        """Since it was sealed: until when newer logs wait for its end."""
        # What a framed one takes goes past its log.
        self.is_caught_up = stream.spec.is_framed and number in stream.shards
        """All that was stored before this run of the node is applied here."""
        # An entry of our own, on its way behind all that, and until when repeats wait for it.
        self._marker: Batch | None = None
        self._marked_by_ms = 0
        self.start_offset = 0
        """What is below was trimmed, though its segment may still be there."""
        self.group: ReplicationGroup
        self.next_offset = 0
        """Of the next message to be committed: what readers may see ends here."""
        self._tail: deque[Block] = deque()
        self._tail_bytes = 0
        self.retained = ShardRetained(number, broker)
        self.unproposed: list[CarriedOverRetained] = []
        """What did not get into the log, for the next `say_again`."""

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
            block = opaque_block(Kind.CONTROL, json.dumps({"op": "seal"}).encode())
            self.group.propose([block], [None], EntryKind.CONTROL)

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
        arrivals = [arrival for arrival in arrivals if not arrival.is_doubtful or self._admit(arrival)]
        announcement = self.retained.announcement(arrivals)
        if announcement is not None:
            if not self.group.propose([announcement.timed(wall_us)], [None], EntryKind.CONTROL):
                self.retained.lost()
                self.refuse(arrivals, Reason.SERVER_BUSY)
                return
        is_alone = self.group.is_alone
        start = size = count = 0
        for position, arrival in enumerate(arrivals):
            run = arrival.run
            if run is None:
                continue
            # What has a key is judged by the leader, which may leave out what is there already.
            is_single = arrival.producer is not None and not is_alone
            if count and (
                arrival.is_retained_only
                or is_single
                or size + len(run.data) > _BATCH_BYTES_MAX
                or count + run.count > _BATCH_MESSAGES_MAX
            ):
                self._propose(arrivals[start:position], wall_us)
                start, size, count = position, 0, 0
            if arrival.is_retained_only:
                self._propose_retained(arrival, wall_us)
                start = position + 1
                continue
            if is_single:
                self._propose(arrivals[start : position + 1], wall_us)
                start = position + 1
                continue
            size += len(run.data)
            count += run.count
        if start < len(arrivals):
            self._propose(arrivals[start:], wall_us)

    def _admit(self, arrival: Arrival) -> bool:
        """Ask by its key whether the message is in the log already: then only its answer goes on. One that
        is too old to tell is refused; the tokens of a session follow each other, so theirs never are. So is
        an answer from a sealed log whose message did not get here before it, and one that another log may
        have which was not applied in time."""
        assert arrival.producer is not None
        key = (arrival.producer, arrival.sequence)
        verdict = self._verdict(key)
        is_new = verdict is Verdict.NEW and key not in self._keys_in_flight
        is_too_old = verdict is Verdict.TOO_OLD and not arrival.producer.startswith(_TOKEN_PREFIX)
        if is_too_old or (is_new and arrival.run is None):
            self.refuse([arrival], Reason.IMPLEMENTATION_SPECIFIC)
            return False
        if self._is_open_question(arrival):
            self.refuse([arrival], Reason.SERVER_BUSY)
            return False
        if is_new:
            self._keys_in_flight.add(key)
        else:
            self._broker.inbound.forget(arrival)
        return True

    def awaits_others(self) -> bool:
        """Whether a repeat is among what arrived that another log may have, which is not applied here so far
        and may be in time."""
        if not any(one.is_doubtful and self._is_open_question(one) for one in self.intake.arrivals):
            return False
        behind = [s for s in self.others.values() if s is not self and not s.is_complete]
        return not self.unopened and all(s.is_awaited() for s in behind)

    def _is_open_question(self, arrival: Arrival) -> bool:
        if arrival.run is None or not (arrival.producer or b"").startswith(_TOKEN_PREFIX):
            return False
        if not self.unopened and all(s is self or s.is_complete for s in self.others.values()):
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
        if self._marker is None:
            marker = Batch([], 0)
            if not self.group.propose([opaque_block(Kind.CONTROL, b"{}")], [marker], EntryKind.CONTROL):
                return False
            self._marker, self._marked_by_ms = marker, now_ms + FINISH_MS
        return now_ms < self._marked_by_ms

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
        runs = [logged(arrival) for arrival in arrivals if arrival.run is not None]
        if not runs:
            # Only answers wait here: whatever they wait for was proposed before.
            self._propose_block(opaque_block(Kind.CONTROL, b"{}"), Batch(arrivals, 0), EntryKind.CONTROL)
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
        self._propose_block(made[0], Batch(arrivals, made[0].header.count), EntryKind.DATA)

    def _propose_retained(self, arrival: Arrival, wall_us: int) -> None:
        run = arrival.run
        assert run is not None and arrival.topic is not None
        note = {"op": "retain", "topic": arrival.topic, **self._retained_fields(run)}
        block = opaque_block(Kind.CONTROL, json.dumps(note).encode())
        self._propose_block(block.timed(wall_us), Batch([arrival], 0), EntryKind.CONTROL)

    def inherit(self, topic: str, run: Run) -> None:
        """A message that was retained while no log kept its topic; one that came since stays."""
        note = {"op": "retain", "topic": topic, "inherited": True, **self._retained_fields(run)}
        block = self.timed(opaque_block(Kind.CONTROL, json.dumps(note).encode()))
        token = CarriedOverRetained(topic, run)
        if not self.group.propose([block], [token], EntryKind.CONTROL):
            self.unproposed.append(token)

    def say_again(self) -> None:
        """What was inherited and did not get into the log: nobody else knows that it is to go there."""
        if self.unproposed and self.group.is_serving:
            unproposed, self.unproposed = self.unproposed, []
            for topic, run in unproposed:
                self.inherit(topic, run)

    def _propose_block(self, block: Block, batch: Batch, kind: EntryKind) -> None:
        if not self.group.propose([block], [batch], kind):
            self.refuse(batch.arrivals, Reason.SERVER_BUSY)

    def _route_again(self, arrivals: list[Arrival]) -> None:
        """The shard was sealed after these were routed to it [rule 16]."""
        self._broker.inbound.arrive_again(arrivals, self._now_ms())

    def _take_back(self, batch: Batch) -> None:
        """The leader took no more: these go where their topics belong now, in the order in which all came."""
        arrivals, batch.arrivals, batch.count = batch.arrivals, [], 0
        for arrival in arrivals:
            if arrival.producer is not None:
                self._keys_in_flight.discard((arrival.producer, arrival.sequence))
        intake = self.intake
        intake.is_sealed = True
        if not intake.arrivals:
            self._broker.inbound.waiting.append(intake)
        intake.arrivals += arrivals
        self._wake()

    def end(self) -> list[Arrival]:
        """The log goes away. What nobody was answered for comes back: it goes where its topic belongs now."""
        unanswered: list[Arrival] = []
        for token in self.group.given_up():
            if isinstance(token, Batch):
                unanswered += token.arrivals
            elif isinstance(token, CarriedOverRetained):
                self.unproposed.append(token)
            else:
                self.consumers.lost(token)
        unanswered += self.intake.arrivals
        self.intake.arrivals = []
        self.consumers.close()
        self.staging.close()
        return unanswered

    def refuse(self, arrivals: list[Arrival], reason: Reason) -> None:
        for arrival in arrivals:
            if arrival.is_doubtful and arrival.run is not None and arrival.producer is not None:
                self._keys_in_flight.discard((arrival.producer, arrival.sequence))
        for session in self._broker.inbound.refused(arrivals, reason):
            if session.connection is not None:
                session.connection.fail(reason, "the message could not be stored")

    def lost(self, batch: object) -> None:
        """Nobody led the shard for too long: whether it was stored is open, so nothing is acknowledged."""
        if batch is self._marker:
            self._marker = None
        self.work.lost(batch)
        self.retained.lost()
        if isinstance(batch, Batch):
            self.refuse(batch.arrivals, Reason.SERVER_BUSY)
        elif isinstance(batch, CarriedOverRetained):
            self.unproposed.append(batch)
        else:
            self.consumers.lost(batch)

    def covered(self, batch: object) -> None:
        """Stored, but whether a part of it was refused is not known here: nothing is acknowledged."""
        self.is_caught_up = True
        if not isinstance(batch, CarriedOverRetained):
            self.lost(batch)

    # ---------------------------------------------------------------------------------- committed

    def apply(self, block: Block, token: Any) -> None:
        header = block.header
        if token is not None:
            # Behind everything that was in the log when we proposed it.
            self.is_caught_up = True
        if header.kind is Kind.CONTROL:
            self._apply_control(block, token)
        else:
            self.next_offset = header.next_offset
            self._broker.log_ends[self.number] = header.next_offset
            self._keep_in_memory(block)
            self.consumers.on_data()
            if isinstance(token, Batch) and header.count < token.count:
                # The leader left out what the log had: the rest is delivered as anybody's.
                self._learn(block)
                self._fan_out(block)
                self._answer_left_out(token)
            elif not isinstance(token, Batch):
                self._learn(block)
                self._fan_out(block)
                answer(token, True)
                self._wake()
        if isinstance(token, Batch):
            first = header.next_offset - token.count
            if self.edge:
                for arrival in token.arrivals:
                    arrival.is_input = not (arrival.producer or b"").startswith(EDGE_PRODUCER)
            self._note(token, header.index)
            self._refuse_unstored(token)
            self._broker.inbound.committed(token.arrivals, self.number, first, self._now_ms())
            self._wake()

    def _fan_out(self, block: Block) -> None:
        wall_us = self._wall_us()
        fan_out(self._broker, block, self.number, self._now_ms(), wall_us, has_edge=bool(self.edge))

    def _answer_left_out(self, batch: Batch) -> None:
        """Nothing of it is left to deliver, and each is answered in its turn. The leader leaves out what is
        stored and what is too old to tell: only the first is acknowledged [rule 3]."""
        arrivals, batch.arrivals, batch.count = batch.arrivals, [], 0
        for arrival in arrivals:
            if not self._may_acknowledge(arrival):
                self.refuse([arrival], Reason.IMPLEMENTATION_SPECIFIC)
                continue
            if arrival.run is not None and arrival.producer is not None:
                self._keys_in_flight.discard((arrival.producer, arrival.sequence))
            self._broker.inbound.forget(arrival)
            self._broker.inbound.committed([arrival], self.number, self.next_offset, self._now_ms())

    def _may_acknowledge(self, arrival: Arrival) -> bool:
        """Of one that is not stored by this entry: whether it is by one before. Tokens are never too old."""
        if arrival.producer is None or arrival.producer.startswith(_TOKEN_PREFIX):
            return True
        return self.producers.judge(arrival.producer, arrival.sequence) is Verdict.REPEATED

    def _refuse_unstored(self, batch: Batch) -> None:
        """Answers to repeats of what was left out as too old, behind it."""
        refused = [one for one in batch.arrivals if one.run is None and not self._may_acknowledge(one)]
        if refused:
            batch.arrivals = [one for one in batch.arrivals if one not in refused]
            self.refuse(refused, Reason.IMPLEMENTATION_SPECIFIC)

    def _pass_answers_on(self, batch: Batch) -> None:
        """The log is sealed, so it may have refused the messages that these repeat: they go on behind them,
        but for those whose messages are here."""
        stored: list[Arrival] = []
        others: list[Arrival] = []
        for one in batch.arrivals:
            is_here = one.producer and self.producers.judge(one.producer, one.sequence) is Verdict.REPEATED
            (stored if is_here else others).append(one)
        batch.arrivals = others
        if others:
            self._take_back(batch)
        batch.arrivals = stored

    def _note(self, batch: Batch, index: int) -> None:
        """State that a snapshot must hold, from our own arrivals."""
        for arrival in batch.arrivals:
            run = arrival.run
            is_kept = not arrival.is_input and not arrival.is_retained_only
            if run is not None and run.retain and arrival.topic is not None and is_kept:
                self.retained.keep(arrival.topic, run, index)
            if arrival.producer is not None and run is not None:
                self._keys_in_flight.discard((arrival.producer, arrival.sequence))
                for sequence in range(arrival.sequence, arrival.sequence + run.count):
                    self.producers.store(arrival.producer, sequence)
                    self._keys_taken.discard((arrival.producer, sequence))

    def _learn(self, block: Block) -> None:
        """The same from a block that this run of the program did not make."""
        columns = block.columns()
        if columns.key:
            self.staging.released(columns.key)
        self._learn_retained(block)
        for row, producer in enumerate(columns.producer_ids):
            if producer != kernel.NO_NAME:
                key = (bytes(columns.names[producer]), columns.sequences[row])
                self.producers.store(*key)
                self._keys_taken.discard(key)

    def _learn_retained(self, block: Block) -> None:
        columns = block.columns()
        flags = bytes(columns.flags)
        if 1 in flags.translate(_HAS_RETAIN):
            topics = block.topics()
            inputs = inputs_of(block) if self.edge else []
            for row, flag in enumerate(flags):
                if flag & FLAG_RETAIN and not any(first <= row < end for first, end in inputs):
                    topic = topics[columns.topic_ids[row]].decode()
                    start = columns.packet_positions[row]
                    packet = bytes(columns.packets[start : start + columns.packet_sizes[row]])
                    time_us = block.header.base_time_us + columns.deltas_us[row]
                    is_v5 = flag >> FLAG_VERSION_SHIFT == 5
                    run = self._retained_run(packet, flag & FLAG_QOS, is_v5, time_us)
                    self.retained.keep(topic, run, block.header.index)

    def _retained_run(self, packet: bytes, qos: int, v5: bool, time_us: int) -> Run:
        """A retained message that was published at `time_us`, on the wall's clock."""
        expiry_s = expiry_of(packet) if v5 else None
        expires_ms = None
        if expiry_s is not None:
            left_us = time_us + expiry_s * 1_000_000 - self._wall_us()
            expires_ms = self._now_ms() + left_us // 1000
        return Run(bytes((packet[0] & 0xFE,)) + packet[1:], 1, qos, v5, True, expires_ms)

    def _noted_run(self, fields: dict[str, Any]) -> Run:
        """The same from a note or a snapshot."""
        packet = base64.b64decode(fields["packet"])
        return self._retained_run(packet, fields["qos"], fields["v5"], fields["time_us"])

    def _apply_control(self, block: Block, token: Any) -> None:
        if is_staged(block):
            self.staging.apply_staged(block, token)
            return
        fields = json.loads(block.payload())
        match fields.get("op"):
            case "retain" if fields.get("inherited") and fields["topic"] in self.retained:
                pass
            case "retain":
                self.retained.keep(fields["topic"], self._noted_run(fields), block.header.index)
            case "generation":
                self.retained.announced(fields["generation"])
            case "labour" | "labour.begin" | "labour.done" | "labour.inherit":
                self.work.apply(fields, block, token)
                self._wake()
            case "seal":
                self.intake.is_sealed = self.is_finished = True
                self._wake()
            case "settle" | "give_up" | "pass_over":
                self.staging.apply(fields, token)
            case "consume":
                self.consumers.apply(fields, token)
            case "trim":
                self.start_offset = min(max(self.start_offset, fields["offset"]), self.next_offset)
                self.consumers.trim(self.start_offset, token)
            case "sealed":
                if isinstance(token, Batch):
                    self._take_back(token)
            case "repeated":
                if isinstance(token, Batch):
                    self._answer_left_out(token)
                answer(token, False)
            case None:
                if isinstance(token, Batch) and self.intake.is_sealed:
                    self._pass_answers_on(token)
            case other:
                log.error("shard %d: an entry of an unknown kind %r was passed over", self.number, other)

    def _keep_in_memory(self, block: Block) -> None:
        self._tail.append(block)
        self._tail_bytes += block.header.block_bytes
        while self._tail_bytes > _TAIL_BYTES_MAX and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popleft().header.block_bytes

    # -------------------------------------------------------------------------------------- reads

    @property
    def first_offset(self) -> int:
        """The earliest that may be read."""
        return max(self.start_offset, int(self.group.replica_log.log.first_offset))

    def trim(self, offset: int, token: Any = None) -> bool:
        """Let go of everything below `offset`, as an entry of the log [rule 18]."""
        note = json.dumps({"op": "trim", "offset": offset}).encode()
        block = self.timed(opaque_block(Kind.CONTROL, note))
        return self.group.propose([block], [token], EntryKind.CONTROL)

    def timed(self, block: Block) -> Block:
        """The block as of now; the leader sees to it that time never goes back."""
        return block.timed(self._wall_us())

    def recent(self, offset: int) -> list[Block] | None:
        """Blocks from the one that holds `offset`, if it is among those in memory."""
        tail = self._tail
        if not tail or offset < tail[0].header.base_offset:
            return None
        return [block for block in tail if block.header.next_offset > offset]

    # ---------------------------------------------------------------------------------- snapshots

    def begin_term(self) -> None:
        """As leader: which keys are taken is what is applied, from now on."""
        self._keys_taken.clear()
        self.staging.begin_term()

    def admit(self, block: Block) -> Block:
        """As leader: a message whose key is in the log, or on its way there, is not stored again, whichever
        node it came in at, nor one that is too old to tell [rules 2, 3]; that node knows them apart
        when it applies the entry. A sealed log takes no more data [rule 16]."""
        columns = block.columns()
        if self.intake.is_sealed and not columns.key:
            return opaque_block(Kind.CONTROL, b'{"op":"sealed"}')
        if columns.key:
            is_next = self.staging.admits(columns.key)
            return block if is_next else opaque_block(Kind.CONTROL, b'{"op":"repeated"}')
        producers = columns.producer_ids
        if not len(producers) or producers.tobytes().count(b"\xff") == 4 * len(producers):
            # NO_NAME throughout, the usual case, told without a look at each.
            return block
        keys = [
            (bytes(columns.names[name]), sequence) if name != kernel.NO_NAME else None
            for name, sequence in zip(producers, columns.sequences, strict=True)
        ]
        fresh = [key is None or self._is_new(key) for key in keys]
        self._keys_taken.update(key for key, is_fresh in zip(keys, fresh, strict=True) if key and is_fresh)
        if all(fresh):
            return block
        kept = [row for row, is_fresh in enumerate(fresh) if is_fresh]
        if not kept:
            return opaque_block(Kind.CONTROL, b'{"op":"repeated"}')
        (made,) = data_blocks([_row(columns, row) for row in kept])
        return made.timed(block.header.base_time_us)

    def withdraw(self, block: Block) -> None:
        columns = block.columns()
        if columns.key:
            self.staging.withdraw(columns.key)
        self._keys_taken.difference_update(
            (bytes(columns.names[name]), sequence)
            for name, sequence in zip(columns.producer_ids, columns.sequences, strict=True)
            if name != kernel.NO_NAME
        )

    def _is_new(self, key: tuple[bytes, int]) -> bool:
        return key not in self._keys_taken and self._verdict(key) is Verdict.NEW

    def _verdict(self, key: tuple[bytes, int]) -> Verdict:
        return Verdict.REPEATED if self._is_in_another(key) else self.producers.judge(*key)

    def _is_in_another(self, key: tuple[bytes, int]) -> bool:
        """Whether a QoS 2 message is stored under its token in another shard: the stream was changed between
        the message and its repeat. Sequences of clients may be counted per topic, so they say nothing."""
        if not key[0].startswith(_TOKEN_PREFIX):
            return False
        shards = self.others.values()
        return any(s is not self and s.producers.judge(*key) is Verdict.REPEATED for s in shards)

    def to_bytes(self) -> bytes | None:
        if not self.staging.is_small:
            return None
        generation, retained = self.retained.to_json(self._retained_fields)
        state = {
            "version": _STATE_VERSION,
            "next_offset": self.next_offset,
            "sealed": self.is_finished,
            "labour": self.work_division.to_json(),
            "start_offset": self.start_offset,
            "consumers": self.consumers.to_json(),
            "producers": self.producers.to_json(),
            "staged": self.staging.to_json(),
            "retained": retained,
            "generation": generation,
        }
        return json.dumps(state, sort_keys=True).encode()

    def _retained_fields(self, run: Run) -> dict[str, Any]:
        time_us = self._wall_us()
        if run.expires_ms is not None:
            # As if published now with what is left of its time.
            expiry_s = expiry_of(run.data) or 0
            time_us += (run.expires_ms - self._now_ms() - expiry_s * 1000) * 1000
        packet = base64.b64encode(run.data).decode()
        return {"packet": packet, "qos": run.qos, "v5": run.v5, "time_us": time_us}

    def restore(self, state: bytes) -> None:
        fields = json.loads(state)
        self.next_offset = self._broker.log_ends[self.number] = fields["next_offset"]
        self.is_finished = fields["sealed"]
        self.intake.is_sealed = self.intake.is_sealed or self.is_finished
        self.work_division = WorkDivision.from_json(fields["labour"])
        self.work.restored()
        self.start_offset = fields["start_offset"]
        self.consumers.restore(fields["consumers"])
        self.producers = Producers.from_json(fields["producers"])
        # A state that was written before there was staged data has none.
        self.staging.restore(fields.get("staged", [[[], []], []]))
        # A state that was written before there were stamps has no generation.
        self.retained.restore(fields.get("generation", 0), fields["retained"], self._noted_run)


def logged(arrival: Arrival) -> kernel.Run:
    run = arrival.run
    assert run is not None
    data = run.data
    if run.retain:
        data = bytes((data[0] | 1,)) + data[1:]
    session = arrival.session
    return kernel.Run(
        packets=data,
        version=5 if run.v5 else 4,
        publisher=session.client_id.encode() if session is not None else None,
        producer=arrival.producer,
        sequences=range(arrival.sequence, arrival.sequence + run.count)
        if arrival.producer is not None
        else (),
    )


def _row(columns: kernel.Columns, row: int) -> kernel.Run:
    """One message of a block as a run of its own."""
    start = columns.packet_positions[row]
    publisher, producer = columns.publisher_ids[row], columns.producer_ids[row]
    return kernel.Run(
        packets=bytes(columns.packets[start : start + columns.packet_sizes[row]]),
        version=columns.flags[row] >> FLAG_VERSION_SHIFT,
        delta_us=columns.deltas_us[row],
        publisher=None if publisher == kernel.NO_NAME else bytes(columns.names[publisher]),
        producer=None if producer == kernel.NO_NAME else bytes(columns.names[producer]),
        sequences=() if producer == kernel.NO_NAME else (columns.sequences[row],),
    )
