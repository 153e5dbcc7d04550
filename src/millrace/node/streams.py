"""The streams of a node: the meta group that names them, their shards, and readers that are behind.

`find_intake` is how the router learns which log keeps a topic. `cut` is called once per turn of the loop and
proposes what arrived; `serve_behind` reads logs for sessions that could not take their messages when they
were committed. Definitions change only through the meta group's log, so every node comes to the same shards.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

from millrace.broker import meta
from millrace.broker.intake import Intake
from millrace.broker.machine import Broker
from millrace.broker.meta import MetaState
from millrace.broker.stream import Capture, Stream, StreamSpec, StreamTable
from millrace.errors import LocalError, StorageError
from millrace.node.cluster import Cluster
from millrace.node.config import Config
from millrace.node.edge import EdgeFunctions
from millrace.node.edge_streams import EdgeStreams
from millrace.node.group import Group
from millrace.node.group_members import GroupMembers
from millrace.node.groups import Groups
from millrace.node.interest import Interest
from millrace.node.log_reader import LogReader
from millrace.node.reading import Reading
from millrace.node.replicas import Replicas
from millrace.node.retention import Retention
from millrace.node.session_group import SessionGroup
from millrace.node.shard import Shard
from millrace.node.surroundings import Surroundings
from millrace.replication.contract import EntryKind, Status
from millrace.storage.block import Block, Kind, opaque_block
from millrace.types import Reason

log = logging.getLogger("millrace.streams")

_SERVING_TIMEOUT_S = 30.0
_COMMAND_S = 10.0
_HAND_OVER_TRIES = 50
# A shard writes its state as a snapshot after so much log, which bounds what a restart applies again.
_SNAPSHOT_EVERY_BYTES = 256 * 1024 * 1024


class _MetaApp:
    """Implements `App` for the meta group."""

    def __init__(self, changed: Callable[[meta.Result], None]) -> None:
        self.state = meta.MetaState()
        self._changed = changed

    def apply(self, block: Block, token: Any) -> None:
        result = self.state.apply(block.payload())
        self._changed(result)
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(result)

    def begin_term(self) -> None:
        """Nothing depends on who leads."""

    def admit(self, block: Block) -> Block:
        return block

    def to_bytes(self) -> bytes:
        return self.state.to_bytes()

    def restore(self, state: bytes) -> None:
        self.state = meta.MetaState.from_bytes(state)

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
        self.interest = Interest(broker, self.replicas, now_ms, wake)
        self._meta = _MetaApp(self._on_change)
        self._pending: list[meta.Result] = []
        self._divided: list[tuple[list[str], Callable[[], None]]] = []
        self.sessions = SessionGroup(broker, now_ms, wake)
        self.shards: dict[int, Shard] = {}
        self._is_low = False
        self._pool = surroundings.make_readers()
        self.reader = LogReader(broker, self.shards, self._pool, now_ms, wall_us, wake)
        self.reading = Reading(self._pool)
        self.retention = Retention(self.shards, wall_us)
        self.groups = Groups(self, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)
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
        await self.cluster.begin(ports)
        for spec in self._config.stream_specs():
            known = self.table.streams.get(spec.name)
            if known is None or known.spec != spec:
                await self.put(spec, create=False)
        self.reconcile()
        for shard in list(self.shards.values()):
            await self._serving(shard.group)
        await self._serving(self.sessions.group)
        try:
            await asyncio.wait_for(self.sessions.caught_up(), _SERVING_TIMEOUT_S)
        except TimeoutError:
            raise StorageError("the sessions could not be read: is a majority up?") from None
        broker = self._broker
        broker.wall_us = self._wall_us()
        broker.node = self.replicas.replica
        broker.find_record = lambda client_id: self.sessions.store.records.get(client_id)
        broker.router.find_intake = self.find_intake
        broker.router.forget_all()
        self.sessions.begin(self._now_ms())
        self.cluster.run()

    async def stop(self) -> None:
        """Take snapshots, so that the next start is quick, and let go of the files."""
        if not self.replicas.is_open:
            return
        await self.edges.stop()
        await self.members.stop()
        await self.groups.stop()
        await self.cluster.stop()
        await self._hand_over()
        if self._broker.journal.is_on:
            self._broker.checkpoint()
            self.sessions.cut()
        for group in self.replicas.groups.values():
            await self._settled(group)
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

    async def _serving(self, group: Group) -> None:
        try:
            await asyncio.wait_for(group.serving.wait(), _SERVING_TIMEOUT_S)
        except TimeoutError:
            raise StorageError(
                f"group {group.number} has no leader after {_SERVING_TIMEOUT_S:.0f} s: is a majority up?"
            ) from None

    async def _settled(self, group: Group) -> None:
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
    def meta_group(self) -> Group:
        return self.replicas.groups[meta.META_GROUP]

    # ------------------------------------------------------------------------------- definitions

    @property
    def table(self) -> StreamTable:
        return self._meta.state.table

    async def put(self, spec: StreamSpec, *, create: bool) -> Stream:
        """Make or change a stream; LocalError says why not."""
        await self.command(meta.put_stream(spec, create=create))
        stream = self.table.streams[spec.name]
        for number in stream.shards:
            if number in self.shards:
                await self._serving(self.shards[number].group)
        return stream

    async def delete(self, name: str) -> None:
        await self.command(meta.delete_stream(name))

    @property
    def definitions(self) -> MetaState:
        """What the meta group agreed on."""
        return self._meta.state

    def meta_status(self) -> Status:
        return self.meta_group.status()

    async def command(self, command: bytes) -> meta.Result:
        """A change of what the meta group keeps; LocalError says why not."""
        answer: asyncio.Future[meta.Result] = asyncio.get_running_loop().create_future()
        group = self.meta_group
        if not group.propose([opaque_block(Kind.CONTROL, command)], [answer], EntryKind.CONTROL):
            raise LocalError("the node cannot take changes right now; try again")
        try:
            result = await asyncio.wait_for(answer, _COMMAND_S)
        except TimeoutError:
            raise LocalError("no majority of the cluster answered; it may still happen") from None
        self.reconcile()
        if result.error is not None:
            raise LocalError(result.error)
        return result

    def _on_change(self, result: meta.Result) -> None:
        """Called while the meta group applies: what follows from it waits until it has."""
        self._pending.append(result)

    def reconcile(self) -> None:
        """Open, seal and remove groups as the definitions say."""
        if not self.definitions.members.cluster:
            return
        self.members.follow()
        wanted = self.definitions.shards()
        changed = bool(self._pending)
        if meta.SESSION_GROUP not in self.replicas.groups:
            self.sessions.group = self._open_group(meta.SESSION_GROUP, self.sessions)
        for number, stream in wanted.items():
            if number not in self.shards and stream.spec.capture is not Capture.NONE:
                changed = True
                shard = Shard(
                    number, stream, self._broker, now_ms=self._now_ms, wall_us=self._wall_us, wake=self._wake
                )
                self.shards[number] = shard
                shard.group = self._open_group(number, shard)
                self._broker.log_ends.setdefault(number, 0)
            elif number in self.shards:
                self.shards[number].change(stream)
        for result in self._pending:
            for number in result.sealed:
                if number in self.shards:
                    self.shards[number].seal()
        self._pending.clear()
        for number in [n for n in self.shards if n not in wanted]:
            changed = True
            shard = self.shards.pop(number)
            self._broker.log_ends.pop(number, None)
            shard.consumers.close()
            self.replicas.remove(number)
            log.info("shard %d of stream %s is gone", number, shard.stream.spec.name)
        if changed:
            self._broker.router.forget_all()

    def _open_group(self, number: int, app: Any) -> Group:
        """Founders begin a group together; others open it empty and are added by its leader."""
        assignment = self.definitions.members.assignments.get(number)
        founders = assignment.founders if assignment is not None else ()
        return self.replicas.open(number, app, founders if self.replicas.replica in founders else ())

    def divide_labour(self) -> None:
        """Bring every shard's word on who delivers for shared groups up to date with what is."""
        members = self.definitions.members.members
        node = self.replicas.replica
        if len(members) > 1:
            self._broker.outbound.is_ours = self._is_ours
        elif not any(shard.labour.groups() for shard in self.shards.values()):
            self._broker.outbound.is_ours = None
            return
        for shard in self.shards.values():
            if shard.intake.is_sealed:
                continue
            for key in dict.fromkeys((*self._broker.groups, *shard.labour.groups())):
                group = self._broker.groups.get(key)
                now = (group.connected, True) if group is not None else (0, False)
                if shard.labour.known(key, node) != now and shard.said.get(key) != now:
                    shard.said[key] = now
                    shard.say_labour(key, node, *now)
                elif shard.labour.known(key, node) == now:
                    shard.said.pop(key, None)
            if shard.group.is_leader:
                for gone in sorted(shard.labour.nodes() - set(members) | self.cluster.unreachable()):
                    for key in shard.labour.groups():
                        if shard.labour.known(key, gone) != (0, False):
                            shard.say_labour(key, gone, 0, False)

    def _is_ours(self, group: str, shard: int, offset: int) -> bool:
        return self.shards[shard].labour.owner(group, offset) == self.replicas.replica

    def when_shared(self, keys: list[str], then: Callable[[], None]) -> None:
        """Call back once every open log knows that these groups have a member here."""
        self.divide_labour()
        self._divided.append((keys, then))
        self._check_divided()

    def _check_divided(self) -> None:
        is_divided = self._broker.outbound.is_ours is not None
        waiting, self._divided = self._divided, []
        for keys, then in waiting:
            if is_divided and not all(map(self._is_known, keys)):
                self._divided.append((keys, then))
            else:
                then()
                self._wake()

    def _is_known(self, key: str) -> bool:
        node = self.replicas.replica
        open_shards = [shard for shard in self.shards.values() if not shard.intake.is_sealed]
        return all(shard.labour.known(key, node)[1] for shard in open_shards)

    def adopt_sessions(self, replica: str) -> None:
        self.sessions.adopt(replica, self._wall_us())

    def taken_elsewhere(self, client_id: str) -> None:
        """The client connected at another node with a clean session."""
        session = self._broker.sessions.get(client_id)
        if session is not None and session.connection is not None:
            session.connection.fail(Reason.SESSION_TAKEN_OVER, "the client connected at another node")

    # ------------------------------------------------------------------------------------ traffic

    def find_intake(self, topic: str) -> Intake | None:
        """The way into the log that keeps this topic, None where nothing keeps it."""
        table = self.table
        stream = table.find(topic)
        if stream is None or stream.spec.capture is Capture.NONE:
            return None
        return self.shards[table.shard(stream, topic.encode())].intake

    def cut(self) -> None:
        """Propose what arrived. Called once per turn of the loop."""
        broker = self._broker
        waiting = broker.inbound.waiting
        if waiting or broker.journal.operations:
            self.sessions.cut()
            broker.inbound.waiting = []
            wall_us = self._wall_us()
            for intake in waiting:
                self.shards[intake.shard].cut(wall_us, self.replicas.syncer.is_full or self._is_low)
            # At once: what is synced in place is committed, and answered, in this very turn.
            self.replicas.syncer.start()
        if self.reader.has_work:
            self.reader.serve_behind()
        if self._divided:
            self._check_divided()
        self.members.flush()
        self.interest.flush()

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
            log_bytes = shard.group.replica_log.log.size_bytes
            if log_bytes - shard.snapshot_log_bytes > _SNAPSHOT_EVERY_BYTES:
                shard.snapshot_log_bytes = log_bytes
                shard.group.snapshot_taken()

    # ------------------------------------------------------------------------------------- status

    @property
    def is_refusing(self) -> bool:
        return self._is_low or (self.replicas.is_open and self.replicas.syncer.is_full)

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "stream": shard.stream.spec.name,
                "shard": number,
                "first_offset": shard.first_offset,
                "next_offset": shard.next_offset,
                "bytes": shard.group.replica_log.log.size_bytes,
                "sealed": shard.intake.is_sealed,
                "role": shard.group.status().role,
                "term": shard.group.status().term,
            }
            for number, shard in sorted(self.shards.items())
        ]
