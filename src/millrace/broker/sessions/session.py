"""One client's state: what it subscribed to, what it was sent and has not answered, what waits for it.

A session is pure data with its own consistency. `out` collects bytes for its connection; the node writes
them once per loop turn. `blocked` says that nothing may be sent now: the client is away, or does not read.
Structures that most sessions never need stay None: an idle connection must cost little.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from millrace.broker.access import Principal
from millrace.broker.entries.sessions import SavedWill, Unanswered
from millrace.broker.messages.message import UNHELD, Run, Segment
from millrace.broker.sessions.share import NO_SHARE, Place, Share
from millrace.broker.stats import NO_DOOR, DoorTraffic
from millrace.broker.topics.subscription_index import Holder
from millrace.errors import ProtocolError
from millrace.kernels import PACKET_ID_MAX
from millrace.types import Subscription, SubscriptionOptions

# Sets of shards that sessions have cursors in: nearly all sessions of a node have the same.
_cursor_sets: dict[frozenset[int], frozenset[int]] = {}
_CURSOR_SETS_KEPT = 1024


def _shared(shards: frozenset[int]) -> frozenset[int]:
    if len(_cursor_sets) > _CURSOR_SETS_KEPT:
        _cursor_sets.clear()
    return _cursor_sets.setdefault(shards, shards)


def producer_of(incarnation: int, client_id: str) -> bytes:
    """The producer under which the QoS 2 messages of a recorded session are keyed in their shards."""
    return f"qos2/{incarnation}/{client_id}".encode()


class WillPlan:
    """The will of one connection, checked and encoded when it connected."""

    __slots__ = ("delay_s", "expiry_s", "run", "topic")

    def __init__(self, topic: str, run: Run, delay_s: int, expiry_s: int | None) -> None:
        self.topic = topic
        self.run = run
        self.delay_s = delay_s
        # Counted from the moment the will is published, not from CONNECT.
        self.expiry_s = expiry_s

    def saved(self) -> SavedWill:
        """As the session's record keeps it."""
        run = self.run
        return SavedWill(self.topic, run.data, run.qos, run.v5, run.retain, self.delay_s, self.expiry_s)

    @staticmethod
    def restored(will: SavedWill) -> "WillPlan":
        run = Run(will.packet, 1, will.qos, will.v5, will.retain)
        return WillPlan(will.topic, run, will.delay_s, will.expiry_s)

    def due(self, now_ms: int) -> Run:
        """The message as it is published now."""
        run = self.run
        expires_ms = None if self.expiry_s is None else now_ms + self.expiry_s * 1000
        return Run(run.data, 1, run.qos, run.v5, run.retain, expires_ms)


class _NoOutput(list[bytes]):
    """Of all sessions whose clients are away: a list of its own is memory that they do not need."""

    def append(self, data: bytes) -> None:
        """Nobody is there to take it."""


NO_OUTPUT = _NoOutput()


