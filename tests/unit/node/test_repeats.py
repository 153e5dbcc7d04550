"""A QoS 2 message that comes again: stored where it was refused before, and never in two shards."""

import asyncio
from collections.abc import Callable

import pytest

from millrace import Broker as Node
from millrace.broker.access import AccessRules
from millrace.broker.entries.shard import Repeated
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.messages.message import Run as Packets
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream, StreamSpec
from millrace.kernels.blocks import Run
from millrace.limits import DEFAULT_LIMITS
from millrace.node.engine import Engine
from millrace.node.shards.control import control_block
from millrace.node.shards.shard import FINISH_MS, Shard
from millrace.reasons import Reason
from millrace.storage.block import Block, Kind, data_blocks
from millrace.types import Message
from millrace.wire.mqtt.codec import encode_publish
from millrace.wire.mqtt.packets import Publish, Pubrec
from unit.node.house import House
from unit.node.stand_ins import IntakesBy, Waiter, tell_waiters
from unit.node.test_arrive_again import Line, shard_of
from waiting import until_async

PACKET = b"\x34\x06\0\1t\0\1x"
MESSAGE = Message(topic="t", payload=b"x", qos=2)


def test_a_refused_message_is_taken_when_it_comes_again_over_another_connection() -> None:
    """The disk was full, and the client left before it was told: its repeat must not pass for stored."""
    house = House(keeps_records=True)
    intake = Intake(16, False)
    # One that is there already: nobody waits for this log, it is looked at by hand.
    other = Arrival(None, house.broker.router.route("u"), 0, None, None, b"")
    intake.arrivals = [other]
    house.broker.router.intakes = IntakesBy(lambda topic: intake)
    client = house.connect("a", resume=True)
    client.send(Publish(message=MESSAGE, packet_id=1))
    (_, arrival), intake.arrivals = intake.arrivals, [other]
    client.drop()
    client = house.connect("a", resume=True)
    house.broker.inbound.refused([arrival], Reason.QUOTA_EXCEEDED)
    client.send(Publish(message=MESSAGE, packet_id=1, dup=True))
    (_, again) = intake.arrivals
    assert again.run is not None, "only an answer would go out, for a message that is nowhere"
    # Perhaps an earlier run of the broker stored it: the token tells.
    assert again.is_doubtful and (again.producer, again.sequence) == (arrival.producer, arrival.sequence)


def test_what_is_released_beside_an_unknown_id_leaves_the_record_before_it_is_answered() -> None:
    """Else the record takes the next message under that id for a repeat, wherever the session goes on."""
    house = House(keeps_records=True)
    house.broker.router.intakes = IntakesBy(lambda topic: None)
    client = house.connect("a", resume=True)
    client.send(Publish(message=MESSAGE, packet_id=1))
    record = house.store.records["a"]
    record.received[1] = 1
    client.wire.taken.clear()
    client.connection.data_received(b"\x62\2\0\1\x62\2\0\2")
    assert not client.wire.taken
    house.turn()
    assert not record.received
    assert client.wire.taken == b"\x70\2\0\1\x70\2\0\2"


@pytest.mark.parametrize("flags", [0x34, 0x3C])
def test_a_repeat_is_answered_after_a_message_that_waits_for_its_id_to_be_written(flags: int) -> None:
    """Else the answer is in the log, and given, while the message is in memory: a crash then loses it."""
    house = House(keeps_records=True)
    intake = Intake(16, False)
    other = Arrival(None, house.broker.router.route("u"), 0, None, None, b"")
    intake.arrivals = [other]
    house.broker.router.intakes = IntakesBy(lambda topic: intake)
    client = house.connect("a", resume=True)
    # A client that broke off and came back, within one turn: nothing is on disk yet.
    for first in (0x34, flags):
        client.connection.data_received(encode_publish(b"t", b"x", first, 1, b"\0"))
    assert intake.arrivals == [other]
    house.turn()
    (_, message, answer) = intake.arrivals
    assert message.run is not None and answer.run is None


