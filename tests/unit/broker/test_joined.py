"""Members of a group that was made by command join by any of its filters, and leave by each alone."""

from millrace.broker.messages.message import Segment
from millrace.node.shards.publishing import make_run
from millrace.types import Message
from unit.node.house import Client, House
from unit.node.stand_ins import definitions


def house_with_group(*filters: str, **limits: int) -> House:
    house = House(**limits)
    house.broker.durable_groups = definitions(g=filters)
    return house


def is_member(house: House, client: Client) -> bool:
    return client.connection.session in house.broker.joined["g"].members


def test_a_member_by_two_filters_goes_without_a_trace() -> None:
    house = house_with_group("a", "b")
    client = house.connect("c")
    client.subscribe("$share/g/a", "$share/g/b", qos=1)
    client.drop()
    assert not house.broker.sessions and not house.broker.joined["g"].members


def test_a_member_by_two_filters_stays_until_it_has_left_both() -> None:
    house = house_with_group("a", "b")
    client = house.connect("c")
    client.subscribe("$share/g/a", "$share/g/b", qos=1)
    client.unsubscribe("$share/g/b")
    assert is_member(house, client)
    client.unsubscribe("$share/g/a")
    assert not is_member(house, client)


def test_a_filter_under_the_group_s_name_that_is_not_the_group_s_is_left_alone() -> None:
    house = house_with_group("a")
    client, publisher = house.connect("c"), house.connect("p")
    client.subscribe("$share/g/x", "$share/g/a", qos=1)
    client.unsubscribe("$share/g/x")
    publisher.publish("x", b"1", qos=1)
    assert is_member(house, client) and client.payloads() == []


def test_a_group_that_loses_its_filters_gives_its_members_shares_of_each() -> None:
    """Deleted by command: both filters lead to groups of their own then, and to the same client."""
    house = house_with_group("a", "b")
    client, publisher = house.connect("c"), house.connect("p")
    client.subscribe("$share/g/a", "$share/g/b", qos=1)
    house.broker.durable_groups = definitions()
    house.broker.regroup()
    publisher.publish("a", b"1", qos=1)
    publisher.publish("b", b"2", qos=1)
    assert client.payloads() == [b"1", b"2"]


def test_what_a_member_has_no_room_for_waits_and_is_not_taken_for_acknowledged() -> None:
    """What was taken from the group is in nobody else's hands: dropped, it would count as done."""
    house = house_with_group("a", packet_bytes_max=4096, in_flight_bytes_max=4096, queued_bytes_max=4096)
    client = house.connect("c")
    client.subscribe("$share/g/a", qos=1)
    group, messages = house.broker.joined["g"], 20
    for number in range(messages):
        session = group.next_member()
        assert session is not None, "what was taken finds a member"
        run = make_run(Message(topic="a", payload=b"%d" % number + bytes(1000), qos=1), house.now_ms)
        segment = Segment(run, 1, 1, False, b"")
        group.hold(session, segment, f"receipt {number}")
        house.broker.outbound.send(session, segment, house.now_ms)
    group.settle()
    assert not group.acknowledged and not group.given_back
    assert group.room == 0, "no more is taken while something waits"
    client.ping()
    while sent := client.messages():
        for packet in sent:
            client.acknowledge(packet)
    group.settle()
    assert group.acknowledged == [f"receipt {number}" for number in range(messages)] and group.room
