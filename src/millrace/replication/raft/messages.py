"""What Raft replicas say to each other: a closed union of plain values, each with the sender's term.

A heartbeat is small and separate from appends, so that a driver can pack those of all groups between two
nodes into one frame.
"""

from typing import TypeAlias

from millrace.errors import ProtocolError
from millrace.replication.contract import Entry, PeerBody, Snapshot
from millrace.types import Index, Term


class VoteRequest(PeerBody, frozen=True, kw_only=True):
    """`is_pre` asks whether a vote would be given in `term`, which nobody has entered yet."""

    term: Term
    last_index: Index
    last_term: Term
    is_pre: bool = False
    is_transfer: bool = False
    """The leader of the term before asked for this election: its followers need not stick to it."""


class VoteReply(PeerBody, frozen=True, kw_only=True):
    """A granted pre-vote repeats the term that was asked about; all others carry the voter's own."""

    term: Term
    is_granted: bool
    is_pre: bool = False


class Append(PeerBody, frozen=True, kw_only=True):
    """Entries that follow (prev_index, prev_term), possibly none."""

    term: Term
    prev_index: Index
    prev_term: Term
    commit: Index
    entries: tuple[Entry, ...] = ()


class AppendReply(PeerBody, frozen=True, kw_only=True):
    """Up to `matched` this replica's disk holds what the leader of `term` has."""

    term: Term
    matched: Index


class AppendReject(PeerBody, frozen=True, kw_only=True):
    """There is no entry (prev_index, prev_term) here. No index above `hint_index` can match, and the entry
    there has `hint_term`. `is_repairing`: entries that were acknowledged before are lost (see `Damage`)."""

    term: Term
    prev_index: Index
    hint_index: Index
    hint_term: Term
    is_repairing: bool = False


class Heartbeat(PeerBody, frozen=True, kw_only=True):
    """`commit` is never above what this follower reported as matched. `context` numbers the leader's rounds
    within its term and is never used again; 0 is no round, only news of the commit index, not answered.
    `rests`: there is nothing else to say, and whoever has everything may rest."""

    term: Term
    commit: Index
    context: int
    rests: bool = False


class HeartbeatReply(PeerBody, frozen=True, kw_only=True):
    """`rests`: this replica has everything, and waits for nothing until somebody speaks."""

    term: Term
    context: int
    rests: bool = False


class SnapshotChunk(PeerBody, frozen=True, kw_only=True):
    """Bytes of a snapshot from `position`. No bytes is the offer: how much of it do you hold?"""

    term: Term
    snapshot: Snapshot
    position: int
    data: bytes = b""


class SnapshotReply(PeerBody, frozen=True, kw_only=True):
    """The first `position` bytes of the snapshot with this index are staged here. Once it is installed an
    `AppendReply` says so."""

    term: Term
    index: Index
    position: int


class TimeoutNow(PeerBody, frozen=True, kw_only=True):
    """The leader asks this follower to stand for election at once."""

    term: Term


RaftBody: TypeAlias = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | AppendReject
    | Heartbeat
    | HeartbeatReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
)


def check_append(body: Append) -> None:
    """What a correct leader never sends; cheap enough for every message."""
    entries = body.entries
    if not entries:
        return
    if entries[0].index != body.prev_index + 1 or entries[-1].index != body.prev_index + len(entries):
        raise ProtocolError("the entries of an append do not follow each other")
    if not body.prev_term <= entries[0].term <= entries[-1].term <= body.term:
        raise ProtocolError("the terms of an append fall or exceed the sender's")
