"""What must survive of sessions: a replicated state of its own, changed only by the operations in its log.

An operation is a short list whose first element names it; `Journal` collects those of one turn of the loop,
with what is to happen once they are on disk. `SessionStore.apply` is deterministic. The live `Session` is
ahead of its record by what is not committed yet; nothing that depends on such an operation leaves before.

A record's cursor says, per shard: everything below `position` is done except the outstanding ranges. QoS 1
cursors are written in batches, so a crash repeats at most what was acknowledged since the last batch; QoS 2
ids are written before the packet that depends on them leaves [rule 8], and the offsets they stand
for are remembered above the cursor, so that a cursor from before does not send them again.
"""

import json
from collections.abc import Callable
from typing import Any

from millrace.errors import LocalError
from millrace.types import RetainHandling, Subscription

_STATE_VERSION = 1

Operation = list[Any]


class Record:
    """One client's durable state."""

    __slots__ = (
        "away_us",
        "client_id",
        "cursors",
        "epoch",
        "expiry_s",
        "handled",
        "incarnation",
        "is_resumed",
        "next_token",
        "owner",
        "received",
        "released",
        "sent",
        "subscriptions",
        "username",
        "will",
    )

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        # Whether the last open found it there.
        self.is_resumed = False
        # Tells this session from earlier ones of the same client: their tokens must not be mixed up.
        self.incarnation = 0
        # Raised by every open: an end or a farewell of an earlier connection may be written after it.
        self.epoch = 0
        self.username: str | None = None
        # The node that serves, or served, this client; only it changes the record, until another opens it.
        self.owner = ""
        self.expiry_s = 0
        # When the client went away, on the wall's clock; None while it is connected.
        self.away_us: int | None = None
        self.will: list[Any] | None = None
        self.subscriptions: dict[str, list[Any]] = {}
        # Shard -> [position, [[first offset, count], ...]].
        self.cursors: dict[int, list[Any]] = {}
        # Shard -> [[first offset, count], ...]: sent at QoS 2 since the cursor was written.
        self.handled: dict[int, list[list[int]]] = {}
        # QoS 2 from the client: packet id -> token, the key of the message in its shard.
        self.received: dict[int, int] = {}
        self.next_token = 1
        # QoS 2 to the client: packet id -> [shard, offset] until PUBREC, then the id until PUBCOMP.
        self.sent: dict[int, list[int]] = {}
        self.released: dict[int, None] = {}

    def subscription(self, filter: str) -> Subscription:
        qos, no_local, retain_as_published, handling, identifier = self.subscriptions[filter]
        return Subscription(
            filter=filter,
            qos=qos,
            no_local=bool(no_local),
            retain_as_published=bool(retain_as_published),
            retain_handling=RetainHandling(handling),
            identifier=identifier,
        )

    def to_json(self) -> list[Any]:
        return [
            self.client_id,
            self.username,
            self.expiry_s,
            self.away_us,
            self.will,
            sorted(self.subscriptions.items()),
            sorted(self.cursors.items()),
            sorted(self.received.items()),
            self.next_token,
            sorted(self.sent.items()),
            list(self.released),
            self.incarnation,
            sorted(self.handled.items()),
            self.owner,
            self.epoch,
        ]

    @staticmethod
    def from_json(fields: list[Any]) -> "Record":
        record = Record(fields[0])
        record.username, record.expiry_s, record.away_us, record.will = fields[1:5]
        record.subscriptions = dict(fields[5])
        record.cursors = dict(fields[6])
        record.received = dict(fields[7])
        record.next_token = fields[8]
        record.sent = dict(fields[9])
        record.released = dict.fromkeys(fields[10])
        record.incarnation = fields[11]
        record.handled = dict(fields[12])
        record.owner = fields[13]
        record.epoch = fields[14]
        return record


