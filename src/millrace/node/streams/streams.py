"""The streams of a node: the meta group that names them, their shards, and readers that are behind.

`find_intake` is how the router learns which log keeps a topic. `cut` is called once per turn of the loop and
proposes what arrived; `serve_behind` reads logs for sessions that could not take their messages when they
were committed. Definitions change only through the meta group's log, so every node comes to the same shards.
"""

import asyncio
import logging
from collections import ChainMap, deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from millrace.broker.entries.meta import META_ENTRIES, DeleteStream, MetaEntry, PutStream
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.meta import state as meta
from millrace.broker.meta.state import MetaState
from millrace.broker.shards.stamps import Stamps
from millrace.broker.streams.stream import Replication, Stream, StreamSpec, StreamTable
from millrace.errors import LocalError, StorageError
from millrace.node.cluster import sys_topics
from millrace.node.cluster.cluster import Cluster
from millrace.node.config import Config
from millrace.node.edge.functions import EdgeFunctions
from millrace.node.edge.streams import EdgeStreams
from millrace.node.groups.consumer_groups import Groups
from millrace.node.groups.mqtt_members import GroupMembers
from millrace.node.groups.work_division import NodeWorkDivision
from millrace.node.leaderless.streams import LeaderlessStreams
from millrace.node.logs.log_reader import LogReader
from millrace.node.logs.reading import Reading
from millrace.node.logs.retention import Retention
from millrace.node.pairs.frame_shard import FrameShard
from millrace.node.pairs.pair_keeper import PairKeeper, admit
from millrace.node.peers.interest import Interest
from millrace.node.replicas.repair import Repairs
from millrace.node.replicas.replicas import Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.sessions.handover import Handover
from millrace.node.sessions.presence import Presence
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.shards.shard import FINISH_MS, CarriedOverRetained, Shard
from millrace.node.shards.writers import Writing
from millrace.node.surroundings import Surroundings
from millrace.replication.contract import EntryKind, Status
from millrace.storage.block import Block, Kind, opaque_block
from millrace.storage.disk import DiskFull
from millrace.types import Reason

log = logging.getLogger("millrace.streams")

_SERVING_TIMEOUT_S = 30.0
_PATIENCE_S = 5.0
_COMMAND_S = 10.0
_HAND_OVER_TRIES = 50
# A shard writes its state as a snapshot after so much log, which bounds what a restart reads and applies:
# many bytes, or many entries that are small but large beside the state.
_SNAPSHOT_EVERY_BYTES = 256 * 1024 * 1024
_SNAPSHOT_EVERY_ENTRIES = 20_000
_SNAPSHOT_EVERY_STATES = 4


class _MetaApp:
    """Implements `App` for the meta group."""

    def __init__(self, changed: Callable[[meta.Result], None]) -> None:
        self.state = meta.MetaState()
        self._changed = changed

    def apply(self, block: Block, token: Any) -> None:
        result = self._result(block)
        self._changed(result)
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(result)

    def _result(self, block: Block) -> meta.Result:
        try:
            (entry,) = META_ENTRIES.decode(block.payload())
        except LocalError as error:
            # Written by a newer version: refused alike by every node of this one.
            return meta.Result(error=str(error))
        return self.state.apply(entry)

    def begin_term(self) -> None:
        """Nothing depends on who leads."""

    def admit(self, block: Block) -> Block:
        return block

    def withdraw(self, block: Block) -> None:
        """Nothing is remembered of what is admitted."""

    def to_bytes(self) -> bytes:
        return self.state.to_bytes()

    def restore(self, state: bytes) -> None:
        self.state = meta.MetaState.from_bytes(state)

    def covered(self, token: Any) -> None:
        self.lost(token)

    def lost(self, token: Any) -> None:
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_exception(
                LocalError("no majority of the cluster is there; the change may still happen")
            )


