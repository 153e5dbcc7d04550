"""Groups of one leaderless stream at this node: who is a member here, what each was given, what became of it.

The machine decides which messages are this node's to give (REORG); here they are read, given to members
that are connected, and settled when the member has acknowledged them. A group is one that clients share
(`$share/NAME/FILTER`), which lives while a session holds it, or one made by command. That a client is a
member is said in the node's own log before its SUBACK leaves, so every node knows it without a leader; what
this node said is compared with what is, again and again, so that a word that crossed another one, or was lost
on its way to the disk, is said once more: also that a client has left, or that a group is over.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from millrace.broker.groups.definitions import QUEUE_PREFIX, DurableGroup
from millrace.broker.groups.joined import LocalConsumerGroup
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Intake
from millrace.broker.messages.message import Segment
from millrace.broker.topics.filters import matches, overlaps
from millrace.broker.topics.routing import merge
from millrace.errors import StorageError
from millrace.node.leaderless.origin_logs import OriginFiles
from millrace.node.shards.fan_out import row_run
from millrace.replication.contract import RequestId
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import (
    Connected,
    Given,
    GroupRemoved,
    LeaderlessEvent,
    Origin,
    Release,
    RemoveGroup,
    Settle,
    Span,
    Subscribe,
    Unsubscribe,
)
from millrace.replication.leaderless.state import Stamp
from millrace.storage.block import Block, Kind
from millrace.storage.log import Trimmed
from millrace.storage.scan import RangeDamaged

log = logging.getLogger("millrace.leaderless")

COMMAND_PREFIX = "group/"
# One look for work; the next one follows when members have answered.
_TAKE_MAX = 256
# A word that was not seen in the state by then is said again.
_SAY_AGAIN_TICKS = 20
# What cannot be read is tried again after so long.
_READ_AGAIN_TICKS = 200


class MemberStream(Protocol):
    """What the groups need of their stream. Implemented by `LeaderlessStream`; see there."""

    machine: Leaderless
    files: OriginFiles
    intake: Intake
    origins: dict[int, Origin]

    @property
    def leads_definitions(self) -> bool: ...

    def durable_groups(self) -> dict[str, DurableGroup]: ...

    def now_ms(self) -> int: ...

    def wall_us(self) -> int: ...

    def wake(self) -> None: ...

    def request(self, then: Callable[[], None] | None) -> RequestId: ...

    def step(self, event: LeaderlessEvent) -> None: ...

    def take(self, group: str, count: int) -> None: ...

    async def read(self, origin: Origin, offset: int) -> list[Block]: ...


class _Tracker:
    """One group's members here."""

    def __init__(self, key: str, filters: tuple[str, ...]) -> None:
        self.key = key
        self.filters = filters
        self.held = LocalConsumerGroup(key)
        self.connected = 0
        self.said: dict[str, int] = {}
        """Clients that this node said are members, and when."""
        self.todo: deque[Span] = deque()
        self.is_reading = False
        self.aside: list[tuple[int, Span]] = []
        """What could not be read, and when to try again; until then it is in flight."""
        self.settled: list[Span] = []


