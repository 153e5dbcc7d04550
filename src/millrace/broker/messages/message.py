"""Messages on their way through the broker: runs of packets, and what one session still has to get of them.

A `Run` is what one chunk of one publisher brought for one route: whole PUBLISH packets end to end, as they
came (first byte without DUP and RETAIN). Sessions share it by reference. A `Segment` is one session's part
of a run: waiting (no packet id yet) or in flight (ids `first_id` onward, each one answered removes it from
the front). Ids are given at send time, never before.
"""

import math
from collections.abc import Iterable

from millrace.kernels import reframe, skip
from millrace.kernels.blocks import FLAG_QOS, FLAG_RETAIN, FLAG_VERSION_SHIFT
from millrace.kernels.publish import after_packet_id, after_varint, payload_start

_EXPIRY = 0x02
_RUN_START = (0, 0)
# Runs below this are not worth a copy.
_SHED_BYTES = 4096
# Properties of a PUBLISH whose value has a fixed width; the rest are strings or a variable length.
_FIXED_BYTES = {0x01: 1, 0x02: 4, 0x23: 2}


class Run:
    """Immutable after it is made; `retain` says that the publisher asked for it."""

    __slots__ = ("count", "data", "expires_ms", "offset", "qos", "retain", "shard", "v5")

    def __init__(
        self, data: bytes, count: int, qos: int, v5: bool, retain: bool = False, expires_ms: int | None = None
    ) -> None:
        self.data = data
        self.count = count
        self.qos = qos
        self.v5 = v5
        self.retain = retain
        self.expires_ms = expires_ms
        # Where it stands in a log, once it is committed there; shard 0 is no log.
        self.shard = 0
        self.offset = 0

    def part(self, start: int, end: int) -> "Run":
        """The messages from `start` up to `end` as a run of their own."""
        first = skip(self.data, start)
        data = self.data[first : skip(self.data, end)]
        part = Run(data, end - start, self.qos, self.v5, self.retain, self.expires_ms)
        part.shard, part.offset = self.shard, self.offset + start
        return part

    def aged(self, now_ms: int) -> bytes:
        """The packets with the message expiry that is left (MQTT 5, 3.3.2.3.3). One message, not expired."""
        if self.expires_ms is None:
            return self.data
        left_s = max(1, -(-(self.expires_ms - now_ms) // 1000))
        return with_expiry(self.data, left_s)


UNHELD = Run(b"", 1, 0, False)
"""In place of a run whose bytes are not needed any more."""


class Segment:
    """`count` messages of `run` after its first `skipped`, for one session at one QoS."""

    __slots__ = (
        "cleared_for",
        "count",
        "extra",
        "first_id",
        "group",
        "mark",
        "noted_at",
        "qos",
        "retain",
        "run",
        "serial",
        "skipped",
    )

    def __init__(
        self, run: Run, count: int, qos: int, retain: bool, extra: bytes, first_id: int = 0, serial: int = 0
    ) -> None:
        self.run = run
        self.skipped = 0
        # So many messages of the run end at that byte: cutting a long run piece by piece must not walk from
        # its start each time.
        self.mark = _RUN_START
        self.count = count
        self.qos = qos
        self.retain = retain
        self.extra = extra
        self.first_id = first_id
        self.serial = serial
        self.group: object | None = None
        # QoS 2: the broker's serial when its ids were in the session's record, which is committed; else None.
        self.noted_at: int | None = None
        # The access class that was found to be allowed these messages; None: ask before they are sent.
        self.cleared_for: object | None = None

    def take(self, count: int) -> "Segment":
        """Cut the first `count` messages off as a segment of their own."""
        head = Segment(self.run, count, self.qos, self.retain, self.extra)
        head.skipped = self.skipped
        head.mark = self.mark = (self.skipped, self.start())
        head.first_id = self.first_id
        head.serial = self.serial
        head.group = self.group
        head.noted_at = self.noted_at
        head.cleared_for = self.cleared_for
        self.drop(count)
        return head

    def drop(self, count: int) -> None:
        """Forget the first `count` messages."""
        self.skipped += count
        self.count -= count
        if self.first_id:
            self.first_id += count
            self.serial += count

    @property
    def is_noted(self) -> bool:
        """QoS 2: whether the session's record has its ids."""
        return self.noted_at is not None

    def packets(self, now_ms: int) -> bytes:
        """The messages of this segment in the publisher's framing."""
        run = self.run
        data = run.aged(now_ms)
        if self.count == run.count:
            return data
        start = self.start()
        return data[start : skip(data, self.count, start)]

    def start(self) -> int:
        """Where the first message of this segment begins in the bytes of its run."""
        messages, at = self.mark
        data = self.run.data
        return skip(data, self.skipped - messages, at) if data else 0

    def shed(self) -> None:
        """Keep the own bytes only, where most of a long run is done with: a client that leaves one message of
        each run unanswered must not hold them all."""
        run = self.run
        if self.count * 8 < run.count and len(run.data) > _SHED_BYTES:
            start = self.start()
            own = Run(
                run.data[start : skip(run.data, self.count, start)],
                self.count,
                run.qos,
                run.v5,
                run.retain,
                run.expires_ms,
            )
            own.shard, own.offset = run.shard, self.offset
            self.run = own
            self.skipped = 0
            self.mark = _RUN_START

    def encode(self, v5: bool, now_ms: int, dup: bool = False) -> bytes:
        """The packets as the receiver gets them, with the ids of this segment."""
        first = 0x30 | self.qos << 1 | (1 if self.retain else 0) | (8 if dup and self.qos else 0)
        return reframe(self.packets(now_ms), self.run.v5, v5, first, self.first_id, self.extra if v5 else b"")

    @property
    def offset(self) -> int:
        """Of the first message that is left, in the log of the run's shard."""
        return self.run.offset + self.skipped

    @property
    def size_bytes(self) -> int:
        """About what it holds in memory: its share of the run."""
        return len(self.run.data) * self.count // self.run.count


def in_first_order(segments: Iterable[Segment]) -> list[Segment]:
    """Segments of a session with a record, which are under way, in the order in which they left (MQTT 4.6).
    Ids are given in the order of the logs, but those at QoS 2 leave only once theirs are written, and those
    at QoS 1 that came meanwhile have left by then."""
    ordered = list(segments)
    if any(segment.qos == 2 for segment in ordered):
        # One at QoS 2 that left at a serial stands before the one that was given it: it was here before.
        ordered.sort(key=_left_at)
    return ordered


def _left_at(segment: Segment) -> float:
    if segment.qos == 2 and segment.run.shard:
        return math.inf if segment.noted_at is None else segment.noted_at
    return segment.serial


def raise_serials(segments: list[Segment]) -> None:
    """Let the serials rise again in this order, which the next reconnect finds by them; and the first is the
    lowest, by which it is known what ids the session holds. None becomes higher."""
    after: float = math.inf
    for segment in reversed(segments):
        segment.serial = int(min(segment.serial, after - segment.count))
        after = segment.serial
        if segment.noted_at is not None:
            segment.noted_at = segment.serial


def stored_run(data: bytes, count: int, flags: int, sent_us: int, now_ms: int, wall_us: int) -> Run:
    """Messages of a block, as they would be delivered now. `flags` are those of their rows, which are the
    same; `sent_us` is when the first was published. Several only where they cannot expire or be retained:
    that is told from one packet."""
    v5, retain = flags >> FLAG_VERSION_SHIFT == 5, bool(flags & FLAG_RETAIN)
    if retain:
        data = bytes((data[0] & 0xFE,)) + data[1:]
    expiry_s = expiry_of(data) if v5 else None
    expires_ms = None
    if expiry_s is not None:
        expires_ms = now_ms + (sent_us + expiry_s * 1_000_000 - wall_us) // 1000
    return Run(data, count, flags & FLAG_QOS, v5, retain, expires_ms)


def with_expiry(packet: bytes, seconds: int) -> bytes:
    """A copy of one MQTT 5 PUBLISH with another message expiry interval; the property must be there."""
    at = _find_expiry(packet)
    assert at
    return packet[:at] + seconds.to_bytes(4, "big") + packet[at + 4 :]


def expiry_of(packet: bytes) -> int | None:
    """The message expiry interval of one MQTT 5 PUBLISH in seconds, where it has one."""
    at = _find_expiry(packet)
    return int.from_bytes(packet[at : at + 4], "big") if at else None


def _find_expiry(packet: bytes) -> int:
    """Position of the value of the message expiry property, 0 where there is none."""
    length, pos = after_varint(packet, after_packet_id(packet))
    end = pos + length
    while pos < end:
        kind = packet[pos]
        pos += 1
        if kind == _EXPIRY:
            return pos
        if kind in _FIXED_BYTES:
            pos += _FIXED_BYTES[kind]
        else:
            for _ in range(2 if kind == 0x26 else 1):
                pos += 2 + (packet[pos] << 8 | packet[pos + 1])
    return 0


def payload_is_empty(run: Run) -> bool:
    """Whether the one message of this run has no payload."""
    return payload_start(run.data, run.v5) >= len(run.data)
