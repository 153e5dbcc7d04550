"""A session from its record: where it goes on in a log whose local copy may be behind the record."""

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.entries.codec import EntryCodec
from millrace.broker.entries.sessions import (
    SESSION_ENTRIES,
    CursorsMoved,
    Entry,
    OffsetRange,
    SavedCursor,
    SessionBatch,
    Unanswered,
)
from millrace.broker.machine import Broker
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import Record
from millrace.limits import Limits
from unit.node.house import House

SHARD = 7


def restored(
    *, end: int, position: int, outstanding: list[OffsetRange], handled: list[OffsetRange]
) -> Session:
    broker = Broker(Limits(), AccessRules(()))
    broker.log_ends[SHARD] = end
    record = Record("c")
    record.expiry_s = 100
    record.cursors[SHARD] = SavedCursor(position, tuple(outstanding))
    if handled:
        record.handled[SHARD] = handled
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    return broker.sessions["c"]


def test_at_the_end_of_the_log_it_is_live() -> None:
    assert not restored(end=5, position=5, outstanding=[], handled=[]).lag


@pytest.mark.parametrize("end", (0, 3))
def test_above_the_local_end_it_waits_there(end: int) -> None:
    """The replica has yet to apply what the client has acknowledged; it must not come as new."""
    assert restored(end=end, position=5, outstanding=[], handled=[]).lag == {SHARD: 5}


def test_qos_2_messages_that_were_sent_are_skipped_above_the_local_end_too() -> None:
    session = restored(end=5, position=5, outstanding=[], handled=[(5, 4)])
    assert session.lag == {SHARD: 5} and session.skip == {SHARD: [(5, 9)]}


def test_what_was_not_acknowledged_is_sent_again_and_the_rest_between_is_not() -> None:
    session = restored(end=9, position=8, outstanding=[(2, 1), (6, 1)], handled=[])
    assert session.lag == {SHARD: 2} and session.skip == {SHARD: [(3, 6), (7, 8)]}


def moved(*unanswered: Unanswered, position: int = 9) -> Record:
    """A record by the last word of the node that served the client."""
    record = Record("c")
    record.expiry_s = 100
    outstanding = [(run.offset, run.count) for run in unanswered if run.qos == 1]
    record.cursors[SHARD] = SavedCursor(position, tuple(outstanding))
    for run in unanswered:
        if run.qos == 2:
            for at in range(run.count):
                record.sent[run.first_id + at] = (run.shard, run.offset + at)
    record.unanswered = unanswered
    return record


def made_of(record: Record, *, end: int = 9) -> Session:
    broker = Broker(Limits(), AccessRules(()))
    broker.log_ends[SHARD] = end
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    return broker.sessions["c"]


MIXED = (Unanswered(5, 2, SHARD, 2, 1), Unanswered(9, 1, SHARD, 5, 2), Unanswered(7, 1, SHARD, 4, 1))


def test_what_the_client_has_not_answered_keeps_its_ids_and_its_order_at_both_qos() -> None:
    """And is not read from the log a second time."""
    session = made_of(moved(*MIXED))
    assert session.restored == list(MIXED)
    assert not session.lag
    assert session.in_use() == {5, 6, 7, 9}


def test_what_was_sent_at_qos_2_since_comes_after_it_and_what_was_received_not_again() -> None:
    record = moved(*MIXED)
    del record.sent[9]
    record.sent[12] = (SHARD, 7)
    assert made_of(record).restored == [MIXED[0], MIXED[2], Unanswered(12, 1, SHARD, 7, 2)]


def test_an_id_that_was_used_again_since_stays_with_its_later_message() -> None:
    """The earlier one is read from the log, with all that the record does not name."""
    record = moved(*MIXED)
    record.sent[6] = (SHARD, 8)
    session = made_of(record)
    assert session.restored == [*MIXED[1:], Unanswered(6, 1, SHARD, 8, 2)]
    assert session.lag == {SHARD: 2} and session.skip == {SHARD: [(4, 9)]}


def test_a_log_that_is_not_here_is_read_once_it_is() -> None:
    record = moved(*MIXED, Unanswered(20, 1, SHARD + 1, 3, 1))
    record.cursors[SHARD + 1] = SavedCursor(4, ((3, 1),))
    broker = Broker(Limits(), AccessRules(()))
    broker.log_ends[SHARD] = 9
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    broker.records.records.keep(record)  # type: ignore[attr-defined]
    broker.log_opened(SHARD + 1)
    session = broker.sessions["c"]
    assert session.restored == list(MIXED)
    assert session.lag == {SHARD + 1: 3}


def test_who_goes_on_with_a_session_leaves_the_same_record_behind() -> None:
    """Also before its client comes: what is not sent again yet is not answered either."""
    broker = Broker(Limits(), AccessRules(()))
    broker.journal.is_on = True
    broker.log_ends[SHARD] = 9
    record = moved(*MIXED)
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    broker.touched[broker.sessions["c"]] = None
    broker.checkpoint()
    outstanding = SavedCursor(9, ((2, 2), (4, 1)))
    assert broker.journal.operations == [CursorsMoved("c", {SHARD: outstanding}, MIXED)]


def test_a_record_without_what_was_sent_is_read_and_one_with_it_by_older_nodes() -> None:
    """A field at the end that the other side does not know is passed over, or has its default."""

    class Older(Entry, frozen=True, tag="cur"):
        client_id: str
        cursors: dict[int, SavedCursor]

    batch = SessionBatch("a", [CursorsMoved("c", {SHARD: SavedCursor(3)}, MIXED)])
    old_codec = EntryCodec[Older](Older)
    assert old_codec.decode(EntryCodec[CursorsMoved](CursorsMoved).encode(batch.operations)) == [
        Older("c", {SHARD: SavedCursor(3)})
    ]
    older = old_codec.encode([Older("c", {SHARD: SavedCursor(3)})])
    assert EntryCodec[CursorsMoved](CursorsMoved).decode(older) == [
        CursorsMoved("c", {SHARD: SavedCursor(3)})
    ]
    assert SESSION_ENTRIES.decode(SESSION_ENTRIES.encode([batch])) == [batch]


def test_a_session_without_subscriptions_is_behind_in_no_log() -> None:
    """It would read them from their beginning, for nothing."""
    before = House(keeps_records=True)
    before.connect("c", resume=True)
    house = House()
    house.broker.log_ends[16] = 1_000
    house.broker.restore(before.store.records["c"], house.broker.rules.principal(None, "c"), house.now_ms)
    assert not house.broker.sessions["c"].lag


def test_the_place_in_a_log_that_is_not_open_here_stays_as_it_was() -> None:
    """It waits for room on the disk, say: once it opens, what the client has had must not come again."""
    broker = Broker(Limits(), AccessRules(()))
    broker.journal.is_on = True
    broker.log_ends[1] = 10
    record = Record("c")
    record.expiry_s = 100
    record.cursors = {1: SavedCursor(10), SHARD: SavedCursor(500)}
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    broker.touched[broker.sessions["c"]] = None
    broker.checkpoint()
    assert broker.journal.operations == [CursorsMoved("c", {1: SavedCursor(10)})]
