"""What a subscriber gets of a message: which copy, at which QoS, with which flags, identifiers and size."""

from random import Random

import pytest

from millrace.broker.access import Action, Effect, Rule
from millrace.broker.messages.message import Run, expiry_of, with_expiry
from millrace.node.doors.mqtt_terms import run_of
from millrace.reasons import Reason
from millrace.types import Message, Properties, RetainHandling, Subscription
from millrace.wire.mqtt.codec import encode, encode_properties, encode_publish
from millrace.wire.mqtt.packets import Puback, Publish
from unit.node.house import Client, House


def house_with(*filters: str | Subscription, **fields: object) -> tuple[House, Client, Client]:
    """A house, a subscriber and a publisher."""
    house = House()
    subscriber = house.connect("s", **fields)
    if filters:
        subscriber.subscribe(*filters)
    return house, subscriber, house.connect("p")


class TestQos:
    @pytest.mark.parametrize("published", [0, 1, 2])
    @pytest.mark.parametrize("granted", [0, 1, 2])
    @pytest.mark.parametrize("v5", [False, True])
    def test_the_lower_of_both_counts(self, published: int, granted: int, v5: bool) -> None:
        """By the careful path at first, by the scan the second time."""
        house = House()
        subscriber = house.connect("s", v5=v5)
        subscriber.subscribe("t", qos=granted)
        publisher = house.connect("p")
        for number in (1, 2, 3):
            publisher.publish("t", b"%d" % number, qos=published)
        found = subscriber.messages()
        assert [m.message.payload for m in found] == [b"1", b"2", b"3"]
        assert {m.message.qos for m in found} == {min(published, granted)}

    def test_both_versions_get_each_others_messages(self) -> None:
        house = House()
        clients = {v5: house.connect(f"c{v5}", v5=v5) for v5 in (False, True)}
        for client in clients.values():
            client.subscribe("t")
        for v5, client in clients.items():
            for qos in (0, 1, 2):
                client.publish("t", b"%d%d" % (v5, qos), qos=qos)
                client.publish("t", b"again", qos=qos)
        for client in clients.values():
            messages = [m.message for m in client.messages()]
            assert [m.payload for m in messages][::2] == [b"00", b"01", b"02", b"10", b"11", b"12"]
            assert [m.qos for m in messages] == [0, 0, 1, 1, 2, 2] * 2

    def test_properties_pass_through_untouched(self) -> None:
        house, subscriber, publisher = house_with("t")
        given = Properties(
            payload_format=1,
            content_type="text/plain",
            response_topic="r/1",
            correlation_data=b"\0\xff",
            user=(("a", "1"), ("a", "2"), ("ü", "")),
        )
        for _ in range(2):
            publisher.send(Publish(message=Message(topic="t", payload=b"x", properties=given)))
        assert [m.message.properties for m in subscriber.messages()] == [given, given]
        old = house.connect("old", v5=False)
        old.subscribe("t")
        publisher.send(Publish(message=Message(topic="t", payload=b"x", properties=given)))
        assert old.payloads() == [b"x"]


class TestOverlap:
    def test_one_copy_at_the_highest_qos_with_all_identifiers(self) -> None:
        """[MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-4]."""
        _, subscriber, publisher = house_with()
        subscriber.subscribe("a/#", qos=0, identifier=300)
        subscriber.subscribe("a/+", qos=2, identifier=7)
        subscriber.subscribe("+/b", qos=1)
        subscriber.subscribe("c", qos=1, identifier=9)
        for _ in range(2):
            publisher.publish("a/b", b"x", qos=2)
        for message in subscriber.messages():
            assert message.message.qos == 2
            assert sorted(message.message.properties.subscription_ids) == [7, 300]

    def test_an_identifier_is_replaced_and_removed_with_its_subscription(self) -> None:
        _, subscriber, publisher = house_with()
        seen = []
        for identifier in (5, None, 268_435_455):
            subscriber.subscribe("t", identifier=identifier)
            publisher.publish("t", b"x", qos=1)
            (message,) = subscriber.messages()
            seen.append(message.message.properties.subscription_ids)
        subscriber.unsubscribe("t")
        publisher.publish("t", b"x", qos=1)
        assert (seen, subscriber.read()) == ([(5,), (), (268_435_455,)], [])

    def test_a_3_1_1_client_gets_one_copy_too(self) -> None:
        _, subscriber, publisher = house_with(
            Subscription(filter="a/#", qos=0), Subscription(filter="a/b", qos=1), v5=False
        )
        publisher.publish("a/b", b"x", qos=2)
        assert [m.message.qos for m in subscriber.messages()] == [1]


