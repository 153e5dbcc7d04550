"""Messages whose log is sealed or gone before they got there: where they stand is known to whoever waits, and
nobody is answered for a message that is not committed yet."""

from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker.entries.shard import Sealed
from millrace.broker.groups.group_work import GroupWork
from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.messages.message import Run
from millrace.broker.shards.shard_state import ShardState
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.kernels import packet_ids
from millrace.kernels.blocks import Run as Messages
from millrace.node.shards.control import control_block
from millrace.node.shards.shard import Shard
from millrace.reasons import Reason
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, data_blocks
from millrace.types import Version
from millrace.wire.mqtt.codec import encode_publish
from millrace.wire.mqtt.packets import Puback, Pubrec
from unit.node.house import House
from unit.node.stand_ins import IntakesBy, Waiter, WorkOf, tell_waiters

PACKET = b"\x32\x06\0\1t\0\1x"


class Moving:
    """A broker whose topics have just moved to another log, or to none."""

    def __init__(self, new: Intake | None) -> None:
        self.house = House()
        self.inbound: Inbound = self.house.broker.inbound
        self.house.broker.router.intakes = IntakesBy(lambda topic: new)
        self._answers: list[int | None] = []
        self._made = 0

    @property
    def answers(self) -> list[int | None]:
        tell_waiters(self.house.broker)
        return self._answers

    def arrival(self, *, is_answer_only: bool = False) -> Arrival:
        """One that waits in the old log; of one that the log has already only the answer waits."""
        run = None if is_answer_only else Run(PACKET, 1, 1, False)
        topic = "t" if is_answer_only else None
        made = Arrival(None, self.house.broker.router.route("t"), 0, run, topic, b"")
        made.waiter = Waiter(self._answers.append)
        self._made += 1
        made.arrival_number = self._made
        self.inbound.uncommitted_bytes += 0 if run is None else len(PACKET)
        return made


@pytest.mark.parametrize("shard", [17, 0], ids=["another log", "no log"])
def test_whoever_waits_sees_where_a_message_went(shard: int) -> None:
    new = Intake(shard, False) if shard else None
    moving = Moving(new)
    one = moving.arrival()
    run = one.run
    assert run is not None
    moving.inbound.arrive_again([one], 0)
    if new is not None:
        assert moving.answers == [] and new.arrivals == [one]
        moving.inbound.committed(new.arrivals, shard, 5, 0)
    assert moving.answers == [5 if shard else 0]
    assert (run.shard, moving.inbound.uncommitted_bytes) == (shard, 0)


def test_an_answer_that_may_repeat_a_message_before_it_waits_for_that() -> None:
    new = Intake(17, False)
    moving = Moving(new)
    message, repeat = moving.arrival(), moving.arrival(is_answer_only=True)
    moving.inbound.arrive_again([message, repeat], 0)
    assert new.arrivals == [message, repeat] and moving.answers == []
    moving.inbound.committed(new.arrivals, 17, 0, 0)
    assert len(moving.answers) == 2


@pytest.mark.parametrize("keeps", [True, False], ids=["another log", "no log"])
def test_an_answer_alone_is_given_by_the_log_where_what_it_repeats_may_be(keeps: bool) -> None:
    """An HTTP publisher waits for it as well."""
    new = Intake(17, False)
    moving = Moving(new if keeps else None)
    moving.inbound.arrive_again([moving.arrival(is_answer_only=True)], 0)
    if keeps:
        assert moving.answers == []
        moving.inbound.committed(new.arrivals, 17, 0, 0)
    assert len(moving.answers) == 1


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored before", "moves as well"])
@pytest.mark.parametrize("keeps", [True, False], ids=["another log", "no log"])
def test_repeats_in_a_run_are_answered_with_it(is_stored: bool, keeps: bool) -> None:
    """In the order in which they came [MQTT-4.6.0-3], and no earlier than what they repeat."""
    house, old, new = House(), Intake(16, False), Intake(17, False)
    inbound, router = house.broker.inbound, house.broker.router
    # Ones that are there already: nobody waits for these logs, they are looked at by hand.
    other = Arrival(None, router.route("u"), 0, None, None, b"")
    old.arrivals, new.arrivals = [other], [other]
    router.intakes = IntakesBy(lambda topic: old)
    client = house.connect("a")

    def answers() -> list[int]:
        house.is_awake = True
        house.turn()
        return [packet.packet_id for packet in client.take(Pubrec)]

    def send(*ids: int) -> None:
        client.send_bytes(b"".join(encode_publish(b"t", b"x", 0x34, number, b"\0") for number in ids))

    send(1)
    send(1, 2, 3, 1, 4, 2)
    (_, first, *others) = old.arrivals
    assert [one.run is not None for one in others] == [False, True, True, False, True, False]
    assert house.broker.stats.received == 4 and answers() == []
    if is_stored:
        inbound.committed([first], 16, 0, 0)
        assert answers() == [1]
    router.intakes = IntakesBy(lambda topic: new if keeps else None)
    router.forget_all()
    inbound.arrive_again(others if is_stored else [first, *others], 0)
    wanted = [1, 2, 3, 1, 4, 2] if is_stored else [1, 1, 2, 3, 1, 4, 2]
    if keeps:
        assert answers() == []
        inbound.committed(new.arrivals, 17, 0, 0)
    assert answers() == wanted
    assert inbound.uncommitted_bytes == 0