class Streams:
    def __init__(
        self,
        config: Config,
        broker: Broker,
        *,
        random: Random,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        on_failure: Callable[[StorageError], None],
        surroundings: Surroundings,
    ) -> None:
        self._config = config
        self._broker = broker
        self._now_ms = now_ms
        self._wall_us = wall_us = surroundings.wall_us
        self._wake = wake
        self.replicas = Replicas(config, random, on_failure, surroundings)
        self.cluster = Cluster(config, self.replicas, self)
        self.interest = Interest(broker, now_ms=now_ms, wake=wake)
        self.replicas.on_link_open = self._link_opened
        self.replicas.on_link_closed = self._link_closed
        self.replicas.on_interest = self.interest.on_interest
        self.replicas.on_publish = self.interest.on_publish
        self.replicas.on_tick = self._tick
        self._random = random
        # Of the definitions whose retained messages are where they belong; 0: none yet.
        self._generation = 0
        # The streams by which topics find their logs: those whose shards are open here.
        self._routing = meta.MetaState().table
        self._meta = _MetaApp(self._on_change)
        self._stamps = Stamps()
        self.pairs = PairKeeper(self, self._publish_sys)
        self._pending: list[meta.Result] = []
        # Sealed shards whose end did not come in time.
        self._given_up: set[int] = set()
        # Messages wait there for earlier ones on their way to a sealed shard.
        self._too_early: list[Intake] = []
        # A shard could not be opened for want of room.
        self._is_cramped = False
        self._has_begun = False
        # Shards that topics lead to and that wait for room: what is published to them is refused. And of
        # those that begin again with nothing the last index and the term they had.
        self._closed: dict[int, Shard] = {}
        self._emptied: dict[int, tuple[int, int]] = {}
        self.sessions = SessionGroup(broker, now_ms, wake)
        self.handover = Handover(broker, self.replicas, is_on=config.cluster.takeover, now_ms=now_ms)
        self.sessions.before_release = self.handover.released
        self.presence = Presence(broker, self.replicas, lambda: self.definitions.members.members, wall_us)
        self.shards: dict[int, Shard] = {}
        self._is_low = False
        self._pool = surroundings.make_readers()
        self.repairs = Repairs(self.replicas)
        self.reading = Reading(self._pool, self.repairs.repaired)
        self.leaderless = LeaderlessStreams(
            self, broker, self.reading, random=random, now_ms=now_ms, wall_us=wall_us, wake=wake
        )
        self.leaderless.on_new_log = self._hold_back
        self.replicas.on_leaderless = self.leaderless.on_frame
        self.replicas.before_close = self.leaderless.close
        logs = ChainMap[int, Any](self.shards, self.leaderless.logs)
        self.reader = LogReader(broker, logs, self._pool, now_ms, wall_us, wake, self.repairs.repaired)
        self.groups = Groups(self, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)
        self.retention = Retention(self.shards, wall_us, self.groups.held_from, self._state_groups)
        self.work = NodeWorkDivision(self, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)
        self.writing = Writing(self, self.shards, self._pool, wall_us)
        self.edges = EdgeStreams(
            self,
            self.groups,
            EdgeFunctions(config.edge.modules, config.edge.workers, config.edge.timeout_ms / 1000),
        )
        self.members = GroupMembers(self.groups, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)

    # --------------------------------------------------------------------------- start and stop

    async def start(self, ports: Callable[[], dict[str, int]]) -> None:
        """Open the data directory and every log in it; returns once this node can take messages."""
        await self.replicas.start()
        self._open_interest()
        await self.cluster.begin(ports)
        self.cluster.take_in()
        for spec in self._config.stream_specs():
            known = self.table.streams.get(spec.name)
            if known is None or known.spec != spec:
                await self.put(spec, create=False)
        self.reconcile()
        self._has_begun = True
        for shard in list(self.shards.values()):
            await self.served(shard.group)
        await self.served(self.sessions.group)
        await self.sessions.caught_up()
        broker = self._broker
        broker.wall_us = self._wall_us()
        broker.node = self.replicas.replica
        broker.find_record = lambda client_id: self.sessions.store.records.get(client_id)
        broker.router.find_intake = self.find_intake
        broker.router.forget_all()
        self._move_retained()
        self.sessions.begin(self._now_ms())
        self.cluster.run()
        self.writing.start()

    async def stop(self) -> None:
        """Take snapshots, so that the next start is quick, and let go of the files."""
        if not self.replicas.is_open:
            return
        await self.writing.stop()
        await self.edges.stop()
        await self.members.stop()
        await self.groups.stop()
        await self.work.stop()
        await self.leaderless.stop()
        await self.repairs.stop()
        await self.cluster.stop()
        await self._hand_over()
        if self._broker.journal.is_on:
            self._broker.checkpoint()
            self.sessions.cut()
        await asyncio.gather(*map(self._settled, self.replicas.groups.values()))
        await self.replicas.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _hand_over(self) -> None:
        """A planned stop makes nobody wait for an election: another replica leads before this one goes."""
        led = [g for g in self.replicas.groups.values() if g.is_leader and not g.is_alone]
        for group in led:
            group.transfer(None)
        for _ in range(_HAND_OVER_TRIES):
            if not any(group.is_leader for group in led):
                return
            await asyncio.sleep(0.01)

    async def served(self, group: ReplicationGroup) -> None:
        """Wait until somebody leads the group. Nodes that were all down come back one after the other: the
        first ones wait for the others as long as it takes, and say so."""
        while not group.serving.is_set():
            try:
                await asyncio.wait_for(group.serving.wait(), _PATIENCE_S)
            except TimeoutError:
                log.warning("waiting for a majority of the nodes that keep group %d", group.number)

    async def _serving(self, group: ReplicationGroup) -> None:
        try:
            await asyncio.wait_for(group.serving.wait(), _SERVING_TIMEOUT_S)
        except TimeoutError:
            raise StorageError(
                f"group {group.number} has no leader after {_SERVING_TIMEOUT_S:.0f} s: is a majority up?"
            ) from None

    async def _settled(self, group: ReplicationGroup) -> None:
        """Wait until everything proposed is applied, for a moment."""
        for _ in range(100):
            status = group.status()
            if status.applied == status.last or self.replicas.syncer.is_full or not group.is_serving:
                return
            await asyncio.sleep(0.01)

    def open_meta(self, voters: tuple[str, ...]) -> None:
        self.replicas.open(meta.META_GROUP, self._meta, voters)

    async def meta_serving(self) -> None:
        await self._serving(self.meta_group)

    @property
    def meta_group(self) -> ReplicationGroup:
        return self.replicas.groups[meta.META_GROUP]

    # ------------------------------------------------------------------------------- definitions

    def _state_groups(self) -> list[ReplicationGroup]:
        groups = self.replicas.groups
        return [groups[n] for n in (meta.META_GROUP, meta.SESSION_GROUP) if n in groups]

    @property
    def table(self) -> StreamTable:
        return self._meta.state.table

    async def put(self, spec: StreamSpec, *, create: bool) -> Stream:
        """Make or change a stream; LocalError says why not."""
        if spec.replication is Replication.PRIMARY_BACKUP:
            admit(spec.primary_backup)
        await self.command(PutStream(spec, create_only=create))
        stream = self.table.streams.get(spec.name)
        if stream is None:
            raise LocalError(f"stream {spec.name!r} was deleted as soon as it was there")
        for number in stream.shards:
            if number in self.shards:
                await self._serving(self.shards[number].group)
        return stream

    async def delete(self, name: str) -> None:
        await self.command(DeleteStream(name))

    @property
    def definitions(self) -> MetaState:
        """What the meta group agreed on."""
        return self._meta.state

    def meta_status(self) -> Status:
        return self.meta_group.status()

    async def command(self, entry: MetaEntry) -> meta.Result:
        """A change of what the meta group keeps; LocalError says why not."""
        answer: asyncio.Future[meta.Result] = asyncio.get_running_loop().create_future()
        group = self.meta_group
        block = opaque_block(Kind.CONTROL, META_ENTRIES.encode([entry]))
        if not group.propose([block], [answer], EntryKind.CONTROL):
            raise LocalError("the node cannot take changes right now; try again")
        try:
            result = await asyncio.wait_for(answer, _COMMAND_S)
        except TimeoutError:
            raise LocalError("no majority of the cluster answered; it may still happen") from None
        self.reconcile()
        if result.error is not None:
            raise LocalError(result.error)
        return result

    def _publish_sys(self, values: dict[str, str]) -> None:
        sys_topics.publish(self._broker, values, self._now_ms())
        self._wake()

    def _on_change(self, result: meta.Result) -> None:
        """Called while the meta group applies: what follows from it waits until it has."""
        self._pending.append(result)
        self.pairs.meta_changed()
        self.writing.on_change()
        if self._generation not in (0, self.definitions.generation):
            # Soon: until then what is published goes by the streams of before.
            asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        if self.replicas.is_open:
            self.reconcile()

    def reconcile(self) -> None:
        """Open, seal and remove groups as the definitions say."""
        if not self.definitions.members.cluster:
            return
        self.members.follow()
        wanted = self.definitions.shards()
        # Not with every entry of the meta group: finding all routes again each time the roles of a pair
        # change keeps a node busy for so long that they change again.
        changed = self._routing is not self.table
        if meta.SESSION_GROUP not in self.replicas.groups:
            self.sessions.group = self._open_group(meta.SESSION_GROUP, self.sessions)
        for number, stream in wanted.items():
            if number in self.leaderless.streams:
                continue
            # Also where nothing is captured any more: what was is still to be had.
            if number not in self.shards:
                changed = True
                shard = self._make_shard(number, stream)
                shard.retained.stamps = self._stamps
                shard.retained.routing_generation = lambda: self.definitions.generation
                if stream.is_leaderless(number):
                    is_open = self._open_leaderless(number, stream)
                else:
                    is_open = self._open_shard(number, shard)
                if not is_open:
                    # With the next review again.
                    if self._has_begun:
                        # Until then topics stay where they were. What was deleted makes room, and takes no
                        # more, as where its topics belong now may be what waits for it.
                        self._closed |= {n: self.shards[n] for n in self.shards.keys() - wanted.keys()}
                        for gone, one in self.leaderless.remove_but(wanted).items():
                            self._closed[gone] = self._make_shard(gone, one.files.stream)
                            self._closed[gone].intake = one.intake
                        self._arrive_again(self._remove_but(wanted))
                        return
                    self._closed[number] = shard
            else:
                self.shards[number].change(stream)
        for result in self._pending:
            for number in result.sealed:
                if number in self.shards:
                    self._seal(self.shards[number])
        self._pending.clear()
        changed = changed or not self.shards.keys() <= wanted.keys()
        unanswered = self._remove_but(wanted)
        for number in self._closed.keys() - wanted.keys():
            del self._closed[number]
            if self._emptied.pop(number, None) is not None:
                self.replicas.directory.remove_shard(number)
        changed = self.leaderless.reconcile(wanted) or changed
        self._routing = self.table
        self._hold_back()
        if changed:
            self._broker.router.forget_all()
        self._arrive_again(unanswered)
        if self._generation not in (0, self.definitions.generation):
            self._move_retained()

    def _remove_but(self, wanted: Mapping[int, Stream]) -> list[Arrival]:
        """The shards of streams that are gone; returns what nobody was answered for."""
        unanswered: list[Arrival] = []
        for number in [n for n in self.shards if n not in wanted]:
            shard = self.shards.pop(number)
            for topic in self._stamps.forget_log(number):
                self._broker.retained.drop(topic)
            self._broker.log_ends.pop(number, None)
            unanswered += shard.end()
            self.replicas.remove(number)
            log.info("shard %d of stream %s is gone", number, shard.stream.spec.name)
        return unanswered

    def _open_shard(self, number: int, shard: Shard) -> bool:
        shard.others, shard.unopened = self.shards, self._closed
        self.shards[number] = shard
        try:
            if number in self._closed:
                # Routes of before lead there, and so does what waits for its id to be written.
                shard.intake = self._closed[number].intake
                shard.unproposed = self._closed[number].unproposed
            if number in self._emptied:
                self.replicas.empty(number, *self._emptied[number])
            shard.group = self._open_group(number, shard)
            self.retention.set_share(shard)
        except DiskFull as error:
            del self.shards[number]
            self._find_no_room(number, error)
            return False
        self._is_cramped = False
        self._closed.pop(number, None)
        self._emptied.pop(number, None)
        self._broker.log_opened(number)
        return True

    def _open_leaderless(self, number: int, stream: Stream) -> bool:
        closed = self._closed.get(number)
        try:
            self.leaderless.open(number, stream, closed.intake if closed is not None else None)
        except DiskFull as error:
            self._find_no_room(number, error)
            return False
        self._is_cramped = False
        self._closed.pop(number, None)
        return True

    def _find_no_room(self, number: int, error: DiskFull) -> None:
        if not self._is_cramped:
            log.error("shard %d cannot be opened yet: %s", number, error)
        self._is_cramped = True

    def _hold_back(self) -> None:
        """Find which logs wait for older ones (PROTOCOLS.md 16): before a sealed log is complete here nothing
        is delivered from those opened since, as they may go on with the same topics."""
        outbound, now_ms = self._broker.outbound, self._now_ms()
        retired = [number for number, shard in self.shards.items() if shard.is_retired]
        outbound.sealed = {number: number for number in retired} | self.leaderless.retired_logs()
        unfinished = []
        for number in retired:
            shard = self.shards[number]
            if shard.is_finished:
                continue
            if shard.finish_by_ms is None:
                shard.finish_by_ms = now_ms + FINISH_MS
            if now_ms < shard.finish_by_ms:
                unfinished.append(number)
            elif number not in self._given_up:
                self._given_up.add(number)
                log.error(
                    "shard %d was not sealed in time: newer messages are delivered before its last", number
                )
        oldest = min(unfinished, default=None)
        outbound.held = set()
        if oldest is not None:
            outbound.held.update((n for n in self.shards if n > oldest), self.leaderless.logs_after(oldest))

    def _seal(self, shard: Shard) -> None:
        shard.seal(is_complete=not self.definitions.writers.waiting(shard.number))

    def _seal_again(self) -> None:
        """The word to seal may have been lost with a leader, or with a run of this program, or still wait for
        what was decided before."""
        for shard in self.shards.values():
            if shard.is_retired and not shard.is_finished:
                self._seal(shard)

    def _in_time(self, waiting: list[Intake]) -> list[Intake]:
        """Those whose messages may go on now. Others wait: for messages that came in before and are still on
        their way to a log that is sealed, as what it refuses goes first; where that log's leader was quicker,
        for the word which log comes after it; or for a leaderless log to be where they will be."""
        sealed = self.shards.keys() & self._broker.outbound.sealed.keys() - self._given_up
        pending = {number for number in sealed if self.shards[number].group.has_data_pending}
        spreading = self.leaderless.spreading()
        self._too_early = []
        in_time: list[Intake] = []
        for intake in waiting:
            shard = self.shards.get(intake.shard)
            if intake.is_sealed and shard is not None and not shard.is_retired:
                is_early = True
                if self._is_cramped:
                    arrivals, intake.arrivals = intake.arrivals, []
                    shard.refuse(arrivals, Reason.QUOTA_EXCEEDED)
                    continue
            elif intake.is_sealed:
                # All that it refuses in one go, in their order.
                is_early = intake.shard in pending or intake.shard in spreading
            else:
                # Also in an older log: a topic may fall back to the stream that it was taken from.
                is_early = bool(pending) or intake.shard in spreading
            (self._too_early if is_early else in_time).append(intake)
        return sorted(in_time, key=lambda intake: not intake.is_sealed)

    def _link_opened(self, peer: str) -> None:
        self.interest.link_opened(peer)
        self.leaderless.link_opened(peer)

    def _link_closed(self, peer: str) -> None:
        self.interest.link_closed(peer)
        self.leaderless.link_closed(peer)

    def _tick(self) -> None:
        self.interest.tick()
        self.leaderless.tick()
        if self._too_early:
            # What they wait for may be over with the time, or with a snapshot.
            self._wake()

    def when_shared(self, keys: list[str], then: Callable[[], None]) -> None:
        """Call back once every log that takes their messages knows that these groups have a member here."""
        self.leaderless.when_shared(keys, lambda: self.work.when_shared(keys, then))

    def _make_shard(self, number: int, stream: Stream) -> Shard:
        broker, now_ms, wall_us, wake = self._broker, self._now_ms, self._wall_us, self._wake
        if not stream.spec.is_framed or number not in stream.shards:
            return Shard(number, stream, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)
        return FrameShard(
            number,
            stream,
            broker,
            now_ms=now_ms,
            wall_us=wall_us,
            wake=wake,
            send=self.replicas.send_frame,
            is_full=lambda: self.is_refusing,
        )

    def _open_interest(self) -> None:
        links = self.replicas.links
        self.interest.open(self.replicas.replica, links, random=self._random, wall_us=self._wall_us)
        for peer in links.peers() if links is not None else ():
            self.interest.link_opened(peer)

    def _move_retained(self) -> None:
        """Streams changed: what is retained follows its topic into a log, or out of one (PROTOCOLS.md 17).
        One node writes it to the log: the one that took the message in, or the first of those left."""
        self._generation = self.definitions.generation
        members = self.definitions.members.members
        for topic, run, taken_by in self.interest.streams_changed():
            writer = taken_by if taken_by in members else min(members)
            stream = self.table.find(topic)
            if stream is not None and stream.spec.replication is Replication.LEADERLESS:
                # Every node has it already, and keeps it.
                if stream.shards[0] in self.leaderless.streams:
                    self.leaderless.streams[stream.shards[0]].inherit(topic)
            elif writer == self.replicas.replica and stream is not None:
                number = self.table.shard(stream, topic.encode())
                if number in self._closed:
                    self._closed[number].unproposed.append(CarriedOverRetained(topic, run))
                else:
                    self.shards[number].inherit(topic, run)

    def _open_group(self, number: int, app: Any) -> ReplicationGroup:
        """Founders begin a group together; others open it empty and are added by its leader."""
        assignment = self.definitions.members.assignments.get(number)
        founders = assignment.founders if assignment is not None else ()
        stream = self.definitions.shards().get(number)
        # A sealed shard stays what it was: its stream may be of another kind by now.
        if stream is not None and number in self.definitions.pairs.by_shard:
            mine = founders if self.replicas.replica in founders else ()
            return self.pairs.open(number, app, stream, mine)
        return self.replicas.open(number, app, founders if self.replicas.replica in founders else ())

    def reopen_empty(self, number: int, last_index: int, term: int) -> None:
        """Begin again with nothing in a shard whose history lost; `last_index` and `term` say what it had."""
        shard = self.shards.pop(number, None)
        if shard is None:
            return  # deleted meanwhile
        self._closed[number] = shard
        self._emptied[number] = last_index, term
        unanswered = shard.end()
        self.replicas.groups.pop(number).close()
        self._broker.log_ends[number] = 0
        self.reconcile()
        self._arrive_again(unanswered)

    def _arrive_again(self, unanswered: list[Arrival]) -> None:
        """What waited for a log that is gone."""
        if unanswered:
            self._broker.inbound.arrive_again(unanswered, self._now_ms())
            self._wake()

    def divide_labour(self) -> None:
        """Bring every shard's word on who delivers for shared groups up to date with what is, and say again
        what was lost."""
        self._seal_again()
        for shard in self.shards.values():
            shard.say_again()
        self.work.divide()

    def adopt_sessions(self, replica: str) -> None:
        self.sessions.adopt(replica, self._wall_us())

    # ------------------------------------------------------------------------------------ traffic

    def find_intake(self, topic: str) -> Intake | None:
        """The way into the log that keeps this topic, None where nothing keeps it."""
        table = self._routing
        stream = table.find(topic)
        if stream is None or not stream.spec.is_stored:
            return None
        number = table.shard(stream, topic.encode())
        if number in self._closed:
            return self._closed[number].intake
        return (self.leaderless.streams.get(number) or self.shards[number]).intake

    def cut(self) -> None:
        """Propose what arrived. Called once per turn of the loop."""
        broker = self._broker
        if broker.outbound.held:
            self._hold_back()
        waiting = broker.inbound.waiting
        if waiting or self._too_early or broker.journal.operations:
            self.sessions.cut()
            broker.inbound.waiting = []
            if broker.outbound.sealed or self._too_early or any(i.is_sealed for i in waiting):
                waiting = self._in_time([*self._too_early, *waiting])
            wall_us = self._wall_us()
            left = deque(waiting)
            try:
                while left:
                    self._cut_one(left.popleft(), wall_us)
            finally:
                # A fault in one log: the others' come again, as only the first arrival queues an intake.
                broker.inbound.waiting[:0] = left
            # At once: what is synced in place is committed, and answered, in this very turn.
            self.replicas.syncer.start()
        if self.reader.has_work:
            self.reader.serve_behind()
        self.work.check_divided()
        self.members.flush()
        self.interest.flush()

    def _cut_one(self, intake: Intake, wall_us: int) -> None:
        shard = self.shards.get(intake.shard)
        if shard is not None and not intake.is_sealed and shard.awaits_others():
            # A repeat is with them, and a log which may have it is not applied to its end.
            self._too_early.append(intake)
            return
        taker = self.leaderless.streams.get(intake.shard) or shard
        if taker is not None:
            taker.cut(wall_us, self.replicas.syncer.is_full or self._is_low)
            return
        arrivals, intake.arrivals = intake.arrivals, []
        if intake.shard in self._closed:
            self._closed[intake.shard].refuse(arrivals, Reason.QUOTA_EXCEEDED)
        else:
            # Its stream was deleted while they waited.
            self._broker.inbound.arrive_again(arrivals, self._now_ms())

    def check_space(self) -> None:
        """Refuse what would fill the disk to the last byte. Called about once a second."""
        if not self.replicas.is_open:
            return
        free = self.replicas.directory.free_bytes()
        floor = self._config.storage.free_bytes_min
        if not self._is_low and free < floor:
            self._is_low = True
            log.error("%d bytes free on disk, below %d: publishing to logs is refused", free, floor)
        elif self._is_low and free > floor + floor // 4:
            self._is_low = False
            log.warning("there is room on the disk again")

    def snapshot_some(self) -> None:
        """Bound what a restart would apply again."""
        for shard in self.shards.values():
            group = shard.group
            known = group.replica_log.snapshot()
            index, state_bytes = (0, 0) if known is None else (known.index, known.size_bytes)
            grown_bytes = group.replica_log.log.bytes_behind(index)
            is_long = group.applied - index >= _SNAPSHOT_EVERY_ENTRIES
            if grown_bytes > _SNAPSHOT_EVERY_BYTES or (
                is_long and grown_bytes > _SNAPSHOT_EVERY_STATES * state_bytes
            ):
                try:
                    group.snapshot_taken()
                except DiskFull as error:
                    log.warning("no snapshot of shard %d for now: %s", shard.number, error)

    # ------------------------------------------------------------------------------------- status

    @property
    def is_refusing(self) -> bool:
        return self._is_low or (self.replicas.is_open and self.replicas.syncer.is_full)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more leaves the disk above its floor, as it is at this moment."""
        free_bytes = self.replicas.directory.free_bytes()
        return not self.is_refusing and free_bytes - size_bytes >= self._config.storage.free_bytes_min

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "stream": shard.stream.spec.name,
                "shard": number,
                "first_offset": shard.first_offset,
                "next_offset": shard.next_offset,
                "bytes": shard.group.replica_log.log.size_bytes,
                "staged_bytes": shard.staging.state.size_bytes,
                "staged_attempts": len(shard.staging.state.attempts),
                "sealed": shard.intake.is_sealed,
                "role": shard.group.status().role,
                "term": shard.group.status().term,
            }
            for number, shard in sorted(self.shards.items())
        ] + self.leaderless.status()
