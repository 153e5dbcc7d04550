"""The core around the messages: handshake, requests, keep alive, errors of the server, and feeding."""

import pytest

from millrace.client.conversation.events import (
    Connected,
    ConnectRefused,
    Delivered,
    Disconnected,
    Published,
    Subscribed,
    Unsubscribed,
)
from millrace.client.conversation.protocol import State
from millrace.errors import LocalError
from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version, Will
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from unit.client.peer import BOTH, Peer, message, texts


def wanted(*names: str, qos: int = 1) -> tuple[Subscription, ...]:
    return tuple(Subscription(filter=name, qos=qos) for name in names)


# ---------------------------------------------------------------------------------------------- handshake


def test_connect_says_what_the_options_say() -> None:
    will = Will(message=message("gone", qos=2), delay_s=5)
    peer = Peer(session_expiry_s=60, keep_alive_s=30, receive_maximum=7, will=will, packet_bytes_max=9000)
    peer.core.connect(0.0, "ann", b"secret")
    assert peer.sent() == [
        Connect(
            version=Version.MQTT_5,
            client_id="c",
            clean_start=True,
            keep_alive_s=30,
            username="ann",
            password=b"secret",
            will=will,
            session_expiry_s=60,
            receive_maximum=7,
            packet_bytes_max=9000,
        )
    ]


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("expiry_s", [0, 60])
def test_only_a_session_that_is_kept_is_asked_for_again(version: Version, expiry_s: int) -> None:
    peer = Peer(version=version, session_expiry_s=expiry_s, clean_start=True)
    peer.connect()
    peer.core.connection_lost()
    peer.core.connect(0.0)
    (connect,) = peer.sent()
    assert isinstance(connect, Connect) and connect.clean_start == (expiry_s == 0)


@pytest.mark.parametrize("version", BOTH)
def test_a_refused_connection_says_why(version: Version) -> None:
    peer = Peer(version=version)
    peer.core.connect(0.0)
    peer.sent()
    (event,) = peer.feed(Connack(reason=Reason.BAD_USER_OR_PASSWORD))
    assert event == ConnectRefused(reason=Reason.BAD_USER_OR_PASSWORD, detail=None)
    assert peer.core.state is State.ENDED


def test_nothing_is_sent_between_connect_and_connack() -> None:
    peer = Peer()
    peer.core.publish(1, message("x", qos=0))
    peer.core.subscribe(2, 1, wanted("a"))
    peer.core.connect(0.0)
    (connect,) = peer.sent()
    assert isinstance(connect, Connect)
    peer.feed(Connack(reason=Reason.SUCCESS))
    kinds = [type(p) for p in peer.sent()]
    assert kinds == [Subscribe, Publish]


@pytest.mark.parametrize("version", BOTH)
def test_goodbye_comes_after_what_was_due(version: Version) -> None:
    peer = Peer(version=version)
    peer.connect()
    peer.subscribe(1, "a")
    (one,) = peer.deliver("x", packet_id=5)
    peer.core.take(one)
    peer.core.publish(1, message("never", qos=0))
    peer.core.disconnect()
    assert peer.sent() == [Puback(packet_id=5), Disconnect()]
    assert peer.deliver("y", packet_id=6) == []


# ------------------------------------------------------------------------------------------------ feeding

_STREAM: tuple[Packet, ...] = (
    Connack(reason=Reason.SUCCESS, receive_maximum=20),
    Suback(packet_id=1, reasons=(Reason.GRANTED_QOS_1,)),
    Publish(message=Message(topic="a", payload=b"x" * 300)),
    Pingresp(),
    Publish(message=Message(topic="a", payload=b"y", qos=1), packet_id=3),
    Disconnect(reason=Reason.SERVER_SHUTTING_DOWN),
)


def _events_of(chunks: list[bytes]) -> list[object]:
    peer = Peer()
    peer.core.subscribe(1, 1, wanted("a"))
    peer.core.connect(0.0)
    peer.sent()
    found: list[object] = []
    for chunk in chunks:
        peer.core.receive_data(chunk, 0.0)
        peer.sent()
        found += peer.events()
    return found


