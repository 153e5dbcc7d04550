"""All replication groups of a node, the disk under them and the links between nodes that carry them.

The number of a frame names its group; what it holds is a message of the group's machine, or a block on its
way to the group's leader. Nothing here decides what is replicated where: see `cluster`.
"""

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from millrace.errors import StorageError
from millrace.node.config import Address, Config
from millrace.node.in_turns import InTurns
from millrace.node.logs.replica_log import ReplicaLog, write_damage
from millrace.node.logs.syncer import Syncer
from millrace.node.pairs.frame_messages import FrameMessage
from millrace.node.peers.links import Links
from millrace.node.peers.messages import ForwardedBlock, Identity, Relayed, SignOfLife
from millrace.node.peers.messenger import Messenger
from millrace.node.peers.registry import FRAME_MESSAGES, LOG_MESSAGES
from millrace.node.peers.relays import Relays
from millrace.node.peers.secret import secret_of
from millrace.node.replicas.app import App
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.surroundings import Surroundings
from millrace.node.tls import for_peers
from millrace.replication.contract import EntryKind, LinkClosed, LinkOpened, PeerBody, ReplicaId
from millrace.storage.block import Block
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DiskFull

log = logging.getLogger("millrace.replicas")

TICK_S = 0.05
_IDLE_TICK_S = 0.5
# So many terms and votes on their way to the disk leave time enough for an election.
_VOTES_WAITING_MAX = 16


class FrameApp(ABC):
    """An app whose nodes speak about messages that do not go through its log. A class and no protocol:
    whether an app is one is asked for every frame."""

    @abstractmethod
    def on_frame_message(self, sender: str, message: FrameMessage) -> None: ...

    @abstractmethod
    def tick(self) -> None: ...

    @abstractmethod
    def shown(self) -> dict[str, Any]: ...