class TestNoLocal:
    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_own_messages_stay_away_and_others_come(self, qos: int) -> None:
        """[MQTT-3.8.3-3]; twice, so that the scan takes the second."""
        _, subscriber, publisher = house_with(Subscription(filter="t", qos=2, no_local=True))
        for _ in range(2):
            subscriber.publish("t", b"own", qos=qos)
            publisher.publish("t", b"other", qos=qos)
        assert subscriber.payloads() == [b"other", b"other"]

    def test_another_subscription_without_it_still_counts_as_it_asks(self) -> None:
        _, subscriber, publisher = house_with(
            Subscription(filter="a/b", qos=2, no_local=True, identifier=1),
        )
        subscriber.subscribe("a/#", qos=1, identifier=2)
        for _ in range(2):
            subscriber.publish("a/b", b"own", qos=2)
            publisher.publish("a/b", b"other", qos=2)
        found = [(m.message.qos, m.message.properties.subscription_ids) for m in subscriber.messages()]
        assert found == [(1, (2,)), (2, (1, 2))] * 2

    def test_topics_of_one_chunk_are_told_apart(self) -> None:
        """Only one of the topics is also covered by a subscription without no local."""
        _, subscriber, _ = house_with(Subscription(filter="a/+", no_local=True), Subscription(filter="a/2"))
        chunk = b"".join(encode_publish(b"a/%d" % (n % 3), b"%d" % n, 0x30, 0, b"\0") for n in range(9))
        for _ in range(2):
            subscriber.send_bytes(chunk)
            assert subscriber.payloads() == [b"2", b"5", b"8"]


class TestRetainFlag:
    @pytest.mark.parametrize("as_published", [False, True])
    @pytest.mark.parametrize("qos", [0, 1])
    def test_retain_as_published(self, as_published: bool, qos: int) -> None:
        """[MQTT-3.3.1-12], [MQTT-3.3.1-13]."""
        _, subscriber, publisher = house_with(
            Subscription(filter="t", qos=2, retain_as_published=as_published)
        )
        publisher.publish("t", b"kept", qos=qos, retain=True)
        publisher.publish("t", b"plain", qos=qos)
        assert [m.message.retain for m in subscriber.messages()] == [as_published, False]

    def test_two_receivers_with_different_wishes_get_different_bytes(self) -> None:
        house, subscriber, publisher = house_with(Subscription(filter="t", qos=1, retain_as_published=True))
        other = house.connect("o")
        other.subscribe("t", qos=1)
        for _ in range(2):
            publisher.publish("t", b"kept", qos=1, retain=True)
        assert [m.message.retain for m in subscriber.messages()] == [True, True]
        assert [m.message.retain for m in other.messages()] == [False, False]

    def test_a_fresh_subscription_gets_the_flag_whatever_it_asked_for(self) -> None:
        house, _, publisher = house_with()
        publisher.publish("t", b"kept", retain=True)
        for as_published in (False, True):
            late = house.connect("late")
            late.subscribe("t", retain_as_published=as_published)
            assert [m.message.retain for m in late.messages()] == [True]

    @pytest.mark.parametrize(
        ("handling", "first", "again"),
        [
            (RetainHandling.SEND, 1, 1),
            (RetainHandling.SEND_IF_NEW, 1, 0),
            (RetainHandling.DO_NOT_SEND, 0, 0),
        ],
    )
    def test_retain_handling(self, handling: RetainHandling, first: int, again: int) -> None:
        """[MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]."""
        _, subscriber, publisher = house_with()
        publisher.publish("t", b"kept", retain=True)
        subscriber.subscribe("t", retain_handling=handling)
        assert len(subscriber.payloads()) == first
        subscriber.subscribe("t", retain_handling=handling)
        assert len(subscriber.payloads()) == again


