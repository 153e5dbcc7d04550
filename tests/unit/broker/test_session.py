"""What a session owes and is owed: answers, windows, packet ids, waiting messages, QoS 2 both ways."""

from random import Random

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.messages.message import Run, Segment
from millrace.broker.sessions.session import Session
from millrace.kernels import ack_run, packet_ids, skip
from millrace.reasons import Reason
from millrace.types import Message
from millrace.wire.mqtt.codec import encode, encode_publish
from millrace.wire.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from unit.node.house import Client, House

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


def run_of(count: int, qos: int) -> Run:
    packet = encode_publish(b"t", b"x", 0x30 | qos << 1, 1, b"")
    return Run(packet * count, count, qos, False)


class Ledger:
    """A session and, beside it, plain sets of the ids it should hold."""

    def __init__(self) -> None:
        self.session = Session("c", AccessRules().principal(None, "c"))
        self.open: dict[int, int] = {}
        self.released: set[int] = set()
        self.next_id = 1
        self.serial = 0

    def sent(self, count: int, qos: int) -> None:
        count = min(count, 65_536 - self.next_id)
        segment = Segment(run_of(count, qos), count, qos, False, b"")
        segment.first_id, segment.serial = self.next_id, self.serial
        self.session.track(segment)
        self.open.update(dict.fromkeys(range(self.next_id, self.next_id + count), qos))
        self.serial += count
        self.next_id = (self.next_id + count - 1) % 65_535 + 1

    def answered(self, first_id: int, count: int, qos: int) -> None:
        wanted = [n for n in range(first_id, first_id + count) if self.open.get(n) == qos]
        assert self.session.acknowledge(first_id, count, qos) == len(wanted)
        for packet_id in wanted:
            del self.open[packet_id]
            if qos == 2:
                self.released.add(packet_id)

    def completed(self, first_id: int, count: int) -> None:
        wanted = self.released & set(range(first_id, first_id + count))
        assert self.session.complete(first_id, count) == len(wanted)
        self.released -= wanted

    def check(self) -> None:
        assert self.session.in_use() == set(self.open) | self.released
        assert self.session.inflight_count == len(self.open) + len(self.released)
        assert all(self.session.is_released(n) for n in self.released)
        assert not any(self.session.is_released(n) for n in self.open)


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_answers_leaves_exactly_what_was_not_answered(seed: int) -> None:
    """In order, out of order, twice, for the wrong QoS and for ids that were never used."""
    random, ledger = Random(seed), Ledger()
    for _ in range(250):
        action = random.random()
        if action < 0.35:
            ledger.sent(random.choice((1, 1, 3, 20)), random.choice((1, 2)))
        elif action < 0.85:
            known = sorted(ledger.open) or [1]
            first_id = random.choice((known[0], random.choice(known), random.randint(1, 65_535)))
            count = min(random.choice((1, 1, 2, 10, 50)), 65_536 - first_id)
            ledger.answered(first_id, count, ledger.open.get(first_id, random.choice((1, 2))))
        elif ledger.released:
            ledger.completed(random.choice(sorted(ledger.released)), random.choice((1, 2, 10)))
        ledger.check()


def test_segments_keep_the_order_and_bytes_of_their_run_however_they_are_cut() -> None:
    packets = [encode_publish(b"t", b"x" * n, 0x32, n + 1, b"") for n in range(20)]
    for seed in range(20):
        random = Random(seed)
        whole = Segment(Run(b"".join(packets), 20, 1, False), 20, 1, False, b"")
        kept: list[bytes] = []
        expected: list[bytes] = []
        at = 0
        while whole.count > 1:
            count = random.randint(1, whole.count - 1)
            if random.random() < 0.3:
                whole.drop(count)
            else:
                head = whole.take(count)
                kept.append(head.packets(0))
                expected += packets[at : at + count]
                assert whole.mark == (at, sum(map(len, packets[:at]))), "the next cut need not start over"
            at += count
        kept.append(whole.packets(0))
        assert b"".join(kept) == b"".join([*expected, *packets[at:]])


def test_a_few_messages_that_are_left_do_not_hold_the_run_they_came_in() -> None:
    """A client that answers all but one of each run must not keep every chunk in memory."""
    ledger = Ledger()
    for _ in range(50):
        segment = Segment(
            Run(b"".join(encode_publish(b"t", b"x" * 100, 0x32, 1, b"") for _ in range(200)), 200, 1, False),
            200,
            1,
            False,
            b"",
        )
        segment.first_id, segment.serial = ledger.next_id, ledger.serial
        ledger.session.track(segment)
        ledger.session.acknowledge(segment.first_id + 1, 199, 1)
        ledger.next_id += 200
        ledger.serial += 200
    left = ledger.session.inflight or ()
    assert [segment.first_id for segment in left] == [1 + 200 * n for n in range(50)]
    assert sum(len(segment.run.data) for segment in left) < 50 * 200
    assert all(len(segment.packets(0)) == 107 for segment in left)


