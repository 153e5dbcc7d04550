"""Publishing: order, the window, both handshakes, and what a reconnect repeats."""

import pytest

from millrace.client.conversation.events import Published
from millrace.client.conversation.packet_ids import PacketIds
from millrace.errors import LocalError
from millrace.limits import CLIENT_WINDOW_MAX
from millrace.reasons import Reason
from millrace.types import Message, Properties, Version
from millrace.wire.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from unit.client.peer import BOTH, Peer, message, texts


def ids(peer_packets: list[object]) -> list[int]:
    return [p.packet_id for p in peer_packets if isinstance(p, Publish) and p.packet_id is not None]


@pytest.mark.parametrize("version", BOTH)
def test_qos_0_is_finished_when_it_leaves(version: Version) -> None:
    peer = Peer(version=version)
    peer.connect()
    peer.core.publish(7, message("x", qos=0))
    assert peer.events() == []
    assert texts(peer.sent()) == ["x"]
    assert peer.events() == [Published(ticket=7, reason=Reason.SUCCESS)]


@pytest.mark.parametrize("version", BOTH)
def test_qos_1_is_finished_by_puback(version: Version) -> None:
    peer = Peer(version=version)
    peer.connect()
    peer.core.publish(7, message("x"))
    (packet,) = peer.sent()
    assert isinstance(packet, Publish) and packet.packet_id == 1 and not packet.dup
    assert peer.events() == []
    assert peer.feed(Puback(packet_id=1)) == [Published(ticket=7, reason=Reason.SUCCESS)]
    assert peer.feed(Puback(packet_id=1)) == []


@pytest.mark.parametrize("version", BOTH)
def test_qos_2_takes_four_steps(version: Version) -> None:
    peer = Peer(version=version)
    peer.connect()
    peer.core.publish(7, message("x", qos=2))
    (packet,) = peer.sent()
    assert isinstance(packet, Publish) and packet.packet_id is not None
    assert peer.feed(Pubrec(packet_id=packet.packet_id)) == []
    assert peer.sent() == [Pubrel(packet_id=packet.packet_id)]
    assert peer.feed(Pubcomp(packet_id=packet.packet_id)) == [Published(ticket=7, reason=Reason.SUCCESS)]


def test_the_reason_code_of_the_server_comes_with_the_answer() -> None:
    peer = Peer()
    peer.connect()
    peer.core.publish(1, message("x"))
    peer.core.publish(2, message("y", qos=2))
    first, second = ids(peer.sent())
    no = {"reason": Reason.NOT_AUTHORIZED, "reason_string": "not you"}
    assert peer.feed(Puback(packet_id=first, **no), Pubrec(packet_id=second, **no)) == [
        Published(ticket=1, reason=Reason.NOT_AUTHORIZED, detail="not you"),
        Published(ticket=2, reason=Reason.NOT_AUTHORIZED, detail="not you"),
    ]
    # A refused QoS 2 message is over: no PUBREL.
    assert peer.sent() == []


def test_publishes_leave_in_order_within_the_server_window() -> None:
    peer = Peer()
    peer.connect(receive_maximum=2)
    for ticket, qos in enumerate((1, 2, 1, 0, 1)):
        peer.core.publish(ticket, message(str(ticket), qos=qos))
    sent = peer.sent()
    # The QoS 0 message would have room, but what was published first leaves first.
    assert texts(sent) == ["0", "1"]
    peer.feed(Puback(packet_id=ids(sent)[0]))
    more = peer.sent()
    assert texts(more) == ["2", "3"]
    # PUBREC does not give room back (MQTT 5, 4.9), PUBCOMP does.
    peer.feed(Pubrec(packet_id=ids(sent)[1]))
    assert texts(peer.sent()) == []
    peer.feed(Pubcomp(packet_id=ids(sent)[1]))
    assert texts(peer.sent()) == ["4"]


def test_the_window_is_bounded_where_the_server_sets_no_bound() -> None:
    peer = Peer(version=Version.MQTT_3_1_1)
    peer.connect()
    for ticket in range(CLIENT_WINDOW_MAX + 5):
        peer.core.publish(ticket, message("x"))
    sent = peer.sent()
    assert len(sent) == CLIENT_WINDOW_MAX
    assert len(set(ids(sent))) == CLIENT_WINDOW_MAX


def test_qos_2_is_careful_with_a_server_that_cannot_name_its_bound() -> None:
    peer = Peer(version=Version.MQTT_3_1_1)
    peer.connect()
    for ticket in range(30):
        peer.core.publish(ticket, message("x", qos=2))
    sent = peer.sent()
    assert len(sent) == 20
    first = ids(sent)[0]
    peer.feed(Pubrec(packet_id=first), Pubcomp(packet_id=first))
    assert len(texts(peer.sent())) == 1


