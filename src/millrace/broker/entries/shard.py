"""The entries of a shard's log beside its messages.

A control block of a shard holds any number of these, in the order in which they count; `SHARD_ENTRIES` writes
and reads them. `broker/shards/shard_state.py` says what each does to the state."""

from typing import NamedTuple

from millrace.broker.entries.codec import Entry, EntryCodec
from millrace.broker.entries.consume import Consume
from millrace.broker.groups.work_division import Holders, Range
from millrace.broker.shards.staging import AttemptKey


class Marker(Entry, frozen=True, tag="marker"):
    """Changes nothing. Whoever proposed it knows, when it is applied, that all before it is."""


class Retain(Entry, frozen=True, tag="retain"):
    """The value of a retained topic whose message is not in the log [rule 6]."""

    topic: str
    packet: bytes
    qos: int
    v5: bool
    time_us: int
    """When it was published, on the wall clock: its expiry counts from then."""
    carried_over: int = 0
    """It was retained while no log kept the topic, which came to this log with this routing generation: what
    the log has said since then stays. 0: it was published to this log."""


class Generation(Entry, frozen=True, tag="generation"):
    """What follows is of this routing generation [rule 17]."""

    generation: int


class Seal(Entry, frozen=True, tag="seal"):
    """The log is complete [rule 16]."""


class Sealed(Entry, frozen=True, tag="sealed"):
    """In place of a block that the leader did not take, because the log is being sealed."""


class Repeated(Entry, frozen=True, tag="repeated"):
    """In place of a block whose every message the leader left out [rules 2, 3]."""


class Trim(Entry, frozen=True, tag="trim"):
    """What is below this offset is gone for every reader [rule 18]."""

    offset: int


# ---------------------------------------------------------------------------------------- work division


class Members(Entry, frozen=True, tag="work.members"):
    """How many members of a shared group are connected at a node, and whether a session holds it there."""

    group: str
    node: str
    connected: int
    holds: bool
    is_gone: bool = False
    """The node is gone, its members are not: what it owed waits for whoever takes them over."""
    is_held: bool = False
    """A session with a record holds the group: what waits is for it, however long it waited."""


class BeginWork(Entry, frozen=True, tag="work.begin"):
    """A new run of this node: whatever an earlier one had given to members is forgotten there."""

    node: str


class Introduce(Entry, frozen=True, tag="work.introduce"):
    """What other logs say about groups that this log may not know."""

    groups: list[tuple[str, Holders]]


class Progress(NamedTuple):
    """How far a node is with one group."""

    group: str
    version: int
    position: int
    owed: list[Range]


class WorkDone(Entry, frozen=True, tag="work.done"):
    """A node tells how far it is with its groups."""

    node: str
    groups: list[Progress]


# ----------------------------------------------------------------------------------------------- staging


class Stage(Entry, frozen=True, tag="stage"):
    """A block of a writer, in the log outside the offsets. Alone in its control block, for its size."""

    key: bytes
    user: str
    rows: int
    block: bytes


class Settle(Entry, frozen=True, tag="settle"):
    """A writer's batch is through in this shard."""

    writer: str
    batch: int


class GiveUp(Entry, frozen=True, tag="give_up"):
    """The coordinator gave these attempts up."""

    attempts: list[AttemptKey]


class PassOver(Entry, frozen=True, tag="pass_over"):
    """A staged block was lost at a node that is alone: as if it were released."""

    key: str


ShardEntry = (
    Marker
    | Retain
    | Generation
    | Seal
    | Sealed
    | Repeated
    | Trim
    | Members
    | BeginWork
    | Introduce
    | WorkDone
    | Consume
    | Stage
    | Settle
    | GiveUp
    | PassOver
)

SHARD_ENTRIES: EntryCodec[ShardEntry] = EntryCodec(ShardEntry)
