"""Receiving: what reaches the application once, and when the server is answered."""

import pytest

from millrace.client.conversation.events import Delivered, Disconnected
from millrace.client.conversation.incoming import Message
from millrace.reasons import Reason
from millrace.types import Message as PlainMessage
from millrace.types import Properties, Subscription, Version
from millrace.wire.mqtt.packets import Disconnect, Puback, Pubcomp, Publish, Pubrec, Pubrel, Subscribe
from unit.client.peer import BOTH, Peer


def subscribed(*, version: Version = Version.MQTT_5, durable: bool = False, **options: int) -> Peer:
    peer = Peer(version=version, session_expiry_s=60 if durable else 0, clean_start=not durable, **options)
    peer.connect()
    peer.subscribe(1, "a")
    return peer


def payloads(messages: list[Message]) -> list[str]:
    return [m.payload.decode() for m in messages]


@pytest.mark.parametrize("version", BOTH)
def test_qos_1_is_acknowledged_when_taken_and_not_before(version: Version) -> None:
    peer = subscribed(version=version)
    (one,) = peer.deliver("x", packet_id=5)
    assert peer.sent() == []
    peer.core.take(one)
    assert peer.sent() == [Puback(packet_id=5)]


@pytest.mark.parametrize("version", BOTH)
def test_qos_2_is_taken_over_once(version: Version) -> None:
    peer = subscribed(version=version)
    (one,) = peer.deliver("x", qos=2, packet_id=5)
    assert peer.deliver("x", qos=2, packet_id=5, dup=True) == []
    assert peer.sent() == []
    peer.core.take(one)
    assert peer.sent() == [Pubrec(packet_id=5)]
    assert peer.deliver("x", qos=2, packet_id=5, dup=True) == []
    assert peer.sent() == [Pubrec(packet_id=5)]
    peer.feed(Pubrel(packet_id=5))
    assert peer.sent() == [Pubcomp(packet_id=5)]
    # Released: the id may now carry another message.
    assert payloads(peer.deliver("y", qos=2, packet_id=5)) == ["y"]


def test_a_release_of_an_unknown_id_is_answered_so() -> None:
    peer = subscribed()
    peer.feed(Pubrel(packet_id=9))
    assert peer.sent() == [Pubcomp(packet_id=9, reason=Reason.PACKET_ID_NOT_FOUND)]


def test_a_message_that_the_server_gave_up_keeps_its_id_from_no_other() -> None:
    """It was received, and its log has lost it since: who takes it late must not answer for the next one."""
    peer = subscribed()
    (given_up,) = peer.deliver("x", qos=2, packet_id=9)
    peer.feed(Pubrel(packet_id=9))
    assert peer.sent() == [Pubcomp(packet_id=9)]
    (other,) = peer.deliver("y", qos=2, packet_id=9)
    peer.core.take(given_up)
    assert peer.sent() == []
    peer.core.take(other)
    assert peer.sent() == [Pubrec(packet_id=9)]


def test_another_message_under_the_id_of_one_that_is_held_is_no_repeat_though_it_has_dup() -> None:
    """The node was killed before it wrote down what it had sent, and its successor gave the id again."""
    peer = subscribed(durable=True)
    (held,) = peer.deliver("x", packet_id=9)
    peer.reconnect(session_present=True)
    assert payloads(peer.deliver("y", packet_id=9, dup=True)) == ["y"]
    peer.core.take(held)
    assert peer.sent() == []
    peer.reconnect(session_present=True)
    assert peer.deliver("y", packet_id=9, dup=True) == []


@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
def test_answers_leave_in_the_order_in_which_messages_came(qos: int, kind: type) -> None:
    peer = subscribed()
    messages = [peer.deliver(str(at), qos=qos, packet_id=at)[0] for at in (1, 2, 3)]
    peer.core.take(messages[2])
    peer.core.take(messages[1])
    assert peer.sent() == []
    peer.core.take(messages[0])
    assert peer.sent() == [kind(packet_id=at) for at in (1, 2, 3)]