def test_one_call_sends_no_more_than_a_write_holds() -> None:
    peer = Peer()
    peer.connect()
    for ticket in range(10):
        peer.core.publish(ticket, message("x" * 30_000, qos=0))
    sizes = []
    while data := peer.core.data_to_send(0.0):
        sizes.append(len(data))
    assert len(sizes) > 1 and max(sizes) < 100_000
    assert sum(sizes) > 300_000


def test_nothing_is_published_while_the_transport_takes_no_more() -> None:
    peer = Peer()
    peer.connect()
    peer.core.writable = False
    peer.core.publish(1, message("x", qos=0))
    assert peer.sent() == []
    peer.core.writable = True
    assert texts(peer.sent()) == ["x"]


@pytest.mark.parametrize("version", BOTH)
def test_with_the_session_the_unacknowledged_leave_again_with_dup_first(version: Version) -> None:
    peer = Peer(version=version, session_expiry_s=60, clean_start=False)
    peer.connect()
    for ticket, qos in enumerate((1, 2, 2, 1)):
        peer.core.publish(ticket, message(str(ticket), qos=qos))
    before = ids(peer.sent())
    peer.feed(Pubrec(packet_id=before[2]))
    peer.core.publish(9, message("new"))
    peer.core.connection_lost()
    sent = peer.connect(session_present=True)
    # PUBREL was lost with the connection; the message itself must not be sent again.
    assert Pubrel(packet_id=before[2]) in sent
    assert texts(sent) == ["0!", "1!", "3!", "new"]
    assert ids(sent)[:3] == [before[0], before[1], before[3]]
    assert peer.feed(Pubcomp(packet_id=before[2])) == [Published(ticket=2, reason=Reason.SUCCESS)]


def test_without_the_session_they_leave_as_new_and_what_was_received_is_finished() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect()
    for ticket, qos in enumerate((1, 2, 2)):
        peer.core.publish(ticket, message(str(ticket), qos=qos))
    before = ids(peer.sent())
    peer.feed(Pubrec(packet_id=before[2]))
    sent = peer.reconnect()
    assert texts(sent) == ["0", "1"]
    assert peer.leftover == [Published(ticket=2, reason=Reason.SUCCESS)]


def test_a_repeat_keeps_to_a_smaller_window_and_its_order() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect()
    for ticket in range(4):
        peer.core.publish(ticket, message(str(ticket)))
    before = ids(peer.sent())
    sent = peer.reconnect(session_present=True, receive_maximum=1)
    assert texts(sent) == ["0!"]
    # Lost again before anything was acknowledged: still all four, still in order.
    peer.core.connection_lost()
    sent = peer.connect(session_present=True)
    assert texts(sent) == ["0!", "1!", "2!", "3!"]
    assert ids(sent) == before


def test_a_second_pubrec_is_answered_with_another_pubrel() -> None:
    peer = Peer()
    peer.connect()
    peer.core.publish(1, message("x", qos=2))
    (packet_id,) = ids(peer.sent())
    peer.feed(Pubrec(packet_id=packet_id), Pubrec(packet_id=packet_id))
    assert peer.sent() == [Pubrel(packet_id=packet_id)] * 2
    peer.feed(Pubrec(packet_id=99))
    assert peer.sent() == [Pubrel(packet_id=99, reason=Reason.PACKET_ID_NOT_FOUND)]


def test_a_withdrawn_publish_is_not_sent_but_one_that_was_sent_goes_on() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect(receive_maximum=1)
    for ticket in (1, 2, 3):
        peer.core.publish(ticket, message(str(ticket)))
    (first,) = ids(peer.sent())
    peer.core.withdraw(1)
    peer.core.withdraw(2)
    assert texts(peer.reconnect(session_present=True, receive_maximum=1)) == ["1!"]
    peer.feed(Puback(packet_id=first))
    assert texts(peer.sent()) == ["3"]
    # Without its session it is nobody's message any more.
    peer.core.withdraw(3)
    assert texts(peer.reconnect()) == []