class Logs:
    """A client whose topics go to logs that the test looks at by hand."""

    def __init__(self, *numbers: int, v5: bool = True, keeps_records: bool = False) -> None:
        self.house = House(keeps_records=keeps_records)
        self.inbound: Inbound = self.house.broker.inbound
        self.intakes = {number: Intake(number, False) for number in numbers}
        # One that is there already: nobody waits for these logs.
        self._other = Arrival(None, self.house.broker.router.route("other"), 0, None, None, b"")
        for intake in self.intakes.values():
            intake.arrivals = [self._other]
        self.client = self.house.connect("a", v5=v5, resume=True)

    def lead(self, **logs: int) -> None:
        """From now on these topics go there."""
        self.house.broker.router.intakes = IntakesBy(lambda topic: self.intakes[logs[topic]])
        self.house.broker.router.forget_all()

    def send(self, *messages: tuple[str, int], first: int = 0x34) -> None:
        """QoS 2 messages of these topics and packet ids, in one piece."""
        properties = b"\0" if self.client.version is Version.MQTT_5 else b""
        self.client.send_bytes(
            b"".join(
                encode_publish(topic.encode(), b"%d" % number, first, number, properties)
                for topic, number in messages
            )
        )

    def taken(self, number: int) -> list[Arrival]:
        """What waits for a log."""
        intake = self.intakes[number]
        arrivals, intake.arrivals = intake.arrivals, [self._other]
        return [arrival for arrival in arrivals if arrival is not self._other]

    def commit(self, number: int) -> None:
        self.inbound.committed(self.taken(number), number, 0, 0)

    def refuse(self, number: int) -> None:
        for session in self.inbound.refused(self.taken(number), Reason.QUOTA_EXCEEDED):
            assert session.connection is not None
            session.connection.fail(Reason.QUOTA_EXCEEDED, "the message could not be stored")

    def answers(self) -> list[tuple[int, Reason]]:
        self.house.is_awake = True
        self.house.turn()
        return [(packet.packet_id, packet.reason) for packet in self.client.take(Pubrec)]

    def ids(self, number: int) -> list[int]:
        """Of the messages that wait for a log."""
        arrivals = self.intakes[number].arrivals
        return [one for arrival in arrivals if arrival.run for one in packet_ids(arrival.run.data)]


@pytest.mark.parametrize("order", [(16, 17), (17, 16)], ids=str)
@pytest.mark.parametrize("keeps_records", [False, True])
def test_messages_of_several_sealed_logs_stay_in_the_order_in_which_they_came(
    order: tuple[int, int], keeps_records: bool
) -> None:
    """A stream that is changed twice has two sealed logs: whichever lets go of its messages first."""
    logs = Logs(16, 17, 18, keeps_records=keeps_records)
    for number in (16, 17, 18):
        logs.lead(t=number)
        logs.send(("t", 2 * number), ("t", 2 * number + 1))
    for number in order:
        logs.inbound.arrive_again(logs.taken(number), 0)
    assert logs.ids(18) == [32, 33, 34, 35, 36, 37]


def test_messages_that_a_sealed_log_lets_go_one_after_the_other_stay_in_their_order() -> None:
    """Ids that are late on disk: the second message comes to the sealed log when the first has moved on."""
    logs = Logs(16, 17)
    for number, log in ((1, 16), (2, 16), (3, 17)):
        logs.lead(t=log)
        logs.send(("t", number))
    for one in logs.taken(16):
        logs.inbound.arrive_again([one], 0)
    assert logs.ids(17) == [1, 2, 3]


def test_messages_whose_ids_are_written_late_are_as_old_as_they_are() -> None:
    """The client published to two logs, both sealed before the word that its ids are on disk."""
    logs = Logs(16, 17, 18, keeps_records=True)
    for number in (16, 17):
        logs.lead(t=number)
        logs.client.connection.data_received(encode_publish(b"t", b"x", 0x34, number, b"\0"))
    logs.lead(t=18)
    logs.house.turn()
    for number in (16, 17):
        logs.inbound.arrive_again(logs.taken(number), 0)
    assert logs.ids(18) == [16, 17]


