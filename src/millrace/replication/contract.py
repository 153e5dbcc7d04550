"""What every replication protocol says to its driver: events in, effects out, nothing else.

A machine is a `Machine`: `step(event) -> list[Effect]`. It has no clock (time is `Tick`), no randomness of
its own (the constructor takes a seeded `random.Random`), no files and no sockets. The same events give the
same effects, so a run is its seed.

The driver's duties
-------------------
1. Effects of one list run in list order. A list holds at most one `Persist`. What stands before it runs at
   once; what stands after it waits until that `Persist` is on disk.
2. Lists of later steps run meanwhile: while a `Persist` is being synced the driver goes on stepping, and
   a later list without a `Persist` does not wait.
3. `Persist` carries a number that grows by one. Persists complete in order; when number n is on disk (and so
   are all below it), step `Persisted(number=n)` and let the effects that waited go. One `Persisted` may
   cover several numbers. A `Persist` without content is a barrier: it needs no sync of its own, it completes
   when those before it have. If both become due at once, run the waiting effects of n and step
   `Persisted(n)` in any order: machines do not depend on it.
4. Inside one `Persist` the order is: hard state, snapshot, truncation, entries. A crash may leave any prefix
   of that order on disk (and any prefix of the entries), nothing else.
5. `Commit` and `InstallSnapshot` never stand after a `Persist`; they arrive in log order, each index at most
   once, and only for what `LogView` holds durably. After applying, step `Applied(index)`. Applying may lag.
6. A failed fsync is never retried and never answered with `Persisted`: stop the machine.
7. Messages may be lost, doubled, delayed and reordered at will; a machine never depends on the network. They
   must not be altered: links check their frames.
8. `Reply` answers an event that carries a request id. `Accepted` says where the entries were put, not that
   they are safe: a proposal (term, index) is acknowledged when `Commit` passes the index and the entry there
   has that term; it is lost for certain when another term is committed there. Until one of the two the
   outcome is open, whatever role changes happen meanwhile.

The log of a machine
--------------------
The machine keeps what it handed out in `Persist` in memory until `Persisted`, and reads everything older
through `LogView`. A view shows at least all that was reported by `Persisted`; it may show more (the driver
writes into its log before the sync), the machine does not look there.

A restart builds a new machine from what the disk holds: see `InitialState`. Nothing else survives. All that
the view shows at that moment counts as durable, so recovery syncs what it found before it builds a machine
(after a crash of the process alone, the log may show bytes that no sync ever covered).
"""

import json
import zlib
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NewType, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from millrace.errors import LocalError
from millrace.types import Index, Term

ReplicaId = NewType("ReplicaId", str)
"""The random id in a data directory. A node that lost its disk has a new one [rule 19]."""

RequestId = NewType("RequestId", int)
"""Chosen by the driver, unique among its open requests; a machine only hands it back."""


NO_INDEX = Index(0)
"""Before the first entry, whose index is 1."""

NO_TERM = Term(0)
"""The term of a new replica and of index 0."""


def checksum(data: bytes | memoryview, running: int = 0) -> int:
    """The checksum of a snapshot's bytes; pass the earlier result to go on with the next piece."""
    return zlib.crc32(data, running)


# ---------------------------------------------------------------------------------------------- log


class EntryKind(IntEnum):
    DATA = 0
    """A block; the machine never looks inside."""
    CONTROL = 1
    """A block for the state machine (trim, seal, slots, ...); to replication it is like DATA."""
    NOOP = 2
    """A fresh leader's first entry; payload empty; applied as nothing."""
    CONFIG = 3
    """The payload is `Config.encode()`; it is in force from the moment it is in the log."""


class Entry(Struct, frozen=True, kw_only=True):
    term: Term
    index: Index
    kind: EntryKind
    payload: bytes


class Config(Struct, frozen=True, kw_only=True):
    """Who counts. Voters decide; learners receive everything and count for nothing."""

    voters: tuple[ReplicaId, ...]
    learners: tuple[ReplicaId, ...] = ()

    def __post_init__(self) -> None:
        if (
            tuple(sorted(set(self.voters))) != self.voters
            or tuple(sorted(set(self.learners))) != self.learners
        ):
            raise LocalError("the members of a configuration are sorted and unique")
        if set(self.voters) & set(self.learners):
            raise LocalError("a replica is a voter or a learner, not both")

    @property
    def members(self) -> tuple[ReplicaId, ...]:
        return self.voters + self.learners

    def encode(self) -> bytes:
        return json.dumps([self.voters, self.learners], separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: bytes) -> "Config":
        voters, learners = json.loads(payload)
        return Config(
            voters=tuple(ReplicaId(name) for name in voters),
            learners=tuple(ReplicaId(name) for name in learners),
        )


