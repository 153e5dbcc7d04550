"""Retained messages: the last one of a topic, bounded, until it is deleted or expires."""

from random import Random

import pytest

from millrace.broker.messages.message import Run
from millrace.broker.shards.retained import Retained
from millrace.broker.topics.trees import TopicTree
from millrace.reasons import Reason
from millrace.types import Message, Properties, Subscription, Version
from millrace.wire.mqtt.codec import encode, encode_properties, encode_publish
from millrace.wire.mqtt.packets import Puback, Publish, Pubrec, Subscribe
from unit.broker.test_topic import takes
from unit.node.house import House


def run_of(topic: str, payload: bytes, expires_ms: int | None = None) -> Run:
    properties = Properties(message_expiry_s=None if expires_ms is None else 1)
    data = encode_publish(topic.encode(), payload, 0x30, 0, encode_properties(properties))
    return Run(data, 1, 0, True, True, expires_ms)


@pytest.mark.parametrize("seed", range(4))
def test_holds_what_a_dict_with_times_would_hold(seed: int) -> None:
    """Random stores, deletions, expiries and look-ups within bounds on messages and bytes."""
    random = Random(seed)
    store = Retained(messages_max=8, bytes_max=600)
    model: dict[str, Run] = {}
    topics = [f"{a}/{b}" for a in "ab$" for b in "xyz"]
    now_ms = 0
    for _ in range(1_500):
        now_ms += random.randint(0, 30)
        topic = random.choice(topics)
        action = random.random()
        if action < 0.5:
            expires_ms = random.choice((None, now_ms + random.randint(1, 300)))
            run = run_of(topic, b"x" * random.randint(1, 120), expires_ms)
            others = sum(len(held.data) for name, held in model.items() if name != topic)
            fits = others + len(run.data) <= 600 and (topic in model or len(model) < 8)
            assert store.has_room(topic, run) == fits
            assert store.store(topic, run) == fits
            if fits:
                model[topic] = run
        elif action < 0.6:
            store.delete(topic)
            model.pop(topic, None)
        elif action < 0.8:
            store.expire_some(now_ms)
            model = {t: r for t, r in model.items() if r.expires_ms is None or r.expires_ms > now_ms}
        else:
            filter = random.choice(("#", "+/x", "a/#", "$/+", topic))
            found = {t: r.data for t, r in store.match(filter, now_ms)}
            assert found == {
                t: r.data
                for t, r in model.items()
                if takes(filter, t) and (r.expires_ms is None or r.expires_ms > now_ms)
            }
        assert len(store) == len(model)
        assert store.bytes_held == sum(len(r.data) for r in model.values())


def test_renewing_a_message_that_expires_does_not_pile_up() -> None:
    """A device that renews its state each second with a long expiry must not cost memory each second."""
    store = Retained(messages_max=100, bytes_max=10_000)
    for number in range(20_000):
        store.store(f"t/{number % 3}", run_of("t", b"x", 10_000_000 + number))
    assert len(store._expiring) < 1_000
    store.expire_some(10_000_000 + 20_000)
    assert len(store) == 0


def test_deep_topics_cost_what_they_hold() -> None:
    """The tree behind a topic of many levels is larger than the message; it is bounded too."""
    store = Retained(messages_max=100, bytes_max=10_000_000)
    stored = sum(
        store.store("/".join(f"{number}-{level}" for level in range(128)), run_of("t", b"x"))
        for number in range(100)
    )
    assert stored * 128 <= 100 * 32


