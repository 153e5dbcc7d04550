"""Records of sessions: what a restart finds, and that no old cursor sends again what went at QoS 2."""

from collections import Counter
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.sessions.session_store import SessionStore, decode, encode, subscribe_operation
from millrace.limits import Limits
from millrace.types import Subscription

SHARD = 16


def store_with(*operations: list[object]) -> SessionStore:
    store = SessionStore()
    store.apply([["open", "c", False, None, 60, None]])
    store.apply([subscribe_operation("c", Subscription(filter="a/#", qos=2), [(SHARD, 10)])])
    store.apply(list(operations))
    return store


def restored(store: SessionStore, end: int) -> Broker:
    broker = Broker(Limits(), AccessRules())
    broker.log_ends[SHARD] = end
    record = store.records["c"]
    broker.restore(record, broker.rules.principal(None, "c"), 0)
    return broker


def test_operations_survive_their_encoding() -> None:
    operations = [["cur", "c", [[SHARD, 5, [[1, 2]]]]], ["in", "c", [1, 2]]]
    assert decode(encode(operations)) == operations


def test_a_snapshot_holds_everything() -> None:
    store = store_with(
        ["in", "c", [7]],
        ["out", "c", 1, 2, SHARD, 10],
        ["rec", "c", 1, 1],
        ["cur", "c", [[SHARD, 12, [[11, 1]]]]],
    )
    again = SessionStore.from_bytes(store.to_bytes())
    assert again.to_bytes() == store.to_bytes()
    assert again.records["c"].received == {7: 1}


def test_a_session_is_behind_by_its_cursor_after_a_restart() -> None:
    session = restored(store_with(), end=15).sessions["c"]
    assert session.lag == {SHARD: 10}
    assert session.blocked and session.is_recorded


def test_a_session_at_the_end_is_not_behind() -> None:
    assert restored(store_with(), end=10).sessions["c"].lag is None


def test_outstanding_messages_come_again_and_those_between_do_not() -> None:
    store = store_with(["cur", "c", [[SHARD, 20, [[12, 1], [15, 2]]]]])
    session = restored(store, end=30).sessions["c"]
    assert session.lag == {SHARD: 12}
    assert session.skip == {SHARD: [(13, 15), (17, 20)]}


def test_what_was_finished_at_qos_2_since_the_cursor_is_not_sent_again() -> None:
    """Sent, answered and completed between two checkpoints: neither id nor cursor remembers it."""
    store = store_with(["out", "c", 1, 3, SHARD, 10], ["rec", "c", 1, 3], ["comp", "c", 1, 3])
    session = restored(store, end=15).sessions["c"]
    assert session.restored is None and session.released is None
    assert session.lag == {SHARD: 10}
    assert session.skip == {SHARD: [(10, 13)]}


def test_a_cursor_beyond_them_forgets_handled_messages() -> None:
    store = store_with(["out", "c", 1, 3, SHARD, 10], ["cur", "c", [[SHARD, 13, []]]])
    assert store.records["c"].handled == {}


def test_a_qos_1_message_below_keeps_handled_messages_remembered() -> None:
    store = store_with(["out", "c", 1, 3, SHARD, 11], ["cur", "c", [[SHARD, 14, [[10, 1]]]]])
    session = restored(store, end=20).sessions["c"]
    assert session.lag == {SHARD: 10}
    assert session.skip == {SHARD: [(11, 14), (11, 14)]}


def test_a_new_session_of_a_client_has_other_keys() -> None:
    store = store_with(["in", "c", [7]])
    before = store.records["c"].incarnation
    store.apply([["end", "c"], ["open", "c", False, None, 60, None]])
    assert store.records["c"].incarnation != before
    assert store.records["c"].next_token == 1


def test_who_looks_after_records_is_known_at_any_time() -> None:
    """Opened, taken over, opened anew, adopted, fired, ended: the counts are those of the records."""
    store = SessionStore()
    will = ["w", "", 1, True, False, 0, None]
    steps: list[list[Any]] = [
        ["open", "a", False, None, 60, None, "n1"],
        ["open", "b", False, None, 60, None, "n1"],
        ["open", "c", False, None, 0, will, "n2"],
        ["open", "b", False, None, 60, None, "n2"],
        ["open", "a", True, None, 60, None, "n2"],
        ["adopt", "n2", "n3", 5],
        ["fired", "c", 3],
        ["end", "b"],
        ["end", "a"],
    ]
    seen = []
    for step in steps:
        store.apply([step])
        owners = Counter(record.owner for record in store.records.values())
        assert store.owners == owners == SessionStore.from_bytes(store.to_bytes()).owners
        seen.append(dict(owners))
    assert seen[4:] == [{"n2": 3}, {"n3": 3}, {"n3": 2}, {"n3": 1}, {}]