class ConfigAt(Struct, frozen=True, kw_only=True):
    """`config` is the one in force at `index`: no configuration entry lies between the entry that set it
    and `index`."""

    index: Index
    config: Config


class Snapshot(Struct, frozen=True, kw_only=True):
    """Names one snapshot: the state after `index`, whose entry has `term`. Two snapshots that are equal as
    values have equal bytes, so a transfer may be resumed from another leader."""

    index: Index
    term: Term
    config: Config
    size_bytes: int
    checksum: int
    """`checksum()` over all its bytes."""


class LogView(Protocol):
    """A machine's whole sight of its disk. Read only; no method may block for long: where bytes are not in
    memory, return fewer or none, start the read, and the machine asks again at a later event."""

    def first_index(self) -> Index:
        """The first index whose entry is here; one above the snapshot for an empty log; 1 for a new one."""

    def last_index(self) -> Index:
        """The last index whose entry is here; `first_index() - 1` for an empty log."""

    def term(self, index: Index) -> Term | None:
        """For first_index - 1 (the edge, 0 for index 0) to last_index and for the snapshot's own index;
        else None. Always answered from memory."""

    def entries(self, first: Index, last: Index, bytes_max: int) -> Sequence[Entry]:
        """Entries first..last in order, cut once the payloads pass bytes_max, at least one if it can be
        had now; empty if they cannot be had now or `first` is below `first_index()`."""

    def snapshot(self) -> Snapshot | None:
        """The newest complete snapshot on this disk; its index is at least first_index - 1. A snapshot
        stays readable while its transfer may run, even if a newer one is taken."""

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        """Bytes of that snapshot from `position`; empty if they cannot be had now or it is gone."""


# ------------------------------------------------------------------------------------------- state


class HardState(Struct, frozen=True, kw_only=True):
    """What must be on disk before any message that depends on it leaves. A new replica has term 0."""

    term: Term
    vote: ReplicaId | None = None


class Damage(Struct, frozen=True, kw_only=True):
    """This replica once held entries up to `last_index` and was at `term` when some were found damaged; the
    log was cut before the first bad one (and starts after the snapshot if that covers the cut). It takes
    appends, votes only for those whose log is not behind the one it had, and does not stand for election,
    until it provably holds again whatever it may have acknowledged; then it says `Repaired`. The driver
    keeps this value on disk until then."""

    last_index: Index
    term: Term
    last_term: Term | None = None
    """The term of the entry at `last_index`, where it can still be told; else `term` bounds it."""


class InitialState(Struct, frozen=True, kw_only=True):
    """What a restart found on disk. The log itself comes as a `LogView`."""

    hard_state: HardState
    config: ConfigAt
    """In force at some committed index, for example the snapshot's. The machine reads the log after that
    index for later ones; that part must be readable at once. A new group starts with the same first config
    at index 0 on all its voters; a joining replica starts with `Config(voters=())`."""
    commit: Index = NO_INDEX
    """A lower bound of what is committed and on this disk (the snapshot's index will do)."""
    applied: Index = NO_INDEX
    """What the state machine holds already (the snapshot it was loaded from). `Commit` goes on from here."""
    damage: Damage | None = None
    lost: tuple[tuple[Index, Index], ...] = ()
    """First and last index of what this log cannot give and no other replica has: passed over."""


# ------------------------------------------------------------------------------------------ events


class PeerBody(Struct, frozen=True):
    """Base of all that replicas say to each other. Each protocol has its own closed union of frozen values;
    to the driver they are opaque."""


class Tick(Struct, frozen=True, kw_only=True):
    """One unit of time has passed. The driver decides how many milliseconds that is, the same everywhere."""


class PeerMessage(Struct, frozen=True, kw_only=True):
    sender: ReplicaId
    body: PeerBody


class Propose(Struct, frozen=True, kw_only=True):
    """Append these payloads in this order, all or none. Answered by `Accepted` or `Refused` in the same
    step's list. Offsets and duplicates are the driver's business, before it proposes."""

    request: RequestId
    payloads: tuple[bytes, ...]
    kind: EntryKind = EntryKind.DATA


