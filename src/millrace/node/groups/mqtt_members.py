"""Feeds the MQTT members of groups made by command: takes from the group, sends, settles what they answer.

One task per group with members here takes as many messages as they have room for, under a lease. The lease
is renewed while a member holds a message, and ends by itself if this node dies: then the message is for a
member elsewhere. What a member acknowledged or gave back is settled in batches by a second task, so that a
slow log delays neither the taking nor the event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from millrace.broker.groups.joined import LocalConsumerGroup
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run, Segment, expiry_of
from millrace.broker.topics.routing import merge
from millrace.errors import LocalError
from millrace.node.groups.consumer_groups import ConsumerGroups, NoSuchGroup, Taken
from millrace.types import Message, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Publish

log = logging.getLogger("millrace.members")

_LEASE_US = 30_000_000
_RENEW_S = 10.0
_TAKE_MAX = 256
_SETTLE_MAX = 1000
# Long enough to cost nothing, short enough that a group without members is soon left.
_WAIT_MS = 2000
_PAUSE_S = 0.2
# Where there is no majority, a node that stops waits no longer than this.
_GOODBYE_S = 1.0


class _Feed:
    """The work for one group."""

    def __init__(self, group: LocalConsumerGroup) -> None:
        self.group = group
        self.has_room = asyncio.Event()
        self.taking: asyncio.Task[None] | None = None
        self.settling: asyncio.Task[None] | None = None
        self.renewed_s = 0.0


class MqttGroupMembers:
    def __init__(
        self,
        groups: ConsumerGroups,
        broker: Broker,
        *,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._groups = groups
        self._broker = broker
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._wake = wake
        self._feeds: dict[str, _Feed] = {}
        self._seen: tuple[int, int] = (0, 0)
        broker.durable_groups = groups
        groups.members_here = self._connected

    def follow(self) -> None:
        """Groups may have been made, changed or deleted: members go where their filter leads now."""
        known = self._groups.definitions
        if self._seen != (id(known), known.changes):
            self._seen = (id(known), known.changes)
            self._broker.regroup()
            if self._broker.joined_need_feeding:
                self._wake()

    def flush(self) -> None:
        """See what members answered and who has room. Called once per turn of the loop."""
        broker = self._broker
        if not broker.joined_need_feeding:
            return
        broker.joined_need_feeding = False
        for name, group in list(broker.joined.items()):
            feed = self._feeds.get(name)
            if feed is None or feed.group is not group:
                feed = self._feeds[name] = _Feed(group)
            self._stir(feed)
            # Whoever left the group may still be at work on what it was given.
            is_left = not group.members and (not group.held or name not in self._groups.by_name)
            if is_left and feed.taking is None and feed.settling is None:
                del broker.joined[name], self._feeds[name]

    def tick(self) -> None:
        """Renew what members hold. Called about once a second."""
        now_s = asyncio.get_running_loop().time()
        for feed in self._feeds.values():
            if feed.group.held and now_s - feed.renewed_s >= _RENEW_S and feed.settling is None:
                feed.renewed_s = now_s
                receipts = [receipt for held in feed.group.held.values() for receipt in held.values()]
                feed.settling = self._task(self._renew(feed, receipts))

    def _connected(self, name: str) -> int:
        group = self._broker.joined.get(name)
        return 0 if group is None else sum(s.connection is not None for s in group.members)

    async def stop(self) -> None:
        """Give back what members hold: another node, or this one later, has it for them."""
        tasks = [task for feed in self._feeds.values() for task in (feed.taking, feed.settling) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._give_back(feed.group) for feed in self._feeds.values()))
        self._feeds.clear()

    async def _give_back(self, group: LocalConsumerGroup) -> None:
        group.settle()
        with contextlib.suppress(LocalError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await self._settle_some(group.name, group)

    def _task(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def _stir(self, feed: _Feed) -> None:
        group = feed.group
        group.settle()
        if group.room > 0:
            feed.has_room.set()
            if feed.taking is None:
                feed.taking = self._task(self._take(feed))
        if (group.acknowledged or group.given_back) and feed.settling is None:
            feed.settling = self._task(self._settle(feed))

    # ------------------------------------------------------------------------------------- taking

    async def _take(self, feed: _Feed) -> None:
        group = feed.group
        try:
            while any(session.connection is not None for session in group.members):
                room = min(group.room, _TAKE_MAX)
                if not room:
                    feed.has_room.clear()
                    # Not `wait_for`: it takes a cancellation for an answer where both come at once.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_WAIT_MS / 1000):
                            await feed.has_room.wait()
                    continue
                try:
                    taken = await self._groups.take(
                        group.name, count=room, lease_us=_LEASE_US, wait_ms=_WAIT_MS
                    )
                except NoSuchGroup:
                    return
                except LocalError as error:
                    log.debug("group %s: %s", group.name, error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                for one in taken:
                    self._give(group, one)
                if taken:
                    self._broker.joined_need_feeding = True
                    self._wake()
        finally:
            feed.taking = None

    def _give(self, group: LocalConsumerGroup, taken: Taken) -> None:
        session = group.next_member()
        if session is None:
            # They left, or filled up, while the log was asked.
            group.given_back.append(taken.receipt)
            return
        subscription = group.members[session]
        stored = taken.message
        message = Message(
            topic=stored.topic, payload=stored.payload, qos=stored.qos, properties=stored.properties
        )
        packet_id = 1 if stored.qos else None
        packet = encode(Publish(message=message, packet_id=packet_id), Version.MQTT_5)
        expires_ms = None
        expiry_s = expiry_of(packet)
        if expiry_s is not None:
            left_us = stored.time_us + expiry_s * 1_000_000 - self._wall_us()
            expires_ms = self._now_ms() + left_us // 1000
        run = Run(packet, 1, stored.qos, True, stored.retain, expires_ms)
        extra = merge((subscription,))[2] if session.v5 else b""
        retain = stored.retain and subscription.retain_as_published
        segment = Segment(run, 1, min(stored.qos, subscription.qos), retain, extra)
        group.hold(session, segment, taken.receipt)
        self._broker.outbound.send(session, segment, self._now_ms())

    # ----------------------------------------------------------------------------------- settling

    async def _settle(self, feed: _Feed) -> None:
        group = feed.group
        try:
            while group.acknowledged or group.given_back:
                try:
                    await self._settle_some(group.name, group)
                except NoSuchGroup:
                    group.acknowledged.clear()
                    group.given_back.clear()
                except LocalError as error:
                    log.debug("group %s: %s", group.name, error)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            feed.settling = None
            self._broker.joined_need_feeding = True
            self._wake()

    async def _settle_some(self, name: str, group: LocalConsumerGroup) -> None:
        done, back = group.acknowledged[:_SETTLE_MAX], group.given_back[:_SETTLE_MAX]
        if done:
            await self._groups.settle(name, "ack", done)
            del group.acknowledged[: len(done)]
        if back:
            await self._groups.settle(name, "nack", back, 0)
            del group.given_back[: len(back)]

    async def _renew(self, feed: _Feed, receipts: list[str]) -> None:
        try:
            for start in range(0, len(receipts), _SETTLE_MAX):
                part = receipts[start : start + _SETTLE_MAX]
                await self._groups.settle(feed.group.name, "extend", part, _LEASE_US)
        except LocalError as error:
            log.debug("group %s: %s", feed.group.name, error)
        finally:
            feed.settling = None
            self._broker.joined_need_feeding = True
            self._wake()
