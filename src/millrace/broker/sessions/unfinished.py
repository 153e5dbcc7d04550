"""What a session has under way that is stored nowhere, packed to move with it to another node.

Messages of a log need no moving: the session's record says how far it is, and the log is everywhere. Messages
that were routed exist only at the node that serves the session: sent and not acknowledged, or waiting. When
the client appears at another node they go there [E4], those under way with the packet ids by
which the client knows them ([MQTT-4.4.0-1]), and so do the ids of routed QoS 2 messages received from it and
not yet released, which tell a message sent again from a new one. For a message that a log is to keep the
record tells: one that it does not know may never have got there, and must be taken when it comes again.

Bounded, because a session's queue may hold far more than a client
should wait for: beyond the bound the newest are left behind, and counted.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from millrace.broker.messages.message import Run, Segment
from millrace.broker.sessions.session import Session
from millrace.kernels import PACKET_ID_MAX, skip
from millrace.limits import UNFINISHED_BYTES_MAX


class PackedSegment(NamedTuple):
    """A segment as plain values. Its messages are of one run, whose form they keep."""

    first_id: int
    messages: int
    qos: int
    retain: bool
    extra: bytes
    run_qos: int
    v5: bool
    run_retain: bool
    left_ms: int | None
    """Until it expires; None: never."""
    packets: bytes


def unfinished(session: Session) -> list[Segment]:
    """Segments that no log holds, those under way first, in order."""
    held = (*(session.inflight or ()), *(session.resending or ()), *(session.queue or ()))
    return [segment for segment in held if not segment.run.shard and segment.group is None]


def received_unlogged(session: Session) -> list[int]:
    """Ids of QoS 2 messages from this client that no log keeps, until they are released."""
    return sorted((session.received or set()) - (session.logged_ids or set()))


def pack(segments: Iterable[Segment], now_ms: int) -> tuple[list[PackedSegment], int]:
    """The segments as plain values, and how many messages did not fit."""
    packed: list[PackedSegment] = []
    size = left_out = 0
    for segment in segments:
        run = segment.run
        if run.expires_ms is not None and run.expires_ms <= now_ms:
            continue
        data = segment.packets(now_ms)
        if size + len(data) > UNFINISHED_BYTES_MAX:
            left_out += segment.count
            continue
        size += len(data)
        left_ms = None if run.expires_ms is None else run.expires_ms - now_ms
        first_id, count, qos, retain = segment.first_id, segment.count, segment.qos, segment.retain
        form = (run.qos, run.v5, run.retain, left_ms)
        packed.append(PackedSegment(first_id, count, qos, retain, segment.extra, *form, data))
    return packed, left_out


def unpack(packed: Iterable[PackedSegment], now_ms: int) -> list[Segment]:
    """The other way; ValueError or IndexError where it is not what `pack` made."""
    segments = []
    for first_id, count, qos, retain, extra, run_qos, v5, run_retain, left_ms, data in packed:
        if (
            not 0 < count <= PACKET_ID_MAX
            or not 0 <= first_id <= PACKET_ID_MAX
            or skip(data, count) != len(data)
        ):
            raise ValueError("messages of a session that cannot be read")
        expires_ms = None if left_ms is None else now_ms + left_ms
        run = Run(data, count, run_qos, v5, run_retain, expires_ms)
        segments.append(Segment(run, count, qos, retain, extra, first_id))
    return segments


def put_back(session: Session, segments: list[Segment]) -> list[Segment]:
    """Give a session what it had under way, before it is resumed: sent again under the ids it had. Returns
    what has no id yet and is simply to be sent after that."""
    under_way = [segment for segment in segments if segment.first_id]
    for segment in under_way:
        # Older than any id that can be given, so that new ids are picked around it.
        segment.serial = -PACKET_ID_MAX
    if under_way:
        session.resending = deque((*(session.resending or ()), *under_way))
    return [segment for segment in segments if not segment.first_id]
