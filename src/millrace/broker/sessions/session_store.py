"""What must survive of sessions: a replicated state of its own, changed only by the operations in its log.

`SessionStore.apply` is deterministic; the operations come from `journal.py`. The live `Session` is ahead of
its record by what is not committed yet; nothing that depends on such an operation leaves before.

A record's cursor says, per shard: everything below `position` is done except the outstanding ranges. QoS 1
cursors are written in batches, so a crash repeats at most what was acknowledged since the last batch; QoS 2
ids are written before the packet that depends on them leaves [rule 8], and the offsets they stand
for are remembered above the cursor, so that a cursor from before does not send them again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, get_args

import msgspec

from millrace.broker.entries.sessions import (
    Adopted,
    CursorsMoved,
    Discarded,
    Ended,
    GenerationBegun,
    OffsetRange,
    Opened,
    Qos2Acknowledged,
    Qos2Completed,
    Qos2Received,
    Qos2Released,
    Qos2Sent,
    RecordOperation,
    SavedCursor,
    SavedSubscription,
    SavedWill,
    SessionBatch,
    SessionEntry,
    StoreOperation,
    Subscribed,
    Unanswered,
    Unsubscribed,
    WentAway,
    WillStored,
)
from millrace.broker.freezing import Frozen, Pieces, array_head, finished
from millrace.broker.saved_state import read_saved
from millrace.limits import DISPLACED_WILLS_MAX

_STATE_VERSION = 2


class Record(msgspec.Struct, array_like=True):
    """One client's durable state. In a snapshot its fields are found by their position: a new one goes to the
    end and has a default."""

    client_id: str
    is_resumed: bool = False
    """Whether the last `Opened` found it there."""
    incarnation: int = 0
    """Tells this session from earlier ones of the same client: their tokens must not be mixed up."""
    epoch: int = 0
    """Raised by every `Opened`: what an earlier connection leaves behind may be written after it."""
    username: str | None = None
    owner: str = ""
    """The node that serves, or served, this client; only it changes the record, until another opens it."""
    expiry_s: int = 0
    away_us: int | None = None
    """When the client went away, by the wall clock; None while it is connected."""
    will: SavedWill | None = None
    subscriptions: dict[str, SavedSubscription] = {}
    """By filter."""
    cursors: dict[int, SavedCursor] = {}
    """By shard."""
    handled: dict[int, list[OffsetRange]] = {}
    """By shard: what was sent at QoS 2 since the cursor was written."""
    received: dict[int, int] = {}
    """QoS 2 from the client: packet id -> token, the key of the message in its shard."""
    next_token: int = 1
    sent: dict[int, tuple[int, int]] = {}
    """QoS 2 to the client until PUBREC: packet id -> shard and offset."""
    released: dict[int, None] = {}
    """QoS 2 to the client after PUBREC until PUBCOMP: packet ids in the order of their PUBRECs."""
    unanswered: tuple[Unanswered, ...] = ()
    """As the last `CursorsMoved` has it. Of those at QoS 2, `sent` says which still are."""


class DisplacedWill(msgspec.Struct, array_like=True):
    """The will of a connection whose record is another's by now, and that is due all the same: kept until it
    is known to be stored, or the client to be back."""

    client_id: str
    epoch: int
    owner: str
    """The node that publishes it: the one that had the connection, until another looks after what it left."""
    username: str | None
    will: SavedWill


class SessionRecords(Protocol):
    """The records of all sessions of the cluster, as the broker asks for them."""

    def find(self, client_id: str) -> Record | None: ...

    def displaced_wills(self, client_id: str) -> Sequence[DisplacedWill]: ...


class Records(Mapping[str, Record]):
    """All records, by client id. That of a client who is away is packed, as a snapshot holds it: most
    sessions of a fleet are away most of the time, and packed it takes a fifth of the memory. What is looked
    up is a copy then, and a change to it counts once it is kept again."""

    __slots__ = ("_held", "frozen")

    def __init__(self) -> None:
        self._held: dict[str, Record | bytes] = {}
        self.frozen: Frozen[str, Record | bytes] | None = None
        """As long as a snapshot is made of them."""

    def __getitem__(self, client_id: str) -> Record:
        held = self._held[client_id]
        if isinstance(held, Record):
            return held
        record = _record_decoder.decode(held)
        # Whoever walks over all has the text by which it is kept here: there need not be another one.
        record.client_id = client_id
        return record

    def find(self, client_id: str) -> Record | None:
        held = self._held.get(client_id)
        return _record_decoder.decode(held) if isinstance(held, bytes) else held

    def of(self, owner: str) -> Iterator[Record]:
        """Those that this node looks after, as they are now. Most others are not even unpacked."""
        name = owner.encode()
        for held in list(self._held.values()):
            if isinstance(held, bytes) and name not in held:
                continue
            record = held if isinstance(held, Record) else _record_decoder.decode(held)
            if record.owner == owner:
                yield record

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def changes(self, client_id: str) -> None:
        """Called before the record of this client is changed, replaced or dropped."""
        if self.frozen is not None:
            self.frozen.keep(client_id)

    def keep(self, record: Record) -> None:
        """A record that is new, or a copy that was changed."""
        self._held[record.client_id] = record if record.away_us is None else _encoder.encode(record)

    def drop(self, client_id: str) -> None:
        del self._held[client_id]

    def freeze(self) -> "Frozen[str, Record | bytes]":
        self.frozen = _FrozenRecords(self._held)
        return self.frozen


class _FrozenRecords(Frozen[str, Record | bytes]):
    """As a snapshot holds them; what is packed goes there as it is."""

    def row(self, key: str, value: Record | bytes) -> msgspec.Raw:
        return msgspec.Raw(_encoder.encode(value) if isinstance(value, Record) else value)


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    incarnations: int
    records: list[Record]
    generations: dict[str, int] = {}
    displaced: list[DisplacedWill] = []


class SessionStore:
    """All records, by client id."""

    __slots__ = ("displaced", "generations", "incarnations", "owners", "records")

    def __init__(self) -> None:
        self.records = Records()
        self.incarnations = 0
        # By client, the oldest first; a client without any is not in it.
        self.displaced: dict[str, list[DisplacedWill]] = {}
        # Node -> how many records and displaced wills it looks after, as far as there are any.
        self.owners: dict[str, int] = {}
        # Node -> the generation of it that may write, for nodes that have begun one.
        self.generations: dict[str, int] = {}

    def find(self, client_id: str) -> Record | None:
        return self.records.find(client_id)

    def displaced_wills(self, client_id: str) -> Sequence[DisplacedWill]:
        return self.displaced.get(client_id, ())

    def apply(self, entry: SessionEntry, generation: int = 0) -> bool:
        """What a node wrote in this generation of it. Returns False where it is void as a whole, because the
        node goes on in another one."""
        if isinstance(entry, GenerationBegun):
            if self.generations.get(entry.node, 0) != entry.after:
                return False
            self.generations[entry.node] = generation
            return True
        if self.generations.get(entry.node, generation) != generation:
            return False
        self._apply_batch(entry)
        return True

    def _apply_batch(self, batch: SessionBatch) -> None:
        """The operations of a batch, in order. One whose session has ended, or moved to another node, before
        it is applied changes nothing."""
        records = self.records
        for operation in batch.operations:
            kind = type(operation)
            change_record = _RECORD_CHANGES.get(kind)
            if change_record is None:
                _STORE_CHANGES[kind](self, operation, batch.node)
                continue
            record = records.find(operation.client_id)  # type: ignore[union-attr]
            if record is not None and record.owner == batch.node:
                records.changes(record.client_id)
                change_record(self, record, operation)
                if record.away_us is not None and record.client_id in records:
                    records.keep(record)

    # ------------------------------------------------------------------------- who owns a session

    def _opened(self, operation: Opened, _: str) -> None:
        self.records.changes(operation.client_id)
        record = self.records.find(operation.client_id)
        if record is not None:
            if record.username not in (None, operation.username):
                # Two users came at the same time, at different nodes: the session is that of the first.
                return
            # What was clean did not outlive its connection, whatever its will left behind.
            record.is_resumed = not operation.is_clean and record.expiry_s > 0
            if record.will is not None and not (record.is_resumed and record.will.delay_s):
                self._displace(record, record.will)
            self._count(record.owner, -1)
        self.incarnations += 1
        if record is None or not record.is_resumed:
            record = Record(operation.client_id)
            record.incarnation = self.incarnations
        record.epoch = self.incarnations
        record.username = operation.username
        record.owner = operation.owner
        self._count(operation.owner, 1)
        record.expiry_s = operation.expiry_s
        record.will = operation.will
        record.away_us = None
        self.records.keep(record)

    def _adopted(self, operation: Adopted, _: str) -> None:
        known = self.incarnations if operation.known_epoch is None else operation.known_epoch
        for record in self.records.of(operation.gone):
            if record.epoch <= known:
                self.records.changes(record.client_id)
                self._count(operation.gone, -1)
                self._count(operation.owner, 1)
                record.owner = operation.owner
                if record.away_us is None:
                    record.away_us = operation.time_us
                self.records.keep(record)
        for wills in self.displaced.values():
            for one in wills:
                if one.owner == operation.gone:
                    self._count(operation.gone, -1)
                    self._count(operation.owner, 1)
                    one.owner = operation.owner

    def _discarded(self, operation: Discarded, _: str) -> None:
        record = self.records.find(operation.client_id)
        if record is not None and record.epoch == operation.epoch:
            self.records.changes(record.client_id)
            self._forget(record)

    # --------------------------------------------------------------------------- its end, its will

    def _ended(self, record: Record, operation: Ended) -> None:
        if operation.epoch != record.epoch:
            return
        if operation.will is None:
            self._forget(record)
            return
        record.expiry_s, record.will = 0, operation.will
        record.away_us = record.away_us or 0

    def _will_stored(self, operation: WillStored, node: str) -> None:
        client_id = operation.client_id
        self.records.changes(client_id)
        record = self.records.find(client_id)
        if record is not None and record.owner == node and operation.epoch == record.epoch:
            record.will = None
            if not record.expiry_s and record.away_us is not None:
                self._forget(record)
            else:
                self.records.keep(record)
        for position, one in enumerate(self.displaced.get(client_id, ())):
            if one.epoch == operation.epoch:
                self._drop_displaced(client_id, position)
                return

    def _displace(self, record: Record, will: SavedWill) -> None:
        """The next connection takes the record, and the will of this one is due: whoever had it publishes it,
        and might fall before it has."""
        kept = self.displaced.setdefault(record.client_id, [])
        kept.append(DisplacedWill(record.client_id, record.epoch, record.owner, record.username, will))
        self._count(record.owner, 1)
        if len(kept) > DISPLACED_WILLS_MAX:
            self._drop_displaced(record.client_id, 0)

    def _drop_displaced(self, client_id: str, position: int) -> None:
        kept = self.displaced[client_id]
        self._count(kept.pop(position).owner, -1)
        if not kept:
            del self.displaced[client_id]

    def _went_away(self, record: Record, operation: WentAway) -> None:
        if operation.epoch == record.epoch:
            record.away_us = operation.time_us
            record.expiry_s = operation.expiry_s
            record.will = operation.will

    def _forget(self, record: Record) -> None:
        self.records.drop(record.client_id)
        self._count(record.owner, -1)

    def _count(self, owner: str, change: int) -> None:
        count = self.owners.pop(owner, 0) + change
        if count:
            self.owners[owner] = count

    # ----------------------------------------------------------------------- subscriptions, cursors

    def _subscribed(self, record: Record, operation: Subscribed) -> None:
        record.subscriptions[operation.subscription.filter] = operation.subscription
        for shard, offset in operation.starts:
            if shard not in record.cursors:
                record.cursors[shard] = SavedCursor(offset)

    def _unsubscribed(self, record: Record, operation: Unsubscribed) -> None:
        record.subscriptions.pop(operation.filter, None)
        if record.subscriptions:
            return
        # Nothing more is wanted of the logs, but what the client has not answered comes again.
        for shard in [shard for shard, cursor in record.cursors.items() if not cursor.outstanding]:
            del record.cursors[shard]
            record.handled.pop(shard, None)

    def _cursors_moved(self, record: Record, operation: CursorsMoved) -> None:
        record.cursors.update(operation.cursors)
        record.unanswered = operation.unanswered
        if not record.handled:
            return
        for shard, cursor in operation.cursors.items():
            low = cursor.low
            handled = [r for r in record.handled.pop(shard, ()) if r[0] + r[1] > low]
            if handled:
                record.handled[shard] = handled

    # --------------------------------------------------------------------------------------- QoS 2

    def _qos2_received(self, record: Record, operation: Qos2Received) -> None:
        for packet_id in operation.packet_ids:
            record.received[packet_id] = record.next_token
            record.next_token += 1

    def _qos2_released(self, record: Record, operation: Qos2Released) -> None:
        for packet_id in range(operation.first_id, operation.first_id + operation.count):
            record.received.pop(packet_id, None)

    def _qos2_sent(self, record: Record, operation: Qos2Sent) -> None:
        shard, offset, count = operation.shard, operation.offset, operation.count
        for position in range(count):
            record.sent[operation.first_id + position] = (shard, offset + position)
        handled = record.handled.setdefault(shard, [])
        if handled and sum(handled[-1]) == offset:
            first, before = handled[-1]
            handled[-1] = (first, before + count)
        else:
            handled.append((offset, count))

    def _qos2_acknowledged(self, record: Record, operation: Qos2Acknowledged) -> None:
        for packet_id in range(operation.first_id, operation.first_id + operation.count):
            record.sent.pop(packet_id, None)
            record.released[packet_id] = None

    def _qos2_completed(self, record: Record, operation: Qos2Completed) -> None:
        for packet_id in range(operation.first_id, operation.first_id + operation.count):
            record.sent.pop(packet_id, None)
            record.released.pop(packet_id, None)

    # ----------------------------------------------------------------------------------- snapshots

    def freeze(self) -> "FrozenSessions":
        """All of it as it is now, to be encoded while it goes on."""
        return FrozenSessions(self)

    def to_bytes(self) -> bytes:
        """The same on every node that applied the same batches: dictionaries keep their order."""
        frozen, pieces = self.freeze(), Pieces()
        finished(frozen.encode(pieces))
        frozen.end()
        return pieces.joined()

    @staticmethod
    def from_bytes(data: bytes) -> "SessionStore":
        store = SessionStore()
        finished(store.load(data))
        return store

    def load(self, data: bytes, rows: Iterable[tuple[str, bytes]] = ()) -> Iterator[None]:
        """Fill this one, which is new, from a snapshot, in steps. `data` may lack records, which follow."""
        snapshot = read_saved(_decoder, data, _STATE_VERSION, "state of the sessions")
        self.incarnations = snapshot.incarnations
        self.generations = snapshot.generations
        for one in snapshot.displaced:
            self.displaced.setdefault(one.client_id, []).append(one)
            self._count(one.owner, 1)
        self._take_in(snapshot.records)
        for _, some in rows:
            self._take_in(_records_decoder.decode(some))
            yield

    def _take_in(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records.keep(record)
            self._count(record.owner, 1)


class FrozenSessions:
    """All sessions after one entry, to be encoded while they go on. One at a time."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._incarnations = store.incarnations
        self._records = store.records.freeze()
        self._generations = dict(store.generations)
        # Few, and encoded at once: they are of clients that came back before their wills were published.
        self._displaced = _encoder.encode([one for kept in store.displaced.values() for one in kept])

    def encode(self, pieces: Pieces) -> Iterator[None]:
        """As `_Snapshot`."""
        pieces.add(array_head(5), _encoder.encode(_STATE_VERSION), _encoder.encode(self._incarnations))
        yield from pieces.rows("records", self._records.rows(), _raw_bytes)
        pieces.add(_encoder.encode(self._generations), self._displaced)

    def end(self) -> None:
        self._store.records.frozen = None


def _raw_bytes(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)
_record_decoder = msgspec.msgpack.Decoder(Record)
_records_decoder = msgspec.msgpack.Decoder(list[Record])

_STORE_CHANGES: dict[type, Callable[[SessionStore, Any, str], None]] = {
    Opened: SessionStore._opened,
    Adopted: SessionStore._adopted,
    Discarded: SessionStore._discarded,
    WillStored: SessionStore._will_stored,
}
_RECORD_CHANGES: dict[type, Callable[[SessionStore, Record, Any], None]] = {
    Ended: SessionStore._ended,
    WentAway: SessionStore._went_away,
    Subscribed: SessionStore._subscribed,
    Unsubscribed: SessionStore._unsubscribed,
    CursorsMoved: SessionStore._cursors_moved,
    Qos2Received: SessionStore._qos2_received,
    Qos2Released: SessionStore._qos2_released,
    Qos2Sent: SessionStore._qos2_sent,
    Qos2Acknowledged: SessionStore._qos2_acknowledged,
    Qos2Completed: SessionStore._qos2_completed,
}
assert _STORE_CHANGES.keys() == set(get_args(StoreOperation)), "every operation is applied"
assert _RECORD_CHANGES.keys() == set(get_args(RecordOperation)), "every operation is applied"
