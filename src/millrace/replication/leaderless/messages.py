"""What a leaderless replica hears and says: its events and effects, and the bodies between replicas.

Ticks, links, peer messages and `Persisted` are those of the contract, and so are the driver's duties about
the order of effects. What differs: there are many logs, one for each origin, and a replica writes to one of
them only; an entry has an index in its log and, if it is data, offsets for its messages.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from millrace.replication.contract import (
    EntryKind,
    LinkClosed,
    LinkOpened,
    PeerBody,
    PeerMessage,
    Persisted,
    ReplicaId,
    RequestId,
    Send,
    Tick,
)


class Level(Enum):
    """How many disks hold a message before its publisher is answered; the own one is always among them."""

    LOCAL = "local"
    ONE = "one"
    """One other."""
    MAJORITY = "majority"
    """Of the members."""
    ALL = "all"


class Origin(NamedTuple):
    """Who writes a log: one node, from one start whose log was not provably whole to the next such start
    [rule 25]."""

    node: str
    incarnation: int


class Position(NamedTuple):
    """How far somebody holds a log: every entry up to this one, and every message below `offset`."""

    entry: int
    offset: int


NOWHERE = Position(0, 0)

Positions = dict[Origin, Position]
"""A version vector."""


class Generation(NamedTuple):
    """Orders the divisions of work of one group [rule 26]."""

    counter: int
    initiator: str


NEVER = Generation(0, "")


class Span(NamedTuple):
    """Messages `start` up to `end`, `end` not included, of one log."""

    origin: Origin
    start: int
    end: int


Spans = tuple[Span, ...]


class LogEntry(Struct, frozen=True, kw_only=True):
    kind: EntryKind
    """DATA or CONTROL; control entries are the machine's own and hold no messages."""
    count: int
    """Messages in it."""
    payload: bytes


class OriginLogs(Protocol):
    """A machine's whole sight of its disk. Shows at least what `Persisted` reported."""

    def extents(self) -> Mapping[Origin, tuple[Position, Position]]:
        """Of every log: where it begins (the position before its first entry) and where it ends."""

    def begin(self, origin: Origin) -> Position:
        """Where the log begins now; removal moves it."""

    def entries(
        self, origin: Origin, first: int, last: int, bytes_max: int
    ) -> tuple[int, Sequence[LogEntry]]:
        """Entries `first` to `last` in order and the offset before them, cut once the payloads pass
        bytes_max, at least one if it can be had now; none where it is not there, or not now."""


# ------------------------------------------------------------------------------------------ events


class Publish(Struct, frozen=True, kw_only=True):
    """Append these blocks (messages in each, bytes) to the own log. Answered `Placed` or `Overloaded` in the
    same list, and `Acknowledged` once the level is reached."""

    request: RequestId
    blocks: tuple[tuple[int, bytes], ...]


class Await(Struct, frozen=True, kw_only=True):
    """Answer `Acknowledged`, behind what was published before, once everything that is here now has reached
    the level: a publisher repeats a message of which nobody knows how far it got. Or `Overloaded`."""

    request: RequestId


class Subscribe(Struct, frozen=True, kw_only=True):
    """A client is a member of a group, which is made with these filters if nobody knows it: it begins at the
    end of the logs here, or at their beginning. Answered `Acknowledged` when the own disk has it."""

    request: RequestId
    group: str
    client: str
    """Empty: the group is made, and nobody joins it."""
    filters: tuple[str, ...]
    wall_us: int
    from_start: bool = False
    saved_position: bytes = b""
    """Of a group that `GroupRemoved`: where it was, if it must be made again."""


class Unsubscribe(Struct, frozen=True, kw_only=True):
    """A client is not a member any more. With `is_last_out` the group goes with its last client."""

    request: RequestId
    group: str
    client: str
    wall_us: int
    is_last_out: bool = True


class RemoveGroup(Struct, frozen=True, kw_only=True):
    request: RequestId
    group: str
    wall_us: int


class Connected(Struct, frozen=True, kw_only=True):
    """So many members of the group are connected at this node now."""

    group: str
    members: int


class Take(Struct, frozen=True, kw_only=True):
    """Ask for up to `count` messages of a group for a member here. Answered by `Given`."""

    group: str
    count: int


class Settle(Struct, frozen=True, kw_only=True):
    """Members acknowledged these messages, or the group does not want them."""

    group: str
    spans: Spans


class Release(Struct, frozen=True, kw_only=True):
    """Given messages came back: their member went without an acknowledgement."""

    group: str
    spans: Spans


class SetMembers(Struct, frozen=True, kw_only=True):
    """The nodes that keep this stream, this one among them."""

    members: tuple[ReplicaId, ...]


class SetHolds(Struct, frozen=True, kw_only=True):
    """Nothing from these offsets on may be removed yet, whatever the groups say; the rest may. To be told
    again and again: what was true a while ago is not asked."""

    holds: tuple[tuple[Origin, int], ...]


class Slept(Struct, frozen=True, kw_only=True):
    """So many ticks went by that this node was not given: it stood still. To be told before anything else
    that happens then, above all before a `Take`."""

    ticks: int


class SetLevel(Struct, frozen=True, kw_only=True):
    level: Level


class Reorganise(Struct, frozen=True, kw_only=True):
    """Begin a session now; with `order`, these nodes are the result, whatever numbers they draw."""

    group: str
    order: tuple[ReplicaId, ...] = ()


