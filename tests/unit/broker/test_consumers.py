"""The cursor of a durable group: small stories, and a naive model compared with it over random histories."""

from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.entries.consume import (
    Ack,
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
    Void,
)
from millrace.broker.entries.shard import SHARD_ENTRIES
from millrace.broker.groups.consumers import Consumers, Result
from millrace.broker.groups.cursor import Cursor, Found, SavedCursor, Scan, Settings, State
from millrace.limits import ANSWERED_MAX, TAKEN_BYTES_MAX, VOIDED_MAX

LEASE_US = 1_000
NOW_US = 1_000_000
TEN = Settings(in_flight_max=10)


def scan(
    *offsets: int, start: int = 0, end: int | None = None, expires_us: int = 0, size_bytes: int = 0
) -> Scan:
    found = tuple(Found(offset, 0, expires_us, size_bytes) for offset in offsets)
    return Scan(start=start, end=offsets[-1] + 1 if end is None else end, found=found)


def leased(deliveries_max: int = 0) -> Cursor:
    """A cursor with offset 0 out on a lease that ends at NOW_US + LEASE_US."""
    cursor = Cursor(0, Settings(deliveries_max=deliveries_max))
    assert cursor.take("", 1, LEASE_US, NOW_US, scan(0)) == [(0, 1)]
    return cursor


# ------------------------------------------------------------------------------------------- stories


def test_messages_come_in_order_and_without_a_lease_they_are_done() -> None:
    cursor = Cursor(0)
    assert cursor.take("", 2, 0, NOW_US, scan(3, 5, 9)) == [(3, 1), (5, 1)]
    assert (cursor.position, cursor.items) == (9, {})
    assert cursor.take("", 2, 0, NOW_US, scan(9, start=9, end=20)) == [(9, 1)]
    assert cursor.position == 20


def test_a_scan_that_was_overtaken_gives_nothing_twice() -> None:
    cursor = Cursor(0)
    cursor.take("", 1, 0, NOW_US, scan(0, 1, 2))
    assert cursor.take("", 5, 0, NOW_US, scan(0, 1, 2)) == [(1, 1), (2, 1)]
    assert cursor.take("", 5, 0, NOW_US, scan(0, 1, 2)) == []


def test_a_scan_from_above_the_position_is_not_believed() -> None:
    """After a reset to an earlier offset an old scan would skip what lies between."""
    cursor = Cursor(2)
    assert cursor.take("", 1, 0, NOW_US, scan(7, start=5)) == []
    assert cursor.position == 2


def test_a_leased_message_comes_again_when_the_lease_ends() -> None:
    cursor = leased()
    assert cursor.take("", 1, LEASE_US, NOW_US + LEASE_US - 1, None) == []
    assert cursor.take("", 1, LEASE_US, NOW_US + LEASE_US, None) == [(0, 2)]


def test_a_message_that_comes_again_comes_before_fresh_ones() -> None:
    cursor = leased()
    assert cursor.nack(0, 1, 0, NOW_US)
    assert cursor.take("", 2, LEASE_US, NOW_US, scan(0, 1)) == [(0, 2), (1, 1)]


def test_only_the_last_delivery_may_be_acknowledged() -> None:
    cursor = leased()
    cursor.take("", 1, LEASE_US, NOW_US + LEASE_US, None)
    assert not cursor.ack(0, 1)
    assert cursor.ack(0, 2)
    assert cursor.ack(0, 2), "its answer was lost, and it is said again"
    assert not cursor.ack(0, 1), "the delivery before it was never acknowledged"
    again = Cursor.restored(cursor.save())
    assert again.ack(0, 2) and not again.ack(0, 1)
    assert cursor.items == {}


def test_a_late_acknowledgement_counts_while_nobody_else_has_the_message() -> None:
    cursor = leased()
    cursor.advance(NOW_US + LEASE_US)
    assert cursor.ack(0, 1)
    assert cursor.take("", 1, LEASE_US, NOW_US + LEASE_US, None) == []


