"""The cursors of all durable groups in one shard, and the operations that change them.

A part of the shard's replicated state: it changes only by `Consume` entries, and time is in the entry."""

from collections.abc import Callable, Iterable
from typing import assert_never

from millrace.broker.entries.consume import (
    Ack,
    Advance,
    Bury,
    Configure,
    Consume,
    Create,
    Delete,
    Extend,
    Nack,
    Operation,
    Reset,
    Skip,
    Take,
    Tick,
    Touch,
    Void,
)
from millrace.broker.freezing import Frozen
from millrace.broker.groups.cursor import Cursor, Delivery, SavedCursor, Scan

Result = list[Delivery] | list[bool] | bool
"""What an operation gives: deliveries for `Take` and `Void`, a truth for each delivery that it names, or one
truth for the rest."""


class Consumers:
    """Cursors by the group's number. A group without a cursor here is one that was deleted: its operations
    change nothing."""

    __slots__ = ("cursors", "frozen")

    def __init__(self) -> None:
        self.cursors: dict[int, Cursor] = {}
        self.frozen: Frozen[int, Cursor] | None = None
        """As long as a snapshot is made of them."""

    def apply(self, entry: Consume, time_us: int) -> list[Result]:
        """The result of each operation, at the time that the leader gave the entry [rule 37]."""
        return [self._do(operation, entry.scans, time_us) for operation in entry.operations]

    def _do(self, operation: Operation, scans: dict[int, Scan], now_us: int) -> Result:
        group = operation.group
        if self.frozen is not None:
            self.frozen.keep(group)
        cursor = self.cursors.get(group)
        if isinstance(operation, Create):
            if cursor is not None:
                return False
            self.cursors[group] = Cursor(operation.position, operation.settings, now_us)
            return True
        if cursor is None:
            return [] if isinstance(operation, Take | Void | Ack | Nack | Extend) else False
        match operation:
            case Take(_, request, count, lease_us, voided):
                return cursor.take(request, count, lease_us, now_us, scans.get(group), voided)
            case Void(_, request):
                return cursor.void(request)
            case Ack(_, epoch, deliveries):
                return _each(cursor, epoch, deliveries, cursor.ack)
            case Nack(_, epoch, deliveries, delay_us):
                return _each(cursor, epoch, deliveries, lambda o, n: cursor.nack(o, n, delay_us, now_us))
            case Extend(_, epoch, deliveries, lease_us):
                return _each(cursor, epoch, deliveries, lambda o, n: cursor.extend(o, n, lease_us, now_us))
            case Bury(_, offset):
                return cursor.bury(offset)
            case Tick():
                cursor.advance(now_us)
                cursor.expire(now_us)
            case Touch():
                cursor.used_us = now_us
            case Skip(_, start, end):
                if start <= cursor.position < end:
                    cursor.position = end
            case Reset(_, position):
                cursor.reset(position)
            case Advance(_, position):
                # Judged here, because another reader may have moved it further since this one looked.
                if position > cursor.position:
                    cursor.reset(position)
            case Configure(_, settings):
                cursor.set(settings)
            case Delete():
                del self.cursors[group]
            case _:
                assert_never(operation)
        return True

    def trim(self, first_offset: int) -> None:
        for group, cursor in self.cursors.items():
            if self.frozen is not None and cursor.low < first_offset:
                self.frozen.keep(group)
            cursor.trim(first_offset)

    def freeze(self) -> Frozen[int, Cursor]:
        self.frozen = _FrozenCursors(dict(sorted(self.cursors.items())))
        return self.frozen

    @staticmethod
    def restored(saved: Iterable[tuple[int, SavedCursor]]) -> "Consumers":
        consumers = Consumers()
        consumers.take_in(saved)
        return consumers

    def take_in(self, saved: Iterable[tuple[int, SavedCursor]]) -> None:
        """Those of a snapshot, or some of them."""
        self.cursors.update((group, Cursor.restored(cursor)) for group, cursor in saved)


class _FrozenCursors(Frozen[int, Cursor]):
    def row(self, key: int, value: Cursor) -> tuple[int, SavedCursor]:
        return key, value.save()


def _each(
    cursor: Cursor, epoch: int, deliveries: list[Delivery], act: Callable[[int, int], bool]
) -> list[bool]:
    return [epoch == cursor.epoch and act(offset, delivery) for offset, delivery in deliveries]
