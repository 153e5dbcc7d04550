"""Leaderless streams of a node: each has a machine, writes origins' logs, and delivers what is stored.

What arrives here goes to this node's own log and is answered when the stream's level is reached (`ack`). What
is stored here, from whatever origin, is given to the plain subscribers of this node at once: each node serves
its clients from its own copies, and across a partition both sides do. Groups are `leaderless_groups`.

Times of blocks are a hybrid logical clock: never behind anything that is stored here. The newest retained
message of a topic wins by that time, and by the node's name where two are equal [rule 17].
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from millrace.broker.entries.sessions import FROM_THE_START
from millrace.broker.groups.definitions import DurableGroup
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.streams.stream import Capture, Stream
from millrace.broker.topics.filters import overlaps
from millrace.broker.topics.trees import SHARE_PREFIX
from millrace.driver.effects import EffectDriver, Runner
from millrace.errors import ProtocolError, StorageError
from millrace.node.groups.leaderless_groups import LeaderlessConsumerGroups
from millrace.node.leaderless.keys import Retained, StreamKeys
from millrace.node.leaderless.origin_logs import OriginFiles, OriginLog
from millrace.node.leaderless.writer import OriginWriter
from millrace.node.logs.reading import READ_BYTES, Reading
from millrace.node.logs.retention import is_to_end, segment_share, trim_offset
from millrace.node.replicas.replicas import TICK_S, Replicas
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.shards.batch import logged
from millrace.node.shards.fan_out import fan_out
from millrace.node.shards.shard import FINISH_MS
from millrace.node.streams.definitions import Definitions
from millrace.reasons import Reason
from millrace.replication.contract import (
    LinkClosed,
    LinkOpened,
    PeerBody,
    PeerMessage,
    ReplicaId,
    RequestId,
    Tick,
)
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import (
    Acknowledged,
    Await,
    Begin,
    Divided,
    Given,
    GroupRemoved,
    LeaderlessEvent,
    Level,
    Origin,
    Overloaded,
    Overtaken,
    PersistLog,
    Placed,
    Publish,
    Remove,
    SetHolds,
    SetLevel,
    SetMembers,
    Slept,
    Stored,
    Take,
)
from millrace.storage.block import Block, Codec, Kind, data_blocks
from millrace.storage.disk import DiskFull
from millrace.storage.files import FileDamaged
from millrace.storage.log import LogFailed
from millrace.storage.scan import RangeDamaged
from millrace.tracing.publishes import PublishTraces
from millrace.types import Index

log = logging.getLogger("millrace.leaderless")

_BATCH_BYTES_MAX = 768 * 1024
_BATCH_MESSAGES_MAX = 8_000
# Ticks after which a publisher whose level was not reached is told so; its message stays.
_LEVEL_TICKS_MAX = 200
_TICK_MS = int(TICK_S * 1000)
_SAVE_EVERY_TICKS = 600
_CHORES_EVERY_TICKS = 20


class Batch:
    """The arrivals of one request."""

    __slots__ = ("arrivals", "index", "is_delivered", "offset", "since_us", "tick")

    def __init__(self, arrivals: list[Arrival], tick: int, since_us: int) -> None:
        self.arrivals = arrivals
        self.tick = tick
        # When the turn of the loop that brought them was cut.
        self.since_us = since_us
        self.index = self.offset = 0
        self.is_delivered = False


class LeaderlessStream:
    def __init__(self, number: int, stream: Stream, owner: "LeaderlessStreams") -> None:
        self._owner = owner
        self._broker = owner.broker
        self.now_ms, self.wall_us, self.wake = owner.now_ms, owner.wall_us, owner.wake
        self.files = OriginFiles(number, stream, owner.replicas)
        self.intake = Intake(number, stream.spec.capture is Capture.ALL)
        self.intake.is_sealed = number in stream.sealed
        # Since it was sealed in this run: until when newer logs wait until all nodes have this node's own.
        self._spread_by_ms: int | None = None
        self.keys = StreamKeys(self._broker, self.now_ms, self.wall_us)
        self.origins: dict[int, Origin] = {}
        self._ticks = 0
        # Ticks that the machine knows of, those that it slept through included.
        self._told_ticks = 0
        self._started_ms = self.now_ms()
        self._clock_us = 0
        self._next_request = 0
        self._batches: deque[tuple[RequestId, Batch]] = deque()
        self._then: dict[RequestId, Callable[[], None]] = {}
        self._is_overtaken = False
        try:
            self._start()
        except DiskFull:
            # All of it once more when there is room.
            self._forget_logs()
            self.files.let_go()
            raise
        self.groups = LeaderlessConsumerGroups(self, self._broker)

    def _start(self) -> None:
        while True:
            try:
                self._read_logs()
            except (RangeDamaged, ProtocolError):
                # Found only now: a log that was closed in good order is not read when it is opened.
                if not self.files.mend():
                    raise
            else:
                break
        self.files.log_of(self.files.origin)
        for one in self.files.logs.values():
            self._know(one)

    def _read_logs(self) -> None:
        files = self.files
        saved = None
        try:
            saved = files.read_state()
        except FileDamaged as error:
            files.begin_with_nothing(error)
        covered = self.keys.load(saved)
        state = self.keys.machine_state(saved)
        self.machine = Leaderless(
            self._owner.replicas.replica,
            origin=files.origin,
            boot=self._owner.random.getrandbits(62),
            members=self._owner.members(),
            logs=files,
            state=state,
            rng=Random(self._owner.random.getrandbits(64)),
            level=Level(files.stream.spec.ack),
        )
        self._writer = OriginWriter(
            files, state_of=lambda state: self.keys.to_bytes(state, self._applied()), on_log=self._know
        )
        self._driver = EffectDriver(
            self.machine,
            network=self,
            log=self._writer,
            write_kind=PersistLog,
            runners=self._runners(),
            on_storage_error=self._on_storage_error,
        )
        self._writer.open(self._driver)
        for origin, one in files.logs.items():
            self._learn_again(origin, one, covered.get(origin, 0))

    def _know(self, one: OriginLog) -> None:
        """A log that readers may ask for from now on. Sessions that are there read it from its beginning."""
        if one.number in self.origins:
            return
        self.origins[one.number] = one.origin
        self._owner.logs[one.number] = one
        self._broker.log_ends[one.number] = one.next_offset
        for session in self._broker.sessions.values():
            if session.is_recorded and session.cursors is not None:
                session.add_cursors((one.number,))
        self._owner.on_new_log()

    def _learn_again(self, origin: Origin, one: OriginLog, index: int) -> None:
        """What the saved state does not know of retained messages and keys."""
        index = max(index, self.files.begin(origin).entry)
        last = int(one.replica_log.log.last_index)
        while index < last:
            try:
                blocks = one.replica_log.blocks(Index(index + 1), Index(last), READ_BYTES)
            except RangeDamaged as error:
                self.files.note_unreadable(origin, error)
                raise
            for block in blocks:
                self._learn(origin, block)
                index = block.header.index

    # ---------------------------------------------------------------------------------------- driver

    def request(self, then: Callable[[], None] | None) -> RequestId:
        self._next_request += 1
        request = RequestId(self._next_request)
        if then is not None:
            self._then[request] = then
        return request

    @property
    def is_closed(self) -> bool:
        return self._driver.is_stopped

    def step(self, event: LeaderlessEvent) -> None:
        """One event. Called while the effects of another run, it waits its turn: lists keep their order."""
        self._driver.step(event)

    def _on_storage_error(self, error: StorageError) -> bool:
        if not isinstance(error, LogFailed):
            return False
        if not any(one.replica_log.log.has_failed for one in self.files.logs.values()):
            return False
        # The node is about to stop: see `ReplicationGroup`.
        self._driver.stop()
        return True

    def send(self, to: ReplicaId, body: PeerBody) -> None:
        if isinstance(body, Begin) and not self.intake.is_sealed:
            # First: it is saved with the beginning that takes the place of its entries.
            for told in self.keys.told_by(body.origin.node):
                self._owner.send(to, self.files.number, told)
        self._owner.send(to, self.files.number, body)

    def _runners(self) -> dict[type, Runner]:
        return {
            Stored: self._store,
            Placed: self._place,
            Overloaded: lambda effect: self._refuse(effect.request),
            Acknowledged: lambda effect: self._acknowledged(effect.request),
            Given: lambda effect: self.groups.give(effect),
            Divided: self._divide,
            GroupRemoved: lambda effect: self.groups.revive(effect),
            Remove: self._remove_below,
            Overtaken: self._overtake,
        }

    def _place(self, effect: Placed) -> None:
        batch = self._batches[-1][1]
        batch.index, batch.offset = effect.first_index, effect.offset

    def _divide(self, effect: Divided) -> None:
        names = ", ".join(self._owner.name_of(node) for node in effect.order) or "nobody"
        log.info("%s, %s: %s delivers", self.files.stream.spec.name, effect.group, names)

    def _remove_below(self, effect: Remove) -> None:
        one = self.files.logs.get(effect.origin)
        if one is not None:
            one.start_offset = max(one.start_offset, effect.offset)

    def _overtake(self, effect: Overtaken) -> None:
        self._is_overtaken = True

    def _begin_anew(self) -> None:
        """The own log was not whole after all: this node goes on as another origin [rule 25], once
        nothing of the old machine is on its way to the disk."""
        for request, _ in list(self._batches):
            self._refuse(request)
        try:
            if self.files.origin == self.machine.origin:
                name = self.files.stream.spec.name
                log.error("%s: others hold more of this node's log than it does", name)
                self.files.raise_incarnation()
            self.files.log_of(self.files.origin)
            self.files.save_state(self._state())
        except DiskFull:
            # With the next tick again; until then nothing is taken.
            return
        self._is_overtaken = False
        self._start()
        for tracker in self.groups.trackers.values():
            # The new machine has not heard of them, nor of what is in flight.
            tracker.connected = 0
            tracker.aside.clear()

    # --------------------------------------------------------------------------------------- arrivals

    @property
    def oldest_unanswered(self) -> int:
        """The first request that publishers wait for; 0: there is none."""
        return int(self._batches[0][0]) if self._batches else 0

    def cut(self, wall_us: int, is_full: bool) -> None:
        """Publish everything that arrived since the last call."""
        arrivals, self.intake.arrivals = self.intake.arrivals, []
        if self.intake.is_sealed:
            self._broker.inbound.arrive_again(arrivals, self.now_ms())
            return
        if is_full or self._is_overtaken:
            self.keys.refuse(arrivals, Reason.QUOTA_EXCEEDED if is_full else Reason.SERVER_BUSY)
            return
        batch: list[Arrival] = []
        size = count = 0
        for arrival in self.keys.admitted(arrivals):
            run = arrival.run
            if run is not None and arrival.is_retained_only:
                # It was delivered, and is retained here; no log carries QoS 0 that it does not capture.
                self._broker.inbound.committed([arrival], 0, 0, self.now_ms())
                continue
            grown, more = (len(run.data), run.count) if run is not None else (0, 0)
            is_large = size + grown > _BATCH_BYTES_MAX or count + more > _BATCH_MESSAGES_MAX
            if batch and (is_large or (run is None) != (batch[-1].run is None)):
                self._publish(batch, wall_us)
                batch, size, count = [], 0, 0
            size += grown
            count += more
            batch.append(arrival)
        if batch:
            self._publish(batch, wall_us)

    def _publish(self, arrivals: list[Arrival], wall_us: int) -> None:
        """Messages, or answers alone: what those wait for was published before, here or elsewhere."""
        request, batch = self.request(None), Batch(arrivals, self._ticks, wall_us)
        self._batches.append((request, batch))
        runs = [logged(arrival) for arrival in arrivals if arrival.run is not None]
        if not runs:
            batch.is_delivered = True
            self.step(Await(request=request))
            return
        self._clock_us = max(self._clock_us + 1, self.keys.newest_us + 1, wall_us)
        compression = self.files.stream.spec.compression
        made = data_blocks(runs, Codec.ZLIB if compression == "zlib" else Codec.NONE, self._clock_us)
        blocks = tuple((block.header.count, block.to_bytes()) for block in made)
        self.step(Publish(request=request, blocks=blocks))

    def _refuse(self, request: RequestId) -> None:
        """Whether it was stored is open; it is not acknowledged."""
        for position, (other, batch) in enumerate(self._batches):
            if other == request:
                del self._batches[position]
                if not batch.index:
                    self.keys.let_go(batch.arrivals)
                self.keys.refuse(batch.arrivals, Reason.SERVER_BUSY)
                return
        then = self._then.pop(request, None)
        if then is not None:
            then()

    def _acknowledged(self, request: RequestId) -> None:
        then = self._then.pop(request, None)
        if then is not None:
            then()
            self.wake()
            return
        if self._batches and self._batches[0][0] == request:
            # They come in order; one that was refused meanwhile is not there any more.
            _, batch = self._batches.popleft()
            self._broker.inbound.answered(batch.arrivals, batch.offset)
            count = sum(arrival.run.count for arrival in batch.arrivals if arrival.run is not None)
            took_s = (self.wall_us() - batch.since_us) / 1_000_000
            self._broker.stats.publish_ack.observe(took_s, count)
            self.wake()

    # ---------------------------------------------------------------------------------------- stored

    def _store(self, effect: Stored) -> None:
        one = self.files.logs[effect.origin]
        while one.applied < effect.index:
            block = self._writer.take(effect.origin, one.applied + 1)
            one.keep(block)
            self._broker.log_ends[one.number] = one.next_offset
            if block.header.kind is not Kind.DATA:
                continue
            self._learn(effect.origin, block)
            since_us = self._deliver_own(one, block) if effect.origin == self.files.origin else None
            if since_us is None:
                fan_out(self._broker, block, one.number, self.now_ms(), self.wall_us(), with_groups=False)
            if self._owner.traces is not None:
                self._owner.traces.on_block(self.files.stream.spec, one.number, block, since_us or 0)
        self.groups.look_all()
        self.wake()

    def _deliver_own(self, one: OriginLog, block: Block) -> int | None:
        """What came in here is delivered from the packets as they arrived, with the whole of its request.
        Returns when that was cut; None where nothing was delivered."""
        for _, batch in self._batches:
            if batch.offset <= block.header.base_offset and not batch.is_delivered:
                batch.is_delivered = True
                self._broker.inbound.stored(batch.arrivals, one.number, batch.offset, self.now_ms())
                return batch.since_us
            if batch.offset <= block.header.base_offset < self._end_of(batch):
                return batch.since_us
        return None

    @staticmethod
    def _end_of(batch: Batch) -> int:
        return batch.offset + sum(a.run.count for a in batch.arrivals if a.run is not None)

    def _learn(self, origin: Origin, block: Block) -> None:
        if block.header.kind is Kind.DATA:
            self._clock_us = max(self._clock_us, block.header.base_time_us)
            self.keys.learn(origin, block)

    # ------------------------------------------------------------------------------------------ time

    def take(self, group: str, count: int) -> None:
        """Ask for work; first the machine hears how late it is, for it may have been left out meanwhile."""
        self._catch_up()
        self.step(Take(group=group, count=count))

    def _catch_up(self) -> None:
        slept = (self.now_ms() - self._started_ms) // _TICK_MS - self._told_ticks
        if slept > 0:
            self._told_ticks += slept
            self.step(Slept(ticks=slept))

    def tick(self) -> None:
        self._ticks += 1
        if self._is_overtaken and not self._driver.writes_waiting and not self.is_closed:
            self._begin_anew()
        if self._writer.is_waiting and not self.is_closed:
            self._write_again()
        self._told_ticks += 1
        self.step(Tick())
        self._catch_up()
        self.groups.tick()
        if self._spread_by_ms is not None and not self.is_spreading:
            self.wake()
        while self._batches and self._ticks - self._batches[0][1].tick > _LEVEL_TICKS_MAX:
            self._refuse(self._batches[0][0])
        if self._ticks % _CHORES_EVERY_TICKS == 0:
            self._chores()
        if self._ticks % _SAVE_EVERY_TICKS == 0:
            self._save()

    def _write_again(self) -> None:
        try:
            self._writer.hand_out()
        except LogFailed as error:
            if not self._on_storage_error(error):
                raise

    def _save(self) -> bool:
        try:
            self.files.save_state(self._state())
        except DiskFull as error:
            log.warning("%s: its state cannot be saved for now: %s", self.files.stream.spec.name, error)
            return False
        return True

    def _state(self) -> bytes:
        return self.keys.to_bytes(self.machine.to_bytes(), self._applied())

    def _applied(self) -> dict[Origin, int]:
        return {origin: one.applied for origin, one in self.files.logs.items()}

    def _chores(self) -> None:
        """Holds, and what the stream's policy or the groups let go [rules 18, 26]."""
        if next(self.machine.state.present(), None) is not None:
            holds = self._owner.holds(self)
            self.step(SetHolds(holds=tuple((self.origins[n], low) for n, low in sorted(holds.items()))))
        policy, now_us = self.files.stream.spec.retention, self.wall_us()
        trimmed: list[tuple[OriginLog, Index]] = []
        for one in self.files.logs.values():
            stored = one.replica_log.log
            segments = stored.segments()
            stored.segment_share = segment_share(policy)
            one.start_offset = max(one.start_offset, trim_offset(segments, policy, now_us))
            active = segments[-1]
            if is_to_end(active, policy, now_us, one.start_offset):
                stored.ends_segment = True
            unwanted = [segment for segment in segments[:-1] if segment.next_offset <= one.start_offset]
            if active.first_offset < active.next_offset <= one.start_offset:
                unwanted = segments
            # The files may show what is not applied yet, which no state covers.
            last_index = min(unwanted[-1].last_index, Index(one.applied)) if unwanted else Index(0)
            if last_index > one.replica_log.trim_to:
                trimmed.append((one, last_index))
        # What the removed entries said must be on disk before they go.
        if trimmed and self._save():
            for one, last_index in trimmed:
                one.replica_log.trim_to = last_index
                # Perhaps nobody ever writes to it again.
                one.replica_log.rolls_now = last_index == one.replica_log.log.last_index
                self.files.tidy(one)

    def change(self, stream: Stream) -> None:
        """The definition changed without moving topics."""
        before, self.files.stream = self.files.stream, stream
        if before.spec.ack != stream.spec.ack:
            self.step(SetLevel(level=Level(stream.spec.ack)))
        for one in self.files.logs.values():
            one.stream = stream
        self.intake.captures_all = stream.spec.capture is Capture.ALL

    def inherit(self, topic: str) -> None:
        """What was retained while no log kept this topic is this stream's from now on."""
        self.keys.inherit(topic)

    def seal(self) -> None:
        """Nothing is taken any more; what was routed here is routed again [rule 16]."""
        if not self.intake.is_sealed:
            self.intake.is_sealed = True
            self._spread_by_ms = self.now_ms() + FINISH_MS

    @property
    def is_spreading(self) -> bool:
        """Sealed, and a node that can be reached has yet to get the end of this node's log: whatever comes in
        next for the same topics would overtake it there."""
        if self._spread_by_ms is not None:
            if self.machine.is_everywhere:
                self._spread_by_ms = None
            elif self.now_ms() >= self._spread_by_ms:
                self._spread_by_ms = None
                name = self.files.stream.spec.name
                log.error("%s: a node did not get the end of this node's log in time: order is lost", name)
        return self._spread_by_ms is not None

    def on_peer(self, sender: str, body: PeerBody) -> None:
        if isinstance(body, Retained):
            if sender in self.machine.members and not self.intake.is_sealed:
                self.keys.take_in(body)
            return
        self.step(PeerMessage(sender=ReplicaId(sender), body=body))
        if self._spread_by_ms is not None and not self.is_spreading:
            self.wake()

    async def read(self, origin: Origin, offset: int) -> list[Block]:
        return await self._owner.reading.blocks(self.files.logs[origin], offset)

    def durable_groups(self) -> dict[str, DurableGroup]:
        return self._owner.durable_groups()

    @property
    def leads_definitions(self) -> bool:
        """Whether every definition is known here."""
        return self._owner.leads_definitions

    async def stop(self) -> None:
        await self.groups.stop()
        self.groups.flush()
        for _ in range(100):
            if not self.machine.writes_pending or self._owner.replicas.syncer.is_full:
                break
            await asyncio.sleep(0.01)
        try:
            self._save()
        except StorageError as error:
            # What else is to be done before the end is done all the same.
            log.error("%s: its state was not saved: %s", self.files.stream.spec.name, error)
        self._driver.stop()

    def close(self) -> None:
        """After the last write."""
        self.files.close(is_clean=not self.machine.writes_pending)

    def remove(self) -> None:
        """The stream is deleted. Whoever waits for its logs is told that it is not as asked for: what stands
        in them may be delivered already."""
        self._driver.stop()
        for request in [request for request, _ in self._batches]:
            self._refuse(request)
        for request in list(self._then):
            self._refuse(request)
        self._forget_logs()
        for key in [key for key in self._broker.leaderless_groups if key[0] == self.files.number]:
            del self._broker.leaderless_groups[key]
        self.files.remove()

    def _forget_logs(self) -> None:
        for number in self.origins:
            self._owner.logs.pop(number, None)
            self._broker.log_ends.pop(number, None)

    def group_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        positions = self.machine.positions
        for key, group in sorted(self.machine.state.present()):
            installed = self.machine.work_division.division(key).installed
            done = sum(group.starts.get(origin, 0) + group.done(origin).total() for origin in positions)
            yield (
                key,
                {
                    "clients": group.client_names(),
                    "connected_here": self.machine.work_division.division(key).connected,
                    "deliver": [self._owner.name_of(n) for n in installed.order] if installed else [],
                    "lag": max(0, sum(position.offset for position in positions.values()) - done),
                },
            )

    def status(self) -> list[dict[str, Any]]:
        """One row for each origin's log."""
        return [
            {
                "stream": self.files.stream.spec.name,
                "shard": one.number,
                "first_offset": one.first_offset,
                "next_offset": one.next_offset,
                "bytes": one.replica_log.log.size_bytes,
                "staged_bytes": 0,
                "staged_attempts": 0,
                "sealed": self.intake.is_sealed,
                "role": "origin" if origin == self.files.origin else "copy",
                "term": origin.incarnation,
                "origin": self._owner.name_of(origin.node),
            }
            for origin, one in sorted(self.files.logs.items())
        ]


