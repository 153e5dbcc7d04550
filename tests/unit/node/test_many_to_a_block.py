"""What one turn of the loop brings goes to a log in as few blocks as the order of messages allows."""

from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.entries.shard import Retain
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.limits import DEFAULT_LIMITS, PRODUCER_RANGES_MAX
from millrace.node.shards import shard as shard_module
from millrace.node.shards.control import entries_of
from millrace.node.shards.shard import Shard
from millrace.reasons import Reason
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind
from unit.node.stand_ins import Waiter, tell_waiters

PACKET = b"\x32\x06\0\1t\0\1x"


class Line:
    """In place of a replication group of several nodes: keeps what is proposed until the test applies it."""

    is_alone = False

    def __init__(self) -> None:
        self.entries: list[tuple[Block, Any]] = []

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        self.entries += zip(blocks, tokens, strict=True)
        return True


class Scene:
    def __init__(self) -> None:
        stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
        self.broker, self.line = Broker(DEFAULT_LIMITS, AccessRules(())), Line()
        clock: dict[str, Any] = {"now_ms": lambda: 0, "wall_us": lambda: 0, "wake": lambda: None}
        self.shard = Shard(16, stream, self.broker, **clock)
        self.shard.group = self.line  # type: ignore[assignment]
        self._answers: list[tuple[str, int | None, Reason | None]] = []
        """Name of the arrival, offset, and why it was refused."""

    def value(self, topic: str) -> Arrival:
        """A retained message at QoS 0, which was delivered already."""
        packet = bytes((0x30, len(topic) + 3, 0, len(topic))) + topic.encode() + b"x"
        run = Run(packet, 1, 0, False, True)
        arrival = Arrival(None, self.broker.router.route(topic), 0, run, topic, b"")
        arrival.is_retained_only = True
        return arrival

    def message(self, topic: str, *, retain: bool = False, count: int = 1) -> Arrival:
        run = Run(PACKET * count, count, 1, False, retain)
        return self._named(topic, Arrival(None, self.broker.router.route(topic), 0, run, topic, b""))

    def keyed(self, name: str, producer: bytes, sequence: int, count: int = 1) -> Arrival:
        arrival = self._named(name, self.message("t", count=count))
        arrival.producer, arrival.sequence = producer, sequence
        arrival.is_doubtful = count == 1
        return arrival

    @property
    def answers(self) -> list[tuple[str, int | None, Reason | None]]:
        tell_waiters(self.broker)
        return self._answers

    def _named(self, name: str, arrival: Arrival) -> Arrival:
        arrival.waiter = Waiter(lambda offset: self._answers.append((name, offset, arrival.reason)))
        return arrival

    def cut(self, *arrivals: Arrival) -> list[int | list[str]]:
        """What goes into the log: the number of messages of a block, or the topics of its values."""
        self.shard.intake.arrivals = list(arrivals)
        self.broker.inbound.uncommitted_bytes += sum(len(one.run.data) for one in arrivals if one.run)
        self.shard.cut(0, False)
        return [
            block.header.count
            if block.header.kind is Kind.DATA
            else [entry.topic for entry in entries_of(block) if isinstance(entry, Retain)]
            for block, _ in self.line.entries
        ]

    def commit(self) -> None:
        """As the leader would, judged there."""
        stamp = {"shard": 16, "term": 1, "index": 1, "previous_term": 1, "base_time_us": 0}
        entries, self.line.entries = self.line.entries, []
        for block, token in entries:
            admitted = self.shard.admit(block) if block.header.kind is Kind.DATA else block
            self.shard.apply(admitted.stamped(base_offset=self.shard.next_offset, **stamp), token)
        assert self.broker.inbound.uncommitted_bytes == 0 and not self.shard._keys_in_flight