def test_a_message_given_back_with_a_delay_waits() -> None:
    cursor = leased()
    assert cursor.nack(0, 1, 500, NOW_US)
    assert not cursor.has_ready(NOW_US + 499)
    assert cursor.next_due_us() == NOW_US + 500
    assert cursor.take("", 1, LEASE_US, NOW_US + 500, None) == [(0, 2)]


def test_a_lease_can_be_extended() -> None:
    cursor = leased()
    assert cursor.extend(0, 1, 10 * LEASE_US, NOW_US)
    assert cursor.take("", 1, LEASE_US, NOW_US + 9 * LEASE_US, None) == []
    assert cursor.take("", 1, LEASE_US, NOW_US + 10 * LEASE_US, None) == [(0, 2)]


def test_a_message_put_off_by_its_publisher_does_not_stop_those_behind_it() -> None:
    cursor = Cursor(0)
    found = Scan(start=0, end=2, found=(Found(0, NOW_US + 100), Found(1)))
    assert cursor.take("", 2, LEASE_US, NOW_US, found) == [(1, 1)]
    assert cursor.take("", 2, LEASE_US, NOW_US + 100, None) == [(0, 1)]


def test_after_so_many_deliveries_a_message_is_dead_until_it_is_buried() -> None:
    cursor = leased(deliveries_max=2)
    cursor.nack(0, 1, 0, NOW_US)
    cursor.take("", 1, LEASE_US, NOW_US, None)
    cursor.advance(NOW_US + LEASE_US)
    assert list(cursor.dead) == [0]
    assert cursor.take("", 1, LEASE_US, NOW_US + LEASE_US, None) == []
    assert not cursor.ack(0, 2)
    assert cursor.bury(0)
    assert not cursor.bury(0)
    assert cursor.items == {}


def restored(cursor: Cursor) -> Cursor:
    """Through the bytes of a snapshot."""
    return Cursor.restored(msgspec.msgpack.decode(msgspec.msgpack.encode(cursor.save()), type=SavedCursor))


def test_a_message_that_expired_while_it_was_out_or_put_off_is_not_given_again() -> None:
    """[rule 11]. Given back, never acknowledged, put off by its publisher; also after a snapshot."""
    expires_us = NOW_US + LEASE_US
    fresh = (*scan(0, 1, expires_us=expires_us).found, Found(2, expires_us, expires_us), Found(3))
    cursor = Cursor(0)
    cursor.take("", 9, LEASE_US, NOW_US, Scan(start=0, end=4, found=fresh))
    cursor.nack(0, 1, 0, NOW_US)
    assert restored(cursor).take("", 9, LEASE_US, expires_us - 1, None) == [(0, 2)]
    for one in (restored(cursor), cursor):
        assert one.take("", 9, 0, expires_us, None) == [(3, 2)]
        assert one.items == {}


def test_a_message_delivered_too_often_is_dead_also_when_it_expired() -> None:
    """It was not done: whoever looks after the dead letters hears of it."""
    cursor = Cursor(0, Settings(deliveries_max=1))
    cursor.take("", 1, LEASE_US, NOW_US, scan(0, expires_us=NOW_US + 1))
    cursor.advance(NOW_US + LEASE_US)
    assert list(cursor.dead) == [0]


def test_one_take_is_bounded_in_bytes_and_gives_at_least_one_message() -> None:
    third_bytes = TAKEN_BYTES_MAX // 3
    fresh = scan(0, 1, 2, 3, 4, size_bytes=third_bytes)
    cursor = Cursor(0)
    assert cursor.take("", 9, LEASE_US, NOW_US, fresh) == [(0, 1), (1, 1), (2, 1)]
    assert cursor.take("", 9, LEASE_US, NOW_US, fresh) == [(3, 1), (4, 1)]
    cursor = restored(cursor)
    again = [cursor.take("", 9, 0, NOW_US + LEASE_US, scan(5, start=5, size_bytes=1)) for _ in range(2)]
    assert again == [[(0, 2), (1, 2), (2, 2)], [(3, 2), (4, 2), (5, 1)]]
    large = scan(6, 7, start=6, size_bytes=2 * TAKEN_BYTES_MAX)
    assert [cursor.take("", 9, 0, NOW_US, large) for _ in range(3)] == [[(6, 1)], [(7, 1)], []]


