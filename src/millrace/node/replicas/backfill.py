"""The beginning of a log that began from a snapshot is had from the other replicas [decision 153].

A replica with an empty disk begins from the newest snapshot where the beginning of the others' logs is gone.
The messages between their beginning and that snapshot are acknowledged and kept, and at some time all
replicas have been replaced once. So whoever begins behind the offset from which its log is kept asks the
others for the older blocks, backwards, piece by piece: each is put directly in front of what is there, so
that the log has no gap at any moment, and a start goes on from where it is.

One log at a time, and after each piece longer than it took nothing: clients write to the same disk.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from millrace.errors import LocalError
from millrace.node.replicas.repair import fetched, taken_along
from millrace.replication.contract import ReplicaId
from millrace.storage.block import Block

if TYPE_CHECKING:
    from millrace.node.replicas.replicas import Replicas
    from millrace.node.replicas.replication_group import ReplicationGroup

log = logging.getLogger("millrace.backfill")

_PIECE_BYTES = 4 << 20
_PIECE_BYTES_MAX = 2 * _PIECE_BYTES
# What is asked for first, as nothing is known of the size of the blocks.
_COUNT_FIRST = 16
# So much more or less is asked for next, where much came or nothing did.
_COUNT_STEP = 4
_PAUSE_S_MIN = 0.05
_PAUSE_SHARE = 3
# On a full disk, or where the log was let go meanwhile, there may be no end.
_WRITE_S_MAX = 60.0
# The others had nothing: they may be away, or know no more.
_REST_S = 10.0


class Backfill:
    def __init__(self, replicas: "Replicas", kept_from: Callable[[int], int | None]) -> None:
        """`kept_from`: the offset from which the log of this group is kept; None where it has no messages."""
        self._replicas = replicas
        self._kept_from = kept_from
        self._task: asyncio.Task[None] | None = None
        # By group: who gave the last piece, and until when nobody is asked.
        self._givers: dict[int, ReplicaId] = {}
        self._rests: dict[int, float] = {}
        # Of these nobody has more.
        self._given_up: set[int] = set()

    def tick(self) -> None:
        """Called about once a second."""
        if self._task is not None or not self._replicas.is_open:
            return
        now_s = asyncio.get_running_loop().time()
        for number, group in self._replicas.groups.items():
            if self._rests.get(number, now_s) <= now_s and self.is_behind(group):
                self._task = asyncio.get_running_loop().create_task(self._run(group))
                self._task.add_done_callback(self._ended)
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_behind(self, group: "ReplicationGroup") -> bool:
        """Whether messages of this log are kept that are not here."""
        if group.is_closed or group.is_alone or group.replica_log.log.has_failed:
            return False
        kept = self._kept_from(group.number)
        return kept is not None and kept < group.replica_log.log.first_offset

    def lacking(self) -> list[int]:
        """The groups of which messages are kept that are not here, and that others may have."""
        groups = self._replicas.groups.items()
        return sorted(n for n, group in groups if n not in self._given_up and self.is_behind(group))

    async def _run(self, group: "ReplicationGroup") -> None:
        replica_log = group.replica_log
        before = replica_log.log.first_offset
        if group.number not in self._given_up:
            log.info("group %d: the messages before %d are fetched", group.number, before)
        replica_log.is_filling = True
        try:
            await self._fill(group)
        finally:
            replica_log.is_filling = False
        self._rests[group.number] = asyncio.get_running_loop().time() + _REST_S
        if replica_log.log.first_offset != before:
            log.info("group %d: the log begins at offset %d now", group.number, replica_log.log.first_offset)

    async def _fill(self, group: "ReplicationGroup") -> None:
        loop, replica_log = asyncio.get_running_loop(), group.replica_log
        count = _COUNT_FIRST
        while self.is_behind(group):
            began_s, before = loop.time(), replica_log.first_index()
            blocks = await self._asked(group, max(1, before - count), before - 1)
            if blocks:
                self._given_up.discard(group.number)
                size = sum(block.header.block_bytes for block in blocks)
                replica_log.front = blocks
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WRITE_S_MAX):
                        await taken_along(self._replicas.syncer, group, size)
                count = max(1, min(count * _COUNT_STEP, _PIECE_BYTES * len(blocks) // size))
            else:
                count = max(1, count // _COUNT_STEP) if count > 1 else 0
            if count == 0:
                self._given_up.add(group.number)
            if count == 0 or (blocks and replica_log.first_index() >= before):
                break
            await asyncio.sleep(max(_PAUSE_S_MIN, _PAUSE_SHARE * (loop.time() - began_s)))

    async def _asked(self, group: "ReplicationGroup", first: int, last: int) -> list[Block]:
        """Blocks up to `last` from whoever has them, the kept ones among them; none where nobody does."""
        config, number = group.config, group.number
        others = [one for one in (*config.voters, *config.learners) if one != group.replica]
        messenger = self._replicas.messenger
        for replica in sorted(others, key=lambda one: one != self._givers.get(number)):
            try:
                blocks = await fetched(messenger, replica, number, first, last, _PIECE_BYTES_MAX)
            except (LocalError, ValueError) as error:
                log.debug("group %d: entries %d to %d: %s", number, first, last, error)
                continue
            if blocks[-1].header.index == last:
                self._givers[number] = replica
                kept = self._kept_from(number) or 0
                return [block for block in blocks if block.header.next_offset > kept] or blocks[-1:]
        return []