def test_a_message_set_aside_holds_up_nobody_and_can_still_be_taken() -> None:
    peer = subscribed()
    messages = [peer.deliver(str(at), packet_id=at)[0] for at in (1, 2)]
    peer.core.take(messages[1])
    peer.core.put_aside(messages[0])
    assert peer.sent() == [Puback(packet_id=2)]
    peer.core.take(messages[0])
    assert peer.sent() == [Puback(packet_id=1)]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_application_still_holds_is_not_given_to_it_again(qos: int) -> None:
    peer = subscribed(durable=True)
    (one,) = peer.deliver("x", qos=qos, packet_id=5)
    peer.reconnect(session_present=True)
    assert peer.deliver("x", qos=qos, packet_id=5, dup=True) == []
    peer.core.take(one)
    assert peer.sent() == [Puback(packet_id=5) if qos == 1 else Pubrec(packet_id=5)]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_taken_while_away_is_answered_when_the_server_repeats_it(qos: int) -> None:
    peer = subscribed(durable=True)
    (one,) = peer.deliver("x", qos=qos, packet_id=5)
    peer.core.connection_lost()
    peer.core.take(one)
    # Not before: the server may have given the id to another message meanwhile.
    assert peer.connect(session_present=True) == []
    assert peer.deliver("x", qos=qos, packet_id=5, dup=True) == []
    assert peer.sent() == [Puback(packet_id=5) if qos == 1 else Pubrec(packet_id=5)]


def test_an_id_without_dup_is_another_message_at_qos_1() -> None:
    peer = subscribed(durable=True)
    (old,) = peer.deliver("old", packet_id=5)
    peer.reconnect(session_present=True)
    (new,) = peer.deliver("new", packet_id=5)
    assert new.payload == b"new"
    peer.core.take(old)
    assert peer.sent() == []
    peer.core.take(new)
    assert peer.sent() == [Puback(packet_id=5)]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_lost_session_forgets_what_was_unanswered(qos: int) -> None:
    peer = subscribed(durable=True)
    (old,) = peer.deliver("old", qos=qos, packet_id=5)
    peer.reconnect(session_present=False)
    assert payloads(peer.deliver("new", qos=qos, packet_id=5)) == ["new"]
    peer.core.take(old)
    assert peer.sent() == []


def test_a_lost_session_forgets_ids_that_were_not_released() -> None:
    peer = subscribed(durable=True)
    (old,) = peer.deliver("old", qos=2, packet_id=5)
    peer.core.take(old)
    peer.reconnect(session_present=False)
    assert payloads(peer.deliver("new", qos=2, packet_id=5)) == ["new"]


def test_a_kept_session_remembers_ids_that_were_not_released() -> None:
    peer = subscribed(durable=True)
    (old,) = peer.deliver("old", qos=2, packet_id=5)
    peer.core.take(old)
    peer.sent()
    peer.reconnect(session_present=True)
    assert peer.deliver("old", qos=2, packet_id=5, dup=True) == []
    assert peer.sent() == [Pubrec(packet_id=5)]


def test_a_server_that_exceeds_the_receive_maximum_is_left() -> None:
    peer = subscribed(receive_maximum=2)
    (one,) = peer.deliver("1", packet_id=1)
    peer.deliver("2", qos=2, packet_id=2)
    peer.core.take(one)
    assert len(peer.deliver("3", packet_id=3)) == 1
    assert peer.deliver("4", packet_id=4) == []
    assert any(isinstance(p, Disconnect) and p.reason is Reason.RECEIVE_MAXIMUM_EXCEEDED for p in peer.sent())


def test_releases_of_an_earlier_connection_do_not_count_against_the_receive_maximum() -> None:
    peer = subscribed(durable=True, receive_maximum=2)
    for packet_id in (1, 2):
        (one,) = peer.deliver("x", qos=2, packet_id=packet_id)
        peer.core.take(one)
    peer.reconnect(session_present=True, receive_maximum=2)
    assert len(peer.deliver("y", packet_id=3) + peer.deliver("z", packet_id=4)) == 2


# ------------------------------------------------------------------------------------ whose message it is


def test_the_identifier_tells_whose_a_message_is() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "a/#")
    peer.subscribe(2, "a/b")
    numbers = [_numbers(peer, "a/b", ids) for ids in ((1,), (2,), (2, 1), (), (77,))]
    # No identifier, or one that this client never gave: the filters decide.
    assert numbers == [(1,), (2,), (1, 2), (1, 2), (1, 2)]


def test_an_identifier_of_an_earlier_process_is_not_believed() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "a/#")
    peer.subscribe(2, "b/#")
    assert _numbers(peer, "b/x", (1,)) == (2,)


def test_a_shared_subscription_matches_by_its_own_filter() -> None:
    peer = Peer(version=Version.MQTT_3_1_1)
    peer.connect()
    peer.subscribe(1, "$share/g/a/+")
    assert _numbers(peer, "a/b", ()) == (1,)


