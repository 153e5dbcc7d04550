"""Staged publishing of a whole node: decisions through the coordinator, and rolling them forward.

The coordinator is a part of the meta group, which every node keeps. So the leader of a shard sees a decision
by itself and needs nobody to tell it: it releases the winners' blocks, settles the batch in the shard's log
and reports that to the coordinator. A leader that dies half way is followed by one that sees the decision too
and goes on; blocks that both proposed are stored once. What lost is dropped the same way, after the
coordinator recorded it [rules 27, 28].
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from millrace.broker.access import Principal
from millrace.broker.entries.meta import META_ENTRIES, AbortAttempts, BatchRolled, CommitBatch
from millrace.broker.meta import state as meta
from millrace.broker.meta.pipelines import Fence
from millrace.broker.meta.writers import Decision, Winners, Writer
from millrace.broker.shards.staging import AttemptKey, BlockKey, Place
from millrace.errors import LocalError, StorageError
from millrace.limits import MIB
from millrace.node.groups.shard_consumers import Unavailable
from millrace.node.logs import snapshots
from millrace.node.logs.space import DiskSpace
from millrace.node.replicas.moment import Moment
from millrace.node.shards.shard import Shard
from millrace.node.streams.definitions import Definitions
from millrace.replication.contract import EntryKind
from millrace.storage.block import Kind, opaque_block
from millrace.storage.scan import RangeDamaged

log = logging.getLogger("millrace.writers")

_REVIEW_S = 1.0
_DECIDE_S = 10.0
# How long a commit waits for staged blocks that this node has not applied yet.
_STAGED_S = 5.0
VISIBLE_S = 30.0
# Blocks are released in groups that one sync brings to disk: a sync for each block of 1 MiB gets a fifth of
# what the disk can take. While one group is synced the next one is read.
_RELEASE_BYTES = 8 * MIB
_RELEASES_IN_FLIGHT = 2
# Staged and never decided: the driver is gone. A batch that takes longer must be staged again.
_ABANDONED_US = 24 * 60 * 60 * 1_000_000


class Conflict(LocalError):
    """What was asked does not fit what is staged or decided; asking again changes nothing."""


class Superseded(LocalError):
    """Another driver runs the pipeline; whatever this one asks is in vain."""


class NotYours(LocalError):
    """The writer belongs to another user, or its user lost the right to what was staged."""


def _groups(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Neighbours that together have about the size of a release."""
    group: list[Place] = []
    size = 0
    for place in places:
        group.append(place)
        size += place.size_bytes
        if size >= _RELEASE_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