class ReadIndex(Struct, frozen=True, kw_only=True):
    """Ask for an index such that a state that has applied it is not older than this request. Answered by
    `ReadReady` or `Refused`, perhaps steps later."""

    request: RequestId


class ChangeKind(Enum):
    ADD_LEARNER = "add learner"
    PROMOTE = "promote"
    """Learner to voter; refused until it is caught up: ask again."""
    DEMOTE = "demote"
    """Voter to learner."""
    REMOVE = "remove"


class ChangeMembership(Struct, frozen=True, kw_only=True):
    """One replica in or out. `Accepted` tells the index of the configuration entry."""

    request: RequestId
    kind: ChangeKind
    replica: ReplicaId


class TransferLeadership(Struct, frozen=True, kw_only=True):
    """Hand over to `target`, or to the best follower if None. Answered by `Transferred` when this replica
    has stepped down for it, or `Refused`."""

    request: RequestId
    target: ReplicaId | None = None


class Persisted(Struct, frozen=True, kw_only=True):
    """All `Persist` effects up to this number are on disk."""

    number: int


class Applied(Struct, frozen=True, kw_only=True):
    """The state machine has applied everything up to this index (or loaded a snapshot of it)."""

    index: Index


class SnapshotTaken(Struct, frozen=True, kw_only=True):
    """The driver has made a snapshot durable; `LogView.snapshot()` returns it, and `first_index()` may rise
    up to `index + 1` at any time after this step, not before. `Replica.config_at(index)` gives its config."""

    index: Index
    term: Term
    config: Config


class LinkOpened(Struct, frozen=True, kw_only=True):
    peer: ReplicaId


class LinkClosed(Struct, frozen=True, kw_only=True):
    """The connection to the peer was closed or refused. A hint about liveness, never about membership."""

    peer: ReplicaId


class Silence(Struct, frozen=True, kw_only=True):
    """The connection to the peer is there, and nothing came over it for a while. A hint like the others, for
    groups that rest: nobody in them counts the silence of anybody."""

    peer: ReplicaId


class Appointed(Struct, frozen=True, kw_only=True):
    """What the authority above a primary-backup pair has on record; other protocols have none. Stepped at the
    start and whenever the record changes; an older version says nothing. Without `has_quorum` there is no
    authority that could decide while one of the two is away, and the pair decides alone."""

    version: int
    """Grows by one with every change of the record."""
    epoch: Term
    primary: ReplicaId
    backup: ReplicaId | None
    is_in_sync: bool
    """The backup holds whatever was acknowledged: it may be promoted, and nothing is acknowledged without."""
    has_quorum: bool
    is_seized: bool = False
    """Recorded without one: under a quorum such a record counts as out of sync."""


Event: TypeAlias = (
    Tick
    | PeerMessage
    | Propose
    | ReadIndex
    | ChangeMembership
    | TransferLeadership
    | Persisted
    | Applied
    | SnapshotTaken
    | LinkOpened
    | LinkClosed
    | Silence
    | Appointed
)


# ----------------------------------------------------------------------------------------- effects


class Send(Struct, frozen=True, kw_only=True):
    to: ReplicaId
    body: PeerBody


class Persist(Struct, frozen=True, kw_only=True):
    number: int
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    """Make the staged bytes of this snapshot this replica's snapshot and drop the whole log: it is empty
    then, with first_index = snapshot.index + 1. (Entries to keep come again in `entries`.)"""
    truncate_from: Index | None = None
    """Drop this entry and all after it."""
    entries: tuple[Entry, ...] = ()

    @property
    def is_barrier(self) -> bool:
        return (
            self.hard_state is None
            and self.snapshot is None
            and self.truncate_from is None
            and not self.entries
        )


class Commit(Struct, frozen=True, kw_only=True):
    """Everything up to `index` is committed and on this disk: apply it."""

    index: Index


class StageSnapshot(Struct, frozen=True, kw_only=True):
    """Write these bytes of an incoming snapshot aside, at `position`. Position 0 starts over and drops what
    was staged. No sync needed before the `Persist` that names the snapshot."""

    snapshot: Snapshot
    position: int
    data: bytes


class InstallSnapshot(Struct, frozen=True, kw_only=True):
    """The snapshot is this disk's now: load the state machine from it (unless it is already past it)."""

    snapshot: Snapshot