def test_the_values_of_a_turn_are_one_block_behind_its_messages() -> None:
    scene = Scene()
    topics = [f"v{number}" for number in range(900)]
    values = [scene.value(topic) for topic in topics]
    made = scene.cut(*values[:300], scene.message("t"), *values[300:], scene.message("t", retain=True))
    assert made == [2, topics]
    scene.commit()
    assert all(scene.broker.retained.get(topic) is not None for topic in topics)
    assert scene.answers == [("t", 0, None), ("t", 1, None)]


def test_a_retained_message_and_a_value_of_its_topic_keep_their_order() -> None:
    scene = Scene()
    made = scene.cut(
        scene.value("t"),
        scene.value("u"),
        scene.message("t"),
        scene.message("t", retain=True),
        scene.value("t"),
    )
    assert made == [1, ["t", "u"], 1, ["t"]]


def test_values_that_are_much_are_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "_VALUES_MAX", 2)
    scene = Scene()
    assert scene.cut(*(scene.value(topic) for topic in "abcde")) == [["a", "b"], ["c", "d"], ["e"]]


def test_keyed_messages_go_together_and_each_is_answered_by_its_own_fate() -> None:
    """In a cluster, where the leader leaves out what came by another node meanwhile: of a run a part, and
    what is too old to tell. Offsets are those of the messages that are stored, answers come in order."""
    scene = Scene()
    made = scene.cut(
        scene.message("plain"),
        scene.keyed("new", b"key/p", 1),
        scene.keyed("repeated", b"key/p", 2),
        scene.keyed("run", b"qos2/s", 10, count=4),
        scene.keyed("too old", b"key/q", 5),
        scene.keyed("last", b"key/r", 1),
        scene.message("plain"),
    )
    assert made == [10]
    producers = scene.shard.producers
    producers.store(b"key/p", 2)
    producers.store(b"qos2/s", 11)
    for sequence in range(10, 12 + 2 * PRODUCER_RANGES_MAX, 2):
        producers.store(b"key/q", sequence)
    scene.commit()
    assert scene.shard.next_offset == 7
    refused = Reason.IMPLEMENTATION_SPECIFIC
    assert scene.answers == [
        ("plain", 0, None),
        ("new", 1, None),
        ("repeated", 2, None),
        ("too old", None, refused),
        ("last", 5, None),
        ("plain", 6, None),
    ]


def test_a_message_and_its_repeat_in_one_turn_are_stored_once() -> None:
    scene = Scene()
    assert scene.cut(scene.keyed("first", b"key/p", 1), scene.keyed("again", b"key/p", 1)) == [1]
    scene.commit()
    assert [name for name, _, reason in scene.answers if reason is None] == ["first", "again"]
    assert scene.shard.next_offset == 1


@pytest.mark.parametrize("stored", [(), (1, 2, 3)], ids=["nothing", "everything"])
def test_a_keyed_block_of_which_all_or_nothing_is_there(stored: tuple[int, ...]) -> None:
    scene = Scene()
    scene.cut(*(scene.keyed(str(number), b"key/p", number) for number in (1, 2, 3)))
    for sequence in stored:
        scene.shard.producers.store(b"key/p", sequence)
    scene.commit()
    assert [(name, reason) for name, _, reason in scene.answers] == [("1", None), ("2", None), ("3", None)]
    assert scene.shard.next_offset == (0 if stored else 3)


def test_of_a_batch_that_a_sealed_log_refuses_only_the_answers_to_what_it_has_stay() -> None:
    """The next log does not know their keys."""
    scene = Scene()
    scene.cut(scene.keyed("stored", b"key/p", 1))
    scene.commit()
    moved = [scene.keyed("moved", b"key/p", 2), scene.message("plain")]
    assert scene.cut(moved[0], scene.keyed("again", b"key/p", 1), moved[1]) == [2]
    scene.shard.intake.is_sealed = True
    ((block, token),) = scene.line.entries
    scene.shard.apply(scene.shard.admit(block), token)
    assert [name for name, _, _ in scene.answers] == ["stored", "again"]
    assert scene.shard.intake.arrivals == moved and not scene.shard._keys_in_flight