class Writing:
    def __init__(
        self,
        definitions: Definitions,
        shards: Mapping[int, Shard],
        space: DiskSpace,
        pool: Executor,
        wall_us: Callable[[], int],
    ) -> None:
        self._definitions = definitions
        self._space = space
        self._shards = shards
        self._pool = pool
        self._wall_us = wall_us
        self._due = asyncio.Event()
        self._changed = Moment()
        self._task: asyncio.Task[None] | None = None
        self._rolling: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        tasks = [task for task in (self._task, *self._rolling.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_change(self) -> None:
        """The meta group applied something. Called while it does."""
        self._due.set()
        self._changed.come()

    def on_staged(self) -> None:
        """A log has more staged in it than before, or is known here since now. Called while that happens."""
        self._changed.come()

    def find(self, name: str) -> Writer | None:
        return self._definitions.state.writers.writers.get(name)

    def owner(self, name: str) -> str | None:
        """The user to whom a writer belongs: who first decided something for it, and before that who first
        staged for it; None where nobody came."""
        writer = self.find(name)
        if writer is not None:
            return writer.user
        staged = [
            (attempt.since_us, attempt.user)
            for shard in self._shards.values()
            for owner, attempt in shard.staging.state.attempts.items()
            if owner.writer == name
        ]
        return min(staged)[1] if staged else None

    def check_owner(self, name: str, user: str) -> None:
        """NotYours unless the user may act for the writer."""
        if self.owner(name) not in (None, user):
            raise NotYours(f"writer {name} belongs to another user")

    # --------------------------------------------------------------------------------------- decisions

    async def commit(
        self,
        name: str,
        batch: int,
        winners: Winners,
        user: str,
        principal: Principal,
        fence: Fence | None = None,
    ) -> tuple[bool, bool]:
        """Decide a batch: whether it was decided before, and whether it is visible by now. Conflict where
        the winners are not what is staged; NotYours where `principal` may not publish all of it any more;
        Superseded where `fence`, the run of a pipeline, is not the newest."""
        self._check_run(fence)
        await self._until_staged(name, batch, winners, user)
        writer = self.find(name)
        if writer is None or batch > writer.last:
            await self._check_rights(name, batch, winners, principal)
        try:
            result = await self._decide(CommitBatch(name, batch, winners, user, fence))
        except Conflict:
            self._check_run(fence)
            raise
        return result.is_repeat, await self._until_visible(name, batch)

    def _check_run(self, fence: Fence | None) -> None:
        if fence is not None and self._definitions.state.pipelines.is_superseded(fence):
            raise Superseded("this driver is not the one that runs its pipeline any more")

    async def _check_rights(self, name: str, batch: int, winners: Winners, principal: Principal) -> None:
        """What was staged becomes messages by this: the rights of now count [rule 31]. Where they cover all
        of a stream its blocks are not looked at."""
        loop = asyncio.get_running_loop()
        proved: set[bytes] = set()
        for attempt, placed in winners.items():
            for number in placed:
                shard = self._shards[number]
                if all(map(principal.may_publish_all, shard.stream.spec.filters or ("#",))):
                    continue
                found = shard.staging.state.attempts.get(AttemptKey(name, batch, attempt))
                for places in _groups([] if found is None else found.places):
                    for block in await loop.run_in_executor(self._pool, shard.staging.read_all, places):
                        fresh = set(block.topics()) - proved
                        if not all(principal.may_publish(topic.decode()) for topic in fresh):
                            raise NotYours("some of what was staged you may not publish any more")
                        proved |= fresh

    async def abort(self, name: str, batch: int | None, attempts: list[str] | None, user: str) -> None:
        """Give up attempts of a batch; without them all that this node knows to be staged."""
        self.check_owner(name, user)
        wanted: dict[int, set[str]] = {}
        if batch is not None and attempts is not None:
            wanted[batch] = set(attempts)
        else:
            for shard in self._shards.values():
                for owner in shard.staging.state.attempts:
                    if owner.writer == name and batch in (None, owner.batch):
                        wanted.setdefault(owner.batch, set()).add(owner.attempt)
        for number, names in sorted(wanted.items()):
            await self._decide(AbortAttempts(name, number, sorted(names), user))

    async def _until_staged(self, name: str, batch: int, winners: Winners, user: str) -> None:
        """Staged blocks were acknowledged by some node; this one may be a moment behind."""
        missing = ""
        try:
            async with asyncio.timeout(_STAGED_S):
                while True:
                    self.check_owner(name, user)
                    writer = self.find(name)
                    if writer is not None and batch <= writer.last:
                        return
                    found = self._missing(name, batch, winners, user)
                    if found is None:
                        return
                    missing = found
                    await self._changed.next()
        except TimeoutError:
            raise Conflict(missing) from None

    def _missing(self, name: str, batch: int, winners: Winners, user: str) -> str | None:
        """What has yet to come, of those who may win: an attempt that another user staged never does."""
        for attempt, placed in winners.items():
            for number, blocks in placed.items():
                shard = self._shards.get(number)
                if shard is None:
                    return f"there is no shard {number}; its stream was changed or deleted: stage again"
                found = shard.staging.state.attempts.get(AttemptKey(name, batch, attempt))
                staged = len(found.places) if found is not None and found.user == user else 0
                if staged != blocks:
                    return f"attempt {attempt}: {staged} blocks are staged at shard {number}, not {blocks}"
        return None

    async def _until_visible(self, name: str, batch: int) -> bool:
        try:
            async with asyncio.timeout(VISIBLE_S):
                while True:
                    writer = self.find(name)
                    if writer is None or all(one.batch > batch for one in writer.decisions):
                        return True
                    await self._changed.next()
        except TimeoutError:
            return False

    async def _decide(self, entry: CommitBatch | AbortAttempts | BatchRolled) -> meta.Result:
        """A command of the meta group; Unavailable where it stays open, Conflict where it was refused."""
        answer: asyncio.Future[meta.Result] = asyncio.get_running_loop().create_future()
        group = self._definitions.group
        block = opaque_block(Kind.CONTROL, META_ENTRIES.encode([entry]))
        if not group.propose([block], [answer], EntryKind.CONTROL):
            raise Unavailable("the node cannot commit or abort batches right now; try again")
        try:
            result = await asyncio.wait_for(answer, _DECIDE_S)
        except (TimeoutError, LocalError):
            raise Unavailable(
                "no majority of the cluster answered; ask again, it may have happened"
            ) from None
        self._definitions.after_command()
        if result.error is not None:
            raise Conflict(result.error)
        return result

    # ------------------------------------------------------------------------------------ rolling forward

    async def _run(self) -> None:
        while True:
            # Not `wait_for`: it takes a cancellation for an answer where both come at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(_REVIEW_S):
                    await self._due.wait()
            self._due.clear()
            for number, shard in list(self._shards.items()):
                if number not in self._rolling and shard.group.is_leader and self._has_work(shard):
                    self._rolling[number] = asyncio.get_running_loop().create_task(self._roll(shard))

    def _has_work(self, shard: Shard) -> bool:
        writers = self._definitions.state.writers
        return bool(shard.staging.state.attempts) or bool(writers.waiting(shard.number))

    async def _roll(self, shard: Shard) -> None:
        """Everything the coordinator has decided about this shard. A writer that does not get on stops no
        other; its own later batches wait, since settling one lets go of all before it."""
        stuck: set[str] = set()
        try:
            for name, decision in self._definitions.state.writers.waiting(shard.number):
                if name in stuck:
                    continue
                try:
                    await self._roll_forward(shard, name, decision)
                    snapshots.take_due(self._shards.values())
                except (LocalError, StorageError) as error:
                    stuck.add(name)
                    log.warning("shard %d: writer %s: %s; it is tried again", shard.number, name, error)
            await self._drop(shard)
        except (LocalError, StorageError) as error:
            log.warning("shard %d: %s; it is tried again", shard.number, error)
        finally:
            self._rolling.pop(shard.number, None)

    async def _roll_forward(self, shard: Shard, name: str, decision: Decision) -> None:
        batch = decision.batch
        if shard.staging.state.settled.get(name, -1) < batch:
            for attempt, blocks in decision.attempts(shard.number):
                await self._release(shard, AttemptKey(name, batch, attempt), blocks)
            await shard.staging.note("settle", writer=name, batch=batch)
        await self._decide(BatchRolled(name, batch, shard.number))

    async def _release(self, shard: Shard, owner: AttemptKey, blocks: int) -> None:
        """Propose the blocks of a winner as ordinary ones. Those that another leader proposed too are stored
        once; where one of ours was not taken for that reason, the next round goes on behind it."""
        while left := self._left(shard, owner, blocks):
            if not shard.group.is_leader:
                raise LocalError("another node leads now")
            try:
                await self._release_places(shard, left)
            except RangeDamaged:
                if not shard.group.is_alone:
                    raise
                await self._pass_over(shard, owner)

    def _left(self, shard: Shard, owner: AttemptKey, blocks: int) -> list[Place]:
        """What of a winner is not released. A node that is alone has nobody to get from what was damaged when
        it started: that is lost, and nothing waits for it."""
        attempt = shard.staging.state.attempts.get(owner)
        places = [] if attempt is None else attempt.places
        if len(places) < blocks and shard.staging.state.settled.get(owner.writer, -1) < owner.batch:
            missing = f"{blocks - len(places)} blocks of attempt {owner.attempt} of writer {owner.writer}"
            if not shard.group.is_alone:
                raise LocalError(f"{missing} are missing")
            log.error("shard %d: %s are lost", shard.number, missing)
        return [] if attempt is None else places[attempt.released : blocks]

    async def _release_places(self, shard: Shard, left: list[Place]) -> None:
        loop = asyncio.get_running_loop()
        under_way: deque[list[asyncio.Future[Any]]] = deque()
        before: list[Place] = []
        try:
            for places in _groups(left):
                self._check_room([*before, *places])
                before = places
                found = await loop.run_in_executor(self._pool, shard.staging.read_all, places)
                under_way.append(shard.staging.propose(found, EntryKind.DATA))
                if len(under_way) >= _RELEASES_IN_FLIGHT:
                    await shard.staging.settled(under_way.popleft())
            while under_way:
                await shard.staging.settled(under_way.popleft())
        finally:
            for answers in under_way:
                for one in answers:
                    one.cancel()

    async def _pass_over(self, shard: Shard, owner: AttemptKey) -> None:
        """Go on behind the next block that is damaged, at a node that is alone: nobody else has it."""
        loop, attempt = asyncio.get_running_loop(), shard.staging.state.attempts[owner]
        for number in range(attempt.released, len(attempt.places)):
            place = attempt.places[number]
            try:
                found = await loop.run_in_executor(self._pool, shard.staging.read_all, [place])
            except RangeDamaged as error:
                log.error(
                    "shard %d: %d rows of batch %d of writer %s are lost: %s",
                    *(shard.number, place.rows, owner.batch, owner.writer, error),
                )
                await shard.staging.note("pass_over", key=BlockKey(owner, number).encode().decode())
                return
            await shard.staging.settled(shard.staging.propose(found, EntryKind.DATA))

    def _check_room(self, places: list[Place]) -> None:
        """A log that met the end of its disk cannot even write that it lets go of something: the room for a
        group, and for the one before it that may not be written yet, must be there first."""
        if not self._space.has_room(sum(place.size_bytes for place in places)):
            raise Unavailable("the disk has no room to release what was decided")

    async def _drop(self, shard: Shard) -> None:
        """Let go of what lost or was given up, and ask the coordinator about what nobody came back for."""
        writers = self._definitions.state.writers
        staged = shard.staging.state.attempts
        lost = [owner for owner in staged if writers.is_given_up(owner)]
        if lost:
            await shard.staging.note("give_up", attempts=[list(owner) for owner in lost])
        before_us = self._wall_us() - _ABANDONED_US
        for owner, attempt in list(staged.items()):
            writer = self.find(owner.writer)
            if attempt.since_us < before_us and (writer is None or owner.batch > writer.last):
                log.warning("writer %s: attempt %s was staged a day ago and is given up", *owner[::2])
                user = attempt.user if writer is None else writer.user
                try:
                    await self._decide(AbortAttempts(owner.writer, owner.batch, [owner.attempt], user))
                except Conflict as error:
                    log.warning("%s", error)
