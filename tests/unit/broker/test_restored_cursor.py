"""A session from its record: where it goes on in a log whose local copy may be behind the record."""

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.entries.sessions import CursorsMoved, OffsetRange, SavedCursor
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