def test_the_same_bytes_mean_the_same_however_they_are_cut() -> None:
    connack, *rest = (encode(packet, Version.MQTT_5) for packet in _STREAM)
    data = b"".join(rest)
    whole = _events_of([connack, data])
    assert [type(e) for e in whole] == [Connected, Subscribed, Delivered, Delivered, Disconnected]
    assert _events_of([bytes((byte,)) for byte in connack + data]) == whole
    for at in range(len(data)):
        assert _events_of([connack, data[:at], data[at:]]) == whole


def test_a_caller_that_does_not_ask_stops_the_decoding() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "a")
    packets = [Publish(message=Message(topic="a", payload=bytes((at,)))) for at in range(5)]
    data = b"".join(encode(p, Version.MQTT_5) for p in packets)
    peer.core.receive_data(data, 0.0)
    assert peer.core.next_event(decode=False) is None
    assert isinstance(peer.core.next_event(), Delivered)
    assert not peer.core.has_events, "only what was asked for is decoded"
    # What happens on our side is told all the same, and more bytes may come.
    peer.core.publish(9, message("x", qos=0))
    peer.sent()
    assert peer.core.next_event(decode=False) == Published(ticket=9, reason=Reason.SUCCESS)
    peer.core.receive_data(data, 0.0)
    assert len(peer.events()) == 9


# --------------------------------------------------------------------------------------------- keep alive


def test_silence_is_broken_by_a_ping_and_a_dead_server_noticed() -> None:
    peer = Peer(keep_alive_s=40)
    peer.connect()
    assert peer.core.tick(100.0) == 130.0
    assert peer.sent() == []
    assert peer.core.tick(130.0) == 160.0
    peer.now_s = 130.0
    assert peer.sent() == [Pingreq()]
    peer.now_s = 131.0
    peer.feed(Pingresp())
    assert peer.core.tick(131.0) == 160.0
    assert peer.core.tick(160.0) == 190.0
    assert peer.sent() == [Pingreq()]
    assert peer.core.tick(190.0) is None
    (event,) = peer.events()
    assert event == Disconnected(
        reason=Reason.KEEP_ALIVE_TIMEOUT, detail="the server does not answer a ping", by_server=False
    )


def test_sending_alone_does_not_prove_that_the_server_lives() -> None:
    peer = Peer(keep_alive_s=40)
    peer.connect()
    for peer.now_s in (110.0, 120.0, 129.0):
        peer.core.publish(int(peer.now_s), message("x", qos=0))
        peer.sent()
    peer.core.tick(130.0)
    assert peer.sent() == [Pingreq()]


def test_a_caller_that_does_not_read_cannot_blame_the_server() -> None:
    peer = Peer(keep_alive_s=40)
    peer.connect()
    peer.core.tick(130.0)
    assert peer.core.tick(160.0, reading=False) == 190.0
    assert peer.core.tick(189.0) == 190.0
    assert peer.events() == []
    assert peer.core.state is State.CONNECTED


def test_the_keep_alive_of_the_server_goes_before_ours() -> None:
    peer = Peer(keep_alive_s=40)
    peer.connect(server_keep_alive_s=8)
    assert peer.core.tick(100.0) == 106.0
    peer.reconnect(server_keep_alive_s=0)
    assert peer.core.tick(100.0) is None


# ------------------------------------------------------------------------------------------ subscriptions


@pytest.mark.parametrize("version", BOTH)
def test_a_subscription_is_granted_and_ended(version: Version) -> None:
    peer = Peer(version=version)
    peer.connect()
    peer.core.subscribe(1, 7, wanted("a", "b/#"))
    (request,) = peer.sent()
    identifier = 7 if version is Version.MQTT_5 else None
    assert isinstance(request, Subscribe)
    assert [(s.filter, s.identifier) for s in request.subscriptions] == [
        ("a", identifier),
        ("b/#", identifier),
    ]
    reasons = (Reason.GRANTED_QOS_1, Reason.SUCCESS)
    assert peer.feed(Suback(packet_id=request.packet_id, reasons=reasons)) == [
        Subscribed(ticket=1, number=7, reasons=reasons)
    ]
    peer.core.unsubscribe(2, 7)
    (request,) = peer.sent()
    assert isinstance(request, Unsubscribe) and request.filters == ("a", "b/#")
    # What comes before the answer is for nobody, and must not fill the server's window.
    assert peer.deliver("late", packet_id=9) == []
    assert peer.sent() == [Puback(packet_id=9)]
    done = () if version is not Version.MQTT_5 else (Reason.SUCCESS, Reason.SUCCESS)
    answer = Unsuback(packet_id=request.packet_id, reasons=done)
    assert peer.feed(answer) == [Unsubscribed(ticket=2, reasons=done)]


