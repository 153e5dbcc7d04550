"""Shared subscriptions: each message of a group goes to one member that is connected.

A group is (NAME, FILTER) (MQTT 5, 4.8.2). Members take turns; a run of many messages is cut into equal
parts. While nobody is connected the group itself collects, if a member's session outlives its connection;
the first member that comes back gets what waited.
"""

from collections import deque

from millrace.broker.messages.message import Run, Segment
from millrace.broker.sessions.session import Session
from millrace.types import Subscription


class ShareGroup:
    __slots__ = ("filter", "members", "name", "queue", "queued_bytes", "queued_messages", "turn")

    def __init__(self, name: str, filter: str) -> None:
        self.name = name
        self.filter = filter
        self.members: dict[Session, Subscription] = {}
        self.turn = 0
        self.queue: deque[Segment] = deque()
        self.queued_messages = 0
        self.queued_bytes = 0

    @property
    def key(self) -> str:
        """What all nodes call this group."""
        return f"$share/{self.name}/{self.filter}"

    @property
    def connected(self) -> int:
        return sum(session.connection is not None for session in self.members)

    @property
    def collects(self) -> bool:
        """Whether messages wait while nobody is connected."""
        return any(session.is_durable for session in self.members)

    def choose(self, topic_run: Run) -> list[tuple[Session, int]]:
        """Members that take the next messages, with how many each, in order. Empty when nobody is there."""
        ready = [s for s in self.members if not s.blocked]
        # A member that reads slowly gets its turn only when no other is free.
        ready = ready or [s for s in self.members if s.connection is not None]
        if not ready:
            return []
        count = topic_run.count
        if count == 1:
            self.turn += 1
            return [(ready[self.turn % len(ready)], 1)]
        share, more = divmod(count, len(ready))
        chosen: list[tuple[Session, int]] = []
        for position in range(len(ready)):
            part = share + (1 if position < more else 0)
            if part:
                self.turn += 1
                chosen.append((ready[self.turn % len(ready)], part))
        return chosen

    @property
    def room(self) -> int:
        """How many messages members that are there could be sent without waiting."""
        ready = [s for s in self.members if not s.blocked]
        return sum(max(0, s.window - s.inflight_count - s.queued_messages) for s in ready)

    def forget(self, shard: int) -> None:
        """What waits here of this log is for others now."""
        kept = [segment for segment in self.drain() if segment.run.shard != shard]
        for segment in kept:
            self.collect(segment)

    def collect(self, segment: Segment) -> None:
        self.queue.append(segment)
        self.queued_messages += segment.count
        self.queued_bytes += segment.size_bytes

    def drain(self) -> list[Segment]:
        """Everything that waited, oldest first."""
        waiting = list(self.queue)
        self.queue.clear()
        self.queued_messages = self.queued_bytes = 0
        return waiting


def is_others_unless_noted(segment: Segment) -> bool:
    """Of a session that goes on at another node. The word that it has this QoS 2 message may be on its way:
    it comes too late, as the record is another's. Where nobody of the group is left here its log tells."""
    group = segment.group
    return isinstance(group, ShareGroup) and bool(group.members) and not segment.is_noted


def belongs_to_others(segment: Segment) -> bool:
    """Whether a member that leaves gives these messages back. A group that it left as the last one takes
    nothing any more: they stay with the session."""
    group = segment.group
    return (
        isinstance(group, ShareGroup) and bool(group.members) and (segment.qos == 1 or not segment.first_id)
    )


def is_left(session: Session, segment: Segment) -> bool:
    """Whether this is of a group that the session does not belong to any more."""
    return isinstance(segment.group, ShareGroup) and session not in segment.group.members