def test_a_message_for_two_subscriptions_is_answered_when_both_have_taken_it() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "a/#")
    peer.subscribe(2, "a/b")
    (one,) = peer.deliver("x", packet_id=5, topic="a/b", ids=(1, 2))
    peer.core.take(one)
    assert peer.sent() == []
    peer.core.take(one)
    assert peer.sent() == [Puback(packet_id=5)]


def test_a_message_for_nobody_waits_unanswered_for_the_next_subscription() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect(session_present=True)
    assert peer.deliver("x", packet_id=5, topic="old/x", ids=(9,)) == []
    assert peer.deliver("y", packet_id=6, topic="other", ids=(8,)) == []
    assert peer.sent() == []
    peer.core.subscribe(1, 1, _filters("old/#"))
    (event,) = peer.events()
    assert isinstance(event, Delivered) and event.message.payload == b"x" and event.numbers == (1,)
    peer.sent()
    peer.core.take(event.message)
    # The one that still waits for its subscription does not hold this answer up.
    assert peer.sent() == [Puback(packet_id=5)]


def test_a_message_for_nobody_is_kept_once_across_a_reconnect() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect(session_present=True)
    peer.deliver("x", packet_id=5, topic="old/x")
    peer.reconnect(session_present=True)
    peer.deliver("x", packet_id=5, topic="old/x", dup=True)
    peer.core.subscribe(1, 1, _filters("old/#"))
    assert [e.message.payload for e in peer.events() if isinstance(e, Delivered)] == [b"x"]
    # Its session is gone: nobody would understand an answer.
    peer.reconnect(session_present=True)
    peer.deliver("z", packet_id=7, topic="other")
    peer.reconnect(session_present=False)
    peer.core.subscribe(2, 2, _filters("other"))
    assert peer.events() == []


def test_what_is_claimed_while_away_is_answered_when_the_server_repeats_it() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect(session_present=True)
    peer.deliver("x", packet_id=5, topic="old/x")
    peer.core.connection_lost()
    peer.core.subscribe(1, 1, _filters("old/#"))
    (event,) = peer.events()
    assert isinstance(event, Delivered)
    peer.core.take(event.message)
    sent = peer.connect(session_present=True)
    assert [type(p) for p in sent] == [Subscribe]
    (other,) = peer.deliver("y", packet_id=6, topic="old/y")
    peer.core.take(other)
    assert peer.sent() == [Puback(packet_id=6)]
    assert peer.deliver("x", packet_id=5, topic="old/x", dup=True) == []
    assert peer.sent() == [Puback(packet_id=5)]


def test_qos_0_for_nobody_is_dropped_and_counted() -> None:
    peer = Peer()
    peer.connect()
    assert peer.deliver("x", qos=0, topic="nobody") == []
    assert peer.core.unclaimed_dropped == 1


def test_what_is_kept_for_nobody_is_bounded_where_the_version_sets_no_bound() -> None:
    peer = Peer(version=Version.MQTT_3_1_1, session_expiry_s=60, clean_start=False)
    peer.connect(session_present=True)
    for packet_id in range(1, 10_003):
        assert peer.deliver("x", packet_id=packet_id, topic="nobody") == []
    assert peer.core.unclaimed_dropped == 2
    assert peer.sent() == []


def test_a_message_given_back_goes_to_the_next_subscription() -> None:
    peer = subscribed()
    messages = [peer.deliver(str(at), packet_id=at)[0] for at in (1, 2, 3)]
    peer.core.take(messages[2])
    peer.core.leave(1)
    peer.core.give_back(messages[0])
    peer.core.give_back(messages[1])
    assert peer.sent() == [Puback(packet_id=3)]
    peer.core.subscribe(2, 2, _filters("a"))
    again = [e.message for e in peer.events() if isinstance(e, Delivered)]
    assert again == messages[:2]
    peer.sent()
    for one in again:
        peer.core.take(one)
    assert peer.sent() == [Puback(packet_id=1), Puback(packet_id=2)]


def test_a_topic_alias_that_was_not_allowed_ends_the_connection() -> None:
    peer = subscribed()
    (event,) = peer.feed(Publish(message=PlainMessage(topic="a", properties=Properties(topic_alias=1))))
    assert isinstance(event, Disconnected) and event.reason is Reason.TOPIC_ALIAS_INVALID


def _filters(*names: str) -> tuple[Subscription, ...]:
    return tuple(Subscription(filter=name, qos=1) for name in names)


def _numbers(peer: Peer, topic: str, ids: tuple[int, ...]) -> tuple[int, ...]:
    packet = Publish(message=PlainMessage(topic=topic, properties=Properties(subscription_ids=ids)))
    (event,) = peer.feed(packet)
    assert isinstance(event, Delivered)
    return event.numbers