class RefusedReason(Enum):
    NOT_LEADER = "not leader"
    NOT_READY = "own-term entry not applied yet"
    OVERLOADED = "overloaded"
    TRANSFERRING = "leadership is being transferred"
    CHANGE_PENDING = "a membership change is under way"
    NOT_CAUGHT_UP = "the learner is not caught up"
    NO_SUCH_REPLICA = "no such replica"
    ALREADY_SO = "nothing to change"
    LAST_VOTER = "the last voter stays"
    TIMED_OUT = "timed out"


class Accepted(Struct, frozen=True, kw_only=True):
    """Entries first_index..last_index of `term` are in this replica's log (see duty 8)."""

    term: Term
    first_index: Index
    last_index: Index


class ReadReady(Struct, frozen=True, kw_only=True):
    index: Index


class Transferred(Struct, frozen=True, kw_only=True):
    target: ReplicaId


class Refused(Struct, frozen=True, kw_only=True):
    """Nothing was done. `leader` is the best guess whom to ask instead, this replica itself included."""

    reason: RefusedReason
    leader: ReplicaId | None = None


Outcome: TypeAlias = Accepted | ReadReady | Transferred | Refused


class Reply(Struct, frozen=True, kw_only=True):
    request: RequestId
    outcome: Outcome


class RoleChanged(Struct, frozen=True, kw_only=True):
    """For status, logs and checkers. `serving`: a leader that takes proposals (its own-term entry is
    applied)."""

    role: str
    term: Term
    leader: ReplicaId | None
    serving: bool = False


class Repaired(Struct, frozen=True, kw_only=True):
    """The damage given at the start is healed: forget it on disk."""


class Report(Struct, frozen=True, kw_only=True):
    """Ask the authority above the pair to record this, if its record still has version `after`; the answer
    is an `Appointed`, whoever's request was first. May be lost and repeated."""

    after: int
    epoch: Term
    primary: ReplicaId
    backup: ReplicaId | None
    is_in_sync: bool
    is_seized: bool = False
    """Decided without the authority, while it had no quorum."""


class StartOver(Struct, frozen=True, kw_only=True):
    """This replica committed what a higher epoch never had, which only a pair without an authority can do.
    The machine has stopped: drop log and snapshots, keep `damage`, and begin again with an empty disk."""

    damage: Damage
    lost: int
    """Entries from the first that differs to the last committed one."""


Effect: TypeAlias = (
    Send
    | Persist
    | Commit
    | StageSnapshot
    | InstallSnapshot
    | Reply
    | RoleChanged
    | Repaired
    | Report
    | StartOver
)


# ----------------------------------------------------------------------------------------- machine


class PeerStatus(Struct, frozen=True, kw_only=True):
    """What a leader knows of one member."""

    replica: ReplicaId
    is_voter: bool
    match: Index
    is_active: bool
    is_caught_up: bool


class Status(Struct, frozen=True, kw_only=True):
    """A picture of one replica for people and checkers; never an input of another machine."""

    replica: ReplicaId
    role: str
    term: Term
    vote: ReplicaId | None
    leader: ReplicaId | None
    serving: bool
    commit: Index
    applied: Index
    durable: Index
    last: Index
    config: Config
    peers: tuple[PeerStatus, ...] = ()


EventT_contra = TypeVar("EventT_contra", contravariant=True)
EffectT = TypeVar("EffectT")


class Machine(Protocol[EventT_contra, EffectT]):
    """What every machine is: `Raft` and `PrimaryBackup` (whose events and effects are those above),
    `Leaderless`, `Routed` and `Frame` (which have some of their own). The driver's duties hold for all; where
    a machine persists nothing it says so. A machine with roles or states keeps them in a table `TRANSITIONS`
    and asserts it on every change."""

    def step(self, event: EventT_contra) -> list[EffectT]:
        """Take one event; the effects are the caller's to run. Raises `RemoteError`, with nothing changed,
        for a message that no correct peer sends: close that link. Raises anything else only if the machine
        or the driver broke the contract: then this replica must stop."""


class Replica(Machine[Event, Effect], Protocol):
    """One member of a replication group that keeps one log: `Raft` and `PrimaryBackup`."""

    def status(self) -> Status:
        """Cheap, without side effects."""

    @property
    def rests(self) -> bool:
        """Whether time means nothing to this replica until it is told something: ticks may be left out."""

    def config_at(self, index: Index) -> Config:
        """The configuration in force at `index`, for an index between the initial one and the last."""
