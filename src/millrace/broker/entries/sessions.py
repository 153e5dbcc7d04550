"""What the log of the session group says: one struct per change of a session's record.

A node collects what its sessions do in one turn of the event loop and writes it as one `SessionBatch`, which
also says who wrote it: the operations of a node that no longer owns a session are void, because another node
has gone on from the record without them. So are those of an older *generation* of a node, which has gone on
from the record without them itself: because it started again, or because it gave up waiting for them.
`SessionStore` applies them.

Packet ids are said as runs, a first id and a count, and never wrap inside one operation. Offsets are said as
ranges, a first offset and a count.
"""

from millrace.broker.entries.codec import Entry, EntryCodec
from millrace.types import RetainHandling, Subscription

OffsetRange = tuple[int, int]
"""A first offset and how many follow, itself included."""


class SavedSubscription(Entry, frozen=True):
    """A subscription as a record keeps it."""

    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: RetainHandling
    identifier: int | None

    @staticmethod
    def of(subscription: Subscription) -> "SavedSubscription":
        return SavedSubscription(
            subscription.filter,
            subscription.qos,
            subscription.no_local,
            subscription.retain_as_published,
            subscription.retain_handling,
            subscription.identifier,
        )

    def restored(self) -> Subscription:
        return Subscription(
            filter=self.filter,
            qos=self.qos,
            no_local=self.no_local,
            retain_as_published=self.retain_as_published,
            retain_handling=self.retain_handling,
            identifier=self.identifier,
        )


class SavedWill(Entry, frozen=True):
    """The will of a connection, as the PUBLISH packet that it becomes."""

    topic: str
    packet: bytes
    qos: int
    v5: bool
    retain: bool
    delay_s: int
    expiry_s: int | None


class SavedCursor(Entry, frozen=True):
    """How far a session is in one shard: everything below `position` is done, except `outstanding`."""

    position: int
    outstanding: tuple[OffsetRange, ...] = ()

    @property
    def low(self) -> int:
        """The first offset that is not done."""
        return min([self.position, *(first for first, _ in self.outstanding)])


FROM_THE_START = SavedCursor(0)
"""Of a shard that was opened after the session subscribed."""


class Opened(Entry, frozen=True, tag="open"):
    """A client connects, and leaves something behind or takes up what it left."""

    client_id: str
    is_clean: bool
    username: str | None
    expiry_s: int
    will: SavedWill | None
    owner: str


class Adopted(Entry, frozen=True, tag="adopt"):
    """A node is gone for good or for long: another one looks after the sessions that it served, whose clients
    are away from then on unless they went before [rule 10]."""

    gone: str
    owner: str
    time_us: int
    known_epoch: int | None = None
    """Of the last `Opened` that the new owner knew. Records that were opened later stay where they are: it
    may have served such a client itself before, and not know yet that it moved. None, as older nodes write
    it, takes all."""


class Discarded(Entry, frozen=True, tag="discard"):
    """The client began a clean session at a node that does not own its record: the record ends, unless
    somebody has opened it since."""

    client_id: str
    epoch: int


class Ended(Entry, frozen=True, tag="end"):
    """The session is over. With a will that is on its way into a log, the record stays until `WillStored`."""

    client_id: str
    epoch: int
    will: SavedWill | None = None


class WillStored(Entry, frozen=True, tag="will"):
    """The will of the connection with this epoch is in its log, or was displaced and is not to be published:
    nobody need publish it again."""

    client_id: str
    epoch: int


class WentAway(Entry, frozen=True, tag="away"):
    """The connection is gone and the session stays, with the will that is delayed or on its way."""

    client_id: str
    epoch: int
    time_us: int
    expiry_s: int
    will: SavedWill | None = None


class Subscribed(Entry, frozen=True, tag="sub"):
    """A subscription is made or replaced. `starts`: by shard, where the session begins in logs that it had
    no cursor in."""

    client_id: str
    subscription: SavedSubscription
    starts: tuple[tuple[int, int], ...] = ()


class Unsubscribed(Entry, frozen=True, tag="unsub"):
    client_id: str
    filter: str


class Unanswered(Entry, frozen=True):
    """Messages of a shard that went to the client, with consecutive packet ids and offsets, and wait for
    PUBACK or PUBREC."""

    first_id: int
    count: int
    shard: int
    offset: int
    qos: int

    @property
    def end(self) -> int:
        """The offset behind the last of them."""
        return self.offset + self.count


class CursorsMoved(Entry, frozen=True, tag="cur"):
    """How far the session is in these shards, and what its client has not answered, in the order in which it
    was first sent: whoever goes on with the session sends it again in that order, under these ids (MQTT 4.4,
    4.6)."""

    client_id: str
    cursors: dict[int, SavedCursor]
    unanswered: tuple[Unanswered, ...] = ()
    """Not written by older nodes: messages at QoS 1 are read from their logs then, and come under new ids."""


class Qos2Received(Entry, frozen=True, tag="in"):
    """QoS 2 messages came from the client under these packet ids. None at all is a mark: what waits for this
    operation happens after everything before it."""

    client_id: str
    packet_ids: tuple[int, ...] = ()


class Qos2Released(Entry, frozen=True, tag="rel"):
    """The client sent PUBREL: it will not send these again."""

    client_id: str
    first_id: int
    count: int


class Qos2Sent(Entry, frozen=True, tag="out"):
    """QoS 2 messages of a shard, from `offset` on, go to the client under these packet ids."""

    client_id: str
    first_id: int
    count: int
    shard: int
    offset: int


class Qos2Acknowledged(Entry, frozen=True, tag="rec"):
    """The client sent PUBREC: it has these, and is told with PUBREL."""

    client_id: str
    first_id: int
    count: int


class Qos2Completed(Entry, frozen=True, tag="comp"):
    """The client sent PUBCOMP, or refused the messages: their packet ids are free."""

    client_id: str
    first_id: int
    count: int


StoreOperation = Opened | Adopted | Discarded | WillStored
"""What whoever writes it may do to any record."""

RecordOperation = (
    Ended
    | WentAway
    | Subscribed
    | Unsubscribed
    | CursorsMoved
    | Qos2Received
    | Qos2Released
    | Qos2Sent
    | Qos2Acknowledged
    | Qos2Completed
)
"""What only the owner of a record may do to it."""

Operation = StoreOperation | RecordOperation


class SessionBatch(Entry, frozen=True, tag="batch"):
    """Operations of one node, in order."""

    node: str
    operations: list[Operation]


class GenerationBegun(Entry, frozen=True, tag="generation"):
    """A node goes on from the records as they are here: the generation of what it writes is that of this
    entry. What it wrote before may still be on its way, and changes nothing behind this. `after` is the
    generation that the node found, 0 for none; where the records know another one, an older entry of this
    kind came first, and this one is void."""

    node: str
    after: int


SessionEntry = SessionBatch | GenerationBegun

SESSION_ENTRIES: EntryCodec[SessionEntry] = EntryCodec(SessionEntry)