class TestThroughTheDoor:
    def test_an_empty_payload_deletes_and_is_still_delivered(self) -> None:
        """[MQTT-3.3.1-6], [MQTT-3.3.1-7]."""
        house = House()
        live = house.connect("live")
        live.subscribe("t")
        publisher = house.connect("p")
        publisher.publish("t", b"kept", retain=True)
        publisher.publish("t", b"", retain=True)
        assert live.payloads() == [b"kept", b""]
        late = house.connect("late")
        late.subscribe("t")
        assert late.read() == []
        assert len(house.broker.retained) == 0

    def test_the_last_one_counts_in_any_version_and_qos(self) -> None:
        house = House()
        for number, (v5, qos) in enumerate([(True, 0), (False, 1), (True, 2), (False, 0)]):
            house.connect("p", v5=v5).publish("t", b"%d" % number, qos=qos, retain=True)
            for reader_v5 in (True, False):
                reader = house.connect("r", v5=reader_v5)
                reader.subscribe("t", qos=1)
                (message,) = reader.messages()
                assert (message.message.payload, message.message.qos) == (b"%d" % number, min(qos, 1))
                assert message.message.retain

    @pytest.mark.parametrize("qos", [1, 2])
    def test_one_too_many_is_refused_and_the_others_stay(self, qos: int) -> None:
        house = House(retained_messages_max=2)
        publisher = house.connect("p")
        for topic in ("a", "b"):
            publisher.publish(topic, b"1", qos=qos, retain=True)
        answer = publisher.publish("c", b"1", qos=qos, retain=True)
        assert isinstance(answer, Puback | Pubrec) and answer.reason is Reason.QUOTA_EXCEEDED
        publisher.publish("a", b"2", qos=qos, retain=True)
        late = house.connect("late")
        late.subscribe("#")
        assert sorted(late.payloads()) == [b"1", b"2"]

    def test_an_expired_one_is_neither_sent_nor_kept(self) -> None:
        house = House()
        publisher = house.connect("p")
        publisher.publish("t/1", b"short", retain=True, message_expiry_s=5)
        publisher.publish("t/2", b"long", retain=True, message_expiry_s=50)
        house.pass_s(6)
        late = house.connect("late")
        late.subscribe("t/#")
        assert [(m.message.payload, m.message.properties.message_expiry_s) for m in late.messages()] == [
            (b"long", 44)
        ]
        assert len(house.broker.retained) == 1

    def test_overlapping_subscriptions_each_get_it(self) -> None:
        """3.8.4: retained messages are sent for each subscription that is made."""
        house = House()
        house.connect("p").publish("a/b", b"x", retain=True)
        late = house.connect("late")
        late.subscribe("a/#", "a/b")
        assert late.payloads() == [b"x", b"x"]


def test_a_client_of_3_1_1_is_not_told_that_it_was_kept_where_there_was_no_room() -> None:
    """It has no word for it, so its connection goes, and it may come again."""
    house = House(retained_messages_max=1)
    client = house.connect("c", v5=False)
    client.publish("a", b"1", qos=1, retain=True)
    message = Message(topic="b", payload=b"2", qos=1, retain=True)
    client.send(Publish(message=message, packet_id=9))
    assert client.is_closed and not client.take(Puback, 9)


class TestReplay:
    """Retained messages for a subscriber, some in each turn [rule 33]."""

    def test_a_wide_filter_is_served_in_pieces_and_others_in_between(self) -> None:
        house = House()
        publisher = house.connect("p")
        for number in range(3_000):
            publisher.publish(f"r/{number}", b"x", retain=True)
        reader = house.connect("s")
        house.broker.subscribe(house.broker.sessions["s"], Subscription(filter="r/#", qos=0))
        session = house.broker.sessions["s"]
        again = [(Subscription(filter="r/#", qos=0), Reason.GRANTED_QOS_1, True)]
        house.broker.subscribed(session, again, house.now_ms)
        assert 0 < session.sent < 1_000, "the first part at once, the rest later"
        assert house.broker.has_work
        house.is_awake = True
        house.turn()
        assert len({message.message.topic for message in reader.messages()}) == 3_000

    @pytest.mark.parametrize(
        "filter", ["#", "a/#", "+/b", "a/+", "a/+/c", "a", "$x/#", "+", "a/b/c", "+/+/#"]
    )
    def test_walking_in_steps_finds_what_matching_finds(self, filter: str) -> None:
        tree: TopicTree[int] = TopicTree()
        for number, topic in enumerate(
            ("a", "a/b", "a/b/c", "a/d", "b/b", "$x/y", "$x", "/", "a/", "c/b/d/e")
        ):
            tree.set(topic, number)
        found = [step for step in tree.walk(filter) if step is not None]
        assert sorted(found) == sorted(tree.match(filter))

    def test_the_tree_may_change_between_two_steps(self) -> None:
        tree: TopicTree[int] = TopicTree()
        for number in range(100):
            tree.set(f"a/{number}", number)
        steps = tree.walk("a/+")
        first = next(step for step in steps if step is not None)
        for number in range(100):
            tree.pop(f"a/{number}")
        tree.set("a/new", 1)
        assert [step for step in steps if step is not None and step[0] != first[0]] == []

    def test_a_client_that_does_not_read_loses_nothing(self) -> None:
        house = House(output_buffer_bytes_max=65_536, packet_bytes_max=8_192, queued_bytes_max=65_536)
        publisher = house.connect("p")
        for number in range(500):
            publisher.publish(f"r/{number}", b"x" * 1_000, retain=True)
        reader = house.connect("s")
        reader.wire.stall()
        reader.send_bytes(
            encode(Subscribe(packet_id=1, subscriptions=(Subscription(filter="r/#", qos=0),)), Version.MQTT_5)
        )
        assert len(reader.wire.held) < 500_000
        while reader.wire.held:
            reader.wire.flow()
            reader.wire.stall()
            house.turn()
        reader.wire.flow()
        assert len(reader.messages()) == 500
