"""Shards are opened, sealed and removed as the definitions say.

`reconcile` may be called at any time and any number of times: it compares what the meta group wants with what
is open here. Where the disk has no room for a new shard, topics stay where they were until there is some.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from millrace.broker.entries.meta import DeleteStream, PutStream
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.meta import state as meta
from millrace.broker.shards.stamps import Stamps
from millrace.broker.streams.stream import Replication, Stream, StreamSpec
from millrace.errors import LocalError
from millrace.node.groups.mqtt_members import MqttGroupMembers
from millrace.node.leaderless.streams import LeaderlessStreams
from millrace.node.logs.retention import Retention
from millrace.node.logs.space import DiskSpace
from millrace.node.pairs.frame_shard import FrameShard
from millrace.node.pairs.pair_keeper import PairKeeper, admit, check_classes
from millrace.node.peers.interest import Interest
from millrace.node.replicas import waiting
from millrace.node.replicas.replicas import Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.shards.shard import CarriedOverRetained, Shard
from millrace.node.streams.definitions import Definitions
from millrace.node.streams.intakes import Intakes
from millrace.node.streams.sealing import Sealing
from millrace.storage.disk import DiskFull
from millrace.tracing.publishes import PublishTraces

log = logging.getLogger("millrace.streams")

# At the start, between two looks at what else there is to do.
_OPENED_AT_ONCE = 8


class Opening:
    """Brings the shards of this node in line with the definitions."""

    def __init__(
        self,
        replicas: Replicas,
        definitions: Definitions,
        shards: dict[int, Shard],
        closed: dict[int, Shard],
        *,
        broker: Broker,
        sessions: SessionGroup,
        leaderless: LeaderlessStreams,
        pairs: PairKeeper,
        interest: Interest,
        intakes: Intakes,
        sealing: Sealing,
        retention: Retention,
        space: DiskSpace,
        members: MqttGroupMembers,
        silent: Mapping[str, float],
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._replicas = replicas
        self._definitions = definitions
        self._shards = shards
        # Shards that topics lead to and that wait for room: what is published to them is refused.
        self._closed = closed
        # Of those that begin again with nothing: the last index and the term they had.
        self._emptied: dict[int, tuple[int, int]] = {}
        self._broker = broker
        self._sessions = sessions
        self._leaderless = leaderless
        self._pairs = pairs
        self._interest = interest
        self._intakes = intakes
        self._sealing = sealing
        self._retention = retention
        self._space = space
        self._members = members
        # The nodes that this one does not hear.
        self._silent = silent
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._wake = wake
        self._stamps = Stamps()
        self.on_staged: Callable[[], None] = _nobody_waits
        """Called where a log has more or less staged in it, or is opened."""
        # What the meta group applied and `reconcile` has not acted on yet.
        self._pending: list[meta.Result] = []
        # The generation of the definitions whose retained messages are where they belong; 0: none yet.
        self._generation = 0
        self._has_begun = False
        self.is_out_of_space = False
        """A shard could not be opened for want of room."""
        self.traces: PublishTraces | None = None
        definitions.on_change.append(self._on_change)
        definitions.after_command = self.reconcile
        pairs.reopen_empty = self.reopen_empty

    # ------------------------------------------------------------------------------------ commands

    async def put(self, spec: StreamSpec, *, create: bool) -> Stream:
        """Make or change a stream; LocalError says why not."""
        if spec.replication is Replication.PRIMARY_BACKUP:
            admit(spec.primary_backup)
            check_classes(spec)
        await self._definitions.command(PutStream(spec, create_only=create, away=tuple(sorted(self._silent))))
        stream = self._definitions.table.streams.get(spec.name)
        if stream is None:
            raise LocalError(f"stream {spec.name!r} was deleted as soon as it was there")
        for number in stream.shards:
            if number in self._shards:
                await waiting.serving(self._shards[number].group)
        return stream

    async def delete(self, name: str) -> None:
        await self._definitions.command(DeleteStream(name))

    # --------------------------------------------------------------------------------- definitions

    def begun(self) -> None:
        """From now on a shard that cannot be opened leaves topics where they are."""
        self._has_begun = True

    def _on_change(self, result: meta.Result) -> None:
        """Called while the meta group applies: what follows from it waits until it has."""
        self._pending.append(result)
        if self._generation not in (0, self._definitions.state.generation):
            # Soon: until then what is published goes by the streams of before.
            asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        if self._replicas.is_open:
            self.reconcile()

    async def open_all(self) -> None:
        """At the start. There may be a thousand shards: links hear of this node, and those that are open find
        their leaders, while the others are opened."""
        definitions = self._definitions.state
        if definitions.members.cluster:
            self._open_sessions()
            for count, (number, stream) in enumerate(definitions.shards().items(), 1):
                if not stream.is_leaderless(number) and number not in self._shards:
                    self._open_shard(number, self._make_shard(number, stream))
                if count % _OPENED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        self.reconcile()

    def _open_sessions(self) -> None:
        if meta.SESSION_GROUP not in self._replicas.groups:
            self._sessions.group = self._open_group(meta.SESSION_GROUP, self._sessions)

    def reconcile(self) -> None:
        """Open, seal and remove shards as the definitions say."""
        definitions = self._definitions.state
        if not definitions.members.cluster:
            return
        self._members.follow()
        wanted = definitions.shards()
        # Not with every entry of the meta group: finding all routes again each time the roles of a pair
        # change keeps a node busy for so long that they change again.
        has_changed = self._intakes.table is not definitions.table
        self._open_sessions()
        for number, stream in wanted.items():
            if number in self._leaderless.streams:
                continue
            # Also where nothing is captured any more: what was captured can still be read.
            if number in self._shards:
                self._shards[number].change(stream)
                continue
            has_changed = True
            shard = self._make_shard(number, stream)
            is_open = (
                self._open_leaderless(number, stream)
                if stream.is_leaderless(number)
                else self._open_shard(number, shard)
            )
            if not is_open and self._has_begun:
                # With the next review again.
                self._make_room(wanted)
                return
            if not is_open:
                self._closed[number] = shard
        self._seal_pending()
        has_changed = has_changed or not self._shards.keys() <= wanted.keys()
        unanswered = self._remove_but(wanted)
        for number in self._closed.keys() - wanted.keys():
            del self._closed[number]
            if self._emptied.pop(number, None) is not None:
                self._replicas.directory.remove_shard(number)
        has_changed = self._leaderless.reconcile(wanted) or has_changed
        self._intakes.table = definitions.table
        self._sealing.hold_back()
        if has_changed:
            self._broker.router.forget_all()
        self._arrive_again(unanswered)
        if self._generation not in (0, definitions.generation):
            self.move_retained()

    def _make_room(self, wanted: Mapping[int, Stream]) -> None:
        """A shard does not fit: topics stay where they were. What was deleted makes room, and takes no more,
        as where its topics belong now may be what waits for that room."""
        self._closed |= {n: self._shards[n] for n in self._shards.keys() - wanted.keys()}
        for gone, one in self._leaderless.remove_but(wanted).items():
            self._closed[gone] = self._make_shard(gone, one.files.stream)
            self._closed[gone].intake = one.intake
        self._arrive_again(self._remove_but(wanted))

    def _seal_pending(self) -> None:
        for result in self._pending:
            for number in result.sealed:
                if number in self._shards:
                    self._sealing.seal(self._shards[number])
        self._pending.clear()

    def _remove_but(self, wanted: Mapping[int, Stream]) -> list[Arrival]:
        """The shards of streams that are gone; returns what nobody was answered for."""
        unanswered: list[Arrival] = []
        for number in [n for n in self._shards if n not in wanted]:
            shard = self._shards.pop(number)
            for topic in self._stamps.forget_log(number):
                self._broker.retained.drop(topic)
            self._broker.log_ends.pop(number, None)
            unanswered += shard.end()
            self._replicas.remove(number)
            log.info("shard %d of stream %s is gone", number, shard.stream.spec.name)
        return unanswered

    # ------------------------------------------------------------------------------------- opening

    def _make_shard(self, number: int, stream: Stream) -> Shard:
        broker, now_ms, wall_us, wake = self._broker, self._now_ms, self._wall_us, self._wake
        if not stream.spec.is_framed or number not in stream.shards:
            shard = Shard(number, stream, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)
        else:
            shard = FrameShard(
                number,
                stream,
                broker,
                now_ms=now_ms,
                wall_us=wall_us,
                wake=wake,
                send=self._replicas.messenger.send,
                is_full=lambda: self._space.is_refusing,
            )
        shard.traces = self.traces
        shard.retained.stamps = self._stamps
        shard.retained.routing_generation = lambda: self._definitions.state.generation
        return shard

    def _open_shard(self, number: int, shard: Shard) -> bool:
        shard.others, shard.unopened = self._shards, self._closed
        shard.staging.on_change = self.on_staged
        self._shards[number] = shard
        try:
            if number in self._closed:
                # Routes of before lead there, and so does what waits for its id to be written.
                shard.intake = self._closed[number].intake
                shard.unproposed = self._closed[number].unproposed
            if number in self._emptied:
                self._replicas.empty(number, *self._emptied[number])
            shard.group = self._open_group(number, shard)
            self._retention.set_share(shard)
        except DiskFull as error:
            del self._shards[number]
            self._find_no_room(number, error)
            return False
        self.is_out_of_space = False
        self._closed.pop(number, None)
        self._emptied.pop(number, None)
        self._broker.log_opened(number)
        self.on_staged()
        return True

    def _open_leaderless(self, number: int, stream: Stream) -> bool:
        closed = self._closed.get(number)
        try:
            self._leaderless.open(number, stream, closed.intake if closed is not None else None)
        except DiskFull as error:
            self._find_no_room(number, error)
            return False
        self.is_out_of_space = False
        self._closed.pop(number, None)
        return True

    def _find_no_room(self, number: int, error: DiskFull) -> None:
        if not self.is_out_of_space:
            log.error("shard %d cannot be opened yet: %s", number, error)
        self.is_out_of_space = True

    def _open_group(self, number: int, app: Any) -> ReplicationGroup:
        """Founders begin a group together; others open it empty and are added by its leader."""
        definitions, replica = self._definitions.state, self._replicas.replica
        assignment = definitions.members.assignments.get(number)
        founders = assignment.founders if assignment is not None else ()
        mine = founders if replica in founders else ()
        stream = definitions.shards().get(number)
        # A sealed shard stays what it was: its stream may be of another kind by now.
        if stream is not None and number in definitions.pairs.by_shard:
            return self._pairs.open(number, app, stream, mine)
        return self._replicas.open(number, app, mine)

    def reopen_empty(self, number: int, last_index: int, term: int) -> None:
        """Begin again with nothing in a shard whose history lost; `last_index` and `term` say what it had."""
        shard = self._shards.pop(number, None)
        if shard is None:
            return  # deleted meanwhile
        self._closed[number] = shard
        self._emptied[number] = last_index, term
        unanswered = shard.end()
        self._replicas.groups.pop(number).close()
        self._broker.log_ends[number] = 0
        self.reconcile()
        self._arrive_again(unanswered)

    def _arrive_again(self, unanswered: list[Arrival]) -> None:
        """What waited for a log that is gone."""
        if unanswered:
            self._broker.inbound.arrive_again(unanswered, self._now_ms())
            self._wake()

    # ------------------------------------------------------------------------------------ retained

    def move_retained(self) -> None:
        """Streams changed: what is retained follows its topic into a log, or out of one [rule 17]. One node
        writes it to the log: the one that took the message in, or the first of those left."""
        self._generation = self._definitions.state.generation
        members = self._definitions.state.members.members
        table = self._definitions.table
        moved: dict[int, list[CarriedOverRetained]] = {}
        for topic, run, taken_by in self._interest.streams_changed():
            writer = taken_by if taken_by in members else min(members)
            stream = table.find(topic)
            if stream is not None and stream.spec.replication is Replication.LEADERLESS:
                # Every node has it already, and keeps it.
                if stream.shards[0] in self._leaderless.streams:
                    self._leaderless.streams[stream.shards[0]].inherit(topic)
            elif writer == self._replicas.replica and stream is not None:
                number = table.shard(stream, topic.encode())
                value = CarriedOverRetained(topic, run, self._generation)
                moved.setdefault(number, []).append(value)
        for number, values in moved.items():
            if number in self._closed:
                self._closed[number].unproposed += values
            else:
                self._shards[number].inherit(values)

    def say_again(self) -> None:
        """Propose again what was lost with a leader: seals, and retained messages that were carried over."""
        self._sealing.seal_again()
        for shard in self._shards.values():
            shard.say_again()


def _nobody_waits() -> None:
    """Until somebody writes in two steps."""
