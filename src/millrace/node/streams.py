"""The streams of a node: the meta group that names them, their shards, and readers that are behind.

`find_intake` is how the router learns which log keeps a topic. `cut` is called once per turn of the loop and
proposes what arrived; `serve_behind` reads logs for sessions that could not take their messages when they
were committed. Definitions change only through the meta group's log, so every node comes to the same shards.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from millrace.broker import meta
from millrace.broker.intake import Intake
from millrace.broker.machine import Broker
from millrace.broker.stream import Capture, Stream, StreamSpec, StreamTable
from millrace.errors import LocalError, StorageError
from millrace.node.config import Config
from millrace.node.group import Group
from millrace.node.log_reader import LogReader
from millrace.node.replica_log import ReplicaLog
from millrace.node.session_group import SessionGroup
from millrace.node.shard import Shard
from millrace.node.syncer import Syncer
from millrace.replication.contract import EntryKind, PeerBody, ReplicaId
from millrace.storage.block import Block, Kind, opaque_block
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import Disk, SystemDisk

log = logging.getLogger("millrace.streams")

_META_GROUP = 0
_SESSION_GROUP = 1
_SERVING_TIMEOUT_S = 30.0
_READERS = 2
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

    def to_bytes(self) -> bytes:
        return self.state.to_bytes()

    def restore(self, state: bytes) -> None:
        self.state = meta.MetaState.from_bytes(state)


class Streams:
    def __init__(
        self,
        config: Config,
        broker: Broker,
        *,
        random: Random,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
        on_failure: Callable[[StorageError], None],
        disk: Disk | None = None,
    ) -> None:
        self._config = config
        self._broker = broker
        self._random = random
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._wake = wake
        self._on_failure = on_failure
        self._disk = disk or SystemDisk()
        self._meta = _MetaApp(self._on_change)
        self._pending: list[meta.Result] = []
        self.sessions = SessionGroup(broker, wake)
        self.shards: dict[int, Shard] = {}
        self._groups: dict[int, Group] = {}
        self._is_low = False
        self._is_open = False
        self._directory: DataDirectory
        self._syncer: Syncer
        self._replica: ReplicaId
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")
        self.reader = LogReader(broker, self.shards, self._pool, now_ms, wall_us, wake)

    # --------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the data directory and every log in it; returns once this node can take messages."""
        loop = asyncio.get_running_loop()
        owner = f"process {os.getpid()}, node {self._config.node.id}"
        path = os.path.abspath(self._config.node.data)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._directory = DataDirectory.open(self._disk, path, owner=owner, fresh=self._random.randbytes(24))
        self._replica = ReplicaId(self._directory.identity.hex())
        self._syncer = Syncer(
            loop,
            self._on_failure,
            in_place=self._config.storage.sync_in_place,
            sync=self._config.storage.sync == "always",
        )
        self._is_open = True
        group = self._open_group(_META_GROUP, self._meta)
        await self._serving(group)
        for spec in self._config.stream_specs():
            known = self.table.streams.get(spec.name)
            if known is None or known.spec != spec:
                await self.put(spec, create=False)
        self._reconcile()
        for shard in list(self.shards.values()):
            await self._serving(shard.group)
        self.sessions.group = self._open_group(_SESSION_GROUP, self.sessions)
        await self._serving(self.sessions.group)
        broker = self._broker
        broker.wall_us = self._wall_us()
        broker.find_record = lambda client_id: self.sessions.store.records.get(client_id)
        broker.router.find_intake = self.find_intake
        broker.router.forget_all()
        self.sessions.begin(self._now_ms())

    async def stop(self) -> None:
        """Take snapshots, so that the next start is quick, and let go of the files."""
        if not self._is_open:
            return
        self._is_open = False
        self._broker.checkpoint()
        self.sessions.cut()
        for group in self._groups.values():
            await self._settled(group)
        self._syncer.close()
        for group in self._groups.values():
            try:
                group.snapshot_taken()
                group.replica_log.close()
            except StorageError as error:
                log.error("group %d was not closed cleanly: %s", group.number, error)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._directory.close()

    async def _serving(self, group: Group) -> None:
        try:
            await asyncio.wait_for(group.serving.wait(), _SERVING_TIMEOUT_S)
        except TimeoutError:
            raise StorageError(
                f"group {group.number} did not come up in {_SERVING_TIMEOUT_S:.0f} s"
            ) from None

    async def _settled(self, group: Group) -> None:
        """Wait until everything proposed is applied, for a moment."""
        for _ in range(100):
            status = group.status()
            if status.applied == status.last or self._syncer.is_full:
                return
            await asyncio.sleep(0.01)

    def _open_group(self, number: int, app: Any) -> Group:
        replica_log = ReplicaLog(self._disk, self._directory, number)
        group = Group(
            number,
            self._replica,
            replica_log,
            app,
            self._syncer,
            voters=(self._replica,),
            rng=Random(self._random.getrandbits(64)),
            send=_send_nowhere,
            on_lost=getattr(app, "lost", _forget),
        )
        self._groups[number] = group
        return group

    # ------------------------------------------------------------------------------- definitions

    @property
    def table(self) -> StreamTable:
        return self._meta.state.table

    async def put(self, spec: StreamSpec, *, create: bool) -> Stream:
        """Make or change a stream; LocalError says why not."""
        await self._command(meta.put_stream(spec, create=create))
        stream = self.table.streams[spec.name]
        for number in stream.shards:
            if number in self.shards:
                await self._serving(self.shards[number].group)
        return stream

    async def delete(self, name: str) -> None:
        await self._command(meta.delete_stream(name))

    async def _command(self, command: bytes) -> meta.Result:
        answer: asyncio.Future[meta.Result] = asyncio.get_running_loop().create_future()
        group = self._groups[_META_GROUP]
        if not group.propose([opaque_block(Kind.CONTROL, command)], [answer], EntryKind.CONTROL):
            raise LocalError("the node cannot take changes right now; try again")
        result = await answer
        self._reconcile()
        if result.error is not None:
            raise LocalError(result.error)
        return result

    def _on_change(self, result: meta.Result) -> None:
        """Called while the meta group applies: what follows from it waits until it has."""
        self._pending.append(result)

    def _reconcile(self) -> None:
        """Open, seal and remove shards as the definitions say."""
        wanted = self._meta.state.shards()
        for number, stream in wanted.items():
            if number not in self.shards and stream.spec.capture is not Capture.NONE:
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
            shard = self.shards.pop(number)
            self._broker.log_ends.pop(number, None)
            group = self._groups.pop(number)
            group.replica_log.close()
            self._directory.remove_shard(number)
            log.info("shard %d of stream %s is gone", number, shard.stream.spec.name)
        self._broker.router.forget_all()

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
                self.shards[intake.shard].cut(wall_us, self._syncer.is_full or self._is_low)
            # At once: what is synced in place is committed, and answered, in this very turn.
            self._syncer.start()
        if self._broker.outbound.behind:
            self.reader.serve_behind()

    def check_space(self) -> None:
        """Refuse what would fill the disk to the last byte. Called about once a second."""
        if not self._is_open:
            return
        free = self._directory.free_bytes()
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
        return self._is_low or (self._is_open and self._syncer.is_full)

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


def _send_nowhere(group: int, replica: ReplicaId, body: PeerBody) -> None:
    raise AssertionError("a group of one has nobody to send to")


def _forget(token: Any) -> None:
    if isinstance(token, asyncio.Future) and not token.done():
        token.set_exception(LocalError("the change was lost to another leader; try again"))