def test_no_more_is_out_than_allowed() -> None:
    cursor = Cursor(0, Settings(in_flight_max=2))
    assert cursor.take("", 5, LEASE_US, NOW_US, scan(0, 1, 2)) == [(0, 1), (1, 1)]
    assert cursor.position == 2
    assert cursor.take("", 5, LEASE_US, NOW_US, scan(2, start=2)) == []
    cursor.ack(0, 1)
    assert cursor.take("", 5, LEASE_US, NOW_US, scan(2, start=2)) == [(2, 1)]


def test_a_request_that_is_repeated_gets_the_same_answer() -> None:
    cursor = Cursor(0)
    first = cursor.take("r1", 1, 0, NOW_US, scan(0, 1))
    assert cursor.take("r1", 1, 0, NOW_US, scan(0, 1)) == first == [(0, 1)]
    assert cursor.take("r2", 1, 0, NOW_US, scan(0, 1)) == [(1, 1)]


def test_an_empty_answer_is_not_remembered() -> None:
    cursor = Cursor(0)
    assert cursor.take("r1", 1, 0, NOW_US, None) == []
    assert cursor.take("r1", 1, 0, NOW_US, scan(0)) == [(0, 1)]


def test_what_is_under_way_for_a_request_that_was_made_void_takes_nothing() -> None:
    """Its answer came from elsewhere: nobody would hear of what this gives."""
    cursor = Cursor(0)
    assert cursor.void("r1") == []
    cursor = restored(cursor)
    assert cursor.take("r1", 1, 0, NOW_US, scan(0), 0) == []
    assert cursor.take("r2", 1, 0, NOW_US, scan(0), 0) == [(0, 1)]


def test_a_request_that_knows_that_it_was_made_void_may_take() -> None:
    cursor = Cursor(0)
    cursor.void("r1")
    first = cursor.take("r1", 1, 0, NOW_US, scan(0), cursor.voided("r1"))
    assert cursor.void("r1") == first == [(0, 1)], "what was given stays the answer"
    assert cursor.take("r1", 1, 0, NOW_US, scan(1, start=1), 0) == first


def test_the_memory_of_requests_made_void_is_bounded() -> None:
    cursor = Cursor(0)
    for number in range(VOIDED_MAX + 1):
        cursor.void(f"r{number}")
    assert (cursor.voided("r0"), cursor.voided("r1"), cursor.voided(f"r{VOIDED_MAX}")) == (0, 1, 1)


def test_the_memory_of_answers_is_bounded() -> None:
    cursor = Cursor(0)
    half = ANSWERED_MAX // 2
    for request in range(3):
        offsets = range(request * half, (request + 1) * half)
        cursor.take(f"r{request}", half, 0, NOW_US, scan(*offsets, start=request * half))
    assert cursor.answer("r0") is None
    assert cursor.answer("r1") is not None


def test_a_reset_forgets_what_is_out_and_makes_receipts_void() -> None:
    consumers = Consumers()
    assert run(consumers, Create(1, 0, TEN), Take(1, "", 1, LEASE_US), found=scan(0)) == [True, [(0, 1)]]
    run(consumers, Reset(1, 0), Take(1, "", 1, LEASE_US), found=scan(0))
    assert run(consumers, Ack(1, 0, [(0, 1)]), Ack(1, 1, [(0, 1)])) == [[False], [True]]


def test_what_retention_removed_is_counted_and_not_given() -> None:
    cursor = Cursor(0)
    cursor.take("", 2, LEASE_US, NOW_US, scan(0, 1))
    cursor.trim(5)
    assert (cursor.position, cursor.missed, cursor.items) == (5, 2 + 3, {})
    assert cursor.take("", 1, 0, NOW_US + LEASE_US, scan(5, start=5)) == [(5, 1)]


def test_a_skip_moves_over_nothing_but_what_was_looked_at() -> None:
    consumers = Consumers()
    run(consumers, Create(1, 0, TEN), Skip(1, 0, 50))
    assert consumers.cursors[1].position == 50
    run(consumers, Skip(1, 60, 90))
    assert consumers.cursors[1].position == 50


