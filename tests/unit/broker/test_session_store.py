"""Records of sessions: what a restart finds, and that no old cursor sends again what went at QoS 2."""

from collections import Counter

from millrace.broker.access import AccessRules
from millrace.broker.entries.sessions import (
    SESSION_ENTRIES,
    Adopted,
    CursorsMoved,
    Ended,
    Opened,
    Operation,
    Qos2Acknowledged,
    Qos2Completed,
    Qos2Received,
    Qos2Sent,
    SavedCursor,
    SavedSubscription,
    SavedWill,
    SessionBatch,
    Subscribed,
    WentAway,
    WillStored,
)
from millrace.broker.machine import Broker
from millrace.broker.sessions.session_store import Record, SessionStore
from millrace.limits import Limits
from millrace.types import Subscription

SHARD = 16
WILL = SavedWill("w", b"", 1, True, False, 0, None)


def opened(client_id: str, owner: str, *, is_clean: bool = False, will: SavedWill | None = None) -> Opened:
    return Opened(client_id, is_clean, None, 60 if will is None else 0, will, owner)


def moved(position: int, *outstanding: tuple[int, int]) -> CursorsMoved:
    return CursorsMoved("c", {SHARD: SavedCursor(position, outstanding)})


def apply(store: SessionStore, *operations: Operation, by: str = "n1") -> None:
    store.apply(SessionBatch(by, list(operations)))


def store_with(*operations: Operation) -> SessionStore:
    store = SessionStore()
    subscription = SavedSubscription.of(Subscription(filter="a/#", qos=2))
    apply(store, opened("c", "n1"), Subscribed("c", subscription, ((SHARD, 10),)), *operations)
    return store


def restored(store: SessionStore, end: int) -> Broker:
    broker = Broker(Limits(), AccessRules())
    broker.log_ends[SHARD] = end
    record = store.records["c"]
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    return broker


def test_operations_survive_their_encoding() -> None:
    batch = SessionBatch("n1", [moved(5, (1, 2)), Qos2Received("c", (1, 2)), Ended("c", 1, WILL)])
    assert SESSION_ENTRIES.decode(SESSION_ENTRIES.encode([batch])) == [batch]


def test_a_snapshot_holds_everything() -> None:
    store = store_with(
        Qos2Received("c", (7,)),
        Qos2Sent("c", 1, 3, SHARD, 10),
        Qos2Acknowledged("c", 3, 1),
        Qos2Acknowledged("c", 1, 1),
        moved(12, (11, 1)),
        WentAway("c", 1, time_us=5, expiry_s=60, will=WILL),
    )
    again = SessionStore.from_bytes(store.to_bytes())
    assert again.to_bytes() == store.to_bytes()
    assert again.records == store.records
    assert list(again.records["c"].released) == [3, 1], "PUBREL goes again in the order of the PUBRECs"


def test_a_session_taken_up_is_known_as_such_also_from_a_snapshot() -> None:
    """A node that is too far behind learns from a snapshot that its own `Opened` was applied."""
    store = store_with(opened("c", "n2"))
    assert SessionStore.from_bytes(store.to_bytes()).records["c"].is_resumed


def test_records_share_nothing() -> None:
    first, second = Record("a"), Record("b")
    first.cursors[SHARD] = SavedCursor(1)
    first.released[1] = None
    assert not second.cursors and not second.released


def test_the_operations_of_a_node_that_no_longer_owns_a_session_are_void() -> None:
    store = store_with(opened("c", "n2"))
    before = store.to_bytes()
    apply(store, moved(99), Qos2Received("c", (7,)), Ended("c", store.records["c"].epoch), by="n1")
    assert store.to_bytes() == before


def test_a_session_is_behind_by_its_cursor_after_a_restart() -> None:
    session = restored(store_with(), end=15).sessions["c"]
    assert session.lag == {SHARD: 10}
    assert session.blocked and session.is_recorded


def test_a_session_at_the_end_is_not_behind() -> None:
    assert restored(store_with(), end=10).sessions["c"].lag is None


def test_outstanding_messages_come_again_and_those_between_do_not() -> None:
    store = store_with(moved(20, (12, 1), (15, 2)))
    session = restored(store, end=30).sessions["c"]
    assert session.lag == {SHARD: 12}
    assert session.skip == {SHARD: [(13, 15), (17, 20)]}


def test_what_was_finished_at_qos_2_since_the_cursor_is_not_sent_again() -> None:
    """Sent, answered and completed between two checkpoints: neither id nor cursor remembers it."""
    store = store_with(Qos2Sent("c", 1, 3, SHARD, 10), Qos2Acknowledged("c", 1, 3), Qos2Completed("c", 1, 3))
    session = restored(store, end=15).sessions["c"]
    assert session.restored is None and session.released is None
    assert session.lag == {SHARD: 10}
    assert session.skip == {SHARD: [(10, 13)]}


def test_a_cursor_beyond_them_forgets_handled_messages() -> None:
    store = store_with(Qos2Sent("c", 1, 3, SHARD, 10), moved(13))
    assert store.records["c"].handled == {}