class TestAliasesOut:
    def test_the_first_topics_get_one_each_and_the_rest_none(self) -> None:
        _, subscriber, publisher = house_with("#", topic_alias_max=2)
        for topic in ("a", "b", "c", "a", "b", "c"):
            publisher.publish(topic, topic.encode(), qos=1)
        seen = [(m.message.topic, m.message.properties.topic_alias) for m in subscriber.messages()]
        assert seen == [("a", 1), ("b", 2), ("c", None)] * 2

    def test_a_known_alias_comes_without_the_topic(self) -> None:
        _, subscriber, publisher = house_with("#", topic_alias_max=1)
        sizes = []
        for _ in range(2):
            publisher.publish("topic/" + "x" * 100, b"p", qos=0)
            sizes.append(len(subscriber.wire.taken))
            subscriber.read()
        assert sizes[0] - sizes[1] > 100

    def test_aliases_begin_anew_with_each_connection(self) -> None:
        house, subscriber, publisher = house_with("#", topic_alias_max=5, resume=True)
        publisher.publish("a", b"1", qos=1)
        subscriber.drop()
        back = house.connect("s", resume=True, topic_alias_max=5)
        publisher.publish("a", b"2", qos=1)
        assert [(m.message.topic, m.message.payload) for m in back.messages()] == [("a", b"1"), ("a", b"2")]

    def test_a_long_run_is_aliased_packet_by_packet(self) -> None:
        _, subscriber, publisher = house_with("#", topic_alias_max=3)
        publisher.publish("t/0", b"", qos=0)
        subscriber.read()
        chunk = b"".join(encode_publish(b"t/%d" % (n % 5), b"%d" % n, 0x32, n, b"\0") for n in range(1, 301))
        publisher.send_bytes(chunk)
        messages = subscriber.messages()
        assert [m.message.payload for m in messages] == [b"%d" % n for n in range(1, 301)]
        assert [m.message.topic for m in messages] == [f"t/{n % 5}" for n in range(1, 301)]


class TestMaximumPacketSize:
    def test_what_is_too_large_is_dropped_as_if_it_had_been_sent(self) -> None:
        """[MQTT-3.1.2-24], [MQTT-3.1.2-25]; sizes around the bound, both framings of QoS."""
        house, subscriber, publisher = house_with("t", packet_bytes_max=100, receive_maximum=2)
        for size in (10, 92, 93, 94, 95, 96, 200, 10):
            for qos in (0, 1):
                publisher.publish("t", b"x" * size, qos=qos)
                for message in subscriber.messages():
                    assert len(encode(message, 5)) <= 100
                    subscriber.acknowledge(message)
        assert house.broker.sessions["s"].inflight_count == 0
        assert house.broker.stats.dropped_too_large > 0

    def test_large_and_small_in_one_chunk(self) -> None:
        _, subscriber, publisher = house_with("t", packet_bytes_max=100)
        publisher.publish("t", b"", qos=0)
        subscriber.read()
        sizes = [5, 500, 6, 7, 90, 300, 8, 91, 92, 9]
        for first_byte in (0x30, 0x32):
            publisher.send_bytes(
                b"".join(
                    encode_publish(b"t", b"x" * size, first_byte, n if first_byte & 6 else 0, b"\0")
                    for n, size in enumerate(sizes, 1)
                )
            )
            found = [len(m.message.payload) for m in subscriber.messages()]
            assert found == [size for size in sizes if size <= 92]

    def test_an_alias_never_makes_a_packet_too_large(self) -> None:
        """The alias itself takes three bytes on the packet that sets it."""
        house, subscriber, publisher = house_with("#", packet_bytes_max=60, topic_alias_max=10)
        for size in range(40, 60):
            topic = f"t{size}"
            for _ in range(2):
                publisher.publish(topic, b"x" * size, qos=1)
            data = bytes(subscriber.wire.taken)
            while data:
                assert data[1] + 2 <= 60
                data = data[data[1] + 2 :]
            for message in subscriber.messages():
                subscriber.acknowledge(message)
        assert house.broker.sessions["s"].inflight_count == 0

    def test_what_waits_is_not_held_up_by_what_is_dropped(self) -> None:
        """More bytes too large to send than one turn may write, then one that fits."""
        house, subscriber, publisher = house_with("t", packet_bytes_max=1000, resume=True)
        subscriber.drop()
        for _ in range(10):
            publisher.publish("t", b"x" * 100_000, qos=1)
        publisher.publish("t", b"fits", qos=1)
        assert house.connect("s", resume=True, packet_bytes_max=1000).payloads() == [b"fits"]
        assert house.broker.sessions["s"].queued_bytes == 0


