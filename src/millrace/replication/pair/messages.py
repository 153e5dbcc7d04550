"""What the two replicas of a primary-backup pair say to each other beside the appends they share with Raft.

The backup asks on an interval whether the primary is well. The question also carries which answer was the
last to arrive: that is how the primary knows that its word was heard, and for how long nobody takes over.
"""

from typing import TypeAlias

from millrace.replication.contract import PeerBody
from millrace.replication.raft.messages import (
    Append,
    AppendReject,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
)
from millrace.types import Term


class Check(PeerBody, frozen=True, kw_only=True):
    """Are you well? `answered` is the number of the last answer that came in time to count, 0 for none."""

    term: Term
    number: int
    answered: int


class CheckReply(PeerBody, frozen=True, kw_only=True):
    """Yes. `is_in_sync`: the one who asked holds whatever this primary acknowledged."""

    term: Term
    number: int
    is_primary: bool
    is_in_sync: bool


PairBody: TypeAlias = (
    Check
    | CheckReply
    | Append
    | AppendReply
    | AppendReject
    | Heartbeat
    | HeartbeatReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
)