# ------------------------------------------------------------------------------------ toward clients


def bulk(count: int, qos: int, topic: bytes = b"t") -> bytes:
    """Publishes as one chunk, ids from 1."""
    return b"".join(encode_publish(topic, b"%d" % n, 0x30 | qos << 1, n, b"") for n in range(1, count + 1))


def pair(qos: int = 1, **fields: object) -> tuple[House, Client, Client]:
    house = House()
    subscriber = house.connect("s", v5=True, **fields)
    subscriber.subscribe("t", qos=qos)
    return house, subscriber, house.connect("p", v5=False)


def test_unknown_acknowledgements_change_nothing() -> None:
    house, subscriber, publisher = pair(qos=2)
    publisher.publish("t", b"1", qos=1)
    (message,) = subscriber.messages()
    assert message.packet_id is not None
    subscriber.send(Puback(packet_id=message.packet_id + 1), Pubcomp(packet_id=message.packet_id + 1))
    subscriber.send(Pubrec(packet_id=message.packet_id + 1))
    assert subscriber.take(Pubrel)[0].reason is Reason.PACKET_ID_NOT_FOUND
    assert house.broker.sessions["s"].inflight_count == 1
    subscriber.acknowledge(message)
    assert house.broker.sessions["s"].inflight_count == 0
    assert not subscriber.is_closed


def test_no_more_messages_are_open_than_the_client_allows() -> None:
    house, subscriber, publisher = pair(qos=2, receive_maximum=3)
    for number in range(8):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2)
    seen: list[bytes] = []
    while messages := subscriber.messages():
        assert len(messages) <= 3
        for message in messages[:2]:
            subscriber.acknowledge(message)
            seen.append(message.message.payload)
        for message in messages[2:]:
            assert house.broker.sessions["s"].inflight_count <= 3
            subscriber.acknowledge(message)
            seen.append(message.message.payload)
    assert seen == [b"%d" % n for n in range(8)]


def test_a_pubrec_does_not_free_the_window_and_a_pubcomp_does() -> None:
    _, subscriber, publisher = pair(qos=2, receive_maximum=1)
    publisher.publish("t", b"1", qos=2)
    publisher.publish("t", b"2", qos=2)
    (first,) = subscriber.messages()
    assert first.packet_id is not None
    subscriber.send(Pubrec(packet_id=first.packet_id))
    assert subscriber.payloads() == []
    subscriber.send(Pubcomp(packet_id=first.packet_id))
    assert subscriber.payloads() == [b"2"]


def test_a_refusal_by_the_client_ends_that_message() -> None:
    house, subscriber, publisher = pair(qos=2, receive_maximum=1)
    for number, answer in ((1, Puback), (2, Pubrec)):
        publisher.publish("t", b"x", qos=number)
        (message,) = subscriber.messages()
        assert message.packet_id is not None
        subscriber.send(answer(packet_id=message.packet_id, reason=Reason.UNSPECIFIED))
        assert subscriber.read() == []
        assert house.broker.sessions["s"].in_use() == set()


def test_what_waits_is_bounded_in_messages_and_the_drop_is_counted() -> None:
    house = House(queued_messages_max=10)
    sleeper = house.connect("s", resume=True)
    sleeper.subscribe("t")
    sleeper.drop()
    publisher = house.connect("p")
    for number in range(25):
        publisher.publish("t", b"%d" % number, qos=1)
    session = house.broker.sessions["s"]
    assert (session.queued_messages, session.dropped, house.broker.stats.dropped_queue) == (10, 15, 15)
    back = house.connect("s", resume=True)
    assert back.payloads() == [b"%d" % n for n in range(10)]


