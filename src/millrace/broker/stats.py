"""Counters of one broker, plain integers: $SYS, metrics and status read them.

Nothing here is counted per message where messages come in runs: a run, a block or a write is one addition.
What can be read from the present state is not counted at all; `node/metrics` reads it when it is asked.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

QOS_LEVELS = 3


class Histogram:
    """How often something took how long. `bounds_s` rise; what is above the last one is counted too."""

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, time_s: float, count: int = 1) -> None:
        """`count` things took so long. A clock that was set back makes it no shorter than nothing."""
        time_s = max(0.0, time_s)
        self.counts[bisect_left(self.bounds_s, time_s)] += count
        self.sum_s += time_s * count

    @property
    def count(self) -> int:
        return sum(self.counts)


class DoorTraffic:
    """What came and went by one door. Messages that a connected client was sent are counted in its session
    until the connection ends, so that delivering to many costs no more."""

    __slots__ = ("bytes_received", "bytes_sent", "connects", "door", "open", "received", "sent")

    def __init__(self, door: str) -> None:
        self.door = door
        self.bytes_received = 0
        self.bytes_sent = 0
        self.connects = 0
        # Of those, how many are there now.
        self.open = 0
        # By QoS.
        self.received = [0] * QOS_LEVELS
        self.sent = [0] * QOS_LEVELS


# Of a session whose client is away.
NO_DOOR = DoorTraffic("")

# From a sync in memory to a majority far away, and to time-outs.
_PUBLISH_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Stats:
    __slots__ = (
        "connects_refused",
        "denied",
        "doors",
        "dropped_qos0",
        "dropped_queue",
        "dropped_relay",
        "dropped_too_large",
        "expired",
        "protocol_errors",
        "publish_ack",
        "publishes_refused",
        "read",
        "sent",
        "sockets_refused",
        "staged",
        "trimmed",
    )

    def __init__(self) -> None:
        self.doors: dict[str, DoorTraffic] = {}
        # By the name of the reason code, of which there are few.
        self.connects_refused: Counter[str] = Counter()
        self.publishes_refused: Counter[str] = Counter()
        self.publish_ack = Histogram(_PUBLISH_BOUNDS_S)
        # Handed out by reading logs: groups, the queue, messages by offset, blocks.
        self.read = 0
        # Rows of staged batches, visible or not.
        self.staged = 0
        self.sent = 0
        self.denied = 0
        self.dropped_qos0 = 0
        self.dropped_queue = 0
        self.dropped_relay = 0
        self.dropped_too_large = 0
        self.expired = 0
        self.protocol_errors = 0
        self.sockets_refused = 0
        self.trimmed = 0

    def door(self, name: str) -> DoorTraffic:
        """The traffic of the door with this name. There are as many as listeners."""
        found = self.doors.get(name)
        if found is None:
            found = self.doors[name] = DoorTraffic(name)
        return found

    @property
    def received(self) -> int:
        return sum(sum(door.received) for door in self.doors.values())

    @property
    def bytes_received(self) -> int:
        return sum(door.bytes_received for door in self.doors.values())

    @property
    def bytes_sent(self) -> int:
        return sum(door.bytes_sent for door in self.doors.values())

    @property
    def connects(self) -> int:
        return sum(door.connects for door in self.doors.values())

    @property
    def clients_refused(self) -> int:
        return self.connects_refused.total()

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _SHOWN}


_SHOWN = (
    "bytes_received",
    "bytes_sent",
    "clients_refused",
    "connects",
    "denied",
    "dropped_qos0",
    "dropped_queue",
    "dropped_relay",
    "dropped_too_large",
    "expired",
    "protocol_errors",
    "received",
    "sent",
    "sockets_refused",
    "trimmed",
)