def test_messages_that_go_to_another_log_together_keep_a_key_each_and_come_before_later_ones() -> None:
    house = House(keeps_records=True)
    old, new = Intake(16, False), Intake(17, False)
    inbound, router = house.broker.inbound, house.broker.router
    # As above: looked at by hand.
    other = Arrival(None, router.route("u"), 0, None, None, b"")
    old.arrivals, new.arrivals = [other], [other]
    router.intakes = IntakesBy(lambda topic: old)
    client = house.connect("a", resume=True)
    client.send(Publish(message=MESSAGE, packet_id=9))
    client.send(*(Publish(message=MESSAGE, packet_id=number) for number in (1, 2, 3)))
    (_, _, run) = old.arrivals
    assert run.run is not None and run.run.count == 3
    router.intakes = IntakesBy(lambda topic: new)
    router.forget_all()
    client.send(Publish(message=MESSAGE, packet_id=4))
    inbound.arrive_again([run], 0)
    keys = [(one.producer, one.sequence) for one in new.arrivals if one is not other]
    assert keys == [(run.producer, run.sequence + position) for position in range(4)]
    # While they waited the client may have sent them again by another node, to a log that is sealed since.
    assert [one.is_doubtful for one in new.arrivals if one is not other] == [True, True, True, False]


def shard(number: int) -> Shard:
    stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(number,))
    broker = Broker(DEFAULT_LIMITS, AccessRules(()))
    return Shard(number, stream, broker, now_ms=lambda: 0, wall_us=lambda: 0, wake=lambda: None)


def keyed(producer: bytes, sequence: int) -> Block:
    (block,) = data_blocks([Run(packets=PACKET, version=4, producer=producer, sequences=(sequence,))])
    return block


def test_a_message_whose_stream_moved_between_it_and_its_repeat_is_not_stored_twice() -> None:
    """Its token tells, whichever shard has it, and so does that of a will; the sequence of a client may be
    counted per topic."""
    old, new = shard(16), shard(17)
    new.others = {16: old, 17: new}
    for producer in (b"qos2/1/a", b"will/a", b"client"):
        old.producers.store(producer, 5)
    for producer in (b"qos2/1/a", b"will/a"):
        assert new.admit(keyed(producer, 5)).header.kind is Kind.CONTROL
    for block in (keyed(b"qos2/1/a", 6), keyed(b"will/a", 6), keyed(b"client", 5)):
        assert new.admit(block) is block


class WillAgain:
    """A will that is published once more, by a node that restarted, after its topic went to another log."""

    def __init__(self) -> None:
        self.house, self.line = House(), Line()
        self.new, self.old = shard_of(self.house, self.line), shard(15)
        self.old.group = self.line  # type: ignore[assignment]
        self.new.others = {15: self.old, 16: self.new}
        self.answers: list[int | None] = []

    def publish(self) -> None:
        one = Arrival(None, self.house.broker.router.route("t"), 0, Packets(PACKET, 1, 1, False), "t", b"")
        one.producer, one.sequence, one.is_doubtful = b"will/a", 5, True
        one.waiter = Waiter(self.answers.append)
        self.new.intake.arrivals.append(one)
        assert not self.new.awaits_others(), "everybody would wait for it"
        self.new.cut(0, False)
        tell_waiters(self.house.broker)

    def kinds(self) -> list[Kind]:
        return [block.header.kind for block in self.line.blocks]


def test_a_will_that_its_old_log_has_is_finished_though_the_leader_of_the_new_one_leaves_it_out() -> None:
    """Else it would be tried again every second, for ever."""
    will = WillAgain()
    will.old.is_caught_up = True
    will.publish()
    assert will.kinds() == [Kind.DATA] and will.answers == []
    will.old.producers.store(b"will/a", 5)
    (token,) = will.line.tokens
    will.new.apply(control_block([Repeated()]), token)
    tell_waiters(will.house.broker)
    assert len(will.answers) == 1 and will.answers[0] is not None


def test_a_will_waits_for_a_log_that_may_have_it_and_that_log_is_asked() -> None:
    will = WillAgain()
    will.publish()
    # Refused, so it comes again; the old log got a marker behind all that it has.
    assert will.answers == [None] and will.kinds() == [Kind.CONTROL]
    will.old.apply(will.line.blocks[0], will.line.tokens[0])
    will.publish()
    assert will.answers == [None] and will.kinds() == [Kind.CONTROL, Kind.DATA]


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_repeat_that_may_be_stored_is_never_refused_in_words(is_stored: bool) -> None:
    """Its stream moved meanwhile, and the disk is full. MQTT 5 frees the id of what is refused, and the next
    time it would be another message. Where this node does not know that it has it, it says nothing: the log
    that has it may not be applied so far, and the client comes again under the same token."""
    house = House(keeps_records=True)
    stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(17,))
    clock = {"now_ms": lambda: 0, "wall_us": lambda: 0, "wake": house._wake}
    old, new = (Shard(number, stream, house.broker, **clock) for number in (16, 17))
    new.others = {16: old, 17: new}
    # As above: looked at by hand.
    new.intake.arrivals = [Arrival(None, house.broker.router.route("u"), 0, None, None, b"")]
    house.broker.router.intakes = IntakesBy(lambda topic: new.intake)
    client = house.connect("a", resume=True)
    session = house.broker.sessions["a"]
    # As restored from the record of a run before.
    session.received, session.uncertain = {1}, {1: 5}
    if is_stored:
        old.producers.store(session.producer, 5)
    client.send(Publish(message=MESSAGE, packet_id=1, dup=True))
    new.cut(0, True)
    house._wake()
    house.turn()
    answers = client.take(Pubrec)
    assert [answer.reason for answer in answers] == ([Reason.SUCCESS] if is_stored else [])
    assert client.is_closed is not is_stored
    assert session.uncertain == ({} if is_stored else {1: 5})