class SessionStore:
    """All records, by client id."""

    __slots__ = ("incarnations", "owners", "records")

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.incarnations = 0
        # Node -> how many records it looks after, as far as there are any.
        self.owners: dict[str, int] = {}

    def apply(self, operations: list[Operation]) -> None:
        """In order. `["by", node]` says whose operations follow: those of a node that no longer owns a
        session are void, because another has gone on from the record without them."""
        by: str | None = None
        for operation in operations:
            if operation[0] == "by":
                by = operation[1]
            else:
                self._apply_one(operation, by)

    def _apply_one(self, operation: Operation, by: str | None) -> None:
        name, client_id, *rest = operation
        if name == "adopt":
            self._adopt(client_id, *rest)
            return
        if name == "open":
            self._open(client_id, *rest)
            return
        record = self.records.get(client_id)
        if name == "discard":
            # By a node that does not own it: the client began a clean session there.
            if record is not None and record.epoch == rest[0]:
                self._forget(record)
            return
        if record is None or (by is not None and record.owner != by):
            # The session ended, or moved, before this was applied.
            return
        match name:
            case "end":
                if not rest or rest[0] == record.epoch:
                    self._end(record, *rest[1:])
            case "fired":
                if rest[0] == record.epoch:
                    record.will = None
                    if not record.expiry_s and record.away_us is not None:
                        self._forget(record)
            case "away":
                away_us, will, epoch, *expiry_s = rest
                if epoch == record.epoch:
                    record.away_us, record.will = away_us, will
                    record.expiry_s = expiry_s[0] if expiry_s else record.expiry_s
            case "sub":
                filter, options, starts = rest
                record.subscriptions[filter] = options
                for shard, offset in starts:
                    record.cursors.setdefault(shard, [offset, []])
            case "unsub":
                record.subscriptions.pop(rest[0], None)
                if not record.subscriptions:
                    self._let_go_of_logs(record)
            case "cur":
                for shard, position, outstanding in rest[0]:
                    record.cursors[shard] = [position, outstanding]
                    low = min([first for first, _ in outstanding], default=position)
                    handled = [r for r in record.handled.pop(shard, ()) if r[0] + r[1] > low]
                    if handled:
                        record.handled[shard] = handled
            case "in":
                for packet_id in rest[0]:
                    record.received[packet_id] = record.next_token
                    record.next_token += 1
            case "rel":
                for packet_id in range(rest[0], rest[0] + rest[1]):
                    record.received.pop(packet_id, None)
            case "out":
                first, count, shard, offset = rest
                for position in range(count):
                    record.sent[first + position] = [shard, offset + position]
                handled = record.handled.setdefault(shard, [])
                if handled and sum(handled[-1]) == offset:
                    handled[-1][1] += count
                else:
                    handled.append([offset, count])
            case "rec":
                for packet_id in range(rest[0], rest[0] + rest[1]):
                    record.sent.pop(packet_id, None)
                    record.released[packet_id] = None
            case "comp":
                for packet_id in range(rest[0], rest[0] + rest[1]):
                    record.sent.pop(packet_id, None)
                    record.released.pop(packet_id, None)
            case _:
                raise LocalError(f"unknown session operation {name!r}")

    @staticmethod
    def _let_go_of_logs(record: Record) -> None:
        """Nothing more is wanted of them, but what the client has not answered comes again."""
        for shard in [shard for shard, (_, outstanding) in record.cursors.items() if not outstanding]:
            del record.cursors[shard]
            record.handled.pop(shard, None)

    def _end(self, record: Record, will: list[Any] | None = None) -> None:
        """With a will that is on its way: the record ends with the word that it is stored."""
        if will is None:
            self._forget(record)
            return
        record.expiry_s, record.will = 0, will
        record.away_us = record.away_us or 0

    def _forget(self, record: Record) -> None:
        del self.records[record.client_id]
        self._count(record.owner, -1)

    def _count(self, owner: str, change: int) -> None:
        count = self.owners.pop(owner, 0) + change
        if count:
            self.owners[owner] = count

    def _adopt(self, gone: str, owner: str, time_us: int) -> None:
        """A node is gone for good or for long: another looks after the sessions it served, whose clients are
        away from now on unless they went before [rule 10]."""
        for record in self.records.values():
            if record.owner == gone:
                self._count(gone, -1)
                self._count(owner, 1)
                record.owner = owner
                if record.away_us is None:
                    record.away_us = time_us

    def _open(
        self,
        client_id: str,
        is_clean: bool,
        username: str | None,
        expiry_s: int,
        will: list[Any] | None,
        owner: str = "",
    ) -> None:
        record = self.records.get(client_id)
        if record is not None:
            # What was clean did not outlive its connection, whatever its will left behind.
            record.is_resumed = not is_clean and record.expiry_s > 0
            self._count(record.owner, -1)
        self.incarnations += 1
        if record is None or not record.is_resumed:
            record = self.records[client_id] = Record(client_id)
            record.incarnation = self.incarnations
        record.epoch = self.incarnations
        record.username = username
        record.owner = owner
        self._count(owner, 1)
        record.expiry_s = expiry_s
        record.will = will
        record.away_us = None

    def to_bytes(self) -> bytes:
        records = [record.to_json() for _, record in sorted(self.records.items())]
        return json.dumps([_STATE_VERSION, self.incarnations, records], separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> "SessionStore":
        version, incarnations, records = json.loads(data)
        if version != _STATE_VERSION:
            raise LocalError(f"sessions on disk have version {version}, not {_STATE_VERSION}")
        store = SessionStore()
        store.incarnations = incarnations
        for fields in records:
            record = Record.from_json(fields)
            store.records[record.client_id] = record
            store._count(record.owner, 1)
        return store


class Journal:
    """Operations on their way to the disk, in order, each with what waits for it.

    Off by default: a broker without a log (a test, an embedded toy) runs what waits at once.
    """

    __slots__ = ("is_on", "operations", "waiting")

    def __init__(self) -> None:
        self.is_on = False
        self.operations: list[Operation] = []
        self.waiting: list[Callable[[], None]] = []

    def add(self, operation: Operation, then: Callable[[], None] | None = None) -> None:
        """Write an operation; `then` runs on the loop once it is on disk, in order with the others."""
        if not self.is_on:
            if then is not None:
                then()
            return
        self.operations.append(operation)
        if then is not None:
            self.waiting.append(then)

    def after(self, then: Callable[[], None]) -> None:
        """Run `then` once everything that was added in this turn is on disk."""
        if self.operations:
            self.waiting.append(then)
        else:
            then()

    def take(self) -> tuple[list[Operation], list[Callable[[], None]]]:
        operations, self.operations = self.operations, []
        waiting, self.waiting = self.waiting, []
        return operations, waiting


def producer_of(record: Record) -> bytes:
    """The producer under which the QoS 2 messages of this session are keyed in their shards."""
    return f"qos2/{record.incarnation}/{record.client_id}".encode()


def encode(operations: list[Operation]) -> bytes:
    return json.dumps(operations, separators=(",", ":")).encode()


def decode(data: bytes) -> list[Operation]:
    operations: list[Operation] = json.loads(data)
    return operations


def subscribe_operation(
    client_id: str, subscription: Subscription, starts: list[tuple[int, int]]
) -> Operation:
    options = [
        subscription.qos,
        int(subscription.no_local),
        int(subscription.retain_as_published),
        int(subscription.retain_handling),
        subscription.identifier,
    ]
    return ["sub", client_id, subscription.filter, options, starts]