class LeaderlessConsumerGroups:
    def __init__(self, stream: MemberStream, broker: Broker) -> None:
        self._stream = stream
        self._broker = broker
        self.trackers: dict[str, _Tracker] = {}
        self._commanded: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = 0
        # Ticks since the sessions of this node are here, and what the last sweep found.
        self._served_ticks = 0
        self._outdated: set[tuple[str, str]] = set()

    # --------------------------------------------------------------------------------------- members

    def _is_concerned(self, key: str, filters: tuple[str, ...]) -> bool:
        if self._stream.intake.is_sealed:
            # The stream has other filters now: what this log holds came in by those of before [rule 16],
            # and its groups are those that knew it then.
            return self._stream.machine.state.find(key) is not None
        own = self._stream.files.stream.spec.filters
        return any(overlaps(one, other) for one in filters for other in own)

    def tick(self) -> None:
        self._ticks += 1
        self._follow_commands()
        for key, group in list(self._broker.groups.items()):
            if key in self.trackers or self._is_concerned(key, (group.filter,)):
                self.track(key)
        for key in list(self.trackers):
            self._follow(key)
        self._sweep()
        for key in list(self.trackers):
            self.look(key)

    def track(self, key: str) -> "_Tracker":
        """A shared group with a member here."""
        tracker = self.trackers.get(key)
        if tracker is None:
            group = self._broker.groups.get(key)
            filters = () if group is None else (group.filter,)
            tracker = self.trackers[key] = _Tracker(key, filters)
            self._broker.leaderless_groups[self._stream.files.number, key] = tracker.held
        return tracker

    def _follow(self, key: str) -> None:
        """Bring what this node says about its members up to date with what is."""
        tracker = self.trackers[key]
        group = self._broker.groups.get(key)
        if key.startswith(COMMAND_PREFIX):
            joined = self._broker.joined.get(key.removeprefix(COMMAND_PREFIX))
            tracker.held.members = joined.members if joined is not None else {}
        else:
            tracker.held.members = group.members if group is not None else {}
            clients = {session.client_id for session in tracker.held.members}
            self._say_members(tracker, clients)
        connected = sum(session.connection is not None for session in tracker.held.members)
        if connected != tracker.connected:
            tracker.connected = connected
            self._stream.step(Connected(group=key, members=connected))
        if not tracker.held.members and not tracker.held.held and not tracker.said and not tracker.todo:
            if not key.startswith(COMMAND_PREFIX):
                # What the last one left behind.
                self._settle(tracker)
                del self.trackers[key]
                self._broker.leaderless_groups.pop((self._stream.files.number, key), None)

    def _say_members(self, tracker: _Tracker, clients: set[str]) -> None:
        known = self._stream.machine.state.find(tracker.key)
        names = set(known.client_names()) if known is not None else set()
        for client in sorted(clients - names):
            if self._ticks - tracker.said.get(client, -_SAY_AGAIN_TICKS) >= _SAY_AGAIN_TICKS:
                self._subscribe(tracker, client)
        for client in sorted(clients & names):
            tracker.said[client] = self._ticks
        for client in sorted(tracker.said.keys() - clients):
            del tracker.said[client]
            if not self._has_moved(client, tracker.key):
                self._unsubscribe(tracker.key, client)

    def _has_moved(self, client: str, filter: str) -> bool:
        """Whether another node serves the client now, with this subscription."""
        record = self._broker.records.find(client)
        return record is not None and filter in record.subscriptions

    def revive(self, removed_group: GroupRemoved) -> None:
        """The last client elsewhere took the group with it: those here keep it, where it was."""
        tracker, group = self.trackers.get(removed_group.group), self._broker.groups.get(removed_group.group)
        if tracker is not None and group is not None:
            here = {session.client_id for session in group.members}
            for client in sorted(here & tracker.said.keys()):
                self._subscribe(tracker, client, saved_position=removed_group.saved_position)

    def _subscribe(
        self,
        tracker: _Tracker,
        client: str,
        then: Callable[[], None] | None = None,
        saved_position: bytes = b"",
    ) -> None:
        tracker.said[client] = self._ticks
        request = self._stream.request(then)
        wall_us = self._stream.wall_us()
        self._stream.step(
            Subscribe(
                request=request,
                group=tracker.key,
                client=client,
                filters=tracker.filters,
                wall_us=wall_us,
                saved_position=saved_position,
            )
        )

    def _unsubscribe(self, key: str, client: str) -> None:
        request = self._stream.request(None)
        wall_us = self._stream.wall_us()
        self._stream.step(Unsubscribe(request=request, group=key, client=client, wall_us=wall_us))

    def share(self, key: str, then: Callable[[], None]) -> bool:
        """Members of this group have just come: say so now, and call back when the disk has it."""
        group = self._broker.groups.get(key)
        if group is None or not self._is_concerned(key, (group.filter,)):
            return False
        tracker = self.track(key)
        fresh = sorted({session.client_id for session in group.members} - tracker.said.keys())
        for client in fresh[:-1]:
            self._subscribe(tracker, client)
        if not fresh:
            return False
        self._subscribe(tracker, fresh[-1], then)
        self._follow(key)
        return True

    def _follow_commands(self) -> None:
        """Groups made by command collect whether or not somebody is there."""
        wanted = {
            name: group.spec.filters
            for name, group in self._stream.durable_groups().items()
            if not name.startswith(QUEUE_PREFIX)
            and self._is_concerned(COMMAND_PREFIX + name, group.spec.filters)
        }
        for name, filters in wanted.items():
            key = COMMAND_PREFIX + name
            tracker = self.trackers.get(key)
            if tracker is None:
                tracker = self.trackers[key] = _Tracker(key, filters)
                self._broker.leaderless_groups[self._stream.files.number, key] = tracker.held
            tracker.filters = filters
            is_due = self._ticks - tracker.said.get("", -_SAY_AGAIN_TICKS) >= _SAY_AGAIN_TICKS
            if self._stream.machine.state.find(key) is None and is_due:
                self._subscribe(tracker, "")
        for name in sorted(self._commanded - wanted.keys()):
            key = COMMAND_PREFIX + name
            self.trackers.pop(key, None)
            self._broker.leaderless_groups.pop((self._stream.files.number, key), None)
            self._remove(key)
        self._commanded = set(wanted)

    def _remove(self, key: str) -> None:
        request = self._stream.request(None)
        self._stream.step(RemoveGroup(request=request, group=key, wall_us=self._stream.wall_us()))

    def _sweep(self) -> None:
        """Every second: say again what the state does not know. Not what is found for the first time, which
        may be on its way."""
        if not self._broker.journal.is_on:
            # A start waits for the records of sessions, perhaps for long: nobody has left meanwhile.
            return
        self._served_ticks += 1
        if self._served_ticks % _SAY_AGAIN_TICKS:
            return
        before, self._outdated = self._outdated, set(self._find_outdated())
        for key, client in sorted(before & self._outdated):
            if client:
                self._unsubscribe(key, client)
            else:
                self._remove(key)

    def _find_outdated(self) -> Iterator[tuple[str, str]]:
        """Clients that are members no more though nobody says so: of an earlier run of this node, of nodes
        that are no members any more, or of a word that was lost. And, without a client, groups that are over:
        those who left last at the same time each saw the other."""
        for key, group in self._stream.machine.state.present():
            if key.startswith(COMMAND_PREFIX):
                # By whoever knows all definitions: another node may not have heard of it yet.
                if key.removeprefix(COMMAND_PREFIX) not in self._commanded and self._stream.leads_definitions:
                    yield key, ""
                continue
            shared = self._broker.groups.get(key)
            here = {session.client_id for session in shared.members} if shared is not None else set()
            inside = [(client, stamp) for client, (stamp, is_in) in group.clients.items() if is_in]
            for client, stamp in inside:
                if client not in here and self._is_ours(stamp) and not self._has_moved(client, key):
                    yield key, client
            if group.clients and not inside and not here:
                if self._is_ours(max(stamp for stamp, _ in group.clients.values())):
                    yield key, ""

    def _is_ours(self, stamp: Stamp) -> bool:
        """Whether it is this node that speaks for a client."""
        machine = self._stream.machine
        is_orphaned = stamp.node not in machine.members
        return stamp.node == machine.node or (is_orphaned and machine.node == min(machine.members))

    # ------------------------------------------------------------------------------------------ work

    def look(self, key: str) -> None:
        """Settle what members have finished with, and find them more."""
        tracker = self.trackers.get(key)
        if tracker is None:
            return
        self._settle(tracker)
        room = min(tracker.held.room, _TAKE_MAX) - sum(span.end - span.start for span in tracker.todo)
        if tracker.connected and room > 0:
            self._stream.take(key, room)

    def look_all(self) -> None:
        """Something was stored: members that are there need not wait for it."""
        for key, tracker in list(self.trackers.items()):
            if tracker.connected:
                self.look(key)

    def _settle(self, tracker: _Tracker) -> None:
        held = tracker.held
        held.settle()
        done = [_span(self._stream, receipt) for receipt in held.acknowledged] + tracker.settled
        held.acknowledged, tracker.settled = [], []
        due = [one for one in tracker.aside if one[0] <= self._ticks or not held.members]
        tracker.aside = [one for one in tracker.aside if one not in due]
        back = (*(span for _, span in due), *(_span(self._stream, receipt) for receipt in held.given_back))
        held.given_back = []
        if done:
            self._stream.step(Settle(group=tracker.key, spans=tuple(done)))
        if back:
            self._stream.step(Release(group=tracker.key, spans=back))

    def flush(self) -> None:
        """At the end of a run: what members acknowledged is said, what they hold is given up."""
        for tracker in self.trackers.values():
            self._settle(tracker)

    def give(self, given: Given) -> None:
        tracker = self.trackers.get(given.group)
        if tracker is None:
            if given.spans:
                self._stream.step(Release(group=given.group, spans=given.spans))
            return
        tracker.todo.extend(given.spans)
        self._work(tracker)

    def _work(self, tracker: _Tracker) -> None:
        """Hand out what is in memory now, and read the rest."""
        while tracker.todo and not tracker.is_reading:
            span = tracker.todo[0]
            recent = self._stream.files.logs[span.origin].recent(span.start)
            if recent is None:
                tracker.is_reading = True
                task = asyncio.get_running_loop().create_task(self._read(tracker, span))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return
            tracker.todo.popleft()
            self._hand_out(tracker, span, recent)
        if tracker.settled:
            self._settle(tracker)

    async def _read(self, tracker: _Tracker, span: Span) -> None:
        blocks: list[Block] = []
        unreadable: Span | None = None
        try:
            blocks = await self._stream.read(span.origin, span.start)
        except Trimmed as error:
            # What was removed is nobody's any more.
            end = min(span.end, int(error.first_offset))
            tracker.settled.append(Span(span.origin, span.start, max(span.start + 1, end)))
        except StorageError as error:
            unreadable = _unreadable(span, error)
            if not any(other.origin == span.origin for _, other in tracker.aside):
                log.error("the log of %s cannot be read for %s: %s", span.origin, tracker.key, error)
        tracker.is_reading = False
        if tracker.todo and tracker.todo[0] == span:
            tracker.todo.popleft()
            if unreadable is None:
                self._hand_out(tracker, span, blocks)
            else:
                # Given back now it would be the first to be taken again, before all that can be read.
                tracker.aside.append((self._ticks + _READ_AGAIN_TICKS, unreadable))
                if unreadable.end < span.end:
                    tracker.todo.appendleft(Span(span.origin, unreadable.end, span.end))
        self._work(tracker)

    def _hand_out(self, tracker: _Tracker, span: Span, blocks: list[Block]) -> None:
        """One span, as far as these blocks go; the rest goes back to be read later."""
        at = span.start
        if tracker.settled and tracker.settled[-1][:2] == (span.origin, at):
            at = tracker.settled[-1].end
        for block in blocks:
            header = block.header
            if header.kind is not Kind.DATA or header.next_offset <= at:
                continue
            if at < header.base_offset or at >= span.end:
                break
            wanted = [any(matches(f, topic.decode()) for f in tracker.filters) for topic in block.topics()]
            for row in range(at - header.base_offset, min(header.count, span.end - header.base_offset)):
                self._give_row(tracker, span, block, row, wanted)
            at = min(span.end, header.next_offset)
        if at < span.end:
            self._stream.step(Release(group=tracker.key, spans=(Span(span.origin, at, span.end),)))
        self._stream.wake()

    def _give_row(self, tracker: _Tracker, span: Span, block: Block, row: int, wanted: list[bool]) -> None:
        offset = block.header.base_offset + row
        one = Span(span.origin, offset, offset + 1)
        now_ms = self._stream.now_ms()
        if not wanted[block.columns().topic_ids[row]]:
            tracker.settled.append(one)
            return
        run = row_run(block, row, now_ms, self._stream.wall_us())
        if run.expires_ms is not None and run.expires_ms <= now_ms:
            self._broker.stats.expired += 1
            tracker.settled.append(one)
            return
        session = tracker.held.next_member()
        if session is None:
            tracker.held.given_back.append(_receipt(one, self._stream))
            return
        # Without a place in a log: what a member holds is this group's to give again, never its session's.
        subscription = tracker.held.members[session]
        extra = merge((subscription,))[2] if session.v5 else b""
        retain = run.retain and subscription.retain_as_published
        segment = Segment(run, 1, min(run.qos, subscription.qos), retain, extra)
        tracker.held.hold(session, segment, _receipt(one, self._stream))
        self._broker.outbound.send(session, segment, now_ms)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _receipt(span: Span, stream: MemberStream) -> str:
    return f"{stream.files.logs[span.origin].number}.{span.start}"


def _span(stream: MemberStream, receipt: str) -> Span:
    number, _, offset = receipt.partition(".")
    return Span(stream.origins[int(number)], int(offset), int(offset) + 1)


def _unreadable(span: Span, error: StorageError) -> Span:
    """How much of it, from its beginning on, cannot be read."""
    end = span.end
    if isinstance(error, RangeDamaged):
        end = min(end, max(span.start + 1, int(error.damage.next_offset)))
    return Span(span.origin, span.start, end)
