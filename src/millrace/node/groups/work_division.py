"""Shared groups on logged streams: who delivers what, how far each node is, and what others left undone.

The replicated part is `broker/groups/work_division.py`, in every shard. Here one node does its part: it says
how many members it has (`divide`), tells how far they are (a few times a second, where something changed),
and works through its *backlog*: ranges of a log that are this node's to deliver and were not, because
another node was lost or has no members any more, because this one was restarted, or because its members
could not take them when they were committed. While a group has a backlog in a shard, what is committed there
joins its end, so that order holds.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from millrace.broker.entries.shard import Members
from millrace.broker.groups.group_work import GroupWork
from millrace.broker.groups.share_group import ShareGroup
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Segment
from millrace.broker.shards.block_facts import edge_inputs
from millrace.broker.topics.filters import matches
from millrace.errors import StorageError
from millrace.node.cluster.silence import Silence
from millrace.node.logs.reading import Reading
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.shards.fan_out import row_run
from millrace.node.shards.shard import Shard
from millrace.node.streams.definitions import Definitions
from millrace.storage.block import Block, Kind
from millrace.storage.log import Trimmed
from millrace.storage.scan import RangeDamaged
from millrace.version import Feature

log = logging.getLogger("millrace.work")

_FEED_PAUSE_S = 0.02


class NodeWorkDivision:
    """The shared groups of a node, over all its shards."""

    def __init__(
        self,
        definitions: Definitions,
        shards: Mapping[int, Shard],
        reading: Reading,
        sessions: SessionGroup,
        silence: Silence,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._definitions = definitions
        self._shards = shards
        self._reading = reading
        self._sessions = sessions
        self._silence = silence
        self._broker = broker
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._wake = wake
        self._divided: list[tuple[list[str], Callable[[], None]]] = []
        self._feeding: asyncio.Task[None] | None = None
        broker.outbound.group_work = self

    @property
    def node(self) -> str:
        return self._broker.node

    def find(self, number: int) -> GroupWork | None:
        """What this node has to deliver of one of its logs, as the broker asks for it."""
        shard = self._shards.get(number)
        return None if shard is None else shard.work.pending

    # -------------------------------------------------------------------------------------- divide

    def divide(self) -> None:
        """Bring every shard's word on who delivers for shared groups up to date with what is."""
        members = set(self._definitions.state.members.members)
        shards = list(self._shards.values())
        pieces = self._open_pieces()
        for shard in shards:
            self._divide_shard(shard, members, pieces.get(shard.number, {}))
        if self._feeding is None and any(shard.work.backlog for shard in shards):
            self._feeding = asyncio.get_running_loop().create_task(self._feed())

    def _divide_shard(
        self, shard: Shard, members: set[str], pieces: dict[str, list[tuple[int, int]]]
    ) -> None:
        work, work_division, node = shard.work, shard.work_division, self._broker.node
        if not shard.group.is_serving:
            return
        known_keys = work_division.groups()
        keys = (
            known_keys if shard.intake.is_sealed else list(dict.fromkeys((*self._broker.groups, *known_keys)))
        )
        if not work.is_begun:
            if keys:
                work.begin()
            return
        told: list[Members] = []
        for key in keys:
            group = self._broker.groups.get(key)
            now = (group.connected, True) if group is not None else (0, False)
            is_owed = (
                pieces.get(key) or work.backlog.get(key) or work_division.is_owed(key, shard.next_offset)
            )
            if shard.is_finished and not is_owed and self._is_passed_on(key):
                now = (0, False)
            known = work_division.known(key, node)
            is_another = group is not None and known != (0, False) and not work.is_kept(key)
            if is_another:
                now = (0, False)
            is_over = (
                group is None
                and shard.group.is_leader
                and work_division.is_over(key, self._wall_us())
                and not self._is_held(key)
            )
            if known == now and not is_over:
                work.proposed.pop(key, None)
                continue
            is_gone = not is_over and (is_another or group is None) and self._is_held(key)
            if work.proposed.get(key) != now:
                is_held = known == (0, False) and self._is_taken_over(shard, key)
                told.append(Members(key, node, *now, is_gone=is_gone, is_held=is_held))
        if shard.group.is_leader:
            for gone in sorted(work_division.nodes() - members | self._silence.unreachable()):
                told += [
                    Members(key, gone, 0, False, is_gone=True)
                    for key in work_division.groups()
                    if work_division.known(key, gone) != (0, False)
                ]
        work.tell(told, work.progress(pieces))

    def _is_passed_on(self, key: str) -> bool:
        """Whether every open log knows the group; until then they learn of it from the sealed ones."""
        shards = self._shards.values()
        return all(shard.work_division.knows(key) for shard in shards if not shard.intake.is_sealed)

    def _is_taken_over(self, shard: Shard, key: str) -> bool:
        """Whether sessions had the group while no node did: nothing that waits for it is too old. The word
        may itself wait for another leader, in whose time it is later: said also where nothing waits yet."""
        group = self._broker.groups.get(key)
        if group is None or not self._definitions.state.members.understand(Feature.HELD_GROUPS):
            return False
        return group.collects or (shard.work_division.is_waiting(key) and self._is_held(key))

    def _is_held(self, key: str) -> bool:
        """Whether a session holds the group, at whichever node it is."""
        records = self._sessions.store.records.values()
        return any(key in record.subscriptions for record in records)

    def _open_pieces(self) -> dict[int, dict[str, list[tuple[int, int]]]]:
        """What members here were given, or have waiting, and did not acknowledge: shard -> group -> offsets.

        QoS 2 that stands in the record of a session stays with that session, wherever it goes; until the
        record is committed it is as good as not sent."""
        found: dict[int, dict[str, list[tuple[int, int]]]] = {}

        def note(group: ShareGroup, segment: Segment) -> None:
            shard = segment.run.shard
            if shard:
                pieces = found.setdefault(shard, {}).setdefault(group.key, [])
                pieces.append((segment.offset, segment.offset + segment.count))

        for group in self._broker.groups.values():
            for segment in group.queue:
                note(group, segment)
            for session in group.members:
                for held in (session.inflight, session.resending, session.queue):
                    for segment in held or ():
                        if segment.group is group and not segment.is_noted:
                            note(group, segment)
        return found

    def when_shared(self, keys: list[str], then: Callable[[], None]) -> None:
        """Call back once every log that takes their messages knows that these groups have a member here."""
        self._divided.append((keys, then))
        self.check_divided()

    def check_divided(self) -> None:
        if not self._divided:
            return
        self.divide()
        waiting, self._divided = self._divided, []
        for keys, then in waiting:
            if not all(map(self._is_known, keys)):
                self._divided.append((keys, then))
            else:
                then()
                self._wake()

    def _is_known(self, key: str) -> bool:
        group = self._broker.groups.get(key)
        if group is None:
            # A group made by command, whose cursor is the same for all, or one that is gone already.
            return True
        node, shards = self._broker.node, self._shards
        numbers = self._definitions.table.open_shards_for(group.filter) & shards.keys()
        matching = [shards[number] for number in sorted(numbers)]
        return all(
            shard.intake.is_sealed or (shard.work.is_begun and shard.work_division.known(key, node)[1])
            for shard in matching
        )

    # ---------------------------------------------------------------------------------------- feed

    async def _feed(self) -> None:
        try:
            while await self._feed_some():  # noqa: ASYNC110  a pace, not a wait
                await asyncio.sleep(_FEED_PAUSE_S)
        finally:
            self._feeding = None

    async def _feed_some(self) -> bool:
        """Give members what waits for them; whether there is more."""
        is_more = False
        for shard in list(self._shards.values()):
            for key in list(shard.work.backlog):
                group = self._broker.groups.get(key)
                if group is None or not group.connected:
                    continue
                is_more = True
                try:
                    await self._feed_group(shard, key)
                except StorageError as error:
                    log.error("shard %d cannot be read for %s: %s", shard.number, key, error)
                    return False
        return is_more

    async def _feed_group(self, shard: Shard, key: str) -> None:
        backlog = shard.work.backlog.get(key)
        while backlog:
            first, end, by = backlog[0]
            group = self._broker.groups.get(key)
            if group is None or group.room <= 0:
                return
            if first >= end:
                backlog.popleft()
                continue
            blocks: list[Block] = []
            missing_to = None
            try:
                blocks = await self._reading.blocks(shard, first, None)
            except Trimmed as error:
                missing_to = int(error.first_offset)
            except RangeDamaged as error:
                missing_to = max(int(error.damage.next_offset), first + 1)
            if shard.work.backlog.get(key) is not backlog or not backlog or backlog[0][::2] != (first, by):
                # Released, or begun anew, while the disk was read.
                backlog = shard.work.backlog.get(key)
                continue
            # What was committed meanwhile may have joined the range.
            end = backlog[0][1]
            if missing_to is not None:
                backlog[0] = (min(end, missing_to), end, by)
                continue
            at = self._give(shard, group, blocks, first, end, by)
            if at == first:
                return
            backlog[0] = (at, backlog[0][1], by)
        shard.work.backlog.pop(key, None)
        self._wake()

    def _give(
        self, shard: Shard, group: ShareGroup, blocks: list[Block], first: int, end: int, by: str
    ) -> int:
        """Hand out what these blocks hold of a range, as long as there is room; where to go on."""
        now_ms, wall_us = self._now_ms(), self._wall_us()
        at, room = first, group.room
        for block in blocks:
            header = block.header
            if header.kind is not Kind.DATA or header.next_offset <= at:
                continue
            wanted = [matches(group.filter, topic.decode()) for topic in block.topics()]
            if True in wanted:
                columns = block.columns()
                inputs = edge_inputs(columns) if shard.edge else []
                for row in range(max(0, at - header.base_offset), header.count):
                    offset = header.base_offset + row
                    if offset >= end or room <= 0:
                        self._wake()
                        return offset
                    at = offset + 1
                    if not wanted[columns.topic_ids[row]] or not shard.work_division.is_of(
                        group.key, offset, by
                    ):
                        continue
                    if any(low <= row < high for low, high in inputs):
                        continue
                    run = row_run(block, row, now_ms, wall_us)
                    if run.qos and (run.expires_ms is None or run.expires_ms > now_ms):
                        run.shard, run.offset = shard.number, offset
                        room -= 1
                        self._broker.outbound.share_out(group, run, now_ms)
            at = min(header.next_offset, end)
            if at >= end:
                break
        self._wake()
        return at

    async def stop(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.gather(self._feeding, return_exceptions=True)
