"""What was queued or under way when a right was taken does not reach the client any more [rule 31]."""

import pytest

from millrace.broker.access import Action, Effect, Rule
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.unfinished import pack, put_back, unfinished, unpack
from millrace.node.doors.mqtt_terms import run_of
from millrace.types import Message, Subscription
from millrace.wire.mqtt.packets import Pubcomp, Publish, Pubrec, Pubrel
from unit.node.house import Client, House

ALLOW = Rule(user="*", effect=Effect.ALLOW, action=Action.ALL, filter="#")
DENY = Rule(user="u", effect=Effect.DENY, action=Action.SUBSCRIBE, filter="t/secret")


def revoke(house: House) -> None:
    """As a node does it: the broker first, then every connection."""
    house.broker.reload(house.broker.rules.successor((DENY, ALLOW)))
    for connection in list(house.door.connections):
        connection.reassign()
    house.turn()


def open_house(**options: object) -> tuple[House, Client, Client]:
    """A house in which all is allowed, a subscriber to t/# that keeps its session, and a publisher."""
    house = House(rules=(ALLOW,), **options)  # type: ignore[arg-type]
    return house, subscriber(house), house.connect("p")


def subscriber(house: House, **options: object) -> Client:
    client = house.connect("u", resume=True, username="u", **options)
    if not client.connack.session_present:
        client.subscribe("t/#")
    return client


def session_of(house: House) -> Session:
    return house.broker.sessions["u"]


def publish_both(publisher: Client, qos: int, count: int = 2) -> None:
    for number in range(count):
        for topic in ("t/secret", "t/open"):
            publisher.publish(topic, b"%s %d" % (topic.encode(), number), qos=qos)


@pytest.mark.parametrize("v5", [False, True])
def test_what_was_under_way_at_qos_1_is_not_sent_again(v5: bool) -> None:
    house, client, publisher = open_house()
    if not v5:
        client = house.connect("u", resume=True, username="u", v5=False)
    publish_both(publisher, 1)
    assert len(client.messages()) == 4
    client.drop()
    revoke(house)
    again = house.connect("u", resume=True, username="u", v5=v5).messages()
    assert [(m.message.payload, m.dup) for m in again] == [(b"t/open 0", True), (b"t/open 1", True)]
    assert house.broker.stats.denied == 2


def test_one_run_of_many_topics_is_cut_where_the_answers_differ() -> None:
    """Neighbouring messages of one chunk are one segment, and one id is not another's."""
    house, client, publisher = open_house()
    publish_both(publisher, 1, 1)
    for message in client.messages():
        client.acknowledge(message)
    data = b"".join(
        publish_bytes(topic, number + 1, payload=b"%d" % number)
        for number, topic in enumerate(("t/open", "t/secret", "t/secret", "t/open", "t/open", "t/secret"))
    )
    publisher.send_bytes(data)
    first = client.messages()
    assert [m.message.payload for m in first] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    client.drop()
    revoke(house)
    client = subscriber(house)
    again = client.messages()
    assert [(m.message.payload, m.packet_id) for m in again] == [
        (m.message.payload, m.packet_id) for m in first if m.message.topic == "t/open"
    ]
    for message in again:
        client.acknowledge(message)
    assert session_of(house).inflight_count == session_of(house).inflight_bytes == 0


def publish_bytes(topic: str, packet_id: int, payload: bytes) -> bytes:
    """A PUBLISH of MQTT 5 at QoS 1."""
    body = len(topic).to_bytes(2, "big") + topic.encode() + packet_id.to_bytes(2, "big") + b"\0" + payload
    return bytes((0x32, len(body))) + body


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_behind_a_full_window_is_not_sent_after_it(qos: int) -> None:
    house = House(rules=(ALLOW,))
    client, publisher = subscriber(house, receive_maximum=1), house.connect("p")
    publisher.publish("t/open", b"first", qos=qos)
    publish_both(publisher, qos)
    (first,) = client.messages()
    revoke(house)
    seen = []
    while first is not None:
        seen.append(first.message.payload)
        client.acknowledge(first)
        first = next(iter(client.messages()), None)
    assert seen == [b"first", b"t/open 0", b"t/open 1"]
    assert (session_of(house).queued_messages, session_of(house).queued_bytes) == (0, 0)


def test_what_waited_for_an_absent_client_is_not_sent() -> None:
    house, client, publisher = open_house()
    client.drop()
    publish_both(publisher, 1)
    revoke(house)
    assert subscriber(house).payloads() == [b"t/open 0", b"t/open 1"]