class Session:
    __slots__ = (
        "_holder",
        "alias_max",
        "aliases",
        "blocked",
        "client_id",
        "connected_us",
        "connection",
        "cursors",
        "delayed_will",
        "dirty",
        "dropped",
        "ends_ms",
        "epoch",
        "expiry_s",
        "filter_bytes",
        "firing_will",
        "incarnation",
        "inflight",
        "inflight_bytes",
        "inflight_count",
        "is_recorded",
        "lag",
        "logged_ids",
        "next_token",
        "out",
        "out_bytes",
        "packet_bytes_max",
        "place",
        "principal",
        "queue",
        "queued_bytes",
        "queued_messages",
        "received",
        "record_epoch",
        "refused_until",
        "released",
        "released_serial",
        "resending",
        "restored",
        "sent_qos0",
        "sent_qos1",
        "sent_qos2",
        "share",
        "skip",
        "subscriptions",
        "traffic",
        "uncertain",
        "username",
        "v5",
        "will",
        "window",
    )

    # Longer than other functions: every attribute is made, and explained, here.
    def __init__(self, client_id: str, principal: Principal) -> None:
        self.client_id = client_id
        self.principal = principal
        self.username: str | None = None
        # Of the user, for as long as the session is one of the broker's.
        self.share = NO_SHARE
        # Of the address where it began last, where those have bounds; see `Shares`.
        self.place: Place | None = None
        # The node's handle of the live connection; opaque here, None while the client is away.
        self.connection: Any = None
        # When that began, in the order of all nodes.
        self.connected_us = 0
        self.v5 = False
        # Raised by every connect and close, so that a timer of an earlier life is recognised.
        self.epoch = 0
        # When it ends, while the client is away and that is not for ever; see `Timers`.
        self.ends_ms: int | None = None
        self.expiry_s = 0
        self.will: WillPlan | None = None
        # The will of a connection that is gone, until its delay has passed or the client is back.
        self.delayed_will: WillPlan | None = None
        # On its way into a log; its record keeps it until it is there.
        self.firing_will: WillPlan | None = None
        # By filter; options are shared.
        self.subscriptions: dict[str, SubscriptionOptions] = {}
        # What their filters weigh; see `limits.SESSION_FILTER_BYTES_MAX`.
        self.filter_bytes = 0
        # See `holder`.
        self._holder: Holder[Session] | None = None

        self.blocked = True
        self.dirty = False
        self.out: list[bytes] = []
        # Bytes in `out` that were written for this session alone. What is shared with others is no more than
        # was received; this can be more, so it is bounded.
        self.out_bytes = 0
        self.dropped = 0
        # Messages to this client over this connection; `leave_door` adds them to those of the door.
        self.sent_qos0 = self.sent_qos1 = self.sent_qos2 = 0
        # Of the door by which the client came.
        self.traffic = NO_DOOR
        self.packet_bytes_max = 0
        self.alias_max = 0
        self.aliases: dict[bytes, int] | None = None

        self.window = 0
        self.inflight_count = 0
        # What `inflight` keeps in memory, to be sent again.
        self.inflight_bytes = 0
        # Sent, waiting for PUBACK or PUBREC, in order of sending.
        self.inflight: deque[Segment] | None = None
        # QoS 2 after PUBREC: PUBREL sent, waiting for PUBCOMP. Only ids matter here.
        self.released: deque[Segment] | None = None
        # No serial in `released` is lower. PUBRECs may come in any order, so the first is not the oldest.
        self.released_serial = 0
        # After a reconnect: unanswered segments that the window does not let out yet, ids kept.
        self.resending: deque[Segment] | None = None
        self.queue: deque[Segment] | None = None
        self.queued_messages = 0
        self.queued_bytes = 0
        # Logs in which this session is behind, with the offset to go on from. A message that could not be
        # sent when it was committed is not kept in memory: it is read again from here.
        self.lag: dict[int, int] | None = None
        # QoS 2 from this client: ids received and not yet released.
        self.received: set[int] | None = None
        # Those of them whose messages a log is to keep, by its record or on their way to it.
        self.logged_ids: set[int] | None = None
        # Arrivals up to this number came before this client had to be sent away; see `Inbound.is_overtaking`.
        self.refused_until = 0

        # Whether there is a record of this session in the session store: what it must not forget is written
        # there before anything that depends on it leaves.
        self.is_recorded = False
        self.record_epoch = 0
        # Shards in which the record has a cursor; shared by all sessions that have them in the same.
        self.cursors: frozenset[int] | None = None
        # Of the record; 0 without one.
        self.incarnation = 0
        self.next_token = 1
        # After a restart: ids in `received` with their tokens, where it is not known whether the message
        # reached its shard; messages sent and not answered, in the order in which they were; and ranges of
        # offsets above a cursor that are done.
        self.uncertain: dict[int, int] | None = None
        self.restored: list[Unanswered] | None = None
        self.skip: dict[int, list[tuple[int, int]]] | None = None

    def holder(self, subscription: Subscription) -> "Holder[Session]":
        """What filters with the options of this subscription lead to: mostly the same for all."""
        last = self._holder
        if last is not None:
            known = last.options
            if (
                known.qos == subscription.qos
                and known.identifier == subscription.identifier
                and known.no_local == subscription.no_local
                and known.retain_as_published == subscription.retain_as_published
                and known.retain_handling == subscription.retain_handling
            ):
                return last
        self._holder = last = Holder(self, subscription.options)
        return last

    def forget_holder(self) -> None:
        """The session ends: nothing of it leads back to itself."""
        self._holder = None

    @property
    def is_durable(self) -> bool:
        return self.expiry_s > 0

    @property
    def producer(self) -> bytes:
        """Its QoS 2 messages are keyed (producer, token) in their shards; nothing without a record."""
        return producer_of(self.incarnation, self.client_id) if self.incarnation else b""

    def add_cursors(self, shards: Iterable[int]) -> None:
        """Its record has, or will have, a cursor in each of these."""
        self.cursors = _shared((self.cursors or frozenset()).union(shards))

    def enqueue(self, segment: Segment) -> None:
        if self.queue is None:
            self.queue = deque()
        self.queue.append(segment)
        self.queued_messages += segment.count
        self._hold(segment.size_bytes)

    def _hold(self, size_bytes: int) -> None:
        self.queued_bytes += size_bytes
        self.share.hold(size_bytes)

    def weigh(self, filter_bytes: int) -> None:
        """Its filters weigh so much more, or less."""
        self.filter_bytes += filter_bytes
        self.share.weigh(filter_bytes)
        if self.place is not None:
            self.place.weigh(filter_bytes)

    def belong(self, username: str | None, share: Share) -> None:
        """From now on it is this user's."""
        if self.queued_bytes or self.filter_bytes:
            for old_or_new, sign in ((self.share, -1), (share, 1)):
                old_or_new.hold(sign * self.queued_bytes)
                old_or_new.weigh(sign * self.filter_bytes)
        self.username, self.share = username, share

    def stand(self, place: Place | None) -> None:
        """From now on it counts for this address."""
        for old_or_new, sign in ((self.place, -1), (place, 1)):
            if old_or_new is not None:
                old_or_new.sessions += sign
                old_or_new.weigh(sign * self.filter_bytes)
        self.place = place

    def dequeue(self, count: int) -> Segment:
        """The first `count` messages of the first waiting segment, which has at least that many."""
        assert self.queue
        head = self.queue[0]
        self._hold(-head.size_bytes)
        if count == head.count:
            self.queue.popleft()
            segment = head
        else:
            segment = head.take(count)
            self._hold(head.size_bytes)
        self.queued_messages -= count
        return segment

    def track(self, segment: Segment) -> None:
        """A segment has been given ids and sent."""
        if self.inflight is None:
            self.inflight = deque()
        self.inflight.append(segment)
        self.inflight_count += segment.count
        self.inflight_bytes += segment.size_bytes

    def acknowledge(self, packet_id: int, count: int, qos: int) -> int:
        """PUBACK (qos 1) or PUBREC (qos 2) for consecutive ids; returns how many of them were in flight."""
        inflight = self.inflight
        if not inflight:
            return 0
        front = inflight[0]
        if front.first_id == packet_id and front.qos == qos and front.count >= count:
            serial = front.serial
            self.inflight_bytes -= front.size_bytes
            if front.count == count:
                inflight.popleft()
            else:
                front.drop(count)
                self.inflight_bytes += front.size_bytes
            if qos == 1:
                self.inflight_count -= count
            else:
                self.release(packet_id, count, serial)
            return count
        known = 0
        for piece in self._cut(inflight, packet_id, count, qos):
            known += piece.count
            if qos == 1:
                self.inflight_count -= piece.count
            else:
                self.release(piece.first_id, piece.count, piece.serial)
        self._weigh()
        return known

    def _weigh(self) -> None:
        """Pieces were cut out: what is left is counted anew."""
        self.inflight_bytes = sum(segment.size_bytes for segment in self.inflight or ())

    def complete(self, packet_id: int, count: int) -> int:
        """PUBCOMP for consecutive ids; returns how many of them were waiting for it."""
        released = self.released
        if not released:
            return 0
        front = released[0]
        if front.first_id == packet_id and front.count >= count:
            if front.count == count:
                released.popleft()
            else:
                front.drop(count)
            known = count
        else:
            known = sum(piece.count for piece in self._cut(released, packet_id, count, 2))
        self.inflight_count -= known
        return known

    def check_answered(self, packet_id: int, count: int) -> None:
        """Some of these ids were not found where this answer belongs. They may be of messages that are done;
        an id that is still under way was answered by the packet of another QoS, or by one that comes later
        ([MQTT-4.8.0-1] of 3.1.1)."""
        for segment in self.inflight or ():
            if segment.first_id < packet_id + count and packet_id < segment.first_id + segment.count:
                raise ProtocolError(f"packet id {packet_id}: the answer belongs to another QoS")

    def is_released(self, packet_id: int) -> bool:
        return any(s.first_id <= packet_id < s.first_id + s.count for s in self.released or ())

    def release(self, packet_id: int, count: int, serial: int) -> None:
        """From now on PUBCOMP is waited for; the caller counts it as in flight."""
        if self.released is None:
            self.released = deque()
        released = self.released
        self.released_serial = min(self.released_serial, serial) if released else serial
        if released and released[-1].first_id + released[-1].count == packet_id:
            last = released[-1]
            last.serial = min(last.serial, serial - last.count)
            last.count += count
            return
        segment = Segment(UNHELD, count, 2, False, b"")
        segment.first_id = packet_id
        segment.serial = serial
        released.append(segment)

    @staticmethod
    def _cut(segments: deque[Segment], packet_id: int, count: int, qos: int) -> list[Segment]:
        """Take the ids out wherever they are. Answers out of order are the exception ([MQTT-4.6.0-2])."""
        last = packet_id + count
        passed: list[Segment] = []
        pieces: list[Segment] = []
        # An id is held once, so nothing is left to find when all were seen.
        while segments and count:
            segment = segments.popleft()
            first, end = segment.first_id, segment.first_id + segment.count
            low, high = max(first, packet_id), min(end, last)
            if low >= high:
                passed.append(segment)
                continue
            count -= high - low
            if segment.qos != qos:
                passed.append(segment)
                continue
            if low > first:
                before = segment.take(low - first)
                before.shed()
                passed.append(before)
            if high < end:
                pieces.append(segment.take(high - low))
                segment.shed()
                passed.append(segment)
            else:
                pieces.append(segment)
        segments.extendleft(reversed(passed))
        return pieces

    def oldest_released(self) -> int:
        """The lowest serial that waits for PUBCOMP, looked up anew. There must be one."""
        assert self.released
        self.released_serial = min(segment.serial for segment in self.released)
        return self.released_serial

    def in_use(self) -> set[int]:
        """Every packet id that this client has not finished with."""
        ids: set[int] = set()
        for run in self.restored or ():
            ids.update(range(run.first_id, run.first_id + run.count))
        for segments in (self.inflight, self.released, self.resending):
            for segment in segments or ():
                ids.update(range(segment.first_id, segment.first_id + segment.count))
        return ids

    def unfinished(self) -> Iterator[Segment]:
        """The segments that were sent and not acknowledged, and those that wait; oldest first."""
        for held in (self.inflight, self.resending, self.queue):
            yield from held or ()

    def give_back(self, leaving: Collection[Segment]) -> list[Segment]:
        """Take out these of the unfinished segments, because others get them instead; oldest first."""
        given: list[Segment] = []
        for held in (self.inflight, self.resending, self.queue):
            moving = [segment for segment in held or () if segment in leaving]
            if held and moving:
                staying = [segment for segment in held if segment not in leaving]
                held.clear()
                held.extend(staying)
                given += moving
                if held is self.inflight:
                    self.inflight_count -= sum(segment.count for segment in moving)
                elif held is self.queue:
                    self.queued_messages = sum(segment.count for segment in staying)
                    self._hold(sum(segment.size_bytes for segment in staying) - self.queued_bytes)
        self._weigh()
        return given

    @property
    def sent(self) -> int:
        """Messages to this client over this connection."""
        return self.sent_qos0 + self.sent_qos1 + self.sent_qos2

    def enter_by(self, traffic: DoorTraffic) -> None:
        """A connection begins, by the door that this is the traffic of."""
        self.out = []
        self.traffic = traffic
        traffic.connects += 1
        traffic.open += 1

    def leave_door(self) -> None:
        """The connection ends: what it was sent counts for its door."""
        self.out = NO_OUTPUT
        self.traffic.open -= 1
        sent = self.traffic.sent
        sent[0] += self.sent_qos0
        sent[1] += self.sent_qos1
        sent[2] += self.sent_qos2
        self.sent_qos0 = self.sent_qos1 = self.sent_qos2 = 0
        self.traffic = NO_DOOR

    def forget_traffic(self) -> None:
        """Drop everything on the way in either direction (a session that starts clean)."""
        self.inflight = self.released = self.resending = self.queue = None
        self.inflight_count = self.inflight_bytes = self.queued_messages = 0
        self._hold(-self.queued_bytes)
        self.received = self.logged_ids = None
        self.lag = self.cursors = self.uncertain = self.restored = self.skip = None

    def add_released(self, packet_id: int) -> None:
        """After a restart: PUBREL was due or sent for this id."""
        # Older than any id that can be given, so that new ids are picked around it.
        self.release(packet_id, 1, -PACKET_ID_MAX)
        self.inflight_count += 1

    def fall_behind(self, shard: int, offset: int) -> None:
        """From this offset on, what the log of `shard` holds for this session must be read from it."""
        if self.lag is None:
            self.lag = {}
        self.lag.setdefault(shard, offset)
