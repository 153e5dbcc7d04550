"""One client's state: what it subscribed to, what it was sent and has not answered, what waits for it.

A session is pure data with its own consistency. `out` collects bytes for its connection; the node writes
them once per loop turn. `blocked` says that nothing may be sent now: the client is away, or does not read.
Structures that most sessions never need stay None: an idle connection must cost little.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

from millrace.broker.access import Principal
from millrace.broker.message import Run, Segment
from millrace.types import Subscription


class WillPlan:
    """The will of one connection, checked and encoded when it connected."""

    __slots__ = ("delay_s", "expiry_s", "run", "topic")

    def __init__(self, topic: str, run: Run, delay_s: int, expiry_s: int | None) -> None:
        self.topic = topic
        self.run = run
        self.delay_s = delay_s
        # Counted from the moment the will is published, not from CONNECT.
        self.expiry_s = expiry_s

    def due(self, now_ms: int) -> Run:
        """The message as it is published now."""
        run = self.run
        expires_ms = None if self.expiry_s is None else now_ms + self.expiry_s * 1000
        return Run(run.data, 1, run.qos, run.v5, run.retain, expires_ms)


class Session:
    __slots__ = (
        "alias_max",
        "aliases",
        "blocked",
        "client_id",
        "connection",
        "dirty",
        "dropped",
        "epoch",
        "expiry_s",
        "inflight",
        "inflight_count",
        "lag",
        "out",
        "packet_bytes_max",
        "principal",
        "queue",
        "queued_bytes",
        "queued_messages",
        "received",
        "released",
        "subscriptions",
        "v5",
        "will",
        "window",
    )

    def __init__(self, client_id: str, principal: Principal) -> None:
        self.client_id = client_id
        self.principal = principal
        # The node's handle of the live connection; opaque here, None while the client is away.
        self.connection: Any = None
        self.v5 = False
        # Raised by every connect and close, so that a timer of an earlier life is recognised.
        self.epoch = 0
        self.expiry_s = 0
        self.will: WillPlan | None = None
        self.subscriptions: dict[str, Subscription] = {}

        self.blocked = True
        self.dirty = False
        self.out: list[bytes] = []
        self.dropped = 0
        self.packet_bytes_max = 0
        self.alias_max = 0
        self.aliases: dict[bytes, int] | None = None

        self.window = 0
        self.inflight_count = 0
        # Sent, waiting for PUBACK or PUBREC, in order of sending.
        self.inflight: deque[Segment] | None = None
        # QoS 2 after PUBREC: PUBREL sent, waiting for PUBCOMP. Only ids matter here.
        self.released: deque[Segment] | None = None
        self.queue: deque[Segment] | None = None
        self.queued_messages = 0
        self.queued_bytes = 0
        # Logs in which this session is behind, with the offset to go on from. A message that could not be
        # sent when it was committed is not kept in memory: it is read again from here.
        self.lag: dict[int, int] | None = None
        # QoS 2 from this client: ids received and not yet released.
        self.received: set[int] | None = None

    @property
    def is_durable(self) -> bool:
        return self.expiry_s > 0

    def enqueue(self, segment: Segment) -> None:
        if self.queue is None:
            self.queue = deque()
        self.queue.append(segment)
        self.queued_messages += segment.count
        self.queued_bytes += segment.size_bytes

    def dequeue(self, count: int) -> Segment:
        """The first `count` messages of the first waiting segment, which has at least that many."""
        assert self.queue
        head = self.queue[0]
        self.queued_bytes -= head.size_bytes
        if count == head.count:
            self.queue.popleft()
            segment = head
        else:
            segment = head.take(count)
            self.queued_bytes += head.size_bytes
        self.queued_messages -= count
        return segment

    def track(self, segment: Segment) -> None:
        """A segment has been given ids and sent."""
        if self.inflight is None:
            self.inflight = deque()
        self.inflight.append(segment)
        self.inflight_count += segment.count

    def acknowledge(self, packet_id: int, count: int, qos: int) -> int:
        """PUBACK (qos 1) or PUBREC (qos 2) for consecutive ids; returns how many of them were in flight."""
        inflight = self.inflight
        if not inflight:
            return 0
        front = inflight[0]
        if front.first_id == packet_id and front.qos == qos and front.count >= count:
            serial = front.serial
            if front.count == count:
                inflight.popleft()
            else:
                front.drop(count)
            if qos == 1:
                self.inflight_count -= count
            else:
                self._release(packet_id, count, serial)
            return count
        known = 0
        for piece in self._cut(inflight, packet_id, count, qos):
            known += piece.count
            if qos == 1:
                self.inflight_count -= piece.count
            else:
                self._release(piece.first_id, piece.count, piece.serial)
        return known

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

    def is_released(self, packet_id: int) -> bool:
        return any(s.first_id <= packet_id < s.first_id + s.count for s in self.released or ())

    def _release(self, packet_id: int, count: int, serial: int) -> None:
        if self.released is None:
            self.released = deque()
        released = self.released
        if released and released[-1].first_id + released[-1].count == packet_id:
            released[-1].count += count
            return
        segment = Segment(_NO_RUN, count, 2, False, b"")
        segment.first_id = packet_id
        segment.serial = serial
        released.append(segment)

    @staticmethod
    def _cut(segments: deque[Segment], packet_id: int, count: int, qos: int) -> Iterator[Segment]:
        """Take the ids out wherever they are. Answers out of order are the exception ([MQTT-4.6.0-2])."""
        last = packet_id + count
        kept: list[Segment] = []
        for segment in segments:
            first, end = segment.first_id, segment.first_id + segment.count
            low, high = max(first, packet_id), min(end, last)
            if low >= high or segment.qos != qos:
                kept.append(segment)
                continue
            if low > first:
                kept.append(segment.take(low - first))
            if high < end:
                yield segment.take(high - low)
                kept.append(segment)
            else:
                yield segment
        segments.clear()
        segments.extend(kept)

    def in_use(self) -> set[int]:
        """Every packet id that this client has not finished with."""
        ids: set[int] = set()
        for segments in (self.inflight, self.released):
            for segment in segments or ():
                ids.update(range(segment.first_id, segment.first_id + segment.count))
        return ids

    def forget_traffic(self) -> None:
        """Drop everything on the way in either direction (a session that starts clean)."""
        self.inflight = self.released = self.queue = None
        self.inflight_count = self.queued_messages = self.queued_bytes = 0
        self.received = None
        self.lag = None

    def fall_behind(self, shard: int, offset: int) -> None:
        """From this offset on, what the log of `shard` holds for this session must be read from it."""
        if self.lag is None:
            self.lag = {}
        self.lag.setdefault(shard, offset)


_NO_RUN = Run(b"", 1, 2, False)