class Replicas:
    def __init__(
        self,
        config: Config,
        random: Random,
        on_failure: Callable[[StorageError], None],
        surroundings: Surroundings,
    ) -> None:
        self._config = config
        self._random = random
        self._on_failure = on_failure
        self.disk = surroundings.make_disk()
        self._make_syncer = surroundings.make_syncer
        self._wall_us, self._running_us = surroundings.wall_us, surroundings.running_us
        self._log_settings = surroundings.log_settings
        self._rows_at_once, self._loading = surroundings.rows_at_once, surroundings.loading
        self._in_turns = InTurns(surroundings.pause_s)
        self.groups: dict[int, ReplicationGroup] = {}
        # Those to be ticked. A dict for its order, which is the same in every run.
        self._awake: dict[ReplicationGroup, None] = {}
        self.directory: DataDirectory
        self.syncer: Syncer
        self.replica: ReplicaId
        self.messenger = Messenger()
        self.messenger.on(LOG_MESSAGES.values(), self._on_group_message)
        self.messenger.on((ForwardedBlock,), self._on_forwarded)
        self.messenger.on(FRAME_MESSAGES.values(), self._on_frame_message)
        # Who this node is to others; set by the cluster once it knows.
        self.cluster_id = ""
        # Whether other nodes have what this one may have lost.
        self.has_peers = False
        self.why_not_linked: Callable[[Identity], str] = _nobody_is_refused
        self.on_link_open: Callable[[str], None] = _no_peer
        self.on_link_closed: Callable[[str], None] = _no_peer
        # Returns whether it wants the next one soon.
        self.on_tick: Callable[[], bool] = _nobody_waits
        # The last write is done, and the directory is still this node's.
        self.before_close: Callable[[], None] = _nothing
        # Write what the clients of this node wait for. Set by the node.
        self.flush_clients: Callable[[], None] = _nothing
        # How to close what is removed as soon as nothing of it is on its way to the disk.
        self._leaving: dict[int, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Time matters to nobody here: ticks come seldom.
        self._is_idle = False
        self.is_open = False

    # ----------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        owner = f"process {os.getpid()}, node {self._config.node.id}"
        # Before anybody waits for the loop.
        path = os.path.abspath(self._config.node.data)  # noqa: ASYNC240
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.directory = DataDirectory.open(self.disk, path, owner=owner, fresh=self._random.randbytes(24))
        self.replica = ReplicaId(self.directory.identity.hex())
        storage = self._config.storage
        self.syncer = self._make_syncer(
            loop, self._on_failure, in_place=storage.sync_in_place, sync_every_s=storage.sync_every_s
        )
        self.is_open = True
        address = self._config.listeners.peer
        if address is not None:
            links = self.messenger.links = Links(
                replica=self.replica,
                identity=self._identity,
                secret=secret_of(self._config.cluster),
                random=self._random,
                on_frame=self.messenger.receive,
                on_open=self._on_open,
                on_close=self._on_close,
                on_silence=self._on_silence,
                why_not=lambda identity: self.why_not_linked(identity),
                tls=for_peers(self._config.cluster),
            )
            links.after_frames = self._after_frames
            relays = links.relays = Relays(
                self.replica,
                links,
                receive=self.messenger.receive,
                on_open=self._groups_opened,
                on_close=self._groups_closed,
            )
            self.messenger.on((SignOfLife,), relays.on_sign)
            self.messenger.on((Relayed,), relays.on_relayed)
            self.syncer.before_sync = links.flush
            await links.listen(address)
        self._tick()

    async def stop(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if self.links is not None:
            await self.links.stop()
        self.syncer.close()
        for number in list(self._leaving):
            self._drop_files(number)
        # Whatever cannot be written any more: all of it is closed, and the directory is free.
        _finish(self.before_close, "the last records were not written")
        for group in self.groups.values():
            _finish(group.snapshot_taken, f"no snapshot of group {group.number}")
            _finish(group.close, f"group {group.number} was not closed cleanly")
        self.directory.close()

    def _tick(self) -> None:
        # As after a start with a thousand groups: who gave up and stood again would add to what waits.
        is_patient = self.syncer.votes_waiting > _VOTES_WAITING_MAX
        for group in list(self._awake):
            if not group.is_asleep and (group.is_leader or not is_patient):
                group.tick()
            if group.is_asleep or group.is_closed:
                del self._awake[group]
        is_awaited = self.on_tick()
        self._is_idle = not self._awake and not is_awaited
        self._tick_in(_IDLE_TICK_S if self._is_idle else TICK_S)

    def _tick_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    # -------------------------------------------------------------------------------------- groups

    def open(
        self,
        number: int,
        app: App,
        founders: tuple[str, ...],
        make: Callable[..., ReplicationGroup] = ReplicationGroup,
    ) -> ReplicationGroup:
        """Open a group from disk, or begin it with these voters; none for one that others will add us to."""
        voters = tuple(sorted(ReplicaId(founder) for founder in founders))
        replica_log = ReplicaLog(
            self.disk, self.directory, number, voters, has_peers=self.has_peers, settings=self._log_settings
        )
        try:
            group = make(
                *(number, self.replica, replica_log, app, self.syncer),
                # Another one each time: the numbers of an earlier run, or of the group before it began again
                # with nothing, mean something else.
                origin=self._random.getrandbits(63) | 1,
                wall_us=self._wall_us,
                running_us=self._running_us,
                rng=Random(self._random.getrandbits(64)),
                send=self._send,
                forward=self._forward,
            )
        except StorageError:
            replica_log.let_go()
            raise
        self.groups[number] = group
        group.snapshots.in_turns, group.snapshots.loading = self._in_turns, self._loading
        group.snapshots.rows_at_once = self._rows_at_once
        group.on_wake = self._woken
        self._woken(group)
        return group

    def _woken(self, group: ReplicationGroup) -> None:
        self._awake[group] = None
        if self._is_idle:
            self._is_idle = False
            self._tick_in(TICK_S)

    def open_log(self, number: int) -> ReplicaLog:
        """A log of which this node is not a voter: leaderless streams keep one for each origin."""
        return ReplicaLog(
            self.disk, self.directory, number, (), has_peers=self.has_peers, settings=self._log_settings
        )

    @property
    def is_synced(self) -> bool:
        """Whether what is written is on disk before anybody hears of it."""
        return self._config.storage.sync == "always"

    def exists(self, number: int) -> bool:
        """Whether this node has anything of the group on disk."""
        return number in self.directory.shards()

    def remove(self, number: int) -> None:
        """Close a group and drop its files, as soon as nothing of it is on its way to the disk."""
        group = self.groups.pop(number)
        self._leaving[number] = group.close
        group.stop_then(lambda: self._drop_files(number))

    def remove_log(self, number: int, replica_log: ReplicaLog) -> None:
        """The same for one without a group, which nobody writes any more."""
        self._leaving[number] = replica_log.close
        self.syncer.release(replica_log, lambda: self._drop_files(number))

    def _drop_files(self, number: int) -> None:
        try:
            with suppress(DiskFull):
                # What closing it would write goes anyway.
                self._leaving.pop(number)()
            self.directory.remove_shard(number)
        except StorageError as error:
            self.syncer.fail(error)

    def empty(self, number: int, last_index: int, term: int) -> None:
        """Drop the files of a closed group that will be opened again, and note what it held, which others
        must give it again. To be repeated after DiskFull."""
        # Before as well: without room for a note the files stay, and a restart finds again why they must go.
        write_damage(self.disk, self.directory, number, last_index, term)
        self.directory.remove_shard(number)
        write_damage(self.disk, self.directory, number, last_index, term)

    def _send(self, group: int, to: ReplicaId, body: PeerBody) -> None:
        self.messenger.send(to, body, group)

    def _forward(self, group: int, to: ReplicaId, kind: EntryKind, block: Block) -> bool:
        return self.messenger.send(to, ForwardedBlock(kind, block), group)

    # --------------------------------------------------------------------------------------- links

    @property
    def links(self) -> Links | None:
        """None at a node that does not listen for others."""
        return self.messenger.links

    @property
    def peer_address(self) -> str:
        """Where other nodes reach this one."""
        listening = self._config.listeners.peer
        if listening is None or self.links is None:
            return ""
        return str(self._config.cluster.advertise or Address(listening.host, self.links.port))

    def _identity(self) -> Identity:
        return Identity(
            replica=self.replica,
            name=self._config.node.id,
            cluster=self.cluster_id,
            peer_address=self.peer_address,
        )

    def _on_open(self, replica: str) -> None:
        self.on_link_open(replica)
        self._groups_opened(replica)

    def _groups_opened(self, replica: str) -> None:
        for group in list(self.groups.values()):
            group.step(LinkOpened(peer=ReplicaId(replica)))

    def _on_close(self, replica: str) -> None:
        self.on_link_closed(replica)
        if self.links is None or not self.links.is_heard(replica):
            # Dialing in vain is no news while the two hear each other through a third.
            self._groups_closed(replica)

    def _on_silence(self, replica: str) -> None:
        for group in list(self.groups.values()):
            group.fall_silent(ReplicaId(replica))

    def _groups_closed(self, replica: str) -> None:
        for group in list(self.groups.values()):
            group.step(LinkClosed(peer=ReplicaId(replica)))

    def _on_group_message(self, replica: str, number: int, body: PeerBody) -> None:
        group = self.groups.get(number)
        if group is not None:
            group.on_peer(ReplicaId(replica), body)

    def _on_forwarded(self, replica: str, number: int, forwarded: ForwardedBlock) -> None:
        group = self.groups.get(number)
        if group is not None:
            group.take(forwarded.block, forwarded.kind)

    def _on_frame_message(self, replica: str, number: int, message: FrameMessage) -> None:
        group = self.groups.get(number)
        if group is not None and isinstance(group.app, FrameApp):
            group.app.on_frame_message(replica, message)

    def _after_frames(self) -> None:
        """The end of what one read of a link brought: without another turn of the loop sync what a leader
        sent and answer it, and answer clients whose messages are committed. The word on what is committed
        leaves at the end of the turn; nobody's answer waits for it."""
        assert self.links is not None
        if self.syncer.start():
            self.links.flush()
        self.flush_clients()


def _finish(call: Callable[[], object], otherwise: str) -> None:
    try:
        call()
    except StorageError as error:
        log.error("%s: %s", otherwise, error)


def _nobody_waits() -> bool:
    return False


def _nothing() -> None:
    pass


def _no_peer(replica: str) -> None:
    pass


def _nobody_is_refused(identity: Identity) -> str:
    return ""
