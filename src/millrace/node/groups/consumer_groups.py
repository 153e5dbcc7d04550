"""Durable groups of a node: definitions in the meta group, a cursor in every shard that may hold a match.

A group reads sealed shards before open ones, and open ones in turn. Where a take finds nothing, nothing is
written: a client may wait for a message (long-poll) at no cost. A cursor is made at a shard when the group
first needs it there; its start was fixed when the group was made (see `broker/groups/definitions.py`).

A receipt names one delivery: shard, epoch of the cursor, offset, and the how-manieth delivery it was. It is
good until the message is given to somebody else or the group is reset.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from millrace.broker.entries.consume import (
    Ack,
    Advance,
    Bury,
    Configure,
    Create,
    Extend,
    Nack,
    Reset,
    Take,
    Tick,
    Touch,
    Void,
)
from millrace.broker.entries.meta import DeleteGroup, PutGroup
from millrace.broker.groups.cursor import Cursor, State
from millrace.broker.groups.definitions import (
    QUEUE_PREFIX,
    DurableGroup,
    DurableGroups,
    DurableGroupSpec,
)
from millrace.broker.machine import Broker
from millrace.broker.streams.stream import DEFAULT_STREAM, Replication
from millrace.broker.topics.filters import covers
from millrace.errors import LocalError, MillraceError, StorageError
from millrace.limits import TAKEN_BYTES_MAX, WAIT_MS_MAX, WAITERS_MAX
from millrace.node.groups.leaderless_consumers import check_order, shares
from millrace.node.groups.shard_consumers import ShardConsumers, Unavailable
from millrace.node.leaderless.streams import LeaderlessStreams
from millrace.node.logs.reading import Reading, Stored, keys_of, matching_rows
from millrace.node.logs.space import DiskSpace
from millrace.node.shards.publishing import NotStored, Publishing
from millrace.node.shards.shard import Shard
from millrace.node.streams.definitions import Definitions
from millrace.node.streams.intakes import Intakes
from millrace.reasons import Reason
from millrace.storage.log import Trimmed
from millrace.storage.scan import RangeDamaged
from millrace.types import Message, Properties

log = logging.getLogger("millrace.groups")

# Streams may change while somebody waits; the shards are looked up again this often.
_WAIT_SLICE_S = 5.0
# How much of a log one look at the lag reads; the rest is estimated.
_LAG_READS_MAX = 64
_BURIED_AT_ONCE_MAX = 1_000
# [rule 12]. That somebody asks an empty group is noted once an hour.
GROUP_EXPIRY_US = 7 * 24 * 3600 * 1_000_000
_TOUCH_EVERY_US = 3600 * 1_000_000
_EXPIRY_CHECK_S = 60.0
# Takes group, epoch, deliveries and, but for an acknowledgement, a time.
_SETTLING: dict[str, Callable[..., Ack | Nack | Extend]] = {"ack": Ack, "nack": Nack, "extend": Extend}
_FULL = "the disk of the node is full; nothing can be taken until there is room"


class NoSuchGroup(LocalError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no group {name!r}")


class GroupExists(LocalError):
    """There is a group of this name already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One delivery to somebody who took it."""

    message: Stored
    delivery: int
    receipt: str


class ConsumerGroups:
    def __init__(
        self,
        definitions: Definitions,
        shards: Mapping[int, Shard],
        reading: Reading,
        space: DiskSpace,
        leaderless: LeaderlessStreams,
        intakes: Intakes,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._definitions = definitions
        self._shards = shards
        self._reading = reading
        self._space = space
        self._leaderless = leaderless
        self._intakes = intakes
        self._wall_us = wall_us
        self._broker = broker
        self.publishing = Publishing(broker, now_ms, wake)
        self._turn = 0
        # Clients that wait for a message at this node, by the group's number.
        self._waiting: Counter[int] = Counter()
        self._chores: asyncio.Task[None] | None = None
        self._expiry_due_s = 0.0
        # MQTT clients that are members of a group and connected here.
        self.members_here: Callable[[str], int] = lambda name: 0
        self.is_stopping = False

    # --------------------------------------------------------------------------------- definitions

    @property
    def definitions(self) -> DurableGroups:
        return self._definitions.state.groups

    @property
    def by_name(self) -> dict[str, DurableGroup]:
        return self.definitions.by_name

    def named(self, name: str) -> DurableGroup:
        group = self.by_name.get(name)
        if group is None:
            raise NoSuchGroup(name)
        return group

    async def create(self, spec: DurableGroupSpec, *, earliest: bool = False) -> DurableGroup:
        """Make a group that begins at the end of the logs, or at their beginning."""
        if spec.name in self.by_name:
            raise GroupExists(f"group {spec.name!r} exists")
        self.check_stored(spec)
        self._check_dead_letter(spec)
        if spec.is_queue:
            check_order(self._definitions.table, spec)
        probe = DurableGroup(number=0, spec=spec)
        # Not what this node has: where it began from a snapshot, others have more.
        starts = {
            shard.number: shard.start_offset if earliest else shard.next_offset
            for shard in self.shards_of(probe, also_default=earliest)
        }
        await self._definitions.command(PutGroup(spec, create_only=True, starts=starts))
        group = self.named(spec.name)
        for shard in self.shards_of(group):
            await self._cursor(group, shard)
        return group

    def _check_dead_letter(self, spec: DurableGroupSpec) -> None:
        """What a client publishes and a group gives up must not come out where no client may publish."""
        if spec.dead_letter and self._broker.rules.reserves(spec.dead_letter):
            raise LocalError(f"dead_letter = {spec.dead_letter!r}: nobody may publish there (audit.topic)")

    def check_stored(self, spec: DurableGroupSpec) -> None:
        """A group reads logs: where no stream of its filters has one, it would wait for ever."""
        name = remedy = ""
        for filter in spec.filters:
            stream = None if "+" in filter or "#" in filter else self._definitions.table.find(filter)
            if stream is None or stream.spec.is_stored:
                return
            name = stream.spec.name
            is_routed = stream.spec.replication is Replication.ROUTED
            remedy = "--replication quorum" if is_routed else "--capture all"
        raise LocalError(
            f"stream {name!r} has no log: its messages are stored nowhere, so a group or queue has nothing to"
            f" read. Subscribe by MQTT, or: millrace stream alter {name} {remedy}"
        )

    async def alter(self, spec: DurableGroupSpec) -> DurableGroup:
        """Change filters or settings; the cursors stay where they are."""
        group = self.named(spec.name)
        self._check_dead_letter(spec)
        probe = DurableGroup(number=0, spec=spec)
        # Where it has no cursor yet it may still have its place: only new filters bring other shards.
        known = self.shards_of(group)
        starts = {s.number: s.next_offset for s in self.shards_of(probe) if s not in known}
        await self._definitions.command(PutGroup(spec, create_only=False, starts=starts))
        group = self.named(spec.name)
        for shard in self.shards_of(group):
            if group.number in shard.consumers.state.cursors:
                await shard.consumers.do(Configure(group.number, spec.settings))
        return group

    async def delete(self, name: str) -> None:
        """The cursors go with the next chores: their number is not used again."""
        self.named(name)
        await self._definitions.command(DeleteGroup(name))

    async def reset(self, name: str, to: "int | str") -> None:
        """Begin again at `earliest`, `latest` or an offset, in every shard of the group."""
        group = self.named(name)
        check_order(self._definitions.table, group.spec)
        for shard in self.shards_of(group):
            await self._cursor(group, shard)
            first, end = shard.start_offset, shard.next_offset
            position = first if to == "earliest" else end if to == "latest" else int(to)
            await shard.consumers.do(Reset(group.number, min(max(position, first), end)))

    async def advance(self, name: str, positions: Mapping[int, int]) -> None:
        """Everything below these offsets of these shards is done, whoever read it. Never goes back; a shard
        that is not there any more is passed over."""
        group = self.named(name)
        for number, wanted in positions.items():
            shard = self._shards.get(number)
            if shard is None:
                continue
            cursor = await self._cursor(group, shard)
            position = min(max(wanted, shard.start_offset), shard.next_offset)
            if position > cursor.position:
                await shard.consumers.do(Advance(group.number, position))
            if self._wall_us() - cursor.used_us > _TOUCH_EVERY_US:
                # Whoever reads past the group counts as one who asks it [rule 12].
                await shard.consumers.do(Touch(group.number))

    def held_from(self, shard: Shard) -> int | None:
        """The first offset that a group is not done with, of those that have a place in this shard's log.
        They have one also where nobody has asked them since the shard was opened."""
        cursors = shard.consumers.state.cursors
        held = [
            cursors[group.number].low
            if group.number in cursors
            else max(group.start(shard.number), shard.start_offset)
            for group in self.by_name.values()
            if self._is_read(group, shard) and not self._is_aside(group, shard)
        ]
        return min(held, default=None)

    def _is_read(self, group: DurableGroup, shard: Shard) -> bool:
        """Whether the shard may hold a message of the group (see `_shards`)."""
        if shard.number in group.starts or group.number in shard.consumers.state.cursors:
            return True
        table = self._definitions.table
        stream = table.streams.get(shard.stream.spec.name)
        return stream is not None and any(
            shard.number in table.shards_for(stream, filter) for filter in group.spec.filters
        )

    def _is_aside(self, group: DurableGroup, shard: Shard) -> bool:
        """Whether all that the group takes belongs to other streams: in `default` it only looks for what was
        published before those were made, and whoever reads one stream by offset never looks there."""
        if shard.stream.spec.name != DEFAULT_STREAM:
            return False
        named = [
            filter for stream in self._definitions.table.streams.values() for filter in stream.spec.filters
        ]
        return all(any(covers(one, filter) for one in named) for filter in group.spec.filters)

    # -------------------------------------------------------------------------------------- taking

    async def take(
        self,
        name: str,
        *,
        count: int,
        lease_us: int,
        wait_ms: int = 0,
        request: str = "",
        check: Callable[[DurableGroup], None] = lambda group: None,
    ) -> list[Taken]:
        """Up to `count` messages, fewer if there are fewer or they are large; waits for the first at most
        `wait_ms`. Without a lease they are acknowledged with this. `check` is called before each look and
        raises where the caller may not take from the group, or not any more."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + min(wait_ms, WAIT_MS_MAX) / 1000
        while True:
            group = self.named(name)
            check(group)
            shards = self._in_turn(group)
            with self.watching(group, shards, is_waiting=wait_ms > 0) as watcher:
                taken = await self._take_now(group, shards, count, lease_us, request)
                if not taken:
                    # Not sooner: what was there before the stream became another can be taken.
                    self.check_stored(group.spec)
                    check_order(self._definitions.table, group.spec)
                left_s = deadline_s - loop.time()
                if taken:
                    return taken
                if left_s <= 0:
                    return await self._taken_elsewhere(group, shards, request)
                if self.is_stopping:
                    raise Unavailable("the node is stopping; ask another, or again")
                # Not `wait_for`: it takes a cancellation for an answer where both come at once.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._slice_s(group, shards, left_s)):
                        await watcher.wait()

    async def _take_now(
        self, group: DurableGroup, shards: list[Shard], count: int, lease_us: int, request: str
    ) -> list[Taken]:
        taken: list[Taken] = []
        if request:
            for shard in shards:
                cursor = shard.consumers.state.cursors.get(group.number)
                known = None if cursor is None else cursor.answer(request)
                if cursor is not None and known:
                    taken += await self.fetch(shard, cursor, known)
            if taken:
                return taken
        voided = [self._voided(group, shard, request) for shard in shards]
        for shard, times in zip(shards, voided, strict=True):
            try:
                operation = Take(group.number, request, count - len(taken), lease_us, times)
                taken += await self._take_at(group, shard, shards, operation)
            except MillraceError:
                # Without a lease it is done, so it must not be lost because there may be more elsewhere.
                if not taken:
                    raise
                break
            taken_bytes = sum(len(one.message.payload) for one in taken)
            if len(taken) >= count or taken_bytes >= TAKEN_BYTES_MAX or (taken and times is not None):
                break
        return taken

    async def _take_at(
        self, group: DurableGroup, shard: Shard, shards: list[Shard], take: Take
    ) -> list[Taken]:
        cursor = await self._cursor(group, shard)
        if cursor.has_expired(shard.consumers.now_us()) and not self._space.is_refusing:
            # Not with the take: it would give nothing where there is something behind what goes.
            await shard.consumers.do(Tick(group.number))
        if not await shard.consumers.has_some(group, take.count, bool(take.lease_us), self._reading.blocks):
            if self._wall_us() - cursor.used_us > _TOUCH_EVERY_US and not self._space.is_refusing:
                await shard.consumers.do(Touch(group.number))
            return []
        if self._space.is_refusing:
            raise Unavailable(_FULL)
        elsewhere = await self._taken_elsewhere(
            group, [one for one in shards if one is not shard], take.request
        )
        return elsewhere or await self.fetch(shard, cursor, await shard.consumers.do(take))

    def _voided(self, group: DurableGroup, shard: Shard, request: str) -> int | None:
        """How often this request of a queue was made void at a shard; None where that is not asked."""
        if not request or not group.spec.is_queue:
            return None
        cursor = shard.consumers.state.cursors.get(group.number)
        return 0 if cursor is None else cursor.voided(request)

    async def _taken_elsewhere(self, group: DurableGroup, shards: list[Shard], request: str) -> list[Taken]:
        """The answer that this request of a queue has in one of these shards. Where there is none, there will
        be none: another node may have been asked before, and what it asked for may still be under way. Groups
        of many shards do not ask: it is an entry in the log of each."""
        for shard in shards if request and group.spec.is_queue else ():
            cursor = await self._cursor(group, shard)
            if await self._is_exhausted(group, shard, cursor):
                known = cursor.answer(request)
            elif self._space.is_refusing:
                raise Unavailable(_FULL)
            else:
                known = await shard.consumers.do(Void(group.number, request))
            if known:
                return await self.fetch(shard, cursor, known)
        return []

    async def _is_exhausted(self, group: DurableGroup, shard: Shard, cursor: Cursor) -> bool:
        """Whether all that anybody ever took or will take there is known here."""
        if not shard.is_finished or cursor.items:
            return False
        consumers = shard.consumers
        if await consumers.has_some(group, 1, False, self._reading.blocks):
            return False
        return group.number in consumers.state.cursors and consumers.seen_to(group)[0] >= shard.next_offset

    async def fetch(self, shard: Shard, cursor: Cursor, found: list[Any]) -> list[Taken]:
        """The messages of these deliveries; one that cannot be read any more is left out."""
        offsets = sorted(offset for offset, _ in found)
        try:
            messages = await self._reading.messages(shard, offsets)
        except StorageError:
            messages = {}
            for offset in offsets:
                try:
                    messages.update(await self._reading.messages(shard, [offset]))
                except StorageError as error:
                    log.error("a message that a group took cannot be read: %s", error)
        return [
            Taken(
                message=messages[offset],
                delivery=delivery,
                receipt=f"{shard.number}.{cursor.epoch}.{offset}.{delivery}",
            )
            for offset, delivery in found
            if offset in messages
        ]

    async def settle(self, name: str, how: str, receipts: list[str], *extra: int) -> list[bool]:
        """`ack`, `nack` (delay in us) or `extend` (lease in us); whether each receipt was still good."""
        group = self.named(name)
        rows = [_parsed(receipt) for receipt in receipts]
        results = [False] * len(rows)
        parts: dict[tuple[int, int], list[int]] = {}
        for position, (number, epoch, _, _) in enumerate(rows):
            parts.setdefault((number, epoch), []).append(position)
        for (number, epoch), positions in parts.items():
            shard = self._shards.get(number)
            if shard is None or group.number not in shard.consumers.state.cursors:
                continue
            deliveries = [(offset, delivery) for _, _, offset, delivery in map(rows.__getitem__, positions)]
            done = await shard.consumers.do(_SETTLING[how](group.number, epoch, deliveries, *extra))
            for position, result in zip(positions, done, strict=False):
                results[position] = result
        if how == "nack":
            self.tick()
        return results

    @contextmanager
    def watching(
        self, group: DurableGroup, shards: list[Shard], *, is_waiting: bool = False
    ) -> "Iterator[asyncio.Event]":
        """An event that is set when one of these shards may have something new, from now on."""
        if is_waiting and self._waiting.total() >= WAITERS_MAX:
            raise Unavailable(f"{WAITERS_MAX} clients wait for messages already; try again")
        self._waiting[group.number] += is_waiting
        watcher = asyncio.Event()
        for shard in shards:
            shard.consumers.watchers[watcher] = None
        try:
            yield watcher
        finally:
            self._waiting[group.number] -= is_waiting
            if not self._waiting[group.number]:
                del self._waiting[group.number]
            for shard in shards:
                shard.consumers.watchers.pop(watcher, None)

    def _slice_s(self, group: DurableGroup, shards: list[Shard], left_s: float) -> float:
        """How long to wait before looking again: until the next lease or delay ends at the latest."""
        slices = [left_s, _WAIT_SLICE_S]
        for shard in shards:
            cursor = shard.consumers.state.cursors.get(group.number)
            due_us = None if cursor is None else cursor.next_due_us()
            if due_us is not None:
                slices.append((due_us - shard.consumers.now_us()) / 1_000_000)
        # A rest that is too small to move the clock would be waited for without end.
        return max(0.001, min(slices))

    # -------------------------------------------------------------------------------------- shards

    def shards_of(self, group: DurableGroup, *, also_default: bool = False) -> list[Shard]:
        """Every shard that may hold a message of the group, oldest first."""
        table = self._definitions.table
        numbers: set[int] = set(group.starts)
        for stream in table.streams.values():
            for filter in group.spec.filters:
                numbers.update(table.shards_for(stream, filter))
        if also_default and any(table.find(filter) is not table.default for filter in group.spec.filters):
            # What was published before the stream of a topic was made is in `default`.
            numbers.update(table.default.sealed, table.default.shards)
        found = []
        for number, shard in sorted(self._shards.items()):
            if number in numbers or group.number in shard.consumers.state.cursors:
                found.append(shard)
        return found

    def _in_turn(self, group: DurableGroup) -> list[Shard]:
        """Sealed shards first, so that order holds per topic [rule 16], then the open in turn."""
        shards = self.shards_of(group)
        is_old = self._is_former(group)
        old = [shard for shard in shards if is_old(shard)]
        fresh = [shard for shard in shards if not is_old(shard)]
        self._turn += 1
        at = self._turn % len(fresh) if fresh else 0
        return old + fresh[at:] + fresh[:at]

    def _is_former(self, group: DurableGroup) -> "Callable[[Shard], bool]":
        (filter, *others) = group.spec.filters
        if others or "+" in filter or "#" in filter:
            return lambda shard: shard.intake.is_sealed
        intake = self._intakes.find(filter)
        return lambda shard: shard.intake is not intake

    async def _cursor(self, group: DurableGroup, shard: Shard) -> Cursor:
        cursors = shard.consumers.state.cursors
        if group.number not in cursors:
            position = max(group.start(shard.number), shard.start_offset)
            await shard.consumers.do(Create(group.number, position, group.spec.settings))
        cursor = cursors.get(group.number)
        if cursor is None:
            raise NoSuchGroup(group.spec.name)
        return cursor

    # -------------------------------------------------------------------------------------- chores

    def tick(self) -> None:
        """What is due, off the caller's path. Called about once a second."""
        if self._chores is None or self._chores.done():
            self._chores = asyncio.get_running_loop().create_task(self._do_chores())

    def release(self) -> None:
        """The node stops: whoever waits for a message waits no longer."""
        self.is_stopping = True
        for shard in self._shards.values():
            shard.consumers.on_data()

    async def stop(self) -> None:
        if self._chores is not None:
            self._chores.cancel()
            await asyncio.gather(self._chores, return_exceptions=True)
        for shard in self._shards.values():
            shard.consumers.close()

    async def _do_chores(self) -> None:
        if self._space.is_refusing:
            return
        await self._expire()
        for shard in list(self._shards.values()):
            consumers = shard.consumers
            if not shard.group.is_leader:
                continue
            try:
                for operation in consumers.chores(consumers.now_us(), self.definitions.is_gone):
                    await consumers.do(operation)
                for number, cursor in list(consumers.state.cursors.items()):
                    group = self.definitions.numbered(number)
                    if cursor.dead and group is not None and group.spec.dead_letter:
                        await self._bury(group, shard, cursor)
            except (Unavailable, NotStored) as error:
                log.warning("groups of shard %d wait: %s", shard.number, error)
            except MillraceError as error:
                log.error("groups of shard %d: %s", shard.number, error)

    async def _expire(self) -> None:
        """Delete groups that nobody asked for long [rule 12]."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._expiry_due_s or not self._definitions.status().serving:
            return
        self._expiry_due_s = now_s + _EXPIRY_CHECK_S
        for name, group in list(self.by_name.items()):
            cursors = [shard.consumers.state.cursors.get(group.number) for shard in self.shards_of(group)]
            if is_idle([cursor for cursor in cursors if cursor is not None], self._wall_us()):
                log.warning("group %s goes: nobody asked for a message in 7 days", name)
                try:
                    await self.delete(name)
                except MillraceError as error:
                    log.warning("group %s stays for now: %s", name, error)

    async def _bury(self, group: DurableGroup, shard: Shard, cursor: Cursor) -> None:
        """Republish dead messages; a crash in between finds the key and does not store one twice."""
        try:
            self._check_dead_letter(group.spec)
        except LocalError as error:
            # The audit is younger than the group.
            log.warning("dead letters of group %s wait: %s", group.spec.name, error)
            return
        for offset in list(cursor.dead)[:_BURIED_AT_ONCE_MAX]:
            for taken in await self.fetch(shard, cursor, [(offset, 0)]):
                if offset not in cursor.dead:
                    return  # reset meanwhile
                message = _dead_letter(group.spec, taken.message, cursor.items[offset].deliveries)
                key = (f"dead/{group.number}/{shard.number}/{cursor.epoch}".encode(), offset)
                try:
                    await self.publishing.publish(message, key)
                except NotStored as error:
                    if error.reason is not Reason.IMPLEMENTATION_SPECIFIC:
                        raise
                    # Too far below the others for the window to tell: twice is better than not at all.
                    await self.publishing.publish(message)
            await shard.consumers.do(Bury(group.number, offset))

    # ---------------------------------------------------------------------------------------- view

    def summary(self, group: DurableGroup) -> dict[str, Any]:
        """As lists show it: `lag` is at most what it says, because other topics may be counted in."""
        lag, in_flight = self.depth(group, self.shards_of(group))
        return {**group.spec.plain(), "lag": lag + self.leaderless_depth(group), "in_flight": in_flight}

    @staticmethod
    def depth(group: DurableGroup, shards: Iterable[Shard]) -> tuple[int, int]:
        """How many messages of these shards at most wait for the group, and how many are out on a lease."""
        lag = in_flight = 0
        for shard in shards:
            cursor = shard.consumers.state.cursors.get(group.number)
            if cursor is None:
                lag += max(0, shard.next_offset - max(group.start(shard.number), shard.first_offset))
                continue
            seen_to, found = shard.consumers.seen_to(group)
            lag += max(0, shard.next_offset - seen_to) + found + len(cursor.items)
            in_flight += sum(1 for item in cursor.items.values() if item.state is State.LEASED)
        return lag, in_flight

    def leaderless_depth(self, group: DurableGroup) -> int:
        """How many messages of leaderless streams wait for the group, as far as this node knows."""
        rows = shares(self._leaderless, self._definitions.table, group.spec.name)
        return sum(row["lag"] for row in rows)

    async def show(self, name: str) -> dict[str, Any]:
        """Everything about a group, its lag counted in the logs."""
        group = self.named(name)
        rows: list[dict[str, Any]] = []
        for shard in self.shards_of(group):
            cursor = await self._cursor(group, shard)
            waiting, is_exact = await self._count(group, shard, cursor.position)
            states = [item.state for item in cursor.items.values()]
            rows.append(
                {
                    "shard": shard.number,
                    "stream": shard.stream.spec.name,
                    "position": cursor.position,
                    "next_offset": shard.next_offset,
                    "lag": waiting + len(states),
                    "lag_is_exact": is_exact,
                    "in_flight": states.count(State.LEASED),
                    "ready_again": states.count(State.READY),
                    "delayed": states.count(State.DELAYED),
                    "dead": states.count(State.DEAD),
                    "missed": cursor.missed,
                    "epoch": cursor.epoch,
                }
            )
        unordered = list(shares(self._leaderless, self._definitions.table, name))
        total = sum(row["lag"] for row in (*rows, *unordered))
        in_flight = sum(row["in_flight"] for row in rows)
        return {
            **group.spec.plain(),
            "lag": total,
            "in_flight": in_flight,
            "waiting_here": self._waiting[group.number],
            "members_here": self.members_here(name),
            "shards": rows,
            "leaderless": unordered,
        }

    async def _count(self, group: DurableGroup, shard: Shard, position: int) -> tuple[int, bool]:
        """Messages of the group from `position` on, and whether all were looked at."""
        keys, known, count = keys_of(group.spec.filters), dict[bytes, bool](), 0

        def takes(topic: bytes) -> bool:
            if topic not in known:
                known[topic] = group.spec.takes(topic.decode())
            return known[topic]

        for _ in range(_LAG_READS_MAX):
            end = shard.next_offset
            try:
                blocks = await self._reading.blocks(shard, position, keys)
            except Trimmed as error:
                position = int(error.first_offset)
                continue
            except RangeDamaged as error:
                position = max(int(error.damage.next_offset), position + 1)
                continue
            if not blocks:
                return count, True
            for block in blocks:
                count += sum(end - first for first, end in matching_rows(block, position, takes))
                position = max(position, block.header.next_offset)
            if position >= end:
                return count, True
        return count + shard.next_offset - position, False


def is_idle(cursors: "Sequence[Cursor]", now_us: int) -> bool:
    """Whether nobody asked for so long that the group goes. One without a cursor was only just made."""
    return bool(cursors) and max(cursor.used_us for cursor in cursors) + GROUP_EXPIRY_US < now_us


def _parsed(receipt: str) -> tuple[int, int, int, int]:
    parts = receipt.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise LocalError(f"{receipt!r} is not a receipt")
    shard, epoch, offset, delivery = map(int, parts)
    return shard, epoch, offset, delivery


def _dead_letter(spec: DurableGroupSpec, stored: Stored, deliveries: int) -> Message:
    given = stored.properties
    user = (
        *(pair for pair in given.user if not pair[0].startswith("millrace-")),
        ("millrace-dead-topic", stored.topic),
        ("millrace-dead-group", spec.name),
        ("millrace-dead-deliveries", str(deliveries)),
    )
    properties = Properties(
        payload_format=given.payload_format,
        response_topic=given.response_topic,
        correlation_data=given.correlation_data,
        content_type=given.content_type,
        user=user,
    )
    return Message(topic=spec.dead_letter, payload=stored.payload, qos=1, properties=properties)


def queue_name(topic: str) -> str:
    """The group that the HTTP queue of a topic is."""
    return QUEUE_PREFIX + topic


__all__ = [
    "ConsumerGroups",
    "GroupExists",
    "NoSuchGroup",
    "ShardConsumers",
    "Taken",
    "Unavailable",
    "queue_name",
]