@pytest.mark.parametrize("keeps_records", [False, True])
def test_qos_2_before_its_pubrec_ends_by_the_handshake_alone(keeps_records: bool) -> None:
    """The client may have the message, and holds its id then: PUBREL lets it go."""
    house, client, publisher = open_house(keeps_records=keeps_records)
    publish_both(publisher, 2, 1)
    secret, open_one = client.messages()
    client.drop()
    revoke(house)
    client = subscriber(house)
    packets = client.read()
    assert [p.message.payload for p in packets if isinstance(p, Publish)] == [b"t/open 0"]
    assert [p.packet_id for p in packets if isinstance(p, Pubrel)] == [secret.packet_id]
    assert secret.packet_id is not None
    client.send(Pubcomp(packet_id=secret.packet_id))
    client.acknowledge(open_one)
    assert session_of(house).inflight_count == 0
    client.drop()
    assert subscriber(house).read() == [], "nothing is left of it"


def test_qos_2_past_its_pubrec_finishes_its_handshake() -> None:
    house, client, publisher = open_house()
    publisher.publish("t/secret", b"had", qos=2)
    (message,) = client.messages()
    assert message.packet_id is not None
    client.send(Pubrec(packet_id=message.packet_id))
    client.take(Pubrel)
    client.drop()
    revoke(house)
    client = subscriber(house)
    assert client.read() == [Pubrel(packet_id=message.packet_id)]
    client.send(Pubcomp(packet_id=message.packet_id))
    assert session_of(house).inflight_count == 0


def test_messages_that_a_group_had_given_to_the_member_go_to_the_others() -> None:
    """Nobody loses a message because another member lost the right to it."""
    house = House(rules=(ALLOW,))
    revoked = house.connect("u", username="u", receive_maximum=1)
    revoked.subscribe("$share/g/t/#", qos=1)
    publisher = house.connect("p")
    for number in range(4):
        publisher.publish("t/secret", b"%d" % number, qos=1)
    (first,) = revoked.messages()
    other = house.connect("v", username="v")
    other.subscribe("$share/g/t/#", qos=1)
    revoke(house)
    assert other.payloads() == [b"1", b"2", b"3"]
    revoked.acknowledge(first)
    assert revoked.messages() == []
    revoked.drop()
    assert other.messages() == [], "what was acknowledged is done"


def test_what_came_along_from_another_node_is_asked_about_here() -> None:
    """A node that hands a session over may not have applied the rules yet."""
    house, client, publisher = open_house()
    publish_both(publisher, 1, 1)
    client.messages()
    client.drop()
    publish_both(publisher, 1, 1)
    packed, _ = pack(unfinished(session_of(house)), house.now_ms)
    elsewhere = House(rules=(DENY, ALLOW))
    elsewhere.connect("u", resume=True, username="u").drop()
    session = elsewhere.broker.sessions["u"]
    waiting = put_back(session, unpack(packed, elsewhere.now_ms))
    for segment in waiting:
        elsewhere.broker.outbound.send(session, segment, elsewhere.now_ms, is_cleared=False)
    arrived = elsewhere.connect("u", resume=True, username="u")
    assert [m.message.topic for m in arrived.messages()] == ["t/open", "t/open"]


def test_a_message_that_waits_for_the_disk_is_asked_about_before_it_leaves() -> None:
    """QoS 2 of a log leaves once its id is written: the rules may have changed by then."""
    house = House(rules=(ALLOW,), keeps_records=True)
    client = house.connect("u", resume=True, username="u")
    client.subscribe(Subscription(filter="t/#", qos=2))
    for offset, topic in enumerate(("t/secret", "t/open")):
        run = run_of(Message(topic=topic, payload=b"x", qos=2), topic, 1, True, house.now_ms)
        run.shard, run.offset = 16, offset
        route = house.broker.router.route(topic)
        house.broker.outbound.deliver(None, topic, route, run, house.now_ms)
    revoke(house)
    assert [m.message.topic for m in client.messages()] == ["t/open"]


def test_rules_are_asked_once_for_a_topic_and_generation() -> None:
    """Not for each message: a queue of a thousand messages of one topic asks once."""
    house, client, publisher = open_house()
    client.drop()
    for _ in range(1_000):
        publisher.publish("t/open", b"x", qos=1)
    revoke(house)
    asked = 0
    principal = session_of(house).principal
    ask = type(principal).may_receive

    def counted(self: object, topic: str) -> bool:
        nonlocal asked
        asked += 1
        return ask(principal, topic)

    type(principal).may_receive = counted  # type: ignore[method-assign]
    try:
        assert len(subscriber(house).messages()) == 1_000
    finally:
        type(principal).may_receive = ask  # type: ignore[method-assign]
    assert asked <= 2