class LeaderlessStreams:
    """All of a node."""

    def __init__(
        self,
        definitions: Definitions,
        replicas: Replicas,
        sessions: SessionGroup,
        broker: Broker,
        reading: Reading,
        *,
        random: Random,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._definitions = definitions
        self._sessions = sessions
        self.broker = broker
        self.reading = reading
        self.random = random
        self.now_ms, self.wall_us, self.wake = now_ms, wall_us, wake
        self.replicas = replicas
        self.streams: dict[int, LeaderlessStream] = {}
        self.logs: dict[int, OriginLog] = {}
        """By shard number, for readers."""
        self.on_new_log: Callable[[], None] = lambda: None
        self.traces: PublishTraces | None = None
        self._members: tuple[ReplicaId, ...] = ()

    def members(self) -> tuple[ReplicaId, ...]:
        return tuple(sorted(map(ReplicaId, self._definitions.state.members.members)))

    def name_of(self, node: str) -> str:
        member = self._definitions.state.members.members.get(node)
        return member.name if member is not None else node

    def durable_groups(self) -> dict[str, DurableGroup]:
        return self._definitions.state.groups.by_name

    @property
    def leads_definitions(self) -> bool:
        return self._definitions.group.is_leader

    def send(self, to: ReplicaId, number: int, body: PeerBody) -> None:
        self.replicas.messenger.send(to, body, number)

    def holds(self, stream: LeaderlessStream) -> dict[int, int]:
        """The lowest offset that a durable session still wants of each log of a stream, where it is not at
        the end. Groups see to themselves."""
        filters = stream.files.stream.spec.filters
        lowest: dict[int, int] = {}
        for record in self._sessions.store.records.values():
            wants: bool | None = None
            for number in stream.origins:
                low = record.cursors.get(number, FROM_THE_START).low
                if low >= self.logs[number].next_offset or low >= lowest.get(number, low + 1):
                    continue
                if wants is None:
                    plain = [f for f in record.subscriptions if not f.startswith(SHARE_PREFIX)]
                    # By which filters a sealed log was filled nobody knows any more.
                    is_any = stream.intake.is_sealed and bool(plain)
                    wants = is_any or any(overlaps(f, own) for f in plain for own in filters)
                if wants:
                    lowest[number] = low
        return lowest

    # -------------------------------------------------------------------------------------- definition

    def open(self, number: int, stream: Stream, intake: Intake | None) -> None:
        """After DiskFull it is not open. Routes of before may lead to an `intake`, which is its own then."""
        one = self.streams[number] = LeaderlessStream(number, stream, self)
        if intake is not None:
            intake.is_sealed = one.intake.is_sealed
            one.intake = intake

    def reconcile(self, wanted: dict[int, Stream]) -> bool:
        """Change and remove streams as the definitions say; whether one is gone."""
        for number, one in self.streams.items():
            if number in wanted:
                one.change(wanted[number])
                if number in wanted[number].sealed:
                    one.seal()
        gone = self.remove_but(wanted)
        members = self.members()
        if members != self._members:
            self._members = members
            for one in self.streams.values():
                one.step(SetMembers(members=members))
        return bool(gone)

    def remove_but(self, wanted: Mapping[int, Stream]) -> dict[int, LeaderlessStream]:
        gone = {number: self.streams.pop(number) for number in self.streams.keys() - wanted.keys()}
        for one in gone.values():
            one.remove()
        return gone

    def numbers(self, stream: Stream) -> list[int]:
        """The logs of a stream that readers may ask for."""
        own = [self.streams[n] for n in (*stream.sealed, *stream.shards) if n in self.streams]
        return [number for one in own for number in sorted(one.origins)]

    def retired_logs(self) -> dict[int, int]:
        """Logs that take no more, with the number that says how old they are beside shards."""
        return {
            log: number for number, one in self.streams.items() if one.intake.is_sealed for log in one.origins
        }

    def logs_after(self, number: int) -> set[int]:
        """Logs of streams that came later than a shard."""
        return {log for later, one in self.streams.items() if later > number for log in one.origins}

    def spreading(self) -> set[int]:
        """Intakes that wait: nodes have yet to get the end of a sealed log of their topics."""
        spreading = [one.files for one in self.streams.values() if one.is_spreading]
        return {number for files in spreading for number in (files.number, *files.stream.shards)}

    def groups(self, stream: Stream) -> dict[str, Any]:
        """What this node knows of a stream's groups: members, who delivers, how much is left to do."""
        own = [self.streams[n] for n in (*stream.sealed, *stream.shards) if n in self.streams]
        return {key: row for one in own for key, row in one.group_rows()}

    # ----------------------------------------------------------------------------------------- events

    def tick(self) -> None:
        for one in list(self.streams.values()):
            one.tick()

    def link_opened(self, replica: str) -> None:
        for one in self.streams.values():
            one.step(LinkOpened(peer=ReplicaId(replica)))

    def link_closed(self, replica: str) -> None:
        for one in self.streams.values():
            one.step(LinkClosed(peer=ReplicaId(replica)))

    def on_peer(self, replica: str, number: int, body: PeerBody) -> None:
        one = self.streams.get(number)
        if one is not None:
            one.on_peer(replica, body)

    def when_shared(self, keys: list[str], then: Callable[[], None]) -> None:
        """Call back once this node's own logs say that these groups have the members they have here."""
        left = 1

        def one_done() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        for key in keys:
            for one in self.streams.values():
                if not one.intake.is_sealed:
                    left += 1
                    if not one.groups.share(key, one_done):
                        left -= 1
        one_done()

    async def stop(self) -> None:
        await asyncio.gather(*(one.stop() for one in self.streams.values()))

    def close(self) -> None:
        for one in self.streams.values():
            one.close()

    def status(self) -> list[dict[str, Any]]:
        return [row for _, one in sorted(self.streams.items()) for row in one.status()]
