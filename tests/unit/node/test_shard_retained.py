"""Retained messages of logs: the newest word wins at every node, in whatever order logs are applied."""

from itertools import permutations

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.entries.shard import Generation, Retain, ShardEntry
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.shards.shard_state import (
    RetainedChanged,
    RetainedForgotten,
    RetainedRestored,
    ShardEffect,
    ShardState,
)
from millrace.broker.shards.stamps import Stamps
from millrace.limits import DEFAULT_LIMITS, RETAINED_DELETED_MAX
from millrace.node.shards.retained import ShardRetained
from millrace.reasons import Reason


def message(payload: bytes) -> Run:
    packet = b"\0\1t" + b"\0\1" + payload
    return Run(bytes((0x32, len(packet))) + packet, 1, 1, False, True)


def value(broker: Broker) -> bytes | None:
    found = broker.retained.get("t")
    return None if found is None else found.data[7:]


class Log(ShardRetained):
    """The retained topics of one log: its state, and the node's part of it."""

    def __init__(self, number: int, broker: Broker, stamps: Stamps) -> None:
        self.state = ShardState(number)
        super().__init__(number, broker, self.state.retained, now_ms=lambda: 0, wall_us=lambda: 0)
        self.stamps = stamps

    def keep(self, topic: str, run: Run, index: int) -> None:
        """An entry at `index` that keeps this value."""
        self.apply(Retain(topic, run.data, run.qos, run.v5, 0), index)

    def announced(self, generation: int) -> None:
        self.apply(Generation(generation), 0)

    def apply(self, entry: ShardEntry, index: int) -> None:
        self.run(self.state.apply(entry, index=index, time_us=0))

    def to_bytes(self) -> bytes:
        return self.state.to_bytes(self.freeze(), {})

    def restore(self, saved: bytes) -> None:
        self.run(self.state.restore(saved))

    def run(self, effects: list[ShardEffect]) -> None:
        for effect in effects:
            match effect:
                case RetainedChanged():
                    self.changed(effect)
                case RetainedForgotten():
                    self.forgotten(effect.topic)
                case RetainedRestored():
                    self.restored(effect)


def logs(broker: Broker, *numbers: int) -> list[Log]:
    stamps = Stamps()
    return [Log(number, broker, stamps) for number in numbers]


def broker_of_test() -> Broker:
    return Broker(DEFAULT_LIMITS, AccessRules(()))


@pytest.mark.parametrize("last", [b"newest", b""], ids=["value", "deletion"])
def test_the_newest_wins_in_every_order_of_application(last: bytes) -> None:
    """A topic lived in one log, then in another, then in the first again: each replica applies the logs in
    its own order, each log in order, and all come to the same."""
    words = [(0, 1, 5, b"oldest"), (1, 2, 1, b"newer"), (0, 3, 9, last)]
    for order in permutations(range(3)):
        if order.index(0) > order.index(2):
            # The first log's own words stay in order.
            continue
        broker = broker_of_test()
        kept = logs(broker, 16, 17)
        for position in order:
            log, generation, index, payload = words[position]
            kept[log].announced(generation)
            kept[log].keep("t", message(payload), index)
        assert value(broker) == (last or None), order


def test_a_snapshot_takes_away_what_was_deleted_before_it() -> None:
    """A replica that was far behind still has a message that the others have deleted since."""
    ahead, behind = broker_of_test(), broker_of_test()
    (first,), (second,) = logs(ahead, 16), logs(behind, 16)
    second.keep("t", message(b"stale"), 3)
    first.keep("t", message(b"stale"), 3)
    first.keep("t", message(b""), 8)
    second.restore(first.to_bytes())
    assert value(behind) is None
    # Also where the deletion itself is not remembered any more.
    (third,) = logs(behind, 16)
    third.keep("t", message(b"stale"), 3)
    third.restore(Log(16, broker_of_test(), Stamps()).to_bytes())
    assert value(behind) is None


def test_a_deletion_outlives_a_restart_beside_the_log_that_had_the_message() -> None:
    before, after = broker_of_test(), broker_of_test()
    old, new = logs(before, 16, 17)
    old.keep("t", message(b"kept"), 3)
    saved_old = old.to_bytes()
    new.announced(2)
    new.keep("t", message(b""), 1)
    saved_new = new.to_bytes()
    for order in ((0, 1), (1, 0)):
        restarted = logs(after, 16, 17)
        for position in order:
            restarted[position].restore((saved_old, saved_new)[position])
        assert value(after) is None


def test_the_generation_is_announced_before_the_first_retained_message_of_it() -> None:
    broker = broker_of_test()
    (log,) = logs(broker, 16)
    log.routing_generation = lambda: 4
    plain = Arrival(None, None, 0, Run(b"", 1, 1, False), None, b"")
    kept = Arrival(None, None, 0, message(b"x"), "t", b"")
    assert log.announcement([plain]) is None
    assert log.announcement([plain, kept]) is not None
    assert log.announcement([kept]) is None
    log.lost()
    assert log.announcement([kept]) is not None
    log.announced(4)
    log.lost()
    assert log.announcement([kept]) is None


