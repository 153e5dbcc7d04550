"""Durable groups at one shard: operations gathered into entries of its log, and a look ahead in the log.

One entry of a shard is under way at a time; what is asked for meanwhile, by all groups, goes into the next
one. So a busy shard pays one entry for many takes and acknowledgements, and no two entries count on the same
messages. While nobody leads, the next entry waits, and what is asked for with it [C4]: it is
made when it can be proposed, so its time and its scan are those of that moment.

The look ahead is memory of this node alone: from the cursor's position to `end`, the messages that the group
takes. It saves reading the log again for a group whose messages are few among many; after a restart it begins
again at the position, which `skip` moves now and then.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from millrace.broker.entries.consume import Consume, Delete, Operation, Skip, Take, Tick
from millrace.broker.groups.consumers import Consumers
from millrace.broker.groups.cursor import Cursor, Found, Scan
from millrace.broker.groups.definitions import DurableGroup
from millrace.broker.messages.message import expiry_of
from millrace.broker.shards.shard_state import Consumed
from millrace.errors import LocalError
from millrace.node.logs.reading import is_v5, keys_of, matching_rows, packet_of, properties_of
from millrace.node.shards.shard_log import ShardLog
from millrace.node.shards.tokens import Token
from millrace.storage.block import Block
from millrace.storage.log import Trimmed
from millrace.storage.scan import RangeDamaged

NOT_BEFORE = "millrace-not-before"
"""User property: microseconds since 1970 before which a group is not given the message."""

_PENDING_MAX = 10_000
_ENTRY_OPERATIONS_MAX = 1_000
_TOPICS_REMEMBERED_MAX = 10_000
_FOUND_MAX = 10_000
_SKIP_EVERY = 10_000
# Longer than an election takes; then whoever waits is told that nothing happened.
_SERVED_S_MAX = 5.0
# One look ahead reads no more than this many times; a caller that found nothing comes again.
_READS_MAX = 64

ReadBlocks = Callable[[ShardLog, int, tuple[int, ...] | None], Awaitable[list[Block]]]


class Unavailable(LocalError):
    """The log cannot take the operation now; nothing happened."""


class Answer(Token):
    """Somebody waits for the result of an entry."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[Any]") -> None:
        self._future = future

    def answer(self, result: Any) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def on_repeated(self) -> None:
        self.answer(False)

    def lost(self) -> None:
        if not self._future.done():
            self._future.set_exception(Unavailable("the change was lost to another leader; try again"))


class Ahead:
    """What a group takes of the log between its position and `end`."""

    __slots__ = ("_topics", "end", "epoch", "filters", "found", "keys", "lock")

    def __init__(self) -> None:
        self.epoch = -1
        self.end = 0
        self.found: deque[Found] = deque()
        self.filters: tuple[str, ...] = ()
        self.keys: tuple[int, ...] | None = None
        self.lock = asyncio.Lock()
        self._topics: dict[bytes, bool] = {}

    def align(self, cursor: Cursor, group: DurableGroup, wall_us: int) -> None:
        """Follow the cursor and the time; begin anew where it jumped or the group's filters changed."""
        if self.epoch != cursor.epoch or self.end < cursor.position or self.filters != group.spec.filters:
            self.epoch, self.end = cursor.epoch, cursor.position
            self.found.clear()
            if self.filters != group.spec.filters:
                self.filters = group.spec.filters
                self.keys = keys_of(self.filters)
                self._topics.clear()
        found = self.found
        while found and (found[0].offset < cursor.position or found[0].is_expired(wall_us)):
            found.popleft()

    def takes(self, topic: bytes, group: DurableGroup) -> bool:
        known = self._topics.get(topic)
        if known is None:
            if len(self._topics) >= _TOPICS_REMEMBERED_MAX:
                self._topics.clear()
            known = self._topics[topic] = group.spec.takes(topic.decode())
        return known

    def read(self, block: Block, group: DurableGroup, wall_us: int) -> None:
        base = block.header.base_offset
        spans = matching_rows(block, self.end, lambda topic: self.takes(topic, group))
        if spans:
            columns = block.columns()
            for first, end in spans:
                for row in range(first, end):
                    not_before_us = expires_us = 0
                    if is_v5(columns, row):
                        packet = packet_of(columns, row)
                        expiry_s = expiry_of(packet)
                        if expiry_s is not None:
                            sent_us = block.header.base_time_us + columns.deltas_us[row]
                            expires_us = sent_us + expiry_s * 1_000_000
                        not_before_us = _not_before_us(packet)
                    found = Found(base + row, not_before_us, expires_us, columns.packet_sizes[row])
                    if not found.is_expired(wall_us):
                        self.found.append(found)
        self.end = max(self.end, block.header.next_offset)


