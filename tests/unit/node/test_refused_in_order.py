"""A message that cannot be stored, of a client that cannot be told so: what came behind it is not stored
before it, and nothing is acknowledged for it. The client is sent away and sends all of it again."""

import pytest

from millrace.broker.messages.intake import Arrival
from millrace.broker.sessions.journal import Continuation
from millrace.kernels import packet_ids
from millrace.node.leaderless.keys import StreamKeys
from millrace.node.sessions.session_group import resume_all
from millrace.node.shards.shard import Shard
from millrace.reasons import Reason
from millrace.types import Message, Version
from millrace.wire.mqtt.codec import encode, encode_publish
from millrace.wire.mqtt.packets import Publish, Pubrec
from unit.node.house import Client, House
from unit.node.stand_ins import IntakesBy
from unit.node.test_arrive_again import Line, shard_of


class Log:
    """A log at a node with records of its sessions, and one client whose ids are written when the test says
    so."""

    def __init__(self, version: Version = Version.MQTT_3_1_1) -> None:
        self.house, self.line, self._version = House(keeps_records=True), Line(), version
        self.shard = shard_of(self.house, self.line)
        self.house.broker.router.intakes = IntakesBy(lambda topic: self.shard.intake)
        self.client = self.connect()
        self.unwritten: list[list[Continuation]] = []

    def connect(self) -> Client:
        return self.house.connect("a", version=self._version, resume=True)

    def publish(self, number: int, *, dup: bool = False) -> None:
        """One message at QoS 2, whose id waits to be written."""
        message = Message(topic="t", payload=b"%d" % number, qos=2)
        packet = Publish(message=message, packet_id=number, dup=dup)
        self.client.connection.data_received(encode(packet, self._version))
        _, waiting = self.house.broker.journal.take()
        self.unwritten.append(waiting)

    def write(self) -> None:
        """The oldest of these is on disk."""
        resume_all(self.house.broker, self.unwritten.pop(0))

    def cut(self, *, is_full: bool = False) -> None:
        self.house.broker.inbound.take_waiting()
        self.shard.cut(0, is_full)
        self.house.turn()

    def proposed(self) -> list[int]:
        """Packet ids of the messages in the log, as it will be."""
        found: list[int] = []
        for block in self.line.blocks:
            if block.header.count:
                columns = block.columns()
                found += packet_ids(bytes(columns.packets))
        return found

    def commit(self) -> list[Reason]:
        """What was proposed is applied; what the client is told."""
        for block, token in zip(self.line.blocks, self.line.tokens, strict=True):
            self.shard.apply(block, token)
        self.house.is_awake = True
        self.house.turn()
        return [answer.reason for answer in self.client.take(Pubrec)]


def test_what_came_behind_a_refused_message_is_not_stored_before_it() -> None:
    """The disk is full when the first one's id is on disk, and there is room when the second one's is."""
    log = Log()
    log.publish(1)
    log.publish(2)
    log.write()
    log.cut(is_full=True)
    assert log.client.is_closed
    log.write()
    log.cut()
    assert log.proposed() == []

    log.client = log.connect()
    for number in (1, 2):
        log.publish(number, dup=True)
        log.write()
    log.cut()
    assert log.proposed() == [1, 2]
    assert log.commit() == [Reason.SUCCESS] * 2
    assert log.house.broker.inbound.uncommitted_bytes == 0


def test_what_comes_over_the_next_connection_is_stored() -> None:
    log = Log()
    log.publish(1)
    log.write()
    log.cut(is_full=True)
    log.client = log.connect()
    log.publish(3)
    log.write()
    log.cut()
    assert log.proposed() == [3]


@pytest.mark.parametrize("version", [Version.MQTT_3_1_1, Version.MQTT_5])
def test_a_repeat_is_not_answered_for_a_message_that_was_refused_meanwhile(version: Version) -> None:
    """Its client came back while its id was still to be written: the repeat waits behind it."""
    log = Log(version)
    log.publish(1)
    log.client.drop()
    log.client = log.connect()
    log.publish(1, dup=True)
    log.write()
    log.cut(is_full=True)
    log.write()
    log.cut()
    assert log.commit() == []
    assert log.client.is_closed

    log.client = log.connect()
    log.publish(1, dup=True)
    log.write()
    log.line.blocks, log.line.tokens = [], []
    log.cut()
    assert log.proposed() == [1]
    assert log.commit() == [Reason.SUCCESS]


def test_what_came_in_the_same_turn_behind_a_refused_repeat_is_not_stored_before_it() -> None:
    """The repeat may be in a log that is not complete here in time; the message behind it is new."""
    log = Log()
    other = Shard(
        15, log.shard.stream, log.house.broker, now_ms=lambda: 0, wall_us=lambda: 0, wake=lambda: None
    )
    log.shard.others = {15: other, 16: log.shard}
    session = log.house.broker.sessions["a"]
    # As restored from the record of a run before.
    session.received, session.uncertain = {1}, {1: 5}
    for number in (1, 2):
        log.publish(number, dup=number == 1)
        log.write()
    log.cut()
    assert log.proposed() == []
    assert log.client.is_closed


def test_nor_in_a_leaderless_log() -> None:
    house = House(keeps_records=True)
    keys = StreamKeys(house.broker, lambda: 0, lambda: 0)
    client = house.connect("a", version=Version.MQTT_3_1_1, resume=True)
    arrivals: list[Arrival] = []
    intake = shard_of(house, Line()).intake
    house.broker.router.intakes = IntakesBy(lambda topic: intake)
    for number in (1, 2):
        client.connection.data_received(encode_publish(b"t", b"x", 0x32, number, b""))
        arrivals += intake.arrivals
        intake.arrivals = []
    first, second = arrivals
    keys.refuse([first], Reason.SERVER_BUSY)
    assert client.is_closed
    assert list(keys.admitted([second])) == []
    assert house.broker.inbound.uncommitted_bytes == 0
