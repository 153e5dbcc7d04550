"""Damage in a log that is found while the node runs is repaired from another replica.

At a start only what lies behind the last snapshot is read, and what is damaged there is cut off and
replicated again (`replica_log`). The rest is believed on the word of its index until somebody reads it. What
turns out to be damaged then is committed and applied, so the replicas that have it all have the same: the
blocks are asked of them, each of whoever has it, and those of one segment are put in the place of the
damaged ones by whoever writes the log. Readers wait for that, within a bound.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from millrace.errors import LocalError, StorageError
from millrace.node.logs.syncer import Job, Syncer
from millrace.node.peers.messages import FetchBlocks, FetchedBlocks
from millrace.node.peers.messenger import Messenger
from millrace.replication.contract import Persist, ReplicaId
from millrace.storage.block import Block, parse_block
from millrace.storage.scan import Damage
from millrace.types import Index

if TYPE_CHECKING:
    from millrace.node.replicas.replicas import Replicas
    from millrace.node.replicas.replication_group import ReplicationGroup

log = logging.getLogger("millrace.repair")

_ANSWER_BYTES_MAX = 1024 * 1024
_PAUSE_S = 1.0
# So often all other replicas are asked; then those who wait are told that it was in vain.
_ROUNDS_MAX = 60


class Repairs:
    def __init__(self, replicas: "Replicas") -> None:
        self._replicas = replicas
        self._running: dict[int, asyncio.Task[bool]] = {}

    def tick(self) -> None:
        """Called about once a second: also what nobody waits for is repaired."""
        for number, group in list(self._replicas.groups.items()):
            self._begin(number)
            if group.replica_log.is_snapshot_damaged:
                group.begin_snapshot()

    async def stop(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def repaired(self, number: int) -> bool:
        """Wait until what is known to be damaged in this log is whole again; False where that failed."""
        task = self._begin(number)
        if task is not None:
            return await asyncio.shield(task)
        group = self._replicas.groups.get(number)
        return group is not None and not group.replica_log.log.damages

    def _begin(self, number: int) -> "asyncio.Task[bool] | None":
        """The repair of this log, begun now if it is not under way; None where there is nobody to ask."""
        group = self._replicas.groups.get(number)
        if number in self._running or group is None or not self._replicas.is_open:
            return self._running.get(number)
        if not group.replica_log.log.damages or group.is_alone:
            return None
        task = asyncio.get_running_loop().create_task(self._repair(group))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number, None))
        return task

    async def _repair(self, group: "ReplicationGroup") -> bool:
        said: set[str] = set()
        for _ in range(_ROUNDS_MAX):
            damages = group.replica_log.log.damages
            if not damages:
                log.warning("group %d: what was damaged is whole again", group.number)
                return True
            # A segment that nobody can give again does not keep the others from it.
            for file in dict.fromkeys(damage.file for damage in damages):
                blocks = await self._found(group, [one for one in damages if one.file == file], said)
                if group.is_closed:
                    return False
                if blocks:
                    await self._put(group, blocks)
            if group.replica_log.log.damages == damages:
                await asyncio.sleep(_PAUSE_S)
        return False

    async def _found(self, group: "ReplicationGroup", damages: list[Damage], said: set[str]) -> list[Block]:
        """What is damaged in one segment, which is replaced together; each part from whoever has it. Nothing
        where a part is to be had from nobody."""
        config = group.status().config
        blocks: list[Block] = []
        for damage in damages:
            first, last = damage.first_index, damage.last_index
            got: list[Block] = []
            for replica in (*config.voters, *config.learners):
                if replica == group.replica or last > group.applied or got or group.is_closed:
                    continue
                try:
                    got = await fetched(self._replicas.messenger, replica, group.number, first, last)
                except (LocalError, ValueError) as error:
                    text = f"group {group.number}: entries {first} to {last}: {error}"
                    if text not in said:
                        said.add(text)
                        log.info("%s", text)
            if not got:
                return []
            blocks += got
        return blocks

    async def _put(self, group: "ReplicationGroup", blocks: list[Block]) -> None:
        group.replica_log.repairs = blocks
        await taken_along(self._replicas.syncer, group)

    def on_fetch(self, replica: str, request: FetchBlocks) -> FetchedBlocks:
        """Another replica lost these entries."""
        group = self._replicas.groups.get(request.group)
        first, last = Index(request.first), Index(request.last)
        if group is None or group.is_closed or group.applied < last:
            raise LocalError("they are not applied here")
        if first < group.replica_log.first_index():
            raise LocalError("they are gone here")
        try:
            blocks = group.replica_log.blocks(first, last, _ANSWER_BYTES_MAX)
        except StorageError as error:
            raise LocalError(str(error)) from None
        return FetchedBlocks(tuple(block.to_bytes() for block in blocks))


async def fetched(
    messenger: Messenger, replica: ReplicaId, number: int, first: int, last: int, bytes_max: int | None = None
) -> list[Block]:
    """These blocks from that replica; what comes after `bytes_max` is left off."""
    blocks: list[Block] = []
    size = 0
    while first <= last and (bytes_max is None or size < bytes_max):
        answer = await messenger.request(replica, FetchBlocks(number, first, last), FetchedBlocks)
        for data in answer.blocks:
            block = parse_block(data)
            if block.header.index != first:
                raise LocalError(f"{replica} gave entry {block.header.index} in place of {first}")
            blocks.append(block)
            first += 1
            size += len(data)
        if not answer.blocks:
            raise LocalError(f"{replica} gave nothing")
    return blocks


async def taken_along(syncer: Syncer, group: "ReplicationGroup", size_bytes: int = 0) -> None:
    """A write of nothing, which takes along what was left at the log for it; returns when it is on disk."""
    done = asyncio.get_running_loop().create_future()

    def written(number: int) -> None:
        if not done.done():
            done.set_result(None)

    syncer.submit(Job(group.replica_log, Persist(number=0), [], written, snapshot_bytes=size_bytes))
    await done
