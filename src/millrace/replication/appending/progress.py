"""What a leader knows about one follower, and how fast it may talk to it.

PROBE: the place where the logs agree is not known; one append at a time, the next after an answer or a
heartbeat's answer. REPLICATE: it is known; appends are pipelined up to a window of messages and bytes, `next`
runs ahead of `match`. SNAPSHOT: what the follower needs is compacted; bytes of a snapshot go out in a window
of pieces, from where the follower says it stands.

`match` rises only by what the follower reports from its disk. It never falls within a term, except when a
follower declares that it lost entries, or turns out to have lost the last ones without knowing.
"""

from collections import deque
from enum import Enum

from millrace.replication.contract import NO_INDEX, ReplicaId, Snapshot
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index


class Pace(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class SnapshotTransfer:
    """One follower's download: go back to what is acknowledged when nothing moves."""

    __slots__ = ("acknowledged", "acknowledged_at_last_round", "is_offered", "position", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.is_offered = False
        """The offer is out; nothing else goes before the follower said what it holds."""
        self.position: int | None = None
        """The next byte to send; None until the follower answered the offer."""
        self.acknowledged = 0
        self.acknowledged_at_last_round = -1

    def window_is_open(self, options: RaftOptions) -> bool:
        if self.position is None or self.position >= self.snapshot.size_bytes:
            return False
        return self.position - self.acknowledged < options.chunk_bytes_max * options.chunks_inflight_max

    def acknowledge(self, position: int) -> None:
        if self.position is None or position < self.acknowledged:
            # The first answer says where to resume; a lower one says that the follower had to start over.
            self.position = position
        self.acknowledged = position
        self.position = max(self.position, position)

    def round_passed(self) -> None:
        """A heartbeat was answered. If no byte was acknowledged since the last one, pieces were lost."""
        if self.acknowledged == self.acknowledged_at_last_round:
            self.is_offered = False
            self.position = None
        self.acknowledged_at_last_round = self.acknowledged


class Progress:
    __slots__ = (
        "_inflight",
        "_inflight_bytes",
        "commit_sent",
        "context_acknowledged",
        "heard_tick",
        "is_leaving",
        "is_probe_out",
        "lacking_tick",
        "match",
        "next",
        "pace",
        "replica",
        "transfer",
    )

    def __init__(self, replica: ReplicaId, next_index: Index, tick: int) -> None:
        self.replica = replica
        self.match = NO_INDEX
        self.next = next_index
        self.lacking_tick: int | None = None
        """Since when the log of the leader has not had the entry at `next`."""
        self.pace = Pace.PROBE
        self.is_probe_out = False
        self.heard_tick = tick
        self.context_acknowledged = 0
        self.commit_sent = NO_INDEX
        self.is_leaving = False
        """Out of the configuration; still told about it until that is committed."""
        self.transfer: SnapshotTransfer | None = None
        self._inflight: deque[tuple[Index, int]] = deque()
        self._inflight_bytes = 0

    @property
    def is_append_pending(self) -> bool:
        return self.is_probe_out or bool(self._inflight)

    def window_is_open(self, options: RaftOptions) -> bool:
        return (
            len(self._inflight) < options.inflight_messages_max
            and self._inflight_bytes < options.inflight_bytes_max
        )

    def sent(self, last: Index, bytes_count: int) -> None:
        """An append that ends at `last` went out in REPLICATE."""
        self.next = Index(last + 1)
        self._inflight.append((last, bytes_count))
        self._inflight_bytes += bytes_count

    def acknowledge(self, matched: Index) -> bool:
        """The follower's disk matches up to here. Returns whether that is news."""
        while self._inflight and self._inflight[0][0] <= matched:
            self._inflight_bytes -= self._inflight.popleft()[1]
        if matched < self.match or (matched == self.match and self.pace is not Pace.PROBE):
            return False
        is_news = matched > self.match
        self.match = matched
        self.next = max(self.next, Index(matched + 1))
        if self.pace is Pace.SNAPSHOT:
            assert self.transfer is not None
            if matched < self.transfer.snapshot.index:
                return is_news
        if self.pace is not Pace.REPLICATE:
            self.become_replicate()
        return is_news

    def become_probe(self, next_index: Index | None = None) -> None:
        self._reset(Pace.PROBE)
        self.next = Index(max(self.match + 1, next_index or 0))

    def become_replicate(self) -> None:
        self._reset(Pace.REPLICATE)
        self.next = Index(self.match + 1)

    def become_snapshot(self, snapshot: Snapshot) -> None:
        self._reset(Pace.SNAPSHOT)
        self.transfer = SnapshotTransfer(snapshot)

    def _reset(self, pace: Pace) -> None:
        self.pace = pace
        self.is_probe_out = False
        self.transfer = None
        self._inflight.clear()
        self._inflight_bytes = 0