class ShardConsumers:
    """The groups of one shard."""

    def __init__(self, shard: ShardLog, wall_us: Callable[[], int]) -> None:
        self._shard = shard
        self._wall_us = wall_us
        # A dict for its order: a set's would not be the same in every run.
        self.watchers: dict[asyncio.Event, None] = {}
        """Set when there may be something to take."""
        self._pending: list[tuple[Operation, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._ahead: dict[int, Ahead] = {}
        # When the last entry was proposed by the clock of this node, and how far that is behind the log's.
        self._proposed_us = 0
        self._behind_us = 0

    @property
    def state(self) -> Consumers:
        return self._shard.state.consumers

    def now_us(self) -> int:
        """The time of the log, as far as this node knows: leases and delays run by it."""
        return self._wall_us() + self._behind_us

    # ---------------------------------------------------------------------------------- operations

    async def do(self, operation: Operation) -> Any:
        """Bring an operation into the log and give its result; Unavailable if it did not get there."""
        if len(self._pending) >= _PENDING_MAX:
            raise Unavailable(f"shard {self._shard.number} cannot take this right now; try again")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._pending.append((operation, answer))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while self._pending:
                if not await self._is_served():
                    text = (
                        f"shard {self._shard.number} has had no leader for {_SERVED_S_MAX:.0f} s; try again"
                    )
                    _fail(self._pending, Unavailable(text))
                    self._pending.clear()
                    return
                batch = self._pending[:_ENTRY_OPERATIONS_MAX]
                del self._pending[: len(batch)]
                applied: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
                entry = self._entry([operation for operation, _ in batch])
                if not self._shard.propose_entries([entry], Answer(applied), self._proposed_us):
                    applied.set_exception(Unavailable("the log accepts no messages right now; try again"))
                try:
                    results = await applied
                except LocalError as error:
                    _fail(batch, error)
                    continue
                except asyncio.CancelledError:
                    _fail(batch, Unavailable("the shard is gone"))
                    raise
                for (_, answer), result in zip(batch, results, strict=True):
                    if not answer.done():
                        answer.set_result(result)
        finally:
            self._task = None

    async def _is_served(self) -> bool:
        """Whether a proposal has somewhere to go, now or soon."""
        serving = self._shard.group.serving
        if not serving.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_SERVED_S_MAX):
                    await serving.wait()
        return serving.is_set()

    def _entry(self, operations: list[Operation]) -> Consume:
        wanted: dict[int, int] = {}
        for one in operations:
            if isinstance(one, Take):
                wanted[one.group] = wanted.get(one.group, 0) + one.count
        self._proposed_us = self._wall_us()
        now_us = self._proposed_us + self._behind_us
        scans = {group: self._scan(group, count, now_us) for group, count in wanted.items()}
        return Consume(now_us, scans, operations)

    def _scan(self, group: int, count: int, now_us: int) -> Scan:
        """What the look ahead has and what has not expired, up to `count` messages that are not put off."""
        cursor, ahead = self.state.cursors.get(group), self._ahead.get(group)
        if cursor is None or ahead is None or ahead.epoch != cursor.epoch or ahead.end < cursor.position:
            return Scan(start=0, end=0, found=())
        found: list[Found] = []
        for one in ahead.found:
            if one.offset < cursor.position or one.is_expired(now_us):
                continue
            if count <= 0 or len(found) >= _FOUND_MAX:
                return Scan(start=cursor.position, end=one.offset, found=tuple(found))
            found.append(one)
            if one.not_before_us <= now_us:
                count -= 1
        return Scan(start=cursor.position, end=ahead.end, found=tuple(found))

    # ----------------------------------------------------------------------------------- committed

    def applied(self, effect: Consumed, token: Token | None) -> None:
        if token is not None:
            self._behind_us = effect.time_us - self._proposed_us
            token.answer(effect.results)
        if effect.is_stirring:
            self.on_data()

    def on_data(self) -> None:
        for watcher in self.watchers:
            watcher.set()

    def close(self) -> None:
        """The shard is gone: whoever waits is told."""
        if self._task is not None:
            self._task.cancel()
        _fail(self._pending, Unavailable("the shard is gone"))
        self._pending.clear()
        self.on_data()

    # ---------------------------------------------------------------------------------- look ahead

    async def has_some(self, group: DurableGroup, count: int, is_leased: bool, read: ReadBlocks) -> bool:
        """Whether a take would find something, after a look ahead far enough for `count` messages."""
        cursor = self.state.cursors.get(group.number)
        if cursor is None:
            return False
        if cursor.has_ready(self.now_us()):
            return True
        ahead = self._ahead.setdefault(group.number, Ahead())
        async with ahead.lock:
            ahead.align(cursor, group, self.now_us())
            for _ in range(_READS_MAX):
                if len(ahead.found) >= count or ahead.end >= self._shard.next_offset:
                    break
                await self._read_on(ahead, group, read)
            ahead.align(cursor, group, self.now_us())
            if not ahead.found:
                return False
            is_full = len(cursor.items) >= cursor.settings.in_flight_max
            return not is_full or not (is_leased or ahead.found[0].not_before_us > self.now_us())

    async def _read_on(self, ahead: Ahead, group: DurableGroup, read: ReadBlocks) -> None:
        end = self._shard.next_offset
        try:
            blocks = await read(self._shard, ahead.end, ahead.keys)
        except Trimmed as error:
            ahead.end = int(error.first_offset)
            return
        except RangeDamaged as error:
            ahead.end = max(int(error.damage.next_offset), ahead.end + 1)
            return
        if not blocks:
            ahead.end = max(ahead.end, end)
        for block in blocks:
            ahead.read(block, group, self.now_us())

    def seen_to(self, group: DurableGroup) -> tuple[int, int]:
        """Up to where the log was looked at, and how many messages were found above the position."""
        cursor, ahead = self.state.cursors[group.number], self._ahead.get(group.number)
        if ahead is None or ahead.epoch != cursor.epoch or ahead.end < cursor.position:
            return cursor.position, 0
        return ahead.end, sum(1 for one in ahead.found if one.offset >= cursor.position)

    def chores(self, now_us: int, is_gone: Callable[[int], bool]) -> list[Operation]:
        """Operations that are due: cursors of deleted groups (`is_gone` holds for ever once it does), leases
        that kill, positions far behind."""
        due: list[Operation] = []
        for number, cursor in self.state.cursors.items():
            ahead = self._ahead.get(number)
            next_us = cursor.next_due_us()
            if is_gone(number):
                due.append(Delete(number))
            elif cursor.settings.deliveries_max and next_us is not None and next_us <= now_us:
                due.append(Tick(number))
            elif ahead is not None and ahead.epoch == cursor.epoch:
                nothing_until = ahead.found[0].offset if ahead.found else ahead.end
                if nothing_until - cursor.position > _SKIP_EVERY:
                    due.append(Skip(number, cursor.position, nothing_until))
        for number in [n for n in self._ahead if n not in self.state.cursors]:
            del self._ahead[number]
        return due


def _fail(batch: list[tuple[Operation, asyncio.Future[Any]]], error: LocalError) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(error)


def _not_before_us(packet: bytes) -> int:
    if NOT_BEFORE.encode() not in packet:
        return 0
    for name, value in properties_of(packet).user:
        if name == NOT_BEFORE and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
    return 0