def test_operations_of_a_deleted_group_change_nothing() -> None:
    consumers = Consumers()
    run(consumers, Create(1, 0, TEN), Delete(1))
    assert run(consumers, Take(1, "", 1, 0), Ack(1, 0, [(0, 1)]), Reset(1, 0)) == [[], [], False]
    assert consumers.cursors == {}


def run(
    consumers: Consumers, *operations: Operation, now_us: int = NOW_US, found: Scan | None = None
) -> list[Result]:
    """One entry through its bytes, as the log would carry it."""
    entry = Consume(now_us, {} if found is None else {1: found}, list(operations))
    (read,) = SHARD_ENTRIES.decode(SHARD_ENTRIES.encode([entry]))
    assert read == entry and isinstance(read, Consume)
    return consumers.apply(read, now_us)


# --------------------------------------------------------------------------------------------- model


@dataclass
class Told:
    """What the naive model knows of one message."""

    deliveries: int = 0
    state: str = "fresh"
    due_us: int = 0


class Model:
    """The same promises without heaps, positions or scans: a list of messages in order."""

    def __init__(self, count: int, wanted: list[bool], settings: Settings) -> None:
        self.messages = {offset: Told() for offset in range(count) if wanted[offset]}
        self.acknowledged: dict[int, int] = {}
        self.settings = settings

    def advance(self, now_us: int) -> None:
        for told in self.messages.values():
            if told.state == "leased" and told.due_us <= now_us:
                self._give_back(told, 0)
            if told.state == "delayed" and told.due_us <= now_us:
                told.state = "ready"

    def _give_back(self, told: Told, due_us: int) -> None:
        if self.settings.deliveries_max and told.deliveries >= self.settings.deliveries_max:
            told.state = "dead"
        else:
            told.state, told.due_us = ("delayed", due_us) if due_us else ("ready", 0)

    def take(self, count: int, lease_us: int, now_us: int) -> list[tuple[int, int]]:
        self.advance(now_us)
        taken: list[tuple[int, int]] = []
        for wanted in ("ready", "fresh"):
            for offset, told in self.messages.items():
                held = sum(t.state in ("ready", "leased", "delayed", "dead") for t in self.messages.values())
                if len(taken) == count or told.state != wanted:
                    continue
                if wanted == "fresh" and lease_us and held >= self.settings.in_flight_max:
                    continue
                told.deliveries += 1
                told.state, told.due_us = ("leased", now_us + lease_us) if lease_us else ("done", 0)
                taken.append((offset, told.deliveries))
        return taken

    def ack(self, offset: int, delivery: int) -> bool:
        told = self.messages.get(offset)
        if told is not None and told.state == "done":
            return self.acknowledged.get(offset) == delivery
        if told is None or told.deliveries != delivery or told.state not in ("leased", "ready"):
            return False
        told.state = "done"
        self.acknowledged[offset] = delivery
        return True

    def nack(self, offset: int, delivery: int, delay_us: int, now_us: int) -> bool:
        told = self.messages.get(offset)
        if told is None or told.deliveries != delivery or told.state != "leased":
            return False
        self._give_back(told, now_us + delay_us if delay_us else 0)
        return True

    def extend(self, offset: int, delivery: int, lease_us: int, now_us: int) -> bool:
        told = self.messages.get(offset)
        if told is None or told.deliveries != delivery or told.state != "leased":
            return False
        told.due_us = now_us + lease_us
        return True


SIZE = 12

step = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 4), st.sampled_from([0, 5, 50])),
    st.tuples(st.just("ack"), st.integers(0, SIZE - 1), st.integers(1, 3)),
    st.tuples(st.just("nack"), st.integers(0, SIZE - 1), st.integers(1, 3), st.sampled_from([0, 7])),
    st.tuples(st.just("extend"), st.integers(0, SIZE - 1), st.integers(1, 3), st.just(30)),
    st.tuples(st.just("wait"), st.integers(1, 60)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("void"), st.integers(0, 4)),
)