@pytest.mark.parametrize("first", [0x34, 0x3C])
@pytest.mark.parametrize("keeps_records", [False, True])
def test_a_repeat_is_answered_after_the_log_to_which_its_message_went(
    first: int, keeps_records: bool
) -> None:
    """Messages that came together go to two logs, and the one that the repeat came last behind is quicker."""
    logs = Logs(16, 17, 18, keeps_records=keeps_records)
    logs.lead(t=16, u=16)
    if first == 0x34:
        logs.send(("t", 1), ("u", 2), ("t", 1))
    else:
        logs.send(("t", 1), ("u", 2))
        logs.send(("t", 1), first=first)
    logs.lead(t=17, u=18)
    logs.inbound.arrive_again(logs.taken(16), 0)
    logs.commit(18)
    assert logs.answers() == [(2, Reason.SUCCESS)]
    logs.commit(17)
    assert logs.answers() == [(1, Reason.SUCCESS)] * 2


def test_a_repeat_that_comes_behind_is_answered_after_its_message_that_moved_before() -> None:
    """Its word that nothing new is to be written was late: the message is in the new log's intake by then."""
    logs = Logs(16, 17)
    logs.lead(t=16)
    logs.send(("t", 1))
    logs.send(("t", 1), first=0x3C)
    logs.lead(t=17)
    for one in logs.taken(16):
        logs.inbound.arrive_again([one], 0)
    assert logs.answers() == []
    logs.commit(17)
    assert logs.answers() == [(1, Reason.SUCCESS)] * 2


@pytest.mark.parametrize("keeps_records", [False, True])
def test_repeats_of_what_is_refused_are_refused_as_well(keeps_records: bool) -> None:
    """Each PUBLISH has its answer, and the ids are free again."""
    logs = Logs(16, keeps_records=keeps_records)
    logs.lead(t=16)
    logs.send(("t", 1), ("t", 2), ("t", 1))
    logs.send(("t", 2), first=0x3C)
    logs.refuse(16)
    assert logs.answers() == [(number, Reason.QUOTA_EXCEEDED) for number in (1, 2, 1, 2)]
    assert not logs.client.is_closed
    logs.send(("t", 1), ("t", 2))
    assert logs.ids(16) == [1, 2]


@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("first", [0x34, 0x3C])
@pytest.mark.parametrize("keeps_records", [False, True])
def test_a_refused_repeat_of_what_may_be_stored_ends_the_connection(
    first: int, v5: bool, keeps_records: bool
) -> None:
    """Neither yes nor no is true of its message. The client comes back, sends it again and is answered."""
    logs = Logs(16, v5=v5, keeps_records=keeps_records)
    logs.lead(t=16)
    logs.send(("t", 1))
    logs.commit(16)
    assert logs.answers() == [(1, Reason.SUCCESS)]
    logs.send(("t", 1), ("t", 2), first=first)
    logs.refuse(16)
    assert [number for number, _ in logs.answers() if number == 1] == [] and logs.client.is_closed
    logs.client = logs.house.connect("a", v5=v5, resume=True)
    logs.send(("t", 1), ("t", 2), first=0x3C)
    assert logs.ids(16) == [2]
    logs.commit(16)
    assert logs.answers() == [(1, Reason.SUCCESS), (2, Reason.SUCCESS)]


def test_a_refused_repeat_of_a_key_ends_the_connection() -> None:
    """QoS 1 with a sequence of the client's own: the first one is in the log, or on its way there."""
    logs = Logs(16)
    logs.lead(t=16)
    logs.send(("t", 1), first=0x32)
    (one,) = logs.intakes[16].arrivals[1:]
    logs.inbound.forget(one)
    logs.refuse(16)
    assert logs.client.is_closed and not logs.client.take(Puback)


class Line:
    """In place of a replication group whose leader has sealed the log: refuses when the test says so."""

    is_alone = True

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.tokens: list[Any] = []

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        self.blocks += blocks
        self.tokens += tokens
        return True

    def given_up(self) -> list[Any]:
        tokens, self.tokens = self.tokens, []
        return tokens


def shard_of(house: House, line: Line) -> Shard:
    clock: dict[str, Any] = {"now_ms": lambda: 0, "wall_us": lambda: 0, "wake": lambda: None}
    stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
    shard = Shard(16, stream, house.broker, **clock)
    shard.group = line  # type: ignore[assignment]
    return shard