def test_a_qos_1_message_below_keeps_handled_messages_remembered() -> None:
    store = store_with(Qos2Sent("c", 1, 3, SHARD, 11), moved(14, (10, 1)))
    session = restored(store, end=20).sessions["c"]
    assert session.lag == {SHARD: 10}
    assert session.skip == {SHARD: [(11, 14), (11, 14)]}


def test_a_new_session_of_a_client_has_other_keys() -> None:
    store = store_with(Qos2Received("c", (7,)))
    before = store.records["c"].incarnation
    apply(store, Ended("c", store.records["c"].epoch), opened("c", "n1"))
    assert store.records["c"].incarnation != before
    assert store.records["c"].next_token == 1


def test_who_looks_after_records_is_known_at_any_time() -> None:
    """Opened, taken over, opened anew, adopted, fired, ended: the counts are those of the records."""
    store = SessionStore()
    steps: list[Operation] = [
        opened("a", "n1"),
        opened("b", "n1"),
        opened("c", "n2", will=WILL),
        opened("b", "n2"),
        opened("a", "n2", is_clean=True),
        Adopted("n2", "n3", 5),
        WillStored("c", 3),
        Ended("b", 4),
        Ended("a", 5),
    ]
    seen = []
    for step in steps:
        apply(store, step, by="n3")
        owners = Counter(record.owner for record in store.records.values())
        assert store.owners == owners == SessionStore.from_bytes(store.to_bytes()).owners
        seen.append(dict(owners))
    assert seen[4:] == [{"n2": 3}, {"n3": 3}, {"n3": 2}, {"n3": 1}, {}]


def test_a_node_that_was_away_changes_no_record_by_what_it_knew_before() -> None:
    """Seed 734118041 of whole nodes: a node stood still while its client moved to another one, got messages
    and answered them. When it went on, it took the other for gone, and in the same breath wrote where the
    client had been and that it left."""
    store = store_with(moved(12))
    known_epoch = store.records["c"].epoch
    apply(store, opened("c", "n2"), opened("d", "n2"), by="n2")
    apply(store, Qos2Sent("c", 1, 3, SHARD, 12), Qos2Completed("c", 1, 3), moved(15), by="n2")
    late = Adopted("n2", "n1", 5, known_epoch)
    apply(store, late, moved(12), WentAway("c", known_epoch, 5, 60))
    assert store.records["c"].cursors == {SHARD: SavedCursor(15)}
    assert store.records["c"].owner == "n2" and store.owners == {"n2": 2}
    # It knows by now, and the other is gone indeed.
    apply(store, Adopted("n2", "n1", 5, store.incarnations))
    assert store.records["c"].owner == "n1" and store.owners == {"n1": 2}


class TestAway:
    """The record of a client who is away is packed; nobody sees a difference."""

    AWAY = WentAway("c", 1, 5_000_000, 60)

    def test_what_is_written_to_it_is_kept(self) -> None:
        """Word of a message that was under way when the client left comes after its goodbye."""
        store = store_with(self.AWAY)
        apply(store, moved(40, (12, 3)), Qos2Received("c", (7,)))
        record = store.records["c"]
        assert record.cursors == {SHARD: SavedCursor(40, ((12, 3),))} and record.received == {7: 1}
        assert record.away_us == 5_000_000 and list(record.subscriptions) == ["a/#"]

    def test_it_goes_on_when_the_client_is_back(self) -> None:
        store = store_with(self.AWAY)
        apply(store, opened("c", "n2"), by="n2")
        apply(store, moved(40), by="n2")
        record = store.records["c"]
        assert (record.owner, record.away_us, record.is_resumed) == ("n2", None, True)
        assert record.cursors == {SHARD: SavedCursor(40)} and store.owners == {"n2": 1}

    def test_a_will_that_is_stored_is_due_no_more(self) -> None:
        store = store_with(WentAway("c", 1, 5_000_000, 60, WILL))
        assert store.records["c"].will == WILL
        apply(store, WillStored("c", 1))
        assert store.records["c"].will is None

    def test_its_end_removes_it(self) -> None:
        store = store_with(self.AWAY)
        apply(store, Ended("c", 1))
        assert not store.records and "c" not in store.records and store.owners == {}

    def test_a_node_that_is_gone_leaves_those_that_are_away(self) -> None:
        store = store_with(self.AWAY)
        apply(store, opened("d", "n1"), Adopted("n1", "n2", 9_000_000))
        assert [record.away_us for record in store.records.values()] == [5_000_000, 9_000_000]
        assert [record.owner for record in store.records.values()] == ["n2", "n2"]

    def test_a_snapshot_holds_it_in_its_place(self) -> None:
        store = store_with()
        apply(store, opened("d", "n1"), self.AWAY)
        again = SessionStore.from_bytes(store.to_bytes())
        assert again.to_bytes() == store.to_bytes()
        assert list(again.records) == ["c", "d"]
        assert dict(again.records) == dict(store.records)