def test_a_group_message_that_comes_too_late_is_left_for_the_other_members() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "$share/g/a")
    peer.core.unsubscribe(2, 1)
    peer.sent()
    assert peer.deliver("late", packet_id=9) == []
    assert peer.sent() == []


@pytest.mark.parametrize(("cut", "session_present"), [(False, False), (True, False), (True, True)])
def test_a_partly_refused_subscription_is_taken_back(cut: bool, session_present: bool) -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect()
    peer.core.subscribe(1, 7, wanted("a", "b"))
    (request,) = peer.sent()
    assert isinstance(request, Subscribe)
    reasons = (Reason.GRANTED_QOS_1, Reason.NOT_AUTHORIZED)
    assert peer.feed(Suback(packet_id=request.packet_id, reasons=reasons)) == []
    (back,) = peer.sent()
    assert isinstance(back, Unsubscribe)
    if cut:
        (back,) = peer.reconnect(session_present=session_present)
        assert isinstance(back, Unsubscribe)
    assert peer.feed(Unsuback(packet_id=back.packet_id, reasons=(Reason.SUCCESS,) * 2)) == [
        Subscribed(ticket=1, number=7, reasons=reasons)
    ]
    peer.core.subscribe(2, 8, wanted("a"))


def test_a_filter_is_held_once() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "a")
    with pytest.raises(LocalError, match="already subscribed to a"):
        peer.core.subscribe(2, 2, wanted("b", "a"))
    with pytest.raises(LocalError, match="already subscribed to b"):
        peer.core.subscribe(2, 2, wanted("b", "b"))
    peer.subscribe(3, "b")


@pytest.mark.parametrize(
    ("version", "bad"),
    [
        (Version.MQTT_5, Subscription(filter="")),
        (Version.MQTT_5, Subscription(filter="a/#/b")),
        (Version.MQTT_5, Subscription(filter="a+")),
        (Version.MQTT_5, Subscription(filter="$share/g")),
        (Version.MQTT_5, Subscription(filter="$share//a")),
        (Version.MQTT_5, Subscription(filter="a\0")),
        (Version.MQTT_5, Subscription(filter="a\ud800")),
        (Version.MQTT_5, Subscription(filter="a", qos=3)),
        (Version.MQTT_5, Subscription(filter="$share/g/a", no_local=True)),
        (Version.MQTT_3_1_1, Subscription(filter="a", no_local=True)),
    ],
)
def test_a_subscription_that_would_cost_the_connection_is_refused_here(
    version: Version, bad: Subscription
) -> None:
    peer = Peer(version=version)
    peer.connect()
    with pytest.raises(LocalError):
        peer.core.subscribe(1, 1, (bad,))
    assert peer.sent() == []


def test_subscriptions_are_made_again_only_if_the_session_is_lost() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect()
    peer.subscribe(1, "a")
    peer.subscribe(2, "b")
    assert peer.reconnect(session_present=True) == []
    sent = peer.reconnect()
    assert [s.filter for p in sent if isinstance(p, Subscribe) for s in p.subscriptions] == ["a", "b"]
    # Refused this time: told without a ticket, because nobody asked.
    assert isinstance(sent[0], Subscribe)
    (event,) = peer.feed(Suback(packet_id=sent[0].packet_id, reasons=(Reason.NOT_AUTHORIZED,)))
    assert event == Subscribed(ticket=None, number=1, reasons=(Reason.NOT_AUTHORIZED,))
    assert [type(p) for p in peer.reconnect()] == [Subscribe]


@pytest.mark.parametrize("session_present", [False, True])
def test_a_request_without_an_answer_is_sent_again_once(session_present: bool) -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect()
    peer.core.subscribe(1, 1, wanted("a"))
    peer.sent()
    (request,) = peer.reconnect(session_present=session_present)
    assert isinstance(request, Subscribe)
    (event,) = peer.feed(Suback(packet_id=request.packet_id, reasons=(Reason.SUCCESS,)))
    assert isinstance(event, Subscribed) and event.ticket == 1