class TestMessageExpiry:
    def test_what_waited_too_long_is_skipped_and_counted(self) -> None:
        """[MQTT-3.3.2-5]."""
        house, subscriber, publisher = house_with("t", resume=True)
        subscriber.drop()
        publisher.publish("t", b"short", qos=1, message_expiry_s=2)
        publisher.publish("t", b"long", qos=1, message_expiry_s=100)
        publisher.publish("t", b"ever", qos=1)
        house.pass_s(3)
        back = house.connect("s", resume=True)
        left = [(m.message.payload, m.message.properties.message_expiry_s) for m in back.messages()]
        assert left == [(b"long", 97), (b"ever", None)]
        assert house.broker.stats.expired == 1

    def test_a_message_that_was_sent_does_not_expire_any_more(self) -> None:
        house, subscriber, publisher = house_with("t", resume=True)
        publisher.publish("t", b"sent", qos=2, message_expiry_s=2)
        assert subscriber.payloads() == [b"sent"]
        subscriber.drop()
        house.pass_s(10)
        (again,) = house.connect("s", resume=True).messages()
        assert (again.message.payload, again.dup, again.message.properties.message_expiry_s) == (
            b"sent",
            True,
            1,
        )

    def test_delivered_at_once_it_keeps_its_whole_time(self) -> None:
        _, subscriber, publisher = house_with("t")
        for qos in (0, 1):
            publisher.publish("t", b"x", qos=qos, message_expiry_s=7)
        assert [m.message.properties.message_expiry_s for m in subscriber.messages()] == [7, 7]

    def test_behind_a_full_window_the_first_to_expire_does_not_block_the_others(self) -> None:
        house, subscriber, publisher = house_with("t", receive_maximum=1)
        publisher.publish("t", b"1", qos=1)
        publisher.publish("t", b"2", qos=1, message_expiry_s=1)
        publisher.publish("t", b"3", qos=1)
        (first,) = subscriber.messages()
        house.pass_s(2)
        subscriber.acknowledge(first)
        assert subscriber.payloads() == [b"3"]

    @pytest.mark.parametrize("seed", range(5))
    def test_the_interval_is_found_among_any_properties(self, seed: int) -> None:
        random = Random(seed)
        for _ in range(50):
            properties = Properties(
                payload_format=random.choice((None, 1)),
                message_expiry_s=random.choice((None, 0, 9, 0xFFFF_FFFF)),
                content_type=random.choice((None, "t", "x" * 200)),
                response_topic=random.choice((None, "r")),
                correlation_data=random.choice((None, b"\x02" * 7)),
                user=random.choice(((), (("\x02", "v"), ("k", "\x02" * 130)))),
            )
            qos = random.choice((0, 1))
            packet = encode_publish(b"\x02", b"\x02\0\0", 0x30 | qos << 1, qos, encode_properties(properties))
            assert expiry_of(packet) == properties.message_expiry_s
            if properties.message_expiry_s is not None:
                changed = with_expiry(packet, 77)
                assert (expiry_of(changed), len(changed)) == (77, len(packet))
                assert Run(packet, 1, qos, True, False, 5_000).aged(1_001) == with_expiry(packet, 4)