@pytest.mark.parametrize("version", BOTH)
def test_ids_of_an_earlier_process_are_released_before_they_carry_qos_2(version: Version) -> None:
    peer = Peer(version=version, session_expiry_s=60, clean_start=False)
    peer.connect(session_present=True)
    peer.core.publish(0, message("at once", qos=1))
    for ticket in (1, 2):
        peer.core.publish(ticket, message(str(ticket), qos=2))
    sent = peer.sent()
    assert texts(sent) == ["at once"]
    releases = [p for p in sent if isinstance(p, Pubrel)]
    assert [p.packet_id for p in releases] == list(range(1, 256))
    answers = [Pubcomp(packet_id=p.packet_id, reason=Reason.PACKET_ID_NOT_FOUND) for p in releases]
    assert peer.feed(*answers[:100]) == []
    assert peer.sent() == []
    # Lost in between: those without an answer are asked for again, and only those.
    sent = peer.reconnect(session_present=True)
    assert sorted(p.packet_id for p in sent if isinstance(p, Pubrel)) == list(range(101, 256))
    assert texts(sent) == ["at once!"]
    peer.feed(*answers[100:])
    sent = peer.sent()
    assert texts(sent) == ["1", "2"]
    # The block is clear now; the next message needs no release.
    peer.core.publish(3, message("3", qos=2))
    assert len(peer.sent()) == 1


def test_a_session_of_our_own_needs_no_releases() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect(session_present=False)
    peer.reconnect(session_present=True)
    peer.core.publish(1, message("x", qos=2))
    assert texts(peer.sent()) == ["x"]


@pytest.mark.parametrize(
    ("connack", "unwanted", "reason"),
    [
        ({"maximum_qos": 1}, message("x", qos=2), Reason.QOS_NOT_SUPPORTED),
        ({"retain_available": False}, message("x", retain=True), Reason.RETAIN_NOT_SUPPORTED),
        ({"packet_bytes_max": 50}, message("x" * 60), Reason.PACKET_TOO_LARGE),
    ],
)
def test_what_the_server_said_it_will_not_take_is_refused_here(
    connack: dict[str, object], unwanted: Message, reason: Reason
) -> None:
    peer = Peer()
    peer.connect(**connack)
    peer.core.publish(1, unwanted)
    peer.core.publish(2, message("y"))
    # Sending it would cost the connection, and everybody else's messages with it.
    assert texts(peer.sent()) == ["y"]
    (finished,) = peer.events()
    assert isinstance(finished, Published) and (finished.ticket, finished.reason) == (1, reason)


@pytest.mark.parametrize(
    ("bad", "version"),
    [
        (message("x", topic=""), Version.MQTT_5),
        (message("x", topic="a/+"), Version.MQTT_5),
        (message("x", topic="a/#"), Version.MQTT_5),
        (message("x", topic="a\0b"), Version.MQTT_5),
        (message("x", topic="a\ud800"), Version.MQTT_5),
        (message("x", topic="a" * 65_536), Version.MQTT_5),
        (message("x", qos=3), Version.MQTT_5),
        (Message(topic="a", properties=Properties(topic_alias=1)), Version.MQTT_5),
        (Message(topic="a", properties=Properties(content_type="text")), Version.MQTT_3_1_1),
        (Message(topic="a", properties=Properties(content_type="\0")), Version.MQTT_5),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, Message) else value.name,
)
def test_what_can_never_be_sent_is_refused_at_once(bad: Message, version: Version) -> None:
    peer = Peer(version=version)
    peer.connect()
    with pytest.raises(LocalError):
        peer.core.publish(1, bad)
    assert peer.sent() == []


def test_packet_ids_go_round_and_pass_over_those_in_use() -> None:
    ids = PacketIds()
    first = [ids.take() for _ in range(65_535)]
    assert first == list(range(1, 65_536))
    for packet_id in (5, 6, 40_000):
        ids.give_back(packet_id)
    assert [ids.take(), ids.take()] == [5, 6]
    ids.give_back(5)
    assert [ids.take(), ids.take()] == [40_000, 5]


def test_what_was_taken_back_before_it_left_is_held_nowhere() -> None:
    """A client that is disconnected for long: each publish is given up by a time-out."""
    peer = Peer()
    outgoing = peer.core._outgoing
    peer.core.publish(0, message("stays"))
    for ticket in range(1, 1_001):
        peer.core.publish(ticket, message("x"))
        peer.core.withdraw(ticket)
    assert len(outgoing._waiting) == len(outgoing._by_ticket) == 1
    assert texts(peer.connect()) == ["stays"]


def test_what_was_sent_and_taken_back_is_still_sent_again() -> None:
    """[MQTT-4.4.0-1]: its id is in use until it is acknowledged."""
    peer = Peer()
    peer.connect()
    peer.core.publish(1, message("x"))
    (first,) = ids(peer.sent())
    peer.core.withdraw(1)
    assert ids(peer.reconnect(session_present=True)) == [first]
    peer.core.connection_lost()
    peer.core.withdraw(1)
    assert ids(peer.connect(session_present=True)) == [first]