def test_a_lost_connection_ends_what_was_being_unsubscribed_if_no_session_is_kept() -> None:
    peer = Peer()
    peer.connect()
    peer.subscribe(1, "a")
    peer.core.unsubscribe(5, 1)
    peer.sent()
    peer.core.connection_lost()
    assert peer.events() == [Unsubscribed(ticket=5, reasons=(Reason.SUCCESS,))]
    assert peer.connect() == []


def test_a_subscription_given_up_while_away_is_not_made() -> None:
    peer = Peer()
    peer.connect()
    peer.core.connection_lost()
    peer.core.subscribe(1, 1, wanted("a"))
    peer.core.unsubscribe(2, 1)
    assert peer.events() == [Unsubscribed(ticket=2, reasons=(Reason.SUCCESS,))]
    assert peer.connect() == []


def test_a_subscription_left_standing_in_a_kept_session_may_be_taken_up_again() -> None:
    peer = Peer(session_expiry_s=60, clean_start=False)
    peer.connect()
    peer.subscribe(1, "a")
    peer.core.leave(1)
    assert peer.sent() == []
    assert peer.deliver("meanwhile", packet_id=5, ids=(1,)) == []
    peer.core.subscribe(9, 2, wanted("a"))
    assert [e.message.payload for e in peer.events() if isinstance(e, Delivered)] == [b"meanwhile"]


def test_requests_without_an_answer_are_bounded() -> None:
    peer = Peer()
    for number in range(1, 1001):
        peer.core.subscribe(number, number, wanted(f"a/{number}"))
    with pytest.raises(LocalError, match="1000"):
        peer.core.subscribe(1001, 1001, wanted("b"))


# -------------------------------------------------------------------------------- errors of the server


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(
    "packet",
    [
        Connack(reason=Reason.SUCCESS),
        Connect(version=Version.MQTT_5, client_id="x"),
        Subscribe(packet_id=1, subscriptions=wanted("a")),
        Unsubscribe(packet_id=1, filters=("a",)),
        Pingreq(),
        Suback(packet_id=77, reasons=(Reason.SUCCESS,)),
        Unsuback(packet_id=77, reasons=(Reason.SUCCESS,)),
        Pubrec(packet_id=1),
        Puback(packet_id=2),
        Pubcomp(packet_id=2),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_a_packet_out_of_place_ends_the_connection(version: Version, packet: Packet) -> None:
    peer = Peer(version=version)
    peer.connect()
    peer.core.publish(1, message("x", qos=1))
    peer.core.publish(2, message("y", qos=2))
    assert texts(peer.sent()) == ["x", "y"]
    (event,) = peer.feed(packet, Pingresp())
    assert isinstance(event, Disconnected) and not event.by_server
    assert event.reason in (Reason.PROTOCOL_ERROR, Reason.MALFORMED_PACKET)
    # MQTT 5 says why; 3.1.1 has no word for it.
    assert [type(p) for p in peer.sent()] == ([Disconnect] if version is Version.MQTT_5 else [])
    assert peer.core.state is State.ENDED


def test_auth_that_was_not_asked_for_ends_the_connection() -> None:
    peer = Peer()
    peer.connect()
    (event,) = peer.feed(Auth(reason=Reason.CONTINUE_AUTHENTICATION, authentication_method="x"))
    assert isinstance(event, Disconnected) and event.reason is Reason.PROTOCOL_ERROR


def test_the_first_packet_has_to_be_connack() -> None:
    peer = Peer()
    peer.core.connect(0.0)
    peer.sent()
    (event,) = peer.feed(Pingresp())
    assert isinstance(event, Disconnected)
    assert peer.sent() == []


def test_a_packet_larger_than_allowed_is_refused_at_its_header() -> None:
    peer = Peer(packet_bytes_max=1000)
    peer.connect()
    peer.core.receive_data(b"\x30\xff\xff\x7f", 0.0)
    (event,) = peer.events()
    assert isinstance(event, Disconnected) and event.reason is Reason.PACKET_TOO_LARGE


def test_the_goodbye_of_the_server_is_told_with_its_reason() -> None:
    peer = Peer()
    peer.connect()
    events = peer.feed(Disconnect(reason=Reason.SESSION_TAKEN_OVER, reason_string="again"), Pingresp())
    assert events == [Disconnected(reason=Reason.SESSION_TAKEN_OVER, detail="again", by_server=True)]
    assert peer.sent() == []