class Changed:
    """A node whose stream was changed, so that its old log is sealed. What is left of that is yet to be
    applied here, as on a node that has just started."""

    def __init__(self, engine: Engine, old: Shard, now_ms: Callable[[], int]) -> None:
        self.engine, self.old, self._now_ms = engine, old, now_ms
        self.answers: list[int | None] = []
        old.state.is_finished = False
        engine._sealing.hold_back()

    def repeat(self) -> Arrival:
        """A message under the token of a session; the log of now is to take it."""
        broker = self.engine._broker
        one = Arrival(None, broker.router.route("t"), broker.router.generation, None, "t", b"")
        one.run = Packets(PACKET, 1, 2, False)
        one.producer, one.sequence, one.is_doubtful = b"qos2/1/a", 5, True
        one.waiter = Waiter(self.answers.append)
        broker.inbound.enter("t", one.run, self._now_ms(), one)
        self.engine.cut()
        return one

    async def until_answered(self) -> None:
        await until_async(lambda: self.answers, "the answer")


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_repeat_waits_until_sealed_logs_are_complete_and_tell_whether_they_have_it(is_stored: bool) -> None:
    async def scene() -> None:
        async with Node() as node:
            streams, new = await changed(node)
            at = new.next_offset
            one = streams.repeat()
            await asyncio.sleep(0)
            assert new.intake.arrivals == [one] and not streams.answers
            if is_stored:
                streams.old.producers.store(b"qos2/1/a", 5)
            streams.old.state.is_finished = True
            await streams.until_answered()
            assert new.next_offset == (at if is_stored else at + 1)

    asyncio.run(scene())


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_repeat_waits_until_open_logs_are_applied_since_the_start_of_the_node(is_stored: bool) -> None:
    """A topic may have left one of them, which stays open for others."""

    async def scene() -> None:
        async with Node() as node:
            streams, new = await changed(node)
            streams.old.state.is_finished = True
            at = new.next_offset
            (number,) = streams.engine.definitions.table.streams["default"].shards
            other = streams.engine.shards[number]
            # As on a node that has just started: nobody has asked it so far.
            other.is_caught_up = False
            other.forget_marker()
            one = streams.repeat()
            assert new.intake.arrivals == [one] and not streams.answers
            if is_stored:
                other.producers.store(b"qos2/1/a", 5)
            await streams.until_answered()
            assert other.is_caught_up and new.next_offset == (at if is_stored else at + 1)

    asyncio.run(scene())


def test_a_repeat_is_refused_where_a_sealed_log_is_not_complete_in_time() -> None:
    """Whether it is stored is open: an answer would be a guess."""

    async def scene() -> None:
        async with Node() as node:
            streams, new = await changed(node)
            at = new.next_offset
            streams.repeat()
            assert streams.old.finish_by_ms is not None
            streams.old.finish_by_ms -= FINISH_MS
            await streams.until_answered()
            assert streams.answers == [None] and new.next_offset == at

    asyncio.run(scene())


async def changed(node: Node) -> tuple[Changed, Shard]:
    engine = node.server.engine
    await engine.opening.put(StreamSpec(name="s", filters=("t",)), create=True)
    (before,) = engine.definitions.table.streams["s"].shards
    await engine.opening.put(StreamSpec(name="s", filters=("t", "u")), create=False)
    (after,) = engine.definitions.table.streams["s"].shards
    await until_async(lambda: engine.shards[before].is_finished, "the end of the old log")
    return Changed(engine, engine.shards[before], node.server._now_ms), engine.shards[after]