LeaderlessEvent: TypeAlias = (
    Tick
    | PeerMessage
    | Persisted
    | LinkOpened
    | LinkClosed
    | Publish
    | Await
    | Subscribe
    | Unsubscribe
    | RemoveGroup
    | Connected
    | Take
    | Settle
    | Release
    | SetMembers
    | SetHolds
    | SetLevel
    | Slept
    | Reorganise
)


# ----------------------------------------------------------------------------------------- effects


class PersistLog(Struct, frozen=True, kw_only=True):
    """Numbered and ordered like `Persist`. With `begin` the log of this origin is empty and begins behind
    that position, and `state`, merged into what is on disk, takes the place of what was there before."""

    number: int
    origin: Origin
    first_index: int
    entries: tuple[LogEntry, ...] = ()
    begin: Position | None = None
    state: bytes | None = None


class Stored(Struct, frozen=True, kw_only=True):
    """Everything up to `index` of this log is on this disk: give it to the clients here. In order, each index
    once; what a `begin` passed over is left out."""

    origin: Origin
    index: int


class Placed(Struct, frozen=True, kw_only=True):
    request: RequestId
    origin: Origin
    first_index: int
    offset: int


class Overloaded(Struct, frozen=True, kw_only=True):
    """Too much waits for its level or for the disk, or there are too many groups or clients: nothing was
    done."""

    request: RequestId


class Acknowledged(Struct, frozen=True, kw_only=True):
    request: RequestId


class Given(Struct, frozen=True, kw_only=True):
    """Messages that are this node's to deliver now; none where there is nothing to do."""

    group: str
    spans: Spans


class Divided(Struct, frozen=True, kw_only=True):
    """The work of a group is divided: look for work. `order` are the nodes that deliver."""

    group: str
    generation: Generation
    order: tuple[str, ...]


class GroupRemoved(Struct, frozen=True, kw_only=True):
    """The group was removed: if clients here still want it, whether or not they are connected, subscribe them
    again with this saved position, so that it goes on where it was."""

    group: str
    saved_position: bytes


class Remove(Struct, frozen=True, kw_only=True):
    """Everything below `offset` in this log is done with, everywhere: the disk may forget it."""

    origin: Origin
    offset: int


class Overtaken(Struct, frozen=True, kw_only=True):
    """A peer holds more of this node's own log than this node does: the log was not whole. Stop this machine
    and start one under another incarnation."""

    by: ReplicaId


LeaderlessEffect: TypeAlias = (
    Send
    | PersistLog
    | Stored
    | Placed
    | Overloaded
    | Acknowledged
    | Given
    | Divided
    | GroupRemoved
    | Remove
    | Overtaken
)


# ------------------------------------------------------------------------------------ peer messages

WirePositions = tuple[tuple[Origin, Position], ...]
"""In the order of origins."""

Holding = tuple[tuple[Origin, tuple[tuple[int, int], ...]], ...]
"""Ranges of each log."""


class Heard(NamedTuple):
    """A peer that the sender of a pulse hears."""

    node: str
    boot: int
    number: int
    """Of its last pulse that said that it hears the sender too; 0 for none. For `silent_ticks` from then on
    it is not left out of a division."""


class Pulse(PeerBody, frozen=True, kw_only=True):
    """Every few ticks to every member: what the sender holds, whom it hears, how its work is divided."""

    boot: int
    """Another one after every start: it may hold less than before."""
    number: int
    """The sender's ticks until now, those that it slept through included. Of two that overtook each other the
    later one counts."""
    positions: WirePositions
    hears: tuple[Heard, ...]
    work_division: tuple[tuple[str, Generation], ...]
    """The division in force of each group; those in between two are left out."""


class Entries(PeerBody, frozen=True, kw_only=True):
    origin: Origin
    first_index: int
    base_offset: int
    entries: tuple[LogEntry, ...]


class Have(PeerBody, frozen=True, kw_only=True):
    """The sender's disk holds this log up to here."""

    origin: Origin
    position: Position


class Pull(PeerBody, frozen=True, kw_only=True):
    """Send this log from that index on."""

    origin: Origin
    first_index: int


class Begin(PeerBody, frozen=True, kw_only=True):
    """What comes before was removed here. `state` is all that control entries said up to now."""

    origin: Origin
    begin: Position
    state: bytes


class Reorg(PeerBody, frozen=True, kw_only=True):
    """A session begins: stop taking work of this group and answer."""

    group: str
    generation: Generation


class Answer(PeerBody, frozen=True, kw_only=True):
    group: str
    generation: Generation
    number: int | None
    """Random; None from a node without a member of the group."""
    in_flight: Holding
    """In the hands of members: it stays there until it is acknowledged or the member is gone."""
    positions: WirePositions


class Install(PeerBody, frozen=True, kw_only=True):
    """The session's result."""

    group: str
    generation: Generation
    order: tuple[str, ...]
    is_manual: bool
    """Somebody chose the order: who has members does not change it."""
    participants: tuple[str, ...]
    """Who answered. Those left out were cut off and may go by a division of their own."""
    holdings: tuple[tuple[str, Holding], ...]
    needs: WirePositions
    """What a node must hold before it takes work: every mark that anybody had made."""


class Superseded(PeerBody, frozen=True, kw_only=True):
    """Your session is older than one I answered."""

    group: str
    generation: Generation


LeaderlessBody: TypeAlias = Pulse | Entries | Have | Pull | Begin | Reorg | Answer | Install | Superseded