@pytest.mark.parametrize(("refused", "is_gone"), [(3, False), (0, True), (1, True), (2, True), (3, True)])
def test_what_a_sealed_log_refuses_goes_before_what_came_in_since(refused: int, is_gone: bool) -> None:
    """Those whose ids were late on disk wait in the intake already when the leader's refusals come. Also
    where the log goes away between these."""
    new = Intake(17, False)
    moving, line = Moving(new), Line()
    old = shard_of(moving.house, line)
    proposed, since = [moving.arrival() for _ in range(3)], [moving.arrival() for _ in range(2)]
    for one in proposed:
        old.intake.arrivals.append(one)
        old.cut(0, False)
    old.intake.arrivals += since
    word = control_block([Sealed()])
    for _ in range(refused):
        old.apply(word, line.tokens.pop(0))
    if is_gone:
        moving.inbound.arrive_again(old.end(), 0)
    else:
        old.cut(0, False)
    assert new.arrivals == [*proposed, *since]


def test_a_repeat_of_what_a_sealed_log_refuses_is_answered_after_it() -> None:
    """The first one was on its way when its publisher sent it again: only an answer was proposed for that."""
    new = Intake(17, False)
    moving, line = Moving(new), Line()
    old = shard_of(moving.house, line)
    message, repeat = moving.arrival(), moving.arrival()
    for one in (message, repeat):
        one.topic, one.producer, one.sequence, one.is_doubtful = "t", b"key/p", 1, True
        old.intake.arrivals.append(one)
        old.cut(0, False)
    _, answer = line.blocks
    for block in (control_block([Sealed()]), answer):
        old.apply(block, line.tokens.pop(0))
    assert moving.answers == []
    old.cut(0, False)
    assert new.arrivals == [message, repeat]


def test_a_repeat_of_what_a_sealed_log_has_is_answered_by_that_log() -> None:
    """The next one does not know its key."""
    new = Intake(17, False)
    moving, line = Moving(new), Line()
    old = shard_of(moving.house, line)
    old.producers.store(b"key/p", 1)
    repeat = moving.arrival()
    repeat.topic, repeat.producer, repeat.sequence, repeat.is_doubtful = "t", b"key/p", 1, True
    old.intake.arrivals.append(repeat)
    old.cut(0, False)
    old.intake.is_sealed = True
    old.apply(*line.blocks, *line.tokens)
    old.cut(0, False)
    assert len(moving.answers) == 1 and new.arrivals == []


def test_an_answer_whose_message_the_next_log_refused_is_refused_as_well() -> None:
    moving, line = Moving(None), Line()
    new = shard_of(moving.house, line)
    answer = moving.arrival(is_answer_only=True)
    answer.producer, answer.sequence, answer.is_doubtful = b"key/p", 1, True
    new.intake.arrivals.append(answer)
    new.cut(0, False)
    assert moving.answers == [None] and not new._keys_in_flight


def test_messages_of_more_than_one_block_are_delivered_by_their_own_places() -> None:
    """A large message and small ones came together, and the leader put another's blocks between theirs."""
    logs, line = Logs(16), Line()
    shard = shard_of(logs.house, line)
    places: list[int] = []

    class Work(GroupWork):
        def turns(self, group: str, node: str, first: int, end: int) -> list[tuple[int, int]]:
            places.extend(range(first, end))
            return []

    logs.house.broker.outbound.group_work = WorkOf(Work(ShardState(16)))
    logs.house.connect("reader").subscribe("$share/team/t", qos=1)
    logs.lead(t=16, other=16)
    # A topic that is known: the messages come in as one run.
    logs.send(("t", 9), first=0x32)
    logs.commit(16)
    places.clear()
    payloads = [b"x" * 1_100_000, b"x", b"x", b"x"]
    logs.client.send_bytes(
        b"".join(encode_publish(b"t", payload, 0x32, n, b"\0") for n, payload in enumerate(payloads, 1))
    )
    shard.intake.arrivals = logs.taken(16)
    shard.cut(0, False)
    (other,) = data_blocks([Messages(packets=encode_publish(b"other", b"x", 0x32, 1, b"") * 5, version=4)])
    stored: list[int] = []
    stamp = {"shard": 16, "term": 1, "index": 1, "previous_term": 1, "base_time_us": 0}
    for block, token in zip(line.blocks, line.tokens, strict=True):
        base = shard.next_offset
        shard.apply(block.stamped(base_offset=base, **stamp), token)
        stored += range(base, shard.next_offset)
        shard.apply(other.stamped(base_offset=shard.next_offset, **stamp), None)
    assert len(line.blocks) > 1 and len(stored) == 4
    assert places == stored
    logs.house.is_awake = True
    logs.house.turn()
    assert [packet.packet_id for packet in logs.client.take(Puback)] == [9, 1, 2, 3, 4]
    assert logs.inbound.uncommitted_bytes == 0