def test_what_waits_is_bounded_in_bytes() -> None:
    house = House(queued_bytes_max=8192, packet_bytes_max=4096)
    sleeper = house.connect("s", resume=True)
    sleeper.subscribe("t")
    sleeper.drop()
    publisher = house.connect("p")
    for _ in range(10):
        publisher.publish("t", b"x" * 2000, qos=1)
    session = house.broker.sessions["s"]
    assert session.queued_messages == 4
    assert session.queued_bytes <= 8192
    assert len(house.connect("s", resume=True).payloads()) == 4
    assert (session.queued_messages, session.queued_bytes) == (0, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_client_does_not_acknowledge_is_bounded_in_bytes(qos: int) -> None:
    """It reads everything and answers nothing: what the broker keeps to send again must not grow with it."""
    house = House(in_flight_bytes_max=8192, packet_bytes_max=4096)
    silent = house.connect("s", resume=True)
    silent.subscribe("t", qos=qos)
    publisher = house.connect("p")
    for number in range(20):
        publisher.publish("t", b"%02d" % number + b"x" * 2000, qos=qos)
    session = house.broker.sessions["s"]
    first = silent.messages()
    assert len(first) == 5, "four are less than the bound, one passes it"
    assert session.inflight_bytes <= 8192 + 2100
    silent.drop()
    back = house.connect("s", resume=True)
    got = []
    while arrival_number := back.messages():
        for packet in arrival_number:
            got.append(packet.message.payload[:2])
            back.acknowledge(packet)
    assert got == [b"%02d" % n for n in range(20)]
    assert (session.inflight_count, session.inflight_bytes) == (0, 0)


def test_qos_0_does_not_wait_for_a_client_that_is_away() -> None:
    house, _, publisher = pair(qos=2)
    sleeper = house.connect("sleeper", resume=True)
    sleeper.subscribe("t")
    sleeper.drop()
    publisher.publish("t", b"0", qos=0)
    publisher.publish("t", b"1", qos=1)
    assert house.connect("sleeper", resume=True).payloads() == [b"1"]


class TestReturn:
    """A client that comes back gets again what it did not answer ([MQTT-4.4.0-1])."""

    def test_publishes_with_dup_and_their_ids_then_what_waited(self) -> None:
        house, subscriber, publisher = pair(qos=2, resume=True)
        publisher.publish("t", b"1", qos=1)
        publisher.publish("t", b"2", qos=2)
        first = subscriber.messages()
        subscriber.drop()
        publisher.publish("t", b"3", qos=1)
        back = house.connect("s", resume=True)
        assert back.connack.session_present
        again = back.messages()
        assert [(m.message.payload, m.dup) for m in again] == [(b"1", True), (b"2", True), (b"3", False)]
        assert [m.packet_id for m in again[:2]] == [m.packet_id for m in first]

    def test_a_release_is_repeated_and_the_message_is_not(self) -> None:
        house, subscriber, publisher = pair(qos=2, resume=True)
        publisher.publish("t", b"2", qos=2)
        (message,) = subscriber.messages()
        assert message.packet_id is not None
        subscriber.send(Pubrec(packet_id=message.packet_id))
        subscriber.drop()
        back = house.connect("s", resume=True)
        assert back.read() == [Pubrel(packet_id=message.packet_id)]
        back.send(Pubcomp(packet_id=message.packet_id))
        assert house.broker.sessions["s"].in_use() == set()

    @pytest.mark.parametrize("receive_maximum", [1, 2, 5])
    def test_never_more_than_the_new_window(self, receive_maximum: int) -> None:
        """[MQTT-3.3.4-9]: the receive maximum is that of the connection, not of the session."""
        house, subscriber, publisher = pair(qos=2, resume=True)
        publisher.send_bytes(bulk(4, 1) + bulk(4, 2))
        before = [m.packet_id for m in subscriber.messages()]
        assert len(before) == 8
        subscriber.drop()
        back = house.connect("s", resume=True, receive_maximum=receive_maximum)
        seen: list[tuple[int | None, bool]] = []
        while messages := back.messages():
            assert len(messages) <= receive_maximum
            for message in messages:
                seen.append((message.packet_id, message.dup))
            for message in messages:
                back.acknowledge(message)
        assert seen == [(packet_id, True) for packet_id in before]
        publisher.read()
        publisher.publish("t", b"fresh", qos=1)
        assert [(m.message.payload, m.dup) for m in back.messages()] == [(b"fresh", False)]

    def test_twice_in_a_row_with_a_small_window_keeps_order_and_ids(self) -> None:
        house, subscriber, publisher = pair(qos=1, resume=True)
        publisher.send_bytes(bulk(5, 1))
        before = [(m.message.payload, m.packet_id) for m in subscriber.messages()]
        subscriber.drop()
        publisher.read()
        publisher.publish("t", b"6", qos=1)
        house.connect("s", resume=True, receive_maximum=2).drop()
        back = house.connect("s", resume=True, receive_maximum=1)
        seen = []
        while messages := back.messages():
            (message,) = messages
            seen.append((message.message.payload, message.packet_id))
            back.acknowledge(message)
        assert seen[:5] == before and seen[5][0] == b"6"

    def test_a_clean_start_forgets_everything(self) -> None:
        house, subscriber, publisher = pair(qos=2, resume=True)
        publisher.publish("t", b"1", qos=2)
        subscriber.drop()
        back = house.connect("s")
        assert not back.connack.session_present
        publisher.publish("t", b"2", qos=1)
        assert back.read() == []
        assert house.broker.subscription_count == 0

    def test_another_version_gets_the_same_messages(self) -> None:
        house, subscriber, publisher = pair(qos=1, resume=True)
        publisher.publish("t", b"1", qos=1)
        subscriber.drop()
        publisher.publish("t", b"2", qos=1)
        back = house.connect("s", v5=False, resume=True)
        assert back.payloads() == [b"1", b"2"]


class IdWatch:
    """A client that answers as it is told and fails when an id is given that it has not finished with."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.open: set[int] = set()
        self.received = 0

    def take(self) -> list[int]:
        data = bytes(self.client.wire.taken)
        self.client.wire.taken.clear()
        fresh: list[int] = []
        while data:
            end = skip(data, 1)
            if data[0] >> 4 == 3:
                fresh += packet_ids(data[:end])
            data = data[end:]
        assert len(fresh) == len(set(fresh)), "an id was given twice at once"
        assert not self.open & set(fresh), (
            f"ids in use were given again: {sorted(self.open & set(fresh))[:5]}"
        )
        self.open |= set(fresh)
        self.received += len(fresh)
        return fresh

    def answer(self, first_byte: int, packet_id: int) -> None:
        self.client.send_bytes(ack_run(first_byte, packet_id, 1))
        if first_byte in (PUBACK, PUBCOMP):
            self.open.discard(packet_id)


CHUNK = 1_000
CHUNKS_TO_WRAP = 67


class TestPacketIds:
    @pytest.mark.parametrize("window", [65_535, 1_500])
    def test_unique_across_the_wrap_while_one_message_is_stuck(self, window: int) -> None:
        """[MQTT-2.2.1-4]; the stuck one is never answered, all others are, twice around the ids."""
        house, subscriber, publisher = pair(qos=1, receive_maximum=window)
        watch = IdWatch(subscriber)
        chunk = bulk(CHUNK, 1)
        publisher.send_bytes(bulk(1, 1))
        (stuck,) = watch.take()
        for _ in range(2 * CHUNKS_TO_WRAP):
            publisher.send_bytes(chunk)
            fresh = watch.take()
            while fresh:
                subscriber.send_bytes(b"".join(ack_run(PUBACK, n, 1) for n in fresh))
                watch.open.difference_update(fresh)
                fresh = watch.take()
        assert watch.open == {stuck}
        assert watch.received == 1 + 2 * CHUNKS_TO_WRAP * CHUNK
        assert house.broker.sessions["s"].in_use() == {stuck}

    def test_unique_while_a_release_is_stuck_that_was_received_late(self) -> None:
        """PUBREC out of order: the oldest id is then not the first that waits for PUBCOMP."""
        _, subscriber, publisher = pair(qos=2, receive_maximum=65_535)
        watch = IdWatch(subscriber)
        publisher.send_bytes(bulk(1, 2))
        (old,) = watch.take()
        chunk = bulk(CHUNK, 1)
        late = 0
        for number in range(CHUNKS_TO_WRAP):
            if number == CHUNKS_TO_WRAP // 2:
                publisher.send_bytes(encode_publish(b"t", b"late", 0x34, 30_000, b""))
                (late,) = watch.take()
                watch.answer(PUBREC, late)
                watch.answer(PUBREC, old)
                watch.take()
            publisher.send_bytes(chunk)
            fresh = watch.take()
            subscriber.send_bytes(b"".join(ack_run(PUBACK, n, 1) for n in fresh))
            watch.open.difference_update(fresh)
        assert watch.open == {old, late}

    def test_a_full_set_of_ids_is_used_and_not_exceeded(self) -> None:
        _, subscriber, publisher = pair(qos=1, receive_maximum=65_535)
        watch = IdWatch(subscriber)
        for _ in range(CHUNKS_TO_WRAP):
            publisher.send_bytes(bulk(CHUNK, 1))
            watch.take()
        assert len(watch.open) == 65_535
        watch.answer(PUBACK, 77)
        assert watch.take() == [77]


# ----------------------------------------------------------------------------------- from clients


def publish_bytes(
    payload: bytes, packet_id: int, *, qos: int = 2, dup: bool = False, version: int = 5
) -> bytes:
    message = Message(topic="t", payload=payload, qos=qos)
    return encode(Publish(message=message, packet_id=packet_id, dup=dup), version)


class TestQosTwoFromAClient:
    @pytest.mark.parametrize("v5", [False, True])
    def test_a_repeat_before_the_release_is_answered_and_not_delivered(self, v5: bool) -> None:
        house, subscriber, _ = pair(qos=2)
        publisher = house.connect("q", v5=v5)
        version = 5 if v5 else 4
        for dup in (False, True, True):
            publisher.send_bytes(publish_bytes(b"1", 7, dup=dup, version=version))
            assert publisher.read() == [Pubrec(packet_id=7)]
        assert subscriber.payloads() == [b"1"]
        publisher.send(Pubrel(packet_id=7))
        assert publisher.read() == [Pubcomp(packet_id=7)]
        publisher.send_bytes(publish_bytes(b"2", 7, version=version))
        assert subscriber.payloads() == [b"2"]

    def test_repeats_inside_one_chunk_are_delivered_once(self) -> None:
        house, subscriber, publisher = pair(qos=2)
        publisher.publish("t", b"warm", qos=2)
        subscriber.read()
        order = (5, 6, 5, 7, 6, 8)
        publisher.send_bytes(b"".join(publish_bytes(b"%d" % n, n, version=4) for n in order))
        assert publisher.read() == [Pubrec(packet_id=n) for n in order]
        assert subscriber.payloads() == [b"5", b"6", b"7", b"8"]
        publisher.send_bytes(b"".join(publish_bytes(b"%d" % n, n, version=4) for n in (8, 9)))
        assert subscriber.payloads() == [b"9"]
        assert house.broker.sessions["p"].received == {5, 6, 7, 8, 9}

    def test_across_a_reconnect_of_a_kept_session(self) -> None:
        house, subscriber, _ = pair(qos=2)
        publisher = house.connect("q", resume=True)
        publisher.send_bytes(publish_bytes(b"1", 7))
        publisher.drop()
        back = house.connect("q", resume=True)
        back.send_bytes(publish_bytes(b"1", 7, dup=True))
        assert back.read() == [Pubrec(packet_id=7)]
        assert subscriber.payloads() == [b"1"]

    def test_a_release_of_nothing_is_answered_with_success(self) -> None:
        """MQTT 5 would allow 0x92, on which some clients end; most brokers say 0x00."""
        house = House()
        five, four = house.connect("5"), house.connect("4", v5=False)
        five.send(Pubrel(packet_id=9))
        assert five.read() == [Pubcomp(packet_id=9)]
        four.send(Pubrel(packet_id=9))
        assert four.read() == [Pubcomp(packet_id=9)]
        five.send_bytes(publish_bytes(b"1", 10))
        five.read()
        five.send_bytes(ack_run(PUBREL, 9, 3))
        assert [(p.packet_id, p.reason) for p in five.take(Pubcomp)] == [
            (9, Reason.SUCCESS),
            (10, Reason.SUCCESS),
            (11, Reason.SUCCESS),
        ]

    def test_more_unfinished_ones_than_the_receive_maximum_end_the_connection(self) -> None:
        """[MQTT-3.3.4-7]; in one chunk on several routes, so that the scan brings several spans."""
        house = House(receive_maximum=2)
        subscriber = house.connect("s")
        subscriber.subscribe("t", qos=2)
        subscriber.subscribe("u/#", qos=1)
        publisher = house.connect("p")
        for topic in ("t", "u/1", "u/2"):
            publisher.publish(topic, b"", qos=0)
        subscriber.read()
        chunk = b"".join(
            encode_publish(topic, b"%d" % n, 0x34, n, b"\0")
            for n, topic in enumerate((b"t", b"u/1", b"t", b"u/2", b"t"), 1)
        )
        publisher.send_bytes(chunk)
        assert publisher.reason_of_close() is Reason.RECEIVE_MAXIMUM_EXCEEDED
        assert len(subscriber.payloads()) <= 3, "messages after the violation were still taken"
        subscriber.ping()


class TestAway:
    def test_what_is_put_for_a_client_that_is_away_reaches_nobody(self) -> None:
        """All sessions whose clients are away share one place for their output."""
        house = House()
        for name in ("a", "b"):
            house.connect(name, resume=True).drop()
        for name in ("a", "b"):
            house.broker.outbound.put(house.broker.sessions[name], b"\xd0\x00")
        assert not house.broker.sessions["a"].out
        house.turn()
        client = house.connect("b", resume=True)
        assert client.read() == [] and client.connack.session_present
        client.subscribe("t", qos=1)
        house.connect("p").publish("t", b"x", qos=1)
        assert client.payloads() == [b"x"]