@settings(max_examples=300, deadline=None)
@given(
    wanted=st.lists(st.booleans(), min_size=SIZE, max_size=SIZE),
    deliveries_max=st.sampled_from([0, 2]),
    in_flight_max=st.sampled_from([2, 100]),
    history=st.lists(step, max_size=40),
    reach=st.integers(1, SIZE),
)
def test_any_history_gives_what_the_model_gives(
    wanted: list[bool], deliveries_max: int, in_flight_max: int, history: list[tuple], reach: int
) -> None:
    """Also through snapshots taken anywhere, and with scans that see only a part of the log ahead."""
    chosen = Settings(deliveries_max=deliveries_max, in_flight_max=in_flight_max)
    model = Model(SIZE, wanted, chosen)
    cursor = Cursor(0, chosen)
    now_us = NOW_US
    for name, *rest in history:
        if name == "take":
            count, lease_us = rest
            expected = model.take(count, lease_us, now_us)
            got: list[tuple[int, int]] = []
            # The caller looks ahead again until nothing more is to be had, as the node does.
            for _ in range(SIZE + 1):
                start = cursor.position
                end = min(SIZE, start + reach)
                found = tuple(Found(o) for o in range(start, end) if wanted[o])
                part = Scan(start=start, end=end, found=found)
                if len(got) < count:
                    got += cursor.take("", count - len(got), lease_us, now_us, part)
            assert got == expected
        elif name == "wait":
            now_us += rest[0]
        elif name == "void":
            assert cursor.void(f"r{rest[0]}") == []
        elif name == "restart":
            cursor = restored(cursor)
        else:
            arguments = rest if name == "ack" else [*rest, now_us]
            cursor.advance(now_us)
            model.advance(now_us)
            assert getattr(cursor, name)(*arguments) == getattr(model, name)(*arguments)
    held = {o for o, told in model.messages.items() if told.state in ("ready", "leased", "delayed", "dead")}
    assert set(cursor.items) == held
    assert set(cursor.dead) == {o for o, told in model.messages.items() if told.state == "dead"}
    # Nothing that the group takes lies below the position without being done or held.
    lost = {o for o, told in model.messages.items() if told.state == "fresh" and o < cursor.position}
    assert lost == set()


@settings(max_examples=100, deadline=None)
@given(history=st.lists(step, max_size=40))
def test_two_replicas_that_apply_the_same_entries_are_equal(history: list[tuple]) -> None:
    """One of them is restarted from a snapshot after every entry."""
    steady, restarted = Consumers(), Consumers()
    now_us = NOW_US
    chosen = Settings(deliveries_max=2, in_flight_max=5)
    entries: list[tuple[int, Operation]] = [(now_us, Create(1, 0, chosen))]
    for name, *rest in history:
        match name:
            case "take":
                entries.append((now_us, Take(1, f"r{len(entries) % 5}", *rest, len(entries) % 2)))
            case "void":
                entries.append((now_us, Void(1, f"r{rest[0]}")))
            case "ack":
                entries.append((now_us, Ack(1, 0, [(rest[0], rest[1])])))
            case "nack":
                entries.append((now_us, Nack(1, 0, [(rest[0], rest[1])], rest[2])))
            case "extend":
                entries.append((now_us, Extend(1, 0, [(rest[0], rest[1])], rest[2])))
            case "wait":
                now_us += rest[0]
                entries.append((now_us, Tick(1)))
    for at_us, operation in entries:
        position = steady.cursors[1].position if 1 in steady.cursors else 0
        found = scan(*range(position, position + 6), start=position)
        results = run(steady, operation, now_us=at_us, found=found)
        assert run(restarted, operation, now_us=at_us, found=found) == results
        saved = msgspec.msgpack.encode(list(restarted.freeze().rows()))
        restarted = Consumers.restored(msgspec.msgpack.decode(saved, type=list[tuple[int, SavedCursor]]))
        assert list(restarted.freeze().rows()) == list(steady.freeze().rows())


def test_many_leases_do_not_leave_a_heap_behind() -> None:
    """Acknowledged leases are forgotten long before they would have ended."""
    cursor = Cursor(0)
    for offset in range(5_000):
        cursor.take("", 1, 10**9, NOW_US, scan(offset, start=offset))
        assert cursor.ack(offset, 1)
    assert len(cursor._due) < 200
    assert cursor.position == 5_000
    assert State.LEASED not in {item.state for item in cursor.items.values()}