class TestOutputBound:
    def test_retained_messages_asked_for_again_and_again_stay_within_the_output_buffer(self) -> None:
        """A chunk of SUBSCRIBEs must not make the broker gather the whole store for each of them."""
        house = House(output_buffer_bytes_max=65_536, packet_bytes_max=8_192, queued_bytes_max=65_536)
        publisher = house.connect("p")
        for number in range(100):
            publisher.publish(f"r/{number}", b"x" * 1_000, retain=True, qos=number % 2)
        glutton = house.connect("g")
        packet = encode_subscribe("r/#", 5)
        most = 0

        def watched(data: bytes) -> None:
            nonlocal most
            most = max(most, len(data))

        glutton.connection.write = watched
        glutton.send_bytes(packet * 200)
        assert most <= 65_536 + 8_192
        assert house.broker.stats.dropped_qos0 == 0, "what does not fit now comes later"

    def test_a_member_of_many_groups_is_not_sent_more_than_the_output_buffer_at_once(self) -> None:
        house = House(output_buffer_bytes_max=65_536, packet_bytes_max=8_192, queued_bytes_max=65_536)
        glutton = house.connect("g")
        for number in range(100):
            glutton.subscribe(f"$share/g{number}/t", qos=number % 2)
        most = 0

        def watched(data: bytes) -> None:
            nonlocal most
            most = max(most, len(data))

        glutton.connection.write = watched
        house.connect("p").publish("t", b"x" * 4_000, qos=1)
        assert 0 < most <= 65_536 + 8_192

    def test_all_of_a_large_store_arrives_where_it_may_wait(self) -> None:
        """QoS 1 beyond the bound waits for the next turn instead of being dropped."""
        house = House(output_buffer_bytes_max=65_536, packet_bytes_max=8_192, queued_bytes_max=8_000_000)
        publisher = house.connect("p")
        for number in range(100):
            publisher.publish(f"r/{number}", b"x" * 2_000, retain=True, qos=1)
        subscriber = house.connect("s")
        subscriber.subscribe("r/#", qos=1)
        assert len(subscriber.messages()) == 100


def encode_subscribe(filter: str, version: int) -> bytes:
    from millrace.wire.mqtt.packets import Subscribe

    return encode(
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=filter, qos=1),)),
        version,
    )


class TestAccess:
    def test_an_unauthorised_publish_is_answered_and_reaches_nobody(self) -> None:
        """`$` topics are never a client's to publish to; the careful path and the scan agree."""
        house, subscriber, publisher = house_with("$x/#")
        old = house.connect("old", v5=False)
        for _ in range(2):
            answer = publisher.publish("$x/a", b"1", qos=1)
            assert isinstance(answer, Puback) and answer.reason is Reason.NOT_AUTHORIZED
            answer = publisher.publish("$x/a", b"2", qos=2)
            assert answer is not None and answer.reason is Reason.NOT_AUTHORIZED  # type: ignore[union-attr]
            publisher.publish("$x/a", b"0", qos=0)
            old.publish("$x/a", b"3", qos=1)
            old.publish("$x/a", b"4", qos=2)
        assert subscriber.read() == []
        assert house.broker.stats.denied == 10

    def test_a_reload_binds_those_who_are_away_too(self) -> None:
        """A kept session whose client is away must not collect what its user may no longer receive."""
        allow = Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="#")
        deny = Rule(user="u", effect=Effect.DENY, action=Action.SUBSCRIBE, filter="t/secret")
        house = House(rules=(allow,))
        for name in ("u", "v"):
            client = house.connect(name, resume=True, username=name)
            client.subscribe("t/#", "$share/g/t/#")
            client.drop()
        house.broker.reload(house.broker.rules.successor((deny, allow)))
        publisher = house.connect("p")
        for topic in ("t/secret", "t/open"):
            publisher.publish(topic, topic.encode(), qos=1)
        assert house.connect("u", resume=True, username="u").payloads() == [b"t/open"]
        assert sorted(house.connect("v", resume=True, username="v").payloads()) == [
            *(b"t/open", b"t/open", b"t/secret", b"t/secret")
        ]


def test_an_alias_is_not_used_before_the_packet_that_sets_it() -> None:
    """QoS 2 leaves once its id is on disk; QoS 1 of the same topic does not wait for that."""
    house = House(keeps_records=True)
    client = house.connect("c", resume=True, topic_alias_max=10)
    client.subscribe("t", qos=2)
    route = house.broker.router.route("t")
    for offset, qos in enumerate((2, 1)):
        message = Message(topic="t", payload=b"%d" % qos, qos=qos)
        run = run_of(message, "t", 1, True, house.now_ms)
        run.shard, run.offset = 16, offset
        house.broker.outbound.deliver(None, "t", route, run, house.now_ms)
    house.door.flush()
    assert [(p.message.topic, p.message.payload) for p in client.messages()] == [("t", b"1")]
    house.is_awake = True
    house.turn()
    assert [(p.message.topic, p.message.payload) for p in client.messages()] == [("t", b"2")]