def shown(broker: Broker, payload: bytes) -> Arrival:
    """One at QoS 0 that subscribers see, on its way to the log."""
    note = Arrival(None, None, 0, message(payload), "t", b"")
    note.is_retained_only = note.is_shown = True
    broker.retained.show("t", message(payload), is_empty=not payload)
    return note


def committed(broker: Broker, log: Log, note: Arrival, index: int) -> None:
    assert note.run is not None
    log.keep("t", note.run, index)
    broker.inbound.committed([note], 16, 0, 0)


def test_what_could_not_be_logged_is_taken_back() -> None:
    """Retained at QoS 0 it shows at once; without a majority it must not stay on one node alone."""
    broker = broker_of_test()
    (log,) = logs(broker, 16)
    log.keep("t", message(b"logged"), 1)
    broker.inbound.refused([shown(broker, b"alone")], Reason.SERVER_BUSY)
    assert value(broker) == b"logged"
    note = shown(broker, b"")
    log.keep("t", message(b"newer"), 2)
    assert value(broker) is None
    broker.inbound.refused([note], Reason.SERVER_BUSY)
    assert value(broker) == b"newer"


def test_a_value_is_not_replaced_by_an_older_one_whose_note_comes_to_the_log_later() -> None:
    """Two at QoS 0 in a row, and one of another node between them in the log: the second stays in sight, and
    a snapshot holds what the log has said so far."""
    broker = broker_of_test()
    (log,) = logs(broker, 16)
    first, second = shown(broker, b"first"), shown(broker, b"second")
    committed(broker, log, first, 1)
    assert value(broker) == b"second"
    log.keep("t", message(b"of another"), 2)
    assert value(broker) == b"second"
    values = [row.value for row in log.freeze()]
    assert [value.packet for value in values if value is not None] == [message(b"of another").data]
    committed(broker, log, second, 3)
    assert value(broker) == b"second"
    log.keep("t", message(b"last"), 4)
    assert value(broker) == b"last"


def test_what_is_passed_on_late_does_not_replace_what_is_retained_by_then() -> None:
    """A frame stream dispatches by deadlines; the values to retain go to the log as they came."""
    broker = broker_of_test()
    (log,) = logs(broker, 16)
    log.keep("t", message(b"newer"), 1)
    broker.inbound.pass_on(None, "t", message(b"late"), 0)
    assert value(broker) == b"newer"


def test_what_goes_to_no_log_after_all_stays() -> None:
    """The stream was changed to keep nothing while the note was under way."""
    broker = broker_of_test()
    broker.inbound.committed([shown(broker, b"kept")], 0, 0, 0)
    assert value(broker) == b"kept"


def test_only_so_many_deletions_are_remembered_and_all_that_is_retained() -> None:
    """Topics that are used once and deleted; in memory, in snapshots and after a start from one."""
    broker = broker_of_test()
    (log,) = logs(broker, 16)
    for index in range(1, RETAINED_DELETED_MAX + 102):
        log.keep("first" if index == 1 else f"t{index}", message(b"x"), 2 * index)
        if index > 1:
            log.keep(f"t{index}", message(b""), 2 * index + 1)
    known = RETAINED_DELETED_MAX + 1
    assert len(log.state.retained.places) == len(log.stamps._last) == known
    assert "first" in log and "t101" not in log and "t102" in log
    assert len(list(log.freeze())) == known
    (again,) = logs(broker_of_test(), 16)
    again.restore(log.to_bytes())
    again.keep("new", message(b""), 1_000_000)
    assert "first" in again and "t102" not in again and "t103" in again


def test_topics_whose_messages_expired_are_remembered_no_longer_than_deleted_ones() -> None:
    broker = broker_of_test()
    (log,) = logs(broker, 16)
    for index in range(1, RETAINED_DELETED_MAX + 102):
        log.keep(f"t{index}", message(b"x"), index)
        broker.retained.delete(f"t{index}")
    list(log.freeze())
    assert len(log.state.retained.places) == len(log.stamps._last) == RETAINED_DELETED_MAX
    assert "t101" not in log and "t102" in log


def test_a_deletion_that_is_forgotten_leaves_the_word_of_a_newer_log() -> None:
    broker = broker_of_test()
    old, new = logs(broker, 16, 17)
    old.keep("t", message(b""), 1)
    new.announced(1)
    new.keep("t", message(b"new"), 1)
    for index in range(RETAINED_DELETED_MAX):
        old.keep(f"t{index}", message(b""), index + 2)
    assert "t" not in old and new.stamps.is_last_of("t", 17)
    old.keep("t", message(b"old"), 1_000_000)
    assert value(broker) == b"new"
