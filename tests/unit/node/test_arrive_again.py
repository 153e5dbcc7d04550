"""Messages whose log is sealed or gone before they got there: where they stand is known to whoever waits, and
nobody is answered for a message that is not committed yet."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker.inbound import Inbound
from millrace.broker.intake import Arrival, Intake
from millrace.broker.message import Run
from millrace.broker.stream import DEFAULT_SPEC, Stream
from millrace.node.shard import Shard
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind, opaque_block
from millrace.wire.mqtt.codec import encode_publish
from millrace.wire.mqtt.packets import Pubrec
from unit.node.house import House

PACKET = b"\x32\x06\0\1t\0\1x"


class Moving:
    """A broker whose topics have just moved to another log, or to none."""

    def __init__(self, new: Intake | None) -> None:
        self.house = House()
        self.inbound: Inbound = self.house.broker.inbound
        self.house.broker.router.find_intake = lambda topic: new
        self.answers: list[int | None] = []

    def arrival(self, *, is_answer_only: bool = False) -> Arrival:
        """One that waits in the old log; of one that the log has already only the answer waits."""
        run = None if is_answer_only else Run(PACKET, 1, 1, False)
        made = Arrival(None, self.house.broker.router.route("t"), 0, run, None, b"")
        made.done = self.answers.append
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


def test_an_answer_alone_is_given_at_once() -> None:
    """What it repeats was in the log: an HTTP publisher waits for it as well."""
    moving = Moving(Intake(17, False))
    moving.inbound.arrive_again([moving.arrival(is_answer_only=True)], 0)
    assert len(moving.answers) == 1


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored before", "moves as well"])
@pytest.mark.parametrize("keeps", [True, False], ids=["another log", "no log"])
def test_repeats_in_a_run_are_answered_with_it(is_stored: bool, keeps: bool) -> None:
    """The run brings only what is fresh, its answer is for all that came: in the order in which it came
    [MQTT-4.6.0-3], and no earlier than what it repeats."""
    house, old, new = House(), Intake(16, False), Intake(17, False)
    inbound, router = house.broker.inbound, house.broker.router
    # Ones that are there already: nobody waits for these logs, they are looked at by hand.
    other = Arrival(None, router.route("u"), 0, None, None, b"")
    old.arrivals, new.arrivals = [other], [other]
    router.find_intake = lambda topic: old
    client = house.connect("a")

    def answers() -> list[int]:
        house.is_awake = True
        house.turn()
        return [packet.packet_id for packet in client.take(Pubrec)]

    def send(*ids: int) -> None:
        client.send_bytes(b"".join(encode_publish(b"t", b"x", 0x34, number, b"\0") for number in ids))

    send(1)
    send(1, 2, 3, 1, 4, 2)
    (_, first, run) = old.arrivals
    assert run.run is not None and run.run.count == 3 and answers() == []
    if is_stored:
        inbound.committed([first], 16, 0, 0)
        assert answers() == [1]
    router.find_intake = lambda topic: new if keeps else None
    router.forget_all()
    inbound.arrive_again([run] if is_stored else [first, run], 0)
    wanted = [1, 2, 3, 1, 4, 2] if is_stored else [1, 1, 2, 3, 1, 4, 2]
    if keeps:
        # Only what repeats a message that is stored need not wait.
        at_once = 1 if is_stored else 0
        assert answers() == wanted[:at_once]
        inbound.committed(new.arrivals, 17, 0, 0)
        wanted = wanted[at_once:]
    assert answers() == wanted
    assert inbound.uncommitted_bytes == 0


class Line:
    """In place of a replication group whose leader has sealed the log: refuses when the test says so."""

    is_alone = True

    def __init__(self) -> None:
        self.tokens: list[Any] = []

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        self.tokens += tokens
        return True

    def given_up(self) -> list[Any]:
        tokens, self.tokens = self.tokens, []
        return tokens


@pytest.mark.parametrize(("refused", "is_gone"), [(3, False), (0, True), (1, True), (2, True), (3, True)])
def test_what_a_sealed_log_refuses_goes_before_what_came_in_since(refused: int, is_gone: bool) -> None:
    """Those whose ids were late on disk wait in the intake already when the leader's refusals come. Also
    where the log goes away between these."""
    new = Intake(17, False)
    moving, line = Moving(new), Line()
    clock: dict[str, Any] = {"now_ms": lambda: 0, "wall_us": lambda: 0, "wake": lambda: None}
    stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
    old = Shard(16, stream, moving.house.broker, **clock)
    old.group = line  # type: ignore[assignment]
    proposed, since = [moving.arrival() for _ in range(3)], [moving.arrival() for _ in range(2)]
    for one in proposed:
        old.intake.arrivals.append(one)
        old.cut(0, False)
    old.intake.arrivals += since
    word = opaque_block(Kind.CONTROL, json.dumps({"op": "sealed"}).encode())
    for _ in range(refused):
        old.apply(word, line.tokens.pop(0))
    if is_gone:
        assert old.end() == [*proposed, *since]
    else:
        old.cut(0, False)
        assert new.arrivals == [*proposed, *since]
