"""Shared subscriptions: one member of each group gets a message, and none is lost with a member."""

from itertools import chain

import pytest

from millrace.reasons import Reason
from millrace.types import Properties
from millrace.wire.mqtt.codec import encode_properties, encode_publish
from millrace.wire.mqtt.packets import Pubcomp, Pubrec, Pubrel
from unit.node.house import Client, House


def group_of(
    house: House, count: int, *, filter: str = "$share/g/t", qos: int = 1, **fields: object
) -> list[Client]:
    members = [house.connect(f"m{n}", **fields) for n in range(count)]
    for member in members:
        member.subscribe(filter, qos=qos)
    return members


def test_members_take_turns() -> None:
    house = House()
    members = group_of(house, 3)
    publisher = house.connect("p")
    for number in range(12):
        publisher.publish("t", b"%d" % number, qos=number % 2)
    shares = [member.payloads() for member in members]
    assert [len(share) for share in shares] == [4, 4, 4]
    assert sorted(chain(*shares)) == sorted(b"%d" % n for n in range(12))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_run_is_divided_and_each_part_keeps_its_order(qos: int) -> None:
    house = House()
    members = group_of(house, 3, qos=2)
    publisher = house.connect("p")
    publisher.publish("t", b"", qos=0)
    for member in members:
        member.read()
    publisher.send_bytes(
        b"".join(
            encode_publish(b"t", b"%03d" % n, 0x30 | qos << 1, n if qos else 0, b"\0") for n in range(1, 101)
        )
    )
    shares = [member.payloads() for member in members]
    assert sorted(chain(*shares)) == [b"%03d" % n for n in range(1, 101)]
    assert all(share == sorted(share) and 33 <= len(share) <= 34 for share in shares)


def test_each_group_and_each_plain_subscriber_gets_its_own_copy() -> None:
    """A group is its name and its filter (4.8.2)."""
    house = House()
    filters = ("$share/g/t", "$share/h/t", "$share/g/+", "t")
    clients = [house.connect(f"c{n}") for n in range(4)]
    for client, filter in zip(clients, filters, strict=True):
        client.subscribe(filter)
    house.connect("p").publish("t", b"x", qos=1)
    assert [client.payloads() for client in clients] == [[b"x"]] * 4


def test_qos_and_identifier_are_those_of_the_chosen_member() -> None:
    house = House()
    one, two = house.connect("1"), house.connect("2", v5=False)
    one.subscribe("$share/g/t", qos=2, identifier=8)
    two.subscribe("$share/g/t", qos=0)
    publisher = house.connect("p")
    for _ in range(4):
        publisher.publish("t", b"x", qos=1)
    assert [(m.message.qos, m.message.properties.subscription_ids) for m in one.messages()] == [(1, (8,))] * 2
    assert [m.message.qos for m in two.messages()] == [0, 0]


def test_no_retained_messages_for_a_group() -> None:
    """4.8.2: a shared subscription is not sent what is retained when it is made."""
    house = House()
    house.connect("p").publish("t", b"kept", retain=True)
    (member,) = group_of(house, 1)
    assert member.read() == []


class TestMemberLoss:
    @pytest.mark.parametrize("resume", [False, True])
    def test_unanswered_qos_1_goes_to_the_others(self, resume: bool) -> None:
        house = House()
        staying, leaving = group_of(house, 2, resume=resume)
        publisher = house.connect("p")
        for number in range(6):
            publisher.publish("t", b"%d" % number, qos=1)
        kept = staying.payloads()
        lost = leaving.payloads()
        leaving.drop()
        assert staying.payloads() == lost
        assert sorted(kept + lost) == [b"%d" % n for n in range(6)]
        if resume:
            assert house.connect("m1", resume=True).payloads() == []

    def test_answered_ones_are_not_sent_again(self) -> None:
        house = House()
        staying, leaving = group_of(house, 2)
        publisher = house.connect("p")
        for number in range(4):
            publisher.publish("t", b"%d" % number, qos=1)
        staying.read()
        first, second = leaving.messages()
        leaving.acknowledge(first)
        leaving.drop()
        assert staying.payloads() == [second.message.payload]

    def test_what_was_never_sent_goes_to_the_others(self) -> None:
        house = House()
        staying = house.connect("stay")
        staying.subscribe("$share/g/t", qos=2)
        leaving = house.connect("leave", receive_maximum=1)
        leaving.subscribe("$share/g/t", qos=2)
        publisher = house.connect("p")
        for number in range(6):
            publisher.publish("t", b"%d" % number, qos=2)
        sent = leaving.payloads()
        kept = staying.payloads()
        assert len(sent) == 1 and len(kept) == 3
        leaving.drop()
        assert sorted(staying.payloads() + kept + sent) == [b"%d" % n for n in range(6)]

    def test_qos_2_that_was_sent_stays_with_its_member(self) -> None:
        """[MQTT-4.8.2-4], [MQTT-4.8.2-5]: it is finished by the same session, by nobody else."""
        house = House()
        staying, leaving = group_of(house, 2, qos=2, resume=True)
        publisher = house.connect("p")
        for number in range(4):
            publisher.publish("t", b"%d" % number, qos=2)
        staying.read()
        first, second = leaving.messages()
        assert first.packet_id is not None
        leaving.send(Pubrec(packet_id=first.packet_id))
        leaving.drop()
        assert staying.read() == []
        back = house.connect("m1", resume=True)
        assert back.take(Pubrel) == [Pubrel(packet_id=first.packet_id)]
        (again,) = back.messages()
        assert (again.packet_id, again.dup, again.message) == (second.packet_id, True, second.message)
        back.send(Pubcomp(packet_id=first.packet_id))
        back.acknowledge(again)
        assert house.broker.sessions["m1"].in_use() == set()

    def test_qos_2_stays_also_while_the_window_holds_it_back(self) -> None:
        """Sent on one connection, waiting for room on the next, lost with that one too."""
        house = House()
        staying, leaving = group_of(house, 2, qos=2, resume=True)
        publisher = house.connect("p")
        for number in range(8):
            publisher.publish("t", b"%d" % number, qos=2)
        staying.read()
        sent = [(m.packet_id, m.message.payload) for m in leaving.messages()]
        assert len(sent) == 4
        leaving.drop()
        house.connect("m1", resume=True, receive_maximum=1).drop()
        assert staying.read() == []
        back = house.connect("m1", resume=True)
        assert [(m.packet_id, m.message.payload) for m in back.messages()] == sent

    def test_qos_1_held_back_by_the_window_goes_to_the_others(self) -> None:
        house = House()
        (lone,) = group_of(house, 1, resume=True)
        publisher = house.connect("p")
        for number in range(4):
            publisher.publish("t", b"%d" % number, qos=1)
        assert len(lone.payloads()) == 4
        lone.drop()
        narrow = house.connect("m0", resume=True, receive_maximum=1)
        assert len(narrow.payloads()) == 1
        other = house.connect("other")
        other.subscribe("$share/g/t", qos=1)
        narrow.drop()
        assert sorted(other.payloads()) == [b"%d" % n for n in range(4)]

    def test_a_durable_member_that_left_the_group_keeps_what_it_was_sent(self) -> None:
        """Unsubscribed, then lost: nobody else is in the group, so the session itself gets it again."""
        house = House()
        (member,) = group_of(house, 1, resume=True)
        house.connect("p").publish("t", b"x", qos=1)
        (message,) = member.messages()
        member.unsubscribe("$share/g/t")
        member.drop()
        (again,) = house.connect("m0", resume=True).messages()
        assert (again.message.payload, again.packet_id, again.dup) == (b"x", message.packet_id, True)


