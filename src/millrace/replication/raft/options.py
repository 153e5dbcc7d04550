"""The numbers of a Raft replica, with the relations between them checked once.

Ticks are whatever the driver makes them; with the usual 50 ms these defaults give heartbeats every 100 ms
and elections after 0.8 to 1.6 s of silence [rule 21]. All replicas of a group use the same numbers.
"""

from dataclasses import dataclass

from millrace.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftOptions:
    heartbeat_ticks: int = 2
    """A leader speaks at least this often."""
    election_ticks: int = 16
    """Silence before a follower asks around: a random number from this to one less than twice this. Also how
    long a follower sticks to a leader it heard, how long a leader goes on without hearing a majority, and how
    long a leadership transfer may take."""
    first_election_ticks: int = 4
    """How long at most a replica of a group that nobody has led so far waits before it asks around: whoever
    made the group waits for it, and there is no leader to be given up."""
    rest_ticks: int = 40
    """A group in which nothing happened for so long rests: no heartbeats, no time-outs."""
    disk_stall_ticks: int = 40
    """A leader whose own oldest unfinished `Persist` is older than this steps down."""
    append_bytes_max: int = 1 << 20
    """Payload bytes of one append message (one entry may be larger)."""
    append_entries_max: int = 1024
    """Entries of one append message."""
    inflight_messages_max: int = 64
    """Appends sent to one follower and not answered."""
    inflight_bytes_max: int = 16 << 20
    """Payload bytes sent to one follower and not answered."""
    uncommitted_bytes_max: int = 64 << 20
    """Payload bytes accepted by a leader and not committed; more is refused as overloaded."""
    uncommitted_entries_max: int = 65536
    """Entries accepted by a leader and not committed."""
    persists_pending_max: int = 256
    """`Persist` effects handed out and not reported; with that many a replica takes no more work."""
    reads_pending_max: int = 4096
    """Read requests that wait for their heartbeat round."""
    chunk_bytes_max: int = 256 << 10
    """Bytes of one piece of a snapshot."""
    chunks_inflight_max: int = 4
    """Pieces of a snapshot sent to one follower and not answered."""
    caught_up_entries_max: int = 64
    """A learner this near to the leader's last index may become a voter."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ConfigError(f"raft option {name} must be at least 1")
        if self.election_ticks < 3 * self.heartbeat_ticks:
            raise ConfigError("raft option election_ticks must be at least 3 times heartbeat_ticks")
        if self.inflight_bytes_max < self.append_bytes_max:
            raise ConfigError("raft option inflight_bytes_max must be at least append_bytes_max")