class TestNobodyThere:
    def test_a_group_with_a_durable_member_collects_and_the_first_back_gets_it(self) -> None:
        house = House()
        group_of(house, 2, resume=True)[0].drop()
        house.wires[0].lose()
        publisher = house.connect("p")
        for number in range(3):
            publisher.publish("t", b"%d" % number, qos=1)
        publisher.publish("t", b"qos 0 does not wait", qos=0)
        assert house.connect("m1", resume=True).payloads() == [b"0", b"1", b"2"]

    def test_a_new_member_gets_what_the_group_collected(self) -> None:
        house = House()
        group_of(house, 1, resume=True)[0].drop()
        house.connect("p").publish("t", b"x", qos=1)
        fresh = house.connect("fresh")
        fresh.subscribe("$share/g/t", qos=1)
        assert fresh.payloads() == [b"x"]

    def test_a_group_of_passing_members_collects_nothing(self) -> None:
        house = House()
        group_of(house, 1)[0].drop()
        publisher = house.connect("p")
        answer = publisher.publish("t", b"x", qos=1)
        assert answer is not None and answer.reason in (  # type: ignore[union-attr]
            Reason.SUCCESS,
            Reason.NO_MATCHING_SUBSCRIBERS,
        )
        (back,) = group_of(house, 1)
        assert back.read() == []

    def test_what_a_group_collects_is_bounded_and_counted(self) -> None:
        house = House(queued_messages_max=5)
        group_of(house, 1, resume=True)[0].drop()
        publisher = house.connect("p")
        for number in range(9):
            publisher.publish("t", b"%d" % number, qos=1)
        assert house.broker.stats.dropped_queue == 4
        assert house.connect("m0", resume=True).payloads() == [b"%d" % n for n in range(5)]

    def test_the_group_ends_with_its_last_session(self) -> None:
        house = House()
        (member,) = group_of(house, 1, resume=True)
        member.disconnect(session_expiry_s=5)
        house.connect("p").publish("t", b"x", qos=1)
        house.pass_s(10)
        assert house.broker.router.index.find("t") is None
        (fresh,) = group_of(house, 1)
        assert fresh.read() == []


def test_a_member_that_does_not_read_gets_nothing_while_another_does() -> None:
    house = House(output_buffer_bytes_max=65_536, packet_bytes_max=8_192, queued_bytes_max=65_536)
    slow, quick = group_of(house, 2)
    slow.wire.stall()
    publisher = house.connect("p")
    while not house.broker.sessions["m0"].blocked:
        publisher.publish("t", b"x" * 8_000, qos=0)
    quick.read()
    for _ in range(10):
        publisher.publish("t", b"y", qos=1)
    assert len(quick.payloads()) == 10


def test_a_message_of_another_node_expires_while_it_waits_for_a_member() -> None:
    house = House()
    (member,) = group_of(house, 1, resume=True)
    member.drop()
    packet = encode_publish(b"t", b"x", 0x32, 1, encode_properties(Properties(message_expiry_s=5)))
    group = house.broker.groups["$share/g/t"]
    house.broker.inbound.relayed_to_group(group, packet, 1, True, False, house.now_ms)
    house.pass_s(6)
    assert house.connect("m0", resume=True).payloads() == []
